//! Units: the parts of a text that can be found again elsewhere, which are lines and names.
//!
//! A *line* has at least 20 characters and two words; white space around it and the number that a tool has put before it
//! do not count. A *name* is in `snake_case` or `camelCase`, a file with a known extension, a hexadecimal number of at
//! least 7 digits or a decimal one of at least 4. A bare word is never a unit.

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

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
const MIN_NAME_BYTES: usize = 5;
const MIN_HEX_DIGITS: usize = 7;
const MIN_DIGITS: usize = 4;

/// The extensions by which a word with a dot is a file.
const EXTENSIONS: [&str; 60] = [
    "bash", "c", "cc", "cfg", "conf", "cpp", "cs", "css", "csv", "db", "env", "ex", "go", "gz", "h", "hpp", "htm",
    "html", "ini", "ipynb", "java", "jpg", "js", "json", "jsonl", "jsx", "kt", "lock", "log", "lua", "md", "mjs",
    "mod", "pdf", "php", "pl", "png", "proto", "py", "rb", "rs", "rst", "scala", "sh", "snap", "sql", "sum", "svelte",
    "svg", "swift", "toml", "ts", "tsx", "txt", "vue", "xml", "yaml", "yml", "zig", "zip",
];

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

fn names(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let tokens = text.split(move |c| !is_part(c)).map(|token| token.trim_matches(['-', '.']));
    tokens.filter(|token| token.len() >= MIN_DIGITS).flat_map(|token| {
        let file = is_file(token).then_some(token);
        let words = token.split(['-', '.']).filter(move |word| file.is_none() && is_name(word));
        file.into_iter().chain(words)
    })
}

fn is_file(token: &str) -> bool {
    let extension = token.rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|extension| EXTENSIONS.binary_search(&extension).is_ok())
}

fn is_name(word: &str) -> bool {
    let bytes = word.as_bytes();
    let pairs = || bytes.iter().zip(bytes.iter().skip(1));
    if bytes.iter().all(u8::is_ascii_digit) {
        return bytes.len() >= MIN_DIGITS;
    }
    let is_hex = bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex && bytes.len() >= MIN_HEX_DIGITS && bytes.iter().any(u8::is_ascii_digit) {
        return true;
    }
    let is_snake = || word.trim_matches('_').contains('_');
    let is_camel = || pairs().any(|(one, next)| one.is_ascii_lowercase() && next.is_ascii_uppercase());
    bytes.len() >= MIN_NAME_BYTES && (is_snake() || is_camel())
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

    #[test]
    fn names_have_a_form_that_words_do_not_have() {
        let names = |text| texts(text, UnitKind::Name);
        assert_eq!(
            names("open(src/main_loop.rs) getValue httpServer2go MAX_LEN deadbe3f 0123 a-b_cde.x"),
            ["main_loop.rs", "getValue", "httpServer2go", "MAX_LEN", "deadbe3f", "0123", "b_cde"]
        );
        for none in ["word Word WORD self.value e.g. a_b 123 abc1234x deadbeef _private__ x-y", "été naïveté"] {
            assert_eq!(names(none), [""; 0], "{none}");
        }
        assert_eq!(names("2026-11-22"), ["2026"]);
    }

    #[test]
    fn extensions_are_in_order() {
        assert!(EXTENSIONS.is_sorted());
    }
}
