//! Reads a whole answer to a summary call, streamed or not, within limits.

use std::time::Duration;

use bytes::{Buf, Bytes};
use eventsource_stream::{EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::dialect::{Answer, Dialect, InvalidAnswer};
use crate::raw;
use crate::relay::outline::{Ended, Line};

/// Why an answer could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// The connection broke off.
    #[error("the answer broke off")]
    Broken(#[source] hyper::Error),
    /// Nothing arrived for this time.
    #[error("nothing more of the answer came for {} s", .0.as_secs())]
    Idle(Duration),
    /// The answer exceeds a limit.
    #[error("the answer is too long")]
    TooLong,
    /// The answer is not UTF-8.
    #[error("the answer is not UTF-8")]
    NotText,
    /// The upstream reports an error in place of an answer, in this event.
    #[error("the upstream's answer contains an error")]
    ErrorEvent(Vec<u8>),
    /// The answer is not in the dialect of the request.
    #[error(transparent)]
    InvalidAnswer(#[from] InvalidAnswer),
}

/// The longest answer in bytes. A token of a stream takes some three hundred.
const MAX_BODY: usize = 16 << 20;

/// The longest line of a stream in bytes that is read as it is: the event parser scans all of a line again for every piece
/// of it. Of a longer one the outline is read, where that loses nothing that the model says.
const MAX_LINE: usize = 256 << 10;

/// The longest answer in bytes that is not a stream.
const MAX_JSON: usize = 4 << 20;

/// The longest summary text in bytes.
const MAX_TEXT: usize = 1 << 20;

/// The largest piece in bytes that the event parser is given: its time per piece grows faster than the length.
const MAX_PIECE: usize = 4 << 10;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Reads an answer to its end.
pub(super) async fn read(
    response: Response<Incoming>,
    dialect: &dyn Dialect,
    idle_timeout: Duration,
) -> Result<Answer, ReadError> {
    let streamed = is_stream(response.headers());
    let reader = Reader::new(response.into_body(), idle_timeout);
    if streamed {
        read_events(pieces(Reader { lines: Some(Lines { line: Line::default(), dialect }), ..reader }), dialect).await
    } else {
        read_json(pieces(reader), dialect).await
    }
}

/// Reads at most the first `most` bytes of a body.
pub(super) async fn read_prefix(body: Incoming, most: usize, idle_timeout: Duration) -> Vec<u8> {
    let mut pieces = Box::pin(pieces(Reader::new(body, idle_timeout)));
    let mut bytes = Vec::new();
    while let Some(Ok(piece)) = pieces.next().await {
        bytes.extend_from_slice(&piece);
        if bytes.len() >= most {
            bytes.truncate(most);
            break;
        }
    }
    bytes
}

fn is_stream(headers: &HeaderMap) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    kind.get(..EVENTS.len()).is_some_and(|start| start.eq_ignore_ascii_case(EVENTS))
}

async fn read_events(
    pieces: impl Stream<Item = Result<Bytes, ReadError>>,
    dialect: &dyn Dialect,
) -> Result<Answer, ReadError> {
    // Some servers leave out the empty line after the last event.
    let pieces = pieces.chain(stream::iter([Ok(Bytes::from_static(b"\n\n"))]));
    let mut events = Box::pin(pieces.eventsource());
    let mut answer = Answer::with_text();
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| match error {
            EventStreamError::Transport(error) => error,
            EventStreamError::Utf8(_) | EventStreamError::Parser(_) => ReadError::NotText,
        })?;
        answer.is_error |= event.event == "error";
        add(event.data.as_bytes(), dialect, &mut answer)?;
        if answer.is_error {
            return Err(ReadError::ErrorEvent(event.data.into_bytes()));
        }
        if answer.is_complete {
            break;
        }
    }
    Ok(answer)
}

async fn read_json(
    pieces: impl Stream<Item = Result<Bytes, ReadError>>,
    dialect: &dyn Dialect,
) -> Result<Answer, ReadError> {
    let mut pieces = Box::pin(pieces);
    let mut json = Vec::new();
    while let Some(piece) = pieces.next().await {
        json.extend_from_slice(&piece?);
        if json.len() > MAX_JSON {
            return Err(ReadError::TooLong);
        }
    }
    let mut answer = Answer { is_complete: true, ..Answer::with_text() };
    add(&json, dialect, &mut answer)?;
    if answer.is_error { Err(ReadError::ErrorEvent(json)) } else { Ok(answer) }
}

fn add(data: &[u8], dialect: &dyn Dialect, answer: &mut Answer) -> Result<(), ReadError> {
    if let Err(invalid) = dialect.read_answer(data, answer) {
        // Some servers cut a text in the middle of a surrogate pair.
        let mended = raw::utf8(data).and_then(raw::without_halves).ok_or(invalid)?;
        dialect.read_answer(mended.as_bytes(), answer)?;
    }
    let is_too_long = answer.text.as_ref().is_some_and(|text| text.len() > MAX_TEXT);
    if is_too_long { Err(ReadError::TooLong) } else { Ok(()) }
}

// === pieces ===

/// A body on its way to the event parser. The parser panics at a byte order mark, hangs at bytes that are not UTF-8,
/// and is slow on large pieces, so the reader gives it none.
struct Reader<'d> {
    body: Incoming,
    idle_timeout: Duration,
    /// The reader of lines before `buffer`; none for an answer that has no lines.
    lines: Option<Lines<'d>>,
    /// Bytes that were not passed on. They may begin with a part of a character.
    buffer: Vec<u8>,
    /// How many bytes came into the buffer in total, and how many arrived.
    total: usize,
    arrived: usize,
    ended: bool,
}

/// Cuts a stream into lines, none of which is too long for the event parser.
struct Lines<'d> {
    /// The line that has not ended yet.
    line: Line,
    dialect: &'d dyn Dialect,
}

impl Lines<'_> {
    /// Adds the lines that end in `bytes` to `buffer`.
    fn push(&mut self, bytes: &[u8], buffer: &mut Vec<u8>) -> Result<(), ReadError> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.push(piece, MAX_LINE).map_err(|_| ReadError::TooLong)?;
            if piece.ends_with(b"\n") {
                self.end(buffer)?;
            }
        }
        Ok(())
    }

    /// Adds the line that has ended.
    fn end(&mut self, buffer: &mut Vec<u8>) -> Result<(), ReadError> {
        let Ended { bytes, is_outline } = self.line.take();
        let data = bytes.strip_prefix(b"data:").unwrap_or_default();
        if is_outline && !self.dialect.may_be_outlined(data) {
            return Err(ReadError::TooLong);
        }
        buffer.extend_from_slice(&bytes);
        Ok(())
    }
}

impl Reader<'_> {
    fn new(body: Incoming, idle_timeout: Duration) -> Self {
        Self { body, idle_timeout, lines: None, buffer: Vec::new(), total: 0, arrived: 0, ended: false }
    }

    /// The next piece: whole characters, at most [`MAX_PIECE`] bytes.
    async fn piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if let Some(piece) = next_piece(&mut self.buffer, self.total, self.ended)? {
                return Ok(Some(piece));
            }
            if self.ended {
                return Ok(None);
            }
            let frame =
                timeout(self.idle_timeout, self.body.frame()).await.map_err(|_| ReadError::Idle(self.idle_timeout))?;
            match frame {
                None => self.end()?,
                Some(frame) => {
                    let Ok(mut data) = frame.map_err(ReadError::Broken)?.into_data() else { continue };
                    self.add(&data.copy_to_bytes(data.remaining()))?;
                }
            }
        }
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), ReadError> {
        self.arrived += bytes.len();
        if self.arrived > MAX_BODY {
            return Err(ReadError::TooLong);
        }
        let before = self.buffer.len();
        match &mut self.lines {
            Some(lines) => lines.push(bytes, &mut self.buffer)?,
            None => self.buffer.extend_from_slice(bytes),
        }
        self.total += self.buffer.len() - before;
        Ok(())
    }

    fn end(&mut self) -> Result<(), ReadError> {
        self.ended = true;
        let before = self.buffer.len();
        self.lines.as_mut().map_or(Ok(()), |lines| lines.end(&mut self.buffer))?;
        self.total += self.buffer.len() - before;
        Ok(())
    }
}

/// Takes the next piece from `buffer`, which holds the last of `total` bytes.
fn next_piece(buffer: &mut Vec<u8>, total: usize, ended: bool) -> Result<Option<Bytes>, ReadError> {
    if buffer.len() == total {
        if !ended && total < BOM.len() && BOM.starts_with(buffer) {
            return Ok(None);
        }
        if buffer.starts_with(BOM) {
            buffer.drain(..BOM.len());
        }
    }
    let end = buffer.len().min(MAX_PIECE);
    let part = buffer.get(..end).unwrap_or_default();
    let whole = match str::from_utf8(part) {
        Ok(text) => text.len(),
        Err(error) if error.error_len().is_none() && !(ended && end == buffer.len()) => error.valid_up_to(),
        Err(_) => return Err(ReadError::NotText),
    };
    if whole == 0 {
        return Ok(None);
    }
    Ok(Some(buffer.drain(..whole).collect::<Vec<_>>().into()))
}

fn pieces(reader: Reader<'_>) -> impl Stream<Item = Result<Bytes, ReadError>> {
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.piece().await {
            Ok(piece) => Some((Ok(piece?), Some(reader))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8], chunk: usize) -> Result<(String, usize), ReadError> {
        let (mut buffer, mut total, mut out, mut longest) = (Vec::new(), 0, String::new(), 0);
        for (n, part) in bytes.chunks(chunk).enumerate() {
            buffer.extend_from_slice(part);
            total += part.len();
            let ended = (n + 1) * chunk >= bytes.len();
            while let Some(piece) = next_piece(&mut buffer, total, ended)? {
                longest = longest.max(piece.len());
                out.push_str(str::from_utf8(&piece).unwrap());
            }
        }
        Ok((out, longest))
    }

    #[test]
    fn pieces_are_bounded_and_hold_whole_characters() {
        let long = "é😀x\n".repeat(5_000);
        for chunk in [1, 2, 3, 5, 4096, 100_000] {
            let (read, longest) = text(long.as_bytes(), chunk).unwrap();
            assert!(read == long && longest <= MAX_PIECE, "chunks of {chunk}");
        }
    }

    #[test]
    fn one_byte_order_mark_is_skipped() {
        for chunk in [1, 2, 3, 9] {
            assert_eq!(text("\u{feff}data".as_bytes(), chunk).unwrap().0, "data");
            assert_eq!(text("\u{feff}\u{feff}x".as_bytes(), chunk).unwrap().0, "\u{feff}x");
        }
        assert_eq!(text(b"\xef\xbb", 1).map_err(|error| error.to_string()), Err("the answer is not UTF-8".to_owned()));
    }

    #[test]
    fn invalid_utf8_is_an_error() {
        for bytes in [&b"ab\xff"[..], b"\xc3(", b"ab\xf0\x9f\x98"] {
            for chunk in [1, 2, 9] {
                assert!(matches!(text(bytes, chunk), Err(ReadError::NotText)), "{bytes:?}");
            }
        }
    }
}
