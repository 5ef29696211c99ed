//! Several upstreams behind one abridge: which requests go where, and with which keys.
#![expect(clippy::disallowed_types, reason = "a judge that shares no code with what it judges")]

use crate::metrics::scrape;
use crate::support::bodies::{DANGLING, PLAIN, assert_patched};
use crate::support::offloads::with_results;
use crate::support::wire::{Head, Reply};
use crate::support::{Abridge, ClosedPort, OPERATOR, Setup, Upstream, chat, post, request, within};

const MESSAGES: &str = "{\"model\":\"claude-opus-5\",\"max_tokens\":1,\"messages\":[]}";
const VERSION: &str = "anthropic-version: 2023-06-01";

/// Two upstreams, and abridge in front of both.
struct Crossing {
    openai: Upstream,
    anthropic: Upstream,
    abridge: Abridge,
}

impl Crossing {
    /// With these lines in the configuration, after the table of the second upstream.
    async fn with(table: &str) -> Self {
        Self::set_up(table, |setup| setup).await
    }

    async fn set_up(table: &str, more: impl FnOnce(Setup) -> Setup) -> Self {
        let (openai, anthropic) = (Upstream::start().await, Upstream::start().await);
        let lines = format!("[[upstreams]]\nname = \"anthropic\"\nurl = {:?}\n{table}", anthropic.origin());
        let abridge = more(Setup::before(&openai)).with(lines).start().await;
        Self { openai, anthropic, abridge }
    }

    /// Sends a request that is to reach the first upstream; the head that arrives, and the body.
    async fn reach_openai(&mut self, request: impl AsRef<[u8]>) -> (Head, Vec<u8>) {
        let received = pass(&self.abridge, &mut self.openai, request).await;
        self.anthropic.no_more();
        received
    }

    /// The same for the second upstream.
    async fn reach_anthropic(&mut self, request: impl AsRef<[u8]>) -> (Head, Vec<u8>) {
        let received = pass(&self.abridge, &mut self.anthropic, request).await;
        self.openai.no_more();
        received
    }
}

async fn pass(abridge: &Abridge, upstream: &mut Upstream, request: impl AsRef<[u8]>) -> (Head, Vec<u8>) {
    let mut client = abridge.connect().await;
    client.send(request).await;
    let mut call = upstream.request().await;
    let body = if call.head.get("content-length").is_some() { call.bytes().await.to_vec() } else { Vec::new() };
    call.answer("200 OK", &["connection: close"], if call.head.start.starts_with("HEAD") { "" } else { "{}" }).await;
    assert_eq!(client.head().await.status(), 200);
    (call.head.clone(), body)
}

/// The answer to a request that no upstream gets.
async fn answered(abridge: &Abridge, request: impl AsRef<[u8]>) -> Reply {
    let mut client = abridge.connect().await;
    client.send(request).await;
    client.reply().await
}

fn get(target: &str, fields: &[&str]) -> Vec<u8> {
    request("GET", target, fields)
}

fn messages(target: &str, fields: &[&str]) -> Vec<u8> {
    post(target, &[&["content-type: application/json", VERSION], fields].concat(), MESSAGES)
}

// === which requests go where ===

#[tokio::test]
async fn one_abridge_serves_codex_and_claude_code() {
    let mut crossing = Crossing::with("").await;
    let (head, body) = crossing.reach_openai(chat(DANGLING)).await;
    assert_eq!(head.target(), "/v1/chat/completions");
    assert_patched(&body);
    assert_eq!(crossing.reach_openai(post("/v1/responses", &[], "{}")).await.0.target(), "/v1/responses");
    for target in ["/v1/messages?beta=true", "/v1/messages/count_tokens?beta=true", "/v1/messages/batches"] {
        let (head, body) = crossing.reach_anthropic(messages(target, &[])).await;
        assert_eq!((head.target(), &*body), (target, MESSAGES.as_bytes()));
    }
    // The list of models is each client's own.
    assert_eq!(crossing.reach_openai(get("/v1/models", &[])).await.0.target(), "/v1/models");
    let listing = "/v1/models?limit=1000";
    assert_eq!(crossing.reach_anthropic(get(listing, &[VERSION])).await.0.target(), listing);
    assert_eq!(crossing.reach_anthropic(get("/api/hello", &[])).await.0.target(), "/api/hello");
    assert_eq!(crossing.reach_openai(request("HEAD", "/", &[])).await.0.target(), "/v1/");
}

#[tokio::test]
async fn the_first_table_whose_conditions_hold_gets_the_request() {
    let (mut house, mut blue) = (Upstream::start().await, Upstream::start().await);
    let mut default = Upstream::start().await;
    let tables = format!(
        "[[upstreams]]\nname = \"house\"\nurl = {:?}\nstrip_path = \"/house\"\n\
         when = [{{ path = \"/house\" }}, {{ model = \"house-*\" }}]\n\
         [[upstreams]]\nname = \"blue\"\nurl = {:?}\nwhen = {{ header = \"x-team: blue\" }}",
        house.url(),
        blue.url()
    );
    let abridge = Setup::before(&default).with(tables).start().await;
    let asks = PLAIN.replace("\"model\":\"m\"", "\"model\":\"house-7b\"");
    assert_ne!(asks, PLAIN);
    let post_to = |target, fields: &[&str], body: &str| post(target, fields, body);
    // By the model, which is read only where the conversation is.
    let (head, _) = pass(&abridge, &mut house, post_to("/v1/chat/completions", &["x-team: blue"], &asks)).await;
    assert_eq!(head.target(), "/v1/chat/completions");
    pass(&abridge, &mut blue, post_to("/v1/chat/completions", &["x-team: blue", "x-abridge: off"], &asks)).await;
    pass(&abridge, &mut default, post_to("/v1/chat/completions", &["x-abridge: off"], &asks)).await;
    pass(&abridge, &mut blue, post_to("/v1/chat/completions", &["x-team: blue"], PLAIN)).await;
    pass(&abridge, &mut default, post_to("/v1/chat/completions", &["x-team: red"], PLAIN)).await;
    // A body that cannot be read names no model.
    pass(&abridge, &mut default, post_to("/v1/chat/completions", &["content-encoding: zip"], &asks)).await;
    // By the path, whose beginning is taken off.
    let (head, _) = pass(&abridge, &mut house, get("/house/v1/models?x=%20", &[])).await;
    assert_eq!(head.target(), "/v1/models?x=%20");
    pass(&abridge, &mut default, get("/houses", &[])).await;
    for upstream in [&mut house, &mut blue, &mut default] {
        upstream.no_more();
    }
}

#[tokio::test]
async fn a_flag_adds_an_upstream_or_replaces_the_url_of_one() {
    let (mut openai, mut one, mut other) = (Upstream::start().await, Upstream::start().await, Upstream::start().await);
    let abridge = Setup::before(&openai).argument(format!("--upstream=anthropic={}", one.origin())).start().await;
    pass(&abridge, &mut one, messages("/v1/messages", &[])).await;
    pass(&abridge, &mut openai, chat(PLAIN)).await;

    let table = format!(
        "[[upstreams]]\nname = \"house\"\nurl = {:?}\nwhen = {{ path = \"/\" }}\nheaders = {{ X-House = \"1\" }}",
        one.origin()
    );
    let setup = Setup::before(&openai).with(table).argument("--upstream").argument(format!("house={}", other.origin()));
    let (head, _) = pass(&setup.start().await, &mut other, chat(PLAIN)).await;
    assert_eq!(head.get("x-house"), Some("1"), "all else is as the file says");
    one.no_more();
}

#[tokio::test]
async fn wrong_settings_of_an_upstream_are_named() {
    let table = |lines: &str| format!("[[upstreams]]\n{lines}");
    let good = "name = \"anthropic\"\nurl = \"http://localhost:1\"";
    for (lines, key, said) in [
        ("name = \"house\"\nurl = \"http://localhost:1\"", "upstreams.0.name", "does not say which requests go there"),
        ("name = \"default\"\nurl = \"http://localhost:1\"", "upstreams.0.name", "is the name of [upstream]"),
        ("name = \"A B\"\nurl = \"http://localhost:1\"", "upstreams.0.name", "is no name"),
        ("name = \"anthropic\"", "upstreams", "\"url\" is missing"),
        (&format!("{good}\n[[upstreams]]\n{good}"), "upstreams.1.name", "is there twice"),
        (&format!("{good}\nwhen = {{}}"), "upstreams.when", "at least one of path, dialect, model and header"),
        (&format!("{good}\nwhen = {{ path = \"v1\" }}"), "upstreams.when", "a path begins with /"),
        (&format!("{good}\nwhen = {{ dialect = \"cohere\" }}"), "upstreams.when.dialect", "messages"),
        (&format!("{good}\nwhen = {{ header = \"a b\" }}"), "upstreams.when.header", "name: value"),
        (&format!("{good}\nheaders = {{ host = \"h\" }}"), "upstreams.0.headers.host", "abridge sets this header"),
        (&format!("{good}\napi_key_env = \"sk-1\""), "upstreams.0.api_key_env", "not the name of an environment"),
        (&format!("{good}\napi_key_env = \"NOT_SET\""), "NOT_SET", "api_key_env of [[upstreams]] \"anthropic\""),
        (&format!("{good}\nstrip_path = \"x\""), "upstreams.0.strip_path", "not a path"),
    ] {
        let failed = Setup::to("http://localhost:1/v1").with(table(lines)).fail().await;
        assert_eq!(failed.status.code(), Some(78), "{lines}: {failed:?}");
        assert!(failed.stderr.to_lowercase().contains(key.to_lowercase().as_str()), "{key} is not named: {failed:?}");
        assert!(failed.stderr.contains(said), "{said}: {failed:?}");
        assert_eq!(failed.stderr.lines().count(), 1, "{failed:?}");
    }
    for flag in ["house=http://h", "anthropic=h", "http://h --upstream http://i", "=http://h"] {
        let setup = Setup::to("http://localhost:1/v1");
        let arguments = flag.split(" --upstream ").flat_map(|flag| ["--upstream", flag]);
        let failed = arguments.fold(setup, Setup::argument).fail().await;
        assert_eq!(failed.status.code(), Some(64), "{flag}: {failed:?}");
        assert!(failed.stderr.contains("--upstream"), "{flag}: {failed:?}");
    }
}

// === keys ===

#[tokio::test]
async fn the_keys_and_headers_of_one_upstream_never_go_to_another() {
    let mut crossing =
        Crossing::set_up("api_key_env = \"ANTHROPIC_KEY\"\nheaders = { x-gate-b = \"CANARY-B\" }", |setup| {
            let setup = setup.with("upstream.api_key_env = \"OPENAI_KEY\"");
            let setup = setup.with("upstream.headers = { x-gate-a = \"CANARY-A\" }");
            setup.environment("OPENAI_KEY", "CANARY-OPENAI").environment("ANTHROPIC_KEY", "CANARY-ANTHROPIC")
        })
        .await;
    let client = ["authorization: Bearer CANARY-CLIENT", "x-api-key: CANARY-CLIENT-2", "api-key: CANARY-CLIENT-3"];
    let canaries = |head: &Head| {
        let canary = |(name, value): &(String, String)| value.contains("CANARY").then(|| format!("{name}: {value}"));
        head.fields.iter().filter_map(canary).collect::<Vec<_>>()
    };
    let (mut openai, mut anthropic) = (Vec::new(), Vec::new());
    let body = post("/v1/chat/completions", &client, DANGLING);
    openai.push(crossing.reach_openai(body).await.0);
    openai.push(crossing.reach_openai(get("/v1/models", &client)).await.0);
    anthropic.push(crossing.reach_anthropic(messages("/v1/messages", &client)).await.0);
    anthropic.push(crossing.reach_anthropic(get("/v1/models", &[&[VERSION], &client[..]].concat())).await.0);
    for head in openai {
        let mut found = canaries(&head);
        found.sort();
        assert_eq!(found, ["authorization: Bearer CANARY-OPENAI", "x-gate-a: CANARY-A"]);
    }
    for head in anthropic {
        let mut found = canaries(&head);
        found.sort();
        assert_eq!(found, ["x-api-key: CANARY-ANTHROPIC", "x-gate-b: CANARY-B"]);
    }
    assert!(!crossing.abridge.stderr().join("\n").contains("CANARY"));
}

#[tokio::test]
async fn without_keys_of_the_settings_the_client_s_own_go_to_the_upstream_of_its_request() {
    let mut crossing = Crossing::with("").await;
    let client = ["authorization: Bearer sk-1", "x-api-key: sk-2"];
    let heads = [
        crossing.reach_openai(post("/v1/chat/completions", &client, PLAIN)).await.0,
        crossing.reach_anthropic(messages("/v1/messages", &client)).await.0,
    ];
    for head in heads {
        assert_eq!((head.get("authorization"), head.get("x-api-key")), (Some("Bearer sk-1"), Some("sk-2")));
    }
}

#[tokio::test]
async fn what_claude_code_sends_arrives_as_it_was() {
    let mut crossing = Crossing::with("").await;
    let fields = [
        "anthropic-beta: claude-code-20250219,context-1m-2025-08-07",
        "anthropic-beta: an-unknown-one-2031-01-01",
        "anthropic-dangerous-direct-browser-access: true",
        "anthropic-workspace-id: wrkspc_1",
        "X-Claude-Code-Session-Id: 0b1c",
        "X-Claude-Code-Agent-Id: a1",
        "X-Claude-Code-Parent-Agent-Id: p1",
        "x-app: cli",
    ];
    for target in ["/v1/messages?beta=true", "/v1/messages/count_tokens"] {
        let (head, body) = crossing.reach_anthropic(messages(target, &fields)).await;
        let raw = String::from_utf8(head.raw.to_vec()).unwrap();
        for field in fields.iter().chain([&VERSION]) {
            assert!(raw.contains(&format!("\r\n{field}\r\n")), "{field}: {raw}");
        }
        assert_eq!(body, MESSAGES.as_bytes());
    }
}

#[tokio::test]
async fn refusals_of_an_upstream_arrive_word_for_word() {
    let mut crossing = Crossing::with("").await;
    let said = "{\"type\":\"error\", \"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"},\"request_id\":\"req_1\"}\n";
    for status in ["529 Overloaded", "400 Bad Request", "413 Payload Too Large", "503 Service Unavailable"] {
        let mut client = crossing.abridge.connect().await;
        client.send(messages("/v1/messages", &[])).await;
        let mut call = crossing.anthropic.request().await;
        call.bytes().await;
        call.answer(status, &["content-type: application/json", "request-id: req_1", "connection: close"], said).await;
        let reply = client.reply().await;
        assert!(status.starts_with(&reply.head.status().to_string()), "{status}");
        assert_eq!(reply.body, said.as_bytes());
        assert_eq!((reply.head.get("request-id"), reply.head.get("x-abridge-error")), (Some("req_1"), None));
    }
}

// === what is told of them ===

#[tokio::test]
async fn errors_name_the_upstream_and_its_setting() {
    let closed = ClosedPort::new();
    let upstream = Upstream::start().await;
    let table = format!("[[upstreams]]\nname = \"anthropic\"\nurl = \"http://{}\"", closed.address());
    let abridge = Setup::before(&upstream).with(table).start().await;
    let reply = answered(&abridge, messages("/v1/messages", &[])).await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-error")), (502, Some("upstream_connect")));
    let body = String::from_utf8(reply.body.to_vec()).unwrap();
    assert!(body.contains("upstream \\\"anthropic\\\": no connection to the upstream"), "{body}");
    assert!(body.contains("url of [[upstreams]] \\\"anthropic\\\" or --upstream anthropic=URL"), "{body}");
    let line = abridge.says("answered with an error", 0).await;
    assert!(line.contains("anthropic"), "{line}");
}

#[tokio::test]
async fn status_metrics_and_history_have_the_name_of_the_upstream() {
    let mut crossing = Crossing::with("").await;
    crossing.reach_openai(chat(PLAIN)).await;
    for _ in 0..2 {
        crossing.reach_anthropic(messages("/v1/messages", &[])).await;
    }
    let counted = async {
        loop {
            let scrape = scrape(&crossing.abridge).await;
            if scrape.sum("abridge_upstream_requests_total") == 3 {
                return scrape;
            }
        }
    };
    within("the counts", counted).await;
    let status = answered(&crossing.abridge, get("/abridge/status", &[OPERATOR, "connection: close"])).await;
    let status: serde_json::Value = serde_json::from_slice(&status.body).unwrap();
    let expected = serde_json::json!([
        { "name": "default", "url": crossing.openai.url(), "answered": 1, "failed": 0 },
        { "name": "anthropic", "url": format!("{}/", crossing.anthropic.origin()), "answered": 2, "failed": 0 },
    ]);
    assert_eq!(status["upstreams"], expected);
    let requests = answered(&crossing.abridge, get("/abridge/requests", &[OPERATOR, "connection: close"])).await;
    let requests: serde_json::Value = serde_json::from_slice(&requests.body).unwrap();
    let requests = requests["requests"].as_array().unwrap();
    let found = requests.iter().find(|request| request["path"] == "/v1/chat/completions").unwrap();
    assert_eq!(found["upstream"], "default");
}

#[tokio::test]
async fn a_reload_changes_upstreams_and_running_answers_go_on() {
    let (openai, anthropic) = (Upstream::start().await, Upstream::start().await);
    let abridge = Setup::before(&openai).start().await;
    let mut crossing = Crossing { openai, anthropic, abridge };
    crossing.reach_openai(messages("/v1/messages", &[])).await;

    let table = format!("[[upstreams]]\nname = \"anthropic\"\nurl = {:?}", crossing.anthropic.origin());
    let reload = async |abridge: &Abridge, lines: &str, said: &str| {
        let from = abridge.stderr().len();
        abridge.reload_with(lines);
        abridge.says(said, from).await;
    };
    reload(&crossing.abridge, &table, "settings reloaded").await;
    let mut client = crossing.abridge.connect().await;
    client.send(messages("/v1/messages", &[])).await;
    let mut call = crossing.anthropic.request().await;
    call.bytes().await;
    call.begin_stream().await;
    client.head().await;

    reload(&crossing.abridge, &table.replace("anthropic", "house"), "not reloaded").await;
    crossing.reach_anthropic(messages("/v1/messages", &[])).await;
    reload(&crossing.abridge, "", "settings reloaded").await;
    call.send_chunk("data: 1\n\n").await;
    assert_eq!(client.chunk().await.unwrap(), "data: 1\n\n");
    call.end_stream().await;
    crossing.reach_openai(messages("/v1/messages", &[])).await;
}

// === policies ===

#[tokio::test]
async fn an_upstream_may_have_a_policy_of_its_own() {
    let (mut default, mut house) = (Upstream::start().await, Upstream::start().await);
    let table = format!(
        "[[upstreams]]\nname = \"house\"\nurl = {:?}\nwhen = {{ path = \"/house\" }}\nstrip_path = \"/house\"\npolicy = \"cut\"",
        house.url()
    );
    let setup = Setup::before(&default).with("truncate_tool_results.notice = \"short\"");
    let policy = "policies.cut = { policy = { edits = [\"truncate_tool_results\"] }, truncate_tool_results = { max_bytes = 9000 } }";
    let abridge = setup.with(policy).with(table).start().await;
    let chat_at = |target, body: &str| post(target, &["content-type: application/json"], body);
    let (_, body) = pass(&abridge, &mut default, chat_at("/v1/chat/completions", DANGLING)).await;
    assert_patched(&body);
    let (_, body) = pass(&abridge, &mut house, chat_at("/house/v1/chat/completions", DANGLING)).await;
    assert_eq!(body, DANGLING.as_bytes(), "the policy patches nothing");
    let long = with_results(&["x ".repeat(10_000)]);
    let (_, body) = pass(&abridge, &mut default, chat_at("/v1/chat/completions", &long)).await;
    assert_eq!(body, long.as_bytes(), "50,000 bytes are the limit here");
    let (_, body) = pass(&abridge, &mut house, chat_at("/house/v1/chat/completions", &long)).await;
    assert!(body.len() < 10_000, "{}", body.len());
}

#[tokio::test]
async fn wrong_policies_are_named() {
    let table = "[[upstreams]]\nname = \"anthropic\"\nurl = \"http://localhost:1\"\npolicy = \"cut\"";
    for (policy, key, said) in [
        ("", "upstreams.0.policy", "there is no policies.cut"),
        ("experiment = { share = 0.1, policy = \"bare\" }", "experiment.policy", "allowed: \"none\", or the name"),
        ("policies.cut = { server = { workers = 2 } }", "policies.cut.server", "is no table of a policy"),
        ("policies.cut = { policy = { edits = 3 } }", "policies.cut.policy.edits", "3"),
        ("policies.cut = { summarize = { timeout = \"0s\" } }", "summarize.timeout", "out of range"),
    ] {
        let failed = Setup::to("http://localhost:1/v1").with(policy).with(table).fail().await;
        assert_eq!(failed.status.code(), Some(78), "{policy}: {failed:?}");
        assert!(failed.stderr.contains(key) && failed.stderr.contains(said), "{key}, {said}: {failed:?}");
    }
}

// === errors by abridge itself ===

#[tokio::test]
async fn errors_have_the_shape_of_the_dialect_of_the_path() {
    // Paths whose dialect this build knows; all others have the shape of the first one.
    let paths = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/batches"];
    let speaks_messages = abridge_proxy::dialect::for_path("/v1/messages").is_some();
    let (openai, mut anthropic) = (Upstream::start().await, Upstream::start().await);
    let closed = ClosedPort::new();
    let tables = |url: &str| format!("[[upstreams]]\nname = \"all\"\nurl = {url:?}\nwhen = {{ path = \"/v1\" }}");
    let check = |path: &str, status: u16, code: &str, reply: &Reply| {
        assert_eq!((reply.head.status(), reply.head.get("x-abridge-error")), (status, Some(code)), "{path}");
        assert_eq!(reply.head.get("content-type"), Some("application/json"));
        let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert!(body["error"]["message"].as_str().is_some_and(|said| said.starts_with("abridge: ")), "{body}");
        if path.contains("messages") && speaks_messages {
            assert_eq!(body["type"], "error", "{path} {body}");
            assert!(body["error"]["type"].is_string(), "{body}");
        } else {
            assert_eq!(body["error"]["code"], code, "{path} {body}");
        }
    };
    let setup = Setup::before(&openai).with("server.max_body = \"1KiB\"").with("server.max_in_flight = 1");
    let setup = setup.with("upstream.first_byte_timeout = \"200ms\"").with(tables(&anthropic.origin()));
    let abridge = setup.start().await;
    for path in paths {
        if abridge_proxy::dialect::for_path(path).is_some() {
            check(path, 413, "body_too_large", &answered(&abridge, post(path, &[], "x".repeat(2000))).await);
        }
        let mut client = abridge.connect().await;
        client.send(post(path, &[], "{}")).await;
        let mut call = anthropic.request().await;
        call.bytes().await;
        check(path, 503, "overloaded", &answered(&abridge, post(path, &[], "{}")).await);
        check(path, 504, "upstream_timeout", &client.reply().await);
    }
    let abridge = Setup::before(&openai).with(tables(&closed.url())).start().await;
    for path in paths {
        check(path, 502, "upstream_connect", &answered(&abridge, post(path, &[], "{}")).await);
    }
}
