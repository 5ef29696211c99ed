//! Reads a whole answer to a summary call, streamed or not, within limits.

use std::convert::Infallible;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use eventsource_stream::Eventsource;
use futures_util::{FutureExt, StreamExt, stream};
use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::body::encoding::is_of_type;
use crate::dialect::{Answer, Dialect, InvalidAnswer};
use crate::raw;

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

/// The longest line of a stream, or answer that is not a stream, in bytes.
const MAX_JSON: usize = 4 << 20;

/// The longest summary text in bytes.
const MAX_TEXT: usize = 1 << 20;

const BOM: &str = "\u{feff}";

/// Reads an answer to its end.
pub(super) async fn read(
    response: Response<Incoming>,
    dialect: &dyn Dialect,
    idle_timeout: Duration,
) -> Result<Answer, ReadError> {
    let is_stream = is_of_type(response.headers(), "text/event-stream");
    let mut body = response.into_body();
    let first = next(&mut body, idle_timeout).await?.unwrap_or_default();
    // Without a type it may be either, but no event begins so.
    if !is_stream || first.trim_ascii_start().starts_with(b"{") {
        let mut json = first.to_vec();
        read_prefix(&mut body, MAX_JSON + 1, idle_timeout, &mut json).await?;
        return read_json(&json, dialect);
    }
    let (mut events, mut arrived, mut bytes) = (EventReader::new(dialect), 0, Some(first));
    while let Some(piece) = bytes {
        arrived += piece.len();
        if arrived > MAX_BODY {
            return Err(ReadError::TooLong);
        }
        if events.read(&piece)? {
            return Ok(events.answer);
        }
        bytes = next(&mut body, idle_timeout).await?;
    }
    // Some servers leave out the empty line after the last event.
    events.read(b"\n\n")?;
    Ok(events.answer)
}

/// Adds the first `most` bytes of a body, or all of it, to what was `read`.
pub(super) async fn read_prefix(
    body: &mut Incoming,
    most: usize,
    idle_timeout: Duration,
    read: &mut Vec<u8>,
) -> Result<(), ReadError> {
    while read.len() < most
        && let Some(bytes) = next(body, idle_timeout).await?
    {
        read.extend_from_slice(&bytes);
    }
    read.truncate(most);
    Ok(())
}

/// The bytes of a body that arrive next; none at its end.
async fn next(body: &mut Incoming, idle_timeout: Duration) -> Result<Option<Bytes>, ReadError> {
    loop {
        let frame = timeout(idle_timeout, body.frame()).await.map_err(|_| ReadError::Idle(idle_timeout))?;
        let Some(frame) = frame else { return Ok(None) };
        if let Ok(bytes) = frame.map_err(ReadError::Broken)?.into_data() {
            return Ok(Some(bytes));
        }
    }
}

fn read_json(json: &[u8], dialect: &dyn Dialect) -> Result<Answer, ReadError> {
    if json.len() > MAX_JSON {
        return Err(ReadError::TooLong);
    }
    let json = str::from_utf8(json).map_err(|_| ReadError::NotText)?.trim_start_matches(BOM);
    let mut answer = Answer { is_complete: true, ..Answer::with_text() };
    add(json, dialect, &mut answer)?;
    Ok(answer)
}

/// Adds the data of an event, or a whole answer.
fn add(data: &str, dialect: &dyn Dialect, answer: &mut Answer) -> Result<(), ReadError> {
    if let Err(invalid) = dialect.read_answer(data.as_bytes(), answer) {
        // Some servers cut a text in the middle of a surrogate pair.
        let mended = raw::without_halves(data).ok_or(invalid)?;
        dialect.read_answer(mended.as_bytes(), answer)?;
    }
    match &answer.text {
        Some(text) if text.len() > MAX_TEXT => Err(ReadError::TooLong),
        _ if answer.is_error => Err(ReadError::ErrorEvent(data.into())),
        _ => Ok(()),
    }
}

/// Reads an answer out of the events of a stream. The event parser panics at a byte order mark and hangs at bytes that are not
/// UTF-8, so it is given whole events without either.
struct EventReader<'d> {
    dialect: &'d dyn Dialect,
    answer: Answer,
    /// The line that has not ended yet.
    line: BytesMut,
    /// The lines of the event that has not ended yet.
    event: String,
}

impl<'d> EventReader<'d> {
    fn new(dialect: &'d dyn Dialect) -> Self {
        let (answer, line) = (Answer::with_text(), BytesMut::new());
        Self { dialect, answer, line, event: String::new() }
    }

    /// Reads the events that end in `bytes`. True if the answer is complete.
    fn read(&mut self, bytes: &[u8]) -> Result<bool, ReadError> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.len() > MAX_JSON {
                return Err(ReadError::TooLong);
            }
            if piece.ends_with(b"\n") {
                let line = self.line.split();
                let text = str::from_utf8(&line).map_err(|_| ReadError::NotText)?.trim_start_matches(BOM);
                self.event += text;
                if text.trim_end_matches(['\r', '\n']).is_empty() && self.end_event()? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Reads an event that has ended.
    fn end_event(&mut self) -> Result<bool, ReadError> {
        let text = std::mem::take(&mut self.event);
        // A line at a time: the time of the parser grows with the square of what it has not yet parsed.
        let lines = text.split_inclusive(['\r', '\n']).map(Ok::<_, Infallible>);
        let mut events = stream::iter(lines).eventsource();
        // Few servers end lines with a carriage return alone; with these, all events come as one.
        while let Some(Some(event)) = events.next().now_or_never() {
            let event = event.map_err(|_| ReadError::NotText)?;
            // Vertex AI sends its remarks as events (anomalyco/opencode#50871).
            if event.data.starts_with(':') {
                continue;
            }
            self.answer.is_error |= event.event == "error";
            add(&event.data, self.dialect, &mut self.answer)?;
            if self.answer.is_complete {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    /// What the model says in a stream that comes in chunks of so many bytes.
    fn said(stream: &[u8], chunk: usize) -> Result<String, ReadError> {
        let mut events = EventReader::new(dialect::for_path("/v1/chat/completions").unwrap());
        for part in stream.chunks(chunk).chain([&b"\n\n"[..]]) {
            if events.read(part)? {
                break;
            }
        }
        Ok(events.answer.text.unwrap_or_default())
    }

    fn event(text: &str) -> String {
        format!("event: message\r\ndata: {{\"choices\":[{{\"delta\":\r\ndata:{{\"content\":\"{text}\"}}}}]}}\r\n\r\n")
    }

    #[test]
    fn events_are_read_whatever_the_chunks_and_the_ends_of_lines() {
        let stream = format!("\u{feff}: a remark\n\n{}data: : keepalive\n\n{}id: 7", event("é😀"), event("x"));
        for chunk in [1, 2, 3, 5, 4096] {
            for ends in ["\r\n", "\n", "\r"] {
                let stream = stream.replace("\r\n", ends);
                assert_eq!(said(stream.as_bytes(), chunk).unwrap(), "é😀x", "{ends:?} in chunks of {chunk}");
            }
            let done = format!("{}data: [DONE]\n\n{}", event("a"), event("never read"));
            assert_eq!(said(done.as_bytes(), chunk).unwrap(), "a");
        }
    }

    #[test]
    fn byte_order_marks_before_an_event_are_skipped() {
        for marks in ["\u{feff}", "\u{feff}\u{feff}"] {
            let stream = format!("{marks}{}{marks}{}", event("a"), event("b"));
            for chunk in [1, 2, 4096] {
                assert_eq!(said(stream.as_bytes(), chunk).unwrap(), "ab", "{marks:?} in chunks of {chunk}");
            }
        }
    }

    #[test]
    fn an_event_that_is_an_error_ends_the_answer_and_is_kept() {
        for stream in ["event: error\ndata: {\"a\":1}\n\n", "event:error\ndata:{\"a\":1}"] {
            assert!(matches!(said(stream.as_bytes(), 9), Err(ReadError::ErrorEvent(data)) if data == b"{\"a\":1}"));
        }
        assert_eq!(said("event: error\n\n".as_bytes(), 9).unwrap(), "", "an event without data is none");
    }

    #[test]
    fn invalid_utf8_is_an_error() {
        for bytes in [&b"ab\xff"[..], b"\xc3(", b"ab\xf0\x9f\x98", b"\xef\xbb"] {
            for chunk in [1, 2, 9] {
                assert!(matches!(said(bytes, chunk), Err(ReadError::NotText)), "{bytes:?}");
            }
        }
    }
}
