//! File reads that are kept while their files stay as they were read.
#![expect(clippy::disallowed_types, reason = "messages are made here, and looked at by eyes of our own")]

use bytes::Bytes;
use serde_json::{Value, json};

use super::policy;
use crate::edit::tests::{body_of, messages, plan, text};
use crate::plan::Action;

const ALWAYS: &str = "trigger = { tokens = 1 }\nkeep = { results = 0 }\nclear_at_least = 0\nkeep_reads = 2";

/// Rounds of one call each, `read`, `edit` or `bash`, with its arguments, and an answer at the end.
fn rounds(calls: &[(&str, Value)]) -> Bytes {
    let mut messages = vec![json!({"role": "user", "content": "hi"})];
    for (n, (tool, arguments)) in calls.iter().enumerate() {
        let function = json!({"name": tool, "arguments": arguments.to_string()});
        messages.push(json!({"role": "assistant", "tool_calls": [{"id": n.to_string(), "function": function}]}));
        messages.push(json!({"role": "tool", "tool_call_id": n.to_string(), "content": text(2000)}));
    }
    messages.extend([json!({"role": "assistant", "content": "hi"}), json!({"role": "user", "content": "hi"})]);
    body_of(&messages)
}

/// The rounds whose results are cleared, each with what has happened to its file.
fn cleared(calls: &[(&str, Value)], keys: &str) -> Vec<(usize, Option<&'static str>)> {
    let changes = plan(&rounds(calls), &policy(keys)).0.report.changes;
    let clears = changes.into_iter().filter(|change| matches!(change.action, Action::Clear { .. }));
    let mut cleared: Vec<_> = clears.map(|change| (change.call_id.parse().unwrap(), change.why)).collect();
    cleared.sort_unstable();
    cleared
}

fn of(path: &str) -> Value {
    json!({"path": path})
}

#[test]
fn of_the_newest_reads_those_are_kept_whose_files_are_as_they_were_read() {
    let reads = |paths: &[&str]| paths.iter().map(|path| ("read", of(path))).collect::<Vec<_>>();
    assert_eq!(cleared(&reads(&["a", "b"]), ALWAYS), []);
    assert_eq!(cleared(&reads(&["a", "b", "c"]), ALWAYS), [(0, None)]);
    // Other results are cleared as before.
    let mut calls = reads(&["a", "b"]);
    calls.extend([("bash", json!({"command": "cargo test"})), ("grep", of("src"))]);
    assert_eq!(cleared(&calls, ALWAYS), [(2, None), (3, None)]);
    assert_eq!(
        cleared(&calls, &ALWAYS.replace("keep_reads = 2", "keep_reads = 0")),
        [(0, None), (1, None), (2, None), (3, None)]
    );
}

#[test]
fn where_the_rest_nearly_fills_the_window_reads_are_cleared_too() {
    // gpt-4 has a window of 8192, of which four fifths are 6554. A round has some 520 tokens.
    let cleared = |model: &str, n: usize| {
        let names: Vec<_> = (0..n).map(|n| n.to_string()).collect();
        let reads: Vec<_> = names.iter().map(|name| ("read", of(name))).collect();
        let body = json!({"model": model, "messages": messages(&rounds(&reads))});
        let keys = "trigger = { tokens = 1 }\nkeep = { results = 3 }\nclear_at_least = 0\nkeep_reads = 50";
        plan(&body.to_string().into(), &policy(keys)).0.report.changes.len()
    };
    assert_eq!((cleared("gpt-4", 11), cleared("gpt-4", 14)), (0, 10));
    assert_eq!(cleared("nobody-knows", 14), 0);
    // Those that come later are kept again.
    assert_eq!(cleared("gpt-4", 16), 10);
}

#[test]
fn what_was_edited_or_read_again_is_cleared_and_the_report_says_so() {
    let edited = [("read", of("a")), ("read", of("b")), ("edit", of("./a"))];
    assert_eq!(cleared(&edited, ALWAYS), [(0, Some("edited since")), (2, None)]);
    let again = [("read", of("a")), ("read", of("a"))];
    let stale = Some("read again");
    assert_eq!(cleared(&again, ALWAYS), [(0, stale)]);
    let report = plan(&rounds(&again), &policy(ALWAYS)).0.report;
    assert!(report.to_string().contains(", read again\n"), "{report}");
    assert!(serde_json::to_string(&report).unwrap().contains("\"why\":\"read again\""));
    // A part takes the place of the same part alone, the whole file that of all parts.
    let part = |offset: usize| ("read", json!({"path": "a", "offset": offset, "limit": 9}));
    assert_eq!(cleared(&[part(20), part(40)], ALWAYS), []);
    assert_eq!(cleared(&[part(20), part(20)], ALWAYS), [(0, stale)]);
    assert_eq!(cleared(&[part(20), part(40), ("read", of("a"))], ALWAYS), [(0, stale), (1, stale)]);
}

#[test]
fn a_read_that_was_cleared_stays_cleared_and_one_that_is_kept_goes_when_its_file_changes() {
    let calls = [
        ("read", of("a")),
        ("read", of("b")),
        ("bash", json!({"command": "cat c"})),
        ("bash", json!({"command": "sed -i s/x/y/ b"})),
        ("read", of("d")),
        ("read", of("a")),
    ];
    let fronts: Vec<Vec<usize>> =
        (1..=calls.len()).map(|n| cleared(&calls[..n], ALWAYS).into_iter().map(|(n, _)| n).collect()).collect();
    assert_eq!(fronts, [&[][..], &[], &[0], &[0, 1, 3], &[0, 1, 3], &[0, 1, 2, 3]]);
}

#[test]
fn an_error_in_place_of_a_file_is_no_read() {
    let mut messages: Vec<Value> = serde_json::from_slice::<Value>(&rounds(&[("read", of("a")), ("read", of("a"))]))
        .unwrap()["messages"]
        .as_array()
        .unwrap()
        .clone();
    messages[4]["content"] = json!("The file is too large to be read.");
    assert!(plan(&body_of(&messages), &policy(ALWAYS)).0.is_empty());
}

#[test]
fn tools_of_the_settings_read_and_write_files() {
    let calls = [("load", json!({"uri": "a"})), ("load", json!({"uri": "b"})), ("save", json!({"uri": "a"}))];
    assert_eq!(cleared(&calls, ALWAYS).len(), 3);
    let tools = "\n[tools]\nload = { reads = 'uri' }\nsave = { edits = 'uri' }";
    assert_eq!(cleared(&calls, &format!("{ALWAYS}{tools}")), [(0, Some("edited since")), (2, None)]);
}
