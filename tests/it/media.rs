//! Sessions of an agent with a browser: screenshots and files in tool results.
#![expect(clippy::disallowed_types, reason = "what is sent is made here, and looked at")]

use abridge_proxy::{
    conversation::{Pairing, Role},
    dialect,
    payload::MediaType,
    plan::Plan,
    planner::{PlanSettings, Planner},
    span::splice,
    tokens::Counter,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Scene, offloads::recalls, post, request, scripts::PATHS};

/// The kind of a part of a result.
#[derive(Clone, Debug)]
enum Part {
    Text(usize),
    /// A PNG for its first bytes.
    Image(Vec<u8>),
    File(Vec<u8>),
    /// An image whose base64 has line ends in it.
    Wrapped(Vec<u8>),
    Link,
}

/// A content: one text that is a data URL, or parts.
#[derive(Clone, Debug)]
enum Content {
    Url(Vec<u8>),
    Parts(Vec<Part>),
}

fn part() -> impl Strategy<Value = Part> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..900);
    prop_oneof![
        (0..200_usize).prop_map(Part::Text),
        bytes().prop_map(|rest| Part::Image(png(&rest))),
        bytes().prop_map(Part::File),
        bytes().prop_map(|rest| Part::Wrapped(png(&rest))),
        Just(Part::Link),
    ]
}

fn contents() -> impl Strategy<Value = Vec<Content>> {
    let content = prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..900).prop_map(|rest| Content::Url(png(&rest))),
        4 => prop::collection::vec(part(), 0..4).prop_map(Content::Parts),
    ];
    prop::collection::vec(content, 1..7)
}

/// A PNG of 1280 × 800 for its first bytes.
fn png(rest: &[u8]) -> Vec<u8> {
    [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x05\0\0\0\x03\x20\x08\x02\0\0\0", rest].concat()
}

fn url(media: &str, base64: &str) -> String {
    format!("data:{media};base64,{base64}")
}

impl Part {
    fn json(&self, path: &str) -> Value {
        let image = |base64: &str| match path {
            "/v1/chat/completions" => json!({"type": "image_url", "image_url": {"url": url("image/png", base64)}}),
            "/v1/responses" => json!({"type": "input_image", "image_url": url("image/png", base64)}),
            _ => json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64}}),
        };
        let link = "https://img.example/a.png";
        match (self, path) {
            (Self::Text(n), "/v1/responses") => json!({"type": "input_text", "text": "word ".repeat(*n)}),
            (Self::Text(n), _) => json!({"type": "text", "text": "word ".repeat(*n)}),
            (Self::Image(bytes), _) => image(&STANDARD.encode(bytes)),
            (Self::Wrapped(bytes), _) => image(&(STANDARD.encode(bytes) + "\n")),
            (Self::File(bytes), "/v1/chat/completions") => {
                json!({"type": "file", "file": {"filename": "a", "file_data": url("application/pdf", &STANDARD.encode(bytes))}})
            }
            (Self::File(bytes), "/v1/responses") => json!({"type": "input_file", "file_data": STANDARD.encode(bytes)}),
            (Self::File(bytes), _) => {
                json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": STANDARD.encode(bytes)}})
            }
            (Self::Link, "/v1/chat/completions") => json!({"type": "image_url", "image_url": {"url": link}}),
            (Self::Link, "/v1/responses") => json!({"type": "input_image", "image_url": link}),
            (Self::Link, _) => json!({"type": "image", "source": {"type": "url", "url": link}}),
        }
    }

    /// Returns what is stored of it, if it is cleared.
    fn payload(&self, path: &str) -> Option<Vec<u8>> {
        let wrapped = |bytes| STANDARD.encode(bytes) + "\n";
        match self {
            Self::Text(n) => Some("word ".repeat(*n).into()),
            Self::Image(bytes) | Self::File(bytes) => Some(bytes.clone()),
            Self::Wrapped(bytes) if path == "/v1/messages" => Some(wrapped(bytes).into()),
            Self::Wrapped(bytes) => Some(url("image/png", &wrapped(bytes)).into()),
            Self::Link => None,
        }
    }
}

impl Content {
    fn json(&self, path: &str) -> Value {
        match self {
            Self::Url(bytes) => json!(url("image/png", &STANDARD.encode(bytes))),
            Self::Parts(parts) => parts.iter().map(|part| part.json(path)).collect(),
        }
    }

    fn payloads(&self, path: &str) -> Vec<Vec<u8>> {
        match self {
            Self::Url(bytes) => vec![bytes.clone()],
            Self::Parts(parts) => parts.iter().filter_map(|part| part.payload(path)).collect(),
        }
    }
}

/// A session in which the model has read all contents but the last.
fn session(path: &str, contents: &[Content]) -> Bytes {
    let mut items = vec![json!({"role": "user", "content": "Look."})];
    for (n, content) in contents.iter().enumerate() {
        // No call repeats another one, which would double `keep`.
        let (id, content, input) = (format!("call_{n}"), content.json(path), json!({ "n": n }));
        let arguments = input.to_string();
        items.extend(match path {
            "/v1/chat/completions" => [
                json!({"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": {"name": "bash", "arguments": arguments}}]}),
                json!({"role": "tool", "tool_call_id": id, "content": content}),
            ],
            "/v1/responses" => [
                json!({"type": "function_call", "call_id": id, "name": "bash", "arguments": arguments}),
                json!({"type": "function_call_output", "call_id": id, "output": content}),
            ],
            _ => [
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "bash", "input": input}]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": content}]}),
            ],
        });
    }
    let mut body = match path {
        "/v1/chat/completions" => json!({"tools": [{"type": "function", "function": {"name": "bash"}}]}),
        "/v1/responses" => json!({"tools": [{"type": "function", "name": "bash"}]}),
        _ => json!({"max_tokens": 9, "tools": [{"name": "bash", "input_schema": {}}]}),
    };
    body["model"] = json!("gpt-4o");
    body[key(path)] = items.into();
    body.to_string().into()
}

fn key(path: &str) -> &'static str {
    if path == "/v1/responses" { "input" } else { "messages" }
}

fn planned(path: &str, body: &Bytes, policy: &str) -> (Plan, Bytes) {
    let mut settings: PlanSettings = toml::from_str(policy).unwrap();
    settings.tokens.counter = Counter::Estimate;
    let plan = Planner::new(settings).plan(dialect::for_path(path).unwrap(), body).unwrap();
    let output = splice(body, &plan.splices).concat().into();
    (plan, output)
}

/// The elements of a body, as they are written.
fn elements(path: &str, body: &Bytes) -> Vec<Bytes> {
    let conversation = dialect::for_path(path).unwrap().parse(body).unwrap();
    conversation.elements.iter().map(|element| body.slice(element.span.start..element.span.end)).collect()
}

/// The contents of the results of a body.
fn results(path: &str, body: &Bytes) -> Vec<Value> {
    let conversation = dialect::for_path(path).unwrap().parse(body).unwrap();
    assert!(Pairing::of(&conversation).calls.iter().all(|call| call.answered));
    let results = conversation.units.iter().filter(|unit| unit.role == Role::Tool);
    results.map(|unit| serde_json::from_slice(unit.content.unwrap().of(body)).unwrap()).collect()
}

fn is_notice(text: &Value) -> bool {
    text.as_str().is_some_and(|text| text.starts_with("[Cleared: "))
}

/// The wire formats whose results have media that may be cleared.
fn media_path() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&PATHS[..3])
}

proptest! {
    #[test]
    fn cleared_media_is_stored_to_the_byte_and_all_else_stays(
        path in media_path(),
        contents in contents(),
        keep in 0..3_usize,
        guard in any::<bool>(),
    ) {
        let policy = format!("[clear_tool_results]\nwhen = 'any'\ntrigger = {{ messages = 1 }}\nkeep = {{ results = {keep} }}\ngrowth_guard = {guard}");
        let body = session(path, &contents);
        let (plan, output) = planned(path, &body, &policy);
        let (before, after) = (results(path, &body), results(path, &output));
        prop_assert_eq!(before.len(), after.len());
        let mut expected: Vec<Vec<u8>> = Vec::new();
        for (n, (before, after)) in before.iter().zip(&after).enumerate() {
            let may_go = n + keep.max(1) < contents.len();
            prop_assert!(may_go || before == after, "{}", plan);
            let pairs: Vec<_> = match (before, after) {
                (Value::Array(before), Value::Array(after)) => {
                    prop_assert_eq!(before.len(), after.len());
                    before.iter().zip(after).map(|(before, after)| (before == after, is_notice(&after["text"]))).collect()
                }
                _ => vec![(before == after, is_notice(after))],
            };
            prop_assert!(pairs.iter().all(|(is_same, is_notice)| is_same != is_notice), "{}", plan);
            let Content::Parts(parts) = &contents[n] else {
                expected.extend(pairs[0].1.then(|| contents[n].payloads(path).remove(0)));
                continue;
            };
            let gone = parts.iter().zip(&pairs).filter(|(_, (_, is_notice))| *is_notice);
            expected.extend(gone.map(|(part, _)| part.payload(path).unwrap()));
            prop_assert!(guard || !may_go || parts.iter().zip(&pairs).all(|(part, (_, gone))| *gone || matches!(part, Part::Link)));
        }
        let mut stored: Vec<_> = plan.offloads.iter().map(|offload| offload.payload.bytes().to_vec()).collect();
        let named: usize = plan.report.changes.iter().map(|change| change.handles.len()).sum();
        prop_assert_eq!(named, expected.len());
        for all in [&mut stored, &mut expected] {
            all.sort();
            all.dedup();
        }
        prop_assert_eq!(stored, expected);
        prop_assert!(planned(path, &output, &policy).0.is_empty());
    }

    #[test]
    fn a_session_with_media_keeps_its_beginning_until_a_trigger_fires(path in media_path(), contents in contents(), tokens in 100..2000_usize) {
        let policy = format!("[clear_tool_results]\nwhen = 'any'\ntrigger = {{ tokens = {tokens} }}\nkeep = {{ results = 1 }}");
        let mut last: Option<(Plan, Vec<Bytes>)> = None;
        for n in 1..=contents.len() {
            let (plan, output) = planned(path, &session(path, &contents[..n]), &policy);
            let elements = elements(path, &output);
            if let Some((before, sent)) = last {
                let actions = |plan: &Plan| plan.report.changes.iter().map(|change| change.action).collect::<Vec<_>>();
                prop_assert!(actions(&plan).starts_with(&actions(&before)), "{}\n{}", before, plan);
                prop_assert!(actions(&plan) != actions(&before) || elements.starts_with(&sent), "{}\n{}", before, plan);
            }
            last = Some((plan, elements));
        }
    }

    #[test]
    fn with_clear_media_off_no_part_but_texts_is_cleared(path in media_path(), contents in contents()) {
        let policy = "[clear_tool_results]\nwhen = 'any'\ntrigger = { messages = 1 }\nkeep = { results = 0 }\nclear_media = false";
        let body = session(path, &contents);
        let (plan, output) = planned(path, &body, policy);
        prop_assert!(plan.offloads.iter().all(|offload| offload.payload.media().is_none()));
        for (content, after) in contents.iter().zip(results(path, &output)) {
            let Content::Parts(parts) = content else { continue };
            for (part, after) in parts.iter().zip(after.as_array().unwrap()) {
                prop_assert!(matches!(part, Part::Text(_)) || part.json(path) == *after);
            }
        }
    }
}

/// Sends a session as it grows; the last body that went upstream. No body has lost the last screenshot.
async fn browse(scene: &mut Scene, path: &str, shots: &[Content]) -> Bytes {
    let mut got = Bytes::new();
    for n in 1..=shots.len() {
        scene.client.send(post(path, &["content-type: application/json"], session(path, &shots[..n]))).await;
        let mut call = scene.upstream.request().await;
        got = call.bytes().await;
        call.json("{}").await;
        assert_eq!(scene.client.reply().await.head.status(), 200);
        assert_eq!(results(path, &got).last(), Some(&shots[n - 1].json(path)), "what was not read stays");
    }
    got
}

fn shots() -> Vec<(Vec<u8>, Content)> {
    let shot = |n: u8| png(&(0..90_000_u32).map(|at| at.to_le_bytes()[0].wrapping_mul(n)).collect::<Vec<_>>());
    (1..7).map(shot).map(|bytes| (bytes.clone(), Content::Parts(vec![Part::Text(2), Part::Image(bytes)]))).collect()
}

const CLEARING: &str = "trigger = { tokens = 4000 }, keep = { results = 2 }, clear_at_least = 0";

#[tokio::test]
async fn old_screenshots_are_recalled_as_images_in_every_dialect() {
    let (images, contents): (Vec<_>, Vec<_>) = shots().into_iter().unzip();
    for path in ["/v1/chat/completions", "/v1/responses", "/v1/messages"] {
        let folder = tempfile::tempdir().unwrap();
        let export = format!("recall = {{ via = \"http\", export_dir = {:?} }}", folder.path());
        let mut scene = Scene::with(&format!("clear_tool_results = {{ {CLEARING} }}\n{export}")).await;
        let got = browse(&mut scene, path, &contents).await;
        let targets = recalls(&got);
        assert!((2..=4).contains(&targets.len()), "{path} {targets:?}");
        for (target, image) in targets.iter().zip(&images) {
            scene.client.send(request("GET", target, &[])).await;
            let reply = scene.client.reply().await;
            let (handle, size) = (target.rsplit('/').next().unwrap(), image.len().to_string());
            let file = format!("attachment; filename=\"{handle}.png\"");
            assert_eq!((reply.head.status(), reply.body == image[..]), (200, true));
            for (name, value) in [
                ("content-type", "image/png"),
                ("x-content-type-options", "nosniff"),
                ("content-disposition", &file),
                ("x-abridge-size", &size),
            ] {
                assert_eq!(reply.head.get(name), Some(value));
            }
            assert!(std::fs::read(folder.path().join(format!("{handle}.png"))).unwrap() == *image);
        }
        scene.client.send(request("GET", &format!("{}?offset=1&limit=3", targets[0]), &[])).await;
        let part = scene.client.reply().await;
        assert_eq!((part.body.as_ref(), part.head.get("content-type")), (&b"PNG"[..], Some(MediaType::Bytes.name())));
    }
}

#[tokio::test]
async fn with_clear_media_off_screenshots_go_on_as_they_came() {
    let contents: Vec<_> = shots().into_iter().map(|(_, content)| content).collect();
    let mut scene = Scene::with(&format!("clear_tool_results = {{ {CLEARING}, clear_media = false }}")).await;
    let path = "/v1/chat/completions";
    assert_eq!(browse(&mut scene, path, &contents).await, session(path, &contents));
}
