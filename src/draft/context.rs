//! The inputs of planning besides the body and the settings.

use std::cell::{OnceCell, RefCell};
use std::fmt::Debug;

use super::{Draft, PrefixKeys, Sent, SentIndex};
use crate::conversation::{ElementIndex, Role, UnitIndex};
use crate::handler::AnswerIndex;
use crate::payload::{Caller, ChainKey, Keys, Place};
use crate::plan::CountedWith;
use crate::string_index::StringIndex;
use crate::summary::SummaryIndex;
use crate::tokens::{Gauge, Meter, factor::Factor};

/// The inputs of planning besides the body and the settings.
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

/// Where the factor comes from that a conversation is counted with. It keeps the factor that it begins with.
#[derive(Clone, Copy, Debug)]
pub enum Calibration<'a> {
    /// The built-in table.
    Table,
    /// The caller: it is this one.
    Fixed(Factor),
    /// The factor that is known of the beginning of the conversation, or else the built-in table.
    Frozen(&'a dyn FactorIndex),
}

/// The factors that conversations began with.
pub trait FactorIndex: Debug + Sync {
    /// The factor of the conversation with this beginning, if it is known.
    fn factor(&self, beginning: ChainKey) -> Option<Factor>;
}

/// Where passes were made because the prompt cache had expired. How long a client has paused is not in its messages. So it is
/// remembered that such a pass was made, by the name of all that the request had, and later requests find it there.
#[derive(Clone, Copy, Debug)]
pub enum ColdPasses<'a> {
    /// In requests of so many elements.
    At(&'a [usize]),
    /// Where it is remembered.
    Remembered(&'a dyn SentIndex),
}

/// The passes that a draft finds.
#[derive(Debug, Default)]
pub(super) struct ColdPassesFound {
    /// Where they were made: in requests of so many elements.
    pub(super) made: RefCell<Vec<usize>>,
    /// Where one could be made now.
    pub(super) place: Option<Place>,
    /// The names of all beginnings, in a conversation that has one.
    names: OnceCell<Option<PrefixKeys>>,
}

/// Set the names of conversations and of such passes apart from those of summaries.
const FACTOR: &[u8] = b"token factor of ";
const COLD_PASS: &[u8] = b"cold pass of ";

impl Draft<'_> {
    /// The counter of tokens for the model of this request.
    pub fn gauge(&self) -> &Gauge {
        self.known.gauge.get_or_init(|| {
            let gauge = self.context.meter.for_model(self.conversation.model.as_deref());
            let known = match self.context.calibration {
                Calibration::Table => None,
                Calibration::Fixed(factor) => Some(factor),
                Calibration::Frozen(index) => self.factor_name().and_then(|name| index.factor(name)),
            };
            known.map_or_else(|| gauge.clone(), |factor| gauge.clone().billed_at(factor))
        })
    }

    /// The factor that tokens were counted with, if any were.
    pub(super) fn counted_with(&self) -> Option<CountedWith> {
        let factor = self.known.gauge.get()?.factor;
        let traits = &self.conversation.traits;
        let is_whole = !traits.history_elsewhere && traits.n_compacted == 0;
        let unfrozen = match self.context.calibration {
            Calibration::Frozen(index) => self.factor_name().filter(|name| index.factor(*name).is_none()),
            Calibration::Table | Calibration::Fixed(_) => None,
        };
        Some(CountedWith { factor, is_whole, unfrozen })
    }

    /// The name after the second message: with fewer, nothing is edited by its tokens. A conversation that begins with a
    /// result has no name, as that might be.
    fn factor_name(&self) -> Option<ChainKey> {
        let begins_with_result = self.whole.unit(self.whole.first_editable())?.role == Role::Tool;
        if begins_with_result { None } else { self.root_of(FACTOR) }
    }

    /// Whether a pass was made where the model was called because the prompt cache had expired. The plan says then that it was.
    pub fn was_cold(&self, model_call: UnitIndex) -> bool {
        let n_elements = self.original_element(model_call);
        let was_cold = match self.context.cold_passes {
            ColdPasses::At(places) => places.contains(&n_elements),
            ColdPasses::Remembered(index) => {
                let is_known = || self.root_of(COLD_PASS).is_some_and(|root| index.has(root));
                let names = self.known.cold.names.get_or_init(|| is_known().then(|| self.names_of(COLD_PASS)));
                let name = names.as_ref().and_then(|names| names.name(ElementIndex::new(n_elements)));
                name.is_some_and(|name| index.has(name))
            }
        };
        if was_cold {
            self.known.cold.made.borrow_mut().push(n_elements);
        }
        was_cold
    }

    /// Notes that one could be made where the model is called now.
    pub fn offer_cold_pass(&mut self, model_call: UnitIndex) {
        if let ColdPasses::Remembered(_) = self.context.cold_passes {
            let names = self.names_of(COLD_PASS);
            let beginning = names.name(ElementIndex::new(self.original_element(model_call)));
            self.known.cold.place = names.root().zip(beginning).map(|(root, beginning)| Place { root, beginning });
        }
    }
}
