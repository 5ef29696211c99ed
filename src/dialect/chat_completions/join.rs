//! Joins messages of the model that directly follow one another.

use super::speaks;
use crate::{
    dialect::json::{Unsupported, fields_of},
    span::{Span, Splice},
};

/// The separator between the texts of two messages, as written in a JSON string.
const BETWEEN: &[u8] = br"\n\n";

/// The splice that puts the contents of messages before that of `into`. None if a content is neither a text nor an array.
pub(super) fn join(body: &[u8], before: &[Span], into: Span) -> Result<Option<Splice>, Unsupported> {
    let content = |message: Span| fields_of(body, message, [b"content"]).map(|[content]| content);
    let own = content(into)?;
    let mut contents = Vec::new();
    for message in before {
        contents.extend(content(*message)?);
    }
    contents.extend(own);
    let contents = contents.into_iter().map(|content| content.of(body));
    let contents: Vec<_> = contents.filter(|content| *content != b"null" && speaks(Some(content))).collect();
    let Some(joined) = joined(&contents) else { return Ok(None) };
    let key = || Splice { span: Span::empty(into.start + 1), with: [b"\"content\":", &*joined, b","].concat().into() };
    Ok(Some(own.map_or_else(key, |span| Splice { span, with: joined.clone().into() })))
}

/// The contents as one.
fn joined(contents: &[&[u8]]) -> Option<Vec<u8>> {
    if let Some(texts) = contents.iter().map(inner_text).collect::<Option<Vec<_>>>() {
        return Some([b"\"", &*texts.join(BETWEEN), b"\""].concat());
    }
    let parts = |content: &&[u8]| match content.first() {
        Some(b'"') => Some([br#"{"type":"text","text":"#, *content, b"}"].concat()),
        _ => content.strip_prefix(b"[")?.strip_suffix(b"]").map(|parts| parts.trim_ascii().to_vec()),
    };
    let parts = contents.iter().map(parts).collect::<Option<Vec<_>>>()?;
    let parts: Vec<_> = parts.into_iter().filter(|parts| !parts.is_empty()).collect();
    Some([b"[", &*parts.join(&b","[..]), b"]"].concat())
}

fn inner_text<'a>(content: &&'a [u8]) -> Option<&'a [u8]> {
    content.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::splice;

    fn check(messages: &[&str], expected: Option<&str>) {
        let body = bytes::Bytes::from(format!("[{}]", messages.join(",")));
        let mut start = 1;
        let spans = messages.iter().map(|message| {
            let span = Span { start, end: start + message.len() };
            start = span.end + 1;
            span
        });
        let spans: Vec<_> = spans.collect();
        let (into, before) = spans.split_last().unwrap();
        let joined = join(&body, before, *into).ok().flatten().map(|joined| splice(&body, &[joined]).concat());
        let last = joined.as_ref().map(|joined| std::str::from_utf8(&joined[into.start..joined.len() - 1]).unwrap());
        assert_eq!(last, expected, "{messages:?}");
    }

    #[test]
    fn contents_become_one() {
        let plain = r#"{"role":"assistant","content":"a \"b\""}"#;
        check(&[plain, r#"{"content":"c","x":1}"#], Some(r#"{"content":"a \"b\"\n\nc","x":1}"#));
        check(&[plain, plain, r#"{"content": null}"#], Some(r#"{"content": "a \"b\"\n\na \"b\""}"#));
        check(&[plain, r#"{"role":"assistant"}"#], Some(r#"{"content":"a \"b\"","role":"assistant"}"#));
        check(&[plain, r#"{"content":""}"#], Some(r#"{"content":"a \"b\""}"#));
        let parts = r#"{"content":[ {"type":"text","text":"p"} ]}"#;
        check(&[plain, parts], Some(r#"{"content":[{"type":"text","text":"a \"b\""},{"type":"text","text":"p"}]}"#));
        check(&[parts, r#"{"content":[]}"#], Some(r#"{"content":[{"type":"text","text":"p"}]}"#));
        check(&[plain, r#"{"content":7}"#], None);
        check(&[plain, r#"{"content":"a","content":"b"}"#], None);
    }
}
