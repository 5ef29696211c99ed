//! The conversation as it grew, for edits that do again what they did in its earlier requests.
//!
//! Rows are what is there now. That is not what was there then: a result that came late follows its call now, where
//! another stood until it came, and what an edit has left out was there before. Here each message comes when it came.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::{Draft, Inserted, InsertionIndex, Row, RowElement};
use crate::conversation::{BlockIndex, ElementIndex, Pairing, Role, Unit, UnitIndex, index::Index};

/// The beginning of a text that Claude Code adds to the user's words, and after tool results.
const REMINDER: &[u8] = b"\"<system-reminder>";

/// A row of the timeline, numbered in the order of their [`TimelineEvent::Added`].
pub type RowIndex = Index<5>;

/// An event of a conversation.
#[derive(Clone, Copy, Debug)]
pub enum TimelineEvent {
    /// A message came. For a call without a result at the next model call it is what replaced that, right after the
    /// results that were there; where no edit had put anything there, a row that [is not there](Row::is_there).
    Added(Row),
    /// The next message is the result that the one of this number replaced.
    Superseded(RowIndex),
    /// The result of this number was left out with its call, whatever replaced it.
    Removed(RowIndex),
    /// The model was called with what was there; the place of [`Conversation::model_calls`].
    ///
    /// [`Conversation::model_calls`]: crate::conversation::Conversation::model_calls
    ModelCall(UnitIndex),
}

impl Row {
    /// Whether it is a message, and not just a call that has no result.
    pub fn is_there(&self) -> bool {
        self.unit.is_some() || self.insertion.is_some()
    }
}

impl Draft<'_> {
    /// The events of the conversation in order, as the edits so far would have left it at each model call.
    pub fn timeline(&self) -> Vec<TimelineEvent> {
        let (conversation, pairing) = (self.conversation, self.pairing());
        let mut calls = conversation.model_calls();
        calls.extend(self.sent_calls());
        calls.sort_unstable();
        calls.dedup();
        let insertions = self.insertions_by_row();
        let mut missing = self.missing(&pairing, &calls, &insertions).into_iter().peekable();
        let mut calls = calls.into_iter().peekable();
        let mut timeline = Timeline::default();
        // Results that were moved behind later ones of their run, by the result that they are behind.
        let mut delayed: BTreeMap<UnitIndex, BTreeMap<InsertionIndex, Row>> = BTreeMap::new();
        for (index, unit) in conversation.indexed_units() {
            while let Some(call) = calls.next_if(|call| *call == index) {
                timeline.called(call, self);
            }
            if !self.orphans.contains_key(&index) {
                let call = if unit.role == Role::Tool { pairing.answered_block(index) } else { None };
                let moved =
                    insertions.get(&RowKey::Unit(index)).and_then(|n| Some((*n, self.insertions.get(n.get())?)));
                let moved = moved.filter(|(_, of)| matches!(of.what, Inserted::Moved(_)));
                let (element, insertion) = (RowElement::Original(unit.element), moved.map(|(n, _)| n));
                let row = Row { role: unit.role, unit: Some(index), call, element, insertion };
                match moved {
                    Some((n, of)) if of.behind > index => drop(delayed.entry(of.behind).or_default().insert(n, row)),
                    _ => timeline.came(row),
                }
            }
            delayed.remove(&index).into_iter().flatten().for_each(|(_, row)| timeline.came(row));
            while let Some((_, row)) = missing.next_if(|(behind, _)| *behind == index) {
                timeline.came(row);
            }
        }
        calls.for_each(|call| timeline.called(call, self));
        timeline.events
    }

    /// Whether the model was called at a place because the user had said something: the newest message before it is the
    /// user's own, and neither a tool result nor a reminder that a client puts among the user's words. What the model is to
    /// continue does not count.
    pub fn begins_user_turn(&self, model_call: UnitIndex) -> bool {
        let before = self.conversation.unit_range(&(UnitIndex::default()..model_call)).iter().rev();
        let mut new = before.skip_while(|unit| unit.role == Role::Assistant);
        new.find_map(|unit| self.speaker(unit)) == Some(Role::User)
    }

    /// The role of a unit of the user, the model or a tool; none of reminders and instructions.
    pub fn speaker(&self, unit: &Unit) -> Option<Role> {
        let is_reminder = || {
            let texts = self.request().texts(unit);
            texts.first().is_some_and(|text| text.of(self.body).starts_with(REMINDER))
        };
        match unit.role {
            Role::Tool | Role::Assistant => Some(unit.role),
            Role::User => (!is_reminder()).then_some(Role::User),
            Role::System | Role::Developer | Role::Other => None,
        }
    }

    /// Returns what replaces the results that were missing when the model was called, and the messages that it came behind.
    fn missing(&self, pairing: &Pairing, model_calls: &[UnitIndex], insertions: &Insertions) -> Vec<(UnitIndex, Row)> {
        let mut answered_by = vec![None; pairing.calls.len()];
        for result in pairing.results.iter().filter(|result| !result.is_further) {
            if let Some(answered) = result.answers.and_then(|call| answered_by.get_mut(call.get())) {
                *answered = Some(result.unit);
            }
        }
        let missing = pairing.calls.iter().zip(answered_by).filter_map(|(call, result)| {
            let caller = self.conversation.caller(call.block)?;
            let next = *model_calls.get(model_calls.partition_point(|place| *place <= caller))?;
            if result.is_some_and(|result| result < next) {
                return None;
            }
            let stood = result.map_or(RowKey::MissingResultOf(Some(call.block)), RowKey::Unit);
            // An unanswered request may have ended inside the run.
            let behind = pairing.run_end_of(call)?.min(UnitIndex::new(next.get().saturating_sub(1)));
            let insertion = insertions.get(&stood).copied();
            let (call, element) = (Some(call.block), self.element_behind(behind));
            Some((behind, Row { role: Role::Tool, unit: None, call, element, insertion }))
        });
        missing.collect()
    }

    /// The insertions of results.
    fn insertions_by_row(&self) -> Insertions {
        let rows = self.insertions.iter().map(|insertion| match insertion.what {
            Inserted::Moved(unit) | Inserted::Stood(unit) => Some(RowKey::Unit(unit)),
            Inserted::New(call) => Some(RowKey::MissingResultOf(Some(call))),
            Inserted::Text => None,
        });
        rows.enumerate().filter_map(|(n, row)| Some((row?, InsertionIndex::new(n)))).collect()
    }
}

type Insertions = HashMap<RowKey, InsertionIndex>;

/// Identifies a row.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum RowKey {
    Unit(UnitIndex),
    /// The replacement of the missing result of the call that is this block.
    MissingResultOf(Option<BlockIndex>),
}

impl RowKey {
    fn of(row: &Row) -> Self {
        row.unit.map_or(Self::MissingResultOf(row.call), Self::Unit)
    }
}

#[derive(Default)]
struct Timeline {
    events: Vec<TimelineEvent>,
    /// The rows that a result may still supersede, or that may still be removed.
    numbers: HashMap<RowKey, RowIndex>,
    n_rows: usize,
}

impl Timeline {
    fn came(&mut self, row: Row) {
        let stood_for_it = row.unit.and(row.call).map(|call| RowKey::MissingResultOf(Some(call)));
        if let Some(number) = stood_for_it.and_then(|stood| self.numbers.remove(&stood)) {
            self.events.push(TimelineEvent::Superseded(number));
        }
        self.numbers.insert(RowKey::of(&row), RowIndex::new(self.n_rows));
        self.n_rows += 1;
        self.events.push(TimelineEvent::Added(row));
    }

    fn called(&mut self, call: UnitIndex, draft: &Draft<'_>) {
        let left = draft.dropped_rows.get(&call).into_iter().flatten().map(RowKey::of);
        let left = left.filter_map(|row| self.numbers.get(&row).copied());
        self.events.extend(left.map(TimelineEvent::Removed));
        self.events.push(TimelineEvent::ModelCall(call));
    }
}

// === sizes ===

/// The size of a conversation at the present place of its timeline. Sums run along. A message that loses calls is not counted
/// anew each time: what is counted of it is each call by itself, which comes to the same, as the tokens of a message are a sum.
/// Texts that part two answers are not counted: their places in earlier requests depend on what was removed since.
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
    /// The calls that have been dropped, and their tokens, by the first of the units that leave with them.
    callers: HashMap<UnitIndex, (usize, usize)>,
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
                    self.count_call(call, true);
                }
            }
            TimelineEvent::Removed(number) => {
                if let Some(call) = self.goes(number) {
                    self.count_call(call, false);
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
        // A message that has lost calls counts with all of them.
        let whole = row.unit.filter(|unit| self.draft.batches.contains_key(unit));
        let tokens = || whole.map_or_else(|| self.draft.tokens_of(&row), |unit| self.draft.tokens_as_received(unit));
        let tokens = if self.counts { tokens() } else { 0 };
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
        self.draft.conversation.element(element).is_some_and(|element| UnitIndex::numbers(&element.units).len() > 1)
    }

    /// Counts a call that leaves or is back, and what leaves with the last call of its units.
    fn count_call(&mut self, call: BlockIndex, is_back: bool) {
        let tokens = if self.counts { self.draft.call_tokens(call, &[]) } else { 0 };
        let units = self.draft.leaves_with(call);
        if !is_back {
            let (n_left, left_tokens) = self.callers.entry(units.start).or_default();
            (*n_left, *left_tokens) = (*n_left + 1, *left_tokens + tokens);
        }
        let (rest, n_elements) = self.rest(&units).unwrap_or_default();
        if is_back {
            self.tokens += tokens + rest;
            self.n_messages += n_elements;
            let (n_left, left_tokens) = self.callers.entry(units.start).or_default();
            (*n_left, *left_tokens) = (n_left.saturating_sub(1), left_tokens.saturating_sub(tokens));
        } else {
            self.tokens = self.tokens.saturating_sub(tokens + rest);
            self.n_messages = self.n_messages.saturating_sub(n_elements);
        }
    }

    /// The tokens that units which called have beside their calls, and their elements, if they leave with the last of
    /// the calls.
    fn rest(&self, units: &Range<UnitIndex>) -> Option<(usize, usize)> {
        let (n_left, left_tokens) = self.callers.get(&units.start)?;
        let conversation = self.draft.conversation;
        let stays = !self.draft.leave_whole(units) && self.draft.speaks(units.start);
        if *n_left < conversation.block_range(units.clone()).len() || stays {
            return None;
        }
        let all = if self.counts { self.draft.original_tokens(units.clone()) } else { 0 };
        let reasoning: usize = UnitIndex::each(units).filter_map(|unit| self.reasoning.get(&unit)).sum();
        let elements = ElementIndex::each(&conversation.elements_of(units.clone()));
        Some((all.saturating_sub(left_tokens + reasoning), elements.len()))
    }
}
