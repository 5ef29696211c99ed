//! Reads a whole answer to a summary call, streamed or not, within limits.

use std::time::Duration;

use bytes::{Buf, Bytes};
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

/// The longest line of a stream in bytes that is read as it is. Of a longer one the outline is read, where that loses
/// nothing that the model says.
const MAX_LINE: usize = 256 << 10;

/// The longest answer in bytes that is not streamed.
const MAX_JSON: usize = 4 << 20;

/// The longest summary text in bytes.
const MAX_TEXT: usize = 1 << 20;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Reads an answer to its end.
pub(super) async fn read(
    response: Response<Incoming>,
    dialect: &dyn Dialect,
    idle_timeout: Duration,
) -> Result<Answer, ReadError> {
    let streamed = is_stream(response.headers());
    let mut chunks = Chunks { body: response.into_body(), idle_timeout, arrived: 0 };
    if !streamed {
        let mut json = Vec::new();
        while let Some(chunk) = chunks.next().await? {
            json.extend_from_slice(&chunk);
            if json.len() > MAX_JSON {
                return Err(ReadError::TooLong);
            }
        }
        return read_json(json, dialect);
    }
    let mut events = Events::new(dialect);
    while let Some(chunk) = chunks.next().await? {
        if events.push(&chunk)? {
            return Ok(events.answer);
        }
    }
    events.end()
}

/// The beginning of a body, for errors: at most `most` bytes, and what came before it broke off.
pub(super) async fn read_prefix(body: Incoming, most: usize, idle_timeout: Duration) -> Vec<u8> {
    let mut chunks = Chunks { body, idle_timeout, arrived: 0 };
    let mut bytes = Vec::new();
    while bytes.len() < most
        && let Ok(Some(chunk)) = chunks.next().await
    {
        bytes.extend_from_slice(&chunk);
    }
    bytes.truncate(most);
    bytes
}

fn is_stream(headers: &HeaderMap) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    kind.get(..EVENTS.len()).is_some_and(|start| start.eq_ignore_ascii_case(EVENTS))
}

fn read_json(json: Vec<u8>, dialect: &dyn Dialect) -> Result<Answer, ReadError> {
    let text = str::from_utf8(without_bom(&json)).map_err(|_| ReadError::NotText)?;
    let mut answer = Answer { is_complete: true, ..Answer::with_text() };
    add(text.as_bytes(), dialect, &mut answer)?;
    if answer.is_error { Err(ReadError::ErrorEvent(json)) } else { Ok(answer) }
}

fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BOM).unwrap_or(bytes)
}

/// Adds what an event or a whole answer says. A half of a surrogate pair counts as U+FFFD.
fn add(data: &[u8], dialect: &dyn Dialect, answer: &mut Answer) -> Result<(), ReadError> {
    if let Err(invalid) = dialect.read_answer(data, answer) {
        let mended = raw::utf8(data).and_then(raw::without_halves).ok_or(invalid)?;
        dialect.read_answer(mended.as_bytes(), answer)?;
    }
    let is_too_long = answer.text.as_ref().is_some_and(|text| text.len() > MAX_TEXT);
    if is_too_long { Err(ReadError::TooLong) } else { Ok(()) }
}

/// The chunks of a body, within [`MAX_BODY`].
struct Chunks {
    body: Incoming,
    idle_timeout: Duration,
    arrived: usize,
}

impl Chunks {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            let frame = timeout(self.idle_timeout, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| ReadError::Idle(self.idle_timeout))? else { return Ok(None) };
            let Ok(mut data) = frame.map_err(ReadError::Broken)?.into_data() else { continue };
            self.arrived += data.remaining();
            if self.arrived > MAX_BODY {
                return Err(ReadError::TooLong);
            }
            return Ok(Some(data.copy_to_bytes(data.remaining())));
        }
    }
}

/// A stream of events of which more and more is read, as the HTML standard says.
struct Events<'d> {
    dialect: &'d dyn Dialect,
    answer: Answer,
    line: Line,
    is_first_line: bool,
    /// The lines of data of the event that is read, if it has any, and whether it is named an error.
    data: Option<Vec<u8>>,
    is_error: bool,
}

impl<'d> Events<'d> {
    fn new(dialect: &'d dyn Dialect) -> Self {
        let (answer, line) = (Answer::with_text(), Line::default());
        Self { dialect, answer, line, is_first_line: true, data: None, is_error: false }
    }

    /// Reads what has arrived. True once the answer is complete.
    fn push(&mut self, chunk: &[u8]) -> Result<bool, ReadError> {
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.line.push(piece, MAX_LINE).map_err(|_| ReadError::TooLong)?;
            if piece.ends_with(b"\n") && self.end_line()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The answer, once the stream has ended. Some servers end it without the empty line after the last event.
    fn end(mut self) -> Result<Answer, ReadError> {
        let _is_complete = self.end_line()? || self.end_event()?;
        Ok(self.answer)
    }

    fn end_line(&mut self) -> Result<bool, ReadError> {
        let Ended { bytes, is_outline } = self.line.take();
        if is_outline && !self.dialect.may_be_outlined(bytes.strip_prefix(b"data:").unwrap_or_default()) {
            return Err(ReadError::TooLong);
        }
        let text = if std::mem::take(&mut self.is_first_line) { without_bom(&bytes) } else { &bytes };
        let text = str::from_utf8(text).map_err(|_| ReadError::NotText)?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        for line in text.strip_suffix('\r').unwrap_or(text).split('\r') {
            self.read_line(line);
            if line.is_empty() && self.end_event()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads a line without its end.
    fn read_line(&mut self, line: &str) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match (field, &mut self.data) {
            ("event", _) => self.is_error = value == "error",
            ("data", Some(data)) => data.extend([b"\n", value.as_bytes()].concat()),
            ("data", data) => *data = Some(value.into()),
            _ => {}
        }
    }

    /// Reads the event that has ended, if it has data. True once the answer is complete.
    fn end_event(&mut self) -> Result<bool, ReadError> {
        let is_error = std::mem::take(&mut self.is_error);
        let Some(data) = self.data.take().filter(|data| !data.is_empty()) else { return Ok(false) };
        self.answer.is_error |= is_error;
        add(&data, self.dialect, &mut self.answer)?;
        if self.answer.is_error { Err(ReadError::ErrorEvent(data)) } else { Ok(self.answer.is_complete) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    /// The text of an answer that comes in chunks of this size, and whether it is complete.
    fn said(stream: &[u8], chunk: usize) -> Result<(String, bool), ReadError> {
        let mut events = Events::new(dialect::default());
        for part in stream.chunks(chunk) {
            if events.push(part)? {
                return Ok((events.answer.text.unwrap(), true));
            }
        }
        let answer = events.end()?;
        Ok((answer.text.unwrap(), answer.is_complete))
    }

    fn event(text: &str) -> String {
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":{text:?}}}}}]}}")
    }

    #[test]
    fn events_are_read_however_they_are_cut_and_whatever_ends_their_lines() {
        let (one, other) = (event("é😀"), event("x"));
        for end in ["\n", "\r\n"] {
            let stream = format!(
                "\u{feff}{one}{end}{end}: a comment{end}id: 1{end}{other}{end}{end}data: [DONE]{end}{end}{one}"
            );
            for chunk in [1, 2, 3, 5, 4096] {
                assert_eq!(said(stream.as_bytes(), chunk).unwrap(), ("é😀x".to_owned(), true), "{end:?} {chunk}");
            }
        }
        let [old, rest] = [format!("{one}\r\r{other}\r\rdata: [DONE]\r\r"), format!("{one}\n\n{other}")];
        assert_eq!(said(old.as_bytes(), 7).unwrap(), ("é😀x".to_owned(), true));
        assert_eq!(said(rest.as_bytes(), 7).unwrap(), ("é😀x".to_owned(), false), "an event without an end");
    }

    #[test]
    fn an_event_has_all_lines_of_its_data() {
        let stream = "data: {\"choices\":[{\"delta\":\ndata:{\"content\":\"x\"}}]}\n\n";
        assert_eq!(said(stream.as_bytes(), 9).unwrap().0, "x");
        let failed = said(b"event: error\ndata: {\"message\":\"no\"}\n\n", 9).unwrap_err();
        assert!(matches!(failed, ReadError::ErrorEvent(data) if data == b"{\"message\":\"no\"}"));
        assert_eq!(said(b"event: error\n\ndata: {}\n\n", 9).unwrap().0, "", "an event without data is none");
    }

    #[test]
    fn invalid_utf8_is_an_error() {
        for bytes in [&b"data: ab\xff\n\n"[..], b"data: \xc3(\n", b"data: ab\xf0\x9f\x98", b"\xef\xbb"] {
            for chunk in [1, 2, 9] {
                assert!(matches!(said(bytes, chunk), Err(ReadError::NotText)), "{bytes:?}");
            }
        }
        assert!(matches!(read_json(b"{\"a\":\"\xff\"}".to_vec(), dialect::default()), Err(ReadError::NotText)));
    }

    #[test]
    fn a_byte_order_mark_before_json_is_skipped() {
        let json = "\u{feff}{\"choices\":[{\"message\":{\"content\":\"x\"}}]}";
        assert_eq!(read_json(json.into(), dialect::default()).unwrap().text.as_deref(), Some("x"));
    }
}
