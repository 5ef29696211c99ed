//! OpenAI Chat Completions, as every compatible server speaks it.
//!
//! Two readers give the same view: `scan` is quick and gives up on anything odd, `fallback` is `serde_json` and decides
//! what is odd but valid, and what is refused.

use bytes::Bytes;

use super::{
    Dialect, ParseError, ParseErrorKind,
    json::{Odd, check_strings, push_string},
};
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
            Ok(conversation) => Ok(conversation),
            Err(Odd) => fallback::parse(body),
        }
    }

    fn verify(&self, body: &[u8]) -> Result<(), ParseError> {
        check_strings(body).map_err(|offset| error(offset, ParseErrorKind::NotJson))
    }

    fn render_tool_result(&self, body: &[u8], id: &CallId<'_>, text: &str) -> Bytes {
        let id = id.raw.map_or(b"\"\"".as_slice(), |raw| raw.of(body));
        let mut message = Vec::with_capacity(64 + id.len() + text.len());
        message.extend_from_slice(br#"{"role":"tool","tool_call_id":"#);
        message.extend_from_slice(id);
        message.extend_from_slice(br#","content":"#);
        push_string(&mut message, text);
        message.push(b'}');
        message.into()
    }
}

fn error(offset: usize, kind: ParseErrorKind) -> ParseError {
    ParseError { dialect: NAME, offset, kind }
}

#[cfg(test)]
mod tests;
