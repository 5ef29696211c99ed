//! The words of an upstream that refuses a call, as they may be logged: bounded, on one line, and without what it was sent.

use bytes::Bytes;
use http::HeaderValue;
use memchr::memmem;

use crate::raw::{Fields, elements};

/// The secrets that an upstream was sent, none of which may be in the log.
pub(super) struct Secrets {
    pub(super) body: Bytes,
    pub(super) keys: Vec<HeaderValue>,
}

/// The message of a refusal; empty if it has none.
#[derive(Clone, Debug, Default, derive_more::Display, Eq, PartialEq)]
#[display("{}{_0}", if _0.is_empty() { "" } else { ": " })]
pub(super) struct Words(String);

/// How many characters of a message are looked at.
const MOST: usize = 300;

/// How deep the message is looked for.
const MAX_DEPTH: usize = 4;

/// So many characters that are in what was sent, too, count as a repetition of it.
const REPEATED: usize = 12;

impl Words {
    /// The message in the body of a refusal.
    pub(super) fn of(body: &[u8], secrets: &Secrets) -> Self {
        let text = str::from_utf8(body).unwrap_or_default();
        let said = Fields::of(first(text)).and_then(|fields| message(&fields, MAX_DEPTH)).unwrap_or_default();
        let chars: Vec<char> = said.chars().take(MOST).collect();
        let mut is_sent = vec![false; chars.len()];
        for (n, part) in chars.windows(REPEATED).enumerate() {
            if secrets.have(&part.iter().collect::<String>()) {
                is_sent.iter_mut().skip(n).take(REPEATED).for_each(|is_sent| *is_sent = true);
            }
        }
        let mut words = String::new();
        for (c, is_sent) in chars.into_iter().zip(is_sent) {
            match c {
                _ if is_sent && words.ends_with('\u{2026}') => {}
                _ if is_sent => words.push('\u{2026}'),
                ' ' => words.push(c),
                c if c.is_alphanumeric() || c.is_ascii_punctuation() => words.push(c),
                c => words.extend(c.escape_unicode()),
            }
        }
        Self(words)
    }
}

impl Secrets {
    /// Whether a part of a message is in what was sent.
    fn have(&self, part: &str) -> bool {
        let has = |sent: &[u8]| memmem::find(sent, part.as_bytes()).is_some();
        has(&self.body) || self.keys.iter().any(|key| has(key.as_bytes()))
    }
}

/// The sentence that servers say: `error.message`, `message`, `detail`, or `error` as a string, in an event below `response`,
/// and `detail[0].msg` of servers that check requests with pydantic.
fn message(fields: &Fields<'_>, depth: usize) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    let said = |key: &str| Some(fields.string(key)?.into_owned()).filter(|said| !said.is_empty());
    let inner = |key: &str| message(&Fields::of(first(fields.get(key)?))?, depth);
    let found = inner("error").or_else(|| inner("response"));
    let found = found.or_else(|| ["message", "detail", "msg"].iter().find_map(|key| said(key).or_else(|| inner(key))));
    found.or_else(|| said("error"))
}

/// The first element of an array; any other value as it is.
fn first(json: &str) -> &str {
    elements(json).and_then(|elements| elements.first().copied()).unwrap_or(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(body: &str) -> String {
        let secrets = Secrets {
            body: Bytes::from_static(
                br#"{"model":"m","messages":[{"role":"user","content":"the launch code is 4711"}]}"#,
            ),
            keys: vec![HeaderValue::from_static("Bearer sk-0123456789abcdef")],
        };
        Words::of(body.as_bytes(), &secrets).to_string()
    }

    #[test]
    fn the_sentence_of_a_refusal_is_found_wherever_servers_put_it() {
        for body in [
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"no such beta"}}"#,
            r#"{"error":"no such beta"}"#,
            r#"{"message":"no such beta"}"#,
            r#"{"detail":"no such beta"}"#,
            r#"{"error":{"error":{"message":"no such beta"}}}"#,
            r#"[{"error":{"code":400,"message":"no such beta"}}]"#,
            r#"{"type":"response.failed","response":{"error":{"code":"x","message":"no such beta"}}}"#,
            r#"{"object":"error","message":{"detail":[{"loc":["body"],"msg":"no such beta"}]}}"#,
        ] {
            assert_eq!(said(body), ": no such beta", "{body}");
        }
        for body in ["", "<html>", "[]", r#"{"error":{"message":7}}"#, r#"{"detail":[{"input":"the launch code"}]}"#] {
            assert_eq!(said(body), "", "{body}");
        }
    }

    #[test]
    fn what_was_sent_is_left_out_and_the_rest_is_bounded_and_on_one_line() {
        let body = r#"{"error":{"message":"invalid: 'the launch code is 4711', key sk-0123456789abcdef"}}"#;
        let words = said(body);
        assert!(words.starts_with(": invalid: '\u{2026}'") && words.contains("key"), "{words}");
        assert!(!words.contains("4711") && !words.contains("launch") && !words.contains("0123456789"), "{words}");
        assert_eq!(said(r#"{"message":"a\n\u001b[31mb\u202e"}"#), r": a\u{a}\u{1b}[31mb\u{202e}");
        let long = format!(r#"{{"message":"{}"}}"#, "ab ".repeat(1000));
        assert_eq!(said(&long).chars().count(), MOST + 2);
    }
}
