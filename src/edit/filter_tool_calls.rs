//! `filter_tool_calls`: leaves out the oldest tool calls of the history, together with their results.
//!
//! # What it does
//! History is everything before the last user message; the run after it is exempt. If the history has more than
//! `max_tool_calls` results, the newest that many are kept, and the others are removed together with the calls that they
//! answer. A message that has no call left keeps its text; if it has none, it leaves, too. In Chat Completions, a short text
//! of the user is inserted between such a text and the next message if that is the model's too: some servers refuse two
//! messages of the model in a row.
//!
//! # When it acts
//! Only if `max_tool_calls` is set.
//!
//! # What the model sees
//! Only that text. Calls and results that were removed are not stored.
//!
//! # What it never touches
//! User and system messages, messages of the model without calls, and results that the model has not read yet. A turn
//! of the model that has reasoning bound to it is removed whole, with all of its calls, or not at all.
//!
//! Which results leave is found by replay: the conversation is walked from its beginning, and at each place where a model
//! was called, what this edit did then is done again. So what has left stays away. What is newest is so by when it came. A
//! call without a result counts as if it had one, and leaves as others do; if its result comes after that, the call comes
//! back with it.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::Edit;
use crate::conversation::{Role, UnitIndex};
use crate::draft::{Draft, Pass, Replayed, Row, RowIndex, TimelineEvent};
use crate::plan::SentFact;

/// `[filter_tool_calls]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many results before the last user message are kept. Older results are removed with their calls.
    ///
    /// Not set: all of them.
    ///
    /// Example: `100`
    pub max_tool_calls: Option<usize>,
}

/// The label of its changes.
const LABEL: &str = "filter";

/// The edit.
#[derive(Debug)]
pub struct FilterToolCalls {
    settings: Settings,
}

impl FilterToolCalls {
    /// The edit with its settings.
    pub fn new(settings: &Settings) -> Self {
        Self { settings: settings.clone() }
    }
}

impl Edit for FilterToolCalls {
    fn apply(&self, draft: &mut Draft<'_>) {
        let Some(max) = self.settings.max_tool_calls else { return };
        if draft.conversation.blocks.len() <= max {
            return;
        }
        if let Some(why) = draft.skip_reason(Pass::Filter) {
            return draft.skip_change(LABEL, None, why);
        }
        let mut replay = Replay { max, ..Replay::default() };
        draft.timeline().into_iter().for_each(|event| replay.follow(draft, event));
        for (rows, since) in replay.leaving {
            if draft.drop_round_trips(LABEL, &rows, since) {
                draft.pass_made(SentFact::Filtered, since);
            }
        }
        draft.part_answers(LABEL);
    }
}

/// The walk over the conversation as it grew. Units have the numbers that they have in the timeline.
#[derive(Default)]
struct Replay {
    /// How many results are kept.
    max: usize,
    /// The rows that came, and whether they are still there.
    rows: Vec<(Row, bool)>,
    /// The results among it, in the order in which they leave.
    results: VecDeque<RowIndex>,
    n_results: usize,
    /// Those that came before this one are before the last message of the user.
    history_ends: RowIndex,
    n_history: usize,
    /// The last unit of the model.
    read: RowIndex,
    /// The results of turns that are removed whole, by the first unit of the turn.
    whole_turns: HashMap<UnitIndex, Vec<RowIndex>>,
    /// Results that are removed with their calls, and the model call that they are not there for any more.
    leaving: Vec<(Vec<Row>, UnitIndex)>,
}

impl Replay {
    fn follow(&mut self, draft: &Draft<'_>, event: TimelineEvent) {
        match event {
            TimelineEvent::Added(row) => self.came(draft, row),
            TimelineEvent::Superseded(number) => drop(self.goes(number)),
            TimelineEvent::ModelCall(place) => self.model_call(draft, place),
            TimelineEvent::Removed(_) => {}
        }
    }

    fn came(&mut self, draft: &Draft<'_>, row: Row) {
        let number = RowIndex::new(self.rows.len());
        self.rows.push((row, true));
        match row.role {
            Role::Tool => {
                self.results.push_back(number);
                self.n_results += 1;
                if let Some(turn) = whole_turn(draft, &row) {
                    self.whole_turns.entry(turn).or_default().push(number);
                }
            }
            Role::User => (self.history_ends, self.n_history) = (number, self.n_results),
            Role::Assistant => self.read = number,
            _ => {}
        }
    }

    /// Here a model was called.
    fn model_call(&mut self, draft: &Draft<'_>, since: UnitIndex) {
        match draft.replayed(Pass::Filter, since) {
            Replayed::NotMade => return,
            Replayed::ByRule if self.n_history <= self.max => return,
            Replayed::ByRule if draft.repeats_passes() && !draft.may_pass(since, 0) => return,
            Replayed::ByRule | Replayed::Made(_) => {}
        }
        let goes_before = self.read.min(self.history_ends);
        while self.n_history > self.max
            && let Some(number) = self.results.pop_front_if(|number| *number < goes_before)
        {
            let turn = self.rows.get(number.get()).and_then(|(row, _)| whole_turn(draft, row));
            let together = turn.and_then(|turn| self.whole_turns.get(&turn));
            if together.is_some_and(|together| together.last() != Some(&number)) {
                continue; // it leaves when the last one does
            }
            let together = together.cloned().unwrap_or_else(|| vec![number]);
            let is_here = |number: &&RowIndex| self.rows.get(number.get()).is_some_and(|(_, is_here)| *is_here);
            if together.len() > 1 && self.n_history - together.iter().filter(is_here).count() < self.max {
                self.results.push_front(number);
                return;
            }
            let rows: Vec<_> = together.into_iter().filter_map(|number| self.goes(number)).collect();
            if !rows.is_empty() {
                self.leaving.push((rows, since));
            }
        }
    }

    /// A result is not there any more; none if it has not been before.
    fn goes(&mut self, number: RowIndex) -> Option<Row> {
        let (row, is_here) = self.rows.get_mut(number.get())?;
        if !std::mem::take(is_here) {
            return None;
        }
        self.n_results -= 1;
        self.n_history -= usize::from(number < self.history_ends);
        Some(*row)
    }
}

/// The first unit of the turn that called for a result, if that is removed whole.
fn whole_turn(draft: &Draft<'_>, row: &Row) -> Option<UnitIndex> {
    let units = draft.leaves_with(row.call?);
    draft.leave_whole(&units).then_some(units.start)
}

#[cfg(test)]
mod tests;
