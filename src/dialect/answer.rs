//! The answer of an upstream, put together from its events by the dialect that it is written in.

use memchr::memmem;
use serde::Serialize;

pub use crate::tokens::Usage;

/// An answer, as far as it has been read.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// The text of the first choice, gathered only where it is wanted: see [`Answer::with_text`].
    pub text: Option<String>,
    /// Whether the model calls a tool. Read only where the text is.
    pub calls_tool: bool,
    /// Why the model stopped, in the words of the dialect. Later reports replace earlier ones.
    pub stop_reason: Option<String>,
    /// The tokens that were billed.
    pub usage: Option<Usage>,
    /// Whether these are of several rounds, which abridge has joined.
    pub is_joined: bool,
    /// The tokens of the request that the upstream's prompt cache neither served nor took, where they are told by themselves.
    pub plain_input: u64,
    /// Whether the upstream reports an error in place of an answer.
    pub is_error: bool,
    /// Whether the upstream has said that nothing follows.
    pub is_complete: bool,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerEnd {
    /// Completely.
    Complete,
    /// The upstream broke off or paused too long.
    Cut,
    /// The client disconnected.
    ClientGone,
    /// The upstream gave no answer.
    Unanswered,
}

/// Why a model stopped, as far as that decides whether its answer can be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stop {
    /// It was done, or the reason is none of the following.
    Done,
    /// It calls a tool.
    ToolCall,
    /// The limit on the length of the answer was reached.
    Length,
    /// The provider's content filter stopped it.
    ContentFilter,
    /// The provider failed.
    Error,
}

/// The JSON is not a part of an answer in this dialect.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not an answer in this dialect")]
pub struct InvalidAnswer;

impl Answer {
    /// An empty answer that gathers the model's text.
    pub fn with_text() -> Self {
        Self { text: Some(String::new()), ..Self::default() }
    }
}

/// Whether the key occurs with a value that begins with this byte.
pub fn has_value(json: &[u8], key: &[u8], first: u8) -> bool {
    memmem::find_iter(json, key).any(|at| {
        let behind = json.get(at + key.len()..).unwrap_or_default().trim_ascii_start();
        let value = behind.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
        value.first() == Some(&first)
    })
}
