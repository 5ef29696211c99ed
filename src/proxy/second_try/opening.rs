//! Answers with status 200 that are refusals: some servers refuse a request in the first events of a stream, or in an
//! answer whose own status is `failed`.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use memchr::memmem;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::body::encoding::{ContentEncoding, is_of_type};
use crate::body::peek::PeekableBody;
use crate::dialect::OpeningEvents;

/// The most that is held back of a stream whose first events tell nothing, in bytes. They repeat the instructions and the
/// tools of the request, twice.
const MAX_HELD: usize = 512 << 10;

/// How long the head of a stream is held back. A server knows the length of a conversation before it begins to answer.
const HELD_FOR: Duration = Duration::from_secs(5);

/// The data of the event by which a stream fails, if it does so before it says anything, or a whole answer that has failed.
/// Holds the answer back until that is known; its bytes are relayed unchanged.
pub(super) async fn failure(
    answer: &mut Response<PeekableBody>,
    opening: Option<&'static OpeningEvents>,
) -> Option<Bytes> {
    let opening = opening.filter(|_| answer.status().is_success())?;
    if is_of_type(answer.headers(), "application/json") {
        return super::text(answer, MAX_HELD, HELD_FOR).await.filter(|text| has_failed(text));
    }
    let is_plain = ContentEncoding::from_headers(answer.headers()) == ContentEncoding::Identity;
    if !is_plain || !is_of_type(answer.headers(), "text/event-stream") {
        return None;
    }
    let mut scanner = Scanner { opening, line: Vec::new(), is_cut: false, event: String::new(), data: Vec::new() };
    match answer.body_mut().peek_until(MAX_HELD, HELD_FOR, |chunk| scanner.push(chunk)).await? {
        Told::Failure(data) => Some(data),
        Told::Answer => None,
    }
}

/// Whether a whole answer says of itself that it has failed.
fn has_failed(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        status: Cow<'a, str>,
    }
    memmem::find(json, b"\"failed\"").is_some()
        && serde_json::from_slice(json).is_ok_and(|Answer { status }| status == "failed")
}

/// The result of the events so far.
#[derive(Debug, Eq, PartialEq)]
enum Told {
    /// An answer has begun, or something that is not known.
    Answer,
    /// The request has failed, as this event says.
    Failure(Bytes),
}

/// Reads server-sent events until one tells how the request went.
#[derive(Debug)]
struct Scanner {
    opening: &'static OpeningEvents,
    // The line that has not ended yet.
    line: Vec<u8>,
    // The last line ended with a carriage return, to which a line feed may belong.
    is_cut: bool,
    event: String,
    data: Vec<u8>,
}

/// The meaning of an event of this name.
enum Kind {
    Nothing,
    Failure,
    Answer,
}

/// The fields that are read of an event without a name.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Unnamed {
    r#type: String,
    error: Option<IgnoredAny>,
}

impl Scanner {
    /// Reads a chunk, up to what tells.
    fn push(&mut self, chunk: &[u8]) -> Option<Told> {
        for piece in chunk.split_inclusive(|byte| matches!(byte, b'\r' | b'\n')) {
            let was_cut = std::mem::take(&mut self.is_cut);
            let Some((end @ (b'\r' | b'\n'), text)) = piece.split_last() else {
                self.line.extend_from_slice(piece);
                continue;
            };
            if was_cut && piece == b"\n" {
                continue;
            }
            self.is_cut = *end == b'\r';
            self.line.extend_from_slice(text);
            let line = std::mem::take(&mut self.line);
            if let Some(told) = self.read_line(&line) {
                return Some(told);
            }
        }
        None
    }

    fn read_line(&mut self, line: &[u8]) -> Option<Told> {
        if line.is_empty() {
            return self.end_event();
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"event" => {
                self.event = String::from_utf8_lossy(value).into_owned();
                let is_answer = !value.is_empty() && matches!(self.kind(&self.event), Kind::Answer);
                is_answer.then_some(Told::Answer)
            }
            b"data" => {
                if !self.data.is_empty() {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                None
            }
            _ => None,
        }
    }

    /// Returns what an event tells that has come to its end.
    fn end_event(&mut self) -> Option<Told> {
        let (mut event, data) = (std::mem::take(&mut self.event), std::mem::take(&mut self.data));
        if data.is_empty() {
            return None;
        }
        if event.is_empty() {
            let Unnamed { r#type, error } = serde_json::from_slice(&data).unwrap_or_default();
            if r#type.is_empty() && error.is_some() {
                return Some(Told::Failure(data.into()));
            }
            event = r#type;
        }
        match self.kind(&event) {
            Kind::Nothing => None,
            Kind::Failure => Some(Told::Failure(data.into())),
            Kind::Answer => Some(Told::Answer),
        }
    }

    fn kind(&self, event: &str) -> Kind {
        match event {
            _ if self.opening.silent.contains(&event) => Kind::Nothing,
            _ if self.opening.failed.contains(&event) => Kind::Failure,
            _ => Kind::Answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENING: OpeningEvents = OpeningEvents { silent: &["created", "queued"], failed: &["error"] };

    fn scanner() -> Scanner {
        Scanner { opening: &OPENING, line: Vec::new(), is_cut: false, event: String::new(), data: Vec::new() }
    }

    /// Returns what a stream tells, in chunks of this many bytes, and how many bytes of it were read.
    fn told(stream: &str, n: usize) -> (Option<Told>, usize) {
        let (mut scanner, mut read) = (scanner(), 0);
        for chunk in stream.as_bytes().chunks(n) {
            read += chunk.len();
            if let Some(told) = scanner.push(chunk) {
                return (Some(told), read);
            }
        }
        (None, read)
    }

    #[test]
    fn the_first_event_that_tells_decides() {
        let failure = |data: &'static str| Some(Told::Failure(Bytes::from_static(data.as_bytes())));
        let silent = ": a comment\n\nevent: created\ndata: {\"type\":\"created\"}\n\ndata: {\"type\":\"queued\"}\n\n";
        for (stream, expected) in [
            ("event: error\ndata: {\"a\":1}\n\n", failure("{\"a\":1}")),
            ("data: {\"type\":\"error\",\"a\":1}\n\n", failure("{\"type\":\"error\",\"a\":1}")),
            ("event:error\ndata:{\ndata:}\nid: 7\n\n", failure("{\n}")),
            ("event: delta\ndata: {}\n\nevent: error\ndata: {}\n\n", Some(Told::Answer)),
            ("data: {\"error\":{\"a\":1}}\n\n", failure("{\"error\":{\"a\":1}}")),
            ("data: {\"type\":\"delta\",\"error\":{}}\n\n", Some(Told::Answer)),
            ("data: [DONE]\n\n", Some(Told::Answer)),
            ("data: {\"no\":\"type\"}\n\n", Some(Told::Answer)),
            ("event: error\n\n", None),
            ("event: error\ndata: {}\n", None),
            ("data\n\nevent\n\n", None),
            ("", None),
        ] {
            for line_end in ["\n", "\r\n", "\r"] {
                let stream = format!("{silent}{stream}").replace('\n', line_end);
                for n in [1, 2, 3, 7, stream.len()] {
                    assert_eq!(told(&stream, n).0, expected, "{stream:?} by {n}");
                }
            }
        }
    }

    #[test]
    fn an_answer_is_known_by_the_name_of_its_first_event() {
        let stream = "event: created\ndata: {}\n\nevent: delta\ndata: {\"text\":\"a\"}\n\n";
        let line = stream.find("data: {\"text").unwrap();
        assert_eq!(told(stream, 1), (Some(Told::Answer), line));
    }
}
