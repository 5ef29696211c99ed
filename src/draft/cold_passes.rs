//! Passes that are made because the prompt cache has expired.
//!
//! How long a client has paused is not in its messages. So it is remembered that such a pass was made, by the name of all
//! that the request had, and later requests find it there.

use std::cell::{OnceCell, RefCell};
use std::fmt::Debug;

use super::{Draft, PrefixKeys};
use crate::conversation::{ElementIndex, UnitIndex};
use crate::payload::{ChainKey, Place};

/// Where such passes were made.
#[derive(Clone, Copy, Debug)]
pub enum ColdPasses<'a> {
    /// In requests of so many elements.
    At(&'a [usize]),
    /// Where it is remembered.
    Remembered(&'a dyn ColdPassIndex),
}

/// The memory of such passes.
pub trait ColdPassIndex: Debug + Sync {
    /// Whether one was made after a beginning, or in a conversation with this root.
    fn has(&self, name: ChainKey) -> bool;
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

/// Sets the names of such passes apart from those of summaries.
const SCOPE: &[u8] = b"cold pass of ";

impl Draft<'_> {
    /// Whether such a pass was made where the model was called. The plan says then that it was.
    pub fn was_cold(&self, model_call: UnitIndex) -> bool {
        let n_elements = self.original_element(model_call);
        let was_cold = match self.context.cold_passes {
            ColdPasses::At(places) => places.contains(&n_elements),
            ColdPasses::Remembered(index) => {
                let name = self.known_cold_names(index).and_then(|names| names.name(ElementIndex::new(n_elements)));
                name.is_some_and(|name| index.has(name))
            }
        };
        if was_cold {
            self.cold.made.borrow_mut().push(n_elements);
        }
        was_cold
    }

    /// Notes that one could be made where the model is called now.
    pub fn offer_cold_pass(&mut self, model_call: UnitIndex) {
        if let ColdPasses::Remembered(_) = self.context.cold_passes {
            let names = PrefixKeys::of(self.whole(), &self.context, &self.scope(SCOPE));
            let beginning = names.name(ElementIndex::new(self.original_element(model_call)));
            self.cold.place = names.root().zip(beginning).map(|(root, beginning)| Place { root, beginning });
        }
    }

    /// The names of all beginnings, in a conversation that has such a pass.
    fn known_cold_names(&self, index: &dyn ColdPassIndex) -> Option<&PrefixKeys> {
        let names = || {
            let scope = self.scope(SCOPE);
            let root = PrefixKeys::root_of(self.whole(), &self.context, &scope)?;
            index.has(root).then(|| PrefixKeys::of(self.whole(), &self.context, &scope))
        };
        self.cold.names.get_or_init(names).as_ref()
    }
}
