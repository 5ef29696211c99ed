//! Plans, reports and changes as text, for people.

use std::fmt;

use super::{Action, Change, Regrets, Report, SkippedChange};

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
        let facts = [
            (self.unknown_window, "the context window of the model is not known"),
            (self.requests_cache, "cache: request the prompt cache"),
            (self.mends_tools, "tools: bring them into the form"),
            (!self.has_edits(), "no changes"),
        ];
        facts.iter().filter(|(holds, _)| *holds).try_for_each(|(_, fact)| writeln!(f, "{fact}"))?;
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
        use Action::{Drop, DropCall, Insert, InsertText, Move, Summarize};
        write!(f, "{}: {}", self.edit, self.action)?;
        if !matches!(self.action, Summarize { .. } | InsertText { .. }) {
            about(f, &self.call_id, self.tool_name.as_deref())?;
        }
        if !matches!(self.action, Insert { .. } | InsertText { .. } | Move { .. } | Drop { .. } | DropCall { .. }) {
            write!(f, ", bytes {}", self.bytes)?;
            if let Some(tokens) = self.tokens {
                write!(f, ", tokens {tokens}")?;
            }
        }
        self.handles.iter().try_for_each(|handle| write!(f, ", stored as {handle}"))?;
        self.why.map_or(Ok(()), |why| write!(f, ", {why}"))
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
