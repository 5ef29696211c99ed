//! The tap sees the same however an answer is cut, what it keeps is bounded, and of event streams that both take it sees
//! what `eventsource-stream` sees.
//!
//! The input is one byte that chooses the type of the answer, four that decide where it is cut, and the answer.

use std::convert::Infallible;

use abridge_proxy::body::Budget;
use abridge_proxy::dialect::{self, Usage};
use abridge_proxy::relay::tap::{MAX_CARRY, Tap, TapReport};
use bytes::Bytes;
use eventsource_stream::Eventsource;
use futures_util::{FutureExt, StreamExt, stream};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::draw::Draw;

const TYPES: [&str; 4] =
    ["text/event-stream", "text/event-stream; charset=utf-8", "application/json", "application/octet-stream"];

/// Lets an answer pass by whole, in pieces, and with a line in it that nobody would carry.
pub fn run(input: &[u8]) {
    let Some((&[kind, a, b, c, d], answer)) = input.split_first_chunk::<5>() else { return };
    let content_type = TYPES[usize::from(kind) % TYPES.len()];
    let mut draw = Draw::seeded([a, b, c, d]);
    let whole = seen(content_type, [answer]);
    let mut pieces = Vec::new();
    let mut rest = answer;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(draw.below(17).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    assert_eq!(seen(content_type, pieces), whole);
    let reason = whole.stop_reason.as_deref().unwrap_or_default();
    assert!(reason.len() <= 32 && reason.bytes().all(|byte| byte.is_ascii_graphic()), "{reason:?} goes into the log");
    assert!(answer.len() > MAX_CARRY || !whole.overflowed);
    if content_type.starts_with("text/event-stream") {
        judge(answer);
    }
    if kind >= 0xf0 {
        let long = vec![b'x'; MAX_CARRY / 2 + 1];
        let ends = [answer, &long, &long];
        let overflowed = seen(content_type, ends).overflowed;
        assert_eq!(overflowed, content_type != TYPES[3], "no more than {MAX_CARRY} bytes are carried");
    }
}

fn seen<'a>(content_type: &'static str, pieces: impl IntoIterator<Item = &'a [u8]>) -> TapReport {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type.parse().expect("a type"))]);
    let mut tap = Tap::new(dialect::default(), &headers, &Budget::new(0));
    pieces.into_iter().for_each(|piece| tap.watch(&Bytes::copy_from_slice(piece)));
    tap.finish()
}

/// The other reader panics at a byte order mark and hangs at bytes that are no text. Lone carriage returns, and events in
/// several lines, no server of this API sends, and the tap does not take them.
fn judge(answer: &[u8]) {
    let Ok(text) = std::str::from_utf8(answer) else { return };
    let text = format!("{text}\n\n");
    let lone_return = text.replace("\r\n", "").contains('\r');
    if lone_return || text.starts_with('\u{feff}') || in_several_lines(&text) {
        return;
    }
    if let Some(expected) = judged(text.as_bytes()) {
        assert_eq!(seen(TYPES[0], [text.as_bytes()]), expected);
    }
}

fn in_several_lines(text: &str) -> bool {
    let mut has_data = false;
    text.lines().any(|line| {
        let is_data = line == "data" || line.starts_with("data:");
        let is_second = is_data && has_data;
        has_data = !line.is_empty() && (has_data || is_data);
        is_second
    })
}

/// What the events say; none if one says it in a form that OpenAI's API does not have.
fn judged(answer: &[u8]) -> Option<TapReport> {
    let chunks: Vec<_> = answer.chunks(2048).map(|chunk| Ok::<_, Infallible>(chunk.to_vec())).collect();
    let events = stream::iter(chunks).eventsource().collect::<Vec<_>>().now_or_never().expect("nothing to wait for");
    let mut seen = TapReport::default();
    for event in events {
        let data = event.ok()?.data;
        if data.contains('\\') {
            return None; // keys may be written in other ways
        }
        let Ok(chunk) = serde_json::from_str::<Value>(&data) else {
            if serde_json::from_str::<IgnoredAny>(&data).is_ok() {
                return None; // numbers that no type holds, or great depth
            }
            continue;
        };
        if !is_chunk(&chunk, &data) {
            return None;
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            let tokens = |value: &Value| value.as_u64().unwrap_or_default();
            let (input, details) = (tokens(&usage["prompt_tokens"]), &usage["prompt_tokens_details"]);
            let cached = tokens(&details["cached_tokens"]);
            seen.usage = Some(Usage {
                input,
                cached,
                written: tokens(&details["cache_write_tokens"]).min(input.saturating_sub(cached)),
                output: tokens(&usage["completion_tokens"]),
                ..Usage::default()
            });
        }
        let mut choices = chunk["choices"].as_array().into_iter().flatten();
        if let Some(reason) = choices.find_map(|choice| choice["finish_reason"].as_str()) {
            seen.stop_reason = Some(reason.chars().filter(char::is_ascii_graphic).take(32).collect());
        }
    }
    Some(seen)
}

/// Whether everything that the tap asks for has the type that the API gives it, and stands there once.
fn is_chunk(chunk: &Value, data: &str) -> bool {
    let is_count = |value: &Value| value.is_null() || value.is_u64();
    let usage = &chunk["usage"];
    let details = &usage["prompt_tokens_details"];
    let choices = &chunk["choices"];
    let counts = ["prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens"];
    let once = [&["usage", "choices", "prompt_tokens_details"][..], &counts].concat();
    chunk.is_object()
        && (usage.is_null() || usage.is_object())
        && (details.is_null() || details.is_object())
        && counts.iter().all(|key| is_count(&usage[key]) && is_count(&details[key]))
        && (choices.is_null() || choices.is_array())
        && choices.as_array().into_iter().flatten().all(|choice| {
            let reason = &choice["finish_reason"];
            choice.is_object() && (reason.is_null() || reason.is_string())
        })
        && once.iter().all(|key| data.matches(&format!("\"{key}\"")).count() <= 1)
        && data.matches("\"finish_reason\"").count() <= choices.as_array().map_or(0, Vec::len)
}
