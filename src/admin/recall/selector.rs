//! The parts of a payload that a query can ask for.

use std::fmt::Write as _;
use std::ops::Range;

use bytes::Bytes;
use memchr::{memchr_iter, memmem};
use percent_encoding::percent_decode_str;

use crate::payload::Payload;
use crate::raw;

/// The longest answer, in bytes.
const MAX_PART_BYTES: usize = 16 << 20;

/// The longest answer to `grep` and the longest line in it, in bytes.
pub(super) const MAX_GREP_BYTES: usize = 1 << 20;
pub(super) const MAX_GREP_LINE: usize = 2000;

/// The longest query, in bytes, before decoding.
pub(super) const MAX_QUERY: usize = 2000;

/// Selects a part of a payload.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Selector {
    Bytes { offset: usize, limit: usize },
    Lines { first: usize, last: usize },
    Grep(Vec<u8>),
}

/// A selected part of a payload.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Selection {
    pub(crate) body: Bytes,
    pub(crate) range: Option<Range<usize>>,
    pub(crate) lines: Option<usize>,
    pub(crate) matches: Option<usize>,
    /// Whether the payload is a JSON string, and this is a part of its encoded form.
    pub(crate) is_json: bool,
    /// Whether the bytes are a copy and no slice of the payload.
    pub(crate) is_copy: bool,
}

// === impl Selector ===

impl Selector {
    /// Parses a query; `None` if it is not valid.
    pub(super) fn parse(query: &str) -> Option<Self> {
        if query.len() > MAX_QUERY {
            return None;
        }
        let [offset, limit, lines, grep] = parse_query(query, ["offset", "limit", "lines", "grep"])?;
        match (lines, grep) {
            (None, None) => Some(Self::Bytes {
                offset: offset.map_or(Some(0), |offset| number(&offset))?,
                limit: limit.map_or(Some(MAX_PART_BYTES), |limit| number(&limit))?.min(MAX_PART_BYTES),
            }),
            _ if offset.is_some() || limit.is_some() => None,
            (Some(lines), None) => line_range(&lines).map(|(first, last)| Self::Lines { first, last }),
            (None, Some(needle)) if !needle.is_empty() => Some(Self::Grep(needle.into_bytes())),
            _ => None,
        }
    }

    /// Selects the part from the payload.
    pub(super) fn select(&self, payload: &Payload) -> Selection {
        let (media, payload) = (payload.media(), &payload.bytes());
        match self {
            Self::Bytes { offset, limit } if media.is_some() => {
                part(payload, *offset.min(&payload.len())..offset.saturating_add(*limit))
            }
            Self::Bytes { offset, limit } => {
                let is_json = text_of_json(payload).is_some();
                let start = down_to_char(payload, *offset);
                let end = down_to_char(payload, offset.saturating_add(*limit));
                let end = if end > start || *limit == 0 { end.max(start) } else { up_to_char(payload, start + 1) };
                Selection { is_json, ..part(payload, start..end) }
            }
            Self::Lines { first, last } => match text_of_json(payload) {
                Some(text) => Selection { is_copy: true, ..lines(&text, *first, *last) },
                None => lines(payload, *first, *last),
            },
            Self::Grep(needle) => grep(text_of_json(payload).as_ref().unwrap_or(payload), needle),
        }
    }
}

/// The decoded text of a payload that is stored as a JSON string.
fn text_of_json(payload: &[u8]) -> Option<Bytes> {
    raw::halved(payload).map(|text| text.into_owned().into())
}

/// A range of the payload, cut to the limit at the start of a character.
fn part(payload: &Bytes, range: Range<usize>) -> Selection {
    let end =
        if range.len() > MAX_PART_BYTES { down_to_char(payload, range.start + MAX_PART_BYTES) } else { range.end };
    let range = range.start..end.min(payload.len()).max(range.start);
    Selection { body: payload.slice(range.clone()), range: Some(range), ..Selection::default() }
}

fn lines(payload: &Bytes, first: usize, last: usize) -> Selection {
    // The start of each line. Text after the last line end is a line; an empty rest is none.
    let starts = [0].into_iter().chain(memchr_iter(b'\n', payload).map(|at| at + 1)).filter(|at| *at < payload.len());
    let (mut n_lines, mut start, mut end) = (0, payload.len(), payload.len());
    for at in starts {
        n_lines += 1;
        if n_lines == first {
            start = at;
        }
        if n_lines - 1 == last {
            end = at;
        }
    }
    Selection { lines: Some(n_lines), ..part(payload, start..end) }
}

fn grep(payload: &Bytes, needle: &[u8]) -> Selection {
    let finder = memmem::Finder::new(needle);
    let (mut text, mut n) = (String::new(), 0);
    for (number, line) in payload.split(|byte| *byte == b'\n').enumerate() {
        let Some(at) = finder.find(line) else { continue };
        n += 1;
        if text.len() < MAX_GREP_BYTES {
            // Writing to a String cannot fail.
            let _written = writeln!(text, "{}:{}", number + 1, excerpt(line, at, needle.len()));
        }
    }
    Selection { body: text.into(), matches: Some(n), is_copy: true, ..Selection::default() }
}

/// The line, or, if it is very long, the part around the match.
fn excerpt(line: &[u8], at: usize, len: usize) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() <= MAX_GREP_LINE {
        return String::from_utf8_lossy(line).into_owned();
    }
    let around = MAX_GREP_LINE.saturating_sub(len) / 2;
    let (start, end) = (at.saturating_sub(around), at.saturating_add(len + around));
    let (start, end) = (down_to_char(line, start), down_to_char(line, end));
    let text = String::from_utf8_lossy(line.get(start..end).unwrap_or_default());
    let [before, after] = [start > 0, end < line.len()].map(|cut| if cut { "…" } else { "" });
    format!("{before}{text}{after}")
}

// === helpers ===

/// The offset, or the nearest one below it where a character begins; at most the length.
fn down_to_char(text: &[u8], offset: usize) -> usize {
    let most = offset.min(text.len());
    // A character has at most four bytes; without a start within those, the bytes are not text.
    let mut near = (most.saturating_sub(3)..=most).rev();
    near.find(|at| text.get(*at).is_none_or(|byte| !is_continuation(*byte))).unwrap_or(most)
}

fn up_to_char(text: &[u8], offset: usize) -> usize {
    let rest = text.get(offset..).unwrap_or_default();
    offset.min(text.len()) + rest.iter().take(3).take_while(|byte| is_continuation(**byte)).count()
}

/// Whether a byte of UTF-8 continues a character.
fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

fn number(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// `A-B`, `A-` or `A`.
fn line_range(text: &str) -> Option<(usize, usize)> {
    let (first, last) = match text.split_once('-') {
        None => (number(text)?, number(text)?),
        Some((first, "")) => (number(first)?, usize::MAX),
        Some((first, last)) => (number(first)?, number(last)?),
    };
    (1..=last).contains(&first).then_some((first, last))
}

/// The values of a query; `None` if a key is unknown or repeated.
pub(crate) fn parse_query<const N: usize>(query: &str, keys: [&str; N]) -> Option<[Option<String>; N]> {
    let mut values = [const { None }; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let slot = keys.iter().position(|known| *known == key).and_then(|n| values.get_mut(n))?;
        if slot.replace(String::from_utf8(percent_decoded(value)).ok()?).is_some() {
            return None;
        }
    }
    Some(values)
}

/// Decodes `%20` and `+`. Invalid escapes stay unchanged.
pub(crate) fn percent_decoded(text: &str) -> Vec<u8> {
    percent_decode_str(&text.replace('+', " ")).collect()
}
