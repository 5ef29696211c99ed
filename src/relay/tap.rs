//! The tap: reads usage and finish reason out of an answer that passes by. For log lines, never for the answer itself.
//!
//! Server-sent events are looked at line by line, and only a line that gives `"usage"` or `"finish_reason"` a value is parsed.
//! A JSON answer is one long line. What the tap carries from chunk to chunk is bounded; past that it switches itself off.

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use memchr::{memchr, memmem};
use serde::{Deserialize, Deserializer};

use crate::body::encoding::Coding;

/// What the upstream reported. A later report in the stream replaces an earlier one.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Seen {
    /// Why the first choice ended: `stop`, `tool_calls`, `length`, …
    pub finish_reason: Option<String>,
    /// Tokens as billed.
    pub usage: Option<Usage>,
    /// The carry was full, so that something may have been missed.
    pub overflowed: bool,
}

/// `usage` of the upstream's answer, in tokens.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Of the request.
    pub prompt: u64,
    /// Of the request, as far as the upstream's prompt cache served them.
    pub cached: u64,
    /// Of the answer.
    pub completion: u64,
}

/// Watches one answer.
#[derive(Debug, Default)]
pub struct Tap {
    form: Form,
    // The line that has begun but not ended.
    carry: BytesMut,
    seen: Seen,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Form {
    Events,
    Json,
    #[default]
    Off,
}

/// The longest line that is carried, and the longest JSON answer that is read: 1 MiB.
pub const MAX_CARRY: usize = 1 << 20;

/// The longest reason that is kept; a real one has a dozen letters, and it goes into a log line.
const MAX_REASON: usize = 32;

// === impl Tap ===

impl Tap {
    /// A tap for an answer with these headers. It stays off for compressed answers and types that it does not know.
    pub fn new(headers: &HeaderMap) -> Self {
        let plain = matches!(Coding::of(headers), Coding::Plain);
        let kind = headers.get(CONTENT_TYPE).filter(|_| plain).map_or(&b""[..], HeaderValue::as_bytes);
        let is = |name: &[u8]| kind.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        let form = if is(b"text/event-stream") {
            Form::Events
        } else if is(b"application/json") {
            Form::Json
        } else {
            Form::Off
        };
        Self { form, carry: BytesMut::new(), seen: Seen::default() }
    }

    /// A chunk of the answer passes by.
    pub fn watch(&mut self, chunk: &Bytes) {
        match self.form {
            Form::Events => self.events(chunk),
            Form::Json => _ = self.carried(chunk),
            Form::Off => {}
        }
    }

    /// What there was to see. Parses a JSON answer, which may take a millisecond.
    pub fn finish(mut self) -> Seen {
        match self.form {
            Form::Events => self.seen.line(&self.carry),
            Form::Json => self.seen.chunk(&self.carry),
            Form::Off => {}
        }
        self.seen
    }

    fn events(&mut self, mut chunk: &[u8]) {
        while let Some(at) = memchr(b'\n', chunk) {
            let (line, rest) = chunk.split_at(at);
            chunk = rest.get(1..).unwrap_or_default();
            if self.carry.is_empty() {
                self.seen.line(line);
            } else if self.carried(line) {
                let line = self.carry.split();
                self.seen.line(&line);
            }
        }
        self.carried(chunk);
    }

    /// Keeps bytes for the next chunk; `false` once there are too many, which ends the tap.
    fn carried(&mut self, bytes: &[u8]) -> bool {
        if self.carry.len() + bytes.len() > MAX_CARRY {
            self.form = Form::Off;
            self.carry = BytesMut::new();
            self.seen.overflowed = true;
            return false;
        }
        self.carry.extend_from_slice(bytes);
        true
    }
}

// === impl Seen ===

impl Seen {
    /// One line of an event stream.
    fn line(&mut self, line: &[u8]) {
        // Many servers write `"finish_reason":null` and `"usage":null` into every chunk, so a look at the value saves most of the work.
        let worth_parsing =
            line.starts_with(b"data:") && (names(line, b"\"usage\"", b'{') || names(line, b"\"finish_reason\"", b'"'));
        if worth_parsing {
            self.chunk(line.get(b"data:".len()..).unwrap_or_default());
        }
    }

    /// One JSON object in OpenAI's shape; anything else is passed over.
    fn chunk(&mut self, json: &[u8]) {
        let Ok(chunk) = serde_json::from_slice::<Chunk>(json) else { return };
        if let Some(reported) = chunk.usage {
            self.usage = Some(Usage {
                prompt: reported.prompt_tokens,
                cached: reported.prompt_tokens_details.map_or(0, |details| details.cached_tokens),
                completion: reported.completion_tokens,
            });
        }
        if let Some(reason) = chunk.choices.into_iter().find_map(|choice| choice.finish_reason) {
            self.finish_reason = Some(reason.chars().filter(char::is_ascii_graphic).take(MAX_REASON).collect());
        }
    }
}

/// Whether the key stands somewhere in the line with a value that begins with this byte.
fn names(line: &[u8], key: &[u8], begins: u8) -> bool {
    memmem::find_iter(line, key).any(|at| {
        let behind = line.get(at + key.len()..).unwrap_or_default().trim_ascii_start();
        let value = behind.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
        value.first() == Some(&begins)
    })
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default, deserialize_with = "null_is_default")]
    choices: Vec<Choice>,
    usage: Option<Reported>,
}

#[derive(Deserialize)]
struct Choice {
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Reported {
    #[serde(default, deserialize_with = "null_is_default")]
    prompt_tokens: u64,
    #[serde(default, deserialize_with = "null_is_default")]
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default, deserialize_with = "null_is_default")]
    cached_tokens: u64,
}

fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(content_type: &str, chunks: &[&[u8]]) -> Seen {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
        let mut tap = Tap::new(&headers);
        for chunk in chunks {
            tap.watch(&Bytes::copy_from_slice(chunk));
        }
        tap.finish()
    }

    const STREAM: &[u8] = b": hello\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":{\"},\"finish_reason\":null}],\"usage\":null}\r\n\r\n\
        data:{\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n";

    #[test]
    fn reads_a_stream_however_it_is_cut() {
        let expected = Seen {
            finish_reason: Some("tool_calls".into()),
            usage: Some(Usage { prompt: 12, cached: 8, completion: 3 }),
            overflowed: false,
        };
        assert_eq!(watch("text/event-stream; charset=utf-8", &[STREAM]), expected);
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(watch("text/event-stream", &bytes), expected);
        for cut in 0..STREAM.len() {
            let (head, tail) = STREAM.split_at(cut);
            assert_eq!(watch("text/event-stream", &[head, tail]), expected, "cut at {cut}");
        }
    }

    #[test]
    fn reads_a_json_answer() {
        let answer = br#"{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":null}}"#;
        let seen = watch("application/json", &[&answer[..20], &answer[20..]]);
        assert_eq!(seen.finish_reason.as_deref(), Some("stop"));
        assert_eq!(seen.usage, Some(Usage { prompt: 5, cached: 0, completion: 0 }));
    }

    #[test]
    fn passes_over_what_it_does_not_understand() {
        for stream in [&b"data: {\"usage\": \"no\"}\n\n"[..], b"data: {\"usage\n\n", b"event: error\n\n", b"\xff\xfe"] {
            assert_eq!(watch("text/event-stream", &[stream]), Seen::default());
        }
        assert_eq!(watch("application/json", &[b"[1,2"]), Seen::default());
        assert_eq!(watch("text/plain", &[STREAM]), Seen::default());
    }

    #[test]
    fn switches_itself_off_at_the_limit() {
        let long = vec![b'x'; MAX_CARRY];
        let seen = watch("text/event-stream", &[b"data: ", &long, STREAM]);
        assert_eq!(seen, Seen { overflowed: true, ..Seen::default() });
    }

    #[test]
    fn keeps_nothing_hostile_of_a_reason() {
        let answer = format!(r#"{{"choices":[{{"finish_reason":"\u001b[31m\n{}"}}]}}"#, "x".repeat(100));
        let reason = watch("application/json", &[answer.as_bytes()]).finish_reason.unwrap();
        assert_eq!(reason, format!("[31m{}", "x".repeat(28)));
    }
}
