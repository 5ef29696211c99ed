//! Parts a text into pre-tokens, of which no token crosses an end: what tiktoken does with a regular expression, in one pass.
//!
//! Each function here is one of its patterns, and says which. They read the text once: what a pattern finds by going back, a
//! function remembers on its way.

use self::classes::CHANGES;

pub(super) mod classes;

/// How an encoding parts a text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern {
    /// GPT-4o and later.
    O200k,
    /// GPT-4 and GPT-3.5.
    Cl100k,
}

// The classes of characters, a bit each.
const OTHER: u8 = 1;
/// Capitals and title case.
const UPPER: u8 = 1 << 1;
const LOWER: u8 = 1 << 2;
/// Letters that have no case, or modify others.
const CASELESS: u8 = 1 << 3;
const MARK: u8 = 1 << 4;
const NUMBER: u8 = 1 << 5;
/// Whitespace that breaks no line.
const SPACE: u8 = 1 << 6;
/// Line feed and carriage return.
const BREAK: u8 = 1 << 7;

const LETTER: u8 = UPPER | LOWER | CASELESS;
const WHITE: u8 = SPACE | BREAK;
/// The characters between words that are neither numbers nor whitespace.
const PUNCTUATION: u8 = OTHER | MARK;
/// The characters that a word may begin with beside its letters, once.
const PREFIX: u8 = PUNCTUATION | SPACE;

/// The highest bit of each byte.
const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);

/// The classes of bytes: a byte beyond ASCII is a part of a character, and has none.
const ASCII: [u8; 256] = ascii();

impl Pattern {
    /// The length of the first pre-token of a text that is not empty.
    #[inline]
    pub(super) fn first(self, text: &str) -> usize {
        match self {
            Self::O200k => o200k(text),
            Self::Cl100k => cl100k(text),
        }
    }
}

/// ```text
///   [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
/// | [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
/// | \p{N}{1,3} |  ?[^\s\p{L}\p{N}]+[\r\n/]* | \s*[\r\n]+ | \s+(?!\S) | \s+
/// ```
fn o200k(text: &str) -> usize {
    let bytes = text.as_bytes();
    // In ASCII a word is upper case and then lower case, and nothing belongs to both.
    let start = usize::from(class_at(bytes, 0) & PREFIX != 0);
    let end = ascii_word(bytes, start);
    let word =
        if bytes.get(end).is_none_or(u8::is_ascii) { Some(end).filter(|end| *end > start) } else { o200k_word(text) };
    if let Some(end) = word {
        return end + contraction(text, end);
    }
    if let Some(end) = digits(text) {
        return end;
    }
    let end = punctuation(text);
    if end > 0 {
        let trail = bytes.iter().skip(end).take_while(|byte| matches!(byte, b'\r' | b'\n' | b'/')).count();
        return end + trail;
    }
    whitespace(text, false)
}

/// ```text
///   '(?i:[sdmt]|ll|ve|re) | [^\r\n\p{L}\p{N}]?+\p{L}++ | \p{N}{1,3}+
/// |  ?[^\s\p{L}\p{N}]++[\r\n]*+ | \s++$ | \s*[\r\n] | \s+(?!\S) | \s
/// ```
fn cl100k(text: &str) -> usize {
    let contracted = contraction(text, 0);
    if contracted > 0 {
        return contracted;
    }
    let (class, length) = character(text, 0);
    let prefix = if class & PREFIX == 0 { 0 } else { length };
    let word = run(text, prefix, LETTER);
    if word > prefix {
        return word;
    }
    if let Some(end) = digits(text) {
        return end;
    }
    let end = punctuation(text);
    if end > 0 {
        return end + text.as_bytes().iter().skip(end).take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    }
    whitespace(text, true)
}

/// The end of a word: the first of two patterns takes a run of upper case and then lower case, which the letters without a
/// case belong to both; the second one takes upper case alone.
fn o200k_word(text: &str) -> Option<usize> {
    let (first, length) = character(text, 0);
    let prefix = if first & PREFIX == 0 { 0 } else { length };
    let (mixed, capitals) = cased(text, prefix);
    match mixed {
        None if first == MARK => cased(text, 0).0,
        None => Some(capitals).filter(|end| *end > prefix),
        mixed => mixed,
    }
}

/// The end of upper case that lower case follows, if there is lower case, and the end of upper case.
#[inline]
fn cased(text: &str, start: usize) -> (Option<usize>, usize) {
    let (mut end, mut last_of_both) = (start, None);
    loop {
        let (class, length) = character(text, end);
        match class {
            UPPER => end += length,
            CASELESS | MARK => {
                end += length;
                last_of_both = Some(end);
            }
            LOWER => return (Some(run(text, end + length, LOWER | CASELESS | MARK)), end),
            _ => return (last_of_both, end),
        }
    }
}

/// The length of `'s` and its like, if there is one.
#[inline]
fn contraction(text: &str, at: usize) -> usize {
    match text.as_bytes().get(at..) {
        Some([b'\'', rest @ ..]) => contracted(rest),
        _ => 0,
    }
}

fn contracted(behind: &[u8]) -> usize {
    const FORMS: [&[u8]; 7] = [b"s", b"t", b"re", b"ve", b"m", b"ll", b"d"];
    let begins_with = |form: &&&[u8]| behind.get(..form.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(form));
    let long_s = "ſ".as_bytes(); // another case of s
    match FORMS.iter().find(begins_with) {
        Some(form) => 1 + form.len(),
        None if behind.starts_with(long_s) => 1 + long_s.len(),
        None => 0,
    }
}

/// The end of up to three digits, if there are any.
#[inline]
fn digits(text: &str) -> Option<usize> {
    let mut end = 0;
    for _ in 0..3 {
        let (class, length) = character(text, end);
        if class != NUMBER {
            break;
        }
        end += length;
    }
    Some(end).filter(|end| *end > 0)
}

/// The end of punctuation, with a blank before it; 0 where there is none.
#[inline]
fn punctuation(text: &str) -> usize {
    let start = usize::from(text.starts_with(' '));
    let end = run(text, start, PUNCTUATION);
    if end > start { end } else { 0 }
}

/// The end of whitespace: after its last line break, except that whitespace at the end of a text may be one pre-token. The last
/// of several characters without a line break is left for the word after them.
#[inline]
fn whitespace(text: &str, is_whole_at_end: bool) -> usize {
    let (mut end, mut last, mut behind_break) = (0, 0, 0);
    loop {
        let (class, length) = character(text, end);
        if class & WHITE == 0 {
            break;
        }
        last = end;
        end += length;
        if class == BREAK {
            behind_break = end;
        }
    }
    let is_at_end = end == text.len();
    if behind_break > 0 && !(is_at_end && is_whole_at_end) {
        behind_break
    } else if is_at_end || last == 0 {
        end
    } else {
        last
    }
}

/// The end of a run of characters of the classes.
#[inline]
fn run(text: &str, start: usize, classes: u8) -> usize {
    let mut end = start;
    loop {
        end = ascii_run(text.as_bytes(), end, classes);
        if text.as_bytes().get(end).is_none_or(u8::is_ascii) {
            return end;
        }
        let (class, length) = beyond_ascii(text, end);
        if class & classes == 0 {
            return end;
        }
        end += length;
    }
}

/// The end of a run of characters of the classes and of ASCII.
#[inline]
fn ascii_run(text: &[u8], start: usize, classes: u8) -> usize {
    let mut end = start;
    while class_at(text, end) & classes != 0 {
        end += 1;
    }
    end
}

/// The end of capitals and then small letters of ASCII.
#[inline]
fn ascii_word(text: &[u8], start: usize) -> usize {
    let first = text.get(start..).and_then(<[u8]>::first_chunk);
    match first.and_then(|first| word_in(u64::from_le_bytes(*first))) {
        Some(length) => start + length,
        None => ascii_run(text, ascii_run(text, start, UPPER), LOWER),
    }
}

/// How many of eight bytes are capitals and then small letters of ASCII, if not all: most words are shorter, and a branch
/// for each byte costs more than this.
#[inline]
fn word_in(bytes: u64) -> Option<usize> {
    let no_capital = !between(bytes, b'A', b'Z') & HIGH;
    let first_no_capital = no_capital & no_capital.wrapping_neg();
    let end = !between(bytes, b'a', b'z') & HIGH & !first_no_capital.wrapping_sub(1);
    (no_capital != 0 && end != 0).then_some(end.trailing_zeros() as usize / 8)
}

/// The highest bit of each byte that is in a range of ASCII. After a byte beyond ASCII it may be any.
#[inline]
fn between(bytes: u64, first: u8, last: u8) -> u64 {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let reach_first = bytes.wrapping_add(EACH * u64::from(0x80 - first));
    let are_behind = bytes.wrapping_add(EACH * u64::from(0x7f - last));
    reach_first & !are_behind & !bytes & HIGH
}

/// The class of the character of ASCII at a place; none at the end of the text, and of other characters.
#[inline]
fn class_at(text: &[u8], at: usize) -> u8 {
    text.get(at).and_then(|byte| ASCII.get(usize::from(*byte))).copied().unwrap_or_default()
}

/// The class of the character at a place, and its length; no class at the end of the text.
#[inline]
fn character(text: &str, at: usize) -> (u8, usize) {
    match class_at(text.as_bytes(), at) {
        0 => beyond_ascii(text, at),
        class => (class, 1),
    }
}

#[inline(never)]
fn beyond_ascii(text: &str, at: usize) -> (u8, usize) {
    let character = text.get(at..).and_then(|rest| rest.chars().next());
    character.map_or((0, 0), |character| (class(character.into()), character.len_utf8()))
}

/// The class of any character.
fn class(character: u32) -> u8 {
    let page = character as usize >> 8;
    let [Some(&first), Some(&last)] = [PAGES.get(page), PAGES.get(page + 1)] else { return OTHER };
    let changes = CHANGES.get(first.into()..last.into()).unwrap_or_default();
    let n = usize::from(first) + changes.partition_point(|change| change >> 8 <= character);
    CHANGES.get(n.wrapping_sub(1)).map_or(OTHER, |change| change.to_le_bytes()[0])
}

/// How many changes there are before each page of 256 characters.
static PAGES: [u16; (char::MAX as usize >> 8) + 2] = pages();

#[expect(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "the compiler evaluates it")]
const fn pages() -> [u16; (char::MAX as usize >> 8) + 2] {
    let (mut pages, mut page, mut change) = ([0; _], 0, 0);
    while page < pages.len() {
        while change < CHANGES.len() && (CHANGES[change] >> 16) < page as u32 {
            change += 1;
        }
        pages[page] = change as u16;
        page += 1;
    }
    pages
}

#[expect(clippy::indexing_slicing, reason = "the compiler evaluates it")]
const fn ascii() -> [u8; 256] {
    let (mut classes, mut character, mut change) = ([0; 256], 0, 0);
    while character < 128 {
        while CHANGES[change + 1] >> 8 <= character {
            change += 1;
        }
        classes[character as usize] = CHANGES[change].to_le_bytes()[0];
        character += 1;
    }
    classes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_word_of_ascii_ends_at_the_same_byte_eight_at_a_time_and_one_by_one(
            text in "[a-zA-Z@\\[`{'é ]{0,4}[A-Z]{0,9}[a-z]{0,12}[a-zA-Z@\\[`{'éß中\u{7f} ]{0,9}",
            start in 0..3_usize,
        ) {
            let text = text.as_bytes();
            let one_by_one = ascii_run(text, ascii_run(text, start, UPPER), LOWER);
            prop_assert_eq!(ascii_word(text, start), one_by_one);
        }
    }

    #[test]
    fn each_character_has_the_class_of_the_last_change_before_it() {
        let mut of_last = OTHER;
        let mut changes = CHANGES.iter().peekable();
        for character in 0..=char::MAX.into() {
            if let Some(change) = changes.next_if(|change| **change >> 8 == character) {
                of_last = change.to_le_bytes()[0];
            }
            assert_eq!(class(character), of_last, "{character:#x}");
        }
        assert_eq!(changes.next(), None);
    }
}
