//! An answer to the request for a summary, read whole: streamed or not, and never more of it than there may be.

use std::time::Duration;

use bytes::{Buf, Bytes};
use eventsource_stream::{EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::dialect::{Answer, Dialect, NotAnAnswer};

/// Why an answer could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// It broke off.
    #[error("the answer broke off")]
    Broken(#[source] hyper::Error),
    /// Nothing came for too long.
    #[error("nothing more of the answer came for {} s", .0.as_secs())]
    Silent(Duration),
    /// There is more of it than there may be.
    #[error("the answer is too long")]
    TooLong,
    /// It is no text.
    #[error("the answer is not UTF-8")]
    NotText,
    /// It is not an answer in the dialect of the request.
    #[error(transparent)]
    NotAnAnswer(#[from] NotAnAnswer),
}

/// The longest answer that is read, in bytes. A token of a stream takes some three hundred.
const LONGEST: usize = 16 << 20;

/// The longest line: the reader of events looks at all of a line again for every piece of it.
const LONGEST_LINE: usize = 256 << 10;

/// The longest text.
const LONGEST_TEXT: usize = 1 << 20;

/// The largest piece that the reader of events is given: it takes more than twice as long for one twice as long.
const PIECE: usize = 4 << 10;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Reads an answer to its end.
pub(super) async fn read(
    response: Response<Incoming>,
    dialect: &dyn Dialect,
    silence: Duration,
) -> Result<Answer, ReadError> {
    let streamed = is_stream(response.headers());
    let pieces = pieces(Reader::new(response.into_body(), silence));
    if streamed { read_events(pieces, dialect).await } else { read_json(pieces, dialect).await }
}

/// Reads the beginning of a body that nobody needs all of.
pub(super) async fn beginning(body: Incoming, most: usize, silence: Duration) -> Vec<u8> {
    let mut pieces = Box::pin(pieces(Reader::new(body, silence)));
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
    // Some leave out the empty line behind the last event.
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
    }
    let mut answer = Answer { is_complete: true, ..Answer::with_text() };
    add(&json, dialect, &mut answer)?;
    Ok(answer)
}

fn add(data: &[u8], dialect: &dyn Dialect, answer: &mut Answer) -> Result<(), ReadError> {
    dialect.read_answer(data, answer)?;
    let is_too_long = answer.text.as_ref().is_some_and(|text| text.len() > LONGEST_TEXT);
    if is_too_long { Err(ReadError::TooLong) } else { Ok(()) }
}

// === pieces ===

/// A body on its way to the reader of events, which panics at a mark of the byte order, never comes back from bytes that are
/// no text, and is slow on large pieces: so it is given none of these.
#[derive(Debug)]
struct Reader {
    body: Incoming,
    silence: Duration,
    /// What has come and was not handed on. It may begin with a part of a character.
    waiting: Vec<u8>,
    /// How much has come.
    total: usize,
    /// How long the present line is.
    line: usize,
    ended: bool,
}

impl Reader {
    fn new(body: Incoming, silence: Duration) -> Self {
        Self { body, silence, waiting: Vec::new(), total: 0, line: 0, ended: false }
    }

    /// The next piece: whole characters, not more of them than there may be.
    async fn piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if let Some(piece) = cut(&mut self.waiting, self.total, self.ended)? {
                self.line = match memchr::memrchr(b'\n', &piece) {
                    Some(at) => piece.len() - at - 1,
                    None => self.line + piece.len(),
                };
                return if self.line > LONGEST_LINE { Err(ReadError::TooLong) } else { Ok(Some(piece)) };
            }
            if self.ended {
                return Ok(None);
            }
            let frame = timeout(self.silence, self.body.frame()).await.map_err(|_| ReadError::Silent(self.silence))?;
            match frame {
                None => self.ended = true,
                Some(frame) => {
                    let Ok(mut data) = frame.map_err(ReadError::Broken)?.into_data() else { continue };
                    self.total += data.remaining();
                    if self.total > LONGEST {
                        return Err(ReadError::TooLong);
                    }
                    self.waiting.extend_from_slice(&data.copy_to_bytes(data.remaining()));
                }
            }
        }
    }
}

/// Takes the next piece off what has come: of all that has come `total` bytes, this is the end.
fn cut(waiting: &mut Vec<u8>, total: usize, ended: bool) -> Result<Option<Bytes>, ReadError> {
    if waiting.len() == total {
        if !ended && total < BOM.len() && BOM.starts_with(waiting) {
            return Ok(None);
        }
        if waiting.starts_with(BOM) {
            waiting.drain(..BOM.len());
        }
    }
    let end = waiting.len().min(PIECE);
    let part = waiting.get(..end).unwrap_or_default();
    let whole = match str::from_utf8(part) {
        Ok(text) => text.len(),
        Err(error) if error.error_len().is_none() && !(ended && end == waiting.len()) => error.valid_up_to(),
        Err(_) => return Err(ReadError::NotText),
    };
    if whole == 0 {
        return Ok(None);
    }
    Ok(Some(waiting.drain(..whole).collect::<Vec<_>>().into()))
}

fn pieces(reader: Reader) -> impl Stream<Item = Result<Bytes, ReadError>> {
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
        let (mut waiting, mut total, mut out, mut longest) = (Vec::new(), 0, String::new(), 0);
        for (n, part) in bytes.chunks(chunk).enumerate() {
            waiting.extend_from_slice(part);
            total += part.len();
            let ended = (n + 1) * chunk >= bytes.len();
            while let Some(piece) = cut(&mut waiting, total, ended)? {
                longest = longest.max(piece.len());
                out.push_str(str::from_utf8(&piece).unwrap());
            }
        }
        Ok((out, longest))
    }

    #[test]
    fn pieces_are_small_and_hold_whole_characters() {
        let long = "é😀x\n".repeat(5_000);
        for chunk in [1, 2, 3, 5, 4096, 100_000] {
            let (read, longest) = text(long.as_bytes(), chunk).unwrap();
            assert!(read == long && longest <= PIECE, "chunks of {chunk}");
        }
    }

    #[test]
    fn a_mark_of_the_byte_order_is_passed_over_once() {
        for chunk in [1, 2, 3, 9] {
            assert_eq!(text("\u{feff}data".as_bytes(), chunk).unwrap().0, "data");
            assert_eq!(text("\u{feff}\u{feff}x".as_bytes(), chunk).unwrap().0, "\u{feff}x");
        }
        assert_eq!(text(b"\xef\xbb", 1).map_err(|error| error.to_string()), Err("the answer is not UTF-8".to_owned()));
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error() {
        for bytes in [&b"ab\xff"[..], b"\xc3(", b"ab\xf0\x9f\x98"] {
            for chunk in [1, 2, 9] {
                assert!(matches!(text(bytes, chunk), Err(ReadError::NotText)), "{bytes:?}");
            }
        }
    }
}
