//! Wire formats: how the bytes of a request are read and how new bytes are written. Only dialects know field names.

use std::{borrow::Cow, fmt::Debug, ops::Range};

use bytes::Bytes;

use crate::{
    conversation::{CallId, Conversation},
    payload::Fingerprint,
    span::Span,
    summary::{Prompt, Source},
    tokens::{Gauge, Subject},
};

pub use self::answer::{Answer, NotAnAnswer, Stop, Usage};

mod answer;
mod chat_completions;
mod json;

/// One wire format.
pub trait Dialect: Debug + Send + Sync {
    /// Its name, for reports.
    fn name(&self) -> &'static str;

    /// A number that no other dialect has. It keeps remembered token counts of dialects apart.
    fn tag(&self) -> u8;

    /// The path that requests are posted to below a base URL, with its version: `/v1/chat/completions`.
    fn path(&self) -> &'static str;

    /// What stands before this dialect's part of `path`; none if the path is not of this dialect. Any prefix is fine:
    /// versions, deployments.
    fn base_path<'p>(&self, path: &'p str) -> Option<&'p str>;

    /// The conversation in a request body. Its structure is checked to the last byte; what stands inside strings that
    /// no edit asks for is not, see [`Dialect::verify`].
    fn parse<'a>(&self, body: &'a [u8]) -> Result<Conversation<'a>, ParseError>;

    /// Checks what [`Dialect::parse`] left out, so that a body that it accepted is known to be valid JSON throughout.
    /// Asked for only where a body is about to be changed: an untouched one goes on as it came, whatever it holds.
    /// Also takes a stretch of a body that begins and ends between values.
    fn verify(&self, body: &[u8]) -> Result<(), ParseError>;

    /// The places of the texts in a content: JSON strings, each of which may be replaced by another one. Parts that are
    /// no text have none.
    fn texts(&self, body: &[u8], content: Span) -> Vec<Span>;

    /// The text of a JSON string, with U+FFFD for each half of a surrogate pair.
    fn text<'a>(&self, body: &'a [u8], string: Span) -> Option<Cow<'a, str>>;

    /// What a value says: the text of a string, the JSON of anything else. Arguments of calls are either.
    fn says<'a>(&self, body: &'a [u8], value: Span) -> Option<Cow<'a, str>> {
        self.text(body, value).or_else(|| str::from_utf8(value.of(body)).ok().map(Cow::Borrowed))
    }

    /// What is stored of a value that says `text`: the text of a string, unless half a surrogate pair is missing in it; else
    /// the value as it is written.
    fn stored<'a>(&self, body: &'a [u8], value: Span, text: &'a str) -> &'a [u8];

    /// A text as a JSON string.
    fn render_text(&self, text: &str) -> Bytes;

    /// A JSON string with `words` in place of these bytes of its text. The rest stays as it is written.
    fn render_cut(&self, body: &[u8], string: Span, cut: Range<usize>, words: &str) -> Bytes;

    /// The arguments of a call.
    fn input(&self, body: &[u8], call: Span) -> Option<Input>;

    /// What is to be cut out of a message so that it has no key with calls any more; the rest is a valid message.
    fn calls_key(&self, body: &[u8], message: Span) -> Option<Span>;

    /// The names of the tools that a request offers.
    fn tool_names<'a>(&self, body: &'a [u8], tools: Span) -> Vec<Cow<'a, str>>;

    /// What the model reads of a message, by field, in an order of its own. A message that comes again in another spelling has
    /// the same fields: marks for prompt caches, what the model thought, and whether a text stands alone or in an array make
    /// no difference. Escapes in strings do, and so does white space inside values that are not looked into.
    fn fields<'a>(&self, message: &'a [u8]) -> Vec<Field<'a>>;

    /// The same as one sequence of bytes, in pieces.
    fn canonical<'a>(&self, message: &'a [u8]) -> Vec<&'a [u8]> {
        let mut pieces: Vec<&[u8]> = Vec::new();
        for Field { name, mut value } in self.fields(message) {
            pieces.extend([b"\"", name.as_bytes(), b"\":"]);
            pieces.append(&mut value);
            pieces.push(b",");
        }
        pieces
    }

    /// A message in which the user says `text`.
    fn render_user_message(&self, text: &str) -> Bytes;

    /// A message that says `text` in answer to the call `id`, the id being written as `body` writes it.
    fn render_tool_result(&self, body: &[u8], id: &CallId<'_>, text: &str) -> Bytes;

    /// The tokens of one element of the conversation, by the rules of this dialect. Not remembered, not bounded: see
    /// [`element_tokens`](trait.Dialect.html#method.element_tokens).
    fn count_element(&self, gauge: &Gauge, raw: &[u8]) -> usize;

    /// What one call adds to the tokens of the element that it is in. Not remembered, not bounded.
    fn count_call(&self, gauge: &Gauge, raw: &[u8]) -> usize;

    /// The same as [`Dialect::count_element`] for the tools of a request.
    fn count_tools(&self, gauge: &Gauge, raw: &[u8]) -> usize;

    /// The same for the format that a request asks the answer to have.
    fn count_format(&self, gauge: &Gauge, raw: &[u8]) -> usize;

    /// The request that asks a model for a summary of `source`. None if it cannot be made of what the client sent.
    fn summary_request(&self, source: &Source, prompt: &Prompt<'_>) -> Option<Bytes>;

    /// Whether the data of an event may report usage or why the model stopped. Other events are not parsed by those who
    /// only want to know that.
    fn reports(&self, data: &[u8]) -> bool;

    /// Adds the data of one event, or an answer that is not streamed, to what is known of an answer.
    fn read_answer(&self, data: &[u8], answer: &mut Answer) -> Result<(), NotAnAnswer>;

    /// What a reason to stop means.
    fn stop(&self, reason: &str) -> Stop;

    /// The body of an answer that reports an error of abridge's own.
    fn error_body(&self, error: &ErrorFields<'_>) -> Bytes;
}

/// An error of abridge's own, as clients are told of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ErrorFields<'a> {
    /// What is wrong, and what to do.
    pub message: &'a str,
    /// Whether the client can mend it: its status is 4xx.
    pub is_client_error: bool,
    /// A short fixed name, for programs.
    pub code: &'a str,
}

impl dyn Dialect + '_ {
    /// The tokens of one element of the conversation, remembered. Never more than it has bytes.
    pub fn element_tokens(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        self.known_element_tokens(gauge, Fingerprint::of(raw), || raw)
    }

    /// The same of an element that is known by `print`. Its bytes are asked for only if it was not counted before.
    pub fn known_element_tokens<B: AsRef<[u8]>>(
        &self,
        gauge: &Gauge,
        print: Fingerprint,
        raw: impl FnOnce() -> B,
    ) -> usize {
        gauge.remembered(Subject::Element(self.tag()), print, || {
            let raw = raw();
            let raw = raw.as_ref();
            self.count_element(gauge, raw).min(raw.len())
        })
    }

    /// The tokens of the tools that a request offers, remembered. Never more than they have bytes.
    pub fn tools_tokens(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        let count = || self.count_tools(gauge, raw).min(raw.len());
        gauge.remembered(Subject::Tools(self.tag()), Fingerprint::of(raw), count)
    }

    /// The tokens of the format that a request asks the answer to have, remembered. Never more than it has bytes.
    pub fn format_tokens(&self, gauge: &Gauge, raw: &[u8]) -> usize {
        let count = || self.count_format(gauge, raw).min(raw.len());
        gauge.remembered(Subject::Format(self.tag()), Fingerprint::of(raw), count)
    }
}

/// A field of a message, as [`Dialect::fields`] gives it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Field<'a> {
    /// Its name; empty for a message that is not read field by field.
    pub name: &'a str,
    /// Its value, in pieces.
    pub value: Vec<&'a [u8]>,
}

/// The arguments of a call, and what stands for none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Input {
    /// Their JSON value.
    pub span: Span,
    /// The JSON value of a call without arguments, in the same form.
    pub emptied: &'static str,
}

/// Why a request was not understood. It is forwarded as it came.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{dialect} request not understood at byte {offset}: {kind}")]
pub struct ParseError {
    /// The dialect that read it.
    pub dialect: &'static str,
    /// Near which byte of the body.
    pub offset: usize,
    /// What is wrong.
    pub kind: ParseErrorKind,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseErrorKind {
    /// Not JSON, not UTF-8, or something behind the end.
    #[error("not valid JSON")]
    NotJson,
    /// A key that matters stands twice in one object: which one counts, differs from server to server.
    #[error("a key occurs twice")]
    DuplicateKey,
    /// The body, a message or a call is not an object.
    #[error("not an object")]
    NotAnObject,
    /// There is no message array.
    #[error("no messages")]
    NoMessages,
    /// The messages, or the calls of a message, are no array.
    #[error("not an array")]
    NotAnArray,
    /// A call id is neither a string nor null.
    #[error("a call id that is no string")]
    IdNotAString,
    /// More than [`crate::conversation::MAX_ELEMENTS`].
    #[error("too many messages or calls")]
    TooMany,
}

impl ParseErrorKind {
    /// A short fixed name, for logs and counters.
    pub fn code(self) -> &'static str {
        match self {
            Self::NotJson => "not_json",
            Self::DuplicateKey => "duplicate_key",
            Self::NotAnObject => "not_an_object",
            Self::NoMessages => "no_messages",
            Self::NotAnArray => "not_an_array",
            Self::IdNotAString => "id_not_a_string",
            Self::TooMany => "too_many",
        }
    }
}

/// All dialects. The first one is spoken where nothing says which.
const ALL: [&dyn Dialect; 1] = [&chat_completions::ChatCompletions];

/// The dialect spoken at `path` (without the query), if it is one that edits know.
pub fn for_path(path: &str) -> Option<&'static dyn Dialect> {
    ALL.into_iter().find(|dialect| dialect.base_path(path).is_some())
}

/// The dialect of what comes without a path: files, errors of requests that no dialect knows.
pub fn default() -> &'static dyn Dialect {
    let [first, ..] = ALL;
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_name_of_its_own() {
        use ParseErrorKind::{DuplicateKey, IdNotAString, NoMessages, NotAnArray, NotAnObject, NotJson, TooMany};
        let kinds = [NotJson, DuplicateKey, NotAnObject, NoMessages, NotAnArray, IdNotAString, TooMany];
        let names = kinds.map(|kind| format!("{kind:?}").to_lowercase());
        assert_eq!(kinds.map(|kind| kind.code().replace('_', "")), names);
    }

    #[test]
    fn chat_completions_under_any_prefix() {
        for path in ["/v1/chat/completions", "/chat/completions", "/openai/deployments/x/chat/completions"] {
            assert_eq!(for_path(path).map(Dialect::name), Some("chat_completions"), "{path}");
        }
        for path in ["/v1/chat/completions/", "/v1/completions", "/v1/responses", "/v1/chat/completions/x", "", "/"] {
            assert!(for_path(path).is_none(), "{path}");
        }
    }
}
