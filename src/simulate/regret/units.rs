//! Units: the parts of a text that can be found again elsewhere, which are lines and names.
//!
//! A *line* has at least 20 characters and two words; white space around it and the number that a tool has put before it
//! do not count. [`crate::names`] says what a *name* is. A bare word is never a unit.

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::names::names;

/// A line or a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unit<'t> {
    /// Whether it is a line or a name.
    pub kind: UnitKind,
    /// The text, without what does not count.
    pub text: &'t str,
}

/// The kinds of units.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitKind {
    /// A whole line.
    Line,
    /// A name, or a long number.
    Name,
}

const MIN_LINE_CHARS: usize = 20;
const MIN_LINE_WORDS: usize = 2;

impl Unit<'_> {
    /// The hash by which it is found.
    pub fn hash(&self) -> u64 {
        xxh3_64(self.text.as_bytes())
    }
}

/// The units of a text, in order; one that comes again is there again.
pub fn units(text: &str) -> impl Iterator<Item = Unit<'_>> {
    text.lines().flat_map(|raw| {
        let line = line(raw).map(|text| Unit { kind: UnitKind::Line, text });
        line.into_iter().chain(names(raw).map(|text| Unit { kind: UnitKind::Name, text }))
    })
}

/// A line without what does not count, if it is a unit.
pub(super) fn line(raw: &str) -> Option<&str> {
    let text = without_number(raw.trim());
    let words = text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric));
    let is_unit = text.chars().count() >= MIN_LINE_CHARS && words.take(MIN_LINE_WORDS).count() == MIN_LINE_WORDS;
    is_unit.then_some(text)
}

/// A line without the number that a tool has put before it: `12→`, `12:`, `12|`, or `12` and a tab.
fn without_number(line: &str) -> &str {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let behind = rest.strip_prefix(['→', ':', '|', '\t']).filter(|_| rest.len() < line.len());
    behind.map_or(line, str::trim_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, kind: UnitKind) -> Vec<&str> {
        units(text).filter(|unit| unit.kind == kind).map(|unit| unit.text).collect()
    }

    #[test]
    fn a_line_has_twenty_characters_and_two_words() {
        let lines = |text| texts(text, UnitKind::Line);
        assert_eq!(lines("  return the_answer(42)\t\n"), ["return the_answer(42)"]);
        assert_eq!(lines("aaaaaaaaa bbbbbbbbbb"), ["aaaaaaaaa bbbbbbbbbb"]);
        for none in ["aaaaaaaaa bbbbbbbbb", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "} -------------------------- }", ""] {
            assert_eq!(lines(none), [""; 0], "{none}");
        }
        assert_eq!(lines("ééééééééé éééééééééé").len(), 1);
    }

    #[test]
    fn the_number_before_a_line_does_not_count() {
        for numbered in ["   12→", "12\t", "3:", "00012| ", ""] {
            let text = format!("{numbered}  let mut sum = Vec::new();");
            assert_eq!(texts(&text, UnitKind::Line), ["let mut sum = Vec::new();"], "{text}");
        }
        assert_eq!(texts("1984 was a year like others", UnitKind::Line), ["1984 was a year like others"]);
    }
}
