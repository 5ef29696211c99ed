//! What only Anthropic Messages has: keys, versions and beta features in header fields, thinking that is bound, marks.

use crate::support::summarizer::{INSTRUCTION, Play, Summarizer, talk};
use crate::support::wire::Reply;
use crate::support::{Abridge, Exchange, Scene, Setup, post};

const PATH: &str = "/v1/messages";

/// A streamed answer that says this.
fn says(text: &str) -> Play {
    let event = |name: &str, rest: &str| format!("event: {name}\ndata: {{\"type\":\"{name}\"{rest}}}\n\n");
    let text = serde_json::to_string(text).unwrap();
    let events = [
        event("message_start", r#","message":{"usage":{"input_tokens":9}}"#),
        event("content_block_start", r#","index":0,"content_block":{"type":"text","text":""}"#),
        event("content_block_delta", &format!(r#","index":0,"delta":{{"type":"text_delta","text":{text}}}"#)),
        event("content_block_stop", r#","index":0"#),
        event("message_delta", r#","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}"#),
        event("message_stop", ""),
    ];
    Play::Raw(events.concat().into_bytes())
}

fn setup(upstream: &Summarizer) -> Setup {
    Setup::to(upstream.url())
        .with(format!("summarize.instruction = {INSTRUCTION:?}"))
        .with("summarize.trigger = { tokens = 900 }")
        .with("tokens.counter = \"estimate\"")
        .with("tokens.ask_upstream = false")
}

async fn ask(abridge: &Abridge, fields: &[&str], body: impl AsRef<[u8]>) -> Reply {
    let mut client = abridge.connect().await;
    client.send(post(PATH, fields, body)).await;
    client.reply().await
}

#[tokio::test]
async fn a_model_of_its_own_gets_its_key_and_the_version_as_anthropic_reads_them() {
    for (sent, version) in [(&["anthropic-version: 2029-01-01"][..], "2029-01-01"), (&[], "2023-06-01")] {
        let upstream = Summarizer::playing([]).await;
        let model = Summarizer::playing([says("<summary>They talked.</summary>")]).await;
        let endpoint = format!(
            "summarize.model = {{ base_url = {:?}, model = \"small\", api_key_env = \"MODEL_KEY\" }}",
            model.url()
        );
        let abridge = setup(&upstream).with(endpoint).environment("MODEL_KEY", "sk-model").start().await;
        let fields = [sent, &["x-api-key: sk-client", "anthropic-beta: one"]].concat();
        let reply = ask(&abridge, &fields, talk("a", 3)).await;
        assert_eq!(reply.head.get("x-abridge-edits"), Some("summary=1"));
        let calls = model.summaries();
        let head = &calls[0].head;
        assert_eq!((calls.len(), head.start.as_str()), (1, "POST /v1/messages HTTP/1.1"));
        assert_eq!((head.get("x-api-key"), head.get("anthropic-version")), (Some("sk-model"), Some(version)));
        assert_eq!((head.get("authorization"), head.get("anthropic-beta")), (None, None));
    }
}

// === thinking ===

/// A round of a call with thinking and a long result.
fn round(n: usize) -> String {
    let text = format!("line of output {n}. ").repeat(200);
    format!(
        r#",{{"role":"assistant","content":[{{"type":"thinking","thinking":"","signature":"s{n}"}},{{"type":"tool_use","id":"t{n}","name":"Bash","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t{n}","content":"{text}"}}]}}"#
    )
}

/// A request with these rounds, an answer and a question of the user.
fn rounds(model: &str, beside: &str, n: usize) -> String {
    let rounds: String = (0..n).map(round).collect();
    format!(
        r#"{{"model":"{model}","max_tokens":9{beside},"messages":[{{"role":"user","content":"go"}}{rounds},{{"role":"assistant","content":"done"}},{{"role":"user","content":"next"}}]}}"#
    )
}

const BOUND: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.3.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. The block is bound to a different conversation."}}"#;

const CLEAR: &str = "policy.edits = [\"patch_tool_calls\", \"clear_tool_results\"]\ntokens.counter = \"estimate\"\ntokens.ask_upstream = false\nclear_tool_results = { when = 'any', trigger = { tokens = 1000 }, keep = { results = 1 } }";

/// Sends a request, and returns the body that the upstream gets of it.
async fn sent(scene: &mut Scene, body: &str) -> (Exchange, String) {
    let fields = ["anthropic-version: 2023-06-01", "anthropic-beta: one"];
    scene.client.send(post(PATH, &fields, body)).await;
    let mut call = scene.upstream.request().await;
    let body = String::from_utf8(call.bytes().await.to_vec()).unwrap();
    (call, body)
}

#[tokio::test]
async fn refused_thinking_is_left_out_once_and_from_then_on() {
    let mut scene = Scene::with(&format!("second_try.enabled = true\n{CLEAR}")).await;
    let body = rounds("claude-next", "", 3);
    let (mut call, edited) = sent(&mut scene, &body).await;
    assert!(edited.contains("[Cleared") && edited.contains("\"s0\""), "{edited}");
    call.answer("400 Bad Request", &["content-type: application/json", "connection: close"], BOUND).await;
    let mut call = scene.upstream.request().await;
    let stripped = String::from_utf8(call.bytes().await.to_vec()).unwrap();
    assert!(stripped.contains("[Cleared") && !stripped.contains("signature"), "{stripped}");
    call.answer("200 OK", &["connection: close"], "{}").await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-rescue")), (200, Some("reasoning")));

    // The next request of the conversation is sent so at once; another one is not.
    let answer = r#",{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"new"},{"type":"text","text":"so"}]},{"role":"user","content":"and"}]}"#;
    let longer = body.strip_suffix("]}").unwrap().to_owned() + answer;
    for (body, is_stripped) in [(longer.clone(), true), (longer.replace("\"go\"", "\"run\""), false)] {
        let mut client = scene.abridge.connect().await;
        client.send(post(PATH, &[], &body)).await;
        let mut call = scene.upstream.request().await;
        let sent = String::from_utf8(call.bytes().await.to_vec()).unwrap();
        assert_eq!(!sent.contains("\"s0\""), is_stripped, "{sent}");
        assert!(sent.contains("\"new\"") && sent.contains("[Cleared"), "{sent}");
        call.answer("200 OK", &["connection: close"], "{}").await;
        assert_eq!(client.reply().await.head.get("x-abridge-rescue"), None);
    }
}

#[tokio::test]
async fn refused_thinking_that_is_left_out_already_brings_the_original() {
    let mut scene = Scene::with(&format!("second_try.enabled = true\n{CLEAR}")).await;
    let body = rounds("claude-opus-5-5", "", 3);
    let (mut call, edited) = sent(&mut scene, &body).await;
    assert!(edited.contains("[Cleared") && !edited.contains("signature"), "{edited}");
    call.answer("400 Bad Request", &["content-type: application/json", "connection: close"], BOUND).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await, body);
    call.json("{}").await;
    assert_eq!(scene.client.reply().await.head.get("x-abridge-rescue"), Some("original"));
}

#[tokio::test]
async fn with_drop_block_the_api_is_told_to_drop_what_a_pass_has_unbound() {
    let mut scene = Scene::with(&format!("reasoning.bound = \"drop_block\"\n{CLEAR}")).await;
    let adaptive = r#","thinking":{"type":"adaptive"}"#;
    let set = r#""thinking":{"type":"adaptive","block_binding":{"prefix_mismatch_behavior":"drop_block"}}"#;
    // Without a pass nothing is set; nor for a model whose thinking is not bound.
    for (model, n) in [("claude-opus-5-5", 1), ("claude-opus-5", 3)] {
        let (mut call, body) = sent(&mut scene, &rounds(model, adaptive, n)).await;
        assert!(!body.contains("drop_block") && body.contains("signature"), "{body}");
        assert_eq!(call.head.get("anthropic-beta"), Some("one"));
        call.json("{}").await;
        scene.client.reply().await;
    }
    for n in [3, 4] {
        let (mut call, body) = sent(&mut scene, &rounds("claude-opus-5-5", adaptive, n)).await;
        assert!(body.contains(set) && body.contains("[Cleared") && body.contains("\"s0\""), "{body}");
        assert_eq!(call.head.get("anthropic-beta"), Some("one,thinking-binding-controls-2026-08-01"));
        call.json("{}").await;
        scene.client.reply().await;
    }
    // Where it cannot be set, thinking is left out.
    for beside in ["", r#","thinking":{"type":"adaptive","block_binding":{"prefix_mismatch_behavior":"error"}}"#] {
        let (mut call, body) = sent(&mut scene, &rounds("claude-opus-5-5", beside, 3)).await;
        assert!(body.contains("[Cleared") && !body.contains("signature") && !body.contains("drop_block"), "{body}");
        assert_eq!(call.head.get("anthropic-beta"), Some("one"));
        call.json("{}").await;
        scene.client.reply().await;
    }
}
