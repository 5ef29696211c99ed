//! OpenAI Chat Completions, as every compatible server speaks it.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::memmem;
use percent_encoding::percent_decode_str;

use self::tokens::is_text_part;
use super::canonical;
use super::json::{beginning, decode, each_element, field, fields, fields_of, member, objects, text_of, values};
use super::object::summary_request;
use super::{CallInput, Dialect, Entries, Exchange, Facts, Form, OpenCalls, TextPartNames, forms, strings};
use crate::conversation::CallId;
use crate::span::Span;
use crate::string_index::PathFacts;

mod answer;
mod in_band;
mod reader;
mod summary;
pub(super) mod tokens;
mod words;

/// `POST …/chat/completions`.
#[derive(Debug)]
pub(super) struct ChatCompletions;

const NAME: &str = "chat_completions";

static FACTS: Facts = Facts {
    name: NAME,
    provider: "openai",
    tag: 0,
    path: "/v1/chat/completions",
    counting_paths: &[],
    compacting_path: None,
    key_field: "authorization",
    version_field: None,
    begins_with_user: false,
    alternates: true,
    names_results: true,
    bridge: Some(Bytes::from_static(br#"{"role":"assistant","content":"OK."}"#)),
    text_part: TextPartNames { kind: "text", mark: "cache_control" },
    opening: None,
    own_tool: Some([r#"{"type":"function","function":{"name":"#, "parameters", "}}", r#","strict":true}}"#]),
    joiner: Some(|| Box::<in_band::ChatJoiner>::default()),
    read: reader::read,
    canonical: canonical::chat,
    summary: |source, prompt| summary_request(&ChatCompletions, source, prompt),
};

impl Dialect for ChatCompletions {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    /// [OpenRouter's](https://openrouter.ai/docs/features/prompt-caching); Anthropic's own endpoint for Chat has none.
    fn has_automatic_cache(&self, _body: &[u8], model: &str) -> bool {
        model.starts_with("anthropic/")
    }

    fn path_facts(&self, path: &str) -> PathFacts {
        // Most paths are shorter than this.
        let base = self.base_path(path).filter(|base| base.len() > "/deployments/".len());
        let deployment = base.and_then(|base| base.rsplit_once("/deployments/"));
        let model = deployment.map(|(_, name)| percent_decode_str(name).decode_utf8_lossy().into());
        PathFacts { model, is_framed: false }
    }

    fn texts(&self, body: &[u8], content: Span) -> Vec<Span> {
        texts(body, content).unwrap_or_default()
    }

    /// The arguments of a function. The input of a custom tool is not JSON, so nothing is known to mean none.
    fn input(&self, body: &[u8], call: Span) -> Option<CallInput> {
        let span = field(body, field(body, call, b"function")?, b"arguments")?;
        match span.of(body).first() {
            Some(b'"') => Some(CallInput { span, emptied: "\"{}\"" }),
            Some(b'{') => Some(CallInput { span, emptied: "{}" }),
            _ => None,
        }
    }

    fn answers_in_words(&self, body: &[u8], message: Span, calls: &OpenCalls<'_>) -> bool {
        words::answers(body, message, calls).unwrap_or_default()
    }

    /// The entries of `tool_calls`.
    fn entries(&self, body: &[u8], message: Span) -> Option<Entries> {
        let calls = field(body, message, b"tool_calls")?;
        let key = Some(member(body, message, b"\"tool_calls\"", calls)?);
        Some(Entries { spans: values(body, calls)?, reasoning: Vec::new(), key })
    }

    fn retyped_input(&self, body: &[u8], call: Span) -> Option<(Span, Bytes)> {
        forms::quoted(body, self.input(body, call)?.span)
    }

    fn form_replacements(&self, body: &[u8], message: Span, form: Form) -> Vec<(Span, &'static str)> {
        let one = match form {
            Form::Filled => {
                let texts = |content| self.texts(body, content);
                return forms::filled(body, message, b"tool_calls", texts).unwrap_or_default();
            }
            Form::NoReasoningFields => return forms::reasoning_fields(body, message).unwrap_or_default(),
            Form::SignedCalls | Form::NewSignatures => {
                return forms::signatures(body, message, form == Form::NewSignatures).unwrap_or_default();
            }
            Form::LeadingSystem => forms::as_user(body, message),
            Form::TextsBesideCalls => forms::text_beside_calls(body, message),
            Form::ReasoningContent => forms::reasoning_content(body, message),
            _ => None,
        };
        one.into_iter().collect()
    }

    /// The names of functions and custom tools.
    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>> {
        let names = objects(body, tools, [b"function", b"custom"], |_, [function, custom]| {
            let tool = beginning(body, function.or(custom), b'{');
            let [name] = tool.map_or(Some([None]), |tool| fields_of(body, tool, [b"name"]))?;
            Some(text_of(body, name))
        });
        names.unwrap_or_default()
    }

    fn render_user_message(&self, text: &str) -> Bytes {
        [br#"{"role":"user","content":"#, &*strings::render(text), b"}"].concat().into()
    }

    fn render_tool_result(&self, body: &[u8], id: &CallId<'_>, _: Option<&str>, text: &str) -> Bytes {
        let id = id.raw.map_or(b"\"\"".as_slice(), |raw| raw.of(body));
        [br#"{"role":"tool","tool_call_id":"#, id, br#","content":"#, &*strings::render(text), b"}"].concat().into()
    }

    fn render_exchange(&self, exchange: &Exchange<'_>) -> [Bytes; 2] {
        let [id, name, arguments, result] =
            [exchange.id, exchange.name, exchange.arguments, exchange.result].map(strings::render);
        let function = [br#"{"name":"#, &*name, br#","arguments":"#, &arguments, b"}"].concat();
        let call = [br#"{"id":"#, &*id, br#","type":"function","function":"#, &function, b"}"].concat();
        [
            [br#"{"role":"assistant","content":null,"tool_calls":["#, &*call, b"]}"].concat().into(),
            [br#"{"role":"tool","tool_call_id":"#, &*id, br#","content":"#, &result, b"}"].concat().into(),
        ]
    }

    fn own_exchange(&self, element: &[u8], calls: &str, results: &str) -> [String; 2] {
        // In one message, unless it has a list that is empty: servers differ in whether two of the model may follow one another.
        if memmem::find(element, b"\"tool_calls\"").is_some() {
            let message = format!(r#",{{"role":"assistant","content":null,"tool_calls":[{calls}]}},{results}"#);
            return [String::new(), message];
        }
        [format!(",\"tool_calls\":[{calls}]"), format!(",{results}")]
    }
}

/// A string as the whole content, or the texts of its parts: strings, and those of objects that are text parts. None if any of
/// it is odd.
fn texts(body: &[u8], content: Span) -> Option<Vec<Span>> {
    if content.of(body).starts_with(b"\"") {
        return Some(vec![content]);
    }
    let mut texts = Vec::new();
    let each = each_element(body, content, |cursor| {
        let text = if cursor.peek() == Some(b'{') {
            let [kind, text] = fields(cursor, [b"type", b"text"])?;
            let kind = kind.filter(|kind| kind.of(body) != b"null");
            // A type that is not a string is none that is known.
            let kind = kind.map(|kind| decode(kind.of(body)).unwrap_or_default());
            text.filter(|_| is_text_part(kind.as_deref()))
        } else {
            Some(cursor.value()?)
        };
        texts.extend(beginning(body, text, b'"'));
        Ok(())
    });
    each.ok().map(|()| texts)
}

#[cfg(test)]
mod tests;
