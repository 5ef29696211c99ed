//! Reads a whole answer to a summary call, streamed or not, within limits.

use std::time::Duration;

use bytes::Bytes;
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
/// The longest line of a stream in bytes that is read as it is. Of a longer one the outline is read, where that loses nothing
/// that the model says.
const MAX_LINE: usize = 256 << 10;
/// The longest answer in bytes that is not a stream.
const MAX_JSON: usize = 4 << 20;
/// The longest summary text in bytes.
const MAX_TEXT: usize = 1 << 20;

const BOM: char = '\u{feff}';

/// Reads an answer to its end.
pub(super) async fn read(
    response: Response<Incoming>,
    dialect: &dyn Dialect,
    idle_timeout: Duration,
) -> Result<Answer, ReadError> {
    let streamed = is_stream(response.headers());
    let reader = Reader { body: response.into_body(), idle_timeout, arrived: 0 };
    if streamed { read_events(reader, dialect).await } else { read_json(reader, dialect).await }
}

/// Reads at most the first `most` bytes of a body.
pub(super) async fn read_prefix(body: Incoming, most: usize, idle_timeout: Duration) -> Vec<u8> {
    let mut reader = Reader { body, idle_timeout, arrived: 0 };
    let mut bytes = Vec::new();
    while bytes.len() < most
        && let Ok(Some(piece)) = reader.next().await
    {
        bytes.extend_from_slice(&piece);
    }
    bytes.truncate(most);
    if bytes.starts_with(BOM.encode_utf8(&mut [0; 3]).as_bytes()) { bytes.split_off(BOM.len_utf8()) } else { bytes }
}

fn is_stream(headers: &HeaderMap) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    kind.get(..EVENTS.len()).is_some_and(|start| start.eq_ignore_ascii_case(EVENTS))
}

async fn read_events(mut reader: Reader, dialect: &dyn Dialect) -> Result<Answer, ReadError> {
    let mut events = Events::new(dialect);
    while !events.answer.is_complete {
        match reader.next().await? {
            Some(bytes) => events.push(&bytes)?,
            None => return events.end(),
        }
    }
    Ok(events.answer)
}

async fn read_json(mut reader: Reader, dialect: &dyn Dialect) -> Result<Answer, ReadError> {
    let mut json = Vec::new();
    while let Some(piece) = reader.next().await? {
        json.extend_from_slice(&piece);
        if json.len() > MAX_JSON {
            return Err(ReadError::TooLong);
        }
    }
    let json = raw::utf8(&json).ok_or(ReadError::NotText)?;
    let json = json.strip_prefix(BOM).unwrap_or(json).as_bytes();
    let mut answer = Answer { is_complete: true, ..Answer::with_text() };
    add(json, dialect, &mut answer)?;
    if answer.is_error { Err(ReadError::ErrorEvent(json.to_vec())) } else { Ok(answer) }
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

/// Reads a body within its limits.
struct Reader {
    body: Incoming,
    idle_timeout: Duration,
    /// How many bytes have arrived.
    arrived: usize,
}

impl Reader {
    /// The next bytes; none at the end of the body.
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            let frame = timeout(self.idle_timeout, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| ReadError::Idle(self.idle_timeout))? else { return Ok(None) };
            let Ok(bytes) = frame.map_err(ReadError::Broken)?.into_data() else { continue };
            self.arrived += bytes.len();
            return if self.arrived > MAX_BODY { Err(ReadError::TooLong) } else { Ok(Some(bytes)) };
        }
    }
}

// === events ===

/// Reads the events of a stream, line by line, into an answer.
struct Events<'d> {
    dialect: &'d dyn Dialect,
    answer: Answer,
    /// The line that has not ended yet.
    line: Line,
    is_first_line: bool,
    /// The data of the event that has not ended yet, with a line feed after each of its lines.
    data: String,
    /// Whether the event has the type of errors.
    is_error: bool,
}

impl<'d> Events<'d> {
    fn new(dialect: &'d dyn Dialect) -> Self {
        let (line, data) = (Line::default(), String::new());
        Self { dialect, answer: Answer::with_text(), line, is_first_line: true, data, is_error: false }
    }

    /// Reads the lines that end in the next bytes, up to the event that completes the answer.
    fn push(&mut self, bytes: &[u8]) -> Result<(), ReadError> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.push(piece, MAX_LINE).map_err(|_| ReadError::TooLong)?;
            if piece.ends_with(b"\n") && !self.answer.is_complete {
                self.end_line()?;
            }
        }
        Ok(())
    }

    /// Reads what has not ended: some servers leave out the empty line after the last event.
    fn end(mut self) -> Result<Answer, ReadError> {
        self.end_line()?;
        self.end_event()?;
        Ok(self.answer)
    }

    fn end_line(&mut self) -> Result<(), ReadError> {
        let Ended { bytes, is_outline } = self.line.take();
        if is_outline && !self.dialect.may_be_outlined(bytes.strip_prefix(b"data:").unwrap_or_default()) {
            return Err(ReadError::TooLong);
        }
        let mut text = raw::utf8(&bytes).ok_or(ReadError::NotText)?;
        if std::mem::take(&mut self.is_first_line) {
            text = text.strip_prefix(BOM).unwrap_or(text);
        }
        text = text.strip_suffix('\n').unwrap_or(text);
        // A carriage return ends a line, too.
        text.strip_suffix('\r').unwrap_or(text).split('\r').try_for_each(|line| self.read_line(line))
    }

    fn read_line(&mut self, line: &str) -> Result<(), ReadError> {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            _ if line.is_empty() => return self.end_event(),
            "event" => self.is_error = value == "error",
            "data" => self.data.extend([value, "\n"]),
            _ => {}
        }
        Ok(())
    }

    fn end_event(&mut self) -> Result<(), ReadError> {
        let (mut data, is_error) = (std::mem::take(&mut self.data), std::mem::take(&mut self.is_error));
        if data.pop().is_none() || self.answer.is_complete {
            return Ok(());
        }
        self.answer.is_error |= is_error;
        add(data.as_bytes(), self.dialect, &mut self.answer)?;
        if self.answer.is_error { Err(ReadError::ErrorEvent(data.into_bytes())) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    /// The text of an answer whose events come in chunks of so many bytes.
    fn text(stream: &[u8], chunk: usize) -> Result<Option<String>, ReadError> {
        let mut events = Events::new(dialect::default());
        stream.chunks(chunk).try_for_each(|bytes| events.push(bytes))?;
        events.end().map(|answer| answer.text)
    }

    fn event(text: &str) -> String {
        format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
    }

    #[test]
    fn events_are_whole_whatever_the_chunks_are() {
        let long = "é😀x".repeat(5_000);
        for chunk in [1, 2, 3, 5, 4096, 100_000] {
            assert!(text(event(&long).as_bytes(), chunk).unwrap().unwrap() == long, "chunks of {chunk}");
        }
    }

    #[test]
    fn one_byte_order_mark_is_skipped() {
        for chunk in [1, 2, 3, 9] {
            let text = |start: &str| text(format!("{start}{}", event("x")).as_bytes(), chunk).unwrap().unwrap();
            assert_eq!((text("\u{feff}").as_str(), text("\u{feff}\u{feff}").as_str()), ("x", ""));
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

    #[test]
    fn each_end_of_a_line_and_each_field_is_known() {
        let data = event("x");
        let data = data.trim_end();
        for end in ["\n", "\r\n", "\r"] {
            let stream = [": comment", "id: 1", data, "", "", data, "other: 1", ""].join(end);
            for chunk in 1..=stream.len() {
                let read = text(stream.as_bytes(), chunk).unwrap();
                assert_eq!(read.as_deref(), Some("xx"), "{end:?}, chunks of {chunk}");
            }
        }
        let (split, two) = ("data: {\"choices\":\ndata:[]}\n\n", format!("event: error\n{data}"));
        assert_eq!(text(split.as_bytes(), 9).unwrap().as_deref(), Some(""));
        assert!(matches!(text(two.as_bytes(), 9), Err(ReadError::ErrorEvent(_))));
    }
}
