//! What planning depends on besides the body and the settings.

use super::{Calibration, ColdPasses, Sent};
use crate::handler::AnswerIndex;
use crate::payload::{Caller, Keys};
use crate::string_index::StringIndex;
use crate::summary::SummaryIndex;
use crate::tokens::Meter;

/// What planning depends on besides the body and the settings.
#[derive(Clone, Copy, Debug)]
pub struct PlanContext<'a> {
    /// The index of the long strings of the body.
    pub strings: &'a StringIndex,
    /// Counts tokens.
    pub meter: &'a Meter,
    /// The factor that they are counted with.
    pub calibration: Calibration<'a>,
    /// Make the names of payloads.
    pub keys: &'a Keys,
    /// Whose conversation it is.
    pub caller: Caller,
    /// Whether what is taken out can be stored.
    pub offload: Offload,
    /// The states of all summaries.
    pub summaries: &'a dyn SummaryIndex,
    /// Whether what other processes know of the conversation's summaries is among them.
    pub look_up: LookUp,
    /// When a summary is wanted.
    pub summarize: SummaryTiming,
    /// The passes that were made because the prompt cache had expired.
    pub cold_passes: ColdPasses<'a>,
    /// Facts about earlier requests.
    pub sent: Sent<'a>,
    /// Whether all bound reasoning is left out because the upstream has refused it.
    pub strips_now: bool,
    /// Set if texts alone may change, to how many messages at the beginning stay as they are.
    pub in_place: Option<usize>,
    /// The answers of handlers.
    pub answers: &'a dyn AnswerIndex,
}

/// Whether what other processes know of a conversation's summaries is among the known states.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LookUp {
    /// It was looked up, or there are no other processes.
    Done,
    /// It was not looked up yet: a plan says under which name it is, and has no job for a summary that they may have made.
    Pending,
}

/// When a summary is wanted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SummaryTiming {
    /// When the trigger holds.
    Triggered,
    /// At once: someone has asked for it.
    Now,
    /// At once, and of all messages, also of what the model has not read: it has been asked to compact the conversation.
    Whole,
}

/// Whether what is taken out can be stored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Offload {
    /// There is a store.
    Possible,
    /// There is none, or it has failed for this request: no change is made that needs it, and the report says so.
    Impossible,
}
