//! A recording reads back as it was written; it is private, bounded and written atomically.

use http::HeaderValue;

use super::*;
use crate::platform::testing::is_private;
use crate::recording::{Exchange, ReadError};
use crate::summary::Summary;

fn sent(target: &Uri) -> SentRequest {
    SentRequest {
        target: target.clone(),
        request: Bytes::from_static(b"{\"messages\":[]}"),
        rewritten: Some(vec![Bytes::from_static(b"{\"messages\""), Bytes::from_static(b":[1]}")]),
        dry_run: false,
        inputs: PlanInputs::default(),
        summary: None,
        offloads: Vec::new(),
        answers: Vec::new(),
    }
}

fn target(text: &str) -> Uri {
    text.parse().unwrap()
}

fn event_stream() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert("set-cookie", HeaderValue::from_static("session=hunter2"));
    headers.insert("authorization", HeaderValue::from_static("Bearer hunter2"));
    headers
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_recording_reads_back_as_written() {
    let scratch = tempfile::tempdir().unwrap();
    let recorder = Recorder::new(scratch.path().join("a/b")).unwrap();
    let target = target("/v1/chat/completions?key=hunter2&api-version=2024-10-21");
    let mut recording = recorder.begin("req-1", sent(&target)).unwrap();
    recording.begin_response(StatusCode::OK, &event_stream());
    recording.push_chunk(Duration::from_micros(1500), b"data: 1\n\n");
    recording.push_chunk(Duration::from_secs(2), b"data: [DONE]\n\n");
    let dir = recording.finish(AnswerEnd::Complete).unwrap();

    assert_eq!(dir, scratch.path().join("a/b/req-1"));
    assert_eq!(names(&dir), ["meta.json", "request.json", "response.sse", "rewritten.json"]);
    let exchange = Exchange::read(&dir).unwrap();
    assert_eq!(exchange.request, "{\"messages\":[]}");
    assert_eq!(exchange.rewritten.as_deref(), Some(&b"{\"messages\":[1]}"[..]));
    assert_eq!(exchange.response.as_deref(), Some(&b"data: 1\n\ndata: [DONE]\n\n"[..]));
    assert_eq!(exchange.meta.path, "/v1/chat/completions?api-version=2024-10-21");
    assert_eq!(exchange.meta.path_only(), "/v1/chat/completions");
    assert_eq!(exchange.meta.status, Some(200));
    assert_eq!(exchange.meta.chunks, [(0.0015, 9), (2.0, 14)]);
    assert_eq!(exchange.meta.ended, AnswerEnd::Complete);

    let copy = scratch.path().join("copy");
    exchange.write(&copy).unwrap();
    assert_eq!(Exchange::read(&copy).unwrap(), exchange);
}

#[test]
fn plan_inputs_read_back_as_written() {
    let scratch = tempfile::tempdir().unwrap();
    let address = Some("http://127.0.0.1:1".to_owned());
    let recorder = Recorder { address: address.clone(), ..Recorder::new(scratch.path()).unwrap() };
    let (target, keys) = (target("/v1/chat/completions"), Keys::new([7; 32]));
    let key = keys.payload(keys.caller(b"me"), b"what was taken out");
    let summary = Summary { text: "They talked.".to_owned(), tokens_replaced: 9, made_at: 0, transcript: Some(key) };
    let sent = SentRequest {
        inputs: PlanInputs { windows: [("m".to_owned(), 300)].into(), not_stored: true, ..PlanInputs::default() },
        summary: Some(UsedSummary { end: 7, summary: Arc::new(summary) }),
        offloads: vec![OffloadedPayload {
            key,
            payload: Bytes::from_static(b"what was taken out").into(),
            likely_stored: false,
        }],
        ..sent(&target)
    };
    let recording = recorder.begin("r", sent.clone()).unwrap();
    let exchange = Exchange::read(&recording.finish(AnswerEnd::Complete).unwrap()).unwrap();
    assert_eq!(exchange.summary, sent.summary);
    let inputs = exchange.meta.inputs.clone().unwrap();
    let known = Keys::well_known();
    let handles = [(known.payload(known.anonymous(), b"what was taken out"), key)].into();
    assert_eq!(inputs, PlanInputs { address, handles, ..sent.inputs });

    let copy = scratch.path().join("copy");
    exchange.write(&copy).unwrap();
    assert_eq!(Exchange::read(&copy).unwrap(), exchange);
}

#[test]
fn a_recording_has_no_key_and_is_private() {
    let scratch = tempfile::tempdir().unwrap();
    let recorder = Recorder::new(scratch.path().join("new")).unwrap();
    let target = target("/v1/chat/completions?api-key=hunter2");
    let mut recording = recorder.begin("r", sent(&target)).unwrap();
    recording.begin_response(StatusCode::OK, &event_stream());
    let dir = recording.finish(AnswerEnd::ClientGone).unwrap();

    assert!(is_private(&scratch.path().join("new")));
    assert!(is_private(&dir));
    for name in names(&dir) {
        assert!(is_private(&dir.join(&name)), "{name}");
        let bytes = fs::read(dir.join(&name)).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("hunter2"), "{name}");
    }
}

#[test]
fn a_folder_that_exists_is_not_overwritten_and_the_error_names_it() {
    let scratch = tempfile::tempdir().unwrap();
    let recorder = Recorder::new(scratch.path()).unwrap();
    let target = target("/v1/chat/completions");
    let record = |request| {
        let sent = SentRequest { request: Bytes::from_static(request), ..sent(&target) };
        recorder.begin("r", sent).unwrap().finish(AnswerEnd::Cut)
    };
    let dir = record(b"first").unwrap();
    let error = record(b"second").unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::AlreadyExists, format!("{} exists", dir.display())));
    assert_eq!(fs::read(dir.join("request.json")).unwrap(), b"first");
    assert_eq!(names(scratch.path()), ["r"]);
}

#[test]
fn a_dropped_recording_writes_nothing_and_releases_its_memory() {
    let scratch = tempfile::tempdir().unwrap();
    let recorder = Recorder::new(scratch.path()).unwrap();
    let target = target("/v1/chat/completions");
    let recording = recorder.begin("r", sent(&target)).unwrap();
    assert_ne!(recorder.held.used(), 0);
    drop(recording);
    assert_eq!(recorder.held.used(), 0);
    assert!(names(scratch.path()).is_empty());
}

#[test]
fn an_answer_over_the_limit_is_truncated_and_marked() {
    let scratch = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::new(scratch.path()).unwrap();
    recorder.max_response = 10;
    let target = target("/v1/chat/completions");
    let mut recording = recorder.begin("r", sent(&target)).unwrap();
    recording.begin_response(StatusCode::OK, &HeaderMap::new());
    recording.push_chunk(Duration::ZERO, b"12345678");
    recording.push_chunk(Duration::ZERO, b"9012");
    recording.push_chunk(Duration::ZERO, b"3");
    let exchange = Exchange::read(&recording.finish(AnswerEnd::Complete).unwrap()).unwrap();
    assert_eq!(exchange.response.as_deref(), Some(&b"12345678"[..]));
    assert!(exchange.meta.response_truncated);
}

#[test]
fn all_recordings_share_one_memory_limit() {
    let scratch = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::new(scratch.path()).unwrap();
    recorder.held = Budget::new(40);
    let target = target("/v1/chat/completions");
    let mut first = recorder.begin("first", sent(&target)).unwrap();
    let second = recorder.begin("second", sent(&target)).unwrap();
    assert!(recorder.begin("third", sent(&target)).is_none());
    first.begin_response(StatusCode::OK, &HeaderMap::new());
    first.push_chunk(Duration::ZERO, b"does not fit");
    assert!(first.meta.response_truncated);
    drop(second);
    assert!(recorder.begin("third", sent(&target)).is_some());
}

#[test]
fn a_compressed_answer_is_stored_as_bytes() {
    let scratch = tempfile::tempdir().unwrap();
    let recorder = Recorder::new(scratch.path()).unwrap();
    let target = target("/v1/chat/completions");
    let mut headers = event_stream();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("br"));
    let mut recording = recorder.begin("r", sent(&target)).unwrap();
    recording.begin_response(StatusCode::OK, &headers);
    recording.push_chunk(Duration::ZERO, &[0, 159, 146, 150]);
    let dir = recording.finish(AnswerEnd::Complete).unwrap();
    assert_eq!(names(&dir), ["meta.json", "request.json", "response.bin", "rewritten.json"]);
    let exchange = Exchange::read(&dir).unwrap();
    assert_eq!(exchange.response.as_deref(), Some(&[0, 159, 146, 150][..]));
    assert_eq!(exchange.meta.content_encoding.as_deref(), Some("br"));
}

#[test]
fn errors_name_the_file() {
    let scratch = tempfile::tempdir().unwrap();
    let missing = Exchange::read(scratch.path()).unwrap_err();
    assert_eq!(missing.to_string(), "request.json");
    fs::write(scratch.path().join("request.json"), "{}").unwrap();
    fs::write(scratch.path().join("meta.json"), "{").unwrap();
    assert!(matches!(Exchange::read(scratch.path()), Err(ReadError { file: "meta.json", .. })));
    fs::write(scratch.path().join("meta.json"), "{\"later\": 1}").unwrap();
    assert_eq!(Exchange::read(scratch.path()).unwrap().meta, Meta::default());
    fs::write(scratch.path().join("plan.snap"), [0xff]).unwrap();
    assert!(matches!(Exchange::read(scratch.path()), Err(ReadError { file: "plan.snap", .. })));
}
