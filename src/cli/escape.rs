//! Escapes untrusted text for a terminal: no character can move the cursor, hide a line or change the text direction.

/// At most `max_chars` characters of a text on one line, with control and invisible characters escaped.
pub(super) fn to_single_line(text: &str, max_chars: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(max_chars.saturating_mul(4)));
    for c in text.chars().take(max_chars) {
        if is_unsafe(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// A text of several lines as a terminal may show it; bytes that are not UTF-8 are U+FFFD.
pub(super) fn to_lines(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in String::from_utf8_lossy(text).split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        shown += &to_single_line(line, usize::MAX);
        shown += end;
    }
    shown
}

/// Whether a terminal does not show a character as itself. A tab is allowed.
fn is_unsafe(c: char) -> bool {
    let is_invisible = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    c != '\t' && (c.is_control() || is_invisible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_texts_cut() {
        assert_eq!(to_single_line("a\tb\u{e9}", 9), "a\tb\u{e9}");
        assert_eq!(to_single_line("\u{1b}[31m\r\n\u{7}\u{9b}\u{202e}", 99), r"\u{1b}[31m\r\n\u{7}\u{9b}\u{202e}");
        assert_eq!(to_single_line("abcdef", 3), "abc");
        assert_eq!(to_lines(b"a\n\x1b]0;x\x07\n\xffb"), "a\n\\u{1b}]0;x\\u{7}\n\u{fffd}b");
    }
}
