//! Why a request was not understood.

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
    /// A call id is neither a string, a number nor null.
    #[error("a call id that is neither a string nor a number")]
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
}
