//! Anthropic Messages, as Anthropic and the servers that copy its API speak it.
//!
//! One message has many blocks: calls are entries of an assistant message's content, results entries of a user message's.
//! So an assistant message is one unit with a block for each call, and each entry of a user message is its own unit.
//! Consecutive messages of one role are one turn.
//!
//! `view` finds where values are, and makes the conversation of them.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::memmem;
use percent_encoding::percent_decode_str;

use super::canonical;
use super::json::{Cursor, beginning, field, fields, fields_of, objects, text_of, values};
use super::object::summary_request;
use super::reading::is_direct;
use super::{
    BytesAt, CallInput, Dialect, Entries, ErrorFields, Exchange, Facts, ServerBlock, Switch, TextPartNames, strings,
};
use crate::conversation::CallId;
use crate::span::Span;
use crate::string_index::PathFacts;

mod answer;
mod in_band;
mod summary;
mod tokens;
mod view;

/// `POST …/v1/messages`.
#[derive(Debug)]
pub(super) struct Messages;

const NAME: &str = "messages";

/// The parents of messages in other APIs: the id of one is before `/messages`.
const OTHER_PLACES: [&str; 6] = ["threads", "conversations", "sessions", "completions", "channels", "rooms"];

/// The models whose API refuses thinking, or drops it, where what precedes it has changed, as the maker's
/// documentation of October 2026 lists them. Later releases of a model are different, and have their own lines.
const BINDING: [&str; 6] = ["fable-5-1", "fable-5-2", "haiku-5-5", "mythos-5-2", "opus-5-5", "sonnet-5-5"];

static FACTS: Facts = Facts {
    name: NAME,
    provider: "anthropic",
    tag: 2,
    path: "/v1/messages",
    counting_paths: &["/messages/count_tokens", COUNTING],
    compacting_path: None,
    key_field: "x-api-key",
    version_field: Some(("anthropic-version", "2023-06-01")),
    begins_with_user: true,
    alternates: false,
    names_results: false,
    bridge: None,
    text_part: TextPartNames { kind: "text", mark: "cache_control" },
    opening: None,
    own_tool: Some([r#"{"name":"#, "input_schema", "}", r#","strict":true}"#]),
    joiner: Some(|| Box::<in_band::MessagesJoiner>::default()),
    read: view::read,
    canonical: canonical::message,
    summary: |source, prompt| summary_request(&Messages, source, prompt),
};

impl Dialect for Messages {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn base_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        // SDKs append it to a base URL with `/v1` or without. Other APIs have it after an id: `/threads/ID/messages`.
        let Some(base) = path.strip_suffix("/messages") else { return hosted(path).map(|(base, _)| base) };
        let of_id = base.rsplit('/').nth(1);
        (!of_id.is_some_and(|of| OTHER_PLACES.contains(&of))).then_some(base)
    }

    fn path_facts(&self, path: &str) -> PathFacts {
        hosted(path).map(|(_, facts)| facts).unwrap_or_default()
    }

    fn unframed<'p>(&self, path: &'p str) -> Option<&'p str> {
        unframed(path)
    }

    /// A string as the whole content, or the texts of its text blocks, of its search results and of its documents.
    fn texts(&self, body: &[u8], content: Span) -> Vec<Span> {
        texts_in(body, content, false).unwrap_or_default()
    }

    fn input(&self, body: &[u8], call: Span) -> Option<CallInput> {
        let input = field(body, call, b"input").filter(|input| input.of(body) != b"null");
        input.map(|span| CallInput { span, emptied: "{}" })
    }

    fn may_empty_input(&self, body: &[u8], call: Span) -> bool {
        fields_of(body, call, [b"caller"]).is_some_and(|[caller]| caller.is_none_or(|caller| is_direct(body, caller)))
    }

    /// The entries of a content that is an array.
    fn entries(&self, body: &[u8], message: Span) -> Option<Entries> {
        let content = beginning(body, field(body, message, b"content"), b'[')?;
        let reasoning = objects(body, content, [b"type"], |span, [kind]| {
            Some(matches!(text_of(body, kind).as_deref(), Some("thinking" | "redacted_thinking")).then_some(span))
        })?;
        Some(Entries { spans: values(body, content)?, reasoning, key: None })
    }

    fn retyped_input(&self, body: &[u8], call: Span) -> Option<(Span, Bytes)> {
        let input = field(body, call, b"input")?;
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
        let Some(content) = beginning(body, field(body, element, b"content"), b'[') else { return Vec::new() };
        let blocks = objects(body, content, [b"type", b"id", b"tool_use_id"], |span, [kind, id, of]| {
            let (id, is_result) = match text_of(body, kind).as_deref() {
                Some("server_tool_use") => (id, false),
                Some(kind) if kind.ends_with("_tool_result") && kind != "mcp_tool_result" => (of, true),
                _ => (None, false),
            };
            Some(text_of(body, id).map(|id| ServerBlock { span, id, is_result }))
        });
        blocks.unwrap_or_default()
    }

    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>> {
        objects(body, tools, [b"name"], |_, [name]| Some(text_of(body, name))).unwrap_or_default()
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
        beginning(body, field(body, entry, b"thinking"), b'"')
    }

    /// Whichever way a gateway spells the name.
    fn binds_reasoning(&self, model: &str) -> bool {
        let name = model.to_ascii_lowercase().replace(['.', '_'], "-");
        let ends_there = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_digit());
        let known = BINDING.iter().filter_map(|known| name.split_once("claude-")?.1.strip_prefix(known));
        known.into_iter().any(|rest| ends_there(rest) || rest.starts_with('-'))
    }

    /// None for a request that says itself what becomes of such reasoning, or that has no settings of thinking to add it to.
    fn drop_reasoning(&self, request: &[u8]) -> Option<Switch> {
        const DROP: &[u8] = br#","block_binding":{"prefix_mismatch_behavior":"drop_block"}"#;
        let [thinking] = fields(&mut Cursor::new(request), [b"thinking"]).ok()?;
        let thinking = beginning(request, thinking, b'{')?;
        let [binding, kind] = fields_of(request, thinking, [b"block_binding", b"type"])?;
        let at = thinking.end.checked_sub(1).filter(|_| binding.is_none() && kind.is_some())?;
        let insertion = BytesAt { at, bytes: Bytes::from_static(DROP) };
        Some(Switch { insertion, beta: "thinking-binding-controls-2026-08-01" })
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

    fn own_exchange(&self, _: &[u8], calls: &str, results: &str) -> [String; 2] {
        // The API joins messages of one role that follow one another.
        let said = format!(r#",{{"role":"assistant","content":[{calls}]}},{{"role":"user","content":[{results}]}}"#);
        [String::new(), said]
    }

    fn keep_alive_request(&self, body: &[u8]) -> Option<Bytes> {
        summary::with_one_token(body)
    }

    fn error_body(&self, error: &ErrorFields<'_>) -> Bytes {
        let kind = match error.code {
            "body_too_large" => "request_too_large",
            "overloaded" => "overloaded_error",
            "upstream_timeout" => "timeout_error",
            _ if error.is_client_error => "invalid_request_error",
            _ => "api_error",
        };
        let message = serde_json::to_string(error.message).unwrap_or_default();
        format!(r#"{{"type":"error","error":{{"type":"{kind}","message":{message}}}}}"#).into()
    }
}

/// The texts of a content, and, unless that `is_inside` of another one, those of its search results and documents.
fn texts_in(body: &[u8], content: Span, is_inside: bool) -> Option<Vec<Span>> {
    if content.of(body).starts_with(b"\"") {
        return Some(vec![content]);
    }
    objects(body, content, [b"type", b"text", b"content", b"source"], |_, [kind, text, content, source]| {
        let deeper = match text_of(body, kind).as_deref() {
            Some("text") => return Some(Vec::from_iter(beginning(body, text, b'"'))),
            Some("search_result") => content,
            Some("document") => source.and_then(|source| field(body, source, b"content")),
            _ => None,
        };
        match deeper.filter(|content| !is_inside && matches!(content.of(body), [b'[' | b'"', ..])) {
            Some(content) => texts_in(body, content, true),
            None => Some(Vec::new()),
        }
    })
}

/// How a path of Vertex AI ends that only counts tokens. Its body names the model.
const COUNTING: &str = "/publishers/anthropic/models/count-tokens:rawPredict";

/// The suffix of Bedrock's paths whose answers come in frames of AWS's event stream.
const FRAMED: &str = "-with-response-stream";

/// The base and the facts of a path of Messages at Vertex AI or Amazon Bedrock. It names the model, as the bodies there do not;
/// these are those of Messages with `anthropic_version` (Anthropic's documentation of both, and its SDKs for Python, 2.14.0).
fn hosted(path: &str) -> Option<(&str, PathFacts)> {
    let (base, model) = vertex(path).or_else(|| bedrock(path))?;
    let model = percent_decode_str(model).decode_utf8_lossy();
    Some((base, PathFacts { model: Some(model.into()), is_framed: unframed(path).is_some() }))
}

fn vertex(path: &str) -> Option<(&str, &str)> {
    let whole = path.strip_suffix(":rawPredict").or_else(|| path.strip_suffix(":streamRawPredict"))?;
    let place = whole.split_once("/publishers/anthropic/models/")?;
    (!place.1.contains(':') && !path.ends_with(COUNTING)).then_some(place)
}

fn bedrock(path: &str) -> Option<(&str, &str)> {
    let place = unframed(path).unwrap_or(path).strip_suffix("/invoke")?.rsplit_once("/model/")?;
    // Models of other makers have other bodies; the resource name of a profile does not say whose model it is.
    let is_claude = ["anthropic.", "claude", "arn:", "arn%3A"].iter().any(|part| place.1.contains(part));
    is_claude.then_some(place)
}

/// The path at which the same answer comes as a whole; none if it does not come in frames.
fn unframed(path: &str) -> Option<&str> {
    path.strip_suffix(FRAMED).filter(|whole| whole.ends_with("/invoke"))
}

#[cfg(test)]
mod tests;
