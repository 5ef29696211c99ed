//! How many tokens a model takes, where the upstream has to say it.

use crate::support::offloads::with_results;
use crate::support::{Exchange, Scene, post};

/// The header fields that a listing takes, of OpenAI's clients and of Anthropic's.
const KEYS: [&str; 3] = ["authorization: Bearer a", "x-api-key: b", "anthropic-version: 2023-06-01"];

#[tokio::test]
async fn the_upstream_is_asked_once_for_unknown_windows() {
    let mut scene =
        Scene::with("clear_tool_results = { when = 'any', keep = { results = 1 } }\nserver.workers = 2").await;
    let texts: Vec<_> = (0..12).map(|n| format!("{n} ").repeat(2000)).collect();
    let body = with_results(&texts).replace("gpt-4o", "house-model");
    let betas = "anthropic-beta: claude-code-20250219, oauth-2025-04-20,effort-2025-11-24";
    let request = post("/v1/chat/completions?v=1", &[&KEYS[..], &[betas]].concat(), &body);

    let [mut first, mut second] = request_and_list(&mut scene, &request).await;
    assert_eq!(first.bytes().await, body, "nothing is cleared while the window is not known");
    assert_eq!(second.head.start, "GET /v1/models?v=1&limit=1000 HTTP/1.1");
    for key in KEYS {
        let (name, value) = key.split_once(": ").unwrap();
        assert_eq!(second.head.get(name), Some(value));
    }
    assert_eq!(second.head.get("anthropic-beta"), Some("oauth-2025-04-20"));
    // The request does not wait for the listing.
    first.json("{}").await;
    assert_eq!(scene.client.reply().await.head.status(), 200);
    let listing =
        r#"{"data":[{"id":"house-model","max_input_tokens":16000}],"has_more":false,"last_id":"house-model"}"#;
    second.answer("200 OK", &["connection: close"], listing).await;

    is_cleared_soon(&mut scene, first, &request, &body).await;
}

/// Sends a request again until its results are cleared, as its window is learned at some point after the answer of the upstream.
async fn is_cleared_soon(scene: &mut Scene, mut call: Exchange, request: &[u8], body: &str) {
    for _ in 0..1000 {
        scene.client.send(request).await;
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

/// Sends a request: it, and the list of models that is asked for beside it.
async fn request_and_list(scene: &mut Scene, request: &[u8]) -> [Exchange; 2] {
    scene.client.send(request).await;
    let (first, second) = (scene.upstream.request().await, scene.upstream.request().await);
    if first.head.start.starts_with("GET") { [second, first] } else { [first, second] }
}

/// A conversation with a model of unknown window, whose results are cleared once the window is known.
fn long(model: &str) -> String {
    let texts: Vec<_> = (0..12).map(|n| format!("{n} ").repeat(2000)).collect();
    with_results(&texts).replace("gpt-4o", model)
}

#[tokio::test]
async fn chatgpt_and_copilot_are_asked_for_the_windows_that_an_account_has() {
    // Those of the built-in table are of the API: gpt-5.5 has 272,000 tokens here, and 1,050,000 there.
    let chatgpt = r#"{"models":[{"slug":"gpt-5.5","context_window":16000,"max_context_window":16000}]}"#;
    let copilot = r#"{"data":[{"id":"gpt-5.5","capabilities":{"limits":{"max_prompt_tokens":16000}}}]}"#;
    for (name, path, listing) in [
        ("chatgpt-account-id", "/v1/models?client_version=0.0.0", chatgpt),
        ("copilot-integration-id", "/v1/models", copilot),
        ("openai-intent", "/v1/models", copilot),
    ] {
        let mut scene =
            Scene::with("clear_tool_results = { when = 'any', keep = { results = 1 } }\nserver.workers = 2").await;
        let account = format!("{name}: 7");
        let (body, request) = (long("gpt-5.5"), post("/v1/chat/completions", &[KEYS[0], &account], long("gpt-5.5")));
        let [mut first, mut second] = request_and_list(&mut scene, &request).await;
        assert_eq!(first.bytes().await, body, "nothing is cleared in a window of the API");
        assert_eq!(second.head.start, format!("GET {path} HTTP/1.1"));
        assert_eq!([second.head.get("authorization"), second.head.get(name)], [Some("Bearer a"), Some("7")]);
        second.answer("200 OK", &["connection: close"], listing).await;
        first.json("{}").await;
        assert_eq!(scene.client.reply().await.head.status(), 200);
        is_cleared_soon(&mut scene, first, &request, &body).await;
    }
}

#[tokio::test]
async fn local_servers_are_asked_for_the_context_that_they_have_loaded() {
    // The built-in table has a longer window for this one.
    let known = "qwen3-coder-30b-a3b-instruct";
    let listing =
        |owner: &str, model: &str| format!(r#"{{"data":[{{"id":"{model}","object":"model","owned_by":"{owner}"}}]}}"#);
    let num_ctx = r#"{"parameters":"num_ctx   16000"}"#;
    for (owner, model, answers) in [
        ("library", "qwen3:8b", &[("GET /api/ps", r#"{"models":[{"name":"qwen3:8b","context_length":16000}]}"#)][..]),
        ("library", "qwen3:8b", &[("GET /api/ps", r#"{"models":[]}"#), ("POST /api/show", num_ctx)]),
        ("llamacpp", known, &[("GET /props", r#"{"default_generation_settings":{"n_ctx":16000}}"#)]),
        (
            "organization_owner",
            "qwen3:8b",
            &[("GET /api/v0/models", r#"{"data":[{"id":"qwen3:8b","state":"loaded","loaded_context_length":16000}]}"#)],
        ),
    ] {
        let mut scene =
            Scene::with("clear_tool_results = { when = 'any', keep = { results = 1 } }\nserver.workers = 2").await;
        let (body, request) = (long(model), post("/v1/chat/completions", &KEYS, long(model)));
        let [mut first, mut second] = request_and_list(&mut scene, &request).await;
        assert_eq!(first.bytes().await, body, "nothing is cleared while the window is not known");
        second.answer("200 OK", &["connection: close"], listing(owner, model)).await;
        for (asked, answer) in answers {
            let mut call = scene.upstream.request().await;
            assert_eq!(call.head.start, format!("{asked} HTTP/1.1"), "{owner}");
            assert_eq!(call.head.get("authorization"), Some("Bearer a"));
            let sent = call.bytes().await;
            assert_eq!(sent.is_empty(), asked.starts_with("GET"));
            call.answer("200 OK", &["connection: close"], answer.to_owned()).await;
        }
        // The request does not wait for any of it.
        first.json("{}").await;
        assert_eq!(scene.client.reply().await.head.status(), 200);
        is_cleared_soon(&mut scene, first, &request, &body).await;
    }
}

#[tokio::test]
async fn an_upstream_that_cuts_prompts_is_named_once_and_its_window_is_learned() {
    let mut scene =
        Scene::with("clear_tool_results = { when = 'any', keep = { results = 1 } }\ntokens.ask_upstream = false").await;
    let body = |n: usize| {
        let texts: Vec<_> = (0..n).map(|n| format!("{n} line ").repeat(400)).collect();
        with_results(&texts).replace("gpt-4o", "qwen3:8b")
    };
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":4096,"completion_tokens":1}}"#;
    let mut call = None;
    for n in [6, 8, 10, 12] {
        scene.client.send(post("/v1/chat/completions", &KEYS, body(n))).await;
        let mut next = match call.take() {
            None => scene.upstream.request().await,
            Some(before) => Exchange::next(before).await,
        };
        let got = next.bytes().await;
        assert_eq!(got.len() < body(n).len(), n == 12, "{n}: {}", got.len());
        next.json(usage).await;
        scene.client.reply().await;
        if n == 10 {
            scene.abridge.says("so it cuts them without saying so", 0).await;
        }
        call = Some(next);
    }
    let log = scene.abridge.stderr().concat();
    assert_eq!(log.matches("so it cuts them").count(), 1);
    assert!(log.contains("window=4096"), "{log}");
}
