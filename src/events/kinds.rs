//! The kinds of events, and what each tells.

use serde::{Serialize, Serializer};

use crate::dialect::Usage;
use crate::payload::Caller;
use crate::plan::{Report, Sizes};

/// One event.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// The request that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Whose it is. Not told to anybody.
    #[serde(skip)]
    pub caller: Option<Caller>,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type")]
pub enum What {
    /// A request is edited, or would be, and goes upstream.
    #[serde(rename = "edit.before")]
    EditBefore(Edits),
    /// The answer to such a request has ended, or there is none.
    #[serde(rename = "edit.after")]
    EditAfter {
        /// What the edits made of the request.
        #[serde(flatten)]
        edits: Edits,
        /// The answer's status, if there was an answer.
        status: Option<u16>,
        /// How it ended.
        end: Ended,
        /// How long it took from the request's leaving on, in milliseconds.
        milliseconds: u64,
        /// Why the model stopped.
        stop_reason: Option<String>,
        /// What the upstream billed.
        usage: Option<Usage>,
    },
    /// A summary is going to be made.
    #[serde(rename = "summary.before")]
    SummaryBefore {
        /// The model that the request asks.
        model: Option<String>,
        /// The first message that it will stand for.
        from: usize,
        /// One behind the last.
        to: usize,
        /// The tokens of what it will stand for.
        tokens: usize,
        /// Whether a request waits for it.
        waits: bool,
    },
    /// A model was asked for a summary.
    #[serde(rename = "summary.attempt")]
    SummaryAttempt {
        /// Who was asked.
        phase: Phase,
        /// Which attempt with this one: 1, 2, …
        number: usize,
        /// Its model.
        model: Option<String>,
        /// What went wrong, if anything did.
        error: Option<String>,
        /// How long it took, in milliseconds.
        milliseconds: u64,
    },
    /// A summary was made, or not.
    #[serde(rename = "summary.after")]
    SummaryAfter {
        /// The tokens of what it stands for.
        tokens_before: usize,
        /// Its own tokens, if it was made.
        tokens_after: Option<usize>,
        /// Why it was not made.
        error: Option<String>,
        /// How long all of it took, in milliseconds.
        milliseconds: u64,
        /// The tokens that its calls were billed, as their answers say.
        usage: Option<Usage>,
        /// What it says. Whoever publishes may always give it; it is told only if `events.content` is on.
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<String>,
    },
}

/// What edits made of a request, or would make of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Edits {
    /// The model that is asked.
    pub model: Option<String>,
    /// How many changes each edit made.
    pub edits: Counts,
    /// How many changes could not be made.
    pub left_out: usize,
    /// Whether the request goes on as it came.
    pub dry_run: bool,
    /// The messages before and after.
    pub messages: Sizes,
    /// The bytes of the body.
    pub bytes: Sizes,
    /// The tokens, where they were counted.
    pub tokens: Option<Sizes>,
}

/// Labels of edits and how many changes they made, in policy order. An object in JSON.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counts(pub Vec<(&'static str, usize)>);

/// How an answer ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// As the upstream meant it to.
    Complete,
    /// The upstream broke off or paused too long.
    Cut,
    /// The client went away.
    ClientGone,
    /// The upstream gave no answer.
    Unanswered,
}

/// Who was asked for a summary.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The model itself.
    Primary,
    /// One of those that are asked after it.
    Failover,
}

/// The longest name or error that is told, in characters: a request may call its model what it likes.
const LONGEST: usize = 300;

// === impl What ===

impl What {
    /// The type, as it is written.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::EditBefore(_) => "edit.before",
            Self::EditAfter { .. } => "edit.after",
            Self::SummaryBefore { .. } => "summary.before",
            Self::SummaryAttempt { .. } => "summary.attempt",
            Self::SummaryAfter { .. } => "summary.after",
        }
    }

    /// Takes out what is not to be told: content, unless it is wanted, and the ends of long names.
    pub(super) fn bound(&mut self, content_is_wanted: bool) {
        let texts = match self {
            Self::EditBefore(edits) => [&mut edits.model, &mut None],
            Self::EditAfter { edits, stop_reason, .. } => [&mut edits.model, stop_reason],
            Self::SummaryBefore { model, .. } => [model, &mut None],
            Self::SummaryAttempt { model, error, .. } => [model, error],
            Self::SummaryAfter { content, error, .. } => {
                if !content_is_wanted {
                    *content = None;
                }
                [error, &mut None]
            }
        };
        for text in texts.into_iter().flatten() {
            if let Some((cut, _)) = text.char_indices().nth(LONGEST) {
                text.truncate(cut);
                text.push('…');
            }
        }
    }
}

// === impl Edits ===

impl Edits {
    /// What a report says.
    pub fn of(report: &Report, dry_run: bool) -> Self {
        let sizes = |before, after| Sizes { before, after };
        Self {
            model: report.model.clone(),
            edits: Counts(report.counts()),
            left_out: report.left_out.len(),
            dry_run,
            messages: sizes(report.messages_before, report.messages_after),
            bytes: sizes(report.bytes_before, report.bytes_after),
            tokens: report.tokens_before.zip(report.tokens_after).map(|(before, after)| sizes(before, after)),
        }
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().copied())
    }
}
