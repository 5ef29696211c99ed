//! Reads what all files of agents have: lines and documents within limits, moments, and counts of tokens.

use std::collections::HashMap;
use std::io::{self, BufRead, Read as _};

use chrono::{NaiveDate, NaiveTime};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::dialect::Usage;
use crate::simulate::TranscriptError;

/// The longest line that is read, in bytes. Images in base64 are in the lines.
pub(super) const MAX_LINE: u64 = 32 << 20;

/// The longest document that is read, in bytes.
pub(super) const MAX_DOCUMENT: u64 = 256 << 20;

/// More tokens than a request has; a larger count is taken for as many.
const MAX_TOKENS: u64 = 1 << 32;

/// The counts of tokens of a request, by the names that its agent gives them.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Tokens(HashMap<String, Box<RawValue>>);

impl Tokens {
    /// The count that has the first of some names, if it is a number; 0 if there is none.
    pub(super) fn count(&self, names: &[&str]) -> u64 {
        let count = names.iter().find_map(|name| self.0.get(*name)?.get().parse::<u64>().ok());
        count.unwrap_or_default().min(MAX_TOKENS)
    }

    /// The usage. `with_cached` says whether the input has the tokens in it that a cache has served.
    pub(super) fn usage(&self, with_cached: bool) -> Usage {
        let cached = self.count(&["cached", "cached_input_tokens", "cache_read_input_tokens", "cacheRead"]);
        let written = self.count(&["cache_creation_input_tokens", "cacheWrite"]);
        let beside = if with_cached { 0 } else { cached + written };
        let input = self.count(&["input", "input_tokens", "prompt"]) + self.count(&["tool"]) + beside;
        let output = self.count(&["output", "output_tokens", "completion"]) + self.count(&["thoughts"]);
        let by_lifetime = self.0.get("cache_creation").and_then(|by| serde_json::from_str::<Self>(by.get()).ok());
        let hour = by_lifetime.map_or(0, |by| by.count(&["ephemeral_1h_input_tokens"]));
        Usage { input, cached: cached.min(input), output, written, written_hour: hour.min(written) }
    }
}

/// The seconds since 1970 of a moment in UTC, as `2026-01-31T12:00:00.5Z`.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let (date, time): (NaiveDate, NaiveTime) = (text.get(..10)?.parse().ok()?, text.get(11..19)?.parse().ok()?);
    Some(date.and_time(time).and_utc().timestamp()).filter(|seconds| *seconds >= 0)
}

/// All bytes of a file, within a limit.
pub(super) fn document(most: u64, file: impl BufRead) -> Result<Vec<u8>, TranscriptError> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(TranscriptError::TooLong(most)) } else { Ok(bytes) }
}

/// Shows `take` each line that is not empty and within the limit. Returns how many it did not understand, and how many were too long.
pub(super) fn each_line(most: u64, mut file: impl BufRead, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<usize> {
    let (mut line, mut skipped) = (Vec::new(), 0);
    loop {
        line.clear();
        line.shrink_to(1 << 20);
        let n_bytes = file.by_ref().take(most + 1).read_until(b'\n', &mut line)?;
        if n_bytes == 0 {
            return Ok(skipped);
        }
        if n_bytes as u64 > most && line.last() != Some(&b'\n') {
            file.skip_until(b'\n')?;
            skipped += 1;
            continue;
        }
        let line = line.trim_ascii();
        skipped += usize::from(!line.is_empty() && !take(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_seconds_since_1970() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T23:59:59.999Z", Some(951_868_799)),
            ("2026-11-25T22:46:00Z", Some(1_795_646_760)),
            ("2026-13-25T22:46:00Z", None),
            ("2026-11-25", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn a_count_that_is_unknown_twice_there_or_too_large_costs_no_line() {
        let usage = |text: &str| serde_json::from_str::<Tokens>(text).unwrap().usage(false);
        let counted =
            usage(r#"{"input_tokens":1,"input":2,"tool":{"a":1},"output":null,"output_tokens":3,"cacheRead":4.5}"#);
        assert_eq!((counted.input, counted.output, counted.cached), (2, 3, 0));
        let most = usage(&format!(r#"{{"input":{0},"cached":{0},"cacheWrite":{0}}}"#, u64::MAX));
        assert_eq!((most.input, most.cached), (3 * MAX_TOKENS, MAX_TOKENS));
    }

    #[test]
    fn a_line_up_to_the_limit_is_shown_and_one_byte_more_is_skipped() {
        let mut shown = Vec::new();
        let file = b"1234\n12345\n123456\n\n  \n123456789012345678\r\nabc\r\nlast";
        let skipped = each_line(5, &file[..], |line| {
            shown.push(String::from_utf8(line.to_owned()).unwrap());
            line != b"abc"
        });
        assert_eq!(skipped.unwrap(), 3);
        assert_eq!(shown, ["1234", "12345", "abc", "last"]);
    }

    #[test]
    fn a_document_has_at_most_as_many_bytes_as_the_limit() {
        assert_eq!(document(5, &b"12345"[..]).unwrap(), b"12345");
        assert!(matches!(document(5, &b"123456"[..]), Err(TranscriptError::TooLong(5))));
    }
}
