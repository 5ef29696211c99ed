//! Calls by which the model controls clearing: it pins results, or has old ones cleared.
//!
//! Later requests have these calls again. A call counts from the next model call on, so replay finds the same pins
//! at the same places.

use std::collections::VecDeque;
use std::mem;

use super::Replay;
use crate::conversation::{Role, UnitIndex};
use crate::dialect::strings;
use crate::draft::{Draft, Replayed, Row, RowIndex};
use crate::edit::trigger::Part;
use crate::recall::own_tools::{Control, is_control_tool};

/// The part of the trigger that pinned results may take together. It is less than the three eighths from which results are
/// cleared where a user's turn begins, and the difference is about the seventh that a clearing has to free. So pins alone never
/// reach a trigger.
const PINNED: Part = Part(1, 4);

/// The same if the trigger asks for no tokens: a quarter of the default one.
const PINNED_WITHOUT_TOKENS: usize = 20_000;

/// The most results that are pinned, and the most messages that are looked at for one.
const MAX_PINS: usize = 64;
const LOOKED_AT: usize = 512;

/// The calls of the model that control clearing. Results have the numbers of the timeline.
pub(super) struct Controls {
    /// The most tokens that pinned results have together.
    most: usize,
    /// The controls since the last model call.
    new: Vec<Control>,
    /// Whether results are cleared at the next model call at which they may be.
    compacts: bool,
    /// The pinned results with their tokens, the newest pin last.
    pinned: VecDeque<(RowIndex, usize)>,
}

impl Controls {
    /// Before any message has come.
    pub(super) fn new(least_tokens: usize) -> Self {
        let most = if least_tokens > 0 { PINNED.of(least_tokens) } else { PINNED_WITHOUT_TOKENS };
        Self { most, new: Vec::new(), compacts: false, pinned: VecDeque::new() }
    }

    /// Whether a result is pinned.
    pub(super) fn has_pinned(&self, number: RowIndex) -> bool {
        self.pinned.iter().any(|(pinned, _)| *pinned == number)
    }

    /// Ends all pins.
    pub(super) fn let_go(&mut self) {
        self.pinned.clear();
    }

    /// Pins a result, unless it has more tokens than all pins may have. The oldest pins end if there is no room for all of them.
    fn pin(&mut self, number: RowIndex, tokens: usize) {
        if tokens > self.most {
            return;
        }
        self.pinned.retain(|(pinned, _)| *pinned != number);
        self.pinned.push_back((number, tokens));
        while self.pinned.len() > MAX_PINS || self.pinned.iter().map(|(_, tokens)| tokens).sum::<usize>() > self.most {
            self.pinned.pop_front();
        }
    }
}

/// Whether the model has called the tool that controls clearing.
pub(in crate::edit::clear_tool_results) fn has_controls(draft: &Draft<'_>) -> bool {
    let conversation = draft.conversation;
    let blocks = conversation.block_range(UnitIndex::default()..conversation.next_unit());
    draft.offers_control && blocks.into_iter().any(|block| is_control_tool(conversation.tool_name(block)))
}

impl Replay<'_, '_> {
    /// Notes what the call asks for that a message answers, if it controls clearing. Says whether it does.
    pub(super) fn control_came(&mut self, row: &Row) -> bool {
        let is_control = self.draft.offers_control && is_control_tool(self.draft.tool_of(row.call));
        let Some(call) = row.call.filter(|_| is_control) else { return false };
        if row.unit.is_some() && !self.draft.is_further(row) {
            self.controls
                .new
                .extend(self.draft.request().arguments(call).and_then(|arguments| Control::parse(&arguments)));
        }
        true
    }

    /// Applies the controls since the last model call. Says whether the model has asked to clear results, and they may be cleared.
    pub(super) fn apply_controls(&mut self, place: UnitIndex, replayed: Replayed) -> bool {
        for control in mem::take(&mut self.controls.new) {
            let pinned = if let Control::Pin { result } = &control { self.named(result.as_deref()) } else { None };
            self.controls.compacts |= control == Control::Compact;
            // A cleared result stays cleared, and ends no other pin.
            let is_cleared =
                |number: &RowIndex| self.cleared.iter().rev().take(LOOKED_AT).any(|(one, _)| one == number);
            let Some(number) = pinned.filter(|number| !is_cleared(number)) else { continue };
            self.controls.pin(number, self.tally.tokens_of(number));
            if let Some(clearing) = self.ready.remove(&number) {
                self.ready_frees -= clearing.freed;
                self.wait(number);
            }
        }
        let may_pass = || matches!(replayed, Replayed::Made(_)) || self.draft.may_clear(place, self.tally.tokens);
        let compacts = self.controls.compacts && may_pass();
        self.controls.compacts &= !compacts;
        compacts
    }

    /// The newest result whose call has these words in its arguments; the last result without any.
    fn named(&self, words: Option<&str>) -> Option<RowIndex> {
        let words = strings::render(words.unwrap_or_default().trim()); // in quotes
        let words = str::from_utf8(&words).ok()?.trim_matches('"');
        let is_named = |number: &RowIndex| {
            let is_result = |row: &&Row| row.role == Role::Tool && row.unit.is_some() && self.tally.is_here(*number);
            let call = self.tally.row(*number).filter(is_result).and_then(|row| row.call);
            let call = call.filter(|call| !is_control_tool(self.draft.conversation.tool_name(*call)));
            call.is_some_and(|call| self.draft.request().arguments(call).unwrap_or_default().contains(words))
        };
        (0..self.tally.n_rows()).rev().take(LOOKED_AT).map(RowIndex::new).find(is_named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned(controls: &Controls) -> Vec<usize> {
        controls.pinned.iter().map(|(number, _)| number.get()).collect()
    }

    #[test]
    fn pins_have_as_many_tokens_as_is_allowed_and_the_newest_of_them_stay() {
        let mut controls = Controls::new(400);
        controls.pin(RowIndex::new(1), 60);
        controls.pin(RowIndex::new(2), 40);
        assert!(controls.has_pinned(RowIndex::new(1)) && !controls.has_pinned(RowIndex::new(3)));
        assert_eq!(pinned(&controls), [1, 2], "at the limit");
        controls.pin(RowIndex::new(1), 60);
        assert_eq!(pinned(&controls), [2, 1], "pinned again");
        controls.pin(RowIndex::new(3), 1);
        assert_eq!(pinned(&controls), [1, 3], "one token over it");
        controls.pin(RowIndex::new(4), 101);
        assert_eq!(pinned(&controls), [1, 3], "too large for a pin");
        controls.pin(RowIndex::new(4), 100);
        assert_eq!(pinned(&controls), [4]);
        for n in 0..=MAX_PINS {
            controls.pin(RowIndex::new(n), 1);
        }
        assert_eq!((pinned(&controls).len(), controls.has_pinned(RowIndex::new(0))), (MAX_PINS, false));
    }

    #[test]
    fn pins_alone_reach_no_trigger() {
        for least in [1, 100, 4_000, 80_000] {
            assert!(PINNED.of(least) <= super::super::super::TURN.of(least), "{least}");
        }
        assert_eq!(Controls::new(0).most, PINNED.of(80_000));
    }
}
