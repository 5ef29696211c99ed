//! Forms that an upstream asks for in a refusal: the second try has them, and so has every later request to it.
#![expect(clippy::disallowed_types, reason = "bodies are made here, and looked at by eyes of our own")]

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::{Value, json};

use self::cases::cases;
use crate::support::wire::Reply;
use crate::support::{Exchange, OPERATOR, OPERATOR_TOKEN, Scene, Setup, binary, post, request};

mod cases;

/// A refusal, the body that gets it, and what is checked of the bodies that are sent then.
struct Case {
    path: &'static str,
    refusal: &'static str,
    body: Value,
    is_right: fn(&Value) -> bool,
}

fn call(id: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "bash", "arguments": arguments}})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "done"})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn chat(messages: &[Value]) -> Value {
    json!({"model": "gpt-4o", "messages": messages})
}

fn marked(text: &str) -> Value {
    json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}})
}

/// A PNG of this size for its first bytes, with so many bytes, as an image of Messages.
fn image(side: u32, n_bytes: usize) -> Value {
    let mut bytes = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &side.to_be_bytes(), &side.to_be_bytes()].concat();
    bytes.resize(n_bytes, 0);
    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": STANDARD.encode(bytes)}})
}

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const GEMINI: &str = "/v1beta/models/gemini-3-pro-preview:generateContent";

async fn answer(call: &mut Exchange, status: &str, body: &str) {
    call.answer(status, &["content-type: application/json", "connection: close"], body).await;
}

async fn received(scene: &mut Scene) -> (Exchange, Value) {
    let mut call = scene.upstream.request().await;
    let body: Bytes = call.bytes().await;
    (call, serde_json::from_slice(&body).unwrap())
}

fn tried(reply: &Reply) -> Option<&str> {
    reply.head.get("x-abridge-rescue")
}

#[tokio::test]
async fn a_form_that_a_refusal_names_is_sent_once_and_at_once_from_then_on() {
    for Case { path, refusal, body, is_right } in cases() {
        let mut scene = Scene::with("").await;
        assert!(!is_right(&body), "{refusal}");
        let mut call = scene.ask(post(path, &[], body.to_string())).await;
        let status = if refusal.contains(":500,") { "500 Internal Server Error" } else { "400 Bad Request" };
        answer(&mut call, status, refusal).await;
        let (mut call, second) = received(&mut scene).await;
        assert!(is_right(&second), "{refusal}: {second}");
        answer(&mut call, "200 OK", "{}").await;
        let reply = scene.client.reply().await;
        assert_eq!(reply.head.status(), 200, "{refusal}");
        let by = if refusal.contains("encrypted") || refusal.contains("Corrupted") { "reasoning" } else { "form" };
        assert_eq!(tried(&reply), Some(by), "{refusal}");

        scene.client = scene.abridge.connect().await;
        scene.client.send(post(path, &[], body.to_string())).await;
        let (mut call, first) = received(&mut scene).await;
        assert!(is_right(&first), "{refusal}: {first}");
        answer(&mut call, "200 OK", "{}").await;
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), tried(&reply)), (200, None), "{refusal}");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_failure_that_names_no_form_is_not_sent_again() {
    let body = chat(&[user("Go."), json!({"role": "assistant", "tool_calls": [call("c1", "{}")]}), user("On.")]);
    for said in ["`tool_use` ids were found without `tool_result`", "the request exceeds the available context size"] {
        let mut scene = Scene::with("").await;
        let mut call = scene.ask(post(CHAT, &[], body.to_string())).await;
        let failure = json!({"error": {"code": 500, "message": said, "type": "server_error"}}).to_string();
        answer(&mut call, "500 Internal Server Error", &failure).await;
        assert_eq!(scene.client.reply().await.body, failure.as_bytes());
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_form_that_was_learnt_outlives_the_process() {
    let Case { path, refusal, body, is_right } = cases().swap_remove(0);
    let folder = tempfile::tempdir().unwrap();
    let store = format!("store.path = \"{}\"", folder.path().join("store.redb").display());
    let mut scene = Scene::with(&store).await;
    let mut call = scene.ask(post(path, &[], body.to_string())).await;
    answer(&mut call, "400 Bad Request", refusal).await;
    let (mut call, _) = received(&mut scene).await;
    answer(&mut call, "200 OK", "{}").await;
    assert_eq!(tried(&scene.client.reply().await), Some("form"));
    scene.abridge.signal("TERM");
    scene.abridge.exit().await;

    scene.abridge = Setup::before(&scene.upstream).with(&store).start().await;
    scene.client = scene.abridge.connect().await;
    scene.client.send(post(path, &[], body.to_string())).await;
    let (mut call, first) = received(&mut scene).await;
    assert!(is_right(&first), "{first}");
    answer(&mut call, "200 OK", "{}").await;
    assert_eq!(tried(&scene.client.reply().await), None);

    // Another model of the upstream has not asked for it.
    let mut other = body.clone();
    other["model"] = "another".into();
    scene.client = scene.abridge.connect().await;
    scene.client.send(post(path, &[], other.to_string())).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await, other.to_string());
    answer(&mut call, "200 OK", "{}").await;
    assert_eq!(tried(&scene.client.reply().await), None);
    scene.upstream.no_more();

    // The words, the model and the time of the refusal.
    let mut operator = scene.abridge.connect().await;
    operator.send(request("GET", "/abridge/status", &[OPERATOR])).await;
    let status: Value = serde_json::from_slice(&operator.reply().await.body).unwrap();
    let upstream = &status["upstreams"][0];
    let lesson = &upstream["lessons"][0];
    assert_eq!(lesson["model"], body["model"], "{status}");
    assert!(upstream["forms"].as_array().unwrap().contains(&lesson["form"]), "{status}");
    let words = lesson["words"].as_str().unwrap();
    assert!(words.split(" … ").all(|word| refusal.to_lowercase().contains(word)), "{words}");
    assert!(lesson["at"].as_u64().unwrap() > 1_700_000_000);
    let address = scene.abridge.address().to_string();
    let told = async |arguments: &[&str]| {
        let mut command = std::process::Command::new(binary());
        command.args(arguments).current_dir(folder.path()).env("ABRIDGE_ADMIN_TOKEN", OPERATOR_TOKEN);
        command.args(["--listen", &address, "--upstream", "http://127.0.0.1:9/v1"]);
        command.env("ABRIDGE__STORE__PATH", folder.path().join("store.redb"));
        command.env("ABRIDGE__TOKENS__ASK_UPSTREAM", "false");
        let said = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        assert!(said.contains(&format!(" was refused: {words}")), "{arguments:?}: {said}");
    };
    for command in ["status", "doctor", "models"] {
        told(&[command]).await;
    }
    scene.abridge.signal("TERM");
    scene.abridge.exit().await;
    for command in ["doctor", "models"] {
        told(&[command]).await;
    }
}

#[tokio::test]
async fn a_request_that_is_too_long_keeps_the_form() {
    let Case { path, refusal, body, is_right } = cases().swap_remove(0);
    let mut scene = Scene::with("").await;
    let mut call = scene.ask(post(path, &[], body.to_string())).await;
    answer(&mut call, "400 Bad Request", refusal).await;
    let (mut call, _) = received(&mut scene).await;
    answer(&mut call, "200 OK", "{}").await;
    scene.client.reply().await;
    scene.client = scene.abridge.connect().await;

    let mut longer = body;
    let messages = longer["messages"].as_array_mut().unwrap();
    messages[2]["content"] = json!("a line of the output\n".repeat(200));
    messages.extend([json!({"role": "assistant", "content": "Yes."}), user("And now?")]);
    let mut call = scene.ask(post(path, &[], longer.to_string())).await;
    answer(&mut call, "413 Payload Too Large", "<html>413</html>").await;
    let (mut call, second) = received(&mut scene).await;
    assert!(is_right(&second) && second.to_string().contains("[Cleared: "), "{second}");
    answer(&mut call, "200 OK", "{}").await;
    assert_eq!(tried(&scene.client.reply().await), Some("overflow"));
}

#[tokio::test]
async fn a_form_that_does_not_help_is_not_learnt_and_the_refusal_comes_back() {
    let Case { path, refusal, body, is_right } = cases().swap_remove(0);
    let mut scene = Scene::with("").await;
    for _ in 0..2 {
        let mut call = scene.ask(post(path, &[], body.to_string())).await;
        answer(&mut call, "400 Bad Request", refusal).await;
        let (mut call, second) = received(&mut scene).await;
        assert!(is_right(&second));
        answer(&mut call, "400 Bad Request", refusal).await;
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), &*reply.body), (400, refusal.as_bytes()));
        scene.upstream.no_more();
        scene.client = scene.abridge.connect().await;
    }
}

#[tokio::test]
async fn where_the_second_try_is_off_a_form_is_not_taken_unless_the_policy_has_it() {
    let Case { path, refusal, body, is_right } = cases().swap_remove(0);
    for (lines, has_form) in [("", false), ("\npolicy.forms = [\"arguments\"]", true)] {
        let mut scene = Scene::with(&format!("second_try.enabled = false{lines}")).await;
        scene.client.send(post(path, &[], body.to_string())).await;
        let (mut call, first) = received(&mut scene).await;
        assert_eq!(is_right(&first), has_form);
        answer(&mut call, "400 Bad Request", refusal).await;
        assert_eq!(scene.client.reply().await.head.status(), 400);
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn an_original_that_has_the_same_images_is_not_sent_after_a_refusal_of_images() {
    // Edited, and no shorter: the results get the order of the calls.
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [call("c1", "{}"), call("c2", "{}")]});
    let (first, second) = (result("c1"), result("c2"));
    let body = |results: [&Value; 2]| chat(&[user("Go."), calls.clone(), results[0].clone(), results[1].clone()]);
    for (refusal, is_of_images) in [
        (r#"{"error":{"message":"messages.0.content.1.image.source.base64: image exceeds 5 MB maximum"}}"#, true),
        (r#"{"error":{"message":"Too much media: 0 document pages + 101 images > 100"}}"#, true),
        (r#"{"error":{"message":"An assistant message with 'tool_calls' must be followed by tool messages"}}"#, false),
    ] {
        let mut scene = Scene::with("").await;
        let client = body([&second, &first]).to_string();
        scene.client.send(post(CHAT, &[], &client)).await;
        let (mut call, sent) = received(&mut scene).await;
        assert_eq!(sent, body([&first, &second]));
        answer(&mut call, "400 Bad Request", refusal).await;
        if is_of_images {
            assert_eq!(&*scene.client.reply().await.body, refusal.as_bytes());
            scene.upstream.no_more();
        } else {
            let mut call = scene.upstream.request().await;
            assert_eq!(call.bytes().await, client.as_bytes());
        }
    }
}
