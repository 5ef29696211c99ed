//! Units whose place depends on what stands around them: nothing moves across them, and they stay behind a message of the
//! user and before one of the model.

use std::collections::BTreeSet;

use super::Draft;
use crate::conversation::{Role, Unit};

impl Draft<'_> {
    /// Whether something stands between a result and the unit that it would be moved behind which nothing moves across.
    pub(super) fn is_across_barrier(&self, behind: usize, result: usize) -> bool {
        let barriers = self.barriers();
        let first = barriers.partition_point(|barrier| *barrier <= behind.min(result));
        barriers.get(first).is_some_and(|barrier| *barrier < behind.max(result))
    }

    /// Whether a unit that has to stand between the user and the model would not, if these units left.
    pub(super) fn breaks_placement(&self, leaving: impl IntoIterator<Item = usize>) -> bool {
        if self.barriers().is_empty() {
            return false;
        }
        let leaving: BTreeSet<usize> = leaving.into_iter().collect();
        let stands = |unit: &usize| self.in_place.get(*unit).copied().unwrap_or_default() && !leaving.contains(unit);
        leaving.iter().any(|unit| {
            let next = (unit + 1..self.in_place.len()).find(stands).and_then(|next| self.unit(next));
            let Some(next) = next.filter(|next| next.role != Role::Assistant) else { return false };
            let before = (0..*unit).rev().find(stands);
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
        let first = pairing.calls.partition_point(|call| call.block.get() < caller.blocks.start);
        let calls = pairing.calls.get(first..).unwrap_or_default().iter();
        let mut calls = calls.take_while(|call| call.block.get() < caller.blocks.end);
        calls.any(|call| !call.answered && call.answerable && !self.dropped_calls.contains(&call.block))
    }

    fn unit(&self, unit: usize) -> Option<&Unit> {
        self.request.conversation.units.get(unit)
    }

    fn barriers(&self) -> &[usize] {
        let units = self.request.conversation.units.iter().enumerate();
        self.barriers.get_or_init(|| units.filter(|(_, unit)| unit.flags.barrier).map(|(n, _)| n).collect())
    }
}
