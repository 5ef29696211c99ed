//! Forms that an upstream asks for in a refusal: the second try has them, and so has every later request to it.
#![expect(clippy::disallowed_types, reason = "bodies are made here, and looked at by eyes of our own")]

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::support::wire::Reply;
use crate::support::{Exchange, OPERATOR, OPERATOR_TOKEN, Scene, Setup, binary, post, request};

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

/// Each form in each dialect that has it. The refusals are those that `upstream/refusal.rs` names with their sources.
#[expect(clippy::too_many_lines, reason = "a table")]
fn cases() -> Vec<Case> {
    let calls = |calls: Value| json!({"role": "assistant", "content": null, "tool_calls": calls});
    let broken = chat(&[user("Go."), calls(json!([call("c1", "{\"command\": \"ls")])), result("c1"), user("On.")]);
    let use_of = |id: &str| json!({"type": "tool_use", "id": id, "name": "Bash", "input": {}});
    let said = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "done"});
    vec![
        Case {
            path: CHAT,
            refusal: r#"{"error":{"message":"<400> InternalError.Algo.InvalidParameter: The \"function.arguments\" parameter of the code model must be in JSON format.","type":"invalid_request_error","param":null,"code":"invalid_parameter_error"}}"#,
            body: broken.clone(),
            is_right: |body| body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}",
        },
        Case {
            path: CHAT,
            refusal: r#"{"type":"error","error":{"type":"bad_request_error","message":"invalid params, invalid function arguments json string, tool_call_id: c1 (2013)","http_code":"400"}}"#,
            body: broken,
            is_right: |body| body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}",
        },
        // As long as what takes its place.
        Case {
            path: CHAT,
            refusal: r#"{"type":"error","error":{"type":"bad_request_error","message":"invalid params, invalid function arguments json string, tool_call_id: c1 (2013)","http_code":"400"}}"#,
            body: chat(&[user("Go."), calls(json!([call("c1", "[]")])), result("c1"), user("On.")]),
            is_right: |body| body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}",
        },
        Case {
            path: CHAT,
            refusal: r#"{"error":{"message":"Invalid type for 'messages[1].tool_calls[0].function.arguments': expected a string, but got an object instead.","type":"invalid_request_error","param":"messages[1].tool_calls[0].function.arguments","code":"invalid_type"}}"#,
            body: chat(&[
                user("Go."),
                calls(json!([{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": {"n": 1}}}])),
                result("c1"),
                user("On."),
            ]),
            is_right: |body| body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{\"n\":1}",
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0.tool_use.input: Input should be a valid dictionary"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": "{\"n\":1}"}]},
                {"role": "user", "content": [said("toolu_1")]},
            ]}),
            is_right: |body| body["messages"][1]["content"][0]["input"] == json!({"n": 1}),
        },
        Case {
            path: CHAT,
            refusal: r#"{"error":{"message":"Invalid 'messages[1].tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead.","type":"invalid_request_error","param":"messages[1].tool_calls","code":"empty_array"}}"#,
            body: chat(&[user("Go."), json!({"role": "assistant", "content": "Yes.", "tool_calls": []}), user("On.")]),
            is_right: |body| body["messages"][1]["tool_calls"].is_null() && body["messages"][1]["content"] == "Yes.",
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: text content blocks must be non-empty"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [{"type": "text", "text": ""}]},
                {"role": "user", "content": [{"type": "text", "text": "On."}, {"type": "text", "text": ""}]},
            ]}),
            is_right: |body| {
                let text = |message: usize, part: usize| &body["messages"][message]["content"][part]["text"];
                text(1, 0) == "(empty)" && text(2, 0) == "On." && text(2, 1) == "(empty)"
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.3.content.0: `tool_use` ids must be unique"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [use_of("toolu_1")]},
                {"role": "user", "content": [said("toolu_1")]},
                {"role": "assistant", "content": [use_of("toolu_1")]},
                {"role": "user", "content": [said("toolu_1")]},
            ]}),
            is_right: |body| {
                let message = |n: usize| &body["messages"][n]["content"][0];
                message(1)["id"] == "toolu_1"
                    && message(2)["tool_use_id"] == "toolu_1"
                    && message(3)["id"] == "toolu_1_2"
                    && message(4)["tool_use_id"] == "toolu_1_2"
            },
        },
        Case {
            path: CHAT,
            refusal: r#"{"error":{"message":"Invalid parameter: Duplicate value for 'tool_call_id' of 'c', in messages[2] and messages[3].","type":"invalid_request_error","param":"messages.[3].tool_call_id","code":null}}"#,
            body: chat(&[
                user("Go."),
                calls(json!([call("c", "{}"), call("c", "{}")])),
                result("c"),
                result("c"),
                user("On."),
            ]),
            is_right: |body| {
                body["messages"][1]["tool_calls"][1]["id"] == "c_2" && body["messages"][3]["tool_call_id"] == "c_2"
            },
        },
        Case {
            path: CHAT,
            refusal: r#"{"error":{"code":400,"message":"Error: Jinja Exception: System message must be at the beginning.","type":"invalid_request_error"}}"#,
            body: chat(&[
                json!({"role": "system", "content": "Be brief."}),
                user("Go."),
                json!({"role": "system", "content": "Stop at three."}),
            ]),
            is_right: |body| body["messages"][0]["role"] == "system" && body["messages"][2]["role"] == "user",
        },
        Case {
            path: CHAT,
            refusal: r#"{"object":"error","message":"Unexpected role 'user' after role 'tool'","type":"invalid_request_message_order","param":null,"code":"3230"}"#,
            body: chat(&[user("Go."), calls(json!([call("c1", "{}")])), result("c1"), user("Stop."), user("Now on.")]),
            is_right: |body| {
                let roles: Vec<_> =
                    body["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
                roles == ["user", "assistant", "tool", "assistant", "user", "user"]
            },
        },
        Case {
            path: CHAT,
            refusal: r#"{"object":"error","message":"Unexpected role 'user' after role 'tool'","type":"invalid_request_message_order","param":null,"code":"3230"}"#,
            body: chat(&[user("Go."), calls(json!([call("c1", "{}"), call("c2", "{}")])), result("c1"), user("Stop.")]),
            is_right: |body| {
                let roles: Vec<_> =
                    body["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
                roles == ["user", "assistant", "tool", "tool", "assistant", "user"]
            },
        },
        Case {
            path: CHAT,
            refusal: r#"[{"error":{"code":400,"message":"* GenerateContentRequest.contents[2].parts[0].function_response.name: Name cannot be empty.\n","status":"INVALID_ARGUMENT"}}]"#,
            body: chat(&[
                user("Go."),
                calls(json!([call("c1", "{}"), call("c2", "{}"), call("c3", "{}")])),
                result("c1"),
                json!({"role": "tool", "name": "", "tool_call_id": "c2", "content": "done"}),
                user("On."),
            ]),
            is_right: |body| {
                let messages = body["messages"].as_array().unwrap();
                messages.len() == 6 && messages[2..5].iter().all(|result| result["name"] == "bash")
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"A maximum of 4 blocks with cache_control may be provided. Found 6."}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "system": [marked("s")], "messages": [
                {"role": "user", "content": [marked("Go."), marked("Please.")]},
                {"role": "assistant", "content": [marked("The text \"cache_control\": is none.")]},
                {"role": "user", "content": [marked("On."), marked("Now.")]},
            ]}),
            is_right: |body| {
                let marks = |at: &Value| at.to_string().matches("\"cache_control\":{").count();
                let messages = &body["messages"];
                [marks(&body["system"]), marks(&messages[0]), marks(&messages[1]), marks(&messages[2])] == [1, 0, 1, 2]
                    && messages[0]["content"]
                        == json!([{"type": "text", "text": "Go."}, {"type": "text", "text": "Please."}])
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.2.content.0.tool_result: all content must be type 'text' if 'is_error' is true"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [use_of("a")]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": true, "content": [
                    {"type": "text", "text": "It failed so:"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
                ]}]},
            ]}),
            is_right: |body| {
                let content = body["messages"][2]["content"][0]["content"].as_array().unwrap();
                content.len() == 2 && content.iter().all(|part| part["type"] == "text")
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: unexpected `tool_use_id` found in `advisor_tool_result` blocks: srvtoolu_1. Each `advisor_tool_result` block must have a corresponding `server_tool_use` block before it."}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [
                    {"type": "advisor_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                    {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_2", "content": []},
                    {"type": "server_tool_use", "id": "srvtoolu_3", "name": "web_search", "input": {}},
                    {"type": "text", "text": "Yes."},
                ]},
                user("On."),
            ]}),
            is_right: |body| {
                let content = body["messages"][1]["content"].as_array().unwrap();
                let types: Vec<_> = content.iter().map(|block| block["type"].as_str().unwrap()).collect();
                types == ["text", "server_tool_use", "web_search_tool_result", "text", "text"]
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.0.content.2.image.source.base64: image exceeds 5 MB maximum: 6710888 bytes > 5242880 bytes"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Look."}, image(64, 600), image(64, 5_033_166)]},
            ]}),
            is_right: |body| {
                let content = &body["messages"][0]["content"];
                let words = content[2]["text"].as_str().unwrap_or_default();
                content[1] == image(64, 600)
                    && words.starts_with("[Cleared: image/png of 5033166 bytes, larger than the API accepts.")
            },
        },
        Case {
            path: MESSAGES,
            refusal: r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.2.content.0.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels"}}"#,
            body: json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": [
                user("Go."),
                {"role": "assistant", "content": [use_of("a")]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
                    image(8000, 600), image(8001, 600),
                ]}]},
            ]}),
            is_right: |body| {
                let content = &body["messages"][2]["content"][0]["content"];
                content[0] == image(8000, 600) && content[1]["type"] == "text"
            },
        },
        Case {
            path: RESPONSES,
            refusal: r#"{"error":{"message":"Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.","type":"invalid_request_error","param":"input","code":null}}"#,
            body: json!({"model": "gpt-5.5", "input": [
                user("Go."),
                {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "done"},
                {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAx"},
                {"type": "message", "id": "msg_2", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
                user("On."),
            ]}),
            is_right: |body| body["input"][1].get("id").is_none() && body["input"][4]["id"] == "msg_2",
        },
        Case {
            path: RESPONSES,
            refusal: r#"{"error":{"message":"The encrypted content gAAA...DQ== could not be verified.","type":"invalid_request_error","param":null,"code":"invalid_encrypted_content"}}"#,
            body: json!({"model": "gpt-5.5", "store": false, "input": [
                user("Go."),
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAx"},
                {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
                user("On."),
            ]}),
            is_right: |body| {
                let items = body["input"].as_array().unwrap();
                items.len() == 3 && items.iter().all(|item| item["type"] != "reasoning" && item.get("id").is_none())
            },
        },
    ]
}

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
        answer(&mut call, "400 Bad Request", refusal).await;
        let (mut call, second) = received(&mut scene).await;
        assert!(is_right(&second), "{refusal}: {second}");
        answer(&mut call, "200 OK", "{}").await;
        let reply = scene.client.reply().await;
        assert_eq!(reply.head.status(), 200, "{refusal}");
        let by = if refusal.contains("encrypted") { "reasoning" } else { "form" };
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
