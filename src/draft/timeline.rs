//! The conversation as it grew, for edits that do again what they did in its earlier requests.
//!
//! Rows are what is there now. That is not what was there then: a result that came late follows its call now, where
//! another stood until it came, and what an edit has left out was there before. Here each message comes when it came.

use std::collections::{BTreeMap, HashMap};

use super::{Draft, Inserted, InsertionIndex, Row, RowElement};
use crate::conversation::{BlockIndex, Pairing, Role, Unit, UnitIndex, index::index};

/// How a text begins that Claude Code adds to what the user says, behind tool results too.
const REMINDER: &[u8] = b"\"<system-reminder>";

index! {
    /// A row of the timeline, numbered in the order of their [`TimelineEvent::Added`].
    RowIndex
}

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
    /// What happened, in order, as the edits so far would have left it at each model call.
    pub fn timeline(&self) -> Vec<TimelineEvent> {
        let (conversation, pairing) = (self.conversation, self.pairing());
        let mut calls = conversation.model_calls();
        calls.extend(self.sent_calls());
        calls.sort_unstable();
        calls.dedup();
        let insertions = self.insertions_by_row();
        let mut missing = missing(self, &pairing, &calls, &insertions).into_iter().peekable();
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

    /// The insertions of results.
    fn insertions_by_row(&self) -> HashMap<RowKey, InsertionIndex> {
        let rows = self.insertions.iter().map(|insertion| match insertion.what {
            Inserted::Moved(unit) | Inserted::Stood(unit) => Some(RowKey::Unit(unit)),
            Inserted::New(call) => Some(RowKey::MissingResultOf(Some(call))),
            Inserted::Text => None,
        });
        rows.enumerate().filter_map(|(n, row)| Some((row?, InsertionIndex::new(n)))).collect()
    }
}

/// Returns what replaces the results that were missing when the model was called, and the messages that it came behind.
fn missing(
    draft: &Draft<'_>,
    pairing: &Pairing,
    model_calls: &[UnitIndex],
    insertions: &HashMap<RowKey, InsertionIndex>,
) -> Vec<(UnitIndex, Row)> {
    let mut answered_by = vec![None; pairing.calls.len()];
    for result in pairing.results.iter().filter(|result| !result.is_further) {
        if let Some(answered) = result.answers.and_then(|call| answered_by.get_mut(call.get())) {
            *answered = Some(result.unit);
        }
    }
    let missing = pairing.calls.iter().zip(answered_by).filter_map(|(call, result)| {
        let caller = draft.conversation().caller(call.block)?;
        let next = *model_calls.get(model_calls.partition_point(|place| *place <= caller))?;
        if result.is_some_and(|result| result < next) {
            return None;
        }
        let stood = result.map_or(RowKey::MissingResultOf(Some(call.block)), RowKey::Unit);
        // An unanswered request may have ended inside the run.
        let behind = pairing.run_end_of(call)?.min(UnitIndex::new(next.get().saturating_sub(1)));
        let insertion = insertions.get(&stood).copied();
        let (call, element) = (Some(call.block), draft.element_behind(behind));
        Some((behind, Row { role: Role::Tool, unit: None, call, element, insertion }))
    });
    missing.collect()
}

/// Identifies a row.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum RowKey {
    Unit(UnitIndex),
    /// What replaces the result of the call that is this block.
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
