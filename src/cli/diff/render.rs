//! Prints removed and added lines: shortens long texts, escapes control characters, and adds colours if wanted.

use crate::cli::escape;

/// Collects the output.
#[derive(Debug, Default)]
pub(in crate::cli) struct DiffWriter {
    pub(in crate::cli) text: String,
    pub(in crate::cli) colour: bool,
    /// Whether long texts are written in full.
    pub(in crate::cli) full: bool,
}

/// The mark and the colour of a kind of lines.
type LineKind = (char, &'static str);

/// A run of more lines of one kind is cut to its first lines.
const MAX_LINES: usize = 12;

/// The number of unchanged lines around a change.
const CONTEXT_LINES: usize = 2;

/// The longest line that is printed in full, in characters.
const MAX_LINE_CHARS: usize = 300;

const BOLD: &str = "1";
const CYAN: &str = "36";
const DIM: &str = "2";

const REMOVED: LineKind = ('-', "31");
const ADDED: LineKind = ('+', "32");
const CONTEXT: LineKind = (' ', "");

impl DiffWriter {
    /// Writes the first line.
    pub(super) fn write_title(&mut self, text: &str) {
        self.write_styled(BOLD, &escape::to_single_line(text, 1000));
    }

    /// Writes the line above a message.
    pub(in crate::cli) fn write_message_header(&mut self, text: &str) {
        self.text.push('\n');
        self.write_styled(CYAN, &format!("@@ {} @@", escape::to_single_line(text, 400)));
    }

    /// Writes a line that is not part of a message.
    pub(super) fn write_note(&mut self, text: &str) {
        self.write_styled(DIM, &escape::to_single_line(text, 1000));
    }

    /// Writes a text that was removed.
    pub(in crate::cli) fn write_removed(&mut self, text: &str) {
        self.write_lines(REMOVED, &split_lines(text));
    }

    /// Writes a text that was added.
    pub(in crate::cli) fn write_added(&mut self, text: &str) {
        self.write_lines(ADDED, &split_lines(text));
    }

    /// Writes a text and its replacement; equal lines at both ends are written once.
    pub(super) fn write_change(&mut self, before: &str, after: &str) {
        let (old, new) = (split_lines(before), split_lines(after));
        let (first, last) = common_ends(&old, &new);
        let (removed, tail) = old.split_at(old.len() - last);
        let n_context = if self.full { usize::MAX } else { CONTEXT_LINES };
        let head = removed.get(first.saturating_sub(n_context)..first).unwrap_or_default();
        self.write_omitted(first - head.len());
        self.write_lines(CONTEXT, head);
        self.write_lines(REMOVED, removed.get(first..).unwrap_or_default());
        self.write_lines(ADDED, new.get(first..new.len() - last).unwrap_or_default());
        let shown = tail.get(..n_context.min(tail.len())).unwrap_or_default();
        self.write_lines(CONTEXT, shown);
        self.write_omitted(tail.len() - shown.len());
    }

    fn write_omitted(&mut self, n: usize) {
        if n > 0 {
            self.write_styled(DIM, &format!("  … {n} lines that are the same"));
        }
    }

    fn write_lines(&mut self, kind: LineKind, lines: &[&str]) {
        let most = if self.full { lines.len() } else { MAX_LINES.min(lines.len()) };
        let (shown, rest) = lines.split_at(most);
        for line in shown {
            self.write_line(kind, line);
        }
        if !rest.is_empty() {
            let bytes: usize = rest.iter().map(|line| line.len() + 1).sum();
            self.write_marked(kind, &format!("… {} lines, {bytes} bytes", rest.len()));
        }
    }

    fn write_line(&mut self, kind: LineKind, line: &str) {
        let most = if self.full { usize::MAX } else { MAX_LINE_CHARS };
        let left_out = line.char_indices().nth(most).map(|(cut, _)| format!(" … {} bytes", line.len() - cut));
        let shown = escape::to_single_line(line, most) + left_out.as_deref().unwrap_or_default();
        self.write_marked(kind, &shown);
    }

    fn write_marked(&mut self, (mark, colour): LineKind, line: &str) {
        self.write_styled(colour, &format!("{mark} {line}"));
    }

    fn write_styled(&mut self, colour: &str, line: &str) {
        if self.colour && !colour.is_empty() {
            self.text.extend(["\x1b[", colour, "m", line, "\x1b[0m"]);
        } else {
            self.text.push_str(line);
        }
        self.text.push('\n');
    }
}

/// How many lines two texts have in common at their beginnings, and how many of the rest at their ends.
pub(in crate::cli) fn common_ends<T: PartialEq>(old: &[T], new: &[T]) -> (usize, usize) {
    let first = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let rest = old.iter().skip(first).rev().zip(new.iter().skip(first).rev());
    (first, rest.take_while(|(old, new)| old == new).count())
}

/// The lines of a text, without their line feeds. A carriage return stays, so that it is visible.
fn split_lines(text: &str) -> Vec<&str> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.split('\n').collect()
}
