//! Gateways call `POST /v1/compress` and `/v1/retrieve`.
#![expect(clippy::disallowed_types, reason = "what gateways say, made and read here")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::support::offloads::long_text;
use crate::support::scripts::{Item, Script, body, whole, with_gaps};
use crate::support::wire::Reply;
use crate::support::{Abridge, OPERATOR, Setup, Upstream, Wire, post, request};

mod failures;
mod originals;

const ON: &str = "compress.enabled = true";
const COMPRESS: &str = "/v1/compress";
const KEY: &str = "authorization: Bearer gateway";
/// Edits that act on short conversations.
const EAGER: &str = "tokens.counter = \"estimate\"\ntruncate_tool_results.max_bytes = 600\n\
    clear_tool_results = { when = 'any', trigger = { tokens = 400 }, keep = { results = 1 } }";

/// The answer, with its rows as they are written.
#[derive(Debug, Deserialize)]
struct Answer {
    messages: Vec<Box<RawValue>>,
    tokens_before: usize,
    tokens_after: usize,
    tokens_saved: usize,
    compression_ratio: f64,
    transforms_applied: Vec<String>,
    ccr_hashes: Vec<String>,
    compression_skipped: bool,
    skip_reason: Option<String>,
    abridge: Value,
}

impl Answer {
    fn rows(&self) -> Vec<&str> {
        self.messages.iter().map(|row| row.get()).collect()
    }

    fn text(&self) -> String {
        self.rows().concat()
    }
}

/// Bodies that are not requests.
const BAD: &str = r#"{
[]
{}
{"messages":1}
{"messages":null}
{"messages":[1]}
{"messages":[],"messages":[]}
{"messages":[],"config":{"mode":"x"}}
{"messages":[],"config":{"frozen_message_count":-1}}"#;

async fn serving(lines: &str) -> Abridge {
    Setup::to("http://127.0.0.1:9/v1").with(ON).with(lines).start().await
}

async fn ask(at: SocketAddr, message: impl AsRef<[u8]>) -> Reply {
    let mut client = Wire::connect(at).await;
    client.send(message).await;
    client.reply().await
}

async fn answer(at: SocketAddr, fields: &[&str], body: &str) -> Answer {
    let reply = ask(at, post(COMPRESS, fields, body)).await;
    let text = std::str::from_utf8(&reply.body).unwrap();
    assert_eq!((reply.head.status(), reply.head.get("content-type")), (200, Some("application/json")), "{text}");
    serde_json::from_str(text).unwrap()
}

/// Asks for the original of a hash; its content, or the status.
async fn original(at: SocketAddr, fields: &[&str], hash: &str) -> Result<String, u16> {
    let reply = ask(at, request("GET", &format!("/v1/retrieve/{hash}"), fields)).await;
    content(&reply, hash)
}

fn content(reply: &Reply, hash: &str) -> Result<String, u16> {
    let said: Value = serde_json::from_slice(&reply.body).unwrap();
    if reply.head.status() != 200 {
        assert!(said["error"]["type"].is_string() && said["error"]["message"].is_string(), "{said}");
        return Err(reply.head.status());
    }
    assert_eq!(said["hash"], hash);
    Ok(said["original_content"].as_str().unwrap().to_owned())
}

/// A request in CCR mode.
fn ccr(messages: &Value) -> String {
    json!({"messages": messages, "model": "gpt-4o", "config": {"mode": "ccr"}}).to_string()
}

/// A part of a conversation as `LiteLLM` sends it: results without their calls.
fn part(texts: &[String]) -> Value {
    let results = texts
        .iter()
        .enumerate()
        .map(|(n, text)| json!({"role": "tool", "tool_call_id": format!("c{n}"), "content": text}));
    std::iter::once(json!({"role": "user", "content": "go"})).chain(results).collect()
}

fn rows_of(body: &[u8], key: &str) -> Vec<String> {
    let body: Value = serde_json::from_slice(body).unwrap();
    body[key].as_array().unwrap().iter().map(Value::to_string).collect()
}

#[tokio::test]
async fn results_without_calls_are_shortened_in_place_and_read_back_by_their_hash() {
    let abridge = serving("").await;
    let at = abridge.address();
    let texts = [long_text(1), "short".to_owned(), long_text(2)];
    let sent = part(&texts);
    let told = answer(at, &[KEY], &ccr(&sent)).await;
    let before: Vec<_> = sent.as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(told.messages.len(), before.len());
    assert_eq!((told.rows()[0], told.rows()[2]), (before[0].as_str(), before[2].as_str()));
    assert_eq!(told.ccr_hashes.len(), 2);
    for (row, text) in [(1, &texts[0]), (3, &texts[2])] {
        let row: Value = serde_json::from_str(told.rows()[row]).unwrap();
        assert_eq!(row["role"], "tool");
        let content = row["content"].as_str().unwrap();
        let hash = told.ccr_hashes.iter().find(|hash| content.contains(&format!("headroom_retrieve (hash={hash})")));
        let hash = hash.expect("its hash is in the text and in the list");
        assert!(hash.len() == 24 && hash.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit)));
        assert_eq!(original(at, &[KEY], hash).await.as_ref(), Ok(text));
        let by_body = ask(at, post("/v1/retrieve", &[KEY], json!({ "hash": hash }).to_string())).await;
        assert_eq!(self::content(&by_body, hash).as_ref(), Ok(text));
        let queried = ask(at, request("GET", &format!("/v1/retrieve/{hash}?query=line"), &[KEY])).await;
        assert_eq!(self::content(&queried, hash).as_ref(), Ok(text));
    }
    assert_eq!(told.transforms_applied, ["truncate"]);
    assert!(told.tokens_before > told.tokens_after && told.compression_ratio < 1.0 && !told.compression_skipped);
    assert_eq!(told.tokens_saved, told.tokens_before - told.tokens_after);
    // What a proxied request would have repaired is named.
    let repairs = told.abridge["repairs"].as_array().unwrap();
    assert_eq!(repairs.len(), 3, "{repairs:?}");
    assert_eq!(told.abridge["report"]["changes"].as_array().unwrap().len(), 2);
    for unknown in ["0123456789abcdef01234567", "x", "..", "0123456789ABCDEF01234567"] {
        assert_eq!(original(at, &[KEY], unknown).await, Err(404), "{unknown}");
    }
}

#[tokio::test]
async fn rows_that_are_not_touched_keep_their_bytes_in_every_shape() {
    let abridge = serving(EAGER).await;
    let long = "line of it\\n".repeat(200);
    for (key, rows) in [
        (
            "messages",
            vec![
                "{ \"role\" : \"us\\u0065r\",\"content\":\"caf\\u00e9\" , \"x\" : 1.50 }".to_owned(),
                format!("{{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"{long}\"}}"),
            ],
        ),
        (
            "messages",
            vec![
                "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\" :\"go\"}]}".to_owned(),
                format!(
                    "{{\"role\":\"user\",\"content\":[{{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":\"{long}\"}}]}}"
                ),
            ],
        ),
        (
            "input",
            vec![
                "{\"role\":\"user\",\"content\" : \"go\"}".to_owned(),
                format!("{{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"{long}\"}}"),
            ],
        ),
    ] {
        let body = format!("{{\"{key}\" : [ {} ], \"config\":{{\"mode\":\"ccr\"}}}}", rows.join(" , "));
        let told = answer(abridge.address(), &[KEY], &body).await;
        assert_eq!(told.rows()[0], rows[0]);
        assert!(told.messages.len() == 2 && told.rows()[1].len() < rows[1].len(), "{}", told.text());
        let unescaped = long.replace("\\n", "\n");
        assert_eq!(original(abridge.address(), &[KEY], &told.ccr_hashes[0]).await, Ok(unescaped), "{key}");
    }
}

#[tokio::test]
async fn without_a_way_to_read_back_everything_comes_back_as_it_came() {
    let sent = part(&[long_text(1)]);
    let body = |config: Value| json!({"messages": sent, "config": config}).to_string();
    let folder = tempfile::tempdir().unwrap();
    let by_file = format!("recall = {{ via = \"file\", export_dir = {:?} }}", folder.path().display().to_string());
    let by_url = "recall = { via = \"http\", auth = \"handle\" }";
    for (lines, config, reason) in [
        ("", json!({}), Some("no_way_to_read_back")),
        ("", json!({"mode": "lossy_inline"}), Some("no_way_to_read_back")),
        ("recall.via = \"http\"", json!({}), Some("no_way_to_read_back")),
        ("store.enabled = false", json!({"mode": "ccr"}), Some("no_store")),
        ("dry_run = true", json!({"mode": "ccr"}), Some("dry_run")),
        (by_url, json!({}), None),
        (by_file.as_str(), json!({}), None),
    ] {
        let abridge = serving(lines).await;
        let told = answer(abridge.address(), &[KEY], &body(config)).await;
        assert_eq!((told.compression_skipped, told.skip_reason.as_deref()), (reason.is_some(), reason), "{lines}");
        let is_as_it_came = told.rows().concat() == rows_of(body(json!({})).as_bytes(), "messages").concat();
        assert_eq!(is_as_it_came, reason.is_some(), "{lines}");
        assert!(told.ccr_hashes.is_empty() && (reason.is_none() || told.tokens_saved == 0), "{lines}");
    }
    let exported = std::fs::read_dir(folder.path()).unwrap().filter_map(Result::ok).map(|file| file.path());
    assert!(exported.filter(|file| file.is_file()).any(|file| std::fs::read_to_string(file).unwrap() == long_text(1)));
}

#[tokio::test]
async fn what_a_gateway_asks_for_is_kept_to() {
    let abridge = serving(EAGER).await;
    let at = abridge.address();
    let text = "line of it\n".repeat(300);
    let sent = part(&[text.clone(), text.clone() + "2", text + "3"]);
    let whole = answer(at, &[KEY], &ccr(&sent)).await;
    for (n, expected) in [(0, 3), (2, 2), (3, 1), (4, 0), (99, 0)] {
        let body = json!({"messages": sent, "config": {"mode": "ccr", "frozen_message_count": n}}).to_string();
        let told = answer(at, &[KEY], &body).await;
        let before = rows_of(body.as_bytes(), "messages");
        assert_eq!(told.ccr_hashes.len(), expected, "{n}");
        for (row, (told, (whole, sent))) in
            told.rows().into_iter().zip(whole.rows().into_iter().zip(&before)).enumerate()
        {
            assert_eq!(told, if row < n { sent } else { whole }, "{n} {row}");
        }
    }
    for field in ["x-headroom-bypass: true", "x-abridge: off"] {
        let told = answer(at, &[KEY, field], &ccr(&sent)).await;
        assert_eq!((told.skip_reason.as_deref(), told.ccr_hashes.len()), (Some("bypass"), 0));
    }
    let empty = answer(at, &[KEY], "{\"messages\":[]}").await;
    assert_eq!((empty.messages.len(), empty.tokens_before, empty.compression_ratio), (0, 0, 1.0));
    assert!(!empty.compression_skipped);

    // A hash of an earlier answer is listed as long as a message has it.
    let again: Value = whole.rows().iter().map(|row| serde_json::from_str::<Value>(row).unwrap()).collect();
    let told = answer(at, &[KEY], &ccr(&again)).await;
    assert_eq!((told.text(), told.ccr_hashes), (whole.text(), whole.ccr_hashes));
}

#[tokio::test]
async fn what_is_not_a_request_is_refused_in_the_shape_of_the_contract() {
    let abridge = serving("server.max_body = \"4KiB\"").await;
    let long = format!("\"{}\"", "s".repeat(257));
    let session = format!("{{\"messages\":[],\"config\":{{\"session_id\":{long}}}}}");
    for body in BAD.lines().chain(["", &session]) {
        let reply = ask(abridge.address(), post(COMPRESS, &[KEY], body)).await;
        let said: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(
            (reply.head.status(), said["error"]["type"].as_str()),
            (400, Some("invalid_request")),
            "{body} {said}"
        );
        assert!(said["error"]["message"].as_str().is_some_and(|says| !says.contains("struct ")), "{body} {said}");
    }
    let reply = ask(abridge.address(), post(COMPRESS, &[KEY], " ".repeat(5000))).await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-error")), (413, Some("body_too_large")));
    for body in ["", "{}", "{\"hash\":1}", &format!("{{\"hash\":{long}, \"x\":\"{}\"}}", "x".repeat(4090))] {
        let reply = ask(abridge.address(), post("/v1/retrieve", &[KEY], body)).await;
        assert_eq!(reply.head.status(), 400, "{body}");
    }
    // What no dialect understands is returned as it came.
    let told = answer(abridge.address(), &[KEY], "{\"messages\":[{\"role\":7}],\"config\":{\"mode\":\"ccr\"}}").await;
    assert_eq!(told.rows(), ["{\"role\":7}"]);
}

#[tokio::test]
async fn an_overload_is_503_and_says_when_to_try_again() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(ON).with("server.max_in_flight = 1").start().await;
    let mut holds = abridge.connect().await;
    holds.send(request("GET", "/v1/models", &[])).await;
    let _held = upstream.request().await;
    for message in [
        post(COMPRESS, &[KEY], "{\"messages\":[]}"),
        request("GET", "/v1/retrieve/0123456789abcdef01234567", &[KEY]),
        post("/v1/retrieve", &[KEY], "{\"hash\":\"0123456789abcdef01234567\"}"),
    ] {
        let reply = ask(abridge.address(), message).await;
        assert_eq!((reply.head.status(), reply.head.get("retry-after")), (503, Some("1")));
        assert!(serde_json::from_slice::<Value>(&reply.body).unwrap()["error"]["message"].is_string());
    }
    upstream.no_more();
}

#[tokio::test]
async fn it_is_off_by_default_and_served_below_its_prefix_alone() {
    let mut upstream = Upstream::start().await;
    for (lines, target) in [
        ("", COMPRESS),
        ("compress = { enabled = true, prefix = \"/gateway\" }", COMPRESS),
        (ON, "/gateway/v1/compress"),
    ] {
        let abridge = Setup::before(&upstream).with(lines).start().await;
        let mut client = abridge.connect().await;
        client.send(post(target, &[KEY], "{\"messages\":[]}")).await;
        let mut call = upstream.request().await;
        assert_eq!(call.bytes().await, "{\"messages\":[]}");
        call.json("{}").await;
        client.reply().await;
    }
    let abridge = serving("compress.prefix = \"/gateway\"").await;
    let reply = ask(abridge.address(), post("/gateway/v1/compress", &[KEY], "{\"messages\":[]}")).await;
    assert_eq!(reply.head.status(), 200);
    for prefix in ["x", "/x/", "/", "/abridge", "/abridge/x", "/a?b", "/a b"] {
        let failed = Setup::to("http://127.0.0.1:9").with(format!("compress.prefix = {prefix:?}")).fail().await;
        assert!(failed.stderr.contains("prefix"), "{prefix}: {}", failed.stderr);
    }
}

#[tokio::test]
async fn other_machines_are_served_if_they_are_known() {
    const ANN_HASH: &str = "a3656c50c59b9dd17e7b7539929effb20169a63d77b0453e14162984b611c5f8";
    let outside = |abridge: &Abridge| SocketAddr::from(([127, 0, 0, 1], abridge.address().port()));
    let setup = || Setup::to("http://127.0.0.1:9").listen(&["0.0.0.0:0"]).with(ON);
    let abridge = setup().start().await;
    let reply = ask(outside(&abridge), post(COMPRESS, &[KEY], "{\"messages\":[]}")).await;
    assert_eq!(reply.head.status(), 404);
    assert!(String::from_utf8_lossy(&reply.body).contains("[clients]"));

    let abridge = setup().with(format!("clients.tokens = {{ ann = \"{ANN_HASH}\" }}")).start().await;
    let sent = ccr(&part(&[long_text(1)]));
    let mut hashes = BTreeSet::new();
    for field in ["authorization: Bearer token-of-ann", "x-headroom-proxy-token: token-of-ann"] {
        hashes.extend(answer(outside(&abridge), &[field], &sent).await.ccr_hashes);
    }
    assert_eq!(hashes.len(), 1, "one client, whichever field its token is in");
    let reply = ask(outside(&abridge), post(COMPRESS, &[KEY], &sent)).await;
    assert_eq!(reply.head.status(), 401);
    // A page in a browser is not a gateway.
    let abridge = serving("").await;
    let reply = ask(abridge.address(), post(COMPRESS, &["origin: http://evil.example"], "{\"messages\":[]}")).await;
    assert_eq!(reply.head.status(), 403);
}

#[tokio::test]
async fn no_key_and_no_text_is_logged_and_the_history_has_the_request() {
    let abridge = serving("log.level = \"trace\"").await;
    let text = format!("a-secret-text {}", long_text(1));
    let told = answer(abridge.address(), &["authorization: Bearer sk-secret-key"], &ccr(&part(&[text]))).await;
    assert!(original(abridge.address(), &["authorization: Bearer sk-secret-key"], &told.ccr_hashes[0]).await.is_ok());
    let status = ask(abridge.address(), request("GET", "/abridge/requests", &[OPERATOR])).await;
    let status = String::from_utf8(status.body.to_vec()).unwrap();
    assert!(status.contains("\"/v1/compress\"") && status.contains("\"truncate\""), "{status}");
    let log = abridge.stderr().join("\n");
    assert!(!log.contains("sk-secret-key") && !log.contains("a-secret-text") && !status.contains("a-secret-text"));
}

fn start(store: &Path, lines: &str) -> Setup {
    let path = format!("store.path = {:?}", store.join("store.redb").display().to_string());
    Setup::to("http://127.0.0.1:9/v1").with(ON).with(path).with(lines)
}

#[tokio::test]
async fn the_same_rows_get_the_same_texts_after_a_restart_and_a_late_row() {
    let store = tempfile::tempdir().unwrap();
    let texts: Vec<_> = (0..6).map(|n| format!("<{n}>") + &"line of it\n".repeat(100 * n)).collect();
    let sent = part(&texts);
    let mut earlier: Option<Vec<String>> = None;
    for _ in 0..2 {
        let abridge = start(store.path(), EAGER).start().await;
        let at = abridge.address();
        // The user's row arrives late, as LiteLLM withholds it while it is the last one.
        for n in 2..=7 {
            let rows: Value = sent.as_array().unwrap()[1..n].to_vec().into();
            let short = answer(at, &[KEY], &ccr(&rows)).await;
            let rows: Value = sent.as_array().unwrap()[..n].to_vec().into();
            let late = answer(at, &[KEY], &ccr(&rows)).await;
            assert_eq!(late.rows()[1..], short.rows()[..]);
            if let Some(earlier) = &earlier {
                assert_eq!(earlier[..n], late.rows()[..], "{n}");
            }
        }
        let told = answer(at, &[KEY], &ccr(&sent)).await;
        assert!(told.ccr_hashes.len() > 3);
        for hash in &told.ccr_hashes {
            assert!(texts.contains(&original(at, &[KEY], hash).await.unwrap()));
        }
        earlier = Some(told.rows().into_iter().map(str::to_owned).collect());
        abridge.signal("TERM");
        abridge.exit().await;
    }
}

/// The rows of a script as a gateway sends them: all, or as `LiteLLM` does.
fn gateway_rows(script: &Script, path: &str, is_part: bool, end: usize) -> (String, Vec<String>) {
    let items: Vec<Item> = script.items[..end].to_vec();
    let items = items.into_iter().filter(|item| !is_part || matches!(item, Item::User(_) | Item::Result { .. }));
    let key = if path.ends_with("responses") { "input" } else { "messages" };
    let body = body(path, "gpt-4o", &items.collect::<Vec<_>>());
    let rows = rows_of(&body, key);
    (format!("{{\"{key}\":[{}],\"config\":{{\"mode\":\"ccr\"}}}}", rows.join(",")), rows)
}

#[tokio::test]
async fn generated_conversations_keep_their_rows_and_lose_nothing() {
    let (store, again) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let abridge = start(store.path(), EAGER).start().await;
    let (mut runner, mut n_shortened) = (TestRunner::deterministic(), 0);
    let mut seen = Vec::new();
    for case in 0..36 {
        let (path, is_part) = (["/v1/chat/completions", "/v1/messages", "/v1/responses"][case % 3], case % 2 == 0);
        let script = if is_part {
            with_gaps(1..16).new_tree(&mut runner).unwrap().current()
        } else {
            whole(1..16).new_tree(&mut runner).unwrap().current()
        };
        let tenant = format!("x-headroom-affinity: {case}");
        let fields = [KEY, tenant.as_str()];
        let mut before: Option<(Answer, Vec<String>)> = None;
        for &end in &script.calls {
            let (body, sent) = gateway_rows(&script, path, is_part, end);
            let told = answer(abridge.address(), &fields, &body).await;
            assert_eq!(told.messages.len(), sent.len());
            for (row, sent) in told.rows().into_iter().zip(&sent) {
                if row == sent {
                    continue;
                }
                n_shortened += 1;
                assert!(row.len() < sent.len());
                let [row, sent]: [Value; 2] = [row, sent].map(|json| serde_json::from_str(json).unwrap());
                assert_eq!((&row["role"], &row["type"]), (&sent["role"], &sent["type"]));
                assert!(row.to_string().contains("hash="), "{row}");
            }
            let listed: BTreeSet<_> = told.ccr_hashes.iter().cloned().collect();
            let text = told.text();
            let shown = text.split("hash=").skip(1).map(|after| after.get(..24).unwrap().to_owned()).collect();
            assert_eq!(listed, shown);
            // As long as the rows are those of the request before: without the model's, nothing but their texts decides;
            // with them, what was cleared stays so.
            if let Some((before, sent_before)) = &before {
                let same = sent_before.iter().zip(&sent).take_while(|(before, now)| before == now).count();
                for (before, now) in before.rows().into_iter().zip(told.rows()).take(same) {
                    assert!(before == now || (!is_part && now.len() < before.len()), "{path}: {before} became {now}");
                }
            }
            seen.push((fields.map(str::to_owned), body, text));
            before = Some((told, sent));
        }
        let Some((last, _)) = before else { continue };
        let texts: BTreeSet<_> = script
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Result { text, .. } => Some(text.clone()),
                _ => None,
            })
            .collect();
        for hash in &last.ccr_hashes {
            assert!(texts.contains(&original(abridge.address(), &fields, hash).await.unwrap()), "{path} {hash}");
        }
    }
    assert!(n_shortened > 100, "{n_shortened}");
    // The same in another process, on a copy of the store.
    abridge.signal("TERM");
    abridge.exit().await;
    std::fs::copy(store.path().join("store.redb"), again.path().join("store.redb")).unwrap();
    let (one, other) = (start(store.path(), EAGER).start().await, start(again.path(), EAGER).start().await);
    for (n, (fields, body, text)) in seen.iter().enumerate() {
        let at = if n % 2 == 0 { one.address() } else { other.address() };
        let fields = [fields[0].as_str(), fields[1].as_str()];
        assert_eq!(&answer(at, &fields, body).await.text(), text);
    }
}
