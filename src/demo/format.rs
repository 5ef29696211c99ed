//! The wire formats of the demo: how its agent and its model write and read the session.
//!
//! They are independent of abridge's own readers and writers; the dialects give paths, header fields and token counts.

use std::fmt::Debug;

use serde_json::Error;

use super::script::Tool;
use crate::dialect::{self, Dialect};
use crate::upstream::routes::DialectName;

mod chat_completions;
mod messages;
mod responses;

/// A wire format.
pub(super) trait Format: Debug + Send + Sync {
    /// The path of requests.
    fn path(&self) -> &'static str;

    /// The dialect of abridge for requests at this path.
    fn dialect(&self) -> &'static dyn Dialect {
        dialect::for_path(self.path()).unwrap_or_else(dialect::default)
    }

    /// The body of the request that asks for the answer to `session`.
    fn request(&self, session: &[Entry]) -> String;

    /// The entries of a request's array.
    fn read_request(&self, body: &[u8]) -> Result<Vec<Entry>, Error>;

    /// The body of an answer.
    fn answer(&self, answer: &Answer) -> String;

    /// Reads the body of an answer.
    fn read_answer(&self, body: &[u8]) -> Result<Answer, Error>;

    /// The body of an answer with status 400.
    fn refusal(&self, refusal: &Refusal) -> String;

    /// The commands that run an agent with abridge, and abridge by itself in front of the real upstream of this format.
    fn commands(&self) -> [&'static str; 3] {
        [
            "abridge run -- codex                                # for one command; or",
            "abridge --upstream https://api.openai.com/v1        # for all of them, and",
            "export OPENAI_BASE_URL=http://127.0.0.1:8787/v1     # in the agent's shell",
        ]
    }
}

/// A part of the session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Entry {
    /// The user's text, or that of the instructions where they are in the array.
    User(String),
    /// A text of the model.
    Said(String),
    /// A tool call of the model.
    Call(Call),
    /// The result of a call.
    Result {
        /// The id of the call.
        call_id: String,
        /// The whole text.
        text: String,
    },
}

/// A tool call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Call {
    /// Its id.
    pub(super) id: String,
    /// The name of the tool.
    pub(super) name: String,
    /// The arguments, a JSON object.
    pub(super) arguments: String,
}

/// An answer of the model.
#[derive(Debug)]
pub(super) struct Answer {
    /// What the model said, and its call.
    pub(super) entries: Vec<Entry>,
    /// The tokens of the request, and those of the answer.
    pub(super) tokens: (usize, usize),
}

/// Why the model refuses a request.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    /// It has this many tokens, more than `window`.
    Overflow {
        /// The tokens of the request.
        tokens: usize,
        /// The tokens that the model takes.
        window: usize,
    },
    /// These calls have no results directly behind them.
    Dangling(Vec<String>),
    /// The result of this call stands behind no such call.
    Orphan(String),
    /// Something else, in these words.
    Other(String),
}

/// The format of a dialect.
pub(super) fn of(dialect: DialectName) -> &'static dyn Format {
    match dialect {
        DialectName::ChatCompletions => &chat_completions::ChatCompletions,
        DialectName::Responses => &responses::Responses,
        DialectName::Messages => &messages::Messages,
    }
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    // Serialising strings never fails.
    serde_json::to_string(text).unwrap_or_default()
}

/// JSON values with commas between them.
fn joined(values: impl Iterator<Item = String>) -> String {
    values.collect::<Vec<_>>().join(",")
}

/// The tools, each as `write` writes it.
fn tools(write: impl Fn(&Tool) -> String) -> String {
    joined(super::script::TOOLS.iter().map(write))
}

/// The body of an OpenAI error.
fn openai_error(param: &str, code: Option<&str>, message: &str) -> String {
    let (message, code) = (quoted(message), code.map_or_else(|| "null".to_owned(), quoted));
    format!(r#"{{"error":{{"message":{message},"type":"invalid_request_error","param":"{param}","code":{code}}}}}"#)
}
