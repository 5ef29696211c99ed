//! `filter_tool_calls`: leaves out the oldest tool calls of the history, together with their results.
//!
//! # What it does
//! History is everything before the last user message; the run behind it is exempt. If the history has more than
//! `max_tool_calls` results, the newest that many are kept, and the others leave together with the calls that they
//! answer. A message that has no call left keeps its text; if it has none, it leaves, too.
//!
//! # When it acts
//! Only if `max_tool_calls` is set. With `slack = s` it waits until there are more than `max_tool_calls + s` results, and
//! then goes down to `max_tool_calls`: fewer moves of what a prompt cache has kept.
//!
//! # What the model sees
//! Nothing: what has left was never there. It is not stored either.
//!
//! # What it never touches
//! User and system messages, messages of the model without calls, and results that the model has not read yet.
//!
//! Which results leave is found by replay: the conversation is walked from its beginning, and at each place where a model
//! was called, what this edit did then is done again. So what has left stays away.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Edit;
use crate::{
    conversation::Role,
    draft::{Draft, Row},
};

/// `[filter_tool_calls]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many results before the last user message are kept. Older results leave with their calls.
    ///
    /// Not set: all of them.
    ///
    /// Example: `100`
    pub max_tool_calls: Option<usize>,
    /// How many results more than `max_tool_calls` there may be before any leave.
    pub slack: usize,
}

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
    fn name(&self) -> &'static str {
        "filter_tool_calls"
    }

    fn label(&self) -> &'static str {
        "filter"
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let Some(max) = self.settings.max_tool_calls else { return };
        if draft.conversation().blocks.len() <= max {
            return;
        }
        let rows = draft.rows();
        for n in self.oldest(draft, &rows, max) {
            if let Some(row) = rows.get(n) {
                draft.drop_round_trip(self.label(), row);
            }
        }
    }
}

impl FilterToolCalls {
    /// The rows of the results that leave, found by replay.
    fn oldest(&self, draft: &Draft<'_>, rows: &[Row], max: usize) -> Vec<usize> {
        let most = max.saturating_add(self.settings.slack);
        let mut leaving = Vec::new();
        // Results that are there: before the last user message, and behind it.
        let (mut history, mut current) = (VecDeque::new(), Vec::new());
        let mut read = None;
        let mut model_call = |history: &mut VecDeque<(usize, usize)>, read: Option<usize>| {
            if history.len() > most {
                let has_been_read = |&(_, stands): &(usize, usize)| read.is_some_and(|read| stands < read);
                while history.len() > max && history.front().is_some_and(has_been_read) {
                    leaving.extend(history.pop_front().map(|(row, _)| row));
                }
            }
        };
        for (n, row) in rows.iter().enumerate() {
            match row.role {
                Role::Tool => current.push((n, draft.stands_at(row))),
                Role::User => history.extend(current.drain(..)),
                Role::Assistant => {
                    model_call(&mut history, read);
                    read = row.message;
                }
                _ => {}
            }
        }
        model_call(&mut history, read);
        leaving
    }
}

#[cfg(test)]
mod tests;
