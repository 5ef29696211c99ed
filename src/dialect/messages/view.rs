//! Reads the messages of a whole body in one pass with a [`Cursor`], and makes the conversation of them.

use std::borrow::Cow;
use std::collections::HashSet;

use memchr::memmem;

use super::NAME;
use crate::conversation::{Block, BlockKind, Conversation, Element, Flags, Role, Traits};
use crate::dialect::ParseError;
use crate::dialect::json::{Cursor, Fault, ReadResult, field, fields, objects, text_of, value_of_key};
use crate::dialect::reading::{
    self, Entry, EntryKind as Kind, Message, RequestFields, call_id, is_direct, next_unit, push_block, push_whole, text,
};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The keys of a request that are read, in the order in which [`View::finish`] takes their values.
pub(super) const REQUEST_KEYS: [&[u8]; 9] = [
    b"messages",
    b"model",
    b"tools",
    b"system",
    b"output_config",
    b"output_format",
    b"context_management",
    b"compaction",
    b"thinking",
];

/// The keys of an entry that are read, in the order in which [`Entry::of`] takes their values.
pub(super) const ENTRY_KEYS: [&[u8]; 8] =
    [b"type", b"id", b"tool_use_id", b"name", b"content", b"text", b"encrypted_content", b"caller"];

impl Entry {
    /// An entry with these values of [`ENTRY_KEYS`].
    pub(super) fn of(body: &[u8], span: Span, values: [Option<Span>; 8]) -> Result<Self, Fault> {
        let [kind, id, tool_use_id, name, content, text, encrypted, caller] =
            values.map(|value| value.filter(|value| value.of(body) != b"null"));
        let kind = match &*reading::text(body, kind)?.unwrap_or_default() {
            "text" => Kind::Text,
            "tool_use" => Kind::Call,
            "tool_result" => Kind::Result,
            "thinking" | "redacted_thinking" => Kind::Thinking,
            "compaction" => Kind::Compaction,
            "server_tool_use" => Kind::Server,
            name if name.starts_with("mcp_") || name.ends_with("_tool_result") => Kind::Server,
            _ => Kind::Other,
        };
        Ok(Self {
            span,
            kind,
            id: match kind {
                Kind::Result => tool_use_id,
                Kind::Server => tool_use_id.or(id),
                _ => id,
            },
            name,
            value: match kind {
                Kind::Text => text,
                Kind::Compaction => content.or(encrypted),
                _ => content,
            },
            program: caller.filter(|caller| kind == Kind::Call && !is_direct(body, *caller)),
            is_signed: false,
        })
    }

    /// An entry that is not an object.
    pub(super) fn opaque(span: Span) -> Self {
        Self { span, kind: Kind::Other, id: None, name: None, value: None, program: None, is_signed: false }
    }
}

/// The conversation in `body`, whose long strings may be known.
pub(super) fn read<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
    let (mut view, mut entries) = (View::new(body), Vec::new());
    let message = |cursor: &mut Cursor<'a>| {
        entries.clear();
        let message = reading::message(cursor, b"content", |cursor| match cursor.peek() {
            Some(b'[') => reading::entries(cursor, &mut entries, |cursor| entry(body, cursor)),
            _ => cursor.value(),
        })?;
        cursor.accept(view.message(message, &entries))
    };
    let beside = reading::body(NAME, Cursor::indexed(body, strings), REQUEST_KEYS, message)?;
    view.finish(beside).map_err(|fault| ParseError::new(NAME, fault))
}

fn entry<'a>(body: &'a [u8], cursor: &mut Cursor<'a>) -> ReadResult<Entry> {
    if cursor.peek() != Some(b'{') {
        return cursor.value().map(Entry::opaque);
    }
    let start = cursor.at();
    let values = fields(cursor, ENTRY_KEYS)?;
    cursor.accept(Entry::of(body, Span { start, end: cursor.at() }, values))
}

/// A conversation while it is made.
pub(super) struct View<'a> {
    body: &'a [u8],
    conversation: Conversation<'a>,
    /// The ids of calls that programs have made, and of the programs whose results are still to come.
    by_program: HashSet<Cow<'a, str>>,
    programs: HashSet<Cow<'a, str>>,
}

impl<'a> View<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        let (by_program, programs) = (HashSet::new(), HashSet::new());
        let traits = Traits { pairs_by_position: true, ..Traits::default() };
        Self { body, conversation: Conversation { traits, ..Conversation::default() }, by_program, programs }
    }

    /// Adds a message. `entries` are those of its content, if that is an array.
    pub(super) fn message(&mut self, message: Message, entries: &[Entry]) -> Result<(), Fault> {
        match text(self.body, message.role)?.as_deref() {
            Some("assistant") => self.assistant(message, entries),
            Some("user") => {
                if !entries.iter().any(|entry| entry.kind == Kind::Result) {
                    self.programs.clear(); // the user has interrupted them
                }
                self.user(message, entries)
            }
            role => {
                let follows_user = role == Some("system");
                let flags = Flags { barrier: true, stays: true, follows_user, ..Flags::default() };
                let role = if follows_user { Role::System } else { Role::Other };
                push_whole(&mut self.conversation, message, role, flags)
            }
        }
    }

    /// The conversation, with the values of [`REQUEST_KEYS`].
    pub(super) fn finish(mut self, (values, history): RequestFields<9>) -> Result<Conversation<'a>, Fault> {
        let [_, model, tools, system, config, format, edits, compaction, thinking] = values;
        let body = self.body;
        let of_config = config.and_then(|config| field(body, config, b"format"));
        let of_config = of_config.filter(|format| format.of(body) != b"null");
        let asks_to = |word: &[u8]| edits.is_some_and(|edits| memmem::find(edits.of(body), word).is_some());
        let conversation = &mut self.conversation;
        conversation.model = text(body, model)?;
        conversation.tools = tools;
        conversation.instructions = system;
        conversation.format = of_config.or(format);
        conversation.traits.clears_itself = asks_to(b"\"clear_tool_uses");
        conversation.traits.compacts_itself = asks_to(b"\"compact") || compaction.is_some();
        conversation.traits.drops_reasoning = thinking.is_some_and(|thinking| drops_blocks(body, thinking));
        conversation.traits.thinks_by_budget = thinking.is_some_and(|thinking| has_budget(body, thinking));
        history.apply(conversation);
        mark_loading(conversation, body);
        follow_system(conversation);
        Ok(self.conversation)
    }

    fn assistant(&mut self, message: Message, entries: &[Entry]) -> Result<(), Fault> {
        let unit = self.conversation.next_unit();
        let in_program = !self.programs.is_empty();
        let runs_program = self.follow_programs(entries)?;
        for entry in entries.iter().filter(|entry| entry.kind == Kind::Call) {
            let (id, name) = (call_id(self.body, "", entry.id)?, text(self.body, entry.name)?);
            let kind = BlockKind::ToolCall { id, name, answerable: true };
            push_block(&mut self.conversation, Block { unit, span: entry.span, kind })?;
        }
        let says = message.content.is_some_and(|content| !matches!(content.of(self.body), b"\"\"" | b"[]"));
        let flags = Flags {
            speaks: if entries.is_empty() { says } else { entries.iter().any(|entry| entry.speaks(self.body)) },
            bound: entries.iter().any(|entry| matches!(entry.kind, Kind::Thinking | Kind::Server)),
            thinks: entries.iter().any(|entry| entry.kind == Kind::Thinking),
            runs_program,
            in_program,
            ..Flags::default()
        };
        let unit = next_unit(&self.conversation, message, Role::Assistant, flags)?;
        self.conversation.push_element(unit);
        if entries.iter().any(|entry| entry.kind == Kind::Compaction && entry.value.is_some()) {
            self.conversation.traits.n_compacted = self.conversation.units.len();
        }
        Ok(())
    }

    /// A message of the user. With entries, each of them is a unit.
    fn user(&mut self, message: Message, entries: &[Entry]) -> Result<(), Fault> {
        if entries.is_empty() {
            let flags = Flags { speaks: true, ..Flags::default() };
            return push_whole(&mut self.conversation, message, Role::User, flags);
        }
        let start = self.conversation.next_unit();
        for entry in entries {
            let call = (entry.kind == Kind::Result).then(|| call_id(self.body, "", entry.id)).transpose()?;
            let for_program =
                !self.by_program.is_empty() && call.as_ref().is_some_and(|call| self.by_program.contains(&call.text));
            let in_program = !self.programs.is_empty();
            let flags = Flags { speaks: true, in_program, for_program, ..Flags::default() };
            reading::push_entry(&mut self.conversation, entry, call, flags)?;
        }
        self.conversation.elements.push(Element { span: message.span, units: start..self.conversation.next_unit() });
        Ok(())
    }

    /// Notes the programs that a message of the model begins and ends. Whether one calls in it.
    fn follow_programs(&mut self, entries: &[Entry]) -> Result<bool, Fault> {
        let mut calls = false;
        for entry in entries {
            match (entry.kind, entry.program) {
                (Kind::Call, Some(caller)) => {
                    self.programs.extend(text(self.body, field(self.body, caller, b"tool_id"))?);
                    self.by_program.extend(text(self.body, entry.id)?);
                    calls = true;
                }
                (Kind::Call, None) if !self.by_program.is_empty() => {
                    self.by_program.remove(&call_id(self.body, "", entry.id)?.text);
                }
                (Kind::Server, _) if !self.programs.is_empty() => {
                    self.programs.remove(&call_id(self.body, "", entry.id)?.text);
                }
                _ => {}
            }
        }
        Ok(calls)
    }
}

/// Whether a request asks the API to drop thinking that does not fit, so that none has to be left out before it is sent.
pub(super) fn drops_blocks(body: &[u8], thinking: Span) -> bool {
    let binding = field(body, thinking, b"block_binding");
    let behavior = binding.and_then(|binding| field(body, binding, b"prefix_mismatch_behavior"));
    text_of(body, behavior).is_some_and(|behavior| behavior == "drop_block")
}

/// Whether a request has the model think within a budget: then the API refuses calls of the running turn without thinking.
pub(super) fn has_budget(body: &[u8], thinking: Span) -> bool {
    field(body, thinking, b"type").is_some_and(|kind| kind.of(body) == br#""enabled""#)
}

/// A system message has to follow the user. So if only results, or results that are still to be inserted, are between a turn
/// with calls and a system message, the turn is removed as a whole.
fn follow_system(conversation: &mut Conversation<'_>) {
    let units = &conversation.units;
    let is = |unit: usize, role: Role| units.get(unit).is_some_and(|unit| unit.role == role);
    let calls = |unit: &usize| {
        let turn = units.get(*unit).map(|unit| unit.turn);
        let turn = units.get(..=*unit).unwrap_or_default().iter().rev().take_while(|unit| Some(unit.turn) == turn);
        turn.into_iter().any(|unit| !unit.blocks.is_empty())
    };
    let ends = (1..units.len()).filter(|&unit| is(unit, Role::System) && !is(unit - 1, Role::System));
    let before = ends.filter_map(|end| (0..end).rev().find(|&unit| !is(unit, Role::Tool)));
    let bound: Vec<_> = before.filter(|&unit| is(unit, Role::Assistant)).filter(calls).collect();
    for unit in bound {
        if let Some(unit) = conversation.units.get_mut(unit) {
            unit.flags.bound = true;
        }
    }
}

/// Marks the units that make deferred tools of the request known: a tool with `defer_loading` is known to the model only by
/// `tool_reference` blocks, in the results of the client's searches for tools and of the server's.
fn mark_loading(conversation: &mut Conversation<'_>, body: &[u8]) {
    let has = |value: Span, word: &[u8]| memmem::find(value.of(body), word).is_some();
    let Some(tools) = conversation.tools.filter(|tools| has(*tools, b"\"defer_loading\"")) else { return };
    let deferred = deferred(body, tools).unwrap_or_default();
    for unit in conversation.units.iter_mut().filter(|_| !deferred.is_empty()) {
        let content = unit.content.map(|content| content.of(body)).filter(|content| content.starts_with(b"["));
        unit.flags.loads = content.is_some_and(|content| references(content).any(|name| deferred.contains(name)));
    }
}

/// The names of the tools with `defer_loading`, as they are written.
fn deferred(body: &[u8], tools: Span) -> Option<HashSet<&[u8]>> {
    let names = objects(body, tools, [b"name", b"defer_loading"], |_, [name, deferred]| {
        let is_deferred = deferred.is_some_and(|deferred| deferred.of(body) == b"true");
        Some(name.filter(|_| is_deferred).map(|name| name.of(body)))
    })?;
    Some(names.into_iter().collect())
}

/// The names in the references of a content, as they are written. Inside of a string, quotes have a backslash before them.
fn references(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    const KEY: &[u8] = b"\"tool_name\"";
    let is_reference = memmem::find(content, b"\"tool_reference\"").is_some();
    let keys = memmem::find_iter(if is_reference { content } else { b"" }, KEY);
    keys.filter_map(|at| value_of_key(content, at + KEY.len())).map(|name| name.of(content))
}
