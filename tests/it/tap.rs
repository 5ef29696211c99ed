//! The tap beside a reader of event streams that no one here wrote: what it says of a stream is what the stream says.
#![expect(clippy::disallowed_types, reason = "a judge that shares no code with what it judges")]

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};

use abridge_proxy::body::Budget;
use abridge_proxy::dialect::{self, Usage};
use abridge_proxy::relay::tap::{Tap, TapReport};
use bytes::Bytes;
use eventsource_stream::Eventsource;
use futures_util::{StreamExt, stream};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::Value;

/// Streams of which the two say different things, for a reason.
const NOT_COMPARED: [&str; 5] = [
    "bad_utf8",                      // the other reader stalls for good; the tap reads the lines that are sound
    "bom",                           // the other reader panics
    "cr",                            // lone carriage returns end no line for the tap: no server of this API sends them
    "multi_data_lines",              // one event in several `data:` lines: no server of this API sends that either
    "no_trailing_newline_cut_event", // the other reader drops an event that no blank line ends; the tap takes what is there
];

fn tapped<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> TapReport {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, "text/event-stream".parse().unwrap());
    let mut tap = Tap::new(dialect::default(), &headers, &Budget::new(0));
    chunks.for_each(|chunk| tap.watch(&Bytes::copy_from_slice(chunk)));
    tap.finish()
}

async fn judged(body: &[u8]) -> TapReport {
    // In small pieces, for it searches each buffer from the start again.
    let chunks: Vec<_> = body.chunks(2048).map(|chunk| Ok::<_, Infallible>(chunk.to_vec())).collect();
    let mut seen = TapReport::default();
    let mut events = stream::iter(chunks).eventsource();
    while let Some(event) = events.next().await {
        let Ok(event) = event else { continue };
        let Ok(chunk) = serde_json::from_str::<Value>(&event.data) else { continue };
        let tokens = |value: &Value| value.as_u64().unwrap_or_default();
        // Groq has it in `x_groq` if the request did not ask for it.
        let places = [&chunk["usage"], &chunk["x_groq"]["usage"]];
        if let Some(usage) = places.into_iter().find(|usage| usage.is_object()) {
            let hits = tokens(&usage["prompt_cache_hit_tokens"]);
            seen.usage = Some(Usage {
                input: tokens(&usage["prompt_tokens"]),
                cached: tokens(&usage["prompt_tokens_details"]["cached_tokens"]).max(hits),
                output: tokens(&usage["completion_tokens"]),
                ..Usage::default()
            });
        }
        // Of several choices the first one.
        let mut choices = chunk["choices"].as_array().into_iter().flatten();
        let first = choices.find(|choice| choice["index"].as_u64().unwrap_or_default() == 0);
        if let Some(reason) = first.and_then(|choice| choice["finish_reason"].as_str()) {
            seen.stop_reason = Some(reason.to_owned());
        }
    }
    seen
}

/// All recorded streams: our own, and the corpus's where there is one.
fn streams() -> Vec<PathBuf> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let below = |dir: &Path| -> Vec<PathBuf> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path().join("response.sse")).collect()
    };
    let mut found = [below(&fixtures.join("streams")), below(&fixtures.join("llama_cpp"))].concat();
    if let Some(corpus) = std::env::var_os("ABRIDGE_CORPUS") {
        let recorded = fs::read_dir(Path::new(&corpus).join("sse")).unwrap();
        found.extend(
            recorded.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "sse")),
        );
    }
    found.retain(|path| path.exists());
    found
}

#[tokio::test]
async fn the_tap_and_eventsource_stream_see_the_same() {
    let streams = streams();
    assert!(streams.len() > 40, "only {} streams", streams.len());
    let (mut with_usage, mut with_reason) = (0, 0);
    let mut differing = Vec::new();
    for path in streams {
        if NOT_COMPARED.iter().any(|name| path.parent().unwrap().ends_with(name)) {
            continue;
        }
        let body = fs::read(&path).unwrap();
        let expected = judged(&body).await;
        with_usage += usize::from(expected.usage.is_some());
        with_reason += usize::from(expected.stop_reason.is_some());
        for size in [1, 7, 61, 4096, body.len().max(1)] {
            let seen = tapped(body.chunks(size));
            if seen != expected {
                differing.push(format!("{} in pieces of {size}: {seen:?}, not {expected:?}", path.display()));
            }
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    assert!(with_usage > 10 && with_reason > 10, "{with_usage} with usage, {with_reason} with a reason");
}
