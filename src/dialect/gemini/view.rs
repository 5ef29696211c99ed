//! The conversation in contents of parts, made of what the reader has found in a body. That only says where values are.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

use crate::conversation::{Block, BlockKind, CallId, Conversation, Element, Flags, Role, Traits, Unit};
use crate::dialect::json::{Fault, fields_of};
use crate::dialect::reading::{RequestFields, call_id, next_unit, push_block, text};
use crate::span::Span;

/// The keys of a request that are read, in the order in which [`View::finish`] takes their values. Google's JSON has each
/// name in two spellings.
pub(super) const REQUEST_KEYS: [&[u8]; 6] =
    [b"contents", b"tools", b"systemInstruction", b"system_instruction", b"generationConfig", b"generation_config"];

/// One content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) span: Span,
    pub(super) role: Option<Span>,
    pub(super) parts: Option<Span>,
}

/// One part of a content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    span: Span,
    kind: Kind,
    /// Its text, or the response of a result.
    value: Option<Span>,
    id: Option<Span>,
    name: Option<Span>,
    is_signed: bool,
}

/// The kind of a part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Text,
    Thought,
    Call,
    Result,
    Other,
}

/// The keys of a part that are read, in the order in which [`Part::of`] takes their values.
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

impl Part {
    /// The call or the result in a part with these values of [`PART_KEYS`].
    pub(super) fn function(body: &[u8], values: [Option<Span>; 8]) -> Option<Span> {
        let [.., call, call_, result, result_] = values.map(|value| value.filter(|value| value.of(body) != b"null"));
        call.or(call_).or(result).or(result_)
    }

    /// A part with these values of [`PART_KEYS`] and, if it is a call or a result, of [`FUNCTION_KEYS`].
    pub(super) fn of(body: &[u8], span: Span, values: [Option<Span>; 8], function: [Option<Span>; 3]) -> Self {
        let is_some = |value: &Span| value.of(body) != b"null";
        let [text, thought, signature, signature_, call, call_, ..] = values.map(|value| value.filter(is_some));
        let [id, name, response] = function.map(|value| value.filter(is_some));
        let kind = match (call.or(call_), Self::function(body, values), text) {
            (Some(_), ..) => Kind::Call,
            (None, Some(_), _) => Kind::Result,
            (None, None, Some(_)) if thought.is_some_and(|thought| thought.of(body) == b"true") => Kind::Thought,
            (None, None, Some(_)) => Kind::Text,
            (None, None, None) => Kind::Other,
        };
        let value = if kind == Kind::Result { response } else { text };
        Self { span, kind, value, id, name, is_signed: signature.or(signature_).is_some() }
    }

    /// Whether it is a call or a result.
    pub(super) fn is_function(&self) -> bool {
        matches!(self.kind, Kind::Call | Kind::Result)
    }

    /// Whether it says something, so that a content with it is not empty without its calls.
    fn speaks(&self, body: &[u8]) -> bool {
        match self.kind {
            Kind::Call | Kind::Thought => false,
            Kind::Text => self.value.is_some_and(|text| text.of(body) != b"\"\""),
            Kind::Result | Kind::Other => true,
        }
    }
}

/// A conversation while it is made.
pub(super) struct View<'a> {
    body: &'a [u8],
    conversation: Conversation<'a>,
    /// The ids of all calls.
    ids: HashSet<Cow<'a, str>>,
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
        Self { body, conversation, ids: HashSet::new(), has_other_calls: false, open: HashMap::new() }
    }

    /// Adds a content with these parts.
    pub(super) fn content(&mut self, content: Content, parts: &[Part]) -> Result<(), Fault> {
        let speaks = Flags { speaks: true, ..Flags::default() };
        let content = Content { parts: content.parts.filter(|parts| parts.of(self.body) != b"null"), ..content };
        let role = text(self.body, content.role)?;
        self.has_other_calls |= role.as_deref() != Some("model") && parts.iter().any(|part| part.kind == Kind::Call);
        match role.as_deref() {
            Some("model") => self.model(content, parts),
            None | Some("user" | "function" | "tool") if parts.is_empty() => self.whole(content, Role::User, speaks),
            None | Some("user" | "function" | "tool") => self.user(content, parts),
            _ => self.whole(content, Role::Other, Flags { barrier: true, stays: true, ..speaks }),
        }
    }

    /// The conversation, with the values of [`REQUEST_KEYS`].
    pub(super) fn finish(mut self, (values, history): RequestFields<6>) -> Conversation<'a> {
        let [_, tools, system, system_, config, config_] = values;
        let conversation = &mut self.conversation;
        conversation.tools = tools;
        conversation.instructions = system.or(system_);
        history.apply(conversation);
        conversation.traits.is_answer_framed = true; // it may be an array, whose elements come one by one
        if self.has_other_calls {
            conversation.keep_results();
        }
        let keys: [&[u8]; 4] = [b"maxOutputTokens", b"max_output_tokens", b"responseSchema", b"responseJsonSchema"];
        let config = config.or(config_).and_then(|config| fields_of(self.body, config, keys).ok());
        let [most, most_, schema, json_schema] = config.unwrap_or_default();
        let number = |most: Span| str::from_utf8(most.of(self.body)).ok()?.parse().ok();
        conversation.traits.max_answer_tokens = most.or(most_).and_then(number);
        conversation.format = schema.or(json_schema);
        self.conversation
    }

    /// A content that is one unit.
    fn whole(&mut self, content: Content, role: Role, flags: Flags) -> Result<(), Fault> {
        let unit =
            next_unit(&self.conversation, content.span, role, content.parts, self.conversation.next_block(), flags)?;
        self.conversation.push_element(unit);
        Ok(())
    }

    fn model(&mut self, content: Content, parts: &[Part]) -> Result<(), Fault> {
        let (first, unit) = (self.conversation.next_block(), self.conversation.next_unit());
        // The API takes the results of a content with calls right after it, before another one of the model.
        let last = self.conversation.units.last();
        let begins =
            last.is_some_and(|last| last.role != Role::Assistant || !self.conversation.blocks_of(last).is_empty());
        let turn = self.conversation.following(first, !begins && last.is_some()).turn;
        if begins {
            self.open.clear();
        }
        for part in parts.iter().filter(|part| part.kind == Kind::Call) {
            let name = text(self.body, part.name)?;
            let id = self.id_of(part, name.as_ref())?;
            let answerable = name.as_ref().is_some_and(|name| !name.is_empty());
            if id.kind != BY_NAME {
                self.ids.insert(id.text.clone());
            }
            self.open.entry(name.clone().unwrap_or_default()).or_default().push_back(id.clone());
            let kind = BlockKind::ToolCall { id, name, answerable };
            push_block(&mut self.conversation, Block { unit, span: part.span, kind })?;
        }
        let flags = Flags {
            speaks: parts.iter().any(|part| part.speaks(self.body)),
            bound: parts.iter().any(|part| part.is_signed || part.kind == Kind::Other),
            thinks: parts.iter().any(|part| part.kind == Kind::Thought),
            ..Flags::default()
        };
        let unit = next_unit(&self.conversation, content.span, Role::Assistant, content.parts, first, flags)?;
        self.conversation.push_element(Unit { turn, ..unit });
        Ok(())
    }

    /// A content of the user, each part of which is a unit.
    fn user(&mut self, content: Content, parts: &[Part]) -> Result<(), Fault> {
        let start = self.conversation.next_unit();
        for part in parts {
            let first = self.conversation.next_block();
            let flags = Flags { speaks: true, ..Flags::default() };
            let unit = if part.kind == Kind::Result {
                let kind = BlockKind::ToolResult { call_id: self.answered(part)?, may_leave: true };
                let unit = self.conversation.next_unit();
                push_block(&mut self.conversation, Block { unit, span: part.span, kind })?;
                next_unit(&self.conversation, part.span, Role::Tool, part.value, first, flags)?
            } else {
                let text = part.value.filter(|_| part.kind == Kind::Text);
                next_unit(&self.conversation, part.span, Role::User, text, first, flags)?
            };
            self.conversation.units.push(unit);
        }
        self.conversation.elements.push(Element { span: content.span, units: start..self.conversation.next_unit() });
        Ok(())
    }

    /// The id of a call or a result; its name where it has none.
    fn id_of(&self, part: &Part, name: Option<&Cow<'a, str>>) -> Result<CallId<'a>, Fault> {
        let id = call_id(self.body, "", part.id)?;
        let by_name = || CallId { kind: BY_NAME, raw: None, text: name.cloned().unwrap_or_default() };
        Ok(if id.text.is_empty() { by_name() } else { id })
    }

    /// The id of the call that a result answers: its own if a call has that, else that of the next call of the function, if not
    /// both have one.
    fn answered(&mut self, part: &Part) -> Result<CallId<'a>, Fault> {
        let name = text(self.body, part.name)?;
        let id = self.id_of(part, name.as_ref())?;
        let Some(open) = self.open.get_mut(&name.unwrap_or_default()) else { return Ok(id) };
        let is_next = |next: &CallId<'_>| {
            let is_named = id.kind != BY_NAME;
            *next.text == *id.text || !is_named || !self.ids.contains(&id.text) && next.kind == BY_NAME
        };
        let next = open.front().is_some_and(is_next).then(|| open.pop_front()).flatten();
        Ok(next.unwrap_or(id))
    }
}
