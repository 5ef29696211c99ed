//! Old and new lines for a terminal: long texts shortened, control characters written out, colours if they are wanted.

use crate::cli::escape;

/// How it is to look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) colour: bool,
    pub(super) full: bool,
}

/// What has been written so far.
#[derive(Debug)]
pub(super) struct Paper {
    pub(super) text: String,
    look: Look,
}

/// What a line says.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Old,
    New,
    Both,
}

/// Of more lines of one kind only the first and the last are shown.
const MOST_LINES: usize = 12;
const FIRST_LINES: usize = 7;
const LAST_LINES: usize = 4;

/// Lines around a change that did not change.
const AROUND: usize = 2;

/// The longest line, in characters.
const LONGEST_LINE: usize = 300;

const BOLD: &str = "1";
const CYAN: &str = "36";
const RED: &str = "31";
const GREEN: &str = "32";
const DIM: &str = "2";

impl Paper {
    pub(super) fn new(look: Look) -> Self {
        Self { text: String::new(), look }
    }

    /// The first line.
    pub(super) fn title(&mut self, text: &str) {
        self.put(BOLD, &escape::line(text, 1000));
    }

    /// The line above a message.
    pub(super) fn header(&mut self, text: &str) {
        self.text.push('\n');
        self.put(CYAN, &format!("@@ {} @@", escape::line(text, 400)));
    }

    /// A line of our own.
    pub(super) fn line(&mut self, text: &str) {
        self.put(DIM, &escape::line(text, 1000));
    }

    /// A text that is gone.
    pub(super) fn gone(&mut self, text: &str) {
        self.lines(Kind::Old, &lines(text));
    }

    /// A text that was not there.
    pub(super) fn new_text(&mut self, text: &str) {
        self.lines(Kind::New, &lines(text));
    }

    /// A text and what stands there instead; lines at both ends that are the same in both are shown once.
    pub(super) fn both(&mut self, before: &str, after: &str) {
        let (old, new) = (lines(before), lines(after));
        let first = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
        let (old_rest, new_rest) = (old.get(first..).unwrap_or_default(), new.get(first..).unwrap_or_default());
        let last = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
        let middle = |rest: &[&str]| rest.len().saturating_sub(last);
        let around = if self.look.full { usize::MAX } else { AROUND };
        let head = old.get(first.saturating_sub(around)..first).unwrap_or_default();
        self.skipped(first - head.len());
        self.lines(Kind::Both, head);
        self.lines(Kind::Old, old_rest.get(..middle(old_rest)).unwrap_or_default());
        self.lines(Kind::New, new_rest.get(..middle(new_rest)).unwrap_or_default());
        let tail = old_rest.get(middle(old_rest)..).unwrap_or_default();
        let shown = tail.get(..around.min(tail.len())).unwrap_or_default();
        self.lines(Kind::Both, shown);
        self.skipped(tail.len() - shown.len());
    }

    fn skipped(&mut self, n: usize) {
        if n > 0 {
            self.put(DIM, &format!("  … {n} lines that are the same"));
        }
    }

    fn lines(&mut self, kind: Kind, lines: &[&str]) {
        if self.look.full || lines.len() <= MOST_LINES {
            return lines.iter().for_each(|line| self.one(kind, line));
        }
        let (first, rest) = lines.split_at(FIRST_LINES);
        let (middle, last) = rest.split_at(rest.len() - LAST_LINES);
        for line in first {
            self.one(kind, line);
        }
        let bytes: usize = middle.iter().map(|line| line.len() + 1).sum();
        self.mark(kind, &format!("… {} lines, {bytes} bytes", middle.len()));
        for line in last {
            self.one(kind, line);
        }
    }

    fn one(&mut self, kind: Kind, line: &str) {
        let most = if self.look.full { usize::MAX } else { LONGEST_LINE };
        match line.char_indices().nth(most) {
            None => self.mark(kind, &escape::line(line, usize::MAX)),
            Some((cut, _)) => {
                let rest = line.len() - cut;
                self.mark(kind, &format!("{} … {rest} bytes", escape::line(line, most)));
            }
        }
    }

    fn mark(&mut self, kind: Kind, line: &str) {
        match kind {
            Kind::Old => self.put(RED, &format!("- {line}")),
            Kind::New => self.put(GREEN, &format!("+ {line}")),
            Kind::Both => self.put("", &format!("  {line}")),
        }
    }

    fn put(&mut self, colour: &str, line: &str) {
        if self.look.colour && !colour.is_empty() {
            self.text.extend(["\x1b[", colour, "m", line, "\x1b[0m"]);
        } else {
            self.text.push_str(line);
        }
        self.text.push('\n');
    }
}

/// The lines of a text, without their ends. The character before a line end stays, so that one of two characters shows.
fn lines(text: &str) -> Vec<&str> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.split('\n').collect()
}
