//! An answer to the request for a summary, read whole: streamed or not, and never more of it than there may be.

use std::time::Duration;

use bytes::{Buf, Bytes};
use eventsource_stream::{EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::events::Usage;

/// What an answer says.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Heard {
    /// The text of the first choice.
    pub(super) text: String,
    /// Whether it calls a tool.
    pub(super) calls_tool: bool,
    /// Why it ended, if it did.
    pub(super) finish_reason: Option<String>,
    /// The tokens that it was billed.
    pub(super) usage: Option<Usage>,
    /// Whether it says that it is an error.
    pub(super) is_error: bool,
    /// Whether the last event was the one that says so.
    pub(super) is_done: bool,
}

/// Why an answer could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unheard {
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
    /// It is not what such an answer is.
    #[error("the answer is no chat completion")]
    NotACompletion,
}

/// The longest answer that is read, in bytes. A token of a stream takes some three hundred.
const LONGEST: usize = 32 << 20;

/// The longest line of a stream, and the longest text.
const LONGEST_LINE: usize = 1 << 20;

/// The largest piece that the reader of events is given: it takes more than twice as long for one twice as long.
const PIECE: usize = 4 << 10;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Reads an answer to its end.
pub(super) async fn hear(response: Response<Incoming>, silence: Duration) -> Result<Heard, Unheard> {
    let streamed = is_stream(response.headers());
    let pieces = pieces(Reader::new(response.into_body(), silence));
    if streamed { hear_events(pieces).await } else { hear_json(pieces).await }
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

async fn hear_events(pieces: impl Stream<Item = Result<Bytes, Unheard>>) -> Result<Heard, Unheard> {
    let mut events = Box::pin(pieces.eventsource());
    let mut heard = Heard::default();
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| match error {
            EventStreamError::Transport(error) => error,
            EventStreamError::Utf8(_) | EventStreamError::Parser(_) => Unheard::NotText,
        })?;
        if event.data.trim() == "[DONE]" {
            heard.is_done = true;
            break;
        }
        heard.is_error |= event.event == "error";
        heard.add(event.data.as_bytes())?;
    }
    Ok(heard)
}

async fn hear_json(pieces: impl Stream<Item = Result<Bytes, Unheard>>) -> Result<Heard, Unheard> {
    let mut pieces = Box::pin(pieces);
    let mut json = Vec::new();
    while let Some(piece) = pieces.next().await {
        json.extend_from_slice(&piece?);
    }
    let mut heard = Heard { is_done: true, ..Heard::default() };
    heard.add(&json)?;
    Ok(heard)
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
    async fn piece(&mut self) -> Result<Option<Bytes>, Unheard> {
        loop {
            if let Some(piece) = cut(&mut self.waiting, self.total, self.ended)? {
                self.line = match memchr::memrchr(b'\n', &piece) {
                    Some(at) => piece.len() - at - 1,
                    None => self.line + piece.len(),
                };
                return if self.line > LONGEST_LINE { Err(Unheard::TooLong) } else { Ok(Some(piece)) };
            }
            if self.ended {
                return Ok(None);
            }
            let frame = timeout(self.silence, self.body.frame()).await.map_err(|_| Unheard::Silent(self.silence))?;
            match frame {
                None => self.ended = true,
                Some(frame) => {
                    let Ok(mut data) = frame.map_err(Unheard::Broken)?.into_data() else { continue };
                    self.total += data.remaining();
                    if self.total > LONGEST {
                        return Err(Unheard::TooLong);
                    }
                    self.waiting.extend_from_slice(&data.copy_to_bytes(data.remaining()));
                }
            }
        }
    }
}

/// Takes the next piece off what has come: of all that has come `total` bytes, this is the end.
fn cut(waiting: &mut Vec<u8>, total: usize, ended: bool) -> Result<Option<Bytes>, Unheard> {
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
        Err(_) => return Err(Unheard::NotText),
    };
    if whole == 0 {
        return Ok(None);
    }
    Ok(Some(waiting.drain(..whole).collect::<Vec<_>>().into()))
}

fn pieces(reader: Reader) -> impl Stream<Item = Result<Bytes, Unheard>> {
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.piece().await {
            Ok(piece) => Some((Ok(piece?), Some(reader))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

// === chunks ===

/// A chunk of a stream, or the whole answer.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    usage: Option<Reported>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow)]
    delta: Option<Said<'a>>,
    #[serde(borrow)]
    message: Option<Said<'a>>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Said<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    function_call: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Part {
    text: Option<String>,
}

#[derive(Deserialize)]
struct Reported {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Heard {
    fn add(&mut self, json: &[u8]) -> Result<(), Unheard> {
        let chunk: Chunk<'_> = serde_json::from_slice(json).map_err(|_| Unheard::NotACompletion)?;
        self.is_error |= chunk.error.is_some();
        if let Some(reported) = chunk.usage {
            self.usage = Some(Usage {
                prompt: reported.prompt_tokens.unwrap_or_default(),
                cached: reported.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or_default(),
                completion: reported.completion_tokens.unwrap_or_default(),
            });
        }
        let first = chunk.choices.unwrap_or_default().into_iter().find(|choice| choice.index.unwrap_or(0) == 0);
        let Some(choice) = first else { return Ok(()) };
        if choice.finish_reason.is_some() {
            self.finish_reason = choice.finish_reason;
        }
        let Some(said) = choice.delta.or(choice.message) else { return Ok(()) };
        self.calls_tool |= said.tool_calls.is_some_and(|calls| !calls.is_empty()) || said.function_call.is_some();
        if let Some(content) = said.content {
            self.text.push_str(&text_of(content).ok_or(Unheard::NotACompletion)?);
        }
        if self.text.len() > LONGEST_LINE { Err(Unheard::TooLong) } else { Ok(()) }
    }
}

/// The text of a content: a string, or parts.
fn text_of(content: &RawValue) -> Option<String> {
    let json = content.get();
    if json.starts_with('[') {
        let parts: Vec<Part> = serde_json::from_str(json).ok()?;
        return Some(parts.into_iter().filter_map(|part| part.text).collect());
    }
    serde_json::from_str(json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8], chunk: usize) -> Result<(String, usize), Unheard> {
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
                assert!(matches!(text(bytes, chunk), Err(Unheard::NotText)), "{bytes:?}");
            }
        }
    }

    fn heard(chunks: &[&str]) -> Result<Heard, Unheard> {
        let mut heard = Heard::default();
        chunks.iter().try_for_each(|chunk| heard.add(chunk.as_bytes()))?;
        Ok(heard)
    }

    #[test]
    fn a_stream_is_put_together() {
        let all = heard(&[
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a\n"},"finish_reason":null}],"usage":null}"#,
            r#"{"choices":[{"index":1,"delta":{"content":"other"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"é"}]},"finish_reason":"stop"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}"#,
        ]);
        let expected = Heard {
            text: "a\né".to_owned(),
            finish_reason: Some("stop".to_owned()),
            usage: Some(Usage { prompt: 9, cached: 8, completion: 3 }),
            ..Heard::default()
        };
        assert_eq!(all.unwrap(), expected);
    }

    #[test]
    fn calls_and_errors_are_seen() {
        assert!(heard(&[r#"{"choices":[{"delta":{"tool_calls":[{}]}}]}"#]).unwrap().calls_tool);
        assert!(heard(&[r#"{"choices":[{"message":{"content":"","function_call":{}}}]}"#]).unwrap().calls_tool);
        assert!(!heard(&[r#"{"choices":[{"message":{"content":"","tool_calls":[]}}]}"#]).unwrap().calls_tool);
        assert!(heard(&[r#"{"error":{"message":"no"}}"#]).unwrap().is_error);
        assert!(!heard(&[r#"{"choices":null,"error":null}"#]).unwrap().is_error);
        assert!(matches!(heard(&["<html>"]), Err(Unheard::NotACompletion)));
        assert!(matches!(heard(&[r#"{"choices":[{"delta":{"content":7}}]}"#]), Err(Unheard::NotACompletion)));
    }
}
