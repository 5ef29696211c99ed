//! Pointers to lines that are in sight: whatever is read again, what a pointer leaves out is in an earlier message as it is
//! sent, at the lines that it names; the whole text is stored; a longer conversation begins as the shorter one did.
//!
//! The input is rounds of three bytes: a tool and a file, the first line, and how many lines there are.

use abridge_proxy::planner::{EditName, PlanSettings, Planner, Settings};
use abridge_proxy::span::splice;
use bytes::Bytes;
use serde_json::{Value, json};

use super::{dialect, planner};

/// The most rounds: every beginning of a conversation is planned.
const MAX_ROUNDS: usize = 12;

/// Reads and writes a few files, round by round.
pub fn run(input: &[u8]) {
    let policy = Settings { edits: vec![EditName::DeduplicateToolResults], ..Settings::default() };
    let settings = || PlanSettings { policy: policy.clone(), ..PlanSettings::default() };
    let warm = planner(settings());
    let mut messages = vec![json!({"role": "user", "content": "Go."})];
    let mut before: Vec<Value> = Vec::new();
    for (n, round) in input.as_chunks::<3>().0.iter().take(MAX_ROUNDS).enumerate() {
        messages.extend(round_trip(n, *round));
        let sent = check(&warm, &messages);
        assert!(sent.starts_with(&before), "what was sent before stays");
        assert_eq!(sent, check(&planner(settings()), &messages), "what is remembered changes nothing");
        before = sent;
    }
}

/// A call and its result.
fn round_trip(n: usize, [what, first, n_lines]: [u8; 3]) -> [Value; 2] {
    let (first, n_lines) = (usize::from(first % 64), usize::from(n_lines % 40));
    let path = format!("/src/{}.rs", what >> 6);
    let line = |at: usize| format!("    let value_{at} = compute({:?}, {at}); // of {path}", what >> 6);
    let plain = || (first..first + n_lines).map(line).collect::<Vec<_>>();
    let numbered = || plain().iter().zip(first + 1..).map(|(line, n)| format!("{n:>6}→{line}")).collect();
    let (tool, arguments, lines) = match what & 7 {
        0 => (
            "edit",
            json!({"path": path, "old_string": plain().join("\n"), "new_string": "x"}),
            vec!["done".to_owned()],
        ),
        1 => (
            "edit",
            json!({"path": path, "old_string": "a", "new_string": "b"}),
            vec!["Error: old text not found".to_owned()],
        ),
        2 => ("write", json!({"path": path, "content": plain().join("\n")}), vec!["ok".to_owned()]),
        3 | 4 => ("read", json!({"path": path, "offset": first, "limit": n_lines}), numbered()),
        5 => ("read", json!({"path": path}), plain()),
        _ => ("bash", json!({"command": format!("sed -n {first},{n_lines}p {path}")}), plain()),
    };
    let id = format!("call_{n}");
    let function = json!({"name": tool, "arguments": arguments.to_string()});
    [
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function", "function": function}]}),
        json!({"role": "tool", "tool_call_id": id, "content": lines.join("\n") + "\n"}),
    ]
}

/// Returns the messages that are sent, after a look at each pointer in them.
fn check(planner: &Planner, messages: &[Value]) -> Vec<Value> {
    let body = Bytes::from(json!({"model": "m", "messages": messages}).to_string());
    let plan = planner.plan(dialect(), &body).expect("it is a request");
    let sent: Value = serde_json::from_slice(&splice(&body, &plan.splices).concat()).expect("JSON");
    let sent = sent["messages"].as_array().cloned().unwrap_or_default();
    assert_eq!(sent.len(), messages.len());
    for (n, (now, came)) in sent.iter().zip(messages).enumerate().filter(|(_, (now, came))| now != came) {
        let (text, whole) = (content(now), content(came));
        assert!(text.len() < whole.len(), "never longer");
        assert!(plan.offloads.iter().any(|offload| offload.payload.bytes() == whole.as_bytes()), "the whole is stored");
        let in_sight: Vec<_> = sent[..n].iter().flat_map(texts).collect();
        expand(text, whole, &in_sight);
    }
    sent
}

/// Goes along a text with pointers and the whole text.
fn expand(text: &str, whole: &str, in_sight: &[String]) {
    let (mut whole, mut n_pointers) = (whole.lines(), 0);
    for line in text.lines() {
        let Some((n, from, to)) = pointer(line) else {
            assert_eq!(whole.next(), Some(line), "what is not left out stays");
            continue;
        };
        assert_eq!(n, to + 1 - from, "{line}");
        n_pointers += 1;
        let left_out: Vec<_> = whole.by_ref().take(n).map(bare).collect();
        let is_there = |earlier: &String| {
            let lines: Vec<_> = earlier.lines().map(bare).collect();
            lines.get(from - 1..to) == Some(&left_out[..])
        };
        assert!(in_sight.iter().any(is_there), "{line}: no earlier message has these lines there: {left_out:?}");
    }
    assert!(whole.next().is_none() && n_pointers > 0);
}

/// How many lines a pointer leaves out, and the first and the last line of the source.
fn pointer(line: &str) -> Option<(usize, usize, usize)> {
    let (n, rest) = line.strip_prefix('[')?.split_once(" lines left out: lines ")?;
    let (from, rest) = rest.split_once('-')?;
    Some((n.parse().ok()?, from.parse().ok()?, rest.split_once(' ')?.0.parse().ok()?))
}

/// A line without its number and blanks at its end.
fn bare(line: &str) -> &str {
    let line = line.trim_end();
    match line.split_once('→') {
        Some((number, rest)) if number.trim().parse::<usize>().is_ok() => rest,
        _ => line,
    }
}

fn content(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

/// The texts of a message that a pointer may name: a result, and the arguments of calls.
fn texts(message: &Value) -> Vec<String> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let arguments = calls.filter_map(|call| {
        let arguments = serde_json::from_str::<Value>(call["function"]["arguments"].as_str()?).ok()?;
        let values = arguments.as_object()?.values();
        Some(values.filter_map(|value| value.as_str().map(str::to_owned)).collect::<Vec<_>>())
    });
    arguments.flatten().chain([content(message).to_owned()]).collect()
}
