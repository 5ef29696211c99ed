//! Reading of requests, messages, ids, texts and blocks, shared by the dialects.

use std::borrow::Cow;

use memchr::memmem;

use super::json::{Cursor, Fault, ReadResult, decode, fields_by};
use super::{ParseError, ParseErrorKind};
use crate::conversation::{Block, BlockKind, CallId, Conversation, Flags, MAX_ELEMENTS, Role, Unit};
use crate::raw::utf8;
use crate::span::Span;

/// The members of a request: the values of some keys, by their order and without `null`, and what the others tell of a
/// history.
pub(super) type RequestFields<const N: usize> = ([Option<Span>; N], HistoryKeys);

/// One message of a list: where its role and its content are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) span: Span,
    pub(super) role: Option<Span>,
    pub(super) content: Option<Span>,
}

/// One entry of a content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) span: Span,
    pub(super) kind: EntryKind,
    /// Of a call, or of the call that a result answers.
    pub(super) id: Option<Span>,
    pub(super) name: Option<Span>,
    /// Its content or its text, or the response of a function.
    pub(super) value: Option<Span>,
    /// Of a call, the program that makes it.
    pub(super) program: Option<Span>,
    pub(super) is_signed: bool,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EntryKind {
    Text,
    Call,
    Result,
    Thinking,
    /// Half of a call that the server makes.
    Server,
    /// Replaces everything before it.
    Compaction,
    Other,
}

impl Entry {
    /// Whether it says something, so that a message with it is not empty without its calls.
    pub(super) fn speaks(&self, body: &[u8]) -> bool {
        match self.kind {
            EntryKind::Call | EntryKind::Thinking => false,
            EntryKind::Text => self.value.is_some_and(|text| text.of(body) != b"\"\""),
            _ => true,
        }
    }
}

/// Reads all that is left of a body in a dialect, as [`request`] does. It has to have a list, of which `element` reads each element.
pub(super) fn body<'a, const N: usize>(
    dialect: &'static str,
    mut cursor: Cursor<'a>,
    keys: [&[u8]; N],
    mut element: impl FnMut(&mut Cursor<'a>) -> ReadResult,
) -> Result<RequestFields<N>, ParseError> {
    let read =
        request(&mut cursor, keys, |cursor| cursor.elements(&mut element)).and_then(|read| match read.0.first() {
            Some(Some(_)) => Ok(read),
            _ => Err(cursor.refuse((0, ParseErrorKind::NoMessages))),
        });
    cursor.finish(dialect, read)
}

/// Reads a request. None of `keys` may be there twice; `list` reads the value of the first one, unless that is `null`.
pub(super) fn request<'a, const N: usize>(
    cursor: &mut Cursor<'a>,
    keys: [&[u8]; N],
    mut list: impl FnMut(&mut Cursor<'a>) -> ReadResult<Span>,
) -> ReadResult<RequestFields<N>> {
    let (start, mut found, mut history) = (cursor.at(), [None; N], HistoryKeys::default());
    cursor.members(|cursor, key| {
        let at = keys.iter().position(|known| *known == &*key);
        let is_list = at == Some(0) && cursor.peek() != Some(b'n');
        let value = if is_list { list(cursor)? } else { cursor.value()? };
        if let Some(place) = at.and_then(|at| found.get_mut(at)) {
            return cursor.once(start, place, value);
        }
        history.note(&key, cursor.bytes(value));
        Ok(())
    })?;
    Ok((found.map(|value| value.filter(|value| cursor.bytes(*value) != b"null")), history))
}

/// Reads a message whose content is the value of `key`, which `content` reads.
pub(super) fn message<'a>(
    cursor: &mut Cursor<'a>,
    key: &[u8],
    mut content: impl FnMut(&mut Cursor<'a>) -> ReadResult<Span>,
) -> ReadResult<Message> {
    let read = |cursor: &mut Cursor<'a>, at, _: &_| if at == Some(1) { content(cursor) } else { cursor.value() };
    let (span, [role, content]) = fields_by(cursor, [b"role", key], read)?;
    Ok(Message { span, role, content: content.filter(|content| cursor.bytes(*content) != b"null") })
}

/// Reads the entries of a content, each with `read`, and adds them to `entries`.
pub(super) fn entries<'a, E>(
    cursor: &mut Cursor<'a>,
    entries: &mut Vec<E>,
    mut read: impl FnMut(&mut Cursor<'a>) -> ReadResult<E>,
) -> ReadResult<Span> {
    let start = cursor.at();
    cursor.elements(|cursor| {
        if entries.len() == MAX_ELEMENTS {
            return Err(cursor.refuse((start, ParseErrorKind::TooMany)));
        }
        entries.push(read(cursor)?);
        Ok(())
    })
}

/// The text of a value that may be a string, and then must be one that can be decoded.
pub(super) fn text(body: &[u8], value: Option<Span>) -> Result<Option<Cow<'_, str>>, Fault> {
    match value.map(|span| (span, span.of(body))) {
        Some((at, raw @ [b'"', ..])) => decode(raw).map(Some).ok_or((at.start, ParseErrorKind::NotJson)),
        _ => Ok(None),
    }
}

/// The id in a call of this kind, or in a result of such a call. `null` is none.
pub(super) fn call_id<'a>(body: &'a [u8], kind: &'static str, value: Option<Span>) -> Result<CallId<'a>, Fault> {
    let Some(span) = value.filter(|value| value.of(body) != b"null") else {
        return Ok(CallId { kind, ..CallId::default() });
    };
    let raw = span.of(body);
    let fault = if raw.starts_with(b"\"") { ParseErrorKind::NotJson } else { ParseErrorKind::IdNotAString };
    Ok(CallId { kind, raw: Some(span), text: id_text(raw).ok_or((span.start, fault))? })
}

/// The text of a call's id: that of a string, or a number, since some servers number their calls: to them, `1.0` and `1e0` are `1`.
pub(super) fn id_text(raw: &[u8]) -> Option<Cow<'_, str>> {
    if !matches!(raw, [b'-' | b'0'..=b'9', ..]) {
        return decode(raw);
    }
    let text = utf8(raw)?;
    let number = text.contains(['.', 'e', 'E']).then(|| text.parse::<f64>().ok()).flatten();
    let whole = number.filter(|number| number.is_finite() && number.fract() == 0.0);
    Some(whole.map_or(text.into(), |number| number.to_string().into()))
}

/// Whether the model itself is what called, and not a program, by the `caller` of a call.
pub(super) fn is_direct(body: &[u8], caller: Span) -> bool {
    caller.of(body) == b"null" || memmem::find(caller.of(body), br#""direct""#).is_some()
}

/// Adds a block of the next unit.
#[inline]
pub(super) fn push_block<'a>(conversation: &mut Conversation<'a>, block: Block<'a>) -> Result<(), Fault> {
    if conversation.blocks.len() == MAX_ELEMENTS {
        return Err((block.span.start, ParseErrorKind::TooMany));
    }
    conversation.blocks.push(block);
    Ok(())
}

/// The next unit, with the blocks that were added since the one before it. Units of one speaker are one turn.
pub(super) fn next_unit(of: &Conversation<'_>, message: Message, role: Role, flags: Flags) -> Result<Unit, Fault> {
    let Message { span, content, .. } = message;
    if of.units.len() == MAX_ELEMENTS {
        return Err((span.start, ParseErrorKind::TooMany));
    }
    let continues = of.units.last().is_some_and(|last| last.role == role);
    Ok(Unit { span, role, content, flags, ..of.following(continues) })
}

/// Adds a message that is one unit.
pub(super) fn push_whole(to: &mut Conversation<'_>, message: Message, role: Role, flags: Flags) -> Result<(), Fault> {
    let unit = next_unit(to, message, role, flags)?;
    to.push_element(unit);
    Ok(())
}

/// Adds an entry of the user's, which is a unit: the result of a call, or something else.
pub(super) fn push_entry<'a>(
    conversation: &mut Conversation<'a>,
    entry: &Entry,
    call: Option<CallId<'a>>,
    flags: Flags,
) -> Result<(), Fault> {
    let (unit, span) = (conversation.next_unit(), entry.span);
    let content = entry.value.filter(|_| matches!(entry.kind, EntryKind::Result | EntryKind::Text));
    let role = if call.is_some() { Role::Tool } else { Role::User };
    if let Some(call_id) = call {
        push_block(conversation, Block { unit, span, kind: BlockKind::ToolResult { call_id, may_leave: true } })?;
    }
    let unit = next_unit(conversation, Message { span, role: None, content }, role, flags)?;
    conversation.units.push(unit);
    Ok(())
}

/// The facts in the keys beside the messages: a history on the server, and the limit of the answer. The keys are those of every
/// dialect.
///
/// The sources are in `docs/dialects.md`. A key that always means it is enough. One that some servers take for a mere label
/// means it where the messages begin with a result, whose call must then be somewhere else.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HistoryKeys {
    /// The request continues what the server has.
    continues: bool,
    /// It may do so.
    may_continue: bool,
    /// The server keeps the request for later ones.
    is_kept: bool,
    /// The answer is to go on where one has stopped, which the last message has a part of.
    resumes: bool,
    /// The most tokens that the answer may have.
    max_answer_tokens: Option<usize>,
}

impl HistoryKeys {
    /// Notes one key and its JSON value.
    pub(super) fn note(&mut self, key: &[u8], value: &[u8]) {
        let says = |text: &str| memmem::find(value, text.as_bytes()).is_some();
        if matches!(value, b"null" | b"\"\"") {
            return;
        }
        match key {
            b"previous_response_id" | b"conversation" | b"context_id" | b"cachedContent" | b"cached_content" => {
                self.continues = true;
            }
            b"thread" => {
                self.is_kept = true;
                self.continues |= says(r#""continue""#) || says(r#""previous_message_id""#);
            }
            // Without a token it only says that an answer may be resumed.
            b"resumption" if says(r#""token""#) => (self.resumes, self.may_continue) = (true, true),
            b"container" | b"session_id" | b"conversation_id" | b"thread_id" | b"chat_id" => self.may_continue = true,
            b"max_tokens" | b"max_completion_tokens" | b"max_output_tokens" => {
                let said = std::str::from_utf8(value).ok().and_then(|number| number.parse().ok());
                self.max_answer_tokens = self.max_answer_tokens.max(said);
            }
            _ => {}
        }
    }

    /// Writes it on a conversation whose messages have been read.
    pub(super) fn apply(self, conversation: &mut Conversation<'_>) {
        let first = || conversation.units.iter().find(|unit| !matches!(unit.role, Role::System | Role::Developer));
        let begins_with_result = || first().is_some_and(|unit| unit.role == Role::Tool);
        conversation.traits.max_answer_tokens = self.max_answer_tokens;
        conversation.traits.is_kept |= self.is_kept;
        conversation.traits.history_elsewhere |= self.continues || (self.may_continue && begins_with_result());
        if conversation.traits.history_elsewhere {
            conversation.keep_results();
        }
        if let Some(last) = conversation.elements.last().filter(|_| self.resumes) {
            for block in conversation.blocks.iter_mut().rev().take_while(|block| block.unit >= last.units.start) {
                if let BlockKind::ToolCall { answerable, .. } = &mut block.kind {
                    *answerable = false; // the model is not done with its message
                }
            }
        }
    }
}
