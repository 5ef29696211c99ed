//! Reads the whole body in one pass with a [`Cursor`], and says why where it cannot.

use super::NAME;
use crate::conversation::{Block, BlockKind, Conversation, Flags, MAX_ELEMENTS, Role, Traits, Unit, UnitIndex};
use crate::dialect::json::{Cursor, ReadResult, fields_by};
use crate::dialect::reading::{self, call_id, push_block, text};
use crate::dialect::{ParseError, ParseErrorKind};
use crate::span::Span;
use crate::string_index::StringIndex;

/// The conversation in `body`, whose long strings may be known.
pub(super) fn read<'a>(body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
    let traits = Traits { pairs_by_position: true, ..Traits::default() };
    let mut reader = Reader { body, conversation: Conversation { traits, ..Conversation::default() } };
    let keys: [&[u8]; 5] = [b"messages", b"model", b"tools", b"response_format", b"n"];
    let ([_, model, tools, format, n], history) =
        reading::body(NAME, Cursor::indexed(body, strings), keys, |cursor| reader.message(cursor))?;
    let mut conversation = reader.conversation;
    conversation.model = text(body, model).map_err(|fault| ParseError::new(NAME, fault))?;
    conversation.format = format;
    conversation.tools = tools;
    conversation.traits.answers_no_calls = n.is_some_and(|n| n.of(body) != b"1");
    history.apply(&mut conversation);
    Ok(conversation)
}

struct Reader<'a> {
    body: &'a [u8],
    conversation: Conversation<'a>,
}

impl<'a> Reader<'a> {
    fn message(&mut self, cursor: &mut Cursor<'a>) -> ReadResult {
        let start = cursor.at();
        if self.conversation.units.len() == MAX_ELEMENTS {
            return Err(cursor.refuse((start, ParseErrorKind::TooMany)));
        }
        let index = self.conversation.next_unit();
        let keys: [&[u8]; 4] = [b"role", b"content", b"tool_call_id", b"tool_calls"];
        // Calls before the role are read when that is known.
        let mut has_read_calls = false;
        let (span, [role, content, id, calls]) = fields_by(cursor, keys, |cursor, at, [role, ..]| {
            if at == Some(3) && role.is_some_and(|role| role.of(self.body) == b"\"assistant\"") {
                has_read_calls = true;
                return self.tool_calls(cursor, index);
            }
            cursor.value()
        })?;
        let role = self.role(cursor, role)?;
        if let Some(calls) = calls.filter(|_| role == Role::Assistant && !has_read_calls) {
            cursor.go_to(calls.start);
            self.tool_calls(cursor, index)?;
            cursor.go_to(span.end);
        }
        if role == Role::Tool {
            let kind = BlockKind::ToolResult { call_id: cursor.accept(call_id(self.body, "", id))?, may_leave: true };
            cursor.accept(push_block(&mut self.conversation, Block { unit: index, span, kind }))?;
        }
        let content = content.filter(|content| content.of(self.body) != b"null");
        let speaks = content.is_some_and(|content| !matches!(content.of(self.body), b"\"\"" | b"[]"));
        let flags = Flags { speaks, ..Flags::default() };
        // Each is its own turn.
        let unit = self.conversation.following(false);
        self.conversation.push_element(Unit { span, role, content, flags, ..unit });
        Ok(())
    }

    /// The role of a message. The usual ones are recognised by their bytes.
    fn role(&self, cursor: &mut Cursor<'a>, value: Option<Span>) -> ReadResult<Role> {
        Ok(match value.map(|value| value.of(self.body)) {
            Some(b"\"user\"") => Role::User,
            Some(b"\"assistant\"") => Role::Assistant,
            Some(b"\"tool\"") => Role::Tool,
            _ => cursor.accept(text(self.body, value))?.map_or(Role::Other, |name| Role::named(&name)),
        })
    }

    /// Reads the calls of a message; `null` is none.
    fn tool_calls(&mut self, cursor: &mut Cursor<'a>, unit: UnitIndex) -> ReadResult<Span> {
        match cursor.peek() {
            Some(b'n') => cursor.value(),
            _ => cursor.elements(|cursor| self.tool_call(cursor, unit)),
        }
    }

    fn tool_call(&mut self, cursor: &mut Cursor<'a>, unit: UnitIndex) -> ReadResult {
        let mut names = [None; 2];
        let (span, [id, ..]) = fields_by(cursor, [b"id", b"function", b"custom"], |cursor, at, _| {
            let name = at.and_then(|at| names.get_mut(at.checked_sub(1)?));
            let Some(name) = name.filter(|_| cursor.peek() == Some(b'{')) else { return cursor.value() };
            let (span, [found]) = fields_by(cursor, [b"name"], |cursor, _, _| cursor.value())?;
            *name = found;
            Ok(span)
        })?;
        let [function, custom] = names.map(|name| text(self.body, name));
        let name = cursor.accept(function)?.or(cursor.accept(custom)?);
        let id = cursor.accept(call_id(self.body, "", id))?;
        let block = Block { unit, span, kind: BlockKind::ToolCall { id, name, answerable: true } };
        cursor.accept(push_block(&mut self.conversation, block))
    }
}
