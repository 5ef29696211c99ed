//! Any text, cut at any limit, is its beginning, a notice that says how much is missing, and its end; it is never longer
//! than it was, nor than the limit and its notice.
//!
//! The input is nine bytes of settings and a text.

use abridge_proxy::edit::tools::{Limits, Tool, Truncate};
use abridge_proxy::edit::truncate_tool_results;
use abridge_proxy::planner::{EditName, PlanSettings, Settings};
use abridge_proxy::span::splice;
use bytes::Bytes;
use serde_json::{Value, json};

use super::{dialect, planner};

const NOTICE: &str = "⟦{left_out} of {bytes} bytes: {handle}. {how}⟧";

/// From this byte on, the text is taken more than once. Mostly it is not, so that there are many texts a second.
const MORE_THAN_ONCE: u8 = 224;

/// Cuts a text alone, and as one of two.
pub fn run(input: &[u8]) {
    let Some((&[flags, times, split, sizes @ ..], text)) = input.split_first_chunk::<9>() else { return };
    let text = String::from_utf8_lossy(text).repeat(usize::from(times.saturating_sub(MORE_THAN_ONCE)) + 1);
    let size = |n: usize| usize::from(u16::from_le_bytes([sizes[2 * n], sizes[2 * n + 1]]));
    let flag = |bit: u8| flags >> bit & 1 == 1;
    let limits = Limits { max_bytes: Some(size(0)), head: flag(0).then(|| size(1)), tail: flag(1).then(|| size(2)) };
    let texts = if flag(2) {
        let (first, second) = text.split_at(text.floor_char_boundary(text.len() * usize::from(split) / 256));
        vec![first, second]
    } else {
        vec![text.as_str()]
    };
    check(limits, &texts);
}

fn check(limits: Limits, texts: &[&str]) {
    let body = Bytes::from(request(texts).to_string());
    let truncate_tool_results = truncate_tool_results::Settings {
        notice: Some(NOTICE.to_owned()),
        ..truncate_tool_results::Settings::default()
    };
    let policy = Settings { edits: vec![EditName::TruncateToolResults], ..Settings::default() };
    let tools = [("f".to_owned(), Tool { truncate: Some(Truncate::To(limits)), ..Tool::default() })].into();
    let settings = PlanSettings { truncate_tool_results, policy, tools, ..PlanSettings::default() };
    let planner = planner(settings);
    let plan = planner.plan(dialect(), &body).expect("it is a request");
    let output = splice(&body, &plan.splices).concat();
    let output: Value = serde_json::from_slice(&output).expect("JSON, and so UTF-8");
    let left: Vec<_> = contents(&output);
    assert_eq!(left.len(), texts.len());

    let n_bytes: usize = texts.iter().map(|text| text.len()).sum();
    let most = limits.max_bytes.unwrap_or_default();
    assert!(n_bytes > most || plan.is_empty(), "what fits stays");
    let share = most / texts.len();
    for (left, text) in left.iter().zip(texts).filter(|(left, text)| left != text) {
        assert!(left.len() < text.len(), "never longer");
        let stored = plan.offloads.iter().find(|offload| offload.payload.bytes() == text.as_bytes());
        let handle = stored.expect("what is taken out is stored").key.to_string();
        if !text.contains(['⟦', '⟧']) {
            let (head, rest) = left.split_once('⟦').expect("a notice");
            let (notice, tail) = rest.split_once('⟧').expect("a notice");
            assert!(text.starts_with(head) && text.ends_with(tail));
            let left_out = text.len() - head.len() - tail.len();
            assert!(notice.starts_with(&format!("{left_out} of {} bytes: {handle}.", text.len())), "{notice}");
            assert!(head.len() <= limits.head.unwrap_or(usize::MAX) && tail.len() <= limits.tail.unwrap_or(usize::MAX));
            assert!(head.len() + tail.len() <= share, "{} and {} are more than {share}", head.len(), tail.len());
            let notice_len = left.len() - head.len() - tail.len();
            // With the longest notice: the number in it is of as many digits at most.
            let digits = text.len().to_string().len() - left_out.to_string().len();
            assert!(left.len() + digits <= share.max(notice_len + digits), "{} of {share}", left.len());
        }
    }
    if plan.is_empty() && n_bytes > most && !planner.settings.recall.is_named_in(&texts.concat()) {
        let is_empty = texts.iter().all(|text| text.is_empty());
        assert!(is_empty || !plan.report.left_out.is_empty(), "why is it as long as it was?");
    }
}

fn request(texts: &[&str]) -> Value {
    let content = match texts {
        [text] => json!(text),
        texts => texts.iter().map(|text| json!({"type": "text", "text": text})).collect(),
    };
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    json!({"messages": [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": content},
    ]})
}

fn contents(request: &Value) -> Vec<&str> {
    let content = &request["messages"][1]["content"];
    let settings = content.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
    content.as_str().into_iter().chain(settings).collect()
}
