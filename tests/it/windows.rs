//! How many tokens a model takes, where the upstream has to say it.

use crate::support::offloads::with_results;
use crate::support::{Scene, post};

/// What a listing takes, of OpenAI's clients and of Anthropic's.
const KEYS: [&str; 3] = ["authorization: Bearer a", "x-api-key: b", "anthropic-version: 2023-06-01"];

#[tokio::test]
async fn the_upstream_is_asked_once_for_all_pages_with_unknown_windows() {
    let mut scene =
        Scene::with("clear_tool_results = { when = 'any', keep = { results = 1 } }\nserver.workers = 2").await;
    let texts: Vec<_> = (0..12).map(|n| format!("{n} ").repeat(2000)).collect();
    let body = with_results(&texts).replace("gpt-4o", "house-model");
    let request = post("/v1/chat/completions?v=1", &KEYS, &body);

    scene.client.send(&request).await;
    let mut first = scene.upstream.request().await;
    let mut second = scene.upstream.request().await;
    if first.head.start.starts_with("GET") {
        std::mem::swap(&mut first, &mut second);
    }
    assert_eq!(first.bytes().await, body, "nothing is cleared while the window is not known");
    assert_eq!(second.head.start, "GET /v1/models?v=1 HTTP/1.1");
    for key in KEYS {
        let (name, value) = key.split_once(": ").unwrap();
        assert_eq!(second.head.get(name), Some(value));
    }
    // The listing of Anthropic comes in pages.
    let page = r#"{"data":[{"id":"other"}],"has_more":true,"first_id":"other","last_id":"other"}"#;
    second.answer("200 OK", &["connection: close"], page).await;
    let mut third = scene.upstream.request().await;
    assert_eq!(third.head.start, "GET /v1/models?v=1&after_id=other HTTP/1.1");
    for key in KEYS {
        let (name, value) = key.split_once(": ").unwrap();
        assert_eq!(third.head.get(name), Some(value));
    }
    // The request does not wait for the listing.
    first.json("{}").await;
    assert_eq!(scene.client.reply().await.head.status(), 200);
    let listing =
        r#"{"data":[{"id":"house-model","max_input_tokens":16000}],"has_more":false,"last_id":"house-model"}"#;
    third.answer("200 OK", &["connection: close"], listing).await;

    // Learned at some point behind the answer; from then on, old results are cleared.
    let mut call = first;
    for _ in 0..1000 {
        scene.client.send(&request).await;
        call = call.next().await;
        let got = call.bytes().await;
        call.json("{}").await;
        scene.client.reply().await;
        if got.len() < body.len() {
            scene.upstream.no_more();
            return;
        }
    }
    panic!("the window should have been learned");
}
