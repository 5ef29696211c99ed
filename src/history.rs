//! The most recent requests, and totals since the start: names and numbers, and with `[inspect]` the first words of conversations.
//!
//! A request is added when its answer has ended, by a separate task. Requests that are not conversations are only
//! counted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use smart_default::SmartDefault;

use crate::dialect::{AnswerEnd, Usage};
use crate::held::Held;
use crate::inspect::{self, Changes};
use crate::payload::ChainKey;
use crate::plan::Regrets;
use crate::tokens::factor::Factor;
use crate::tokens::prices::Nanodollars;
use crate::units::grouped;

mod change_log;

use change_log::ChangeLog;
pub use change_log::Origin;

/// The most recent requests. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Held<State>>);

#[derive(Debug, SmartDefault)]
struct State {
    // Oldest first. Allocated for all from the start: growing would copy them, and unwritten pages take no memory.
    #[default(VecDeque::with_capacity(MAX_ENTRIES))]
    entries: VecDeque<Entry>,
    changes: ChangeLog,
    /// The first words of conversations, which are content.
    titles: HashMap<ChainKey, String>,
    latest: u64,
    totals: Totals,
}

/// One request and its answer.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// The sequence number, from 1. Set by [`History::push`].
    pub seq: u64,
    /// The id of the request, as in `x-abridge-request-id`.
    pub id: String,
    /// When the request came, in seconds since 1970.
    pub time: f64,
    /// The model of the request.
    pub model: Option<String>,
    /// The name of the conversation, by the first messages of the user.
    pub conversation: Option<ChainKey>,
    /// The first words of the user, where `[inspect]` allows content. Set when entries are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The program that has sent it.
    pub client: String,
    /// The path without the query.
    pub path: String,
    /// The name of the upstream that it went to; `default` for `[upstream]`.
    pub upstream: String,
    /// The outcome of the request.
    pub outcome: Outcome,
    /// How many changes each edit made.
    #[serde(serialize_with = "as_map")]
    pub edits: Vec<(&'static str, usize)>,
    /// The number of messages as received.
    pub messages: usize,
    /// The length of the decoded body as received, in bytes.
    pub bytes_before: usize,
    /// The length of the body as sent, or as it would be without the dry run, in bytes.
    pub bytes_after: usize,
    /// The tokens of messages and tools as received, where they were counted.
    pub tokens_before: Option<usize>,
    /// The tokens as sent, or as they would be without the dry run.
    pub tokens_after: Option<usize>,
    /// How many tokens are billed for each one that is counted, as taken for these counts.
    pub token_factor: Option<Factor>,
    /// The bytes that were taken out and are in the store, whether written now or for an earlier request.
    pub offloaded_bytes: u64,
    /// The latency that abridge added, in milliseconds: from the request's head until it was handed to the upstream's
    /// pool, without the time in which the body was read and the wait for a summary. It includes the wait for the
    /// store.
    pub added_ms: f64,
    /// How long the request waited for a summary, in milliseconds.
    pub summary_ms: Option<f64>,
    /// From when the request was handed to the upstream's pool to the head of the answer, in milliseconds.
    pub first_byte_ms: Option<f64>,
    /// From the request's head to the end of the answer, in milliseconds.
    pub total_ms: f64,
    /// The answer's status, if there was an answer.
    pub status: Option<u16>,
    /// How the answer ended.
    pub end: AnswerEnd,
    /// The billed tokens of the request.
    pub input_tokens: Option<u64>,
    /// Those of them that the upstream's prompt cache served.
    pub cached_tokens: Option<u64>,
    /// The billed tokens of the answer.
    pub output_tokens: Option<u64>,
    /// The share of the sent prompt, 0 to 1, that an earlier request began with: what a prompt cache can serve.
    pub prefix_kept: Option<f64>,
    /// Why the model stopped.
    pub stop_reason: Option<String>,
    /// The calls that ask for something cleared.
    #[serde(skip_serializing_if = "Regrets::is_none")]
    pub regrets: Regrets,
    /// The cost with the edits, in billionths of a dollar, if the model has a price and the answer reported its tokens. It was
    /// billed, except in a dry run.
    pub edited_cost: Option<Nanodollars>,
    /// The cost without the edits.
    pub unedited_cost: Option<Nanodollars>,
    /// The context window of the model, in tokens, if it is known.
    pub window: Option<usize>,
    /// The window of the model, in tokens, where the request had more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beyond_window: Option<usize>,
    /// Whether an edit was left out because it does not pay.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub does_not_pay: bool,
    /// Whether an edit was left out for another reason.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub held_back: bool,
    /// Whether the messages are stored for inspection.
    pub inspectable: bool,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// It was edited.
    Edited,
    /// It needed no edit.
    Unedited,
    /// It would have been edited without the dry run.
    WouldBeEdited,
    /// Its body could not be read, and was forwarded as it came.
    NotUnderstood,
    /// It was forwarded without being read.
    Passed,
}

/// Totals of all requests since the start.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Totals {
    /// The requests.
    pub requests: RequestCounts,
    /// The tokens of requests, where they were counted, without dry runs.
    pub tokens: TokenTotals,
    /// The bytes that were taken out of each request. What stays out of a conversation counts with each of its
    /// requests.
    pub offloaded_bytes: u64,
    /// The billed tokens.
    pub billed: Usage,
    /// Of the requests whose tokens are known: how many tokens a prompt cache can have served.
    pub predicted_cached: u64,
    /// The latency that abridge added to the most recent requests, in milliseconds.
    pub added_ms: AddedLatency,
}

/// The number of requests by what became of them.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct RequestCounts {
    /// All requests.
    pub total: u64,
    /// Edited requests.
    pub edited: u64,
    /// Requests that needed no edit.
    pub unedited: u64,
    /// Those of them in which an edit does not pay yet.
    pub does_not_pay: u64,
    /// Those of them in which an edit was left out for another reason.
    pub held_back: u64,
    /// Requests that would have been edited without the dry run.
    pub would_be_edited: u64,
    /// Requests whose body could not be read.
    pub not_understood: u64,
    /// Requests that were forwarded without being read.
    pub passed: u64,
    /// Those of the above that the upstream did not answer.
    pub failed: u64,
    /// Requests that were shed because a capacity limit was reached.
    pub shed: u64,
    /// Requests that were refused for another reason.
    pub refused: u64,
}

/// Tokens of requests.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct TokenTotals {
    /// As received.
    pub before: u64,
    /// As sent.
    pub after: u64,
}

/// The totals of a proxy in a run.
#[derive(Clone, Debug, Default)]
pub struct RunTotals {
    /// Its requests.
    pub totals: Totals,
    /// The savings of the edits, in words, if that is known.
    pub savings: Option<String>,
    /// Why no request was edited; none if one was.
    pub why_unedited: Option<String>,
    /// The texts that were taken out and stored.
    pub stored: u64,
    /// The summaries that were made.
    pub summaries: u64,
}

/// Percentiles of the added latency over the kept entries, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct AddedLatency {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The number of entries.
    pub count: usize,
}

/// How many requests are kept, in about 200 KB.
pub const MAX_ENTRIES: usize = 500;

// === impl History ===

impl History {
    /// Adds a finished request, and returns the sequence number that it gets.
    pub fn push(&self, mut entry: Entry) -> u64 {
        self.0.with(|state| {
            state.latest += 1;
            entry.seq = state.latest;
            state.totals.add(&entry);
            if state.entries.len() == MAX_ENTRIES {
                state.entries.pop_front();
            }
            state.entries.push_back(entry);
            state.latest
        })
    }

    /// Adds the changes of a request. Those of the most recent requests are kept.
    pub fn note_changes(&self, id: String, changes: Changes) {
        self.0.with(|state| state.changes.push(id, changes));
    }

    /// The changes of a request, if they are still kept.
    pub fn changes(&self, id: &str) -> Option<Changes> {
        self.0.with(|state| state.changes.get(id).cloned())
    }

    /// Whether a conversation has a title.
    pub fn has_title(&self, conversation: ChainKey) -> bool {
        self.0.with(|state| state.titles.contains_key(&conversation))
    }

    /// Notes the title of a conversation. From [`MAX_ENTRIES`] titles on, those of conversations without an entry are forgotten.
    pub fn note_title(&self, conversation: ChainKey, title: String) {
        self.0.with(|State { titles, entries, .. }| {
            if titles.len() >= MAX_ENTRIES {
                let known: HashSet<_> = entries.iter().filter_map(|entry| entry.conversation).collect();
                titles.retain(|conversation, _| known.contains(conversation));
            }
            titles.insert(conversation, title);
        });
    }

    /// Forgets all titles.
    pub fn forget_titles(&self) {
        self.0.with(|state| state.titles.clear());
    }

    /// Counts a request that the upstream did not answer.
    pub fn count_failed(&self) {
        self.0.with(|state| state.totals.requests.failed += 1);
    }

    /// Counts a request that has no entry, as one of these.
    pub fn count(&self, of: fn(&mut RequestCounts) -> &mut u64) {
        self.0.with(|state| {
            state.totals.requests.total += 1;
            *of(&mut state.totals.requests) += 1;
        });
    }

    /// The newest entries, at most `limit`, oldest first.
    pub fn newest(&self, limit: usize) -> Vec<Entry> {
        self.0.with(|state| {
            let before = state.entries.len().saturating_sub(limit);
            state.read(state.entries.iter().skip(before))
        })
    }

    /// The first entries after the number `seq`, at most `limit`, oldest first.
    pub fn after(&self, seq: u64, limit: usize) -> Vec<Entry> {
        self.0.with(|state| state.read(state.entries.iter().filter(|entry| entry.seq > seq).take(limit)))
    }

    /// The ids of the requests that [`inspect::names`] finds, newest first. [`inspect::LAST`] is the newest request that an edit
    /// changed, or else the newest.
    pub fn named(&self, name: &str) -> Vec<String> {
        self.0.with(|state| {
            let newest = || state.entries.iter().rev();
            let found: Vec<_> = newest().filter(|entry| inspect::names(name, &entry.id)).collect();
            let one = match found.iter().find(|entry| entry.id == name) {
                None if name == inspect::LAST => newest().find(|entry| !entry.edits.is_empty()).or(newest().next()),
                exact => exact.copied(),
            };
            one.map_or(found, |one| vec![one]).into_iter().map(|entry| entry.id.clone()).collect()
        })
    }

    /// The entry of a request, if it is still kept.
    pub fn get(&self, id: &str) -> Option<Entry> {
        self.0.with(|state| state.entries.iter().rev().find(|entry| entry.id == id).cloned())
    }

    /// The sequence number of the newest entry; 0 if there is none.
    pub fn latest(&self) -> u64 {
        self.0.with(|state| state.latest)
    }

    /// The totals of all requests.
    pub fn totals(&self) -> Totals {
        let (mut totals, mut added) = self.0.with(|state| {
            let added: Vec<f64> = state.entries.iter().map(|entry| entry.added_ms).collect();
            (state.totals, added)
        });
        added.sort_by(f64::total_cmp);
        let at = |percent: usize| added.get((added.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        totals.added_ms =
            AddedLatency { p50: at(50).unwrap_or_default(), p99: at(99).unwrap_or_default(), count: added.len() };
        totals
    }
}

impl State {
    /// Entries with the titles of their conversations.
    fn read<'a>(&self, entries: impl Iterator<Item = &'a Entry>) -> Vec<Entry> {
        entries.map(|entry| Entry { title: self.title(entry.conversation), ..entry.clone() }).collect()
    }

    fn title(&self, conversation: Option<ChainKey>) -> Option<String> {
        self.titles.get(&conversation?).cloned()
    }
}

// === impl RequestCounts ===

impl RequestCounts {
    /// Why no request was edited, in words; none if one was, or none came. `is_off`: no edit is on.
    pub fn why_unedited(&self, is_off: bool) -> Option<String> {
        let Self { edited, unedited, would_be_edited, does_not_pay, held_back, not_understood, passed, .. } = *self;
        let reasons = [
            (unedited.saturating_sub(does_not_pay + held_back), "below every trigger"),
            (does_not_pay, "where an edit does not pay yet"),
            (held_back, "where an edit could not be made"),
            (not_understood, "not understood"),
            (passed, "forwarded unread"),
        ];
        let reasons = reasons.into_iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{} {why}", grouped(n)));
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        let reasons = if is_off { "no edit is on".to_owned() } else { reasons };
        (edited + would_be_edited == 0 && !reasons.is_empty()).then_some(reasons)
    }
}

// === impl Totals ===

impl Totals {
    fn add(&mut self, entry: &Entry) {
        let requests = &mut self.requests;
        requests.total += 1;
        *match entry.outcome {
            Outcome::Edited => &mut requests.edited,
            Outcome::Unedited => &mut requests.unedited,
            Outcome::WouldBeEdited => &mut requests.would_be_edited,
            Outcome::NotUnderstood => &mut requests.not_understood,
            Outcome::Passed => &mut requests.passed,
        } += 1;
        let is_unedited = entry.outcome == Outcome::Unedited;
        requests.held_back += u64::from(is_unedited && entry.held_back);
        requests.does_not_pay += u64::from(is_unedited && entry.does_not_pay && !entry.held_back);
        if let (true, Some(before), Some(after)) =
            (entry.outcome != Outcome::WouldBeEdited, entry.tokens_before, entry.tokens_after)
        {
            self.tokens.before += before as u64;
            self.tokens.after += after as u64;
        }
        self.offloaded_bytes += entry.offloaded_bytes;
        self.billed.input += entry.input_tokens.unwrap_or(0);
        self.billed.cached += entry.cached_tokens.unwrap_or(0);
        self.billed.output += entry.output_tokens.unwrap_or(0);
        self.predicted_cached += entry.predicted_cached().unwrap_or(0);
    }
}

// === impl Entry ===

impl Entry {
    /// How many of the billed tokens a prompt cache can have served.
    pub fn predicted_cached(&self) -> Option<u64> {
        Some(share_of(self.prefix_kept?, self.input_tokens?))
    }
}

/// A share, 0 to 1, of so many tokens.
pub fn share_of(share: f64, tokens: u64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a share of a number of tokens, which is exact below 2^53"
    )]
    let tokens = (share.clamp(0.0, 1.0) * tokens as f64).round() as u64;
    tokens
}

// === helpers ===

fn as_map<S: Serializer>(edits: &[(&'static str, usize)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(edits.iter().copied())
}

#[cfg(test)]
mod tests;
