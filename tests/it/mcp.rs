//! `POST /abridge/mcp`: recalls with the tools of a Model Context Protocol server.
#![expect(clippy::disallowed_types, reason = "messages of the protocol, made and read here")]
#![expect(clippy::string_slice, reason = "ASCII")]

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::offloads::{long_text, with_results};
use crate::support::wire::Reply;
use crate::support::{Abridge, OPERATOR, Setup, Upstream, Wire, binary, converse, post, request};

const MCP: &str = "/abridge/mcp";
const ANN: &str = "authorization: Bearer sk-ann";
const BOB: &str = "authorization: Bearer sk-bob";
const NONE: &str = "x-none: 1";

/// The name that Claude Code and Codex give the tool.
const RECALL: &str = "mcp__abridge__recall";

/// Sends a conversation with these results, which offers the tool under this name, in place of a shell; what went upstream.
async fn offering(at: SocketAddr, upstream: &mut Upstream, shown: &str, tool: &str, results: &[String]) -> String {
    let tools = "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":";
    let body = with_results(results).replace(&format!("{tools}\"bash\""), &format!("{tools}\"{tool}\""));
    String::from_utf8(converse(at, upstream, shown, body).await).unwrap()
}

/// The handles that notices name with the tool.
fn handles(sent: &str) -> Vec<String> {
    let begin = format!("Read it with {RECALL} (handle=");
    sent.match_indices(&begin).map(|(at, _)| sent[at + begin.len()..][..26].to_owned()).collect()
}

async fn send(at: SocketAddr, fields: &[&str], body: &str) -> Reply {
    let mut client = Wire::connect(at).await;
    let common = ["content-type: application/json", "accept: application/json, text/event-stream"];
    client.send(post(MCP, &[&common, fields].concat(), body)).await;
    client.reply().await
}

/// The result of a method, in the revision of 2025-06-18.
async fn result_of(at: SocketAddr, shown: &str, method: &str, params: Value) -> Value {
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string();
    let reply = send(at, &[shown, "mcp-protocol-version: 2025-06-18"], &message).await;
    let answered = String::from_utf8_lossy(&reply.body).into_owned();
    assert_eq!((reply.head.status(), reply.head.get("content-type")), (200, Some("application/json")), "{answered}");
    let mut answer: Value = serde_json::from_str(&answered).unwrap();
    assert_eq!(answer["id"], 7, "{answer}");
    answer["result"].take()
}

/// Returns what a tool answers, and whether that is an error.
async fn call(at: SocketAddr, shown: &str, tool: &str, arguments: Value) -> (String, bool) {
    let result = result_of(at, shown, "tools/call", json!({"name": tool, "arguments": arguments})).await;
    (result["content"][0]["text"].as_str().unwrap().to_owned(), result["isError"] == true)
}

async fn start(settings: &str) -> (Upstream, Abridge) {
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(settings).start().await;
    (upstream, abridge)
}

#[tokio::test]
async fn a_request_that_offers_the_tool_gets_notices_that_name_it_and_the_tool_reads_them() {
    let (mut upstream, abridge) = start("recall.auth = \"credential\"").await;
    let at = abridge.address();
    let texts = [long_text(1), long_text(2)];
    let sent = offering(at, &mut upstream, ANN, RECALL, &texts).await;
    let found = handles(&sent);
    assert_eq!((found.len(), sent.contains("/abridge/recall/")), (2, false), "{sent}");
    let elsewhere = offering(at, &mut upstream, ANN, "abridge_recall", &texts).await;
    assert!(elsewhere.contains(&format!("Read it with abridge_recall (handle={}", found[0])), "{elsewhere}");

    let info =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let server = result_of(at, ANN, "initialize", info).await;
    assert_eq!((&server["serverInfo"]["name"], &server["protocolVersion"]), (&json!("abridge"), &json!("2025-06-18")));
    let tools = result_of(at, ANN, "tools/list", json!({})).await;
    let names: Vec<_> = tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["recall", "search", "list"]);
    let is_always_loaded = |tool: &Value| tool["_meta"]["anthropic/alwaysLoad"] == true;
    let always: Vec<_> = tools["tools"].as_array().unwrap().iter().map(is_always_loaded).collect();
    assert_eq!(always, [true, false, false], "a tool that notices name is not left out of requests");

    let (handle, text) = (&found[0], &texts[0]);
    let (whole, _) = call(at, ANN, "recall", json!({"handle": handle})).await;
    let (shown, note) = whole.rsplit_once('\n').unwrap();
    assert!(text.starts_with(shown) && note.starts_with("[bytes 0-"), "{note}");
    let url = format!("http://{at}/abridge/recall/{handle}");
    for handle in [handle, &url] {
        let (lines, is_error) = call(at, ANN, "recall", json!({"handle": handle, "lines": "3-4", "grep": null})).await;
        let expected: String = text.split_inclusive('\n').skip(2).take(2).collect();
        assert!(lines.starts_with(&expected) && !is_error, "{lines}");
    }
    let (line, _) = call(at, ANN, "recall", json!({"handle": handle, "grep": "line 4711 \u{e9}\t"})).await;
    assert!(line.starts_with(&format!("4712:{}\n", text.lines().nth(4711).unwrap())), "{line}");
    for offset in [json!(100), json!(100.0)] {
        let (part, _) = call(at, ANN, "recall", json!({"handle": handle, "offset": offset, "limit": "50"})).await;
        assert!(part.starts_with(&text[100..150]) && part.contains("[bytes 100-150 of "), "{part}");
    }
    let (all, _) = call(at, ANN, "recall", json!({"handle": handle, "offset": 0, "limit": 10_000_000})).await;
    assert!(all.len() < 70_000 && all.ends_with("; go on with offset=65536]"), "{}", all.len());
    // A text that the model reads with the tool is not truncated again.
    let answered = json!({"handle": handle}).to_string();
    let asked = with_results(&[text[..100_000].to_owned()]).replace(
        "\"name\":\"bash\",\"arguments\":\"{\\\"n\\\":0}\"",
        &format!("\"name\":\"{RECALL}\",\"arguments\":{}", Value::from(answered)),
    );
    assert_eq!(converse(at, &mut upstream, ANN, &asked).await, asked.as_bytes());
}

#[tokio::test]
async fn a_caller_lists_and_searches_its_own_texts_alone() {
    let mut upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).with("recall.auth = \"credential\"").with("admin.token_env = \"OPERATORS\"");
    let abridge = setup.environment("OPERATORS", "a-token-of-operators").start().await;
    let at = abridge.address();
    let ann = handles(&offering(at, &mut upstream, ANN, RECALL, &[long_text(1), long_text(2)]).await);
    let bob = handles(&offering(at, &mut upstream, BOB, RECALL, &[long_text(3)]).await);

    let (listed, _) = call(at, ANN, "list", json!({})).await;
    assert!(ann.iter().all(|handle| listed.contains(handle)) && !listed.contains(&bob[0]), "{listed}");
    assert!(listed.contains("1: line 0 \u{e9}"), "the first line of each: {listed}");
    let (found, _) = call(at, ANN, "search", json!({"text": "2: line 17 "})).await;
    assert!(found.contains(&ann[1]) && found.contains("  18:2: line 17 \u{e9}") && !found.contains(&ann[0]), "{found}");
    for (shown, text) in [(BOB, "2: line 17 "), (ANN, "3: line 17 ")] {
        assert_eq!(call(at, shown, "search", json!({"text": text})).await, ("nothing was found".to_owned(), false));
    }
    let (unknown, is_error) = call(at, BOB, "recall", json!({"handle": ann[0]})).await;
    assert_eq!((&*unknown, is_error), ("no payload has this handle", true));
    for tool in ["recall", "list"] {
        let (refused, is_error) = call(at, NONE, tool, json!({"handle": ann[0]})).await;
        assert!(is_error && refused.contains("send the key of the conversation"), "{refused}");
    }
    let (all, _) = call(at, "authorization: Bearer a-token-of-operators", "list", json!({})).await;
    assert!(ann.iter().chain(&bob).all(|handle| all.contains(handle)), "{all}");
}

/// The texts of an account are named alike whichever of its tokens the client shows, and a token that no upstream has seen
/// proves nothing.
#[tokio::test]
async fn a_token_that_looks_like_one_of_an_account_lists_none_of_its_texts() {
    let (mut upstream, abridge) = start("").await;
    let (at, token) = (abridge.address(), "authorization: Bearer sk-ant-oat01-a");
    let handles = handles(&offering(at, &mut upstream, token, RECALL, &[long_text(1)]).await);
    for shown in [token, "authorization: Bearer sk-ant-oat01-b", "authorization: Bearer eyJ"] {
        let (listed, _) = call(at, shown, "list", json!({})).await;
        assert!(!listed.contains(&handles[0]) && !listed.contains("line 0"), "{shown}: {listed}");
    }
    let (read, is_error) = call(at, token, "recall", json!({"handle": handles[0]})).await;
    assert!(read.contains("line 0") && !is_error, "by its handle: {read:.100}");
}

#[tokio::test]
async fn of_texts_that_one_request_has_used_the_newest_are_listed_first() {
    let (mut upstream, abridge) = start("truncate_tool_results.max_bytes = 1000").await;
    let at = abridge.address();
    let mut texts: Vec<_> = (1..25).map(|n| format!("{n}\n").repeat(2000)).collect();
    offering(at, &mut upstream, ANN, RECALL, &texts).await;
    // Times are in seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    texts.push("new\n".repeat(2000));
    let all = handles(&offering(at, &mut upstream, ANN, RECALL, &texts).await);
    let (listed, _) = call(at, ANN, "list", json!({})).await;
    assert!(all.len() == 25 && listed.starts_with(&all[24]), "{listed}");
}

#[tokio::test]
async fn an_image_is_read_back_as_an_image() {
    let clearing = "clear_tool_results = { when = \"any\", trigger = { tokens = 500 }, keep = { results = 1 } }";
    let (mut upstream, abridge) = start(clearing).await;
    let at = abridge.address();
    let image = STANDARD
        .encode([b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x05\0\0\0\x03\x20\x08\x02\0\0\0".as_slice(), &[7; 9000]].concat());
    let shot = json!([{"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{image}")}}]);
    let call = |id: &str| {
        let function = json!({"name": "browse", "arguments": "{}"});
        json!({"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": function}]})
    };
    let body = json!({
        "model": "gpt-4o",
        "messages": [
            {"role": "user", "content": "look"},
            call("a"), {"role": "tool", "tool_call_id": "a", "content": shot},
            call("b"), {"role": "tool", "tool_call_id": "b", "content": "one"},
            call("c"), {"role": "tool", "tool_call_id": "c", "content": "two"},
        ],
        "tools": [{"type": "function", "function": {"name": RECALL}}],
    });
    let text = String::from_utf8(converse(at, &mut upstream, ANN, body.to_string()).await).unwrap();
    let [handle] = &handles(&text)[..] else { panic!("one handle: {text}") };
    let params = json!({"name": "recall", "arguments": {"handle": handle}});
    let result = result_of(at, NONE, "tools/call", params).await;
    let content = json!([{"type": "image", "data": image, "mimeType": "image/png"}]);
    assert_eq!((&result["content"], &result["isError"]), (&content, &json!(false)));
}

#[tokio::test]
async fn a_request_without_a_credential_lists_nothing_and_an_operator_everything() {
    let (mut upstream, abridge) = start("").await;
    let at = abridge.address();
    let ann = handles(&offering(at, &mut upstream, ANN, RECALL, &[long_text(1)]).await);
    for (tool, arguments) in [("list", json!({})), ("search", json!({"text": "line 4711"}))] {
        let (said, is_error) = call(at, NONE, tool, arguments.clone()).await;
        assert!(is_error && said.starts_with("send the key of the conversations"), "{said}");
        assert!(call(at, OPERATOR, tool, arguments).await.0.contains(&ann[0]), "{tool}");
    }
    assert!(!call(at, NONE, "recall", json!({"handle": ann[0]})).await.1, "there is one caller");
}

#[tokio::test]
async fn the_tool_that_controls_clearing_is_offered_where_the_settings_allow_it() {
    let (_upstream, abridge) = start("recall.controls = true").await;
    let at = abridge.address();
    let tools = result_of(at, NONE, "tools/list", json!({})).await;
    let tool = &tools["tools"][3];
    assert_eq!(
        (&tool["name"], &tool["_meta"]["anthropic/alwaysLoad"], &tools["tools"][4]),
        (&json!("control_context"), &json!(true), &Value::Null)
    );
    let pin = json!({"action": "pin", "result": "src/main.rs"});
    for (arguments, answer, is_error) in [
        (pin, "The newest result that fits is pinned from now on", false),
        (json!({"action": "compact", "result": null}), "Old results are cleared with your next turn", false),
        (json!({"action": "forget"}), "action must be pin or compact", true),
    ] {
        let (answered, was_error) = call(at, NONE, "control_context", arguments).await;
        assert!(answered.starts_with(answer) && was_error == is_error, "{answered}");
    }
    let (_upstream, abridge) = start("").await;
    let (refused, is_error) = call(abridge.address(), NONE, "control_context", json!({"action": "compact"})).await;
    assert!(is_error && refused.starts_with("there are recall, search and list"), "{refused}");
}

#[tokio::test]
async fn wrong_calls_and_wrong_requests_are_refused_with_a_reason() {
    let (_upstream, abridge) = start("").await;
    let at = abridge.address();
    for (tool, arguments, why) in [
        ("recall", json!({}), "recall takes handle"),
        ("recall", json!({"handle": "../x"}), "no payload has this handle"),
        ("recall", json!({"handle": "0".repeat(26), "lines": "9-1"}), "allowed: nothing, or one of"),
        ("search", json!({"text": ""}), "search takes text"),
        ("forget", json!({}), "there are recall, search and list"),
    ] {
        let (refused, is_error) = call(at, NONE, tool, arguments).await;
        assert!(is_error && refused.starts_with(why), "{refused}");
    }
    let long = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "x".repeat(65_536)}}).to_string();
    assert_eq!(send(at, &[], &long).await.head.status(), 413);
    assert!((400..500).contains(&send(at, &[], "{").await.head.status()));
    assert_eq!(send(at, &["origin: http://evil.example"], "{}").await.head.status(), 403);
    let mut client = Wire::connect(at).await;
    client.send(request("GET", MCP, &["accept: text/event-stream"])).await;
    assert_eq!(client.reply().await.head.status(), 405);
}

/// The revision of 2026-07-28 has neither sessions nor a handshake.
#[tokio::test]
async fn a_call_of_the_newest_revision_needs_no_handshake() {
    let (mut upstream, abridge) = start("").await;
    let at = abridge.address();
    let found = handles(&offering(at, &mut upstream, ANN, RECALL, &[long_text(1)]).await);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let arguments = json!({"handle": found[0], "lines": "1"});
    let params = json!({"name": "recall", "arguments": arguments, "_meta": meta});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let fields = ["mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", "mcp-name: recall"];
    let reply = send(at, &fields, &message).await;
    let answered = String::from_utf8_lossy(&reply.body);
    assert!(reply.head.status() == 200 && answered.contains("1: line 0 \u{e9}"), "{answered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_passes_messages_on_with_the_key_of_the_conversations() {
    let (mut upstream, abridge) = start("recall.auth = \"credential\"").await;
    let at = abridge.address();
    let found = handles(&offering(at, &mut upstream, ANN, RECALL, &[long_text(1)]).await);
    let ask = |url: String, key: &'static str| {
        let params = json!({"name": "recall", "arguments": {"handle": found[0], "lines": "1"}});
        let messages = [
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": params}),
        ];
        let lines = messages.iter().fold(String::new(), |lines, message| lines + &message.to_string() + "\n");
        let mut command = Command::new(binary());
        command.args(["mcp", "--at", &url, "--key-env", "KEY"]).env("KEY", key);
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        client.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let run = async |url: String, key| {
        let answered = tokio::task::block_in_place(|| ask(url, key));
        assert_eq!(answered.lines().count(), 1, "a notification has no answer: {answered}");
        serde_json::from_str::<Value>(&answered).unwrap()
    };
    let own = run(format!("http://{at}"), "sk-ann").await;
    assert!(own["id"] == 8 && own["result"]["content"][0]["text"].as_str().unwrap().starts_with("1: line 0"), "{own}");
    let foreign = run(format!("http://{at}"), "sk-bob").await;
    assert_eq!(foreign["result"]["isError"], true, "{foreign}");
    let nobody = run("http://127.0.0.1:1".to_owned(), "sk-ann").await;
    assert!(nobody["error"]["message"].as_str().unwrap().contains("nothing listens on"), "{nobody}");
}
