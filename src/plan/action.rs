//! The kinds of changes.

use serde::Serialize;

/// What is done to a message. Messages are named by their index in the array as it came.
#[derive(Clone, Copy, Debug, derive_more::Display, Eq, PartialEq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "each field is a message, and its name says which")]
pub enum Action {
    /// A result that was missing is put in.
    #[display("insert a result behind message {behind}")]
    Insert { behind: usize },
    /// A text of the user is put in, where one has to stand.
    #[display("insert a text of the user behind message {behind}")]
    InsertText { behind: usize },
    /// A result is moved.
    #[display("move message {message} behind message {behind}")]
    Move { message: usize, behind: usize },
    /// A result is left out, or a message that says nothing and that all calls have left.
    #[display("drop message {message}")]
    Drop { message: usize },
    /// A call is left out of a message; its result is left out by its own change.
    #[display("drop a call of message {message}")]
    DropCall { message: usize },
    /// The middle of a result is cut out.
    #[display("truncate message {message}")]
    Truncate { message: usize },
    /// Lines of a result that an earlier message has become a pointer to them.
    #[display("point from message {message} to the same lines")]
    Deduplicate { message: usize },
    /// The text of a result is replaced.
    #[display("clear message {message}")]
    Clear { message: usize },
    /// The arguments of a call are replaced.
    #[display("clear the arguments of a call of message {message}")]
    ClearInput { message: usize },
    /// Reasoning of the model is left out.
    #[display("leave reasoning out of message {message}")]
    Strip { message: usize },
    /// A value of a message is replaced, because the upstream requires a form.
    #[display("bring message {message} into the form")]
    Mend { message: usize },
    /// A summary replaces the messages from one to before another.
    #[display("summarise messages {from} to {}", to.saturating_sub(1))]
    Summarize { from: usize, to: usize },
}

impl Action {
    /// The action as one word, for labels.
    pub fn label(self) -> &'static str {
        self.into()
    }

    /// The same with each message under another index. Messages that a summary replaces keep theirs.
    #[must_use]
    pub fn renumbered(mut self, number: impl Fn(usize) -> usize) -> Self {
        if !matches!(self, Self::Summarize { .. }) {
            let (message, behind) = self.messages_mut();
            for message in [Some(message), behind].into_iter().flatten() {
                *message = number(*message);
            }
        }
        self
    }

    /// The message that it is about, or that something is put in behind. Then where a message goes, or the end of a summary.
    pub(crate) fn messages_mut(&mut self) -> (&mut usize, Option<&mut usize>) {
        match self {
            Self::Insert { behind } | Self::InsertText { behind } => (behind, None),
            Self::Move { message, behind } => (message, Some(behind)),
            Self::Summarize { from, to } => (from, Some(to)),
            Self::Drop { message }
            | Self::DropCall { message }
            | Self::Truncate { message }
            | Self::Deduplicate { message }
            | Self::Clear { message }
            | Self::ClearInput { message }
            | Self::Strip { message }
            | Self::Mend { message } => (message, None),
        }
    }
}
