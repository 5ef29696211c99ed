//! How large a conversation was at each place of its timeline.
//!
//! Sums run along. A message that loses calls is not counted anew each time: what is counted of it is each call by itself,
//! which comes to the same, as the tokens of a message are a sum.
//!
//! Texts that part two answers are not counted: their places in earlier requests depend on what was removed since.

use std::{collections::HashMap, ops::Range};

use super::{Draft, Row, RowElement, RowIndex, TimelineEvent};
use crate::conversation::{BlockIndex, ElementIndex, UnitIndex};

/// The size at the present place.
#[derive(Debug)]
pub struct Tally<'t, 'd> {
    draft: &'t Draft<'d>,
    /// Whether tokens are counted.
    counts: bool,
    /// The tokens of the request.
    pub(crate) tokens: usize,
    /// The length of the message array.
    pub(crate) n_messages: usize,
    /// How many messages have come, those that are not there any more among them.
    pub(crate) n_came: usize,
    rows: Vec<TrackedRow>,
    /// By the first of the units that leave with them.
    callers: HashMap<UnitIndex, DroppedCalls>,
    /// How many units of each element are there, where that has more than one.
    elements: HashMap<RowElement, usize>,
    /// The tokens of the reasoning that has left units.
    reasoning: HashMap<UnitIndex, usize>,
}

/// A row that has been added, and its size.
#[derive(Clone, Copy, Debug)]
struct TrackedRow {
    row: Row,
    tokens: usize,
    /// How many fewer it and its call have now.
    freed: usize,
    is_here: bool,
}

/// The calls that have been dropped from a message.
#[derive(Clone, Copy, Debug, Default)]
struct DroppedCalls {
    n_calls: usize,
    tokens: usize,
}

impl<'t, 'd> Tally<'t, 'd> {
    /// Before anything has come. Where tokens are not counted, they are 0.
    pub fn new(draft: &'t Draft<'d>, counts: bool) -> Self {
        let tokens = if counts { draft.base_tokens() } else { 0 };
        Self {
            draft,
            counts,
            tokens,
            n_messages: 0,
            n_came: 0,
            rows: Vec::new(),
            callers: HashMap::new(),
            elements: HashMap::new(),
            reasoning: HashMap::new(),
        }
    }

    /// How many rows have been added.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The message of a number.
    pub fn row(&self, number: RowIndex) -> Option<&Row> {
        self.rows.get(number.get()).map(|tracked| &tracked.row)
    }

    /// The tokens that a message had when it came.
    pub fn tokens_of(&self, number: RowIndex) -> usize {
        self.rows.get(number.get()).map_or(0, |tracked| tracked.tokens)
    }

    /// Whether a message is there.
    pub fn is_here(&self, number: RowIndex) -> bool {
        self.rows.get(number.get()).is_some_and(|tracked| tracked.is_here)
    }

    /// Goes on to after an event.
    pub fn follow(&mut self, event: TimelineEvent) {
        match event {
            TimelineEvent::Added(row) => self.came(row),
            TimelineEvent::Superseded(number) => {
                let had_left = !self.is_here(number);
                if let Some(call) = self.goes(number).filter(|_| had_left) {
                    self.call_is_back(call);
                }
            }
            TimelineEvent::Removed(number) => {
                if let Some(call) = self.goes(number) {
                    self.call_leaves(call);
                }
            }
            TimelineEvent::ModelCall(_) => {}
        }
    }

    /// Takes it that a result and its call have so many tokens fewer from here on.
    pub fn shrink(&mut self, number: RowIndex, tokens: usize) {
        if let Some(tracked) = self.rows.get_mut(number.get()) {
            tracked.freed += tokens;
            self.tokens = self.tokens.saturating_sub(tokens);
        }
    }

    /// Takes it that a unit is without its reasoning from here on.
    pub fn leave_reasoning_out(&mut self, number: RowIndex, tokens: usize) {
        self.shrink(number, tokens);
        if let Some(unit) = self.row(number).and_then(|row| row.unit) {
            self.reasoning.insert(unit, tokens);
        }
    }

    fn came(&mut self, row: Row) {
        let tokens = if self.counts { self.draft.tokens_with_all_calls(&row) } else { 0 };
        self.tokens += tokens;
        self.count_element(&row, true);
        self.n_came += usize::from(row.is_there());
        self.rows.push(TrackedRow { row, tokens, freed: 0, is_here: true });
    }

    /// A message is not there any more. Returns the call that it answers.
    fn goes(&mut self, number: RowIndex) -> Option<BlockIndex> {
        let tracked = self.rows.get_mut(number.get())?;
        if std::mem::take(&mut tracked.is_here) {
            self.tokens = (self.tokens + tracked.freed).saturating_sub(tracked.tokens);
            let row = tracked.row;
            self.count_element(&row, false);
        }
        self.row(number)?.call
    }

    /// Counts the element of a message that comes or goes: it is there while one of its units is.
    fn count_element(&mut self, row: &Row, comes: bool) {
        if !row.is_there() {
            return;
        }
        let alone = &mut usize::from(!comes);
        let n_units = if self.shares_element(row) { self.elements.entry(row.element).or_default() } else { alone };
        if comes {
            *n_units += 1;
            self.n_messages += usize::from(*n_units == 1);
        } else {
            *n_units -= 1;
            self.n_messages -= usize::from(*n_units == 0);
        }
    }

    /// Whether other units may be in the same element.
    fn shares_element(&self, row: &Row) -> bool {
        let RowElement::Original(element) = row.element else { return false };
        self.draft.conversation().element(element).is_some_and(|element| UnitIndex::numbers(&element.units).len() > 1)
    }

    fn call_leaves(&mut self, call: BlockIndex) {
        let tokens = self.call_tokens(call);
        self.tokens = self.tokens.saturating_sub(tokens);
        let units = self.draft.leaves_with(call);
        let left = self.callers.entry(units.start).or_default();
        (left.n_calls, left.tokens) = (left.n_calls + 1, left.tokens + tokens);
        if let Some((rest, n_elements)) = self.rest(&units) {
            self.tokens = self.tokens.saturating_sub(rest);
            self.n_messages = self.n_messages.saturating_sub(n_elements);
        }
    }

    fn call_is_back(&mut self, call: BlockIndex) {
        let units = self.draft.leaves_with(call);
        if let Some((rest, n_elements)) = self.rest(&units) {
            self.tokens += rest;
            self.n_messages += n_elements;
        }
        let tokens = self.call_tokens(call);
        self.tokens += tokens;
        let left = self.callers.entry(units.start).or_default();
        (left.n_calls, left.tokens) = (left.n_calls.saturating_sub(1), left.tokens.saturating_sub(tokens));
    }

    /// The tokens that units which called have beside their calls, and their elements, if they leave with the last of
    /// the calls.
    fn rest(&self, units: &Range<UnitIndex>) -> Option<(usize, usize)> {
        let left = self.callers.get(&units.start)?;
        let conversation = self.draft.conversation();
        let stays = !self.draft.leave_whole(units) && self.draft.speaks(units.start);
        if left.n_calls < conversation.block_range(units.clone()).len() || stays {
            return None;
        }
        let all = if self.counts { self.draft.original_tokens(units.clone()) } else { 0 };
        let reasoning: usize = UnitIndex::each(units).filter_map(|unit| self.reasoning.get(&unit)).sum();
        let elements = ElementIndex::each(&conversation.elements_of(units.clone()));
        Some((all.saturating_sub(left.tokens + reasoning), elements.len()))
    }

    fn call_tokens(&self, call: BlockIndex) -> usize {
        if self.counts { self.draft.call_tokens(call, &[]) } else { 0 }
    }
}
