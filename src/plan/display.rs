//! Plans, reports and changes as text, for people.

use std::fmt;

use super::{Action, Change, Plan, Regrets, Report, Sizes, SkipReason, SkippedChange, Stale};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.fmt(f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages_before, messages_after, bytes_before, bytes_after, .. } = self;
        write!(f, "messages {messages_before} -> {messages_after}, bytes {bytes_before} -> {bytes_after}")?;
        if let (Some(before), Some(after)) = (self.tokens_before, self.tokens_after) {
            write!(f, ", tokens {before} -> {after}")?;
        }
        if let Some(model) = &self.model {
            write!(f, ", model {}", Quoted(model))?;
        }
        writeln!(f)?;
        if self.unknown_window {
            writeln!(f, "the context window of the model is not known")?;
        }
        if self.requests_cache {
            writeln!(f, "cache: request the prompt cache")?;
        } else if self.changes.is_empty() {
            writeln!(f, "no changes")?;
        }
        self.changes.iter().try_for_each(|change| writeln!(f, "{change}"))?;
        self.left_out.iter().try_for_each(|left_out| writeln!(f, "{left_out}"))?;
        if let Some(window) = self.beyond_window {
            writeln!(f, "more tokens than the window of the model, {window}")?;
        }
        if let Some(kind) = &self.blocked_by {
            writeln!(f, "summary: none may replace a message of type {}", Quoted(kind))?;
        }
        self.regrets.fmt(f)
    }
}

impl fmt::Display for Regrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { repeated, recalled, in_all, keep_doubled } = self;
        if self.is_none() {
            return Ok(());
        }
        write!(
            f,
            "clear: calls that ask for something cleared: {in_all}; new: {repeated} repeated, {recalled} recalled"
        )?;
        writeln!(f, "{}", if *keep_doubled { "; keep is doubled for that" } else { "" })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.edit)?;
        match self.action {
            Action::Insert { behind } => write!(f, "insert a result behind message {behind}")?,
            Action::InsertText { behind } => write!(f, "insert a text of the user behind message {behind}")?,
            Action::Move { message, behind } => write!(f, "move message {message} behind message {behind}")?,
            Action::Drop { message } => write!(f, "drop message {message}")?,
            Action::DropCall { message } => write!(f, "drop a call of message {message}")?,
            Action::Truncate { message } => write!(f, "truncate message {message}")?,
            Action::Deduplicate { message } => write!(f, "point from message {message} to the same lines")?,
            Action::Clear { message } => write!(f, "clear message {message}")?,
            Action::ClearInput { message } => write!(f, "clear the arguments of a call of message {message}")?,
            Action::Mend { message } => write!(f, "bring message {message} into the form")?,
            Action::Strip { message } => write!(f, "leave reasoning out of message {message}")?,
            Action::Summarize { from, to } => write!(f, "summarise messages {from} to {}", to.saturating_sub(1))?,
        }
        let is_about_a_call = !matches!(self.action, Action::Summarize { .. } | Action::InsertText { .. });
        if is_about_a_call {
            about(f, &self.call_id, self.tool_name.as_deref())?;
        }
        if !matches!(
            self.action,
            Action::Insert { .. }
                | Action::InsertText { .. }
                | Action::Move { .. }
                | Action::Drop { .. }
                | Action::DropCall { .. }
        ) {
            write!(f, ", bytes {}", self.bytes)?;
            if let Some(tokens) = self.tokens {
                write!(f, ", tokens {tokens}")?;
            }
        }
        self.handles.iter().try_for_each(|handle| write!(f, ", stored as {handle}"))?;
        f.write_str(match self.why {
            None => "",
            Some(Stale::ReadAgain) => ", read again",
            Some(Stale::EditedSince) => ", edited since",
        })
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.before, self.after)
    }
}

impl fmt::Display for SkippedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: not done", self.edit)?;
        if let Some(message) = self.message {
            write!(f, " to message {message}")?;
            about(f, &self.call_id, self.tool_name.as_deref())?;
        }
        write!(f, ": {}", self.why)
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoStore => "there is no store to take what is left out",
            Self::NotSmaller => "what would stand there is not smaller",
            Self::TooLittle => "it would free too little",
            Self::NoSummary => "there is no summary yet",
            Self::Rewritten => "nearly the same was summarised before, and the client has changed messages since",
            Self::HistoryElsewhere => "history is on the server",
            Self::ServerClears => "the request asks the server to clear tool results",
            Self::ServerCompacts => "the request asks the server to compact the conversation",
            Self::PrefixBound => "the model's reasoning is bound to what stands before it",
        })
    }
}

fn about(f: &mut fmt::Formatter<'_>, call_id: &str, tool_name: Option<&str>) -> fmt::Result {
    write!(f, ", call {}", Quoted(call_id))?;
    tool_name.map_or(Ok(()), |name| write!(f, " of tool {}", Quoted(name)))
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
