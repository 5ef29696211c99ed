//! Reads the contents of a whole body in one pass with a [`Cursor`], and makes the conversation of their parts.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

use super::NAME;
use crate::conversation::{Block, BlockKind, CallId, Conversation, Element, Flags, Role, Traits, Unit};
use crate::dialect::json::{Cursor, Fault, ReadResult, beginning, fields, fields_of};
use crate::dialect::reading::{
    self, Entry, EntryKind as Kind, Message, RequestFields, call_id, next_unit, push_block, push_whole, text,
};
use crate::dialect::{ParseError, ParseErrorKind};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The keys of a request that are read, in the order in which [`View::finish`] takes their values. Google's JSON has each
/// name in two spellings.
pub(super) const REQUEST_KEYS: [&[u8]; 6] =
    [b"contents", b"tools", b"systemInstruction", b"system_instruction", b"generationConfig", b"generation_config"];

/// The keys of a part that are read, in the order in which [`part_of`] takes their values.
pub(super) const PART_KEYS: [&[u8]; 8] = [
    b"text",
    b"thought",
    b"thoughtSignature",
    b"thought_signature",
    b"functionCall",
    b"function_call",
    b"functionResponse",
    b"function_response",
];

/// The keys of a call and of a result that are read.
pub(super) const FUNCTION_KEYS: [&[u8]; 3] = [b"id", b"name", b"response"];

/// The kind of the ids of calls that have none: such a call is known by its name.
const BY_NAME: &str = "name";

/// The call or the result in a part with these values of [`PART_KEYS`].
pub(super) fn function(body: &[u8], values: [Option<Span>; 8]) -> Option<Span> {
    let [.., call, call_, result, result_] = values.map(|value| value.filter(|value| value.of(body) != b"null"));
    call.or(call_).or(result).or(result_)
}

/// A part with these values of [`PART_KEYS`] and, if it is a call or a result, of [`FUNCTION_KEYS`].
pub(super) fn part_of(body: &[u8], span: Span, values: [Option<Span>; 8], of_function: [Option<Span>; 3]) -> Entry {
    let is_some = |value: &Span| value.of(body) != b"null";
    let [text, thought, signature, signature_, call, call_, ..] = values.map(|value| value.filter(is_some));
    let [id, name, response] = of_function.map(|value| value.filter(is_some));
    let kind = match (call.or(call_), function(body, values), text) {
        (Some(_), ..) => Kind::Call,
        (None, Some(_), _) => Kind::Result,
        (None, None, Some(_)) if thought.is_some_and(|thought| thought.of(body) == b"true") => Kind::Thinking,
        (None, None, Some(_)) => Kind::Text,
        (None, None, None) => Kind::Other,
    };
    let value = if kind == Kind::Result { response } else { text };
    Entry { span, kind, id, name, value, program: None, is_signed: signature.or(signature_).is_some() }
}

/// The conversation in `body`, whose long strings may be known.
pub(super) fn read<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
    match read_request(body, Cursor::indexed(body, strings)) {
        Err(ParseError { kind: ParseErrorKind::NoMessages, .. }) if let Some(counted) = counted_request(body) => {
            let mut cursor = Cursor::indexed(body.get(..counted.end).unwrap_or_default(), strings);
            cursor.go_to(counted.start);
            read_request(body, cursor)
        }
        read => read,
    }
}

/// The request inside a body that asks how many tokens it has.
fn counted_request(body: &[u8]) -> Option<Span> {
    let keys: [&[u8]; 2] = [b"generateContentRequest", b"generate_content_request"];
    let mut cursor = Cursor::new(body);
    let [request, request_] = fields(&mut cursor, keys).ok()?;
    cursor.end().ok()?;
    beginning(body, request.or(request_), b'{')
}

fn read_request<'a>(body: &'a [u8], cursor: Cursor<'a>) -> Result<Conversation<'a>, ParseError> {
    let (mut view, mut parts) = (View::new(body), Vec::new());
    let content = |cursor: &mut Cursor<'a>| {
        parts.clear();
        let content = reading::message(cursor, b"parts", |cursor| match cursor.peek() {
            Some(b'[' | b'{') => reading::entries(cursor, &mut parts, |cursor| part(body, cursor)),
            _ => cursor.value(),
        })?;
        cursor.accept(view.content(content, &parts))
    };
    let beside = reading::body(NAME, cursor, REQUEST_KEYS, content)?;
    Ok(view.finish(beside))
}

fn part<'a>(body: &'a [u8], cursor: &mut Cursor<'a>) -> ReadResult<Entry> {
    let start = cursor.at();
    let values = fields(cursor, PART_KEYS)?;
    let span = Span { start, end: cursor.at() };
    let mut of_function = [None; 3];
    if let Some(function) = function(body, values) {
        cursor.go_to(function.start);
        of_function = fields(cursor, FUNCTION_KEYS)?;
        cursor.go_to(span.end);
    }
    Ok(part_of(body, span, values, of_function))
}

/// A conversation while it is made.
pub(super) struct View<'a> {
    body: &'a [u8],
    conversation: Conversation<'a>,
    /// The ids of all calls.
    ids: HashSet<Cow<'a, str>>,
    /// The ids of the last turn's calls.
    ids_of_turn: HashSet<Cow<'a, str>>,
    /// Whether a content that is not the model's has a call.
    has_other_calls: bool,
    /// The ids of the last turn's calls by the names of their functions.
    open: HashMap<Cow<'a, str>, VecDeque<CallId<'a>>>,
}

impl<'a> View<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        // Google's API refuses results of one batch in several contents (cloudwego/eino-ext#571, crewAIInc/crewAI#4693).
        let traits = Traits { gathers_results: true, ..Traits::default() };
        let conversation = Conversation { traits, ..Conversation::default() };
        let (ids, ids_of_turn) = (HashSet::new(), HashSet::new());
        Self { body, conversation, ids, ids_of_turn, has_other_calls: false, open: HashMap::new() }
    }

    /// Adds a content with these parts.
    pub(super) fn content(&mut self, content: Message, parts: &[Entry]) -> Result<(), Fault> {
        let speaks = Flags { speaks: true, ..Flags::default() };
        let role = text(self.body, content.role)?;
        self.has_other_calls |= role.as_deref() != Some("model") && parts.iter().any(|part| part.kind == Kind::Call);
        match role.as_deref() {
            Some("model") => self.model(content, parts),
            None | Some("user" | "function" | "tool") if parts.is_empty() => {
                push_whole(&mut self.conversation, content, Role::User, speaks)
            }
            None | Some("user" | "function" | "tool") => self.user(content, parts),
            _ => {
                let flags = Flags { barrier: true, stays: true, ..speaks };
                push_whole(&mut self.conversation, content, Role::Other, flags)
            }
        }
    }

    /// The conversation, with the values of [`REQUEST_KEYS`].
    pub(super) fn finish(mut self, (values, history): RequestFields<6>) -> Conversation<'a> {
        let [_, tools, system, system_, config, config_] = values;
        let conversation = &mut self.conversation;
        conversation.tools = tools;
        conversation.instructions = system.or(system_);
        history.apply(conversation);
        conversation.traits.answers_no_calls = true; // it may be an array, whose elements come one by one
        if self.has_other_calls {
            conversation.keep_results();
        }
        let keys: [&[u8]; 4] = [b"maxOutputTokens", b"max_output_tokens", b"responseSchema", b"responseJsonSchema"];
        let config = config.or(config_).and_then(|config| fields_of(self.body, config, keys));
        let [most, most_, schema, json_schema] = config.unwrap_or_default();
        let number = |most: Span| str::from_utf8(most.of(self.body)).ok()?.parse().ok();
        conversation.traits.max_answer_tokens = most.or(most_).and_then(number);
        conversation.format = schema.or(json_schema);
        self.conversation
    }

    fn model(&mut self, content: Message, parts: &[Entry]) -> Result<(), Fault> {
        let unit = self.conversation.next_unit();
        // The API takes the results of a content with calls right after it, before another one of the model.
        let last = self.conversation.units.last();
        let begins =
            last.is_some_and(|last| last.role != Role::Assistant || !self.conversation.blocks_of(last).is_empty());
        let turn = self.conversation.following(!begins && last.is_some()).turn;
        if begins {
            self.open.clear();
            self.ids_of_turn.clear();
        }
        for part in parts.iter().filter(|part| part.kind == Kind::Call) {
            let name = text(self.body, part.name)?;
            let mut id = self.id_of(part, name.as_ref())?;
            let answerable = name.as_ref().is_some_and(|name| !name.is_empty());
            if id.kind != BY_NAME {
                self.ids.insert(id.text.clone());
                if !self.ids_of_turn.insert(id.text.clone()) {
                    id.text = format!("{} {}", id.text, name.as_deref().unwrap_or_default()).into(); // an id twice
                }
            }
            self.open.entry(name.clone().unwrap_or_default()).or_default().push_back(id.clone());
            let kind = BlockKind::ToolCall { id, name, answerable };
            push_block(&mut self.conversation, Block { unit, span: part.span, kind })?;
        }
        let flags = Flags {
            speaks: parts.iter().any(|part| part.speaks(self.body)),
            bound: parts.iter().any(|part| part.is_signed || part.kind == Kind::Other),
            thinks: parts.iter().any(|part| part.kind == Kind::Thinking),
            ..Flags::default()
        };
        let unit = next_unit(&self.conversation, content, Role::Assistant, flags)?;
        self.conversation.push_element(Unit { turn, ..unit });
        Ok(())
    }

    /// A content of the user, each part of which is a unit.
    fn user(&mut self, content: Message, parts: &[Entry]) -> Result<(), Fault> {
        let start = self.conversation.next_unit();
        for part in parts {
            let call = if part.kind == Kind::Result { Some(self.answered(part)?) } else { None };
            let flags = Flags { speaks: true, ..Flags::default() };
            reading::push_entry(&mut self.conversation, part, call, flags)?;
        }
        self.conversation.elements.push(Element { span: content.span, units: start..self.conversation.next_unit() });
        Ok(())
    }

    /// The id of a call or a result; its name where it has none.
    fn id_of(&self, part: &Entry, name: Option<&Cow<'a, str>>) -> Result<CallId<'a>, Fault> {
        let id = call_id(self.body, "", part.id)?;
        let by_name = || CallId { kind: BY_NAME, raw: None, text: name.cloned().unwrap_or_default() };
        Ok(if id.text.is_empty() { by_name() } else { id })
    }

    /// The id of the call that a result answers: its own if a call has that, else that of the next call of the function, if not
    /// both have one.
    fn answered(&mut self, part: &Entry) -> Result<CallId<'a>, Fault> {
        let name = text(self.body, part.name)?;
        let id = self.id_of(part, name.as_ref())?;
        let Some(open) = self.open.get_mut(&name.unwrap_or_default()) else { return Ok(id) };
        let written = |id: &CallId<'_>| id.raw.map(|raw| raw.of(self.body));
        let is_next = |next: &CallId<'_>| {
            let is_named = id.kind != BY_NAME;
            let is_same = *next.text == *id.text || written(next) == written(&id);
            is_same || !is_named || !self.ids.contains(&id.text) && next.kind == BY_NAME
        };
        let next = open.front().is_some_and(is_next).then(|| open.pop_front()).flatten();
        Ok(next.map_or_else(|| id.clone(), |next| CallId { raw: id.raw, ..next }))
    }
}
