//! Reads what all files of agents have: lines and documents within limits, moments, and counts of tokens.

use std::io::{self, BufRead, Read as _};

use serde::Deserialize;

use crate::dialect::Usage;
use crate::simulate::TranscriptError;
use crate::units::day_of_date;

/// The longest line that is read, in bytes. Images in base64 are in the lines.
pub(super) const MAX_LINE: u64 = 32 << 20;

/// The longest document that is read, in bytes.
pub(super) const MAX_DOCUMENT: u64 = 256 << 20;

/// The tokens of a request, by the names that the agents give them. A field may be null.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Tokens {
    #[serde(alias = "input_tokens", alias = "prompt")]
    input: Option<u64>,
    #[serde(alias = "output_tokens", alias = "completion")]
    output: Option<u64>,
    #[serde(alias = "cache_read_input_tokens", alias = "cached_input_tokens", alias = "cacheRead")]
    cached: Option<u64>,
    #[serde(alias = "cache_creation_input_tokens", alias = "cacheWrite")]
    written: Option<u64>,
    cache_creation: Option<ByLifetime>,
    thoughts: Option<u64>,
    tool: Option<u64>,
    #[serde(rename = "total_tokens")]
    pub(super) total: Option<u64>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct ByLifetime {
    ephemeral_1h_input_tokens: Option<u64>,
}

impl Tokens {
    /// The usage. `with_cached` says whether the input has the tokens in it that a cache has served.
    pub(super) fn usage(self, with_cached: bool) -> Usage {
        let [input, output, cached, written] =
            [self.input, self.output, self.cached, self.written].map(Option::unwrap_or_default);
        let beside = if with_cached { 0 } else { cached.saturating_add(written) };
        let input = input.saturating_add(self.tool.unwrap_or_default()).saturating_add(beside);
        let hour = self.cache_creation.and_then(|by| by.ephemeral_1h_input_tokens).unwrap_or_default();
        let output = output.saturating_add(self.thoughts.unwrap_or_default());
        Usage { input, cached: cached.min(input), output, written, written_hour: hour.min(written) }
    }
}

/// The seconds since 1970 of a moment in UTC, as `2026-01-31T12:00:00.5Z`.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let day = day_of_date(number(0, 4)?, number(5, 7)?, number(8, 10)?)?;
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    i64::try_from(day * 86_400 + hour * 3600 + minute * 60 + second).ok()
}

/// All bytes of a file, within a limit.
pub(super) fn document(most: u64, file: impl BufRead) -> Result<Vec<u8>, TranscriptError> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(TranscriptError::TooLong) } else { Ok(bytes) }
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
        assert!(matches!(document(5, &b"123456"[..]), Err(TranscriptError::TooLong)));
    }
}
