//! What is to be done to one request, as plain owned data, and the report about it. Both print: that is the dry run.

use std::fmt;

use serde::Serialize;

use crate::span::Splice;

/// What is to be done to one request body.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    /// The replacements, sorted and disjoint.
    pub splices: Vec<Splice>,
    /// What they mean.
    pub report: Report,
}

/// What was, or would be, done to one request. It holds names and numbers and nothing of what the messages say.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Report {
    /// The model that is asked.
    pub model: Option<String>,
    /// What each edit decided: in policy order, and within one edit in the order it decided in.
    pub changes: Vec<Change>,
    /// The length of the message array as it came.
    pub messages_before: usize,
    /// The length of the message array as it goes on.
    pub messages_after: usize,
    /// The length of the body as it came.
    pub bytes_before: usize,
    /// The length of the body as it goes on.
    pub bytes_after: usize,
}

/// One decision of one edit.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Change {
    /// The label of the edit.
    pub edit: &'static str,
    /// What it does.
    pub action: Action,
    /// The id of the call that it is about.
    pub call_id: String,
    /// The tool, where the change is about a call and the call names one.
    pub tool_name: Option<String>,
}

/// What is done to a message. Messages are named by their index in the array as it came.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A result that was missing is put in.
    Insert {
        /// The message that it goes behind.
        behind: usize,
    },
    /// A result is moved.
    Move {
        /// The message.
        message: usize,
        /// The message that it goes behind.
        behind: usize,
    },
    /// A result is left out.
    Drop {
        /// The message.
        message: usize,
    },
}

impl Plan {
    /// Whether the body goes on as it came.
    pub fn is_empty(&self) -> bool {
        self.splices.is_empty()
    }
}

impl Report {
    /// The label of each edit that changed something and how many changes it made, in policy order.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<(&'static str, usize)> = Vec::new();
        for change in &self.changes {
            match counts.last_mut().filter(|(edit, _)| *edit == change.edit) {
                Some((_, n)) => *n += 1,
                None => counts.push((change.edit, 1)),
            }
        }
        counts
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.fmt(f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages_before, messages_after, bytes_before, bytes_after, .. } = self;
        write!(f, "messages {messages_before} -> {messages_after}, bytes {bytes_before} -> {bytes_after}")?;
        if let Some(model) = &self.model {
            write!(f, ", model {}", Quoted(model))?;
        }
        writeln!(f)?;
        if self.changes.is_empty() {
            writeln!(f, "no changes")?;
        }
        self.changes.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.edit)?;
        match self.action {
            Action::Insert { behind } => write!(f, "insert a result behind message {behind}")?,
            Action::Move { message, behind } => write!(f, "move message {message} behind message {behind}")?,
            Action::Drop { message } => write!(f, "drop message {message}")?,
        }
        write!(f, ", call {}", Quoted(&self.call_id))?;
        match &self.tool_name {
            Some(name) => write!(f, " of tool {}", Quoted(name)),
            None => Ok(()),
        }
    }
}

/// A name out of a request, on one line and not longer than a line.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 80;
        match self.0.char_indices().nth(MOST) {
            None => write!(f, "{:?}", self.0),
            Some((cut, _)) => write!(f, "{:?}…", self.0.split_at(cut).0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(edit: &'static str, action: Action, call_id: &str, tool_name: Option<&str>) -> Change {
        Change { edit, action, call_id: call_id.to_owned(), tool_name: tool_name.map(str::to_owned) }
    }

    #[test]
    fn prints_a_line_a_change() {
        let report = Report {
            model: Some("m".to_owned()),
            changes: vec![
                change("patch", Action::Move { message: 4, behind: 1 }, "a", None),
                change("patch", Action::Drop { message: 5 }, "b\n", None),
                change("patch", Action::Insert { behind: 1 }, &"é".repeat(90), Some("bash")),
            ],
            messages_before: 6,
            messages_after: 6,
            bytes_before: 100,
            bytes_after: 120,
        };
        let expected = format!(
            "messages 6 -> 6, bytes 100 -> 120, model \"m\"\n\
             patch: move message 4 behind message 1, call \"a\"\n\
             patch: drop message 5, call \"b\\n\"\n\
             patch: insert a result behind message 1, call \"{}\"… of tool \"bash\"\n",
            "é".repeat(80)
        );
        assert_eq!(report.to_string(), expected);
    }

    #[test]
    fn nothing_to_do_says_so() {
        assert_eq!(Report::default().to_string(), "messages 0 -> 0, bytes 0 -> 0\nno changes\n");
    }

    #[test]
    fn counts_by_edit() {
        let drop = |edit| change(edit, Action::Drop { message: 0 }, "", None);
        let report = Report { changes: vec![drop("patch"), drop("patch"), drop("clear")], ..Report::default() };
        assert_eq!(report.counts(), [("patch", 2), ("clear", 1)]);
    }
}
