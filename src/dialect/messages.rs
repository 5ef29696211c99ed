//! Anthropic Messages, as Anthropic and the servers that copy its API speak it.
//!
//! One message has many blocks: calls are entries of an assistant message's content, results entries of a user message's.
//! So an assistant message is one unit with a block for each call, and each entry of a user message is its own unit.
//! Consecutive messages of one role are one turn.
//!
//! `reader` only finds where values are; `view` makes the conversation of them.

use std::borrow::Cow;

use bytes::Bytes;
use hosts::HostedPath;
use memchr::memmem;

use super::json::{Unsupported, decode, fields_of, objects};
use super::{
    CallInput, Dialect, Entries, ErrorFields, Exchange, Field, Joiner, ParseError, ServerBlock, Switch, strings,
};
use crate::conversation::{CallId, Conversation};
use crate::recall::own_tools::OwnTool;
use crate::span::Span;
use crate::string_index::{PathFacts, StringIndex};
use crate::summary::{Prompt, SummaryInput};

mod answer;
mod canonical;
mod hosts;
mod in_band;
mod loading;
mod parts;
mod reader;
mod summary;
mod thinking;
mod tokens;
mod view;

/// `POST …/v1/messages`.
#[derive(Debug)]
pub(super) struct Messages;

const NAME: &str = "messages";

/// The parents of messages in other APIs: the id of one is before `/messages`.
const OTHER_PLACES: [&str; 6] = ["threads", "conversations", "sessions", "completions", "channels", "rooms"];

impl Dialect for Messages {
    fn name(&self) -> &'static str {
        NAME
    }

    fn provider(&self) -> &'static str {
        "anthropic"
    }

    fn tag(&self) -> u8 {
        2
    }

    fn path(&self) -> &'static str {
        "/v1/messages"
    }

    fn counting_paths(&self) -> &'static [&'static str] {
        &["/messages/count_tokens", hosts::COUNTING]
    }

    fn key_field(&self) -> &'static str {
        "x-api-key"
    }

    fn version_field(&self) -> Option<(&'static str, &'static str)> {
        Some(("anthropic-version", "2023-06-01"))
    }

    fn base_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        // SDKs append it to a base URL with `/v1` or without. Other APIs have it after an id: `/threads/ID/messages`.
        let Some(base) = path.strip_suffix("/messages") else { return HostedPath::of(path).map(|hosted| hosted.base) };
        let of_id = base.rsplit('/').nth(1);
        (!of_id.is_some_and(|of| OTHER_PLACES.contains(&of))).then_some(base)
    }

    fn path_facts(&self, path: &str) -> PathFacts {
        HostedPath::of(path).map(|hosted| hosted.facts()).unwrap_or_default()
    }

    fn unframed<'p>(&self, path: &'p str) -> Option<&'p str> {
        hosts::unframed(path)
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

    fn may_empty_input(&self, body: &[u8], call: Span) -> bool {
        fields_of(body, call, [b"caller"])
            .is_ok_and(|[caller]| caller.is_none_or(|caller| view::is_direct(body, caller)))
    }

    fn entries(&self, body: &[u8], element: Span) -> Option<Entries> {
        parts::entries(body, element).ok().flatten()
    }

    fn retyped_input(&self, body: &[u8], call: Span) -> Option<(Span, Bytes)> {
        let [input] = fields_of(body, call, [b"input"]).ok()?;
        let input = input?;
        match input.of(body) {
            b"null" => Some((input, Bytes::from_static(b"{}"))),
            [b'"', ..] => {
                let text = strings::text(body, input)?;
                strings::is_object(&text).then(|| (input, Bytes::from(text.into_owned())))
            }
            _ => None,
        }
    }

    fn server_blocks<'a>(&self, body: &'a [u8], element: Span) -> Vec<ServerBlock<'a>> {
        let read = || {
            let [content] = fields_of(body, element, [b"content"])?;
            let content = content.filter(|content| content.of(body).starts_with(b"[")).ok_or(Unsupported)?;
            objects(body, content, [b"type", b"id", b"tool_use_id"], |span, [kind, id, of]| {
                let kind = kind.and_then(|kind| decode(kind.of(body)));
                let (id, is_result) = match kind.as_deref() {
                    Some("server_tool_use") => (id, false),
                    Some(kind) if kind.ends_with("_tool_result") && kind != "mcp_tool_result" => (of, true),
                    _ => (None, false),
                };
                Ok(id.and_then(|id| Some(ServerBlock { span, id: decode(id.of(body))?, is_result })))
            })
        };
        read().unwrap_or_default()
    }

    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>> {
        parts::tool_names(body, tools).unwrap_or_default()
    }

    fn fields<'a>(&self, message: &'a [u8]) -> Vec<Field<'a>> {
        canonical::fields(message).unwrap_or_else(|Unsupported| vec![Field { name: "", value: vec![message] }])
    }

    fn begins_with_user(&self) -> bool {
        true
    }

    fn render_user_message(&self, text: &str) -> Bytes {
        [br#"{"role":"user","content":["#, &*self.render_user_entry(text), b"]}"].concat().into()
    }

    fn render_user_entry(&self, text: &str) -> Bytes {
        [br#"{"type":"text","text":"#, &*strings::render(text), b"}"].concat().into()
    }

    fn render_tool_result(&self, body: &[u8], id: &CallId<'_>, _: Option<&str>, text: &str) -> Bytes {
        let id = id.raw.map_or(b"\"\"".as_slice(), |raw| raw.of(body));
        let said = [br#","content":"#, &*strings::render(text)].concat();
        let said = if text.trim().is_empty() { &[] } else { said.as_slice() };
        [br#"{"type":"tool_result","tool_use_id":"#, id, said, br#","is_error":true}"#].concat().into()
    }

    fn result_elements(&self, results: Vec<Bytes>) -> Vec<Bytes> {
        vec![[br#"{"role":"user","content":["#, &*results.join(&b','), b"]}"].concat().into()]
    }

    fn reasoning_text(&self, body: &[u8], entry: Span) -> Option<Span> {
        let [text] = fields_of(body, entry, [b"thinking"]).ok()?;
        text.filter(|text| text.of(body).starts_with(b"\""))
    }

    fn binds_reasoning(&self, model: &str) -> bool {
        thinking::is_bound(model)
    }

    fn drop_reasoning(&self, request: &[u8]) -> Option<Switch> {
        thinking::drop_mismatches(request)
    }

    fn render_exchange(&self, exchange: &Exchange<'_>) -> [Bytes; 2] {
        let [id, name, result] = [exchange.id, exchange.name, exchange.result].map(strings::render);
        let arguments = exchange.arguments.as_bytes();
        let call = [br#"{"type":"tool_use","id":"#, &*id, br#","name":"#, &name, br#","input":"#, arguments, b"}"];
        let result = [br#"{"type":"tool_result","tool_use_id":"#, &*id, br#","content":"#, &result, b"}"];
        [
            [br#"{"role":"assistant","content":["#, &*call.concat(), b"]}"].concat().into(),
            [br#"{"role":"user","content":["#, &*result.concat(), b"]}"].concat().into(),
        ]
    }

    fn has_automatic_cache(&self, body: &[u8], _model: &str) -> bool {
        // Bedrock's `invoke` knows marks at blocks alone (Anthropic's documentation of prompt caching, November 2026).
        memmem::find(body, b"\"bedrock-2023").is_none()
    }

    fn own_tool(&self, tool: &OwnTool, strict: bool) -> Option<Bytes> {
        let (name, description) = (strings::render(tool.name), strings::render(tool.description));
        let named = [br#"{"name":"#, &*name, br#","description":"#, &description, br#","input_schema":"#].concat();
        let [parameters, end] =
            if strict { [tool.strict_parameters, r#","strict":true}"#] } else { [tool.parameters, "}"] };
        Some([&*named, parameters.as_bytes(), end.as_bytes()].concat().into())
    }

    fn own_exchange(&self, _: &[u8], calls: &str, results: &str) -> [String; 2] {
        // The API joins messages of one role that follow one another.
        let said = format!(r#",{{"role":"assistant","content":[{calls}]}},{{"role":"user","content":[{results}]}}"#);
        [String::new(), said]
    }

    fn joiner(&self) -> Option<Box<dyn Joiner>> {
        Some(Box::<in_band::MessagesJoiner>::default())
    }

    fn summary_request(&self, source: &SummaryInput, prompt: &Prompt<'_>) -> Option<Bytes> {
        summary::request(source, prompt)
    }

    fn keep_alive_request(&self, body: &[u8]) -> Option<Bytes> {
        summary::with_one_token(body)
    }

    fn error_body(&self, error: &ErrorFields<'_>) -> Bytes {
        super::error_body::anthropic(error)
    }
}

#[cfg(test)]
mod tests;
