//! The kinds of events and their fields.

use serde::{Serialize, Serializer};

use crate::dialect::{AnswerEnd, Usage};
use crate::payload::Caller;
use crate::plan::{Report, Sizes};

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The id of the request that the event is about, if any.
    pub request_id: Option<String>,
    /// The caller of the request. Not part of the JSON.
    pub caller: Option<Caller>,
    /// The kind, with its fields.
    pub kind: EventKind,
}

/// The kind of an event, with its fields. Its name is the type in the JSON.
#[derive(Clone, Debug, Serialize, strum::IntoStaticStr)]
#[serde(untagged)]
pub enum EventKind {
    /// A request was edited, or would be in a dry run, and is about to go upstream.
    #[strum(serialize = "edit.before")]
    EditBefore(Edits),
    /// The answer to such a request has ended, or there is none.
    #[strum(serialize = "edit.after")]
    EditAfter {
        /// The edits of the request.
        #[serde(flatten)]
        edits: Edits,
        /// The answer's status, if there was an answer.
        status: Option<u16>,
        /// How the answer ended.
        end: AnswerEnd,
        /// The time since the request was sent upstream, in milliseconds.
        milliseconds: u64,
        /// Why the model stopped.
        stop_reason: Option<String>,
        /// The billed tokens.
        usage: Option<Usage>,
        /// The savings of all callers since the start, in words, if they are known. Only the webhook and operators get them.
        #[serde(skip)]
        savings: Option<String>,
    },
    /// The making of a summary begins.
    #[strum(serialize = "summary.before")]
    SummaryBefore {
        /// The model of the request.
        model: Option<String>,
        /// The index of the first message that the summary covers.
        from: usize,
        /// The index after the last message that it covers.
        to: usize,
        /// The tokens of the messages that it covers.
        tokens: usize,
        /// Whether a request waits for it.
        waits: bool,
    },
    /// A model was called for a summary.
    #[strum(serialize = "summary.attempt")]
    SummaryAttempt {
        /// Whether the model is the first choice or a failover.
        phase: Phase,
        /// The number of the attempt with this model, from 1.
        number: usize,
        /// The model that was called.
        model: Option<String>,
        /// Why the attempt failed, if it did.
        error: Option<String>,
        /// The duration of the attempt in milliseconds.
        milliseconds: u64,
    },
    /// A summary was made, or could not be made.
    #[strum(serialize = "summary.after")]
    SummaryAfter {
        /// The tokens of the messages that it covers.
        tokens_before: usize,
        /// The tokens of the summary, if it was made.
        tokens_after: Option<usize>,
        /// Why it was not made.
        error: Option<String>,
        /// The total duration in milliseconds.
        milliseconds: u64,
        /// The billed tokens of its calls, as their answers report them.
        usage: Option<Usage>,
        /// The text of the summary. It may always be set here; it is removed unless `events.content` is on.
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<String>,
    },
}

/// The edits of a request, made or only reported.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Edits {
    /// The model of the request.
    pub model: Option<String>,
    /// How many changes each edit made, by its label, in policy order. An object in JSON.
    #[serde(serialize_with = "object")]
    pub edits: Vec<(&'static str, usize)>,
    /// How many changes could not be made.
    pub left_out: usize,
    /// Whether the request is forwarded as it came.
    pub dry_run: bool,
    /// The number of messages before and after.
    pub messages: Sizes,
    /// The bytes of the body before and after.
    pub bytes: Sizes,
    /// The tokens before and after, where they were counted.
    pub tokens: Option<Sizes>,
}

/// The role of a model that is called for a summary.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The first choice.
    Primary,
    /// A model that is called after another one has failed.
    Failover,
}

/// The longest name or error in an event, in characters. Clients choose the names of models.
const MAX_CHARS: usize = 300;

// === impl EventKind ===

impl EventKind {
    /// What only the webhook and operators get.
    pub(super) fn savings(&self) -> Option<&str> {
        let Self::EditAfter { savings, .. } = self else { return None };
        savings.as_deref()
    }

    /// Removes the content unless it is wanted, and truncates long names.
    pub(super) fn redact(&mut self, content_is_wanted: bool) {
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
            if let Some((cut, _)) = text.char_indices().nth(MAX_CHARS) {
                text.truncate(cut);
                text.push('…');
            }
        }
    }
}

// === impl Edits ===

impl Edits {
    /// Builds the fields from a report.
    pub fn of(report: &Report, dry_run: bool) -> Self {
        let sizes = |before, after| Sizes { before, after };
        Self {
            model: report.model.clone(),
            edits: report.counts(),
            left_out: report.left_out.len(),
            dry_run,
            messages: sizes(report.messages_before, report.messages_after),
            bytes: sizes(report.bytes_before, report.bytes_after),
            tokens: report.tokens_before.zip(report.tokens_after).map(|(before, after)| sizes(before, after)),
        }
    }
}

fn object<S: Serializer>(pairs: &[(&'static str, usize)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().copied())
}
