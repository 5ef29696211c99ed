//! Regret: how often an answer needs what a policy has taken out of sight, and what it costs to read it again.
//!
//! No model is asked. Each recorded request has a recorded answer. What the answer repeats, line by line and name by name,
//! is looked for in the request as the policy sends it; what is nowhere in there, and was in what the policy has taken
//! out, is *missed*. The sources of what is missed are *faults*: the newest source takes all that it has, then the next,
//! and each has a line or two names. A fault is *hard* if a line is in the old text of an edit, which fails without it.
//! What [`background`] has, and what the tools and the instructions say, is never missed.
//!
//! # Recalls
//! Each fault is followed by a recall, as paging does: one more request, in which the model calls a tool and reads the
//! text again. From there on the text is the newest result of the session, and may be cleared again.

use std::sync::Arc;

use serde::Serialize;

use super::bill::Bill;
use super::play::Player;
use super::sent_request::SentRequest;
use super::transcript::{Insertion, N_INSERTED};
use super::{Measure, Outcome, Transcript, TranscriptError};
use crate::dialect::{self, Dialect, Exchange};
use crate::payload::{PayloadKey, handles_in};

pub use self::pieces::{PieceKind, Place};
pub use self::units::UnitKind;

use self::answer::needed;
use self::pieces::{Anatomy, Piece};
pub(super) use self::watch::Placebo;
use self::watch::Watch;

mod answer;
pub mod background;
mod pieces;
pub mod units;
mod watch;

/// The regret of a policy.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Regret {
    /// The requests whose answer is recorded.
    pub answers: usize,
    /// The number of faults.
    pub faults: usize,
    /// The number of hard faults.
    pub hard: usize,
    /// The cost of all requests without edits, in uncached input tokens.
    pub cost_unedited: u64,
    /// The cost of all requests and of the recalls.
    pub cost_with_recalls: u64,
    /// The cost with recalls of the segment for which it is highest, in percent of that segment without edits.
    pub worst_segment: f64,
    /// The number of faults that the results of another session would have had: the noise in `faults`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placebo: Option<usize>,
    /// The faults, in order; none in totals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<Fault>,
}

/// A text that an answer needed and that was out of sight.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// The number of the request in its transcript, from 1 on, without those of recalls.
    pub request: usize,
    /// Where the text had stood.
    pub from: Place,
    /// Whether an edit fails without it.
    pub hard: bool,
    /// The number of its units that the answer has.
    pub n_missed: usize,
    /// The first one.
    pub missed: Vec<Missed>,
    #[serde(skip)]
    recalled: Arc<str>,
}

/// A unit of an answer that was out of sight.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Missed {
    /// Whether it is a line or a name.
    pub kind: UnitKind,
    /// The line or the name.
    pub text: String,
    /// The number of the line that had it, from 1 on.
    pub line: usize,
}

/// The output of a recall, in tokens, and their price in uncached input tokens.
const RECALL_TOKENS: u64 = 60;
const OUTPUT_PRICE: u64 = 5;

/// How a recall is called.
const RECALL_TOOL: &str = "bash";
const RECALL_URL: &str = "http://127.0.0.1:8787/abridge/recall/";

/// The recalls of one session so far.
#[derive(Debug, Default)]
struct Recalls {
    inserted: Vec<Insertion>,
}

// === impl Regret ===

impl Regret {
    /// Adds other counts, without the list.
    pub(super) fn add_counts(&mut self, other: &Self) {
        self.answers += other.answers;
        self.faults += other.faults;
        self.hard += other.hard;
        self.cost_unedited = self.cost_unedited.saturating_add(other.cost_unedited);
        self.cost_with_recalls = self.cost_with_recalls.saturating_add(other.cost_with_recalls);
        self.worst_segment = self.worst_segment.max(other.worst_segment);
        self.placebo = self.placebo.map(|noise| noise + other.placebo.unwrap_or_default()).or(other.placebo);
    }

    /// How many of some faults there are in 100 requests.
    pub(super) fn per_100(&self, faults: usize) -> f64 {
        percent(faults as u64, self.answers.max(1) as u64)
    }

    /// The cost with recalls, in percent of that without edits.
    pub fn percent_with_recalls(&self) -> f64 {
        percent(self.cost_with_recalls, self.cost_unedited)
    }
}

/// A part in percent; 100 without a whole.
#[expect(clippy::cast_precision_loss, reason = "a few digits are printed")]
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 100.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// Plays a segment of a session under a policy without edits: all is in sight, and was counted for the bill.
pub(super) fn unedited(segment: &Transcript, measure: Measure<'_>) -> Outcome {
    let (mut sender, mut bill) = (Player::new(segment.model(), measure), Bill::new(segment, measure));
    for (request, &counted) in measure.counted.iter().enumerate() {
        sender.enter(counted, false);
        bill.add(request, counted);
    }
    let played = sender.finish();
    let (placebo, cost_with_recalls) = (measure.placebo.map(|_| 0), played.figures.cost);
    let regret = Regret { answers: segment.n_answers(), placebo, cost_with_recalls, ..Regret::default() };
    Outcome { regret, dollars: bill.dollars, keep_alive: bill.kept, ..played }
}

/// Plays a segment: as it is, which is what is returned, and from the first fault on with recalls as well.
pub(super) fn measure(segment: &Transcript, measure: Measure<'_>) -> Result<Outcome, TranscriptError> {
    let Measure { planner, placebo, judged, .. } = measure;
    let body = &segment.body;
    let dialect = dialect::of_body(body);
    let anatomy = Anatomy::new(dialect, body)?;
    let (mut plain, mut bill) = (Player::new(segment.model(), measure), Bill::new(segment, measure));
    let mut recalling: Option<Player<'_>> = None;
    let mut watch = Watch::new(anatomy.units_outside());
    let mut regret = Regret { placebo: placebo.map(|_| 0), answers: segment.n_answers(), ..Regret::default() };
    let mut recalls = Recalls::default();
    let mut n_known = 0;
    for (request, &n) in segment.request_lengths.iter().enumerate() {
        plain.play(segment, request, &[], bill.is_kept)?;
        if let Some(player) = &mut recalling {
            player.play(segment, request, &recalls.inserted, bill.is_kept)?;
        }
        let player = recalling.as_mut().unwrap_or(&mut plain);
        player.summary_calls.drain(..).for_each(|call| bill.add_summary_call(request, call));
        bill.add(request, player.last_sent());
        // While nothing was edited, all is in sight.
        let (true, Some(sent)) = (player.has_edited, player.before.clone()) else { continue };
        (n_known..n).for_each(|element| watch.push(anatomy.element(element), anatomy.pieces(element)));
        n_known = n;
        let Some(answer) = anatomy.conversation.elements.get(n) else { continue };
        let needed = needed(dialect, body, &anatomy.conversation, answer.units.start);
        let view = watch.view(dialect, &sent)?;
        if let (Some(noise), Some(placebo)) = (&mut regret.placebo, placebo) {
            *noise += watch.placebo_faults(&view, &needed, placebo);
        }
        for mut fault in watch.faults(&view, &needed) {
            let player = recalling.get_or_insert_with(|| plain.clone());
            let named = judged.and_then(|_| recalls.handle(&sent, fault.from.message));
            let handle =
                named.unwrap_or_else(|| planner.keys.payload(planner.keys.anonymous(), fault.recalled.as_bytes()));
            recalls.add(dialect, n, &fault, handle, &mut watch);
            player.edit_and_send(&segment.request(n, &recalls.inserted))?;
            bill.add_recall(request, player.last_sent(), RECALL_TOKENS);
            fault.request = request + 1;
            regret.list.push(fault);
        }
    }
    regret.faults = regret.list.len();
    regret.hard = regret.list.iter().filter(|fault| fault.hard).count();
    let output = RECALL_TOKENS * OUTPUT_PRICE * u64::try_from(regret.faults).unwrap_or(u64::MAX);
    let played = plain.finish();
    let cost = recalling.map_or(played.figures.cost, |player| player.finish().figures.cost);
    regret.cost_with_recalls = cost.saturating_add(output);
    Ok(Outcome { regret, dollars: bill.dollars, keep_alive: bill.kept, ..played })
}

// === impl Recalls ===

impl Recalls {
    /// The handle that a proxy names in place of a message of the transcript.
    fn handle(&self, sent: &SentRequest, message: usize) -> Option<PayloadKey> {
        let before = self.inserted.iter().filter(|insertion| insertion.at <= message).count();
        let written = sent.message_bytes(message + before * N_INSERTED)?;
        handles_in(str::from_utf8(written).ok()?).next_back()
    }

    /// Recalls a text after the first `n` messages of the transcript.
    fn add(&mut self, dialect: &dyn Dialect, n: usize, fault: &Fault, handle: PayloadKey, watch: &mut Watch) {
        let id = format!("recall_{}", self.inserted.len());
        let arguments = format!(r#"{{"command":"curl -sS {RECALL_URL}{handle}"}}"#);
        let exchange = Exchange { id: &id, name: RECALL_TOOL, arguments: &arguments, result: &fault.recalled };
        let [call, result] = dialect.render_exchange(&exchange);
        watch.push(&call, Vec::new());
        watch.push(&result, vec![Piece::new(fault.from.clone(), &fault.recalled)]);
        self.inserted.push(Insertion { at: n, elements: [&*call, b",", &*result].concat().into() });
    }
}

#[cfg(test)]
mod tests;
