//! The facts that a plan was made from besides the settings, and the counts.

use serde::{Deserialize, Serialize};

use crate::handler::UsedAnswer;
use crate::payload::{ChainKey, Fingerprint, Place};
use crate::summary::UsedSummary;
use crate::tokens::factor::Factor;

/// The facts that a plan depends on and that can change while the settings stay the same.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Basis {
    /// The context window of the model, if an edit has asked for it and it was known.
    pub window: Option<usize>,
    /// The name under which processes that share a store look up the summaries of the conversation; none where no other
    /// process makes any, or none can be long enough.
    pub root: Option<ChainKey>,
    /// The name of the conversation, by the first messages of the user, if the request shows them.
    pub conversation: Option<ChainKey>,
    /// The summary that replaces messages.
    pub summary: Option<UsedSummary>,
    /// The answers of handlers that were used.
    pub answers: Vec<UsedAnswer>,
    /// What tokens were counted with, if any were.
    pub counted: Option<CountedWith>,
    /// The client's messages, if their tokens were counted.
    pub received: Option<Box<Received>>,
    /// The passes that were made because the prompt cache had expired: in requests of so many elements.
    pub cold_passes: Vec<usize>,
    /// Where such a pass could be made now, if none was.
    pub cold_pass_place: Option<Place>,
    /// The facts about earlier requests.
    pub sent: SentFacts,
    /// The name under which processes that share a store look up these facts, if they have to.
    pub sent_root: Option<ChainKey>,
    /// Facts to remember before the request is sent.
    pub sent_passes: SentNames,
    /// Facts to remember when it is answered.
    pub sent_form: SentNames,
    /// Whether the plan depends on these facts.
    pub asks_what_was_sent: bool,
    /// Whether reasoning stays after messages in a form that no known request had.
    pub is_unknown_form: bool,
}

/// The client's messages, to compare requests by. The fingerprints hold in this process only.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Received {
    /// The tools, and each message.
    pub messages: Vec<Fingerprint>,
    /// The first two messages after the instructions.
    pub root: Fingerprint,
    /// The tokens, as counted, from the last answer of the model on, which no earlier request had; all without an answer.
    pub new_tokens: usize,
}

/// The factor that the tokens of a request were counted with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CountedWith {
    /// The factor.
    pub factor: Factor,
    /// Whether the request has all that the model reads.
    pub is_whole: bool,
    /// The name of the conversation, if it is not known yet which factor it begins with.
    pub unfrozen: Option<ChainKey>,
}

/// A segment of the prompt: the tools, or one message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PromptSegment {
    /// Its fingerprint, which holds in this process only.
    pub fingerprint: Fingerprint,
    /// Its tokens.
    pub tokens: usize,
}

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
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, strum::IntoStaticStr, strum::VariantArray)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "lowercase")]
pub enum SentFact {
    /// Calls were left out.
    Filtered,
    /// Old results were cleared.
    Cleared,
    /// All results that the model had read were cleared.
    #[strum(serialize = "cleared all")]
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
