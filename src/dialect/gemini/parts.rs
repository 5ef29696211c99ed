//! Where in a content or a part the values are that an edit may replace or cut out. Asked for only where an edit does: the view
//! of the whole request leaves them out.
//!
//! This gives up on anything odd. Then there is nothing to replace, and the content stays.

use std::borrow::Cow;

use crate::dialect::forms::{EMPTY, FormReplacement};
use crate::dialect::json::{Cursor, ReadResult, Unsupported, decode, each_element, fields_of, member, objects};
use crate::dialect::{CallInput, Emptied, Entries, strings};
use crate::span::Span;

/// The most texts that most of a response may be in.
const MOST_TEXTS: usize = 16;

/// How deep the response of a function is looked into.
const DEPTH: usize = 16;

/// A string as the whole content, the texts of an array of parts, or all strings in the response of a function; that itself if
/// most of it is something else, or in many small strings, which could not be cut. The API reads such a response as the value of
/// its `output`.
pub(super) fn texts(body: &[u8], content: Span) -> ReadResult<Vec<Span>> {
    if Cursor::starting(body, content.start).peek() != Some(b'[') {
        let mut found = Vec::new();
        let read = strings(&mut Cursor::starting(body, content.start), body, DEPTH, &mut found);
        let long = found.iter().map(|text| text.len()).filter(|len| len * MOST_TEXTS >= content.len());
        let is_text = read.is_ok() && long.sum::<usize>() > content.len() / 2;
        return Ok(if is_text { found } else { vec![content] });
    }
    objects(body, content, [b"text", b"thought"], |_, [text, thought]| {
        let is_thought = thought.is_some_and(|thought| thought.of(body) == b"true");
        Ok(text.filter(|text| !is_thought && text.of(body).starts_with(b"\"")))
    })
}

/// Adds the strings in a value to those that were found.
fn strings(cursor: &mut Cursor<'_>, body: &[u8], depth: usize, found: &mut Vec<Span>) -> ReadResult {
    let deeper = depth.checked_sub(1).ok_or(Unsupported);
    match cursor.peek() {
        Some(b'{') => {
            let depth = deeper?;
            cursor.members(|cursor, _| strings(cursor, body, depth, found)).map(drop)
        }
        Some(b'[') => {
            let depth = deeper?;
            cursor.elements(|cursor| strings(cursor, body, depth, found)).map(drop)
        }
        _ => {
            let value = cursor.value()?;
            found.extend(Some(value).filter(|value| value.of(body).starts_with(b"\"")));
            Ok(())
        }
    }
}

/// The arguments of a call, which are an object.
pub(super) fn input(body: &[u8], call: Span) -> ReadResult<Option<CallInput>> {
    let [call, call_] = fields_of(body, call, [b"functionCall", b"function_call"])?;
    let [args] = fields_of(body, call.or(call_).ok_or(Unsupported)?, [b"args"])?;
    let args = args.filter(|args| args.of(body).starts_with(b"{"));
    Ok(args.map(|span| CallInput { span, emptied: "{}" }))
}

/// The text of a part that is a thought.
pub(super) fn thought(body: &[u8], part: Span) -> ReadResult<Option<Span>> {
    let [text, thought] = fields_of(body, part, [b"text", b"thought"])?;
    let is_thought = thought.is_some_and(|thought| thought.of(body) == b"true");
    Ok(text.filter(|text| is_thought && text.of(body).starts_with(b"\"")))
}

/// The parts of a content.
pub(super) fn entries(body: &[u8], content: Span) -> ReadResult<Option<Entries>> {
    let [parts] = fields_of(body, content, [b"parts"])?;
    let Some(parts) = parts.filter(|parts| parts.of(body).starts_with(b"[")) else { return Ok(None) };
    let (mut spans, mut reasoning) = (Vec::new(), Vec::new());
    each_element(body, parts, |cursor| {
        let span = cursor.value()?;
        spans.push(span);
        reasoning.extend(thought(body, span)?.map(|_| span));
        Ok(())
    })?;
    Ok(Some(Entries { spans, reasoning, emptied: Emptied::Leaves }))
}

/// Replaces empty parts and empty texts. A text beside a signature may be empty.
pub(super) fn filled(body: &[u8], content: Span) -> ReadResult<Vec<FormReplacement>> {
    let [role, parts] = fields_of(body, content, [b"role", b"parts"])?;
    let Some(parts) = parts else {
        let missing = (Span::empty(content.start + 1), r#""parts":[{"text":"(empty)"}],"#);
        return Ok(role.map(|_| missing).into_iter().collect());
    };
    let is_empty = |part: Span| part.of(body).iter().all(|byte| b"[]{} \t\r\n".contains(byte));
    if parts.of(body) == b"null" || parts.of(body).starts_with(b"[") && !parts.of(body).contains(&b'{') {
        return Ok(vec![(parts, r#"[{"text":"(empty)"}]"#)]);
    }
    objects(body, parts, [b"text", b"thoughtSignature", b"thought_signature"], |part, [text, signature, signature_]| {
        let blank = text.filter(|text| strings::is_blank(text.of(body)) && signature.or(signature_).is_none());
        let nothing = is_empty(part).then_some((part, r#"{"text":"(empty)"}"#));
        Ok(blank.map(|text| (text, EMPTY)).or(nothing))
    })
}

/// Gives the first call of a content a signature by which its check is left out, if it has none
/// (<https://ai.google.dev/gemini-api/docs/thought-signatures>).
pub(super) fn signed(body: &[u8], content: Span) -> ReadResult<Vec<FormReplacement>> {
    const SIGNATURE: &str = r#""thoughtSignature":"skip_thought_signature_validator","#;
    let [role, parts] = fields_of(body, content, [b"role", b"parts"])?;
    if role.is_none_or(|role| role.of(body) != br#""model""#) {
        return Ok(Vec::new());
    }
    let keys: [&[u8]; 4] = [b"functionCall", b"function_call", b"thoughtSignature", b"thought_signature"];
    let calls = objects(body, parts.ok_or(Unsupported)?, keys, |part, [call, call_, signature, signature_]| {
        Ok(call.or(call_).map(|_| (part, signature.or(signature_))))
    })?;
    let first = calls.first().filter(|(_, signature)| signature.is_none());
    Ok(first.map(|(part, _)| (Span::empty(part.start + 1), SIGNATURE)).into_iter().collect())
}

/// Takes the signatures out of a content. A call gets the one by which its check is left out.
pub(super) fn resigned(body: &[u8], content: Span) -> ReadResult<Vec<FormReplacement>> {
    const SIGNATURE: &str = r#""skip_thought_signature_validator""#;
    let [parts] = fields_of(body, content, [b"parts"])?;
    let keys: [&[u8]; 5] = [b"functionCall", b"function_call", b"thoughtSignature", b"thought_signature", b"text"];
    objects(body, parts.ok_or(Unsupported)?, keys, |part, [call, call_, signature, signature_, text]| {
        let Some(value) = signature.or(signature_) else { return Ok(None) };
        if call.or(call_).is_some() {
            return Ok((value.of(body) != SIGNATURE.as_bytes()).then_some((value, SIGNATURE)));
        }
        if text.is_some_and(|text| strings::is_blank(text.of(body))) {
            return Ok(Some((part, r#"{"text":"(empty)"}"#)));
        }
        let key: &[u8] = if signature.is_some() { br#""thoughtSignature""# } else { br#""thought_signature""# };
        Ok(member(body, part, key, value).map(|member| (member, "")))
    })
}

/// The names of functions.
pub(super) fn tool_names(body: &[u8], tools: Span) -> ReadResult<Vec<Cow<'_, str>>> {
    let keys: [&[u8]; 2] = [b"functionDeclarations", b"function_declarations"];
    let lists = objects(body, tools, keys, |_, [functions, functions_]| Ok(functions.or(functions_)))?;
    let mut names = Vec::new();
    for functions in lists {
        names.extend(objects(body, functions, [b"name"], |_, [name]| Ok(name.and_then(|name| decode(name.of(body)))))?);
    }
    Ok(names)
}
