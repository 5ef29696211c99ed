//! Reads files within limits: lines, one after another, and whole documents.

use std::io::{self, BufRead, Read as _};

use crate::simulate::TranscriptError;

/// The longest line that is read, in bytes. Images in base64 are in the lines.
const MAX_LINE: u64 = 32 << 20;

/// The longest document that is read, in bytes.
const MAX_DOCUMENT: u64 = 256 << 20;

/// All bytes of a file.
pub(super) fn document(file: impl BufRead) -> Result<Vec<u8>, TranscriptError> {
    document_up_to(MAX_DOCUMENT, file)
}

fn document_up_to(most: u64, file: impl BufRead) -> Result<Vec<u8>, TranscriptError> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(TranscriptError::TooLong) } else { Ok(bytes) }
}

/// Shows `take` each line that is not empty. Returns how many it did not understand, and how many were too long.
pub(super) fn each_line(file: impl BufRead, take: impl FnMut(&[u8]) -> bool) -> io::Result<usize> {
    each_line_up_to(MAX_LINE, file, take)
}

fn each_line_up_to(most: u64, mut file: impl BufRead, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<usize> {
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
    fn a_line_up_to_the_limit_is_shown_and_one_byte_more_is_skipped() {
        let mut shown = Vec::new();
        let file = b"1234\n12345\n123456\n\n  \n123456789012345678\r\nabc\r\nlast";
        let skipped = each_line_up_to(5, &file[..], |line| {
            shown.push(String::from_utf8(line.to_owned()).unwrap());
            line != b"abc"
        });
        assert_eq!(skipped.unwrap(), 3);
        assert_eq!(shown, ["1234", "12345", "abc", "last"]);
    }

    #[test]
    fn a_document_has_at_most_as_many_bytes_as_the_limit() {
        assert_eq!(document_up_to(5, &b"12345"[..]).unwrap(), b"12345");
        assert!(matches!(document_up_to(5, &b"123456"[..]), Err(TranscriptError::TooLong)));
    }
}
