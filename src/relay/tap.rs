//! The tap: reads usage and stop reason from a relayed answer, for logs and metrics. It never changes the answer.
//!
//! Server-sent events are scanned line by line, and only lines in which the dialect recognises a report are parsed. A JSON
//! answer is one long line. Bedrock sends frames of AWS's event stream, each with one event: the lengths of the frame and of its
//! headers (four bytes each), a checksum of both, the headers, the payload, and a checksum of all. Of a compressed answer a copy is
//! decoded. The bytes that the tap carries from chunk to chunk are bounded; those of a long line are leased. Where a line is too
//! long, or there is no memory for it, the tap switches itself off.

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use memchr::memchr2;
use serde::Deserialize;

use crate::body::encoding::{ContentEncoding, StreamDecoder, content_type, is_type};
use crate::body::{Budget, Lease};
use crate::dialect::{Answer, Dialect, Usage};

/// The report of the tap. A later one in the stream replaces an earlier one.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TapReport {
    /// Why the model stopped, in the words of the dialect: `stop`, `length`, `end_turn`, …
    pub stop_reason: Option<String>,
    /// Tokens as billed.
    pub usage: Option<Usage>,
    /// If abridge has joined several rounds: the tokens as if there had been one, of the first request and of the last answer.
    pub as_one_round: Option<Usage>,
    /// Whether the carry was full, or a compressed answer could not be decoded, so that a report may have been missed.
    pub overflowed: bool,
}

impl TapReport {
    /// The tokens of the request that was planned, and of its answer, as if there had been one round.
    pub fn planned(&self) -> Option<Usage> {
        self.as_one_round.or(self.usage)
    }
}

/// Watches one answer.
#[derive(Debug, Default)]
pub struct Tap {
    format: Format,
    // None for a tap that is never on.
    dialect: Option<&'static dyn Dialect>,
    budget: Option<Budget>,
    // The decoder of a compressed answer.
    decoder: Option<Box<StreamDecoder>>,
    // The line that has not ended yet, and the memory that is leased for it.
    carry: BytesMut,
    leased: Lease,
    // The frame that has not ended yet.
    frames: BytesMut,
    answer: Answer,
    overflowed: bool,
}

/// The payload of a frame.
#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(borrow)]
    bytes: Cow<'a, str>,
}

/// The bytes of a frame before its headers, those after its payload, and both.
const PRELUDE: usize = 12;
const CHECKSUM: usize = 4;
const FRAME: usize = PRELUDE + CHECKSUM;

/// The format of an answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Format {
    Events,
    Frames,
    Json,
    #[default]
    Off,
}

/// The longest line, or JSON answer, that is carried without a lease, and the longest frame: 1 MiB.
pub const MAX_CARRY: usize = 1 << 20;

/// The longest line, or JSON answer, that is carried with a lease. The last event of a response holds the whole of it once more,
/// with its tools and images.
const MAX_LEASED: usize = 8 << 20;

/// The longest stop reason that is kept, in characters; real ones have a dozen.
const MAX_STOP_REASON: usize = 32;

// === impl Tap ===

impl Tap {
    /// A tap for an answer in this dialect with these headers. It is off for unknown types and encodings. The memory of a decoder
    /// is leased of the budget, while at most a quarter of that is used, and that of long lines.
    pub fn new(dialect: &'static dyn Dialect, headers: &HeaderMap, budget: &Budget) -> Self {
        let formats = [
            ("text/event-stream", Format::Events),
            ("application/vnd.amazon.eventstream", Format::Frames),
            ("application/json", Format::Json),
        ];
        let encoding = ContentEncoding::from_headers(headers);
        let kind = content_type(headers);
        let format = formats.into_iter().find(|(name, _)| is_type(kind, name)).map(|(_, format)| format);
        let format = format.filter(|_| encoding != ContentEncoding::Unsupported).unwrap_or_default();
        let decoder = encoding.decoder(Some(budget));
        Self { format, decoder, dialect: Some(dialect), budget: Some(budget.clone()), ..Self::default() }
    }

    /// Reads a chunk of the answer.
    pub fn watch(&mut self, chunk: &Bytes) {
        let Some(mut decoder) = self.decoder.take_if(|_| self.format != Format::Off) else { return self.read(chunk) };
        if decoder.decode(chunk, |plain| self.read(&plain)) {
            self.decoder = Some(decoder);
        } else {
            (self.format, self.overflowed) = (Format::Off, true);
        }
    }

    fn read(&mut self, chunk: &Bytes) {
        match self.format {
            Format::Events => self.read_events(chunk),
            Format::Frames => self.read_frames(chunk),
            Format::Json => _ = self.append(chunk),
            Format::Off => {}
        }
    }

    /// Ends the tap and returns its report. Parses a JSON answer, which may take a millisecond.
    pub fn finish(mut self) -> TapReport {
        let rest = self.carry.split();
        match self.format {
            Format::Events => self.read_line(&rest),
            Format::Json => self.read_json(&rest),
            Format::Frames | Format::Off => {}
        }
        let Self { answer: Answer { stop_reason, usage, as_one_round, .. }, overflowed, .. } = self;
        TapReport { stop_reason: stop_reason.map(sanitized), usage, as_one_round, overflowed }
    }

    fn read_events(&mut self, mut chunk: &[u8]) {
        while let Some(at) = memchr2(b'\r', b'\n', chunk) {
            let (line, rest) = chunk.split_at(at);
            chunk = rest.get(1..).unwrap_or_default();
            if self.carry.is_empty() {
                self.read_line(line);
            } else if self.append(line) {
                let line = self.carry.split();
                self.read_line(&line);
                self.leased.shrink_to(0);
            }
        }
        self.append(chunk);
    }

    fn read_frames(&mut self, chunk: &[u8]) {
        self.frames.extend_from_slice(chunk);
        while let Some((lengths, _)) = self.frames.split_first_chunk::<8>() {
            let [length, headers] =
                [0, 4].map(|at| lengths.iter().skip(at).take(4).fold(0, |n, b| n << 8 | usize::from(*b)));
            if !(FRAME..=MAX_CARRY).contains(&length) || headers > length - FRAME {
                (self.format, self.overflowed, self.frames) = (Format::Off, true, BytesMut::new());
                return;
            }
            let Some(frame) = self.frames.get(..length) else { return };
            let payload = frame.get(PRELUDE + headers..length - CHECKSUM).unwrap_or_default();
            let event =
                serde_json::from_slice(payload).ok().and_then(|Payload { bytes }| BASE64_STANDARD.decode(&*bytes).ok());
            if let Some(event) = event.filter(|event| self.dialect.is_some_and(|dialect| dialect.reports(event))) {
                self.read_json(&event);
            }
            self.frames.advance(length);
        }
    }

    /// One line of an event stream.
    fn read_line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else { return };
        if self.dialect.is_some_and(|dialect| dialect.reports(data)) {
            self.read_json(data);
        }
    }

    /// Reads the data of an event, or a whole answer; ignores anything else.
    fn read_json(&mut self, json: &[u8]) {
        if let Some(dialect) = self.dialect {
            let _not_an_answer = dialect.read_answer(json, &mut self.answer);
        }
    }

    /// Adds bytes to the carry; `false` if there are too many, which switches the tap off.
    fn append(&mut self, bytes: &[u8]) -> bool {
        let n_bytes = self.carry.len() + bytes.len();
        let budget = self.budget.as_ref().filter(|_| n_bytes <= MAX_LEASED);
        if n_bytes <= MAX_CARRY || budget.is_some_and(|budget| budget.extend_to(&mut self.leased, n_bytes)) {
            self.carry.extend_from_slice(bytes);
            return true;
        }
        (self.format, self.overflowed, self.carry) = (Format::Off, true, BytesMut::new());
        self.leased.shrink_to(0);
        false
    }
}

/// A stop reason that is safe in a log line: visible ASCII, at most [`MAX_STOP_REASON`] characters.
fn sanitized(reason: String) -> String {
    if reason.len() <= MAX_STOP_REASON && reason.bytes().all(|byte| byte.is_ascii_graphic()) {
        return reason;
    }
    reason.chars().filter(char::is_ascii_graphic).take(MAX_STOP_REASON).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

    use super::*;

    fn watch(content_type: &str, chunks: &[&[u8]]) -> TapReport {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
        let mut tap = Tap::new(crate::dialect::default(), &headers, &Budget::new(1 << 30));
        for chunk in chunks {
            tap.watch(&Bytes::copy_from_slice(chunk));
        }
        tap.finish()
    }

    const STREAM: &[u8] = b": hello\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":{\"},\"finish_reason\":null}],\"usage\":null}\r\n\r\n\
        data:{\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n";

    #[test]
    fn a_stream_is_read_at_any_chunk_boundary() {
        let expected = TapReport {
            stop_reason: Some("tool_calls".into()),
            usage: Some(Usage { input: 12, cached: 8, output: 3, ..Usage::default() }),
            as_one_round: None,
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
    fn a_compressed_answer_is_read() {
        let expected = watch("text/event-stream", &[STREAM]);
        let coded = zstd::encode_all(STREAM, 1).unwrap();
        let watch = |coding: &'static str, budget: usize, coded: &[u8], n: usize| {
            let fields = [(CONTENT_TYPE, "text/event-stream"), (CONTENT_ENCODING, coding)];
            let headers = HeaderMap::from_iter(fields.map(|(name, value)| (name, HeaderValue::from_static(value))));
            let mut tap = Tap::new(crate::dialect::default(), &headers, &Budget::new(budget));
            coded.chunks(n).for_each(|chunk| tap.watch(&Bytes::copy_from_slice(chunk)));
            tap.finish()
        };
        for n in [1, 100, coded.len()] {
            assert_eq!(watch("zstd", 1 << 30, &coded, n), expected);
        }
        let off = TapReport { overflowed: true, ..TapReport::default() };
        assert_eq!(watch("zstd", 1000, &coded, 100), off, "there is no memory");
        assert_eq!(watch("br", 1 << 30, &coded, 100), off, "it is not what it says");
        assert_eq!(watch("compress", 1 << 30, STREAM, 100), TapReport::default());
    }

    #[test]
    fn lines_may_end_with_a_carriage_return_alone() {
        let stream = str::from_utf8(STREAM).unwrap().replace("\r\n", "\n").replace('\n', "\r");
        let expected = watch("text/event-stream", &[STREAM]);
        for n in [1, 7, stream.len()] {
            let pieces: Vec<_> = stream.as_bytes().chunks(n).collect();
            assert_eq!(watch("text/event-stream", &pieces), expected);
        }
    }

    /// A frame of AWS's event stream around an event.
    fn frame(event: &str) -> Vec<u8> {
        let payload = format!(r#"{{"bytes":"{}"}}"#, BASE64_STANDARD.encode(event));
        let length = |n: usize| u32::try_from(n).unwrap().to_be_bytes();
        [&length(FRAME + 3 + payload.len())[..], &length(3), &[0; 4], b"abc", payload.as_bytes(), &[0; 4]].concat()
    }

    #[test]
    fn frames_are_read_at_any_chunk_boundary() {
        let kind = "application/vnd.amazon.eventstream";
        let frames = STREAM.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
        let frames = frames.flat_map(|event| frame(str::from_utf8(event).unwrap())).collect::<Vec<_>>();
        let expected = watch("text/event-stream", &[STREAM]);
        let bytes: Vec<&[u8]> = frames.chunks(1).collect();
        assert_eq!(watch(kind, &bytes), expected);
        for cut in 0..frames.len() {
            let (head, tail) = frames.split_at(cut);
            assert_eq!(watch(kind, &[head, tail]), expected, "cut at {cut}");
        }
        // Lengths that cannot be, and a frame beyond the limit.
        let off = TapReport { overflowed: true, ..TapReport::default() };
        for lengths in [[15, 0], [20, 5], [u32::MAX, 0], [1 << 21, 0]] {
            let frame = lengths.map(u32::to_be_bytes).concat();
            assert_eq!(watch(kind, &[&frame, &frames]), off, "{lengths:?}");
        }
    }

    #[test]
    fn a_json_answer_is_read() {
        let answer = br#"{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":null}}"#;
        let report = watch("application/json", &[&answer[..20], &answer[20..]]);
        assert_eq!(report.stop_reason.as_deref(), Some("stop"));
        assert_eq!(report.usage, Some(Usage { input: 5, cached: 0, output: 0, ..Usage::default() }));
    }

    #[test]
    fn unknown_types_and_invalid_data_are_ignored() {
        for stream in [&b"data: {\"usage\": \"no\"}\n\n"[..], b"data: {\"usage\n\n", b"event: error\n\n", b"\xff\xfe"] {
            assert_eq!(watch("text/event-stream", &[stream]), TapReport::default());
        }
        assert_eq!(watch("application/json", &[b"[1,2"]), TapReport::default());
        assert_eq!(watch("text/plain", &[STREAM]), TapReport::default());
    }

    #[test]
    fn switches_itself_off_at_the_limit() {
        let long = vec![b'x'; MAX_LEASED];
        let report = watch("text/event-stream", &[b"data: ", &long, STREAM]);
        assert_eq!(report, TapReport { overflowed: true, ..TapReport::default() });
    }

    #[test]
    fn usage_at_the_end_of_a_long_line_is_read() {
        let image = "iVBOR".repeat(MAX_CARRY / 3);
        let tools = r#"{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}},"#.repeat(1000);
        let response = format!(
            r#"{{"object":"response","output":[{{"type":"image_generation_call","result":"{image}"}}],"tools":[{tools}{{}}],"status":"completed","usage":{{"input_tokens":9,"input_tokens_details":{{"cached_tokens":8}},"output_tokens":3}}}}"#
        );
        let expected = TapReport {
            stop_reason: Some("completed".into()),
            usage: Some(Usage { input: 9, cached: 8, output: 3, ..Usage::default() }),
            as_one_round: None,
            overflowed: false,
        };
        let stream = format!("data: {{\"type\":\"response.completed\",\"response\":{response}}}\n\n");
        for (kind, body) in [("text/event-stream", stream), ("application/json", response)] {
            for piece in [body.len(), 100_000, 1000] {
                let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().unwrap())]);
                let (dialect, budget) = (crate::dialect::for_path("/responses").unwrap(), Budget::new(body.len()));
                let tap = || {
                    let mut tap = Tap::new(dialect, &headers, &budget);
                    body.as_bytes().chunks(piece).for_each(|piece| tap.watch(&Bytes::copy_from_slice(piece)));
                    tap
                };
                let (first, second) = (tap(), tap());
                assert!(kind != "application/json" || second.overflowed, "there is no memory for two");
                assert_eq!(first.finish(), expected, "{kind} in pieces of {piece}");
                assert_eq!(budget.used(), second.leased.bytes());
            }
        }
    }

    #[test]
    fn a_stop_reason_is_cut_and_loses_control_characters() {
        let answer = format!(r#"{{"choices":[{{"finish_reason":"\u001b[31m\n{}"}}]}}"#, "x".repeat(100));
        let reason = watch("application/json", &[answer.as_bytes()]).stop_reason.unwrap();
        assert_eq!(reason, format!("[31m{}", "x".repeat(28)));
    }
}
