//! OpenAI Responses: `POST …/responses`, as every compatible server speaks it.
//!
//! An element of `input` is an item, and an item is one unit. Calls, reasoning and what a server did itself are the
//! model's; a turn of the model is a run of them. Results of the client are units of tools. An `input` that is a string
//! is one unit of the user.
//!
//! `items` finds where values are, and says what they mean.

use std::borrow::Cow;

use bytes::Bytes;

use self::items::kind;
use super::canonical;
use super::json::{beginning, decode, field, fields_of, member, objects, text_of};
use super::object::summary_request;
use super::reading::is_direct;
use super::{
    CallInput, Compaction, CompactionTrigger, Dialect, Exchange, Facts, OpeningEvents, TextPartNames, strings,
};
use crate::conversation::CallId;
use crate::span::Span;

mod answer;
mod compaction;
mod in_band;
mod items;
mod summary;
mod tokens;

/// `POST …/responses`.
#[derive(Debug)]
pub(super) struct Responses;

const NAME: &str = "responses";

static FACTS: Facts = Facts {
    name: NAME,
    provider: "openai",
    tag: 1,
    path: "/v1/responses",
    counting_paths: &["/responses/input_tokens"],
    compacting_path: Some("/responses/compact"),
    key_field: "authorization",
    version_field: None,
    begins_with_user: false,
    alternates: false,
    names_results: false,
    bridge: None,
    text_part: TextPartNames { kind: "input_text", mark: "prompt_cache_breakpoint" },
    // Of the silent events each repeats the request.
    opening: Some(OpeningEvents {
        silent: &["response.created", "response.in_progress", "response.queued"],
        failed: &["error", "response.failed"],
    }),
    own_tool: Some([r#"{"type":"function","name":"#, "parameters", r#","strict":false}"#, r#","strict":true}"#]),
    joiner: Some(|| Box::<in_band::ResponsesJoiner>::default()),
    read: items::read,
    canonical: canonical::item,
    summary: |source, prompt| summary_request(&Responses, source, prompt),
};

impl Dialect for Responses {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn continued(&self, body: &[u8]) -> Option<Span> {
        let start = body.len() - body.trim_ascii_start().len();
        beginning(body, field(body, Span { start, end: body.len() }, b"previous_response_id"), b'"')
    }

    /// A string as the whole content; the texts of its parts; or what commands of a shell have written.
    fn texts(&self, body: &[u8], content: Span) -> Vec<Span> {
        if content.of(body).starts_with(b"\"") {
            return vec![content];
        }
        let keys = [b"type".as_slice(), b"text", b"refusal", b"stdout", b"stderr"];
        let texts = objects(body, content, keys, |_, [kind, text, refusal, out, err]| {
            let kind = kind.map(|kind| decode(kind.of(body)).unwrap_or_default());
            let mut of_part = match kind.as_deref() {
                Some("input_text" | "output_text" | "text") => [text, None],
                Some("refusal") => [refusal, None],
                None => [out, err],
                Some(_) => [None, None],
            };
            of_part.sort_by_key(|text| text.map(|text| text.start));
            Some(of_part.into_iter().filter_map(|text| beginning(body, text, b'"')))
        });
        texts.unwrap_or_default()
    }

    /// Of a function, a JSON string; of a custom tool, a text; of a shell or a patch, what it does.
    fn input(&self, body: &[u8], call: Span) -> Option<CallInput> {
        let [kind, arguments, input, action, operation] =
            fields_of(body, call, [b"type", b"arguments", b"input", b"action", b"operation"])?;
        let (value, emptied) = match text_of(body, kind).as_deref() {
            Some("function_call") => (arguments, r#""{}""#),
            Some("custom_tool_call") => (input, r#""""#),
            Some("local_shell_call" | "shell_call") => (action, "{}"),
            Some("apply_patch_call") => (operation, "{}"),
            _ => (None, ""),
        };
        value.filter(|value| value.of(body) != b"null").map(|span| CallInput { span, emptied })
    }

    /// The `id` of what the model has said or called.
    fn name_beside_reasoning(&self, body: &[u8], item: Span) -> Option<Span> {
        let id = field(body, item, b"id").filter(|id| id.of(body) != b"null")?;
        member(body, item, b"\"id\"", id)
    }

    /// They are one string, no server knows the item by its id, and the model has called and not a program.
    fn may_empty_input(&self, body: &[u8], call: Span) -> bool {
        let Some([id, caller]) = fields_of(body, call, [b"id", b"caller"]) else { return false };
        let is_text = |input: CallInput| input.emptied.starts_with('"') && input.span.of(body).starts_with(b"\"");
        id.is_none_or(|id| id.of(body) == b"null")
            && caller.is_none_or(|caller| is_direct(body, caller))
            && self.input(body, call).is_some_and(is_text)
    }

    /// The names of tools; of those in a namespace, the name alone and the one after that of the namespace.
    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>> {
        names(body, tools, false).unwrap_or_default()
    }

    fn render_user_message(&self, text: &str) -> Bytes {
        [br#"{"type":"message","role":"user","content":"#, &*strings::render(text), b"}"].concat().into()
    }

    fn render_tool_result(&self, body: &[u8], id: &CallId<'_>, _: Option<&str>, text: &str) -> Bytes {
        // A result has no id: that is optional, and one that is made up could be refused. That of a local shell is in the
        // form of a function's, which names the call that it answers.
        let (name, before, behind): (&str, &[u8], &[u8]) = match id.kind {
            kind::CUSTOM => ("custom_tool_call_output", br#","output":"#, b"}"),
            kind::SHELL => (
                "shell_call_output",
                br#","output":[{"stdout":"","stderr":"#,
                br#","outcome":{"type":"exit","exit_code":1}}]}"#,
            ),
            kind::APPLY_PATCH => ("apply_patch_call_output", br#","status":"failed","output":"#, b"}"),
            _ => ("function_call_output", br#","output":"#, b"}"),
        };
        let id = id.raw.map_or(b"\"\"".as_slice(), |raw| raw.of(body));
        let text = strings::render(text);
        [br#"{"type":""#, name.as_bytes(), br#"","call_id":"#, id, before, &*text, behind].concat().into()
    }

    fn render_exchange(&self, exchange: &Exchange<'_>) -> [Bytes; 2] {
        let [id, name, arguments, result] =
            [exchange.id, exchange.name, exchange.arguments, exchange.result].map(strings::render);
        let call =
            [br#"{"type":"function_call","call_id":"#, &*id, br#","name":"#, &name, br#","arguments":"#, &arguments];
        let result = [br#"{"type":"function_call_output","call_id":"#, &*id, br#","output":"#, &result, b"}"];
        [[&*call.concat(), b"}"].concat().into(), result.concat().into()]
    }

    fn compacted(&self, compaction: &Compaction<'_>) -> Option<Bytes> {
        match compaction.trigger {
            Some(trigger) => compaction::response(compaction, trigger),
            None => compaction::answer(compaction),
        }
    }

    fn compaction_trigger(&self, body: &Bytes) -> Option<CompactionTrigger> {
        compaction::trigger(body)
    }

    fn restored(&self, body: &Bytes) -> Option<Bytes> {
        compaction::restored(body)
    }
}

/// The names in an array of tools, and in its namespaces, unless that `is_inside` of one.
fn names(body: &[u8], tools: Span, is_inside: bool) -> Option<Vec<Cow<'_, str>>> {
    objects(body, tools, [b"type", b"name", b"tools"], |_, [kind, name, tools]| {
        let name = text_of(body, name);
        if text_of(body, kind).as_deref() != Some("namespace") {
            return Some(Vec::from_iter(name));
        }
        let Some(tools) = beginning(body, tools, b'[').filter(|_| !is_inside) else { return Some(Vec::new()) };
        let mut inner = names(body, tools, true)?;
        let namespace = name.unwrap_or_default();
        let joined = |name: &Cow<'_, str>| format!("{}.{name}", namespace.trim_end_matches('.')).into();
        let joined: Vec<_> = inner.iter().map(joined).collect();
        inner.extend(joined);
        Some(inner)
    })
}

#[cfg(test)]
mod tests;
