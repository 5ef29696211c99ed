//! Handlers: programs of users that write the replacement of a text; their settings, what they are asked,
//! and what they have answered.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::BuildHasher;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::payload::{ChainKey, Keys, OffloadedPayload, Payload, PayloadKey, handles_in};
use crate::units::Period;

/// `[handlers]` of `proxy.toml`.
pub type Settings = BTreeMap<String, Handler>;

/// One table of `[handlers]`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Handler {
    /// Where abridge posts what it asks: an `http://` or `https://` URL, or `unix:` and the path of a socket, to which it
    /// posts at `/`.
    ///
    /// Example: `"http://127.0.0.1:9000/"`
    pub url: String,
    /// How long a request waits for all that it asks of handlers. Allowed: 1ms to 365d.
    ///
    /// Not set: 10 s.
    ///
    /// Example: `"10s"`
    #[serde(default = "default_timeout")]
    pub timeout: Period,
    /// The name of the environment variable with the key that is sent as `authorization: Bearer KEY`.
    ///
    /// Not set: no key is sent.
    ///
    /// Example: `"HANDLER_KEY"`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
}

fn default_timeout() -> Period {
    Period::secs(10)
}

/// The longest text that a handler is sent, in bytes. Of a longer one it is sent the two ends.
pub const MAX_TEXT: usize = 256 << 10;

/// The length of each end, and the most bytes of the arguments of a call, in bytes.
pub const MAX_END: usize = 64 << 10;

/// The longest answer of a handler, in bytes of text.
pub const MAX_ANSWER: usize = 64 << 10;

/// The answer of a handler, once for a content. It is kept as a summary is, so it never changes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, strum::IntoStaticStr)]
#[serde(tag = "action", rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Answer {
    /// This text replaces it.
    Replace {
        /// The text.
        text: String,
    },
    /// The text stays as it is.
    Leave,
    /// The edit does what it does without a handler.
    Default,
    /// The handler has failed: the edit acts as without one.
    Failed,
}

/// The answers that are known.
pub trait AnswerIndex: Debug + Sync {
    /// The answer with this key, if it is known. It reads no file and waits for nothing.
    fn answer(&self, key: ChainKey) -> Option<Arc<Answer>>;

    /// Whether answers that are not known can be got.
    fn can_ask(&self) -> bool {
        false
    }
}

/// No answers, where no handler is asked.
#[derive(Clone, Copy, Debug)]
pub struct NoAnswers;

/// A question to a handler, with all that it takes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct HandlerAsk {
    /// The name of the answer.
    #[serde(rename = "id")]
    pub key: ChainKey,
    /// The handler.
    #[serde(skip)]
    pub handler: Arc<str>,
    /// The edit that asks.
    pub edit: &'static str,
    /// The name of the conversation, where it has one.
    pub conversation: Option<ChainKey>,
    /// The tool.
    pub tool: String,
    /// The arguments of the call, as the model has written them, at most [`MAX_END`] bytes of them.
    pub arguments: String,
    /// The text, or the two ends of a long one.
    #[serde(skip)]
    pub text: String,
    /// The part of a long text that is left out.
    #[serde(skip)]
    pub left_out: Option<LeftOut>,
    /// How many bytes the answer may have.
    #[serde(rename = "max_bytes")]
    pub most_bytes: usize,
}

/// The middle of a long text, which a handler can recall.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LeftOut {
    /// Where the two ends meet.
    pub at: usize,
    /// The whole text, which is stored before the handler is asked.
    pub whole: OffloadedPayload,
}

/// An answer that a plan has used, and the question that it was given to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UsedAnswer {
    /// The parts of the name of the answer but the last.
    pub parts: Vec<String>,
    /// The last one: the name of the text.
    pub subject: Subject,
    /// The answer.
    pub answer: Arc<Answer>,
}

/// The name of the text of a question.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Subject {
    /// The name of what is stored of it.
    Payload(Payload),
    /// Something else.
    Name(String),
}

/// Why a text cannot stand where a handler wants it to.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnswerFault {
    /// It says nothing.
    #[error("the text has nothing but blanks")]
    Blank,
    /// It is longer than what it may replace leaves room for.
    #[error("the text has {bytes} bytes; allowed: {most}")]
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// The bytes that it may have.
        most: usize,
    },
    /// It names what abridge has not stored for this text.
    #[error("the text has a handle of abridge that the text it was made of has not")]
    Handle,
    /// It speaks in abridge's name.
    #[error("the text has a notice of abridge that the text it was made of has not")]
    Notice,
}

// === impl HandlerAsk ===

impl HandlerAsk {
    /// Whether a text may stand where a handler wants it to. `is_notice` says whether a line may be one of abridge's own.
    pub fn check(&self, answer: &str, is_notice: impl Fn(&str) -> bool) -> Result<(), AnswerFault> {
        let foreign = |handle: PayloadKey| !self.text.contains(&handle.to_string());
        match answer {
            _ if answer.trim().is_empty() => Err(AnswerFault::Blank),
            _ if answer.len() > self.most_bytes => {
                Err(AnswerFault::TooLong { bytes: answer.len(), most: self.most_bytes })
            }
            _ if handles_in(answer).any(foreign) => Err(AnswerFault::Handle),
            _ if answer.lines().any(|line| is_notice(line) && !self.text.contains(line)) => Err(AnswerFault::Notice),
            _ => Ok(()),
        }
    }
}

// === impl Answer ===

impl Answer {
    /// The answer for an edit that has room for `most_bytes` now; it may have had more room when the answer was made.
    #[must_use]
    pub fn within(&self, most_bytes: usize) -> Self {
        match self {
            Self::Replace { text } if text.len() > most_bytes => Self::Default,
            answer => answer.clone(),
        }
    }
}

// === impl UsedAnswer ===

impl UsedAnswer {
    /// The name that the answer has where payloads have the names that `name` returns.
    pub fn key(&self, keys: &Keys, name: impl FnOnce(&Payload) -> PayloadKey) -> ChainKey {
        let subject = match &self.subject {
            Subject::Payload(of) => name(of).as_bytes().to_vec(),
            Subject::Name(name) => name.clone().into_bytes(),
        };
        let parts: Vec<_> = self.parts.iter().map(String::as_bytes).chain([&*subject]).collect();
        keys.answer(keys.anonymous(), &parts)
    }
}

// === impl AnswerIndex ===

/// An index in memory, for recordings and tests.
impl<S: BuildHasher + Sync> AnswerIndex for HashMap<ChainKey, Arc<Answer>, S> {
    fn answer(&self, key: ChainKey) -> Option<Arc<Answer>> {
        self.get(&key).cloned()
    }
}

impl AnswerIndex for NoAnswers {
    fn answer(&self, _: ChainKey) -> Option<Arc<Answer>> {
        None
    }
}
