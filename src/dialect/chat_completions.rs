//! OpenAI Chat Completions, as every compatible server speaks it.
//!
//! Two readers give the same view: `scan` is quick and gives up on anything odd, `fallback` is `serde_json` and decides
//! what is odd but valid, and what is refused.

use bytes::Bytes;

use super::{Dialect, ParseError, ParseErrorKind};
use crate::conversation::{CallId, Conversation};

mod fallback;
mod scan;

/// `POST …/chat/completions`.
#[derive(Debug)]
pub(super) struct ChatCompletions;

const NAME: &str = "chat_completions";

impl Dialect for ChatCompletions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn parse<'a>(&self, body: &'a [u8]) -> Result<Conversation<'a>, ParseError> {
        match scan::scan(body) {
            Some(conversation) => Ok(conversation),
            None => fallback::parse(body),
        }
    }

    fn verify(&self, body: &[u8]) -> Result<(), ParseError> {
        scan::check_strings(body).map_err(|offset| error(offset, ParseErrorKind::NotJson))
    }

    fn render_tool_result(&self, body: &[u8], id: &CallId<'_>, text: &str) -> Bytes {
        let id = id.raw.map_or(b"\"\"".as_slice(), |raw| raw.of(body));
        let mut message = Vec::with_capacity(64 + id.len() + text.len());
        message.extend_from_slice(br#"{"role":"tool","tool_call_id":"#);
        message.extend_from_slice(id);
        message.extend_from_slice(br#","content":"#);
        push_json_string(&mut message, text);
        message.push(b'}');
        message.into()
    }
}

fn error(offset: usize, kind: ParseErrorKind) -> ParseError {
    ParseError { dialect: NAME, offset, kind }
}

/// Writes `text` as a JSON string.
fn push_json_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let hex = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
    out.push(b'"');
    for &byte in text.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            b'\n' => out.extend(br"\n"),
            b'\r' => out.extend(br"\r"),
            b'\t' => out.extend(br"\t"),
            0..0x20 => out.extend([b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 15)]),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests;
