//! Images, files and sound in results, in every dialect.
#![expect(clippy::disallowed_types, reason = "messages are made here, and looked at by eyes of our own")]

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{always, policy};
use crate::{
    dialect,
    payload::{MediaType, Payload},
    plan::{Change, Plan},
    planner::{PlanSettings, Planner},
    span::splice,
};

/// A PNG of 1280 × 800 for its first bytes, as long as asked for.
fn png(len: usize) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x05\0\0\0\x03\x20".to_vec();
    bytes.extend((bytes.len()..len).map(|n| u8::try_from(n * 7 % 251).unwrap()));
    bytes
}

fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The parts of an image and of a file in each dialect, and its path.
fn parts(image: &[u8], file: &[u8]) -> [(&'static str, Value); 3] {
    let (image, file) = (base64(image), base64(file));
    let (image_url, file_url) =
        (format!("data:image/png;base64,{image}"), format!("data:application/pdf;base64,{file}"));
    let block = |kind: &str, media_type: &str, data: &str| json!({"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}});
    [
        (
            "/v1/chat/completions",
            json!([{"type": "image_url", "image_url": {"url": image_url}}, {"type": "file", "file": {"file_data": file_url}}]),
        ),
        (
            "/v1/responses",
            json!([{"type": "input_image", "image_url": image_url}, {"type": "input_file", "file_data": file_url}]),
        ),
        ("/v1/messages", json!([block("image", "image/png", &image), block("document", "application/pdf", &file)])),
    ]
}

/// A conversation in which a browser gives each of the contents, and the model has read all but the last.
fn browser(path: &str, contents: &[Value]) -> Bytes {
    let mut items = vec![json!({"role": "user", "content": "Look."})];
    for (n, content) in contents.iter().enumerate() {
        let id = format!("call_{n}");
        items.extend(match path {
            "/v1/chat/completions" => vec![
                json!({"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": {"name": "browser", "arguments": "{}"}}]}),
                json!({"role": "tool", "tool_call_id": id, "content": content}),
            ],
            "/v1/responses" => vec![
                json!({"type": "function_call", "call_id": id, "name": "browser", "arguments": "{}"}),
                json!({"type": "function_call_output", "call_id": id, "output": content}),
            ],
            _ => vec![
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "browser", "input": {}}]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": content}]}),
            ],
        });
    }
    let key = if path == "/v1/responses" { "input" } else { "messages" };
    json!({"model": "gpt-4o", key: items}).to_string().into()
}

/// The plan of a request to a path, and the body that it makes.
fn edited(path: &str, body: &Bytes, policy: &str) -> (Plan, Bytes) {
    let settings: PlanSettings = toml::from_str(policy).unwrap();
    let plan = Planner::new(settings).plan(dialect::for_path(path).unwrap(), body).unwrap();
    let output = splice(body, &plan.splices).concat().into();
    (plan, output)
}

fn stored(plan: &Plan) -> Vec<(Bytes, Option<MediaType>)> {
    let of = |payload: &Payload| (payload.bytes(), payload.media());
    plan.offloads.iter().map(|offload| of(&offload.payload)).collect()
}

const KEEP_NONE: &str = "keep = { results = 0 }\n";

#[test]
fn old_images_and_files_become_notices_and_are_stored_as_their_bytes_in_every_dialect() {
    let (image, file) = (png(5000), format!("%PDF-1.7 {}", "7".repeat(30_000)).into_bytes());
    for (path, parts) in parts(&image, &file) {
        let body = browser(path, &[parts.clone(), parts.clone()]);
        let (plan, output) = edited(path, &body, &always(KEEP_NONE));
        let expected = [(image.clone().into(), Some(MediaType::Png)), (file.clone().into(), Some(MediaType::Pdf))];
        assert!(stored(&plan) == expected, "{path}\n{plan}");
        let output = str::from_utf8(&output).unwrap();
        let kind = if path == "/v1/responses" { "input_text" } else { "text" };
        let notice = |n: usize, name: &str, len: usize, end: &str| {
            let handle = plan.offloads[n].key;
            format!(
                r#"{{"type":"{kind}","text":"[Cleared: {name} of {len} bytes from browser. Read it with GET http://h/abridge/recall/{handle} (binary: save it with curl -o FILE.{end}).]"}}"#
            )
        };
        let notices = [notice(0, "image/png", 5000, "png"), notice(1, "application/pdf", 30_009, "pdf")];
        assert!(output.contains(&format!("[{}]", notices.join(","))), "{output}");
        assert!(output.contains(&parts.to_string()), "what the model has not read stays as it was");
        let (again, _) = edited(path, &Bytes::copy_from_slice(output.as_bytes()), &always(KEEP_NONE));
        assert!(again.is_empty(), "{path} {again}");
    }
}

#[test]
fn with_clear_media_off_parts_stay_and_a_text_in_base64_is_stored_as_it_is() {
    let policy = always("keep = { results = 0 }\nclear_media = false\n");
    for (path, parts) in parts(&png(5000), &png(3000)) {
        let (plan, _) = edited(path, &browser(path, &[parts, json!("ok")]), &policy);
        assert!(plan.is_empty(), "{path} {plan}");
    }
    let url = format!("data:image/png;base64,{}", base64(&png(5000)));
    let body = |text: &str| browser("/v1/messages", &[json!(text), json!("ok")]);
    assert_eq!(stored(&edited("/v1/messages", &body(&url), &policy).0), [(url.clone().into(), None)]);
    assert_eq!(
        stored(&edited("/v1/messages", &body(&url), &always(KEEP_NONE)).0),
        [(png(5000).into(), Some(MediaType::Png))]
    );
}

#[test]
fn what_is_no_exact_base64_is_stored_as_the_text_that_it_is() {
    let lines = base64(&png(3000))
        .as_bytes()
        .chunks(76)
        .map(|line| str::from_utf8(line).unwrap())
        .collect::<Vec<_>>()
        .join("\n");
    let url = format!("data:image/png;base64,{lines}");
    let body =
        browser("/v1/chat/completions", &[json!([{"type": "image_url", "image_url": {"url": url}}]), json!("ok")]);
    let (plan, output) = edited("/v1/chat/completions", &body, &always(KEEP_NONE));
    assert_eq!(stored(&plan), [(Bytes::from(url.clone()), None)]);
    assert!(
        str::from_utf8(&output)
            .unwrap()
            .contains(&format!("[Cleared: text/plain of {} bytes from browser.", url.len()))
    );
}

#[test]
fn what_is_only_named_and_what_is_shorter_than_its_notice_stays() {
    for part in [
        json!({"type": "image", "source": {"type": "url", "url": "https://x/a.png"}}),
        json!({"type": "document", "source": {"type": "file", "file_id": "file_1"}}),
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64(&png(30))}}),
        json!({"type": "tool_reference", "tool_name": "x"}),
    ] {
        let body = browser("/v1/messages", &[json!([part]), json!("ok")]);
        assert!(edited("/v1/messages", &body, &always(KEEP_NONE)).0.is_empty(), "{part}");
    }
}

#[test]
fn the_screenshot_of_a_computer_stays() {
    let url = format!("data:image/png;base64,{}", base64(&png(5000)));
    let body = json!({"model": "computer-use-preview", "input": [
        {"role": "user", "content": "Look."},
        {"type": "computer_call", "id": "cu_1", "call_id": "c", "action": {"type": "screenshot"}, "status": "completed"},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": url}},
        {"role": "assistant", "content": "Seen."}, {"role": "user", "content": "Go on."},
    ]});
    assert!(edited("/v1/responses", &body.to_string().into(), &always(KEEP_NONE)).0.is_empty());
}

#[test]
fn a_mark_for_the_prompt_cache_goes_on_and_a_placeholder_of_the_settings_counts() {
    let mut part =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64(&png(900))}});
    part["cache_control"] = json!({"type": "ephemeral"});
    let body = browser("/v1/messages", &[json!([part]), json!("ok")]);
    let policy = always("keep = { results = 0 }\nplaceholder = '<{media_type} {bytes} {tool_name}>'\n");
    let output = edited("/v1/messages", &body, &policy).1;
    let part = r#"{"type":"text","text":"<image/png 900 browser>","cache_control":{"type":"ephemeral"}}"#;
    assert!(str::from_utf8(&output).unwrap().contains(part), "{output:?}");
}

/// Images of 1280 × 800 are 1105 tokens at OpenAI; their base64 is not text.
#[test]
fn the_trigger_counts_images_by_their_size() {
    let (image, path) = (png(20_000), "/v1/chat/completions");
    let part = parts(&image, b"")[0].1[0].clone();
    let shots = |n: usize| browser(path, &vec![json!([part]); n]);
    let policy = policy("trigger = { tokens = 10000 }\nclear_at_least = 0\n");
    let (below, _) = edited(path, &shots(8), &policy);
    assert!(below.is_empty() && below.report.tokens_before.unwrap() > 8 * 1105, "{below}");
    let (above, _) = edited(path, &shots(10), &policy);
    assert_eq!(above.report.changes.len(), 6, "{above}");
    let of = |change: &Change| change.tokens.unwrap();
    assert!(above.report.changes.iter().all(|change| of(change).before > 1105 && of(change).after < 120), "{above}");
}
