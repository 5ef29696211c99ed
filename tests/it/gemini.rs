//! Gemini's API: requests that are sent are valid by its rules, and the real binary reads path, key and answer.
//!
//! The rules are those of Google's documentation of function calling and thought signatures, and of the errors in
//! google-gemini/gemini-cli#16415.
#![expect(clippy::disallowed_types, reason = "a judge that shares no code with what it judges")]

use abridge_proxy::{dialect, planner::Planner, span::splice, tokens::Counter};
use proptest::prelude::*;
use serde_json::Value;

use crate::metrics::after;
use crate::reductions::STICKY;
use crate::support::scripts::{PATHS, body, with_gaps};
use crate::support::{Setup, Upstream, post};

fn count(content: Option<&Value>, key: &str) -> usize {
    let parts = content.and_then(|content| content["parts"].as_array());
    parts.into_iter().flatten().filter(|part| part.get(key).is_some()).count()
}

/// Why the API would refuse this request, if it would.
fn check(request: &Value) -> Result<(), String> {
    let contents = request["contents"].as_array().ok_or("no contents")?;
    for (n, content) in contents.iter().enumerate() {
        let (calls, next) = (count(Some(content), "functionCall"), contents.get(n + 1));
        if calls != count(next, "functionResponse") {
            return Err(format!("content {n}: {calls} calls, and another number of results"));
        }
        let parts = content["parts"].as_array().filter(|parts| !parts.is_empty()).ok_or("no parts")?;
        for result in parts.iter().filter_map(|part| part.get("functionResponse")) {
            if !result["response"].is_object() || result["name"].as_str().is_none_or(str::is_empty) {
                return Err(format!("content {n}: {result}"));
            }
        }
    }
    if count(contents.first(), "functionResponse") > 0 { Err("a result without a call".to_owned()) } else { Ok(()) }
}

/// The contents with a signature, in order: all their calls, texts and signatures.
fn signed(request: &Value) -> Vec<String> {
    let contents = request["contents"].as_array().into_iter().flatten();
    let signed = contents.filter(|content| count(Some(content), "thoughtSignature") > 0);
    let part = |part: &Value| {
        let [id, text, signature] = [&part["functionCall"]["id"], &part["text"], &part["thoughtSignature"]];
        format!("{id}{text}{signature}")
    };
    signed.map(|content| content["parts"].as_array().into_iter().flatten().map(part).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_is_sent_is_valid_and_each_call_keeps_its_signature(
        script in with_gaps(1..14),
        policy in prop::sample::select(STICKY.to_vec()),
    ) {
        let mut settings: abridge_proxy::planner::PlanSettings = toml::from_str(policy).unwrap();
        settings.tokens.counter = Counter::Estimate;
        let planner = Planner::new(settings);
        for n in &script.calls {
            let came = body(PATHS[3], "m", &script.items[..*n]);
            let plan = planner.plan(dialect::for_path(PATHS[3]).unwrap(), &came).unwrap();
            let sent: Value = serde_json::from_slice(&splice(&came, &plan.splices).concat()).unwrap();
            prop_assert_eq!(check(&sent), Ok(()), "{}\n{}", plan, sent);
            let came = signed(&serde_json::from_slice(&came).unwrap());
            for content in signed(&sent) {
                prop_assert!(came.contains(&content), "{content} is not as it came: {came:?}");
            }
        }
    }
}

const BODY: &str = r#"{"contents":[{"role":"user","parts":[{"text":"look"}]},{"role":"model","parts":[{"functionCall":{"name":"look","args":{}},"thoughtSignature":"c2ln"}]},{"role":"user","parts":[{"text":"and now?"}]}]}"#;

#[tokio::test]
async fn path_key_and_answers_are_read_and_missing_results_put_in() {
    let mut upstream = Upstream::start().await;
    let lines = format!(
        "[[upstreams]]\nname = \"gemini\"\nurl = \"{}\"\nwhen = {{ model = \"gemini-3*\" }}",
        upstream.origin()
    );
    let abridge = Setup::to("http://127.0.0.1:9").with(&lines).start().await;
    let event = |text: &str, end: &str| {
        format!(
            r#"{{"candidates":[{{"content":{{"parts":[{{"text":"{text}"}}]}}{end}}}],"usageMetadata":{{"promptTokenCount":70,"candidatesTokenCount":4,"thoughtsTokenCount":3}}}}"#
        )
    };
    let events = [event("a", ""), event("b", r#","finishReason":"STOP""#)];
    let sse = events.iter().map(|event| format!("data: {event}\r\n\r\n")).collect::<Vec<_>>().concat();
    let array = format!("[{}]", events.join("\n,\r\n"));
    let stream = "/v1beta/models/gemini-3-pro:streamGenerateContent";
    for (n, (target, kind, answer)) in [
        (format!("{stream}?alt=sse"), "text/event-stream", &sse),
        (stream.to_owned(), "application/json", &array),
        ("/v1/models/gemini-3-pro:generateContent".to_owned(), "application/json", &events[1]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = abridge.connect().await;
        client.send(post(&target, &["x-goog-api-key: k"], BODY)).await;
        let mut call = upstream.request().await;
        assert_eq!((call.head.target(), call.head.get("x-goog-api-key")), (&*target, Some("k")));
        let sent: Value = serde_json::from_slice(&call.bytes().await).unwrap();
        assert_eq!(check(&sent), Ok(()), "{sent}");
        let said = sent["contents"][2]["parts"][0]["functionResponse"]["response"]["error"].as_str().unwrap();
        assert!(said.contains("look") && said.contains("no result"), "{said}");
        call.answer("200 OK", &[&format!("content-type: {kind}"), "connection: close"], answer.as_bytes()).await;
        assert_eq!(client.reply().await.body, answer.as_bytes());
        let scrape = after(&abridge, n as u64 + 1).await;
        let billed = |kind: &str| {
            scrape.get(&format!("abridge_billed_tokens_total{{gen_ai_operation_name=\"chat\",gen_ai_request_model=\"gemini-3-pro\",type=\"{kind}\"}}"))
        };
        assert_eq!([billed("input"), billed("output")], [70, 7].map(|tokens| tokens * (n as u64 + 1)));
    }
    for counted in [BODY.to_owned(), format!(r#"{{"generateContentRequest":{BODY}}}"#)] {
        let mut client = abridge.connect().await;
        client.send(post("/v1beta/models/gemini-3-pro:countTokens", &["x-goog-api-key: k"], &counted)).await;
        let mut call = upstream.request().await;
        let sent: Value = serde_json::from_slice(&call.bytes().await).unwrap();
        assert_eq!(check(sent.get("generateContentRequest").unwrap_or(&sent)), Ok(()), "{sent}");
        call.answer("200 OK", &["connection: close"], br#"{"totalTokens":7}"#).await;
        assert_eq!(client.reply().await.body, &br#"{"totalTokens":7}"#[..]);
    }
}
