//! The values that dialects take and give, and why a request was not understood.

use std::collections::HashSet;

use bytes::Bytes;

use crate::span::Span;

/// The names of events at the beginning of a streamed answer. With any other event, an answer has begun.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OpeningEvents {
    /// Events that do not tell yet whether there is an answer.
    pub silent: &'static [&'static str],
    /// Events by which the request has failed.
    pub failed: &'static [&'static str],
}

/// Calls of one turn that no result answers.
#[derive(Debug, Default)]
pub struct OpenCalls<'a> {
    /// Their ids.
    pub ids: HashSet<&'a str>,
    /// The tools that they call.
    pub tools: HashSet<&'a str>,
}

/// abridge's own error, as clients are told of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ErrorFields<'a> {
    /// The fault, and its remedy.
    pub message: &'a str,
    /// Whether the client can mend it: its status is 4xx.
    pub is_client_error: bool,
    /// A short fixed name, for programs.
    pub code: &'a str,
}

/// A conversation that was compacted.
#[derive(Clone, Copy, Debug)]
pub struct Compaction<'a> {
    /// The request, with what it has become in place of its conversation.
    pub body: &'a [u8],
    /// A name for the answer.
    pub id: &'a str,
    /// When it was made, in seconds since 1970.
    pub made_at: u64,
    /// The tokens that the conversation had, and those that it has.
    pub tokens: (usize, usize),
    /// What asked for it, if that was an item of a turn.
    pub trigger: Option<&'a CompactionTrigger>,
}

/// A turn that asks for a compaction, and for nothing else.
#[derive(Clone, Debug)]
pub struct CompactionTrigger {
    /// The body without what asks for it.
    pub conversation: Bytes,
    /// Whether the answer is to be a stream.
    pub streams: bool,
}

/// A field of a message, as [`Dialect::fields`](super::Dialect::fields) gives it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Field<'a> {
    /// Its name; empty for a message that is not read field by field.
    pub name: &'a str,
    /// Its value, in pieces.
    pub value: Vec<&'a [u8]>,
}

/// The arguments of a call, and what means none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CallInput {
    /// Their JSON value.
    pub span: Span,
    /// The JSON value of a call without arguments, in the same form.
    pub emptied: &'static str,
}

impl CallInput {
    /// The arguments that mean none, as text.
    pub fn emptied_text(&self) -> &'static str {
        self.emptied.trim_matches('"')
    }
}

/// Bytes that are inserted into a JSON value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BytesAt {
    /// Their place in the value.
    pub at: usize,
    /// The bytes.
    pub bytes: Bytes,
}

/// A field that changes what a server does with a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Switch {
    /// The bytes that are put into the request.
    pub insertion: BytesAt,
    /// The name of the feature, which the request's header has to name.
    pub beta: &'static str,
}

/// A call of a function and its answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Exchange<'a> {
    /// The id of the call.
    pub id: &'a str,
    /// The function.
    pub name: &'a str,
    /// The arguments: a JSON object.
    pub arguments: &'a str,
    /// The answer of the function.
    pub result: &'a str,
}

/// The array inside an element.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entries {
    /// Its entries, in order.
    pub spans: Vec<Span>,
    /// Those that are reasoning of the model.
    pub reasoning: Vec<Span>,
    /// The key that held them, which is cut out of the element when none of them is left. Without one, the element leaves.
    pub key: Option<Span>,
}

/// Why a request was not understood. It is forwarded as it came.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{dialect} request not understood at byte {offset}: {kind}")]
pub struct ParseError {
    /// The dialect that read it.
    pub dialect: &'static str,
    /// Near which byte of the body.
    pub offset: usize,
    /// The reason.
    pub kind: ParseErrorKind,
}

impl ParseError {
    /// The error of a dialect for a fault at a place.
    pub(super) fn new(dialect: &'static str, (offset, kind): (usize, ParseErrorKind)) -> Self {
        Self { dialect, offset, kind }
    }
}

/// Why a request cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseErrorKind {
    /// Not JSON, not UTF-8, or something after the end.
    #[error("not valid JSON")]
    NotJson,
    /// A key that matters stands twice in one object: which one counts, differs from server to server.
    #[error("a key occurs twice")]
    DuplicateKey,
    /// The body, a message or a call is not an object.
    #[error("not an object")]
    NotAnObject,
    /// No message array.
    #[error("no messages")]
    NoMessages,
    /// The messages, or the calls of a message, are not an array.
    #[error("not an array")]
    NotAnArray,
    /// A call id is neither a string, a number nor null.
    #[error("a call id that is neither a string nor a number")]
    IdNotAString,
    /// More than [`crate::conversation::MAX_ELEMENTS`].
    #[error("too many messages or calls")]
    TooMany,
}
