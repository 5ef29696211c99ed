//! OpenAI Responses: `POST …/responses`, as every compatible server speaks it.
//!
//! An element of `input` is an item, and an item is one unit. Calls, reasoning and what a server did itself are the
//! model's; a turn of the model is a run of them. Results of the client are units of tools. An `input` that is a string
//! is one unit of the user.
//!
//! `reader` finds where values are; `items` says what they mean.

use std::borrow::Cow;

use bytes::Bytes;

use self::items::kind;
use super::{
    CallInput, Compaction, CompactionTrigger, Dialect, Entries, ErrorFields, Exchange, Field, Joiner, OpeningEvents,
    ParseError, TextPartNames, json::Unsupported, strings,
};
use crate::conversation::{CallId, Conversation};
use crate::recall::own_tools::OwnTool;
use crate::span::Span;
use crate::string_index::StringIndex;
use crate::summary::{Prompt, SummaryInput};

mod answer;
mod canonical;
mod compact;
mod in_band;
mod items;
mod own_compaction;
mod parts;
mod reader;
mod summary;
mod tokens;

/// `POST …/responses`.
#[derive(Debug)]
pub(super) struct Responses;

const NAME: &str = "responses";

/// Of the silent events each repeats the request.
const OPENING: OpeningEvents = OpeningEvents {
    silent: &["response.created", "response.in_progress", "response.queued"],
    failed: &["error", "response.failed"],
};

impl Dialect for Responses {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tag(&self) -> u8 {
        1
    }

    fn path(&self) -> &'static str {
        "/v1/responses"
    }

    fn base_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        path.strip_suffix("/responses")
    }

    fn counting_paths(&self) -> &'static [&'static str] {
        &["/responses/input_tokens"]
    }

    fn compacting_path(&self) -> Option<&'static str> {
        Some("/responses/compact")
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

    fn name_beside_reasoning(&self, body: &[u8], item: Span) -> Option<Span> {
        parts::id_member(body, item).ok().flatten()
    }

    fn may_empty_input(&self, body: &[u8], call: Span) -> bool {
        parts::may_empty_input(body, call).unwrap_or_default()
    }

    fn entries(&self, _: &[u8], _: Span) -> Option<Entries> {
        None
    }

    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>> {
        parts::tool_names(body, tools).unwrap_or_default()
    }

    fn fields<'a>(&self, item: &'a [u8]) -> Vec<Field<'a>> {
        canonical::fields(item).unwrap_or_else(|Unsupported| vec![Field { name: "", value: vec![item] }])
    }

    fn render_user_message(&self, text: &str) -> Bytes {
        [br#"{"type":"message","role":"user","content":"#, &*strings::render(text), b"}"].concat().into()
    }

    fn text_part_names(&self) -> TextPartNames {
        TextPartNames { kind: "input_text", mark: "prompt_cache_breakpoint" }
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

    fn own_tool(&self, tool: &OwnTool, strict: bool) -> Option<Bytes> {
        let (name, description) = (strings::render(tool.name), strings::render(tool.description));
        let named = [br#"{"type":"function","name":"#, &*name, br#","description":"#, &description].concat();
        let [parameters, end] = if strict {
            [tool.strict_parameters, r#","strict":true}"#]
        } else {
            [tool.parameters, r#","strict":false}"#]
        };
        Some([&*named, br#","parameters":"#, parameters.as_bytes(), end.as_bytes()].concat().into())
    }

    fn joiner(&self) -> Option<Box<dyn Joiner>> {
        Some(Box::<in_band::ResponsesJoiner>::default())
    }

    fn summary_request(&self, source: &SummaryInput, prompt: &Prompt<'_>) -> Option<Bytes> {
        summary::request(source, prompt)
    }

    fn opening(&self) -> Option<&'static OpeningEvents> {
        Some(&OPENING)
    }

    fn compacted(&self, compaction: &Compaction<'_>) -> Option<Bytes> {
        match compaction.trigger {
            Some(trigger) => own_compaction::response(compaction, trigger),
            None => compact::answer(compaction),
        }
    }

    fn compaction_trigger(&self, body: &Bytes) -> Option<CompactionTrigger> {
        own_compaction::trigger(body)
    }

    fn restored(&self, body: &Bytes) -> Option<Bytes> {
        own_compaction::restored(body)
    }

    fn error_body(&self, error: &ErrorFields<'_>) -> Bytes {
        super::error_body::openai(error)
    }
}

#[cfg(test)]
mod tests;
