//! The outline of a long line of JSON, made while it passes: what usage and a stop reason are read from stays, and what
//! makes the line long does not.
//!
//! A string longer than [`MAX_STRING`] becomes an empty one, and what is nested deeper than [`MAX_DEPTH`] leaves its
//! brackets. The last event of a response holds the whole of it once more, tools and images among it, in some megabytes;
//! its outline has some kilobytes.

use bytes::BytesMut;
use memchr::memchr2;

/// The longest string that stays, in bytes as written.
const MAX_STRING: usize = 256;

/// How deep values stay: an event, the response, its usage, the details of that.
const MAX_DEPTH: usize = 4;

/// A line that comes in pieces, in bounded memory: its outline from where it is too long.
#[derive(Debug, Default)]
pub(crate) struct Line {
    bytes: BytesMut,
    // Where in the line the next byte is, once it is too long.
    outline: Option<Outline>,
}

/// Where in a line the next byte is.
#[derive(Clone, Copy, Debug, Default)]
struct Outline {
    depth: usize,
    string: Option<InString>,
}

/// Inside a string.
#[derive(Clone, Copy, Debug, Default)]
struct InString {
    /// How many bytes of it have been seen.
    len: usize,
    /// How many of them are written to the outline.
    written: usize,
    /// Whether the last byte was a backslash that escapes the next.
    escapes: bool,
}

impl Line {
    /// Whether nothing has come of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.outline.is_none()
    }

    /// Adds the next piece of a line that is carried as it is up to `most` bytes. Its outline is no longer, either:
    /// `false` if even that is too long.
    pub(crate) fn push(&mut self, piece: &[u8], most: usize) -> bool {
        if self.outline.is_none() && self.bytes.len() + piece.len() > most {
            let whole = self.bytes.split();
            self.outline = Some(Outline::default());
            self.outlined(&whole, most);
        }
        if self.outline.is_some() {
            self.outlined(piece, most);
        } else {
            self.bytes.extend_from_slice(piece);
        }
        self.bytes.len() <= most
    }

    /// Takes the line, which has ended, and whether it is its outline.
    pub(crate) fn take(&mut self) -> (BytesMut, bool) {
        (self.bytes.split(), self.outline.take().is_some())
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Adds the outline of bytes, which is never more than a piece too long.
    fn outlined(&mut self, bytes: &[u8], most: usize) {
        const PIECE: usize = 16 << 10;
        let Some(outline) = &mut self.outline else { return };
        let mut pieces = bytes.chunks(PIECE);
        while let Some(piece) = pieces.next().filter(|_| self.bytes.len() <= most) {
            outline.push(piece, &mut self.bytes);
        }
    }
}

impl Outline {
    /// Adds the outline of the next bytes of a line to `out`.
    fn push(&mut self, mut bytes: &[u8], out: &mut BytesMut) {
        while let Some((&byte, rest)) = bytes.split_first() {
            let Some(string) = &mut self.string else {
                self.outside(byte, out);
                bytes = rest;
                continue;
            };
            let (behind, ended) = string.push(bytes, self.depth <= MAX_DEPTH, out);
            bytes = behind;
            if ended {
                self.string = None;
            }
        }
    }

    /// A byte that is in no string.
    fn outside(&mut self, byte: u8, out: &mut BytesMut) {
        let mut stays = self.depth <= MAX_DEPTH;
        match byte {
            b'"' => self.string = Some(InString::default()),
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                stays = self.depth <= MAX_DEPTH;
            }
            _ => {}
        }
        if stays {
            out.extend_from_slice(&[byte]);
        }
    }
}

impl InString {
    /// Takes the bytes of a string up to its end, or as many as there are. Returns the rest, and whether it has ended.
    fn push<'b>(&mut self, bytes: &'b [u8], stays: bool, out: &mut BytesMut) -> (&'b [u8], bool) {
        let (mut at, mut ended) = (0, false);
        while !ended && at < bytes.len() {
            if std::mem::take(&mut self.escapes) {
                at += 1;
                continue;
            }
            let next = memchr2(b'"', b'\\', bytes.get(at..).unwrap_or_default());
            at = next.map_or(bytes.len(), |next| at + next + 1);
            ended = next.is_some() && bytes.get(at - 1) == Some(&b'"');
            self.escapes = next.is_some() && !ended;
        }
        let (inside, behind) = bytes.split_at(at);
        self.len += inside.len() - usize::from(ended);
        if stays {
            self.write(inside, ended, out);
        }
        (behind, ended)
    }

    /// Writes what stays of a string, or takes back what was written of it.
    fn write(&mut self, inside: &[u8], ended: bool, out: &mut BytesMut) {
        if self.len <= MAX_STRING {
            out.extend_from_slice(inside);
            self.written += inside.len();
            return;
        }
        out.truncate(out.len().saturating_sub(std::mem::take(&mut self.written)));
        if ended {
            out.extend_from_slice(b"\"");
        }
    }
}

#[cfg(test)]
mod tests;
