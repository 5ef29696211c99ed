//! OpenAI Chat Completions, as every compatible server speaks it.
//!
//! Two readers give the same view: `scan` is quick and gives up on anything odd, `fallback` is `serde_json` and decides
//! what is odd but valid, and what is refused.

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;

use super::{
    Answer, Dialect, ErrorFields, Field, Input, NotAnAnswer, ParseError, ParseErrorKind, Stop,
    json::{Odd, check_strings, decode, push_escaped, push_string},
};
use crate::{
    conversation::{CallId, Conversation},
    raw,
    span::Span,
    summary::{Prompt, Source},
    tokens::Gauge,
};

mod answer;
mod canonical;
mod error;
mod fallback;
mod parts;
mod scan;
mod summary;
mod tokens;

/// `POST …/chat/completions`.
#[derive(Debug)]
pub(super) struct ChatCompletions;

const NAME: &str = "chat_completions";

impl Dialect for ChatCompletions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tag(&self) -> u8 {
        0
    }

    fn path(&self) -> &'static str {
        "/v1/chat/completions"
    }

    fn base_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        path.strip_suffix("/chat/completions")
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

    fn texts(&self, body: &[u8], content: Span) -> Vec<Span> {
        parts::texts(body, content).unwrap_or_default()
    }

    fn text<'a>(&self, body: &'a [u8], string: Span) -> Option<Cow<'a, str>> {
        let raw = string.of(body);
        decode(raw).or_else(|| raw::string(str::from_utf8(raw).ok()?))
    }

    fn stored<'a>(&self, body: &'a [u8], value: Span, text: &'a str) -> &'a [u8] {
        let raw = value.of(body);
        if raw.starts_with(b"\"") && !raw::has_half(raw) { text.as_bytes() } else { raw }
    }

    fn render_text(&self, text: &str) -> Bytes {
        let mut string = Vec::with_capacity(text.len() + text.len() / 8 + 2);
        push_string(&mut string, text);
        string.into()
    }

    fn render_cut(&self, body: &[u8], string: Span, cut: Range<usize>, words: &str) -> Bytes {
        let raw = string.of(body);
        let head = raw.get(..raw::written_at(raw, cut.start)).unwrap_or_default();
        let tail = raw.get(raw::written_at(raw, cut.end)..).unwrap_or_default();
        let mut string = Vec::with_capacity(head.len() + words.len() + words.len() / 8 + tail.len());
        string.extend_from_slice(head);
        push_escaped(&mut string, words);
        string.extend_from_slice(tail);
        string.into()
    }

    fn input(&self, body: &[u8], call: Span) -> Option<Input> {
        parts::input(body, call).ok().flatten()
    }

    fn calls_key(&self, body: &[u8], message: Span) -> Option<Span> {
        parts::calls_key(body, message).ok().flatten()
    }

    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>> {
        parts::tool_names(body, tools).unwrap_or_default()
    }

    fn fields<'a>(&self, message: &'a [u8]) -> Vec<Field<'a>> {
        canonical::fields(message).unwrap_or_else(|Odd| vec![Field { name: "", value: vec![message] }])
    }

    fn render_user_message(&self, text: &str) -> Bytes {
        let mut message = Vec::with_capacity(64 + text.len() + text.len() / 8);
        message.extend_from_slice(br#"{"role":"user","content":"#);
        push_string(&mut message, text);
        message.push(b'}');
        message.into()
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

    fn count_element(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        tokens::count_message(gauge, raw)
    }

    fn count_call(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        tokens::count_call(gauge, &String::from_utf8_lossy(raw))
    }

    fn count_tools(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        tokens::count_tools(gauge, raw)
    }

    fn count_format(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        tokens::count_format(gauge, raw)
    }

    fn summary_request(&self, source: &Source, prompt: &Prompt<'_>) -> Option<Bytes> {
        summary::request(source, prompt)
    }

    fn reports(&self, data: &[u8]) -> bool {
        answer::reports(data)
    }

    fn read_answer(&self, data: &[u8], answer: &mut Answer) -> Result<(), NotAnAnswer> {
        answer::read(data, answer)
    }

    fn stop(&self, reason: &str) -> Stop {
        answer::stop(reason)
    }

    fn error_body(&self, error: &ErrorFields<'_>) -> Bytes {
        error::body(error)
    }
}

fn error(offset: usize, kind: ParseErrorKind) -> ParseError {
    ParseError { dialect: NAME, offset, kind }
}

#[cfg(test)]
mod tests;
