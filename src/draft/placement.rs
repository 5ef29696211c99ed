//! The order of roles that servers want: units that have to follow the user and precede the model, and messages of the model
//! that may not follow each other.

use std::collections::BTreeSet;

use super::{Draft, Label};
use crate::conversation::{BlockIndex, Role, Unit, UnitIndex};

impl Draft<'_> {
    /// Whether something stands between a result and the unit that it would be moved after which nothing moves across.
    pub(super) fn is_across_barrier(&self, behind: UnitIndex, result: UnitIndex) -> bool {
        let barriers = self.barriers();
        let first = barriers.partition_point(|barrier| *barrier <= behind.min(result));
        let between = barriers.iter().skip(first).take_while(|barrier| **barrier < behind.max(result));
        // A result may cross a unit that has to follow the user: `take_out_of_place` keeps one before it.
        between.filter_map(|barrier| self.unit(*barrier)).any(|barrier| !barrier.flags.follows_user)
    }

    /// Takes a result out of its place. If a unit that has to follow the user would then follow the model, a short text of
    /// the user is put there. False if the result may not leave.
    pub(super) fn take_out_of_place(&mut self, edit: Label, result: UnitIndex) -> bool {
        let breaks = self.breaks_order([result].into_iter(), &BTreeSet::new()) || self.begins_conversation(result);
        if !self.take(result) {
            return false;
        }
        if breaks {
            self.insert_text(edit, result, self.text_for_removed_result());
        }
        true
    }

    fn text_for_removed_result(&self) -> &'static str {
        self.language.choose("[A tool result was moved or removed here.]", "[此处的工具结果已被移动或移除。]")
    }

    /// Inserts a short text of the user where results have left that alone were between an answer of the model and its next
    /// one or the end. Servers refuse a request that ends with the model, or have the model go on with that message.
    pub fn insert_texts_for_removed_results(&mut self, edit: Label) {
        if !self.in_place.contains(&false) {
            return;
        }
        let (mut before, mut left) = (None, None);
        // The index behind the last unit is the end, which has no role.
        for unit in UnitIndex::each(&(UnitIndex::default()..self.conversation.next_unit().next())) {
            let role = self.unit(unit).map(|unit| unit.role);
            if role.is_some() && !self.is_in_place(unit) {
                left = left.max(Some(unit).filter(|_| role == Some(Role::Tool)));
                continue;
            }
            let is_bare = |before: &UnitIndex| {
                self.unit(*before).is_some_and(|before| before.role == Role::Assistant)
                    && !self.gets_result(*before, &BTreeSet::new())
                    && self.texts.range(*before..unit).next().is_none()
            };
            if let Some(left) = left.take().filter(|_| matches!(role, None | Some(Role::Assistant)))
                && before.as_ref().is_some_and(is_bare)
            {
                self.insert_text(edit, left, self.text_for_removed_result());
            }
            before = Some(unit);
        }
    }

    /// Whether the model would begin the conversation without a result, and servers may refuse that.
    fn begins_conversation(&self, result: UnitIndex) -> bool {
        let of_model = |unit: UnitIndex| self.unit(unit).is_some_and(|unit| unit.role == Role::Assistant);
        let speaks = |unit: &UnitIndex| {
            let instructs = |unit: &Unit| matches!(unit.role, Role::System | Role::Developer);
            self.is_in_place(*unit) && !self.unit(*unit).is_some_and(instructs)
        };
        let begins = || !UnitIndex::each(&(UnitIndex::default()..result)).any(|unit| speaks(&unit));
        let begins_with_user = self.dialect.facts().begins_with_user && self.summarised().is_none();
        begins_with_user && of_model(result.next()) && self.texts.is_empty() && begins()
    }

    /// Inserts a short text of the user after each message of the model whose calls were all removed, if the next message is
    /// the model's too and servers of the dialect may refuse that.
    pub fn part_answers(&mut self, edit: Label) {
        if self.batches.is_empty() || !self.dialect.facts().alternates {
            return;
        }
        let text = self.language.choose("[Tool calls were removed here.]", "[此处的工具调用已被移除。]");
        let mut rows = self.rows();
        rows.retain(|row| row.role != Role::Tool);
        let next = rows.iter().skip(1).map(|next| Some(next.role)).chain([None]);
        for (row, next) in rows.iter().zip(next) {
            let Some(unit) = row.unit.filter(|unit| self.batches.get(unit) == Some(&0)) else { continue };
            if next == Some(Role::Assistant) {
                self.insert_text(edit, unit, text);
            } else {
                // An earlier request may have had one.
                self.n_bytes_removed += self.dialect.render_user_entry(text).len() + 1;
            }
        }
    }

    /// Whether a unit that has to stand between the user and the model would not, if these units and calls left.
    pub(super) fn breaks_order(&self, gone: impl Iterator<Item = UnitIndex>, calls: &BTreeSet<BlockIndex>) -> bool {
        if self.barriers().is_empty() {
            return false;
        }
        let leaving: BTreeSet<UnitIndex> = gone.collect();
        let stands = |unit: &UnitIndex| self.is_in_place(*unit) && !leaving.contains(unit);
        // A turn that stays may lose its results.
        let turns = calls.iter().filter_map(|call| Some(self.conversation.turn_of(self.conversation.caller(*call)?)));
        let turns: BTreeSet<_> = turns.filter_map(|turn| UnitIndex::each(&turn).next_back()).collect();
        leaving.union(&turns).any(|unit| {
            let next = UnitIndex::each(&(unit.next()..self.conversation.next_unit())).find(stands);
            let next = next.and_then(|next| Some((next, self.unit(next)?)));
            let Some((at, next)) = next.filter(|(_, next)| next.role != Role::Assistant) else { return false };
            let is_of_model = self.unit(*unit).is_some_and(|unit| unit.role == Role::Assistant);
            if !next.flags.follows_user && !is_of_model {
                return false; // the result already parted what has to be before the model from it
            }
            let before = UnitIndex::each(&(UnitIndex::default()..unit.next())).rev().find(stands);
            let has_text = || self.texts.range(before.unwrap_or_default()..at).next().is_some();
            match before.and_then(|before| Some((before, self.unit(before)?))) {
                Some((_, of)) if !next.flags.follows_user => of.flags.follows_user,
                Some((_, of)) if of.role != Role::Assistant => false,
                Some((before, _)) => !self.gets_result(before, calls) && !has_text(),
                None => next.flags.follows_user && !has_text(),
            }
        })
    }

    /// Whether the turn of a unit of the model still has a result, or is to get one, once these calls are removed.
    fn gets_result(&self, caller: UnitIndex, leaving: &BTreeSet<BlockIndex>) -> bool {
        let (conversation, pairing) = (self.conversation, self.pairing());
        let mut calls = conversation.block_range(conversation.turn_of(caller));
        calls.any(|call| {
            let gets = pairing.call_of(call).is_some_and(|call| call.answered || call.answerable);
            gets && !self.dropped_calls.contains(&call) && !leaving.contains(&call)
        })
    }

    fn barriers(&self) -> &[UnitIndex] {
        let units = self.conversation.indexed_units();
        self.known.barriers.get_or_init(|| units.filter(|(_, unit)| unit.flags.barrier).map(|(n, _)| n).collect())
    }
}
