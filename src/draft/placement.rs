//! Units whose place depends on what stands around them: nothing moves across them, and they stay behind a message of the
//! user and before one of the model.

use std::collections::BTreeSet;

use super::Draft;
use crate::conversation::{Role, Unit, UnitIndex};

impl Draft<'_> {
    /// Whether something stands between a result and the unit that it would be moved behind which nothing moves across.
    pub(super) fn is_across_barrier(&self, behind: UnitIndex, result: UnitIndex) -> bool {
        let barriers = self.barriers();
        let first = barriers.partition_point(|barrier| *barrier <= behind.min(result));
        let between = barriers.iter().skip(first).take_while(|barrier| **barrier < behind.max(result));
        // A result may cross what stays in its place whatever leaves: `breaks_placement` looks after that.
        between.filter_map(|barrier| self.unit(*barrier)).any(|barrier| !barrier.flags.follows_user)
    }

    /// Whether a unit that has to stand between the user and the model would not, if these units left.
    pub(super) fn breaks_placement(&self, leaving: impl IntoIterator<Item = UnitIndex>) -> bool {
        if self.barriers().is_empty() {
            return false;
        }
        let leaving: BTreeSet<UnitIndex> = leaving.into_iter().collect();
        let stands = |unit: &UnitIndex| self.is_in_place(*unit) && !leaving.contains(unit);
        let end = self.request.conversation.next_unit();
        leaving.iter().any(|unit| {
            let next = UnitIndex::each(&(unit.next()..end)).find(stands).and_then(|next| self.unit(next));
            let Some(next) = next.filter(|next| next.role != Role::Assistant) else { return false };
            let before = UnitIndex::each(&(UnitIndex::default()..*unit)).rev().find(stands);
            match before.and_then(|before| self.unit(before)) {
                before if next.flags.follows_user => {
                    before.is_none_or(|before| before.role == Role::Assistant && !self.gets_result(before))
                }
                before => before.is_some_and(|before| before.flags.follows_user),
            }
        })
    }

    /// Whether a result is put in behind a unit of the model.
    fn gets_result(&self, caller: &Unit) -> bool {
        let pairing = self.pairing();
        let first = pairing.calls.partition_point(|call| call.block < caller.blocks.start);
        let calls = pairing.calls.get(first..).unwrap_or_default().iter();
        let mut calls = calls.take_while(|call| call.block < caller.blocks.end);
        calls.any(|call| !call.answered && call.answerable && !self.dropped_calls.contains(&call.block))
    }

    fn unit(&self, unit: UnitIndex) -> Option<&Unit> {
        self.request.conversation.unit(unit)
    }

    fn barriers(&self) -> &[UnitIndex] {
        let units = self.request.conversation.indexed_units();
        self.barriers.get_or_init(|| units.filter(|(_, unit)| unit.flags.barrier).map(|(n, _)| n).collect())
    }
}
