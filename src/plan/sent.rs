//! Facts about the requests that were sent earlier, and those to remember of a new one.

use serde::{Deserialize, Serialize};

use crate::payload::ChainKey;

/// The facts about one conversation.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct SentFacts {
    /// The facts, each with the number of elements of its request.
    pub facts: Vec<(usize, SentFact)>,
    /// Whether this decides, and not the present settings alone.
    pub is_known: bool,
    /// Whether all reasoning so far leaves, as it is not known to fit.
    pub strips_now: bool,
}

impl SentFacts {
    /// Whether a plan is the same without them.
    pub fn is_empty(&self) -> bool {
        !self.is_known
    }
}

/// A pass in a request.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SentFact {
    /// Calls were left out.
    Filtered,
    /// Old results were cleared.
    Cleared,
    /// All results that the model had read were cleared.
    ClearedAll,
    /// All reasoning so far was left out.
    Stripped,
}

/// Names that say what was sent, of a conversation with this root.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SentNames {
    /// The name after the conversation's second message.
    pub root: Option<ChainKey>,
    /// The names to remember.
    pub names: Vec<ChainKey>,
}
