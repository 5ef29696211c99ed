//! Why a request was not understood.

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
