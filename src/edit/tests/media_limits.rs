//! Requests keep within the images that their host accepts.
#![expect(clippy::disallowed_types, reason = "bodies are written here")]

use std::time::Instant;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::{dialect, replay::planner_from_toml, span::splice};

/// The settings, at a host that takes 100 images.
const SETTINGS: &str = "upstream = \"api.anthropic.com\"\nrecall = { via = \"http\", public_url = \"http://h\" }";

/// A PNG of this size, in base64.
fn png(side: u32, n: usize) -> String {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend(side.to_be_bytes());
    bytes.extend(side.to_be_bytes());
    bytes.extend(format!("image number {n:08}").as_bytes());
    bytes.resize(600, 0);
    STANDARD.encode(bytes)
}

/// A call and its result, an image and a text, in the dialect of a path.
fn round(path: &str, n: usize, data: &str) -> Vec<Value> {
    let (id, url) = (format!("c{n}"), format!("data:image/png;base64,{data}"));
    match path {
        "/v1/messages" => {
            let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
            let call = json!({"type": "tool_use", "id": id, "name": "shoot", "input": {}});
            let result =
                json!({"type": "tool_result", "tool_use_id": id, "content": [image, {"type": "text", "text": "ok"}]});
            vec![json!({"role": "assistant", "content": [call]}), json!({"role": "user", "content": [result]})]
        }
        "/v1/responses" => {
            let output = json!([{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "ok"}]);
            vec![
                json!({"type": "function_call", "call_id": id, "name": "shoot", "arguments": "{}"}),
                json!({"type": "function_call_output", "call_id": id, "output": output}),
            ]
        }
        _ => {
            let call = json!({"id": id, "type": "function", "function": {"name": "shoot", "arguments": "{}"}});
            let content = json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "ok"}]);
            vec![
                json!({"role": "assistant", "content": null, "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": id, "content": content}),
            ]
        }
    }
}

/// The messages of each request of a session in which each call returns one of the images.
fn sent(path: &str, images: &[String]) -> Vec<Value> {
    sent_under(SETTINGS, path, images)
}

fn sent_under(settings: &str, path: &str, images: &[String]) -> Vec<Value> {
    let planner = planner_from_toml(settings).unwrap();
    let array = if path == "/v1/responses" { "input" } else { "messages" };
    let mut items = vec![json!({"role": "user", "content": "Go."})];
    let mut requests = Vec::new();
    for (n, data) in images.iter().enumerate() {
        items.extend(round(path, n, data));
        let bytes = Bytes::from(json!({"model": "m", "max_tokens": 9, array: items}).to_string());
        let plan = planner.plan(dialect::for_path(path).unwrap(), &bytes).unwrap();
        let sent: Value = serde_json::from_slice(&splice(&bytes, &plan.splices).concat()).unwrap();
        requests.push(sent[array].clone());
    }
    requests
}

fn n_images(request: &Value) -> usize {
    request.to_string().matches("iVBORw0KGgo").count()
}

const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

#[test]
fn no_request_has_more_images_than_the_host_takes_and_few_beginnings_change() {
    let images: Vec<_> = (0..230).map(|n| png(64, n)).collect();
    for path in PATHS {
        let requests = sent(path, &images);
        let counts: Vec<_> = requests.iter().map(n_images).collect();
        assert!(counts.iter().all(|n| *n <= 100), "{path}: {counts:?}");
        assert_eq!(counts[..100], (1..=100).collect::<Vec<_>>(), "{path}: nothing is cleared before");
        assert!(counts[100..].iter().all(|n| *n >= 50), "{path}: {counts:?}");
        let changes = requests.windows(2).filter(|pair| {
            let [earlier, later] = pair else { return false };
            let earlier = earlier.as_array().unwrap();
            later.as_array().unwrap()[..earlier.len()] != earlier[..]
        });
        assert_eq!(changes.count(), 3, "{path}");
        let last = requests.last().unwrap().to_string();
        assert!(last.contains(&images[229]), "{path}: the newest is there");
        assert!(last.contains("image/png of 600 bytes"), "{path}: {last:.900}");
        assert_eq!(last.matches("\"ok\"").count(), 230, "{path}: texts stay");
    }
}

#[test]
fn large_images_leave_where_there_are_more_than_twenty() {
    let images: Vec<_> = (0..30).map(|n| png(if n % 7 == 3 { 2500 } else { 64 }, n)).collect();
    for path in PATHS {
        let requests = sent(path, &images);
        let counts: Vec<_> = requests.iter().map(n_images).collect();
        assert_eq!(counts[..20], (1..=20).collect::<Vec<_>>(), "{path}");
        assert_eq!(counts[20..], [18, 19, 20, 21, 22, 22, 23, 24, 25, 26], "{path}");
    }
}

/// An upstream that is not known has asked for it.
#[test]
fn images_leave_where_the_form_of_few_images_is_asked_for() {
    let settings = "upstream = \"gateway\"\npolicy.forms = [\"few_images\"]\nrecall = { via = \"http\", public_url = \"http://h\" }";
    let images: Vec<_> = (0..110).map(|n| png(64, n)).collect();
    for path in PATHS {
        let counts: Vec<_> = sent_under(settings, path, &images).iter().map(n_images).collect();
        assert_eq!(counts[99..102], [100, 50, 51], "{path}");
        let unlimited = settings.replace("few_images", "filled");
        assert_eq!(n_images(sent_under(&unlimited, path, &images).last().unwrap()), 110, "{path}");
    }
}

/// Images of the user count, also beside a result.
#[test]
fn images_beside_results_count_and_stay() {
    let planner = planner_from_toml(SETTINGS).unwrap();
    let mut messages = vec![json!({"role": "user", "content": "Go."})];
    for n in 0..60 {
        let [call, mut result] = <[Value; 2]>::try_from(round("/v1/messages", n, &png(64, n))).unwrap();
        let source = json!({"type": "base64", "media_type": "image/png", "data": png(64, 1000 + n)});
        result["content"].as_array_mut().unwrap().push(json!({"type": "image", "source": source}));
        messages.extend([call, result]);
        let bytes = Bytes::from(json!({"model": "m", "max_tokens": 9, "messages": messages}).to_string());
        let plan = planner.plan(dialect::for_path("/v1/messages").unwrap(), &bytes).unwrap();
        let sent: Value = serde_json::from_slice(&splice(&bytes, &plan.splices).concat()).unwrap();
        assert_eq!(plan.report.changes.is_empty(), n < 50, "{n}");
        assert!(n_images(&sent) <= 100, "{n}");
        assert!((0..=n).all(|n| sent.to_string().contains(&png(64, 1000 + n))), "those of the user stay");
    }
}

#[test]
fn any_number_of_images_takes_linear_time() {
    let time = |n: usize| {
        let planner = planner_from_toml(SETTINGS).unwrap();
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
        let rounds = (0..n).flat_map(|n| {
            let call =
                json!({"id": format!("c{n}"), "type": "function", "function": {"name": "shoot", "arguments": "{}"}});
            let result = json!({"role": "tool", "tool_call_id": format!("c{n}"), "content": [image]});
            [json!({"role": "assistant", "content": null, "tool_calls": [call]}), result]
        });
        let bytes = Bytes::from(json!({"model": "m", "messages": rounds.collect::<Vec<_>>()}).to_string());
        let began = Instant::now();
        let plan = planner.plan(dialect::default(), &bytes).unwrap();
        assert!(plan.report.counts().iter().any(|(edit, _)| *edit == "clear"), "{plan}");
        began.elapsed()
    };
    let (few, many) = (time(2_000), time(16_000));
    assert!(many < few * 32, "{few:?} {many:?}");
}
