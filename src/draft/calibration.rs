//! The token factor of a conversation: it keeps the factor that it begins with.

use std::fmt::Debug;

use super::{Draft, PrefixKeys};
use crate::conversation::Role;
use crate::payload::ChainKey;
use crate::plan::CountedWith;
use crate::tokens::Gauge;
use crate::tokens::factor::Factor;

/// Where the factor comes from that a conversation is counted with.
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

/// Sets the names of conversations apart from those of summaries.
const SCOPE: &[u8] = b"token factor of ";

impl Draft<'_> {
    /// What counts tokens for the model of this request.
    pub fn gauge(&self) -> &Gauge {
        self.gauge.get_or_init(|| {
            let gauge = self.context.meter.for_model(self.request.conversation.model.as_deref());
            let known = match self.context.calibration {
                Calibration::Table => None,
                Calibration::Fixed(factor) => Some(factor),
                Calibration::Frozen(index) => self.factor_name().and_then(|name| index.factor(name)),
            };
            known.map_or_else(|| gauge.clone(), |factor| gauge.clone().billed_at(factor))
        })
    }

    /// What tokens were counted with, if any were.
    pub(super) fn counted_with(&self) -> Option<CountedWith> {
        let factor = self.gauge.get()?.factor;
        let traits = &self.request.conversation.traits;
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
        let whole = self.whole;
        if whole.unit(whole.first_editable())?.role == Role::Tool {
            return None;
        }
        PrefixKeys::root_of(self.whole(), &self.context, &self.scope(SCOPE))
    }
}
