//! What the last requests were, and sums of all since the start: names and numbers, and nothing of what the messages say.
//!
//! A request enters when its answer has ended, from a task of its own. Those that are no conversation are only counted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Serialize, Serializer};

use crate::dialect::Usage;
use crate::inspect::Changes;

mod log;

use log::Log;

/// The last requests. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Shared>);

#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "held for a few instructions, never across an await")]
struct Shared {
    kept: std::sync::Mutex<Kept>,
    passed: AtomicU64,
    failed: AtomicU64,
    shed: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Kept {
    // Oldest first.
    entries: VecDeque<Entry>,
    changes: Log,
    latest: u64,
    totals: Totals,
}

/// One request and its answer.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Its place among all; the first has 1. Given when it enters.
    pub seq: u64,
    /// Its id, as `x-abridge-request-id` has it.
    pub id: String,
    /// When it came, in seconds since 1970.
    pub time: f64,
    /// The model that is asked.
    pub model: Option<String>,
    /// The path, never the query.
    pub path: String,
    /// What became of it.
    pub outcome: Outcome,
    /// How many changes each edit made.
    #[serde(serialize_with = "as_map")]
    pub edits: Vec<(&'static str, usize)>,
    /// The length of the message array as it came.
    pub messages: usize,
    /// The length of the body as it came, as text.
    pub bytes_before: usize,
    /// The same as it went on, or would have.
    pub bytes_after: usize,
    /// The tokens of messages and tools as they came, where they were counted.
    pub tokens_before: Option<usize>,
    /// The same as they went on, or would have.
    pub tokens_after: Option<usize>,
    /// The length of what was taken out and is in the store, whether it was written now or for an earlier request.
    pub offloaded_bytes: u64,
    /// Our share of the time before it was handed to the upstream's pool, in milliseconds: from its head on, without the
    /// time in which its body was read and without the wait for a summary; the wait for the store is in it.
    pub added_ms: f64,
    /// How long it waited for a summary.
    pub summary_ms: Option<f64>,
    /// From when it was handed to the upstream's pool to the head of the answer.
    pub first_byte_ms: Option<f64>,
    /// From its head to the end of the answer.
    pub total_ms: f64,
    /// The answer's status, if there was an answer.
    pub status: Option<u16>,
    /// How it ended.
    pub end: End,
    /// Tokens of the request as billed.
    pub input_tokens: Option<u64>,
    /// Those of them that the upstream's prompt cache served.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer as billed.
    pub output_tokens: Option<u64>,
    /// The share of what was sent, 0 to 1, that an earlier request began with: what a prompt cache can serve.
    pub prefix_kept: Option<f64>,
    /// Why the model stopped.
    pub stop_reason: Option<String>,
    /// Whether its messages can be looked at.
    pub inspectable: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was edited.
    Edited,
    /// There was nothing to edit.
    Unedited,
    /// It would have been edited, but for a dry run.
    WouldBeEdited,
    /// It could not be read, and went on as it came.
    NotUnderstood,
    /// It was not looked at.
    Passed,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// As the upstream meant it to.
    Complete,
    /// The upstream broke off.
    Cut,
    /// The client went away.
    ClientGone,
    /// There was none.
    Unanswered,
}

/// Sums of all requests since the start.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// All of them.
    pub total: u64,
    /// Those that were edited.
    pub edited: u64,
    /// Those with nothing to edit.
    pub unedited: u64,
    /// Those that would have been edited, but for a dry run.
    pub would_be_edited: u64,
    /// Those that could not be read.
    pub not_understood: u64,
    /// Those that were not looked at.
    pub passed: u64,
    /// Those of the above that the upstream gave no answer to.
    pub failed: u64,
    /// Those that were not taken, because there was no room.
    pub shed: u64,
    /// Those that were not taken for another reason.
    pub refused: u64,
    /// The tokens of requests as they came, where they were counted; dry runs are left out.
    pub tokens_before: u64,
    /// The same as they went on.
    pub tokens_after: u64,
    /// The length of what was taken out of each; what stays out of a conversation counts with each of its requests.
    pub offloaded_bytes: u64,
    /// Tokens as billed.
    pub billed: Usage,
    /// Of the requests whose tokens are known: how many a prompt cache can have served.
    pub predicted_cached: u64,
    /// Our share of the time of the latest requests, in milliseconds.
    pub added_ms: Added,
}

/// How the added time is spread over the entries that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Added {
    /// Half of them took no longer.
    pub p50: f64,
    /// Of a hundred, 99 took no longer.
    pub p99: f64,
    /// How many they are.
    pub count: usize,
}

/// How many requests are kept: some 200 KB of them.
pub const KEPT: usize = 500;

// === impl History ===

impl History {
    /// Nothing happened yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A request has ended. Gives it its number, and says which.
    pub fn push(&self, mut entry: Entry) -> u64 {
        self.with(|kept| {
            kept.latest += 1;
            entry.seq = kept.latest;
            kept.totals.add(&entry);
            if kept.entries.len() == KEPT {
                kept.entries.pop_front();
            }
            kept.entries.push_back(entry);
            kept.latest
        })
    }

    /// A request was changed like this. Of the last such requests it is kept.
    pub fn note_changes(&self, id: String, changes: Changes) {
        self.with(|kept| kept.changes.push(id, changes));
    }

    /// The changes of a request, if they are still kept.
    pub fn changes(&self, id: &str) -> Option<Changes> {
        self.with(|kept| kept.changes.get(id).cloned())
    }

    /// A request that is no conversation went through.
    pub fn count_passed(&self) {
        self.0.passed.fetch_add(1, Ordering::Relaxed);
    }

    /// The upstream gave no answer.
    pub fn count_failed(&self) {
        self.0.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// There was no room for a request.
    pub fn count_shed(&self) {
        self.0.shed.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was refused.
    pub fn count_refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// The entries behind that number, newest last; if they are more, the newest of them.
    pub fn after(&self, seq: u64, limit: usize) -> Vec<Entry> {
        self.with(|kept| {
            let newer = kept.entries.iter().rev().take_while(|entry| entry.seq > seq).take(limit);
            let mut newer: Vec<_> = newer.cloned().collect();
            newer.reverse();
            newer
        })
    }

    /// The entry of a request, if it is still kept.
    pub fn get(&self, id: &str) -> Option<Entry> {
        self.with(|kept| kept.entries.iter().rev().find(|entry| entry.id == id).cloned())
    }

    /// The number of the newest entry; 0 if there is none.
    pub fn latest(&self) -> u64 {
        self.with(|kept| kept.latest)
    }

    /// Sums of all requests.
    pub fn totals(&self) -> Totals {
        let (mut totals, mut added) = self.with(|kept| {
            let added: Vec<f64> = kept.entries.iter().map(|entry| entry.added_ms).collect();
            (kept.totals, added)
        });
        added.sort_by(f64::total_cmp);
        let at = |percent: usize| added.get((added.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        totals.added_ms =
            Added { p50: at(50).unwrap_or_default(), p99: at(99).unwrap_or_default(), count: added.len() };
        let Shared { passed, failed, shed, refused, .. } = &*self.0;
        let [passed, failed, shed, refused] =
            [passed, failed, shed, refused].map(|count| count.load(Ordering::Relaxed));
        totals.passed += passed;
        (totals.failed, totals.shed, totals.refused) = (failed, shed, refused);
        totals.total += passed + shed + refused;
        totals
    }

    fn with<T>(&self, f: impl FnOnce(&mut Kept) -> T) -> T {
        // Nothing in here panics half-way, so what a panic left behind is whole.
        f(&mut self.0.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

// === impl Totals ===

impl Totals {
    fn add(&mut self, entry: &Entry) {
        self.total += 1;
        *match entry.outcome {
            Outcome::Edited => &mut self.edited,
            Outcome::Unedited => &mut self.unedited,
            Outcome::WouldBeEdited => &mut self.would_be_edited,
            Outcome::NotUnderstood => &mut self.not_understood,
            Outcome::Passed => &mut self.passed,
        } += 1;
        if let (true, Some(before), Some(after)) =
            (entry.outcome != Outcome::WouldBeEdited, entry.tokens_before, entry.tokens_after)
        {
            self.tokens_before += before as u64;
            self.tokens_after += after as u64;
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
        let tokens = self.prefix_kept?.clamp(0.0, 1.0) * precise(self.input_tokens?);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a number of tokens")]
        let tokens = tokens.round() as u64;
        Some(tokens)
    }
}

impl Outcome {
    /// The outcome as one word, for labels.
    pub fn label(self) -> &'static str {
        match self {
            Self::Edited => "edited",
            Self::Unedited => "unedited",
            Self::WouldBeEdited => "would_be_edited",
            Self::NotUnderstood => "not_understood",
            Self::Passed => "passed",
        }
    }
}

// === helpers ===

/// A number of tokens or bytes; none is so large that it is not exact.
#[expect(clippy::cast_precision_loss, reason = "numbers below 2^53 are exact")]
fn precise(n: u64) -> f64 {
    n as f64
}

fn as_map<S: Serializer>(edits: &[(&'static str, usize)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(edits.iter().copied())
}

#[cfg(test)]
mod tests;
