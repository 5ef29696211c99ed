//! The tap: reads usage and stop reason out of an answer that passes by. For log lines, never for the answer itself.
//!
//! Server-sent events are looked at line by line, and only a line that the dialect knows to report something is parsed. A
//! JSON answer is one long line. What the tap carries from chunk to chunk is bounded; past that it switches itself off.

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use memchr::memchr;

use crate::body::encoding::Coding;
use crate::dialect::{Answer, Dialect, Usage};

/// What the upstream reported. A later report in the stream replaces an earlier one.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Seen {
    /// Why the model stopped, in the words of the dialect: `stop`, `length`, `end_turn`, …
    pub stop_reason: Option<String>,
    /// Tokens as billed.
    pub usage: Option<Usage>,
    /// The carry was full, so that something may have been missed.
    pub overflowed: bool,
}

/// Watches one answer.
#[derive(Debug, Default)]
pub struct Tap {
    form: Form,
    // None for a tap that is off from the beginning.
    dialect: Option<&'static dyn Dialect>,
    // The line that has begun but not ended.
    carry: BytesMut,
    answer: Answer,
    overflowed: bool,
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
    /// A tap for an answer in this dialect with these headers. It stays off for compressed answers and types that it does
    /// not know.
    pub fn new(dialect: &'static dyn Dialect, headers: &HeaderMap) -> Self {
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
        Self { form, dialect: Some(dialect), ..Self::default() }
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
        let rest = self.carry.split();
        match self.form {
            Form::Events => self.line(&rest),
            Form::Json => self.read(&rest),
            Form::Off => {}
        }
        let Self { answer: Answer { stop_reason, usage, .. }, overflowed, .. } = self;
        Seen { stop_reason: stop_reason.as_deref().map(short), usage, overflowed }
    }

    fn events(&mut self, mut chunk: &[u8]) {
        while let Some(at) = memchr(b'\n', chunk) {
            let (line, rest) = chunk.split_at(at);
            chunk = rest.get(1..).unwrap_or_default();
            if self.carry.is_empty() {
                self.line(line);
            } else if self.carried(line) {
                let line = self.carry.split();
                self.line(&line);
            }
        }
        self.carried(chunk);
    }

    /// One line of an event stream.
    fn line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else { return };
        if self.dialect.is_some_and(|dialect| dialect.reports(data)) {
            self.read(data);
        }
    }

    /// The data of an event, or a whole answer; anything else is passed over.
    fn read(&mut self, json: &[u8]) {
        if let Some(dialect) = self.dialect {
            let _not_an_answer = dialect.read_answer(json, &mut self.answer);
        }
    }

    /// Keeps bytes for the next chunk; `false` once there are too many, which ends the tap.
    fn carried(&mut self, bytes: &[u8]) -> bool {
        if self.carry.len() + bytes.len() > MAX_CARRY {
            self.form = Form::Off;
            self.carry = BytesMut::new();
            self.overflowed = true;
            return false;
        }
        self.carry.extend_from_slice(bytes);
        true
    }
}

/// A reason as it may stand in a log line.
fn short(reason: &str) -> String {
    reason.chars().filter(char::is_ascii_graphic).take(MAX_REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(content_type: &str, chunks: &[&[u8]]) -> Seen {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
        let mut tap = Tap::new(crate::dialect::default(), &headers);
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
            stop_reason: Some("tool_calls".into()),
            usage: Some(Usage { input: 12, cached: 8, output: 3 }),
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
        assert_eq!(seen.stop_reason.as_deref(), Some("stop"));
        assert_eq!(seen.usage, Some(Usage { input: 5, cached: 0, output: 0 }));
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
        let reason = watch("application/json", &[answer.as_bytes()]).stop_reason.unwrap();
        assert_eq!(reason, format!("[31m{}", "x".repeat(28)));
    }
}
