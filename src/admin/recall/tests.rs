//! Parts of payloads, by every way to ask for them.

use http_body_util::BodyExt as _;

use super::*;
use crate::store::Settings;
use crate::store::conformance::{PutAll as _, TestClock, dense, key};
use crate::store::memory::MemoryStore;

fn recalls(places: usize, budget: usize) -> Recalls {
    Recalls::new(Arc::new(Semaphore::new(places)), Budget::new(budget), Duration::from_secs(10))
}

/// The status, whether the client may come again, and the text.
async fn said(response: Response<Full<Bytes>>) -> (u16, bool, String) {
    let (head, mut body) = response.into_parts();
    let body = body.frame().await.unwrap().unwrap().into_data().unwrap();
    (head.status.as_u16(), head.headers.contains_key(RETRY_AFTER), String::from_utf8(body.to_vec()).unwrap())
}

fn found(query: &str, payload: &str) -> Found {
    Part::read(query).unwrap_or_else(|| panic!("{query:?} should be a query")).of(&Bytes::from(payload.to_owned()))
}

fn check(query: &str, payload: &str, expected: &str) {
    assert_eq!(found(query, payload).body, expected, "{query}");
}

#[test]
fn bytes_end_where_characters_do() {
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
fn parts_that_follow_each_other_fit_together() {
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
fn a_text_with_half_a_surrogate_pair_is_given_back_as_it_was_written_and_read_by_lines() {
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
    // What is a JSON string and a text as well is a text.
    for text in [r#""one \ud83d\ude00""#, r#""\ud83d"#, r#""\ud83d" "#, r#"["\ud83d"]"#] {
        check("lines=1", text, text);
        assert_eq!(["", "lines=1"].map(|query| kinds(query, text)), [(false, false); 2]);
    }
}

#[test]
fn a_text_is_found_with_its_line() {
    let payload = "Error: a.b\nfine\r\nerror: a+b é\r\n";
    check("grep=rror", payload, "1:Error: a.b\n3:error: a+b é\n");
    check("grep=a.b", payload, "1:Error: a.b\n");
    check("grep=a%2Bb+%C3%A9", payload, "3:error: a+b é\n");
    check("grep=100%", "at 100%", "1:at 100%\n");
    check("grep=nothing", payload, "");
    assert_eq!(found("grep=rror", payload).matches, Some(2));
}

#[test]
fn a_very_long_line_is_shown_around_the_find() {
    let payload = format!("{}needle{}", "é".repeat(50_000), "é".repeat(50_000));
    let found = found("grep=needle", &payload);
    let text = str::from_utf8(&found.body).unwrap();
    assert!(text.starts_with("1:…é") && text.ends_with("é…\n") && text.contains("éneedleé"), "{text}");
    assert!(text.len() <= LONGEST_LINE + 20);
}

#[test]
fn what_is_found_has_a_limit_and_the_count_has_none() {
    let payload = "a needle\n".repeat(1_000_000);
    let found = found("grep=needle", &payload);
    assert!(found.body.len() < MOST_FOUND + LONGEST_LINE);
    assert_eq!(found.matches, Some(1_000_000));
}

#[test]
fn other_queries_are_refused() {
    let long = format!("grep={}", "x".repeat(LONGEST_QUERY));
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
        assert_eq!(Part::read(query), None, "{query}");
    }
}

#[test]
fn bytes_that_are_no_text_are_given_as_they_are() {
    let payload = Bytes::from(vec![0x80; 10]);
    assert_eq!(Part::read("offset=5&limit=3").unwrap().of(&payload).range, Some(5..8));
}

// === what is not there ===

#[tokio::test]
async fn what_is_swept_is_gone_and_what_was_never_there_is_not_found() {
    let clock = TestClock::new();
    let store = MemoryStore::new(Settings::default(), clock.clock());
    let payload = dense(1, 100);
    let handle = key(&payload).to_string();
    let recalls = recalls(9, 1 << 20);
    let answer = async |handle: &str, query: &str, store| recalls.answer(handle, query, store, Reader::Anybody).await;
    let status = async || answer(&handle, "", Some(&store)).await.status().as_u16();
    assert_eq!(status().await, 404);
    store.put_all(vec![(key(&payload), payload)]).await.unwrap();
    // A recall is a use.
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

// === whose it is ===

#[tokio::test]
async fn for_a_stranger_s_handle_the_store_is_not_asked() {
    let store = MemoryStore::new(Settings::default(), TestClock::new().clock());
    let [payload, other] = [1, 2].map(|seed| dense(seed, 100));
    let large = dense(3, HOP_FROM + 1);
    let names = [key(&payload), key(&large)];
    store.put_all(vec![(names[0], payload), (names[1], large), (key(b"a name of another text"), other)]).await.unwrap();
    let keys = Keys::new([7; 32]);
    let [own, foreign] = [b"Bearer someone", b"Bearer another"].map(|shown| Reader::Caller(&keys, keys.caller(shown)));
    let recalls = recalls(9, 8 << 20);
    let status = async |name: PayloadKey, reader: Reader<'_>| {
        recalls.answer(&name.to_string(), "", Some(&store), reader).await.status().as_u16()
    };
    for name in names {
        assert_eq!((status(name, own).await, status(name, foreign).await), (200, 404));
        assert_eq!((status(name, Reader::Anybody).await, status(name, Reader::Stranger).await), (200, 401));
    }
    // What a name says of its owner is not the last word: the text is named again.
    let lying = key(b"a name of another text");
    assert_eq!((status(lying, Reader::Anybody).await, status(lying, own).await), (200, 404));
    // A store that is closed says so to whom it is asked for.
    store.close().await.unwrap();
    assert_eq!((status(names[0], own).await, status(names[0], foreign).await), (503, 404));
    assert_eq!(recalls.counted(), [("found", 5), ("unknown", 4), ("swept", 0), ("refused", 2), ("busy", 1)]);
}

// === limits ===

#[tokio::test]
async fn a_recall_takes_a_place_and_memory_until_its_answer_is_written() {
    let store = MemoryStore::new(Settings::default(), TestClock::new().clock());
    let payload = Bytes::from("one\n".repeat(2048));
    let handle = key(&payload).to_string();
    store.put_all(vec![(key(&payload), payload)]).await.unwrap();
    let held = |recalls: &Recalls| (recalls.places.available_permits(), recalls.budget.left());

    let recalls = recalls(2, 30 << 10);
    let answer = async |query: &str| recalls.answer(&handle, query, Some(&store), Reader::Anybody).await;
    let before = held(&recalls);
    let whole = answer("").await;
    assert_eq!((whole.status().as_u16(), held(&recalls)), (200, (1, before.1 - (8 << 10))));
    let line = answer("lines=1").await;
    assert_eq!((line.status().as_u16(), held(&recalls)), (200, (0, before.1 - (16 << 10))));
    let (status, again, text) = said(answer("").await).await;
    assert!(status == 503 && again && text.contains("server.max_in_flight"), "{status} {text}");
    drop((whole, line));
    assert_eq!(held(&recalls), before);

    // What is found is longer than what is searched, and counts as well.
    let (status, again, text) = said(answer("grep=one").await).await;
    assert_eq!((status, again), (200, false));
    assert!(text.len() > 8 << 10 && text.len() < 22 << 10);
    for (budget, query) in [(7 << 10, ""), (8 << 10, "grep=one")] {
        let small = self::recalls(2, budget);
        let (status, again, text) = said(small.answer(&handle, query, Some(&store), Reader::Anybody).await).await;
        assert!(status == 503 && again && text.contains("server.max_buffered"), "{status} {text}");
        assert_eq!(held(&small), (2, budget));
    }
}
