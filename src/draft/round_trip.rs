//! Calls that are left out with their results, and calls that are answered in another form.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Draft, Inserted, Label, Leaving, Row};
use crate::conversation::{BlockIndex, BlockKind, CallIndex, Pairing, Role, Unit, UnitIndex};
use crate::dialect::OpenCalls;
use crate::plan::Action;

impl Draft<'_> {
    /// The units that leave when all of their calls have: the one that calls, or its whole turn, where that has reasoning
    /// which is bound to it. Then the calls of the turn are removed together or not at all.
    pub fn leaves_with(&self, call: BlockIndex) -> Range<UnitIndex> {
        let Some(caller) = self.conversation.caller(call) else { return Range::default() };
        let bound = self.known.bound_turns.get_or_init(|| {
            let bound = self.conversation.units.iter().filter(|unit| unit.flags.bound);
            bound.map(|unit| unit.turn).collect()
        });
        let is_bound = self.unit(caller).is_some_and(|unit| bound.contains(&unit.turn));
        if is_bound { self.conversation.turn_of(caller) } else { caller..caller.next() }
    }

    /// Leaves results out together with the calls that they answer, and with the units that called, if nothing is left of
    /// those; `since` is the model call that they were not there for any more. False if one of them is not to be
    /// touched, or has not been read; then none leaves. Where a result has come since, in the place of a row or as a
    /// further one of the same call, the call stays with all of its results.
    pub fn drop_round_trips(&mut self, edit: Label, rows: &[Row], since: UnitIndex) -> bool {
        let n_bytes = self.n_bytes;
        let left = if self.comes_back(rows) {
            rows.iter().all(|row| self.may_lose_call(row))
        } else {
            self.drop_calls(edit, rows)
        };
        if left {
            self.n_bytes_removed += n_bytes.saturating_sub(self.n_bytes);
            self.dropped_rows.entry(since).or_default().extend(rows);
        }
        left
    }

    /// Whether units leave as a whole, with all results of their calls: they are a turn with reasoning that is bound to it,
    /// or a call with several results.
    pub fn leave_whole(&self, units: &Range<UnitIndex>) -> bool {
        let several = || self.conversation.block_range(units.clone()).any(|call| self.n_further(call) > 0);
        let found = self.conversation.unit_range(units);
        found.len() > 1
            || found.first().is_some_and(|unit| unit.flags.bound)
            || (self.conversation.traits.repeats_results && several())
    }

    /// Whether a unit says something beside its calls.
    pub(super) fn speaks(&self, unit: UnitIndex) -> bool {
        self.unit(unit).is_some_and(|unit| unit.flags.speaks)
    }

    // === calls that are answered in another form than a result ===

    /// Marks calls as not answerable if messages directly after their batch answer them in another form. The upstream of such
    /// a client accepts that form, and a placeholder beside it would be false.
    pub(super) fn note_answers_in_words(&self, pairing: &mut Pairing) {
        // The calls without an answer, by the end of the run of their batch.
        let mut open: BTreeMap<UnitIndex, Vec<usize>> = BTreeMap::new();
        for (n, call) in pairing.calls.iter().enumerate().filter(|(_, call)| !call.answered && call.answerable) {
            if let Some(run_end) = pairing.run_end_of(call) {
                open.entry(run_end).or_default().push(n);
            }
        }
        for (run_end, open) in open {
            if !self.is_answered_in_words(pairing, &open, run_end.next()) {
                continue;
            }
            for call in open {
                if let Some(call) = pairing.calls.get_mut(call) {
                    call.answerable = false;
                }
            }
        }
    }

    /// Whether one of the messages from `next` on answers one of the open calls of a batch.
    fn is_answered_in_words(&self, pairing: &Pairing, open: &[usize], next: UnitIndex) -> bool {
        let units = self.conversation.unit_range(&(next..self.conversation.next_unit()));
        let mut messages = units.iter().take_while(|unit| matches!(unit.role, Role::User | Role::Other)).peekable();
        if messages.peek().is_none() {
            return false;
        }
        let mut calls = OpenCalls::default();
        for n in open {
            let block = pairing.call(CallIndex::new(*n)).and_then(|call| self.conversation.block(call.block));
            if let Some(BlockKind::ToolCall { id, name, .. }) = block.map(|block| &block.kind) {
                calls.ids.extend(Some(&*id.text).filter(|id| !id.is_empty()));
                calls.tools.extend(name.as_deref());
            }
        }
        messages.any(|message| self.dialect.answers_in_words(self.body, message.span, &calls))
    }

    // === helpers ===

    /// Whether a call of some rows has received a result since: the one that a row was a placeholder for, or a further one.
    fn comes_back(&self, rows: &[Row]) -> bool {
        let pairing = self.pairing();
        let is_answered = |call| pairing.call_of(call).is_some_and(|call| call.answered);
        let superseded = |row: &Row| row.unit.is_none() && row.call.is_some_and(is_answered);
        let calls: BTreeSet<_> = rows.iter().filter_map(|row| row.call).collect();
        let n_results: usize = calls.into_iter().map(|call| 1 + self.n_further(call)).sum();
        rows.iter().any(superseded) || rows.len() < n_results
    }

    /// How many more results than one a call has.
    fn n_further(&self, call: BlockIndex) -> usize {
        self.pairing().call_of(call).map_or(0, |call| call.n_further)
    }

    fn drop_calls(&mut self, edit: Label, rows: &[Row]) -> bool {
        let Some(first) = rows.first().and_then(|row| row.call) else { return false };
        let units = self.leaves_with(first);
        let is_whole_turn = self.leave_whole(&units);
        let calls: BTreeSet<_> = rows.iter().filter_map(|row| row.call).collect();
        let complete = !is_whole_turn || calls.iter().copied().eq(self.conversation.block_range(units.clone()));
        let stays = |unit: &Unit| unit.flags.stays || unit.flags.loads || unit.flags.runs_program;
        let results = || rows.iter().filter_map(|row| row.unit);
        let of_rows = results().filter_map(|unit| self.unit(unit));
        if self.leaving != Leaving::Allowed
            || self.conversation.unit_range(&units).iter().chain(of_rows).any(stays)
            || !complete
            || !rows.iter().all(|row| self.may_lose_call(row) && self.may_lose_result(row))
        {
            return false;
        }
        let callers = UnitIndex::each(&units).filter(|unit| is_whole_turn || !self.speaks(*unit));
        if self.breaks_order(results().chain(callers), &calls) {
            return false;
        }
        for row in rows {
            self.drop_call(edit, row);
        }
        for unit in UnitIndex::each(&units) {
            let is_empty = self.batches.get(&unit) == Some(&0) && !self.speaks(unit);
            if (is_whole_turn || is_empty) && self.take(unit) {
                self.record_drop(edit, unit);
            }
        }
        true
    }

    /// Leaves a call and its result out. There is no result where nothing replaces one that is missing.
    fn drop_call(&mut self, edit: Label, row: &Row) {
        let Some((call, block)) = row.call.and_then(|call| Some((call, self.conversation.block(call)?))) else {
            return;
        };
        let n_calls = self.unit(block.unit).map_or(0, |unit| self.conversation.blocks_of(unit).len());
        let is_new = self.dropped_calls.insert(call);
        *self.batches.entry(block.unit).or_insert(n_calls) -= usize::from(is_new);
        self.known.tokens_now.borrow_mut().remove(&block.unit);
        if is_new && self.call_that_is(block.unit).is_none() {
            let action = Action::DropCall { message: block.unit.get() };
            self.record(self.about(edit, action, block.unit, Some(call)), block.span.len(), 0);
        }
        if let Some(insertion) = row.insertion.and_then(|n| self.insertions.get_mut(n.get())) {
            insertion.gone = true;
            if let Some(change) = insertion.change {
                self.journal.revoke(change);
            }
            if let (None, Inserted::New(_)) = (row.unit, insertion.what) {
                self.n_bytes = self.n_bytes.saturating_sub(insertion.bytes.len());
            }
        } else if let Some(unit) = row.unit {
            self.take(unit);
        }
        if let Some(unit) = row.unit {
            self.moved.remove(&unit);
            self.record_drop(edit, unit);
        }
    }

    /// Whether the call of a row can be taken out of its unit.
    fn may_lose_call(&self, row: &Row) -> bool {
        let call = row.call.filter(|call| !self.dropped_calls.contains(call));
        let block = call.and_then(|call| self.conversation.block(call));
        block.is_some_and(|block| {
            let may_change = self.batches.contains_key(&block.unit) || !self.has_replacements(block.unit);
            let is_element = block.span == self.span(block.unit);
            self.is_in_place(block.unit)
                && may_change
                && (is_element || self.entries(self.element_of(block.unit)).is_some())
        })
    }

    /// Whether the result of a row can be taken out, and what called for it can with it.
    fn may_lose_result(&self, row: &Row) -> bool {
        let caller = row.call.and_then(|call| self.conversation.caller(call));
        if caller.is_some_and(|caller| caller < self.first_editable || self.is_in_last_answer(caller))
            || row.unit.is_some_and(|unit| self.is_unread(unit) || self.has_replacements(unit))
        {
            return false;
        }
        match (self.insertion_of(row), row.unit) {
            (Some(insertion), _) => !insertion.gone,
            (None, Some(unit)) => self.may_leave(unit) && self.is_in_place(unit),
            (None, None) => true,
        }
    }
}
