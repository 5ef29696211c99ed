//! The strings of raw JSON: their parts, as written and as read.

use std::{borrow::Cow, ops::Range};

use memchr::{memchr, memmem};

use super::blocks::{LANE, Lane};
use super::utf8;

/// The bytes of `\u0000`.
const UNIT: usize = 6;

/// The text of a value, if it is a string, with U+FFFD for each half of a surrogate pair: strings that were cut in the
/// middle of a pair have them, and no text does.
pub(crate) fn string(json: &str) -> Option<Cow<'_, str>> {
    if !json.starts_with('"') {
        return None;
    }
    unescaped(json).or_else(|| Some(Cow::Owned(unescaped(&without_halves(json)?)?.into_owned())))
}

/// The text of a JSON string, given with its quotes; none if it is not a valid one, or has half a surrogate pair.
pub(crate) fn unescaped(json: &str) -> Option<Cow<'_, str>> {
    let written = json.strip_prefix('"')?.strip_suffix('"')?;
    let bytes = written.as_bytes();
    let mut from = plain_len(bytes);
    if from == bytes.len() {
        return Some(Cow::Borrowed(written));
    }
    // No text is longer than what is written.
    let mut text = String::with_capacity(written.len());
    text.push_str(written.get(..from)?);
    loop {
        from += match bytes.get(from..)? {
            [] => return Some(Cow::Owned(text)),
            [b'\\', kind, ..] if let Some(character) = escaped_character(*kind) => {
                text.push(character);
                2
            }
            escape @ [b'\\', ..] => {
                let (character, length) = escaped_units(escape)?;
                text.push(character);
                length
            }
            _ => return None,
        };
        let plain = plain_len(bytes.get(from..)?);
        text.push_str(written.get(from..from + plain)?);
        from += plain;
    }
}

/// Returns what a backslash and this byte encode; none for `u`, and for what is not an escape.
#[inline]
fn escaped_character(kind: u8) -> Option<char> {
    Some(match kind {
        b'"' | b'\\' | b'/' => kind.into(),
        b'n' => '\n',
        b't' => '\t',
        b'r' => '\r',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        _ => return None,
    })
}

fn escaped_units(json: &[u8]) -> Option<(char, usize)> {
    let first = unit(json, 0)?;
    if let Some(character) = decoded([first]) {
        return Some((character, UNIT));
    }
    Some((decoded([first, unit(json, UNIT)?])?, 2 * UNIT))
}

/// JSON with `\ufffd` for each half of a surrogate pair in its strings; none if it has none.
pub(crate) fn without_halves(json: &str) -> Option<String> {
    let mut whole = String::with_capacity(json.len());
    for half in escapes(json.as_bytes()).filter(|escape| escape.character.is_none()) {
        whole.push_str(json.get(whole.len()..half.start)?);
        whole.push_str(r"\ufffd");
    }
    let rest = json.get(whole.len()..)?;
    (!whole.is_empty()).then(|| whole + rest)
}

/// Whether a value is a string with half a surrogate pair in it.
pub(crate) fn has_half(json: &[u8]) -> bool {
    // All halves are from U+D800 to U+DFFF.
    let mut units = memmem::find_iter(json, br"\u");
    let mut may_have = || units.any(|at| matches!(json.get(at + 2), Some(b'd' | b'D')));
    json.starts_with(b"\"") && may_have() && escapes(json).any(|escape| escape.character.is_none())
}

/// The text of a value that is a string with half a surrogate pair in it; none of any other.
pub(crate) fn halved(json: &[u8]) -> Option<Cow<'_, str>> {
    utf8(json).filter(|_| json.ends_with(b"\"") && has_half(json)).and_then(string)
}

/// Where in a string, as it is written, bytes of its text are: of [`string`], from one character to another.
pub(crate) fn written_at(json: &[u8], text: &Range<usize>) -> Range<usize> {
    // Up to the present escape: the bytes that are written, and those of the text.
    let (mut written, mut read) = (1, 0);
    let mut escapes = escapes(json).peekable();
    let mut find = |at: usize| {
        while let Some(Escape { start, end, character }) = escapes.peek() {
            let before = start - written;
            if at <= read + before {
                break;
            }
            read += before + character.unwrap_or(char::REPLACEMENT_CHARACTER).len_utf8();
            written = *end;
            escapes.next();
        }
        written + at.saturating_sub(read)
    };
    let start = find(text.start);
    start..find(text.end)
}

/// An escape in a string; both where two encode one character.
#[derive(Clone, Copy, Debug)]
struct Escape {
    start: usize,
    end: usize,
    /// None for half a surrogate pair.
    character: Option<char>,
}

/// The escapes of a string, from first to last, up to one that is none.
fn escapes(json: &[u8]) -> impl Iterator<Item = Escape> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = from + memchr(b'\\', json.get(from..)?)?;
        let escape = match unit(json, start) {
            Some(first) => {
                let second = unit(json, start + UNIT).filter(|_| (0xD800..0xDC00).contains(&first));
                let one = || Escape { start, end: start + UNIT, character: decoded([first]) };
                let pair = second.and_then(|second| decoded([first, second]));
                pair.map_or_else(one, |pair| Escape { start, end: start + 2 * UNIT, character: Some(pair) })
            }
            // All others encode one byte, as the one after the backslash is.
            None => Escape { start, end: start + 2, character: json.get(start + 1).map(|&byte| byte.into()) },
        };
        from = escape.end;
        Some(escape)
    })
}

/// The number in `\u0000`, if that is what is written there.
fn unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + UNIT)?.strip_prefix(br"\u")?;
    digits.iter().try_fold(0, |number, digit| {
        let digit = char::from(*digit).to_digit(16).and_then(|digit| u16::try_from(digit).ok())?;
        Some(number << 4 | digit)
    })
}

/// The one character that these numbers encode.
fn decoded<const N: usize>(units: [u16; N]) -> Option<char> {
    let mut characters = char::decode_utf16(units);
    let first = characters.next()?.ok()?;
    characters.next().is_none().then_some(first)
}

/// How many bytes there are before the first one that is not literal in a string: a quote, a backslash or a control
/// character.
#[inline]
fn plain_len(bytes: &[u8]) -> usize {
    let (lanes, rest) = bytes.as_chunks();
    for (n, lane) in lanes.iter().enumerate() {
        let plain = Lane::new(*lane).plain();
        if plain < LANE {
            return n * LANE + plain;
        }
    }
    let plain = rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)).count();
    bytes.len() - rest.len() + plain
}

#[cfg(test)]
mod tests;
