//! Answers with status 200 that are refusals: some servers refuse a request in the first events of a stream, or in an
//! answer whose own status is `failed`.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::MAX_DECODING;
use crate::body::Budget;
use crate::body::encoding::{ContentEncoding, is_of_type};
use crate::dialect::OpeningEvents;
use crate::proxy::UpstreamAnswer;
use crate::relay::event_splitter::{EventSplitter, field};

/// The most that is held back of a stream whose first events tell nothing, in bytes. They repeat the instructions and the
/// tools of the request, twice.
const MAX_HELD: usize = 512 << 10;

/// How long the head of a stream is held back. A server knows the length of a conversation before it begins to answer.
const HELD_FOR: Duration = Duration::from_secs(5);

/// The data of the event by which a stream fails, if it does so before it says anything, or a whole answer that has failed.
/// Holds the answer back until that is known; its bytes are relayed unchanged.
pub(super) async fn failure(answer: &mut UpstreamAnswer, opening: Option<&'static OpeningEvents>) -> Option<Bytes> {
    let opening = opening.filter(|_| answer.status().is_success())?;
    if is_of_type(answer.headers(), "application/json") {
        return super::text(answer, MAX_HELD, HELD_FOR).await.filter(|text| has_failed(text));
    }
    let encoding = ContentEncoding::from_headers(answer.headers());
    if encoding == ContentEncoding::Unsupported || !is_of_type(answer.headers(), "text/event-stream") {
        return None;
    }
    let mut decoder = encoding.decoder(Some(&Budget::new(MAX_DECODING)));
    let mut events = EventSplitter::default();
    let read = |chunk: &[u8]| {
        let Some(decoder) = &mut decoder else { return read(opening, &mut events, chunk) };
        let mut told = None;
        let is_sound = decoder.decode(chunk, |plain| told = told.take().or_else(|| read(opening, &mut events, &plain)));
        told.or((!is_sound).then_some(Told::Answer))
    };
    match answer.body_mut().peek_until(MAX_HELD, HELD_FOR, read).await? {
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

/// The fields that are read of an event without a name.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Unnamed {
    r#type: String,
    error: Option<IgnoredAny>,
}

/// Reads a chunk, up to the event that tells how the request went.
fn read(opening: &OpeningEvents, events: &mut EventSplitter, chunk: &[u8]) -> Option<Told> {
    events.push(chunk);
    std::iter::from_fn(|| events.next_event()).find_map(|event| told(opening, &event))
}

/// What an event tells, if anything.
fn told(opening: &OpeningEvents, event: &[u8]) -> Option<Told> {
    let data = field(event, b"data:");
    if data.is_empty() {
        return None;
    }
    let mut name = String::from_utf8_lossy(&field(event, b"event:")).into_owned();
    if name.is_empty() {
        let Unnamed { r#type, error } = serde_json::from_slice(&data).unwrap_or_default();
        if r#type.is_empty() && error.is_some() {
            return Some(Told::Failure(data.into()));
        }
        name = r#type;
    }
    match &*name {
        name if opening.silent.contains(&name) => None,
        name if opening.failed.contains(&name) => Some(Told::Failure(data.into())),
        _ => Some(Told::Answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENING: OpeningEvents = OpeningEvents { silent: &["created", "queued"], failed: &["error"] };

    /// Returns what a stream tells, in chunks of this many bytes.
    fn told(stream: &str, n: usize) -> Option<Told> {
        let mut events = EventSplitter::default();
        stream.as_bytes().chunks(n).find_map(|chunk| read(&OPENING, &mut events, chunk))
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
                // Something follows: after a carriage return, a line feed may.
                let stream = format!("{silent}{stream}: ").replace('\n', line_end);
                for n in [1, 2, 3, 7, stream.len()] {
                    assert_eq!(told(&stream, n), expected, "{stream:?} by {n}");
                }
            }
        }
    }
}
