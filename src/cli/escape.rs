//! Texts of others on a terminal: nothing in them may move the cursor, hide a line, or turn the reading direction.

use std::fmt::Write as _;

/// A text on one line, its control characters written out; of a long one its first characters.
pub(super) fn line(text: &str, most: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(most.saturating_mul(4)));
    for c in text.chars().take(most) {
        if hides(c) {
            // Into a String nothing fails.
            let _written = match c {
                '\n' => write!(shown, "\\n"),
                '\r' => write!(shown, "\\r"),
                _ => write!(shown, "\\u{{{:x}}}", u32::from(c)),
            };
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Whether a character shows as something else than itself. A tab may stay.
fn hides(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    c != '\t' && (c.is_control() || turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_out() {
        assert_eq!(line("a\tb\u{e9}", 9), "a\tb\u{e9}");
        assert_eq!(line("\u{1b}[31m\r\n\u{7}\u{9b}\u{202e}", 99), r"\u{1b}[31m\r\n\u{7}\u{9b}\u{202e}");
        assert_eq!(line("abcdef", 3), "abc");
    }
}
