//! Wire formats: how the bytes of a request are read and how new bytes are written. Only dialects know field names.

use std::{borrow::Cow, fmt::Debug};

use bytes::Bytes;
use memchr::memmem;

use self::json::{ReadResult, Unsupported};
use crate::conversation::{CallId, Conversation};
use crate::recall::own_tools::OwnTool;
use crate::span::Span;
use crate::string_index::{PathFacts, StringIndex};
use crate::summary::{Prompt, SummaryInput};

pub use self::answer::{Answer, AnswerEnd, AnswerFormat, InvalidAnswer, Stop, Usage, has_value};
pub use self::forms::{
    CACHE_MARK, Form, MAX_CACHE_MARKS, ServerBlock, cache_marks, is_error_result, marks_an_hour, missing_parameters,
    result_name,
};
pub use self::in_band::{Joiner, OwnCall, RoundCalls};
pub use self::media::TextPartNames;
pub use self::tokens::TokenRules;
pub use self::types::{
    BytesAt, CallInput, Compaction, CompactionTrigger, Entries, ErrorFields, Exchange, Field, OpenCalls, OpeningEvents,
    ParseError, ParseErrorKind, Switch,
};

mod answer;
mod canonical;
mod chat_completions;
mod forms;
mod gemini;
mod in_band;
mod json;
pub mod media;
mod messages;
mod object;
mod reading;
mod responses;
pub mod strings;
mod tokens;
mod types;

/// A wire format: everything that is known of it alone. Its fixed properties are in its [`Facts`].
///
/// JSON strings are the same in all of them and are read and written by [`strings`]. The words of upstreams' refusals come
/// from servers, not from wire formats, and are in `upstream/refusal.rs`.
///
/// | methods | Chat Completions | Responses | Messages | Gemini |
/// |---|---|---|---|---|
/// | `path`, `base_path` | `/v1/chat/completions` | `/v1/responses` | `/v1/messages` | `/models/MODEL:generateContent` |
/// | `path_facts`, `unframed` | Azure's deployments | none | Vertex AI, Bedrock | the model |
/// | `parse` | `messages`; a call is an entry of `tool_calls`, a result a message | `input`; calls and results are items | `messages`; calls and results are blocks | `contents`; calls and results are parts |
/// | `texts`, `input` | `content`, `function.arguments` | `output`, `arguments` | `content`, `input` | `response`, `args` |
/// | `answers_in_words` | `function`, texts of the user | none | none | none |
/// | `entries` | of `tool_calls` | none: a call is an item | of `content` | of `parts` |
/// | `retyped_input` | `function.arguments` | `arguments` | `input` | none |
/// | `form_replacements` | `role`, `content`, `tool_calls`, reasoning | `role`, `content` | `role`, `content` | `parts` |
/// | `tool_names` | `function.name`, `custom.name` | `name`, in `namespace` too | `name` | `name` in `functionDeclarations` |
/// | `fields`, `canonical` | without `cache_control`, reasoning | without ids, reasoning | without `cache_control` | without signatures, thoughts |
/// | `render_user_message`, `render_tool_result`, `render_exchange`, `result_elements` | a message | an item by the kind of call | a block in a user message | a part in a content of the user |
/// | `count` | the cookbook's rules | items, encrypted reasoning by its length | signatures by their length | signatures by their length |
/// | `server_blocks` | none | none | `server_tool_use`, `…_tool_result` | none |
/// | `name_beside_reasoning` | none | `id` | none | none |
/// | `reasoning_text` | none | none | `thinking` | `text` of a thought |
/// | `binds_reasoning`, `drop_reasoning` | none | none | by the model, `thinking.block_binding` | none |
/// | `compaction_trigger`, `restored`, `compacted` | none | `compaction_trigger`, `compaction` | none | none |
/// | `summary_request` | `tool_choice: "none"` | and `store: false` | `tool_choice` as it is | `mode: "NONE"` |
/// | `keep_alive_request` | none | none | `max_tokens` | none |
/// | `reports`, `read_answer`, `stop` | `finish_reason`, `usage`, `[DONE]` | `response.completed` | `message_delta` | `finishReason`, `usageMetadata` |
/// | `own_tool`, `own_exchange` | `tools`, `tool_calls` | `function_call` | `tool_use` | never added |
/// | `error_body` | `{"error": {…}}` | the same | `{"type": "error", …}` | `{"error": {…}}` with `status` |
pub trait Dialect: AnswerFormat + TokenRules + Debug + Send + Sync {
    // === which requests ===

    /// Its fixed properties.
    fn facts(&self) -> &'static Facts;

    /// Its name, for reports.
    fn name(&self) -> &'static str {
        self.facts().name
    }

    /// The path that requests are posted to below a base URL, with its version: `/v1/chat/completions`.
    fn path(&self) -> &'static str {
        self.facts().path
    }

    /// The target of a request to another model than the client's; it differs where the path names the model.
    fn path_of(&self, _model: &str) -> Cow<'static, str> {
        self.path().into()
    }

    /// The part of `path` before this dialect's own; none if the path is not of this dialect. Any prefix is fine:
    /// versions, deployments.
    fn base_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        let own = self.path();
        path.strip_suffix(own.strip_prefix("/v1").unwrap_or(own))
    }

    /// The facts of a request that a path of this dialect names.
    fn path_facts(&self, _path: &str) -> PathFacts {
        PathFacts::default()
    }

    /// The path at which an answer comes as a whole that comes in frames of AWS's event stream at this one; none if it does not.
    fn unframed<'p>(&self, _path: &'p str) -> Option<&'p str> {
        None
    }

    // === reading requests ===

    /// The conversation in a request body. Its structure is checked to the last byte; the inside of strings that no edit
    /// reads is not: see [`strings::verify`].
    fn parse<'a>(&self, body: &'a [u8]) -> Result<Conversation<'a>, ParseError> {
        self.parse_indexed(body, StringIndex::EMPTY)
    }

    /// The same of a body whose long strings are known.
    fn parse_indexed<'a>(&self, body: &'a [u8], strings: &'a StringIndex) -> Result<Conversation<'a>, ParseError> {
        (self.facts().read)(body, strings)
    }

    /// The places of the texts in a content: JSON strings, each of which may be replaced by another one, or an object that
    /// is the whole result. Other parts have none.
    fn texts(&self, body: &[u8], content: Span) -> Vec<Span>;

    /// The arguments of a call.
    fn input(&self, body: &[u8], call: Span) -> Option<CallInput>;

    /// Whether the arguments of a call may be emptied, and not just read.
    fn may_empty_input(&self, _body: &[u8], _call: Span) -> bool {
        true
    }

    /// Whether a message that is not a result by its form answers one of the calls before it, in dialects whose servers take such.
    fn answers_in_words(&self, _body: &[u8], _message: Span, _calls: &OpenCalls<'_>) -> bool {
        false
    }

    /// The id of the response that a request continues.
    fn continued(&self, _body: &[u8]) -> Option<Span> {
        None
    }

    /// The array inside an element that holds calls or results, for elements that have units or calls inside. None if it
    /// cannot be edited.
    fn entries(&self, _body: &[u8], _element: Span) -> Option<Entries> {
        None
    }

    /// The names of the tools that a request offers.
    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>>;

    /// The parts of a message that the model reads, by field, in a fixed order. A message that comes again in another spelling has
    /// the same fields: marks for prompt caches, reasoning, and whether a text is alone or in an array make no
    /// difference. Escapes in strings do, and so does white space inside values that are not read.
    fn fields<'a>(&self, message: &'a [u8]) -> Vec<Field<'a>> {
        let whole = |Unsupported| vec![Field { name: "", value: vec![message] }];
        (self.facts().canonical)(message).unwrap_or_else(whole)
    }

    /// The fields of a message as one sequence of bytes, in pieces.
    fn canonical<'a>(&self, message: &'a [u8]) -> Vec<&'a [u8]> {
        let mut pieces: Vec<&[u8]> = Vec::new();
        for Field { name, mut value } in self.fields(message) {
            pieces.extend([b"\"", name.as_bytes(), b"\":"]);
            pieces.append(&mut value);
            pieces.push(b",");
        }
        pieces
    }

    /// The arguments of a call that are written in the wrong type, an object for a string or the reverse, and the right
    /// value.
    fn retyped_input(&self, body: &[u8], call: Span) -> Option<(Span, Bytes)> {
        let input = self.input(body, call).filter(|input| input.emptied == "\"{}\"")?;
        forms::quoted(body, input.span)
    }

    /// The values in an element that a form replaces, in order, and by what.
    fn form_replacements(&self, body: &[u8], element: Span, form: Form) -> Vec<(Span, &'static str)> {
        let texts = |content| self.texts(body, content);
        match form {
            Form::Filled => forms::filled(body, element, b"", texts).unwrap_or_default(),
            Form::LeadingSystem => forms::as_user(body, element).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The calls in an element that the server answers itself, and the results of such calls.
    fn server_blocks<'a>(&self, _body: &'a [u8], _element: Span) -> Vec<ServerBlock<'a>> {
        Vec::new()
    }

    /// The member of an item, with its comma, that names it to the server together with the reasoning before it: without that
    /// reasoning the server refuses the name. None where items have no such name.
    fn name_beside_reasoning(&self, _body: &[u8], _item: Span) -> Option<Span> {
        None
    }

    /// The text of an entry with reasoning; none if it has none that can be read.
    fn reasoning_text(&self, _body: &[u8], _entry: Span) -> Option<Span> {
        None
    }

    /// Whether the reasoning of a model is bound to what precedes it.
    fn binds_reasoning(&self, _model: &str) -> bool {
        false
    }

    // === writing requests ===

    /// A message in which the user says `text`.
    fn render_user_message(&self, text: &str) -> Bytes;

    /// The same where results stand: a message, or an entry of one.
    fn render_user_entry(&self, text: &str) -> Bytes {
        self.render_user_message(text)
    }

    /// A result that says `text` in answer to the call `id` of a tool, the id being written as `body` writes it.
    fn render_tool_result(&self, body: &[u8], id: &CallId<'_>, tool: Option<&str>, text: &str) -> Bytes;

    /// A part that says `text` in place of another one, with its mark for the prompt cache, or an object in place of one
    /// that is a whole result.
    fn render_text_part(&self, body: &[u8], part: Span, text: &str) -> Bytes {
        media::text_part(self.facts().text_part, body, part, text)
    }

    /// The elements that hold results which follow one another, without an element to put them into.
    fn result_elements(&self, results: Vec<Bytes>) -> Vec<Bytes> {
        results
    }

    /// The switch that has the server drop reasoning that does not fit its prefix. None if the API has none.
    fn drop_reasoning(&self, _request: &[u8]) -> Option<Switch> {
        None
    }

    /// The elements in which the model calls a function and reads its answer.
    fn render_exchange(&self, exchange: &Exchange<'_>) -> [Bytes; 2];

    /// A tool that abridge adds to a request. `strict` is whether the client's tools are marked so: servers refuse a mixture.
    /// The bytes are always the same.
    /// None if the dialect has no [`joiner`](Facts::joiner).
    fn own_tool(&self, tool: &OwnTool, strict: bool) -> Option<Bytes> {
        let [begin, key, end, strict_end] = self.facts().own_tool?;
        let (parameters, end) = if strict { (tool.strict_parameters, strict_end) } else { (tool.parameters, end) };
        let [name, description] = [tool.name, tool.description].map(strings::render);
        let named = [begin.as_bytes(), &*name, br#","description":"#, &description].concat();
        Some([&*named, b",\"", key.as_bytes(), b"\":", parameters.as_bytes(), end.as_bytes()].concat().into())
    }

    /// Calls of abridge and their results, for the end of a turn without calls: the bytes to insert before the last byte of the
    /// turn's last element, and those after it.
    fn own_exchange(&self, _element: &[u8], calls: &str, results: &str) -> [String; 2] {
        [String::new(), format!(",{calls},{results}")]
    }

    /// Whether a request to this model can ask for Anthropic's automatic prompt cache, by a member at its top.
    fn has_automatic_cache(&self, _body: &[u8], _model: &str) -> bool {
        false
    }

    /// The request that asks a model for a summary of `source`. None if it cannot be made of what the client sent.
    fn summary_request(&self, source: &SummaryInput, prompt: &Prompt<'_>) -> Option<Bytes> {
        (self.facts().summary)(source, prompt)
    }

    /// The same request with one token of answer and no stream, which keeps its prompt in the cache. None if that cannot be
    /// asked for.
    fn keep_alive_request(&self, _body: &[u8]) -> Option<Bytes> {
        None
    }

    // === answers ===

    /// The request for a compaction in a turn, if the body is one.
    fn compaction_trigger(&self, _body: &Bytes) -> Option<CompactionTrigger> {
        None
    }

    /// The body with the items that compactions made by abridge represent, if it has any: an upstream cannot read them.
    fn restored(&self, _body: &Bytes) -> Option<Bytes> {
        None
    }

    /// The answer to a request at the [`compacting_path`](Facts::compacting_path), or to one with a `compaction_trigger`. None if
    /// it cannot be made of `compaction`.
    fn compacted(&self, _compaction: &Compaction<'_>) -> Option<Bytes> {
        None
    }

    /// The body of an answer that reports abridge's own error.
    fn error_body(&self, error: &ErrorFields<'_>) -> Bytes {
        let kind = if error.is_client_error { "invalid_request_error" } else { "server_error" };
        let [message, code] = [error.message, error.code].map(|text| serde_json::to_string(text).unwrap_or_default());
        format!(r#"{{"error":{{"message":{message},"type":"{kind}","param":null,"code":{code}}}}}"#).into()
    }
}

/// The fixed properties of a dialect, and its functions that read and write.
#[derive(Debug)]
pub struct Facts {
    /// Its name, for reports.
    pub name: &'static str,
    /// The maker of the format, as the conventions of OpenTelemetry name it.
    pub provider: &'static str,
    /// A number that no other dialect has. It keeps remembered token counts of dialects apart.
    pub tag: u8,
    /// See [`Dialect::path`].
    pub path: &'static str,
    /// How the paths of requests end that only ask how many tokens a request has: `/messages/count_tokens`. Their bodies
    /// are read and edited as those of requests are.
    pub counting_paths: &'static [&'static str],
    /// How the paths of requests end that ask for the whole conversation in fewer items: `/responses/compact`. Their bodies
    /// are read as those of requests are. None if there are no such requests.
    pub compacting_path: Option<&'static str>,
    /// The header field that a key is sent in.
    pub key_field: &'static str,
    /// The header field without which servers refuse a request, and its value where the client says none.
    pub version_field: Option<(&'static str, &'static str)>,
    /// Whether servers may refuse a conversation that begins with the model.
    pub begins_with_user: bool,
    /// Whether servers may refuse two messages of the model in a row.
    pub alternates: bool,
    /// Whether a result may have the name of its tool.
    pub names_results: bool,
    /// A short answer of the model, for upstreams that refuse a message of the user directly after results. None if the
    /// dialect has no such upstreams.
    pub bridge: Option<Bytes>,
    /// The names in a part of a content that is a text.
    pub text_part: TextPartNames,
    /// How a streamed answer begins, where a request may be refused in one: with status 200, by an event.
    pub opening: Option<OpeningEvents>,
    /// A tool that abridge adds: what precedes its name, the key of its parameters, and what follows these where the client's
    /// tools are not strict, and where they are. None if the dialect has no `joiner`.
    pub own_tool: Option<[&'static str; 4]>,
    /// Makes the joiner of the rounds of an answer in which the model calls an [`own_tool`](Dialect::own_tool). None if answers of the
    /// dialect are not joined.
    pub joiner: Option<fn() -> Box<dyn Joiner>>,
    read: for<'a> fn(&'a [u8], &'a StringIndex) -> Result<Conversation<'a>, ParseError>,
    canonical: for<'a> fn(&'a [u8]) -> ReadResult<Vec<Field<'a>>>,
    summary: fn(&SummaryInput, &Prompt<'_>) -> Option<Bytes>,
}

/// All dialects. The first one is spoken where nothing says which.
pub const ALL: [&dyn Dialect; 4] =
    [&chat_completions::ChatCompletions, &responses::Responses, &messages::Messages, &gemini::Gemini];

/// The dialect of a name.
pub fn named(name: &str) -> Option<&'static dyn Dialect> {
    ALL.into_iter().find(|dialect| dialect.name() == name)
}

/// The dialect spoken at `path` (without the query), if it is one that edits know.
pub fn for_path(path: &str) -> Option<&'static dyn Dialect> {
    ALL.into_iter().find(|dialect| dialect.base_path(path).is_some())
}

/// The dialect of requests at `path` (without the query) that only count tokens, if there is one.
pub fn for_counting_path(path: &str) -> Option<&'static dyn Dialect> {
    ALL.into_iter().find(|dialect| dialect.facts().counting_paths.iter().any(|end| path.ends_with(end)))
}

/// The dialect of requests at `path` (without the query) that ask for a compaction, if there is one.
pub fn for_compacting_path(path: &str) -> Option<&'static dyn Dialect> {
    ALL.into_iter().find(|dialect| dialect.facts().compacting_path.is_some_and(|end| path.ends_with(end)))
}

/// The dialect of a request that comes without a path, by the keys at its top and the types of blocks: in a file, for
/// instance. [`default`] if they do not say.
pub fn of_body(body: &[u8]) -> &'static dyn Dialect {
    let keys: [&[u8]; 3] = [b"messages", b"input", b"system"];
    match json::fields(&mut json::Cursor::new(body), keys) {
        Ok([None, Some(_), _]) => &responses::Responses,
        Ok([Some(_), _, Some(_)]) => &messages::Messages,
        // A quote inside of a string has a backslash before it.
        Ok([Some(_), ..]) if BLOCKS.iter().any(|block| memmem::find(body, block).is_some()) => &messages::Messages,
        Ok([None, None, _]) if memmem::find(body, b"\"contents\"").is_some() => &gemini::Gemini,
        _ => default(),
    }
}

/// Strings that only bodies in Anthropic Messages have.
const BLOCKS: [&[u8]; 3] = [b"\"tool_use\"", b"\"tool_result\"", b"\"input_schema\""];

/// The dialect of what has neither a path nor a body: errors of requests that no dialect knows.
pub fn default() -> &'static dyn Dialect {
    let [first, ..] = ALL;
    first
}

#[cfg(test)]
mod tests;
