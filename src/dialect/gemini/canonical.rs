//! A content of Gemini's API, or a part of one, as its model reads it, whichever way a client spells it. A part of a content of
//! the user reads as a content that holds it alone.

use super::super::Field;
use super::super::canonical::{self, array, elements, member, members, object};
use super::super::json::{Cursor, ReadResult};

/// The members that a model does not read: signatures of thoughts.
const UNREAD: [&[u8]; 2] = [b"thoughtSignature", b"thought_signature"];

const USER: &[u8] = b"\"user\"";

/// The fields of a content, or of a part of one, that its model reads, by name.
pub(super) fn fields(message: &[u8]) -> ReadResult<Vec<Field<'_>>> {
    let read = members(&mut Cursor::starting(message, 0), &[])?;
    let Some(parts) = member(&read, b"parts") else {
        let part = part(&mut Cursor::starting(message, 0))?;
        let value = if part.is_empty() { Vec::new() } else { array([part]) };
        return Ok(vec![Field { name: "parts", value }, Field { name: "role", value: vec![USER] }]);
    };
    let role = member(&read, b"role").unwrap_or(USER);
    let parts = if parts.starts_with(b"[") { elements(parts, part)? } else { vec![parts] };
    canonical::fields(vec![(b"parts", parts), (b"role", vec![role])])
}

/// A part by the names of its members; nothing for a thought and for an empty text.
fn part<'a>(cursor: &mut Cursor<'a>) -> ReadResult<Vec<&'a [u8]>> {
    let mut read = members(cursor, &UNREAD)?;
    if member(&read, b"thought") == Some(b"true") {
        return Ok(Vec::new());
    }
    read.retain(|(name, value)| !matches!((*name, *value), (b"thought", b"false") | (b"text", b"\"\"")));
    read.sort_by_key(|(name, _)| *name);
    Ok(if read.is_empty() { Vec::new() } else { object(read) })
}
