//! OpenAI Chat Completions, as every compatible server speaks it.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::memmem;
use percent_encoding::percent_decode_str;

use super::{
    AnsweredInWords, CallInput, Dialect, Entries, ErrorFields, Exchange, Field, Form, Joiner, OpenCalls, ParseError,
    forms,
    json::{ReadResult, Unsupported},
    strings,
};
use crate::conversation::{CallId, Conversation};
use crate::recall::own_tools::OwnTool;
use crate::span::Span;
use crate::string_index::{PathFacts, StringIndex};
use crate::summary::{Prompt, SummaryInput};

mod answer;
mod canonical;
mod in_band;
mod parts;
mod reader;
mod summary;
pub(super) mod tokens;
mod words;

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

    /// [OpenRouter's](https://openrouter.ai/docs/features/prompt-caching); Anthropic's own endpoint for Chat has none.
    fn has_automatic_cache(&self, _body: &[u8], model: &str) -> bool {
        model.starts_with("anthropic/")
    }

    fn base_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        path.strip_suffix("/chat/completions")
    }

    fn path_facts(&self, path: &str) -> PathFacts {
        // Most paths are shorter than this.
        let base = self.base_path(path).filter(|base| base.len() > "/deployments/".len());
        let deployment = base.and_then(|base| base.rsplit_once("/deployments/"));
        let model = deployment.map(|(_, name)| percent_decode_str(name).decode_utf8_lossy().into());
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

    fn answered_in_words(&self, body: &[u8], message: Span, calls: &OpenCalls<'_>) -> Option<AnsweredInWords> {
        words::answered(body, message, calls)
    }

    fn entries(&self, body: &[u8], element: Span) -> Option<Entries> {
        parts::entries(body, element).ok().flatten()
    }

    fn bridge(&self) -> Option<Bytes> {
        Some(Bytes::from_static(br#"{"role":"assistant","content":"OK."}"#))
    }

    fn retyped_input(&self, body: &[u8], call: Span) -> Option<(Span, Bytes)> {
        forms::quoted(body, self.input(body, call)?.span)
    }

    fn names_results(&self) -> bool {
        true
    }

    fn form_replacements(&self, body: &[u8], message: Span, form: Form) -> Vec<(Span, &'static str)> {
        let one = |found: ReadResult<Option<_>>| found.map(|found| found.into_iter().collect());
        let found = match form {
            Form::Filled => forms::filled(body, message, b"tool_calls", |content| self.texts(body, content)),
            Form::LeadingSystem => one(forms::as_user(body, message)),
            Form::TextsBesideCalls => one(forms::text_beside_calls(body, message)),
            Form::ReasoningContent => one(forms::reasoning_content(body, message)),
            Form::NoReasoningFields => forms::reasoning_fields(body, message),
            Form::SignedCalls | Form::NewSignatures => forms::signatures(body, message, form == Form::NewSignatures),
            _ => Ok(Vec::new()),
        };
        found.unwrap_or_default()
    }

    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>> {
        parts::tool_names(body, tools).unwrap_or_default()
    }

    fn fields<'a>(&self, message: &'a [u8]) -> Vec<Field<'a>> {
        canonical::fields(message).unwrap_or_else(|Unsupported| vec![Field { name: "", value: vec![message] }])
    }

    fn alternates(&self) -> bool {
        true
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

    fn own_tool(&self, tool: &OwnTool, strict: bool) -> Option<Bytes> {
        let (description, name) = (strings::render(tool.description), strings::render(tool.name));
        let function = [br#"{"name":"#, &*name, br#","description":"#, &description, br#","parameters":"#].concat();
        let [parameters, end] =
            if strict { [tool.strict_parameters, r#","strict":true}}"#] } else { [tool.parameters, "}}"] };
        Some([br#"{"type":"function","function":"#, &*function, parameters.as_bytes(), end.as_bytes()].concat().into())
    }

    fn own_exchange(&self, element: &[u8], calls: &str, results: &str) -> [String; 2] {
        // In one message, unless it has a list that is empty: servers differ in whether two of the model may follow one another.
        if memmem::find(element, b"\"tool_calls\"").is_some() {
            let message = format!(r#",{{"role":"assistant","content":null,"tool_calls":[{calls}]}},{results}"#);
            return [String::new(), message];
        }
        [format!(",\"tool_calls\":[{calls}]"), format!(",{results}")]
    }

    fn joiner(&self) -> Option<Box<dyn Joiner>> {
        Some(Box::<in_band::ChatJoiner>::default())
    }

    fn summary_request(&self, source: &SummaryInput, prompt: &Prompt<'_>) -> Option<Bytes> {
        summary::request(source, prompt)
    }

    fn error_body(&self, error: &ErrorFields<'_>) -> Bytes {
        super::error_body::openai(error)
    }
}

#[cfg(test)]
mod tests;
