//! The changes of a request as names and numbers, bounded: what may be shown although no content is kept.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::payload::PayloadKey;
use crate::plan::{Action, Report};

/// The changes of one request, and what was left out.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Changes {
    /// The first of them, 500 at most.
    pub changes: Vec<ChangeEntry>,
    /// How many there are.
    pub n_changes: usize,
    /// The first that were not made.
    pub left_out: Vec<SkippedEntry>,
}

/// One change.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct ChangeEntry {
    /// The message that it is about, or for one that was put in, the message that it was put behind; as they came.
    pub message: usize,
    /// The change.
    pub action: Cow<'static, str>,
    /// The label of the edit.
    pub label: Cow<'static, str>,
    /// Where a message went, or the last one that a summary replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<usize>,
    /// The tool.
    pub tool: Option<String>,
    /// The id of the call.
    pub call_id: String,
    /// The length of what was there.
    pub bytes_before: usize,
    /// The length of what is there now.
    pub bytes_after: usize,
    /// The name of what was taken out, if it was stored; the first one, if it was several texts.
    pub handle: Option<PayloadKey>,
    /// The names of the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_handles: Vec<PayloadKey>,
}

/// A change that was not made.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct SkippedEntry {
    /// The message.
    pub message: Option<usize>,
    /// The label of the edit.
    pub label: Cow<'static, str>,
    /// The tool.
    pub tool: Option<String>,
    /// The id of the call.
    pub call_id: String,
    /// Why.
    pub why: Cow<'static, str>,
}

/// More of one request are not kept.
const MAX_CHANGES: usize = 500;

/// Of one change, so many handles are kept besides the first.
const MAX_HANDLES: usize = 100;

/// A name that a client has chosen is kept up to this length, in characters.
const MAX_CHARS: usize = 100;

impl Changes {
    /// The changes of a report.
    pub fn of(report: &Report) -> Self {
        let changes = report.changes.iter().take(MAX_CHANGES).map(|change| {
            let (message, to) = places(change.action);
            let mut handles = change.handles.iter().copied();
            ChangeEntry {
                message,
                action: change.action.label().into(),
                label: change.edit.into(),
                to,
                tool: change.tool_name.as_deref().map(short),
                call_id: short(&change.call_id),
                bytes_before: change.bytes.before,
                bytes_after: change.bytes.after,
                handle: handles.next(),
                more_handles: handles.take(MAX_HANDLES).collect(),
            }
        });
        let left_out = report.left_out.iter().take(MAX_CHANGES).map(|left_out| SkippedEntry {
            message: left_out.message,
            label: left_out.edit.into(),
            tool: left_out.tool_name.as_deref().map(short),
            call_id: short(&left_out.call_id),
            why: <&str>::from(left_out.why).into(),
        });
        Self { changes: changes.collect(), n_changes: report.changes.len(), left_out: left_out.collect() }
    }

    /// About how much memory it takes, in entries.
    pub fn len(&self) -> usize {
        self.changes.len() + self.left_out.len()
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The message that something was done to, and where it went.
fn places(mut action: Action) -> (usize, Option<usize>) {
    let is_summary = matches!(action, Action::Summarize { .. });
    let (message, to) = action.messages_mut();
    (*message, to.map(|to| to.saturating_sub(usize::from(is_summary))))
}

/// The client's text, as much of it as is of use.
pub fn short(text: &str) -> String {
    // No character has less than one byte.
    if text.len() <= MAX_CHARS { text.to_owned() } else { text.chars().take(MAX_CHARS).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Change, Sizes, SkipReason, SkippedChange};

    fn report(actions: &[Action], left_out: &[SkipReason]) -> Report {
        let change = |action: &Action| Change {
            edit: "e",
            action: *action,
            call_id: "c".repeat(MAX_CHARS + 1),
            tool_name: Some("é".repeat(MAX_CHARS + 1)),
            bytes: Sizes { before: 9, after: 8 },
            tokens: None,
            handles: Vec::new(),
            why: None,
        };
        let not_done = |why: &SkipReason| SkippedChange {
            edit: "e",
            message: Some(7),
            call_id: String::new(),
            tool_name: None,
            why: *why,
        };
        Report {
            changes: actions.iter().map(change).collect(),
            left_out: left_out.iter().map(not_done).collect(),
            ..Report::default()
        }
    }

    #[test]
    fn says_what_was_done_to_which_message_and_where_to() {
        for (action, to) in [
            (Action::Insert { behind: 3 }, None),
            (Action::InsertText { behind: 3 }, None),
            (Action::Move { message: 3, behind: 1 }, Some(1)),
            (Action::Drop { message: 3 }, None),
            (Action::DropCall { message: 3 }, None),
            (Action::Truncate { message: 3 }, None),
            (Action::Clear { message: 3 }, None),
            (Action::ClearInput { message: 3 }, None),
            (Action::Summarize { from: 3, to: 6 }, Some(5)),
        ] {
            let changed = Changes::of(&report(&[action], &[])).changes.remove(0);
            assert_eq!((&*changed.action, changed.message, changed.to), (action.label(), 3, to));
            assert_eq!((changed.bytes_before, changed.bytes_after), (9, 8));
            assert_eq!(changed.tool.map(|tool| tool.chars().count()), Some(MAX_CHARS));
            assert_eq!(changed.call_id.len(), MAX_CHARS);
        }
    }

    #[test]
    fn takes_no_more_than_so_many_entries() {
        assert!(Changes::of(&Report::default()).is_empty());
        let (actions, reasons) = ([Action::Drop { message: 0 }; MAX_CHANGES + 1], [SkipReason::NoStore; 2]);
        let changes = Changes::of(&report(&actions, &reasons));
        assert!(!changes.is_empty());
        assert_eq!((changes.len(), changes.n_changes), (MAX_CHANGES + 2, MAX_CHANGES + 1));
        assert_eq!(changes.left_out[1].message, Some(7));
    }
}
