//! Gemini's own API, as Google AI Studio and Vertex AI speak it: `generateContent` and `streamGenerateContent`.
//!
//! A content has many parts: calls are parts of the model's contents, results parts of the user's. So a content of the model is
//! one unit with a block for each call, and each part of a content of the user is its own unit. A result is an object, in
//! which the texts are the strings at any depth. A call without an id is known by the name of its function, and its results
//! answer in order.
//!
//! The model is in the path. Thought signatures are on parts: a content that has one leaves as a whole or not at all.

use std::borrow::Cow;

use bytes::Bytes;
use percent_encoding::percent_decode_str;

use super::{CallInput, Dialect, Entries, ErrorFields, Exchange, Field, Form, ParseError, json::Unsupported, strings};
use crate::{
    conversation::{CallId, Conversation},
    span::Span,
    string_index::{PathFacts, StringIndex},
    summary::{Prompt, SummaryInput},
};

mod answer;
mod canonical;
mod parts;
mod reader;
mod summary;
mod tokens;
mod view;

/// `POST …/models/MODEL:generateContent`.
#[derive(Debug)]
pub(super) struct Gemini;

const NAME: &str = "gemini";

/// How a path ends that only counts tokens.
const COUNTING: &str = ":countTokens";

/// The methods of a model, as a path names them after it.
const METHODS: [&str; 3] = [":generateContent", ":streamGenerateContent", COUNTING];

/// The path before its `/models`, and the model, as the path writes it.
fn base_and_model(path: &str) -> Option<(&str, &str)> {
    let place = METHODS.iter().find_map(|method| path.strip_suffix(method))?;
    place.rsplit_once("/models/").filter(|(_, model)| !model.is_empty() && !model.contains('/'))
}

impl Dialect for Gemini {
    fn name(&self) -> &'static str {
        NAME
    }

    fn provider(&self) -> &'static str {
        "gcp.gemini"
    }

    fn tag(&self) -> u8 {
        3
    }

    fn path(&self) -> &'static str {
        "/v1beta/models/-:generateContent"
    }

    fn path_of(&self, model: &str) -> Cow<'static, str> {
        format!("/v1beta/models/{}:streamGenerateContent?alt=sse", model.trim_start_matches("models/")).into()
    }

    fn counting_paths(&self) -> &'static [&'static str] {
        &[COUNTING]
    }

    fn key_field(&self) -> &'static str {
        "x-goog-api-key"
    }

    fn base_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        base_and_model(path).filter(|_| !path.ends_with(COUNTING)).map(|(base, _)| base)
    }

    fn path_facts(&self, path: &str) -> PathFacts {
        let model = base_and_model(path).filter(|_| path != self.path());
        let model = model.map(|(_, model)| percent_decode_str(model).decode_utf8_lossy().into());
        PathFacts { model, is_framed: false }
    }

    fn parse_indexed<'a>(&self, body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
        reader::read(body, strings)
    }

    fn texts(&self, body: &[u8], content: Span) -> Vec<Span> {
        parts::texts(body, content).unwrap_or_default()
    }

    fn input(&self, body: &[u8], call: Span) -> Option<CallInput> {
        parts::input(body, call).ok().flatten()
    }

    fn entries(&self, body: &[u8], element: Span) -> Option<Entries> {
        parts::entries(body, element).ok().flatten()
    }

    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>> {
        parts::tool_names(body, tools).unwrap_or_default()
    }

    fn fields<'a>(&self, message: &'a [u8]) -> Vec<Field<'a>> {
        canonical::fields(message).unwrap_or_else(|Unsupported| vec![Field { name: "", value: vec![message] }])
    }

    fn form_replacements(&self, body: &[u8], content: Span, form: Form) -> Vec<(Span, &'static str)> {
        let found = match form {
            Form::Filled => parts::filled(body, content),
            Form::SignedCalls => parts::signed(body, content),
            Form::NewSignatures => parts::resigned(body, content),
            _ => Ok(Vec::new()),
        };
        found.unwrap_or_default()
    }

    fn begins_with_user(&self) -> bool {
        true
    }

    fn alternates(&self) -> bool {
        true
    }

    fn render_user_message(&self, text: &str) -> Bytes {
        [br#"{"role":"user","parts":["#, &*self.render_user_entry(text), b"]}"].concat().into()
    }

    fn render_user_entry(&self, text: &str) -> Bytes {
        [br#"{"text":"#, &*strings::render(text), b"}"].concat().into()
    }

    fn render_tool_result(&self, body: &[u8], id: &CallId<'_>, name: Option<&str>, text: &str) -> Bytes {
        response(id.raw.map(|raw| raw.of(body)), name.unwrap_or_default(), "error", text).into()
    }

    fn render_text_part(&self, _: &[u8], _: Span, text: &str) -> Bytes {
        [br#"{"output":"#, &*strings::render(text), b"}"].concat().into()
    }

    fn result_elements(&self, results: Vec<Bytes>) -> Vec<Bytes> {
        vec![[br#"{"role":"user","parts":["#, &*results.join(&b','), b"]}"].concat().into()]
    }

    fn reasoning_text(&self, body: &[u8], entry: Span) -> Option<Span> {
        parts::thought(body, entry).ok().flatten()
    }

    fn render_exchange(&self, exchange: &Exchange<'_>) -> [Bytes; 2] {
        let [id, name] = [exchange.id, exchange.name].map(strings::render);
        let call = [br#"{"functionCall":{"id":"#, &*id, br#","name":"#, &name, br#","args":"#].concat();
        let result = response(Some(&id), exchange.name, "output", exchange.result);
        [
            [br#"{"role":"model","parts":["#, &*call, exchange.arguments.as_bytes(), b"}}]}"].concat().into(),
            [br#"{"role":"user","parts":["#, &*result, b"]}"].concat().into(),
        ]
    }

    fn summary_request(&self, source: &SummaryInput, prompt: &Prompt<'_>) -> Option<Bytes> {
        summary::request(source, prompt)
    }

    fn error_body(&self, error: &ErrorFields<'_>) -> Bytes {
        let (code, status) = if error.is_client_error { (400, "INVALID_ARGUMENT") } else { (503, "UNAVAILABLE") };
        let message = strings::render(error.message);
        let head = format!(r#"{{"error":{{"code":{code},"status":"{status}","message":"#);
        [head.as_bytes(), &*message, b"}}"].concat().into()
    }
}

/// A result of this function that has `text` under `key`.
fn response(id: Option<&[u8]>, name: &str, key: &str, text: &str) -> Vec<u8> {
    let id = id.map(|id| [br#""id":"#, id, b","].concat()).unwrap_or_default();
    let said = [br#","response":{""#, key.as_bytes(), br#"":"#, &*strings::render(text)].concat();
    [br#"{"functionResponse":{"#, &*id, br#""name":"#, &strings::render(name), &said, b"}}}"].concat()
}

#[cfg(test)]
mod tests;
