//! Tests of recalls: the parts of payloads, refusals and limits.

use std::iter;

use http_body_util::BodyExt as _;

use super::selector::{MAX_GREP_BYTES, MAX_GREP_LINE, MAX_QUERY};
use super::*;
use crate::store::Settings;
use crate::store::tests::conformance::{PutAll as _, TestClock, dense, key};
use crate::store::tests::memory::MemoryStore;

fn recalls(in_flight: usize, budget: usize) -> RecallHandler {
    RecallHandler::new(Arc::new(Semaphore::new(in_flight)), Budget::new(budget), budget, Duration::from_secs(10))
}

/// The status, whether there is a `retry-after`, and the text.
async fn read_response(response: Response<Full<Bytes>>) -> (u16, bool, String) {
    let (head, mut body) = response.into_parts();
    let body = body.frame().await.unwrap().unwrap().into_data().unwrap();
    (head.status.as_u16(), head.headers.contains_key(RETRY_AFTER), String::from_utf8(body.to_vec()).unwrap())
}

fn anyone(store: Option<&dyn Store>) -> Reader<'_> {
    Reader { store, requester: Requester::Unrestricted }
}

fn found(query: &str, payload: &str) -> Selection {
    Selector::parse(query)
        .unwrap_or_else(|| panic!("{query:?} should be a query"))
        .select(&Bytes::from(payload.to_owned()).into())
}

fn check(query: &str, payload: &str, expected: &str) {
    assert_eq!(found(query, payload).body, expected, "{query}");
}

#[test]
fn byte_ranges_end_at_characters() {
    let payload = "aé🦀z";
    check("", payload, payload);
    check("offset=1", payload, "é🦀z");
    check("offset=2", payload, "é🦀z");
    check("limit=2", payload, "a");
    check("offset=3&limit=1", payload, "🦀");
    check("offset=3&limit=4", payload, "🦀");
    check("offset=7&limit=100", payload, "z");
    check("offset=8", payload, "");
    check("offset=99999999999999999&limit=5", payload, "");
    check("offset=1&limit=0", payload, "");
    check("&offset=1&&limit=2&", payload, "é");
}

#[test]
fn consecutive_parts_fit_together() {
    let payload = "aé🦀z€\nüb".repeat(5);
    for limit in 4..12 {
        let mut whole = String::new();
        for offset in (0..payload.len()).step_by(limit) {
            let found = found(&format!("offset={offset}&limit={limit}"), &payload);
            assert_eq!(found.range.unwrap().start, whole.len());
            whole.push_str(str::from_utf8(&found.body).unwrap());
        }
        assert_eq!(whole, payload, "{limit}");
    }
}

#[test]
fn lines_are_counted_from_one() {
    let payload = "one\ntwo\r\n\nfour";
    check("lines=1-2", payload, "one\ntwo\r\n");
    check("lines=3", payload, "\n");
    check("lines=4", payload, "four");
    check("lines=2-", payload, "two\r\n\nfour");
    check("lines=4-99", payload, "four");
    check("lines=5-6", payload, "");
    assert_eq!(found("lines=1-1", payload).lines, Some(4));
    assert_eq!(found("lines=1-1", "one\n").lines, Some(1));
    assert_eq!(found("lines=1-1", "").lines, Some(0));
}

#[test]
fn a_text_with_half_a_surrogate_pair_is_returned_as_json_and_searched_decoded() {
    let payload = r#""one \ud83d\ntwo é\n\"three\"""#;
    check("", payload, payload);
    check("offset=1&limit=10", payload, r"one \ud83d");
    check("lines=1", payload, "one \u{FFFD}\n");
    check("lines=2-", payload, "two é\n\"three\"");
    check("grep=two", payload, "2:two é\n");
    assert_eq!(found("lines=1", payload).lines, Some(3));
    let kinds = |query, payload| (found(query, payload).is_json, found(query, payload).is_copy);
    assert_eq!(
        ["", "lines=1", "grep=two"].map(|query| kinds(query, payload)),
        [(true, false), (false, true), (false, true)]
    );
    // A payload that is valid text counts as text, even if it is also a JSON string.
    for text in [r#""one \ud83d\ude00""#, r#""\ud83d"#, r#""\ud83d" "#, r#"["\ud83d"]"#] {
        check("lines=1", text, text);
        assert_eq!(["", "lines=1"].map(|query| kinds(query, text)), [(false, false); 2]);
    }
}

#[test]
fn grep_returns_lines_with_their_numbers() {
    let payload = "Error: a.b\nfine\r\nerror: a+b é\r\n";
    check("grep=rror", payload, "1:Error: a.b\n3:error: a+b é\n");
    check("grep=a.b", payload, "1:Error: a.b\n");
    check("grep=a%2Bb+%C3%A9", payload, "3:error: a+b é\n");
    check("grep=100%", "at 100%", "1:at 100%\n");
    check("grep=nothing", payload, "");
    assert_eq!(found("grep=rror", payload).matches, Some(2));
}

#[test]
fn a_very_long_line_is_cut_around_the_match() {
    let payload = format!("{}needle{}", "é".repeat(50_000), "é".repeat(50_000));
    let found = found("grep=needle", &payload);
    let text = str::from_utf8(&found.body).unwrap();
    assert!(text.starts_with("1:…é") && text.ends_with("é…\n") && text.contains("éneedleé"), "{text}");
    assert!(text.len() <= MAX_GREP_LINE + 20);
}

#[test]
fn grep_limits_its_output_and_counts_all_matches() {
    let payload = "a needle\n".repeat(1_000_000);
    let found = found("grep=needle", &payload);
    assert!(found.body.len() < MAX_GREP_BYTES + MAX_GREP_LINE);
    assert_eq!(found.matches, Some(1_000_000));
}

#[test]
fn invalid_queries_are_refused() {
    let long = format!("grep={}", "x".repeat(MAX_QUERY));
    for query in [
        "x=1",
        "offset",
        "offset=",
        "offset=-1",
        "offset=1e3",
        "limit=+5",
        "lines=",
        "lines=0",
        "lines=0-1",
        "lines=3-2",
        "lines=-3",
        "lines=1-2-3",
        "grep=",
        "grep=%FF",
        "offset=1&lines=1",
        "limit=1&grep=x",
        "lines=1&grep=x",
        "offset=1&offset=2",
        &long,
    ] {
        assert_eq!(Selector::parse(query), None, "{query}");
    }
}

#[test]
fn bytes_that_are_no_text_are_returned_unchanged() {
    let payload = Bytes::from(vec![0x80; 10]);
    assert_eq!(Selector::parse("offset=5&limit=3").unwrap().select(&payload.clone().into()).range, Some(5..8));
}

// === missing payloads ===

#[tokio::test]
async fn a_swept_payload_gets_410_and_an_unknown_handle_404() {
    let clock = TestClock::new();
    let store = MemoryStore::new(Settings::default(), clock.clock());
    let payload = dense(1, 100);
    let handle = key(&payload).to_string();
    let recalls = recalls(9, 1 << 20);
    let answer = async |handle: &str, query: &str, store| recalls.answer(handle, query, anyone(store)).await;
    let status = async || answer(&handle, "", Some(&store)).await.status().as_u16();
    assert_eq!(status().await, 404);
    store.put_all(vec![(key(&payload), payload)]).await.unwrap();
    // A recall counts as a use.
    for _ in 0..3 {
        clock.forward(6 * 86_400);
        assert_eq!(status().await, 200);
        store.sweep().await.unwrap();
    }
    clock.forward(8 * 86_400);
    store.sweep().await.unwrap();
    assert_eq!(status().await, 410);
    assert_eq!(answer("x", "", Some(&store)).await.status(), 404);
    assert_eq!(answer(&handle, "", None).await.status(), 404);
    store.close().await.unwrap();
    let closed = answer(&handle, "", Some(&store)).await;
    assert_eq!((closed.status().as_u16(), closed.headers().contains_key(RETRY_AFTER)), (503, true));
    assert_eq!(answer(&handle, "x=1", Some(&store)).await.status(), 400);
}

// === callers ===

#[tokio::test]
async fn for_a_stranger_s_handle_the_store_is_not_asked() {
    let store = MemoryStore::new(Settings::default(), TestClock::new().clock());
    let [payload, other] = [1, 2].map(|seed| dense(seed, 100));
    let large = dense(3, BLOCKING_FROM + 1);
    let names = [key(&payload), key(&large)];
    store.put_all(vec![(names[0], payload), (names[1], large), (key(b"a name of another text"), other)]).await.unwrap();
    // The secret in force names nothing of this.
    let keys = Keys::new([8; 32]).replacing(iter::once(&[7; 32]));
    let [own, foreign] = [b"Bearer someone", b"Bearer another"].map(|shown| Requester::caller(&keys, shown));
    let recalls = recalls(9, 8 << 20);
    let status = async |name: PayloadKey, requester: Requester| {
        recalls.answer(&name.to_string(), "", Reader { store: Some(&store), requester }).await.status().as_u16()
    };
    for name in names {
        assert_eq!((status(name, own.clone()).await, status(name, foreign.clone()).await), (200, 404));
        assert_eq!(
            (status(name, Requester::Unrestricted).await, status(name, Requester::Unauthenticated).await),
            (200, 401)
        );
    }
    // A key may claim another caller: the payload is hashed again to check it.
    let lying = key(b"a name of another text");
    assert_eq!((status(lying, Requester::Unrestricted).await, status(lying, own.clone()).await), (200, 404));
    // A closed store fails only the requests that read it.
    store.close().await.unwrap();
    assert_eq!((status(names[0], own).await, status(names[0], foreign).await), (503, 404));
    assert_eq!(
        recalls.counts().collect::<Vec<_>>(),
        [("found", 5), ("unknown", 4), ("swept", 0), ("refused", 2), ("damaged", 0), ("busy", 1)]
    );
}

// === limits ===

#[tokio::test]
async fn a_recall_takes_a_place_and_memory_until_its_answer_is_written() {
    let store = MemoryStore::new(Settings::default(), TestClock::new().clock());
    let payload = Bytes::from("one\n".repeat(2048));
    let handle = key(&payload).to_string();
    store.put_all(vec![(key(&payload), payload)]).await.unwrap();
    let held =
        |recalls: &RecallHandler| (recalls.clients.in_flight.available_permits(), recalls.clients.budget.remaining());

    let recalls = recalls(2, 30 << 10);
    let answer = async |query: &str| recalls.answer(&handle, query, anyone(Some(&store))).await;
    let before = held(&recalls);
    let whole = answer("").await;
    assert_eq!((whole.status().as_u16(), held(&recalls)), (200, (1, before.1 - (8 << 10))));
    let line = answer("lines=1").await;
    assert_eq!((line.status().as_u16(), held(&recalls)), (200, (0, before.1 - (16 << 10))));
    let (status, again, text) = read_response(answer("").await).await;
    assert!(status == 503 && again && text.contains("server.max_in_flight"), "{status} {text}");
    drop((whole, line));
    assert_eq!(held(&recalls), before);

    // The output of grep is longer than the payload, and is leased as well.
    let (status, again, text) = read_response(answer("grep=one").await).await;
    assert_eq!((status, again), (200, false));
    assert!(text.len() > 8 << 10 && text.len() < 22 << 10);
    for (budget, query) in [(7 << 10, ""), (8 << 10, "grep=one")] {
        let small = self::recalls(2, budget);
        let (status, again, text) = read_response(small.answer(&handle, query, anyone(Some(&store))).await).await;
        assert!(status == 503 && again && text.contains("server.max_buffered"), "{status} {text}");
        assert_eq!(held(&small), (2, budget));
    }
}
