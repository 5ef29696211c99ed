//! Marks for the prompt cache, of which a request may have four.

use bytes::Bytes;
use memchr::memmem;

use crate::dialect::json::{Cursor, Unsupported, decode, each_element, fields, value_of_key};
use crate::dialect::{BytesAt, CACHE_MARK, MAX_CACHE_MARKS};

/// The mark of a request that has none.
const USUAL: &[u8] = br#"{"type":"ephemeral"}"#;

/// What marks an entry, or the last entry of a message. Marks that live longer have to come first, so a request whose marks
/// differ gets none more.
pub(super) fn mark(request: &[u8], value: &[u8]) -> Option<BytesAt> {
    let marks = marks(request).ok()?;
    let mark = marks.first().copied().unwrap_or(USUAL);
    if marks.len() >= MAX_CACHE_MARKS || marks.iter().any(|other| *other != mark) {
        return None;
    }
    let at = place(value, 0).ok().flatten()?;
    Some(BytesAt { at, bytes: Bytes::from([b",", CACHE_MARK, b":", mark].concat()) })
}

/// The values of the marks of a request. A quote inside of a string has a backslash before it, so what is found is a key, or
/// a string of this text, which counts as a mark.
fn marks(request: &[u8]) -> Result<Vec<&[u8]>, Unsupported> {
    let value = |at: usize| {
        let value = value_of_key(request, at + CACHE_MARK.len()).ok_or(Unsupported)?;
        Ok(value.of(request))
    };
    memmem::find_iter(request, CACHE_MARK).take(MAX_CACHE_MARKS).map(value).collect()
}

/// Where the mark of an entry comes, or that of the last entry of a message.
fn place(value: &[u8], start: usize) -> Result<Option<usize>, Unsupported> {
    let mut cursor = Cursor::starting(value, start);
    let [kind, text, content, mark] = fields(&mut cursor, [b"type", b"text", b"content", b"cache_control"])?;
    let end = cursor.at().checked_sub(1);
    let kind = kind.and_then(|kind| decode(kind.of(value)));
    let is_blank = || text.and_then(|text| decode(text.of(value))).is_none_or(|text| text.trim().is_empty());
    match (kind.as_deref(), content) {
        _ if mark.is_some() => Ok(None),
        (Some("text"), _) => Ok(end.filter(|_| !is_blank())),
        (Some("tool_result"), _) => Ok(end),
        (None, Some(content)) if content.of(value).starts_with(b"[") => {
            let mut last = None;
            each_element(value, content, |cursor| {
                last = Some(cursor.value()?);
                Ok(())
            })?;
            last.map_or(Ok(None), |last| place(value, last.start))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = r#"{"type":"tool_result","tool_use_id":"a","content":"x"}"#;

    fn marked(request: &str, value: &str) -> Option<String> {
        let BytesAt { at, bytes } = mark(request.as_bytes(), value.as_bytes())?;
        let (before, behind) = value.split_at(at);
        Some([before, str::from_utf8(&bytes).unwrap(), behind].concat())
    }

    #[test]
    fn a_mark_is_like_those_that_are_there() {
        let usual = RESULT.replace('}', r#","cache_control":{"type":"ephemeral"}}"#);
        assert_eq!(marked("{}", RESULT), Some(usual));
        let hour = r#"{"system":[{"cache_control" : {"type":"ephemeral","ttl":"1h"}}]}"#;
        let expected = RESULT.replace('}', r#","cache_control":{"type":"ephemeral","ttl":"1h"}}"#);
        assert_eq!(marked(hour, RESULT), Some(expected));
    }

    #[test]
    fn four_cache_marks_or_marks_of_two_kinds_get_no_other() {
        let one = r#"{"cache_control":{"type":"ephemeral"}},"#;
        assert!(marked(&one.repeat(3), RESULT).is_some());
        assert_eq!(marked(&one.repeat(4), RESULT), None);
        assert_eq!(marked(&format!(r#"{one}{{"cache_control":{{"type":"ephemeral","ttl":"1h"}}}}"#), RESULT), None);
        assert_eq!(marked(r#"{"cache_control":"#, RESULT), None);
    }

    #[test]
    fn what_may_have_no_mark_gets_none() {
        let of_message = |entries: &str| marked("{}", &format!(r#"{{"role":"user","content":[{entries}]}}"#));
        assert!(of_message(&format!(r#"{{"type":"thinking"}},{RESULT}"#)).unwrap().ends_with(r#""ephemeral"}}]}"#));
        for entries in [
            r#"{"type":"thinking","thinking":"","signature":"s"}"#,
            r#"{"type":"redacted_thinking","data":"d"}"#,
            r#"{"type":"text","text":" "}"#,
            r#"{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}"#,
            "",
        ] {
            assert_eq!(of_message(entries), None, "{entries}");
        }
        assert_eq!(marked("{}", r#"{"role":"user","content":"x"}"#), None);
    }
}
