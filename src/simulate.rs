//! `abridge simulate`: runs whole sessions through policies, and counts tokens, cost and cache hits.
//!
//! A transcript is played as an agent's loop sent it: one request before each message of the model, each with all
//! messages up to there, and one at the end. Each request goes through the policy as in the proxy, and is then compared
//! with the request before it.
//!
//! # How the cached prefix is computed
//! A prompt begins with the tool definitions; the messages follow. Tokens are counted for each of them as a whole. The
//! prefix that a request shares with the one before it is: the definitions, if their bytes are equal; then each
//! message, as long as the bytes are equal; then, of the first message that differs, the share of its tokens that the
//! equal bytes at its beginning are of all its bytes. The sum is rounded down to whole blocks of 128 tokens, as caches
//! work in blocks. How long a provider keeps a prompt, and the minimum length for that, are not modelled: the result is
//! the best case, and the same for every policy.
//!
//! # How the cost is computed
//! The unit is the price of an uncached input token. Tokens read from the cache cost `cache_read`; those that fill
//! whole blocks after them cost `cache_write`, as they are written for the next request; the rest of the last block
//! costs 1. What sessions with recorded usage cost in dollars is in `bill`.
//!
//! # Segments
//! Where an agent has put a summary in place of all before it, the model has not seen both sides. Such a transcript is
//! played in segments, each with an empty cache at its beginning. What was missed, and what recalls cost, is in [`regret`].
//!
//! # Summaries
//! Without an upstream that makes them, a text of fixed size replaces each summary, and everything around it is computed from
//! the conversation. The input of the summary calls is part of the cost: `cache_read` for what they share with the request
//! before, 1 for the rest. Their output is not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use smart_default::SmartDefault;

use crate::plan::SummaryJob;
use crate::planner::Planner;
use crate::summary::Summary;
use crate::tokens::prices::Nanodollars;
use crate::upstream::routes::Routes;

use self::bill::Counted;
pub use self::bill::{KeptCaches, Paid};
pub use self::figures::{Figures, Price, Prices};
pub use self::judge::{Judged, Sightings};
pub use self::page::Page;
use self::regret::Placebo;
pub use self::regret::Regret;
use self::sent_request::SentRequest;
pub use self::sessions::Agent;
pub use self::transcript::{Transcript, TranscriptError};
pub use self::verdict::Verdict;

mod bill;
mod discover;
mod figures;
pub mod judge;
mod page;
mod play;
pub mod regret;
mod run;
pub mod sent_request;
pub mod sessions;
mod table;
mod transcript;
mod verdict;

/// A policy to compare.
#[derive(derive_more::Debug)]
pub struct PolicyUnderTest {
    /// The name in the tables.
    pub name: String,
    /// The planners with this policy, by the upstream of a transcript.
    pub planners: Routes<Planner>,
    /// The proxy that makes the edits in place of the planners, which count what it sends.
    #[debug(skip)]
    pub judged: Option<Box<Judged>>,
    /// The pause before each call of `[keep_alive]`, if it is on.
    pub keep_alive: Option<Duration>,
}

/// The transcripts to play.
#[derive(Clone, Debug, Default)]
pub struct TranscriptSelection {
    /// Files with a `messages` or an `input` array, recordings, session files of agents, and folders of them at any depth.
    pub paths: Vec<PathBuf>,
    /// The maximum number of transcripts; the longest are taken.
    pub limit: Option<usize>,
    /// The model for transcripts that name none.
    pub model: Option<String>,
    /// Whether all of the prompt cache expires after five minutes, also where an hour was asked for.
    pub five_minute_caches: bool,
}

/// Has a model make a summary; `None` if that failed.
pub type Summarize = dyn Fn(SummaryJob) -> Option<Arc<Summary>> + Sync;

/// What all policies are compared under.
#[derive(Clone, Copy, SmartDefault, derive_more::Debug)]
pub struct Conditions<'a> {
    /// The prices of cached tokens.
    pub prices: Prices,
    /// The tokens of the text that replaces each summary.
    #[default(1500)]
    pub summary_tokens: usize,
    /// The model that makes the summaries, if one is asked.
    #[debug(skip)]
    pub model: Option<&'a Summarize>,
    /// Whether faults are also counted with the results of another session, which measures their noise.
    pub placebo: bool,
    /// Is told how many requests of transcripts have been played, and how many there are.
    #[debug(skip)]
    pub progress: Option<&'a (dyn Fn(usize, usize) + Sync)>,
}

/// The measure of a session.
#[derive(Clone, Copy)]
struct Measure<'a> {
    planner: &'a Planner,
    conditions: &'a Conditions<'a>,
    placebo: Option<&'a Placebo>,
    /// The proxy that edits in place of the planner.
    judged: Option<&'a Judged>,
    keep_alive: Option<Duration>,
    /// Of a session, the request with all its messages, without edits: each other one has its wire format, and is a beginning
    /// of it until something is edited.
    whole: Option<&'a SentRequest>,
    /// The requests without edits.
    counted: &'a [Counted],
}

/// The result of a simulation.
#[derive(Debug, Serialize)]
pub struct Simulation {
    /// The cost, and the savings under the first policy with edits; `None` if no usage was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// The prices of cached tokens.
    pub prices: Prices,
    /// The length of the text that replaces a summary, in tokens; `None` if a model made the summaries.
    pub stand_in: Option<usize>,
    /// The transcripts, the longest first.
    pub transcripts: Vec<TranscriptResult>,
    /// The totals, one per policy.
    pub totals: Vec<PolicyResult>,
    /// The files that are not transcripts.
    pub unreadable: Vec<UnreadableFile>,
}

/// One transcript under every policy.
#[derive(Debug, Serialize)]
pub struct TranscriptResult {
    /// The path of the transcript.
    pub name: String,
    /// The agent that has written the file; `None` if it is not the session of one.
    pub agent: Option<Agent>,
    /// The model that the first requests name.
    pub model: Option<String>,
    /// The number of messages.
    pub messages: usize,
    /// The number of parts that the agent's own summaries, steps back and sub-agents make of it.
    pub segments: usize,
    /// Its cost.
    pub paid: Paid,
    /// The days with requests, counted from 1970-01-01 in UTC.
    pub days: BTreeSet<i64>,
    /// The number of lines that were not understood.
    pub lines_skipped: usize,
    /// The results, one per policy, in the order given.
    pub runs: Vec<PolicyResult>,
}

/// One transcript under one policy, or the sum of all of them, without the list of faults.
#[derive(Debug, Serialize)]
pub struct PolicyResult {
    /// The name of the policy.
    pub policy: String,
    /// The context window of the model in tokens, if known; none in a sum.
    pub window: Option<usize>,
    /// What became of its requests.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What becomes of some requests under a policy.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// The counts, without recalls.
    pub figures: Figures,
    /// The missed texts, and the cost of recalls.
    pub regret: Regret,
    /// The cost of the requests, recalls and summaries included, in billionths of a dollar; 0 if no usage was recorded.
    pub dollars: Nanodollars,
    /// The calls of `[keep_alive]` in it.
    pub keep_alive: KeptCaches,
    /// The view of an upstream after the proxy, if the policy is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sightings: Option<Sightings>,
    /// The tokens of each request.
    #[serde(skip)]
    pub tokens: Vec<usize>,
}

/// A file that could not be played.
#[derive(Debug, Serialize)]
pub struct UnreadableFile {
    /// The path of the file.
    pub name: String,
    /// The reason, with its causes.
    pub why: String,
}

// === impl Outcome ===

impl Outcome {
    /// The sum of two, without the list of faults of the other one.
    fn plus(mut self, other: &Self) -> Self {
        self.figures = self.figures.plus(&other.figures);
        self.regret.add_counts(&other.regret);
        self.dollars = self.dollars + other.dollars;
        self.keep_alive = self.keep_alive + other.keep_alive;
        self.sightings = self.sightings.into_iter().chain(other.sightings.clone()).reduce(Sightings::plus);
        self.tokens.extend(&other.tokens);
        self
    }
}

// === impl UnreadableFile ===

impl UnreadableFile {
    fn new(path: &Path, error: TranscriptError) -> Self {
        Self { name: path.display().to_string(), why: format!("{:#}", anyhow::Error::from(error)) }
    }
}

#[cfg(test)]
mod tests;
