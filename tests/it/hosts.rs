//! Claude at Vertex AI and Amazon Bedrock, and Azure's deployments: paths that name the model. The bodies and paths are those of
//! Anthropic's SDKs for Python (2.14.0), the frames those of botocore's documentation of event streams.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::metrics::after;
use crate::support::upstream::Exchange;
use crate::support::wire::Reply;
use crate::support::{Abridge, OPERATOR, Setup, Upstream, post, request};

const VERTEX: &str = "/v1/projects/p/locations/us-east5/publishers/anthropic/models/claude-opus-4-5@20251101";
const BEDROCK: &str = "/model/us.anthropic.claude-opus-4-5-20251101-v1%3A0";
const BEARER: &str = "authorization: Bearer k";

/// A conversation with tools whose last call has no result.
fn body(version: &str) -> String {
    format!(
        r#"{{"anthropic_version":"{version}","max_tokens":1024,"tools":[{{"name":"look","input_schema":{{"type":"object"}}}}],"messages":[{{"role":"user","content":"look"}},{{"role":"assistant","content":[{{"type":"tool_use","id":"toolu_1","name":"look","input":{{}}}}]}},{{"role":"user","content":"and now?"}}]}}"#
    )
}

/// A frame of AWS's event stream with an event of Messages. Its checksums are not checked here.
fn frame(event: &str) -> Vec<u8> {
    let payload = format!(r#"{{"bytes":"{}","p":"abcd"}}"#, BASE64_STANDARD.encode(event));
    let headers = b"\x0b:event-type\x07\x00\x05chunk";
    let length = 12 + headers.len() + payload.len() + 4;
    let number = |n: usize| u32::try_from(n).unwrap().to_be_bytes();
    [&number(length)[..], &number(headers.len()), &[0; 4], headers, payload.as_bytes(), &[0; 4]].concat()
}

struct Host {
    upstream: Upstream,
    abridge: Abridge,
}

impl Host {
    async fn new(lines: &str) -> Self {
        let upstream = Upstream::start().await;
        let abridge = Setup::to(upstream.origin()).with(lines).start().await;
        Self { upstream, abridge }
    }

    /// Sends a request, and answers it so.
    async fn ask(
        &mut self,
        target: &str,
        shown: &str,
        body: &str,
        kind: &str,
        answer: &[u8],
    ) -> (Exchange, Vec<u8>, Reply) {
        let mut client = self.abridge.connect().await;
        client.send(post(target, &[shown], body)).await;
        let mut call = self.upstream.request().await;
        assert_eq!(call.head.target(), target);
        let sent = call.bytes().await.to_vec();
        call.answer("200 OK", &[&format!("content-type: {kind}"), "connection: close"], answer).await;
        (call, sent, client.reply().await)
    }

    /// What abridge says of itself, without white space.
    async fn get(&self, path: &str) -> String {
        let mut client = self.abridge.connect().await;
        client.send(request("GET", path, &[OPERATOR])).await;
        String::from_utf8(client.reply().await.body.to_vec()).unwrap().replace([' ', '\n'], "")
    }
}

/// The tokens, input and output, that are counted for a model after so many requests.
pub(crate) async fn billed(abridge: &Abridge, n_requests: u64, model: &str) -> [u64; 2] {
    let scrape = after(abridge, n_requests).await;
    ["input", "output"].map(|kind| {
        scrape.get(&format!(
            "abridge_billed_tokens_total{{gen_ai_operation_name=\"chat\",gen_ai_request_model=\"{model}\",type=\"{kind}\"}}"
        ))
    })
}

fn is_patched(body: &[u8]) -> bool {
    let text = str::from_utf8(body).unwrap();
    text.contains(r#""tool_use_id":"toolu_1""#) && !text.contains("cache_control") && !text.contains("abridge_recall")
}

#[tokio::test]
async fn vertex_is_edited_and_its_path_names_the_model() {
    let mut host = Host::new("").await;
    let events = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":70,\"output_tokens\":1}}}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":7}}\n\n"
    );
    let target = format!("{VERTEX}:streamRawPredict?beta=true");
    let body = body("vertex-2023-10-16");
    let (_, sent, reply) = host.ask(&target, BEARER, &body, "text/event-stream", events.as_bytes()).await;
    assert!(is_patched(&sent), "{sent:?}");
    assert_eq!(reply.body, events);
    assert_eq!(billed(&host.abridge, 1, "claude-opus-4-5@20251101").await, [70, 7]);
}

#[tokio::test]
async fn bedrock_streams_frames_that_are_relayed_and_read() {
    let mut host = Host::new("").await;
    let frames = [
        frame(r#"{"type":"message_start","message":{"usage":{"input_tokens":70,"output_tokens":1}}}"#),
        frame(r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}"#),
        frame(r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}"#),
    ]
    .concat();
    let target = format!("{BEDROCK}/invoke-with-response-stream");
    let body = body("bedrock-2023-05-31");
    let kind = "application/vnd.amazon.eventstream";
    let (_, sent, reply) = host.ask(&target, BEARER, &body, kind, &frames).await;
    assert!(is_patched(&sent), "{sent:?}");
    assert_eq!(reply.body, frames);
    assert_eq!(reply.head.get("content-type"), Some(kind));
    assert_eq!(billed(&host.abridge, 1, "us.anthropic.claude-opus-4-5-20251101-v1:0").await, [70, 7]);

    // A request of another maker's model is sent as it came.
    let target = "/model/meta.llama3-70b-instruct-v1:0/invoke";
    let (_, sent, _) = host.ask(target, BEARER, &body, "application/json", b"{}").await;
    assert_eq!(sent, body.as_bytes());
}

#[tokio::test]
async fn a_summary_of_a_streamed_conversation_at_bedrock_comes_as_a_whole() {
    let host = Host::new("").await;
    let Host { mut upstream, abridge } = host;
    let turn = |n: usize| {
        let answer = format!("answer {n}. ").repeat(60);
        format!(r#"{{"role":"user","content":"question {n}"}},{{"role":"assistant","content":"{answer}"}},"#)
    };
    let turns: String = (0..6).map(turn).collect();
    let body = format!(
        r#"{{"anthropic_version":"bedrock-2023-05-31","max_tokens":1024,"messages":[{turns}{{"role":"user","content":"the last"}}]}}"#
    );
    let mut client = abridge.connect().await;
    client.send(post(&format!("/abridge/summarize{BEDROCK}/invoke-with-response-stream"), &[BEARER], &body)).await;
    let mut call = upstream.request().await;
    assert_eq!(call.head.target(), format!("{BEDROCK}/invoke"));
    let asked = call.bytes().await;
    assert!(asked.starts_with(br#"{"anthropic_version":"bedrock-2023-05-31""#), "{asked:?}");
    call.json(r#"{"content":[{"type":"text","text":"<summary>They talked.</summary>"}],"stop_reason":"end_turn","usage":{"input_tokens":900,"output_tokens":20}}"#).await;
    let reply = client.reply().await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-summary")), (200, Some("made")));
}

#[tokio::test]
async fn a_signed_request_is_sent_as_it_came_unless_abridge_has_a_key() {
    let signed = "authorization: AWS4-HMAC-SHA256 Credential=AKID/20261126/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=00";
    let (target, body) = (format!("{BEDROCK}/invoke"), body("bedrock-2023-05-31"));
    let mut host = Host::new("").await;
    for _ in 0..2 {
        let (_, sent, _) = host.ask(&target, signed, &body, "application/json", b"{}").await;
        assert_eq!(sent, body.as_bytes());
    }
    let said = host.abridge.says("AWS Signature Version 4", 0).await;
    assert!(said.contains("CLAUDE_CODE_SKIP_BEDROCK_AUTH=1"), "{said}");
    assert_eq!(host.abridge.stderr().iter().filter(|line| line.contains("AWS Signature Version 4")).count(), 1);

    let upstream = Upstream::start().await;
    let setup = Setup::to(upstream.origin()).with("upstream.api_key_env = \"BEDROCK_KEY\"");
    let abridge = setup.environment("BEDROCK_KEY", "ours").start().await;
    let mut host = Host { upstream, abridge };
    let (call, sent, _) = host.ask(&target, signed, &body, "application/json", b"{}").await;
    assert!(is_patched(&sent), "{sent:?}");
    assert_eq!(call.head.all("authorization"), ["Bearer ours"]);
}

#[tokio::test]
async fn a_deployment_of_azure_is_the_model_of_a_body_that_names_none() {
    let mut host = Host::new("").await;
    let target = "/openai/deployments/our-gpt/chat/completions?api-version=2024-10-21";
    let answer = br#"{"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":7}}"#;
    let body = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
    let (_, sent, _) = host.ask(target, "api-key: k", body, "application/json", answer).await;
    assert_eq!(sent, body.as_bytes());
    assert_eq!(billed(&host.abridge, 1, "our-gpt").await, [70, 7]);
}

#[tokio::test]
async fn a_deployment_has_the_window_and_the_prices_of_the_model_that_it_is_an_alias_of() {
    let mut host = Host::new("models = [{ match = \"our-*\", alias_of = \"gpt-5.4\" }]").await;
    let answer = br#"{"choices":[],"usage":{"prompt_tokens":2000,"completion_tokens":100}}"#;
    let names = ["our-gpt", "gpt-5.4"];
    for (n, name) in names.into_iter().enumerate() {
        let target = format!("/openai/deployments/{name}/chat/completions?api-version=2024-10-21");
        let body = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
        host.ask(&target, "api-key: k", body, "application/json", answer).await;
        after(&host.abridge, n as u64 + 1).await;
    }
    let scrape = after(&host.abridge, 2).await;
    // $2.50 and $15 for a million tokens.
    let costs = names.map(|name| scrape.get(&format!("abridge_cost_microdollars_total{{model=\"{name}\"}}")));
    assert_eq!(costs, [6500, 6500]);
    let told = host.get("/abridge/ledger?days=3&by=model").await;
    assert_eq!(names.map(|name| told.matches(name).count()), [1, 1], "{told}");
    assert_eq!(told.matches("\"edited_cost\":6500000").count(), 2, "{told}");
    let status = host.get("/abridge/status").await;
    for name in names {
        assert!(status.contains(&format!("{{\"model\":\"{name}\",\"tokens\":1050000")), "{status}");
    }
}

#[tokio::test]
async fn bound_thinking_is_left_out_before_a_pass_wherever_the_model_is_named() {
    let lines = "models = [{ match = \"our-claude\", alias_of = \"claude-opus-5-5\" }]\n\
        clear_tool_results = { trigger = { tokens = 4000 }, keep = { results = 1 }, keep_reads = 0, clear_at_least = 0 }\n\
        policy.edits = [\"clear_tool_results\"]";
    let mut host = Host::new(lines).await;
    let round = |n: usize| {
        format!(
            r#"{{"role":"assistant","content":[{{"type":"thinking","thinking":"","signature":"s{n}"}},{{"type":"tool_use","id":"t{n}","name":"look","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t{n}","content":"{}"}}]}},"#,
            format!("line {n} of it, ").repeat(400)
        )
    };
    let rounds: String = (0..8).map(round).collect();
    let messages = format!(
        r#""max_tokens":9,"messages":[{{"role":"user","content":"go"}},{rounds}{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}}]}}"#
    );
    let vertex = VERTEX.replace("opus-4-5@20251101", "opus-5-5");
    let bedrock = BEDROCK.replace("opus-4-5-20251101", "opus-5-5-20260901");
    for (target, named, binds) in [
        ("/v1/messages".to_owned(), r#""model":"claude-opus-4-5","#, false),
        ("/v1/messages".to_owned(), r#""model":"claude-opus-5-5","#, true),
        ("/anthropic/v1/messages".to_owned(), r#""model":"our-claude","#, true),
        (format!("{VERTEX}:rawPredict"), "", false),
        (format!("{vertex}:rawPredict"), "", true),
        (format!("{bedrock}/invoke"), "", true),
    ] {
        let (_, sent, _) = host.ask(&target, BEARER, &format!("{{{named}{messages}"), "application/json", b"{}").await;
        let sent = String::from_utf8(sent).unwrap();
        assert!(sent.matches("[Cleared: ").count() >= 6, "{target}: {sent}");
        assert_eq!(sent.matches("signature").count(), if binds { 0 } else { 8 }, "{target} {named}");
    }
}

#[tokio::test]
async fn a_request_is_signed_anew_with_a_key_of_aws() {
    let theirs = "authorization: AWS4-HMAC-SHA256 Credential=AKID/20261126/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=00";
    let (target, body) = (format!("{BEDROCK}/invoke"), body("bedrock-2023-05-31"));
    let upstream = Upstream::start().await;
    let setup = |key: &str| {
        let lines = "upstream.api_key_env = \"BEDROCK_KEY\"\nupstream.api_key_header = \"aws-sigv4\"";
        Setup::to(upstream.origin()).with(lines).environment("BEDROCK_KEY", key)
    };
    let failed = setup("no-key-of-AWS").fail().await;
    assert!(failed.stderr.contains("ACCESS_KEY_ID:SECRET_ACCESS_KEY"), "{}", failed.stderr);
    assert!(!failed.stderr.contains("no-key-of-AWS"), "{}", failed.stderr);

    let abridge = setup("AKOURS:sEcReT:toKen").start().await;
    let mut host = Host { upstream, abridge };
    let (call, sent, _) = host.ask(&target, theirs, &body, "application/json", b"{}").await;
    assert!(is_patched(&sent), "{sent:?}");
    let [signed] = call.head.all("authorization")[..] else { panic!("{:?}", call.head) };
    let day = call.head.get("x-amz-date").unwrap().split('T').next().unwrap().to_owned();
    let begin = format!("AWS4-HMAC-SHA256 Credential=AKOURS/{day}/us-east-1/bedrock/aws4_request, SignedHeaders=");
    assert!(signed.starts_with(&begin), "{signed}");
    assert_eq!(call.head.all("x-amz-security-token"), ["toKen"]);
    let said = host.abridge.stderr().join("\n");
    assert!(!said.contains("sEcReT") && !said.contains("Signature Version 4"), "{said}");
}
