//! Reading of requests, ids, texts and blocks, shared by the dialects.

use std::borrow::Cow;

use super::ParseErrorKind;
use super::history_keys::HistoryKeys;
use super::json::{Cursor, Fault, ReadResult, decode, id_text};
use crate::conversation::{Block, BlockIndex, CallId, Conversation, Flags, MAX_ELEMENTS, Role, Unit};
use crate::span::Span;

/// The members of a request: the values of some keys, by their order and without `null`, and what the others tell of a
/// history.
pub(super) type RequestFields<const N: usize> = ([Option<Span>; N], HistoryKeys);

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

/// Adds a block of the next unit.
pub(super) fn push_block<'a>(conversation: &mut Conversation<'a>, block: Block<'a>) -> Result<(), Fault> {
    if conversation.blocks.len() == MAX_ELEMENTS {
        return Err((block.span.start, ParseErrorKind::TooMany));
    }
    conversation.blocks.push(block);
    Ok(())
}

/// The next unit, whose blocks are those from `first_block` on. Units of one speaker are one turn.
pub(super) fn next_unit(
    conversation: &Conversation<'_>,
    span: Span,
    role: Role,
    content: Option<Span>,
    first_block: BlockIndex,
    flags: Flags,
) -> Result<Unit, Fault> {
    let Conversation { units, .. } = conversation;
    if units.len() == MAX_ELEMENTS {
        return Err((span.start, ParseErrorKind::TooMany));
    }
    let continues = units.last().is_some_and(|last| last.role == role);
    Ok(Unit { span, role, content, flags, ..conversation.following(first_block, continues) })
}
