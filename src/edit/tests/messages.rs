//! The edits on conversations in Anthropic Messages, where results are blocks in messages of the user.
//!
//! Shorthand, one word a message, blocks parted by `+`:
//!
//! - `u`, `s`: a user and a system message with a string; `u=` one with one text block
//! - `a:` and `u:` begin messages with blocks: `c1` a call, `r1` a result, `r1*400` one of 400 bytes, `x` a text, `k` thinking,
//!   `w` half of a search of the server
//!
//! In what comes out, `p1` means a result that was put in, `r1!` one that was cleared, `r1~` a truncated one and
//! `c1-` for a call whose arguments were cleared.
#![expect(clippy::disallowed_types, reason = "nothing waits here, and messages are looked at by eyes of our own")]

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;

use crate::{
    conversation::CallId,
    dialect::{self, Dialect},
    payload::ChainKey,
    plan::{Need, Plan},
    planner::{PlanSettings, Planner},
    span::splice,
    summary::{Summary, SummaryState},
};

fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1/messages").unwrap()
}

fn block(word: &str) -> String {
    let (kind, rest) = word.split_at(1);
    let (id, length) = rest.split_once('*').unwrap_or((rest, "2"));
    match kind {
        "c" => format!(r#"{{"type":"tool_use","id":"{id}","name":"Bash","input":{{"command":"ls {id}"}}}}"#),
        "r" => {
            let text = "word ".repeat(length.parse::<usize>().unwrap().div_ceil(5));
            format!(r#"{{"type":"tool_result","tool_use_id":"{id}","content":"{text}"}}"#)
        }
        "k" => r#"{"type":"thinking","thinking":"","signature":"c2lnbmVk"}"#.to_owned(),
        "w" => r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}"#.to_owned(),
        _ => r#"{"type":"text","text":"said"}"#.to_owned(),
    }
}

fn message(word: &str) -> String {
    let blocks = |blocks: &str| blocks.split('+').map(block).collect::<Vec<_>>().join(", ");
    match word.split_once(':') {
        Some(("a", of)) => format!(r#"{{"role":"assistant","content":[{}]}}"#, blocks(of)),
        Some((_, of)) => format!(r#"{{"role":"user","content":[ {} ]}}"#, blocks(of)),
        None if word == "s" => r#"{"role":"system","content":"said"}"#.to_owned(),
        None => r#"{"role":"user","content":"said"}"#.to_owned(),
    }
}

fn body(words: &str) -> Bytes {
    let messages: Vec<_> = words.split_whitespace().map(message).collect();
    format!(r#"{{"model":"claude-opus-4-6","max_tokens":9,"messages":[{}]}}"#, messages.join(" , ")).into()
}

/// A block as its word.
fn word(block: &Value) -> String {
    let id = block["id"].as_str().or(block["tool_use_id"].as_str()).unwrap_or_default();
    let content = block["content"].as_str().unwrap_or_default();
    match block["type"].as_str().unwrap() {
        "tool_use" if block["input"].as_object().unwrap().is_empty() => format!("c{id}-"),
        "tool_use" => format!("c{id}"),
        "tool_result" if block["is_error"] == true => {
            assert!(content.contains("Bash") && content.contains(id.trim_end_matches("_2")), "{content}");
            format!("p{id}")
        }
        "tool_result" if content.starts_with("[Cleared") => format!("r{id}!"),
        "tool_result" if content.contains("left out here") => format!("r{id}~"),
        "tool_result" => format!("r{id}"),
        "thinking" => "k".to_owned(),
        "server_tool_use" => "w".to_owned(),
        _ => "x".to_owned(),
    }
}

fn words(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    let messages = body["messages"].as_array().unwrap().iter().map(|message| {
        let role = message["role"].as_str().unwrap().get(..1).unwrap();
        match message["content"].as_array() {
            Some(blocks) => format!("{role}:{}", blocks.iter().map(word).collect::<Vec<_>>().join("+")),
            None => role.to_owned(),
        }
    });
    messages.collect::<Vec<_>>().join(" ")
}

fn planner(settings: &str) -> Planner {
    let settings: PlanSettings = toml::from_str(settings).unwrap();
    Planner::new(settings)
}

fn edited(came: &Bytes, settings: &str) -> (Plan, Bytes) {
    let plan = planner(settings).plan(dialect(), came).unwrap();
    let out = splice(came, &plan.splices).concat();
    (plan, out.into())
}

fn check(came: &str, settings: &str, expected: &str) {
    let came = body(came);
    let (plan, out) = edited(&came, settings);
    assert_eq!(words(&out), expected, "{}\n{plan}", words(&came));
    let (again, _) = edited(&out, settings);
    assert!(again.is_empty(), "{again}");
}

const PATCH: &str = "policy.edits = [\"patch_tool_calls\"]";

#[test]
fn results_are_put_in_behind_the_turn_that_calls() {
    for (came, expected) in [
        ("u a:c1", "u a:c1 u:p1"),
        ("u a:c1 u", "u a:c1 u:p1 u"),
        ("u a:c1 u:x", "u a:c1 u:p1 u:x"),
        // What the turn says next may be the answer to the text that was put in.
        ("u a:c1 a:x", "u a:c1 u:p1 a:x"),
        ("u a:c1 a:x u", "u a:c1 u:p1 a:x u"),
        ("u a:c1+c2 a:x+c3 u:r3", "u a:c1+c2 u:p1+p2 a:x+c3 u:r3"),
        ("u a:c1 a:c2+x u", "u a:c1 u:p1 a:c2+x u:p2 u"),
        ("u a:c1+c2 a:c3 u:r3+r2", "u a:c1+c2 a:c3 u:r3+r2+p1"),
        ("u a:c1 a:x s a:x u", "u a:c1 a:x u:p1 s a:x u"),
        ("u a:c1 s a:x u", "u a:c1 u:p1 s a:x u"),
        ("u a:c1+c2+c3 u:r2+x", "u a:c1+c2+c3 u:r2+p1+p3+x"),
        ("u a:c1 a:c2 u:r2", "u a:c1 u:p1 a:c2 u:r2"),
        ("u a:c1+c2 u:r1 u:r2 u", "u a:c1+c2 u:r1 u:r2 u"),
        ("u a:c1+c2 u:r1 u", "u a:c1+c2 u:r1+p2 u"),
        // Calls that the server is still to answer are not ours.
        ("u a:w", "u a:w"),
        ("u a:w+c1", "u a:w+c1 u:p1"),
    ] {
        check(came, PATCH, expected);
    }
}

#[test]
fn results_are_moved_behind_the_turn_that_calls() {
    for (came, expected) in [
        ("u a:c1 u:x+r1", "u a:c1 u:r1 u:x"),
        ("u a:c1 u u:r1", "u a:c1 u:r1 u"),
        ("u a:c1+c2 u:r1+x u:r2 a:x u", "u a:c1+c2 u:r1+r2+x a:x u"),
        ("u a:c1 u:x a:c2 u:r2+r1", "u a:c1 u:r1 u:x a:c2 u:r2"),
        // Across a system message nothing moves.
        ("u a:x u:x s a:c1 u:x+r1", "u a:x u:x s a:c1 u:r1 u:x"),
        // A text keeps the system message after the user, unless a result does.
        ("u a:c1 u a:x u:r1 s a:x", "u a:c1 u:r1 u a:x u:x s a:x"),
        ("u a:c1 u a:x u:r1 s", "u a:c1 u:r1 u a:x u:x s"),
        ("u a:c1+c2 u a:x u:r1+r2 s s a:x", "u a:c1+c2 u:r1+r2 u a:x u:x s s a:x"),
        ("u a:c1 a:c2 u a:x u:r1 u:r2 s a:x", "u a:c1 u:r1 a:c2 u:r2 u a:x u:x s a:x"),
        ("u a:c1 u a:x u:r9+r1 s a:x", "u a:c1 u:r1 u a:x u:x s a:x"),
        ("u a:c1 u a:c2 a:x u:r1 s a:x", "u a:c1 u:r1 u a:c2 a:x u:p2 s a:x"),
        ("u a:c1 s u a:c2 u:r2+r1 s a:x", "u a:c1 u:r1 s u a:c2 u:r2 s a:x"),
        ("u a:c1 u:r9 s a:x u:r1 s a:x", "u a:c1 u:r1 s a:x u:x s a:x"),
        ("u s u:r9 u", "u s u"),
        ("u a:c1 u a:x u:r1+x s a:x", "u a:c1 u:r1 u a:x u:x s a:x"),
        ("u a:c1 u a:c2 u:r1 s a:x", "u a:c1 u:r1 u a:c2 u:p2 s a:x"),
        // The model is neither the last nor goes on with what it has said.
        ("u a:c1 u a:x u:r1", "u a:c1 u:r1 u a:x u:x"),
        ("u a:c1 u a:x u:r1 a:x u", "u a:c1 u:r1 u a:x u:x a:x u"),
        ("u a:c1+c2 u a:x u:r2 u:r1 a:c3 u:r3", "u a:c1+c2 u:r1+r2 u a:x u:x a:c3 u:r3"),
        ("u a:c1 u a:x u:r1+x", "u a:c1 u:r1 u a:x u:x"),
        ("u a:c1+c2 u:r2+r1", "u a:c1+c2 u:r2+r1"),
    ] {
        check(came, PATCH, expected);
    }
}

#[test]
fn calls_and_results_without_ids_are_paired_by_position() {
    for (came, expected) in [
        ("u a:c u:r a:x u", "u a:c u:r a:x u"),
        ("u a:c+c u:r+r", "u a:c+c u:r+r"),
        ("u a:c1+c u:r+r1+x", "u a:c1+c u:r+r1+x"),
        ("u a:c u:r+r a:x u", "u a:c u:r a:x u"),
    ] {
        check(came, PATCH, expected);
    }
}

#[test]
fn the_text_in_the_place_of_a_late_result_is_sent_again() {
    let all: Vec<_> = "u a:c1 u a:x u:r1 s a:c2 u:r2 a:x u u:r9 s a:x u".split(' ').collect();
    let sent = |n: usize| words(&edited(&body(&all[..n].join(" ")), PATCH).1);
    for (before, after) in [(6, 8), (8, 10), (10, 12), (12, 14)] {
        assert!(sent(after).starts_with(&sent(before)), "{}", sent(after));
    }
    assert_eq!(sent(6), "u a:c1 u:r1 u a:x u:x s");
}

#[test]
fn calls_of_one_id_get_their_results_where_ids_have_to_be_unique() {
    let forms = &format!("{PATCH}\npolicy.forms = [\"unique_ids\"]");
    for (came, patched, expected) in [
        ("u a:c1+c1+c2 u:r1+r2 a:x u", "u a:c1+c1+c2 u:r1+r2+p1 a:x u", "u a:c1+c1_2+c2 u:r1+r2+p1_2 a:x u"),
        ("u a:c1+c1 u:r1+r1+r1+x", "u a:c1+c1 u:r1+r1+x", "u a:c1+c1_2 u:r1+r1_2+x"),
        ("u a:c+c u:r+r", "u a:c+c u:r+r", "u a:c_1+c_2 u:r_1+r_2"),
    ] {
        check(came, PATCH, patched);
        check(came, forms, expected);
    }
}

#[test]
fn blocks_of_a_message_with_an_odd_key_stay_in_it() {
    for (came, expected) in [
        // The result cannot be moved, nor the one without a call be left out.
        ("u a:c1 u:x u:r1", "u a:c1 u:x u:r1"),
        ("u a:x u:r9+x", "u a:x u:r9+x"),
        // Nothing can be put after the result.
        ("u a:c1+c2 u:r1+x", "u a:c1+c2 u:r1+x u:p2"),
    ] {
        let came = String::from_utf8(body(came).to_vec()).unwrap();
        let (before, behind) = came.rsplit_once(r#""content":[ "#).unwrap();
        let came = Bytes::from(format!(r#"{before}"c\u006fntent":[ {behind}"#));
        let (plan, out) = edited(&came, PATCH);
        assert_eq!(words(&out), expected, "{plan}");
    }
}

#[test]
fn results_without_a_call_leave_with_a_comma() {
    for (came, expected) in [
        ("u:r9 a:x u", "u:x a:x u"),
        ("u:r9+x a:x u", "u:x a:x u"),
        ("u a:c1 u:r9+r1+x", "u a:c1 u:r1+x"),
        ("u a:c1 u:r1+r9", "u a:c1 u:r1"),
        ("u a:c1 u:r1+r1+r9+x", "u a:c1 u:r1+x"),
        ("u a:c1 u:r9", "u a:c1 u:p1"),
        // A system message would follow the model, or be the first.
        ("u a:x u:r9 s", "u a:x u:x s"),
        ("u a:x u:r9+r8 s", "u a:x u:x s"),
        ("u:r9 s a:x u", "u:x s a:x u"),
        ("u:r9 u:r8 s a:x u", "u:x s a:x u"),
        ("u a:x u:r9", "u a:x u:x"),
        ("u a:x u:r9 u:r8 a:c1 u:r1", "u a:x u:x a:c1 u:r1"),
    ] {
        check(came, PATCH, expected);
    }
}

#[test]
fn untouched_bytes_are_the_clients() {
    let came = body("u a:c1+c2 u:r9+r1+x s a:x");
    let (_, out) = edited(&came, PATCH);
    let came = str::from_utf8(&came).unwrap();
    let put_in = dialect().render_tool_result(b"\"2\"", &CallId::default(), None, "");
    assert!(put_in.starts_with(br#"{"type":"tool_result""#));
    let expected = came.replacen(&format!("{}, ", block("r9")), "", 1);
    let (before, behind) = expected.split_once(&block("r1")).unwrap();
    let out = str::from_utf8(&out).unwrap();
    assert!(
        out.starts_with(&format!("{before}{},{{\"type\":\"tool_result\",\"tool_use_id\":\"2\"", block("r1"))),
        "{out}"
    );
    assert!(out.ends_with(&format!("\"is_error\":true}}{behind}")), "{out}");
}

#[test]
fn old_results_are_cleared_and_long_ones_truncated() {
    let clear = "recall.via = \"none\"\nclear_tool_results = { when = 'any', trigger = { messages = 4 }, keep = { results = 1 }, clear_tool_inputs = true }\ntruncate_tool_results = { max_bytes = 2000 }";
    check("u a:k+c1 u:r1*400+x a:c2 u:r2*400 a:x u", clear, "u a:k+c1- u:r1!+x a:c2 u:r2 a:x u");
    check("u a:c1+c2 u:r1*400+r2*400 a:c3 u:r3*4000 a:x u", clear, "u a:c1-+c2- u:r1!+r2! a:c3 u:r3~ a:x u");
    // Everything that was not read stays.
    check("u a:c1+c2 u:r1*400+r2*400 u", clear, "u a:c1+c2 u:r1+r2 u");
}

#[test]
fn only_the_texts_of_a_result_are_cleared() {
    let result = r#"{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"TEXT","cache_control":{"type":"ephemeral"}},{"type":"image","source":{"type":"url","url":"https://x/a.png"}}],"is_error":false,"toolset_name":"t"}"#;
    let result = result.replace("TEXT", &"word ".repeat(90));
    let came = body("u a:c1 u:r1 a:c2 u:r2*400 a:x u");
    let came = Bytes::from(str::from_utf8(&came).unwrap().replacen(&block("r1"), &result, 1));
    let settings = "recall.via = \"none\"\nclear_tool_results = { when = 'any', trigger = { messages = 4 }, keep = { results = 1 } }";
    let (plan, out) = edited(&came, settings);
    let text =
        serde_json::from_slice::<Value>(&out).unwrap()["messages"][2]["content"][0]["content"][0]["text"].clone();
    let text = text.as_str().unwrap();
    assert!(text.starts_with("[Cleared: 450 bytes"), "{plan}");
    let expected = str::from_utf8(&came).unwrap().replacen(&"word ".repeat(90), text, 1);
    assert_eq!(str::from_utf8(&out).unwrap(), expected);
    assert_eq!(plan.offloads[0].payload.bytes(), "word ".repeat(90).as_bytes());
}

#[test]
fn rounds_leave_with_their_thinking_or_call_by_call() {
    let one = "filter_tool_calls.max_tool_calls = 1";
    for (came, expected) in [
        ("u a:c1 u:r1 a:c2 u:r2 a:x u", "u a:c2 u:r2 a:x u"),
        ("u a:x+c1 u:r1 a:c2 u:r2 a:x u", "u a:x a:c2 u:r2 a:x u"),
        ("u a:c1+c2 u:r1+r2+x a:x u", "u a:c2 u:r2+x a:x u"),
        ("u a:k+x+c1 u:r1 a:c2 u:r2 a:x u", "u a:c2 u:r2 a:x u"),
        ("u a:k+c1+c2 u:r1+r2+x a:c3 u:r3 a:x u", "u u:x a:c3 u:r3 a:x u"),
        ("u a:k a:c1 u:r1 a:c2 u:r2 a:x u", "u a:c2 u:r2 a:x u"),
        // The user would not precede the system message any more.
        ("u a:x+c1 u:r1 s a:c2 u:r2 a:x u", "u s a:c2 u:r2 a:x u"),
        ("u a:x a:c1 u:r1 s a:c2 u:r2 a:x u", "u s a:c2 u:r2 a:x u"),
        ("u a:c1 a:x u:r1 s a:c2 u:r2 a:x u", "u s a:c2 u:r2 a:x u"),
        ("u a:x+c1 s a:c2 u:r2 a:x u", "u s a:c2 u:r2 a:x u"),
        ("u a:c1 a:x s a:c2 u:r2 a:x u", "u s a:c2 u:r2 a:x u"),
        // The text in the place of a late result stays.
        ("u a:c1 u a:x u:r1 s a:c2 u:r2 a:x u", "u u a:x u:x s a:c2 u:r2 a:x u"),
        // Nor the model after it.
        ("u s a:c1 u:r1+x a:c2 u:r2 a:x u", "u s a:c1 u:r1+x a:c2 u:r2 a:x u"),
    ] {
        check(came, one, expected);
    }
    // Everything that is left is one turn then.
    let (_, out) = edited(&body("u a:x+c1 u:r1 a:c2 u:r2 s a:c3 u:r3 a:x u"), one);
    assert_eq!(words(&out), "u a:x a:c2 u:r2 s a:c3 u:r3 a:x u");
    let (_, out) = edited(&body("u a:x u:r9 a:c1 s a:c2 u:r2 a:x u"), one);
    assert_eq!(words(&out), "u a:x u:x s a:c2 u:r2 a:x u");
}

#[test]
fn what_the_server_does_itself_is_left_to_it() {
    let settings = "clear_tool_results = { when = 'any', trigger = { messages = 4 }, keep = { results = 0 } }";
    let came = body("u a:c1 u:r1*400 a:x u");
    assert!(!edited(&came, settings).0.is_empty());
    let edits = r#""context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]},"messages""#;
    let came = Bytes::from(str::from_utf8(&came).unwrap().replacen("\"messages\"", edits, 1));
    assert!(edited(&came, settings).0.is_empty());
}

const SUMMARIZE: &str = "policy.edits = [\"patch_tool_calls\", \"filter_tool_calls\", \"summarize\"]\nsummarize = { trigger = { messages = 6 }, keep = { rounds = 1 } }";

/// Returns what is sent of a conversation, with all summaries made that it asks for.
fn summarised(came: &Bytes, settings: &str, known: &mut HashMap<ChainKey, SummaryState>) -> Bytes {
    let planner = planner(settings);
    loop {
        let plan = planner.policy.plan(dialect(), came, &planner.anonymous(known)).unwrap();
        let job = match plan.needs {
            Some(Need::Make(job)) if !known.contains_key(&job.key) => job,
            _ => return splice(came, &plan.splices).concat().into(),
        };
        let messages: Vec<_> = job.source.messages.iter().map(|piece| piece.json.clone()).collect();
        let asked = Bytes::from([&b"{\"messages\":["[..], &messages.join(&b','), b"]}"].concat());
        assert_in_place(&format!("{} user", words(&asked)), "a summary");
        let text = job.frame.around("So far.");
        let (tokens_replaced, made_at) = (job.tokens_replaced, job.n_elements);
        let summary = Arc::new(Summary { text, tokens_replaced, made_at, transcript: None });
        known.insert(job.key, SummaryState::Summary(summary));
    }
}

/// Each system message follows the user, and before the model or last.
fn assert_in_place(words: &str, came: &str) {
    let mut roles: Vec<_> = words.split(' ').filter_map(|word| word.get(..1)).collect();
    roles.dedup();
    for around in roles.windows(2) {
        assert!(!matches!(around, ["a", "s"] | ["s", "u"]), "{words} of {came}");
    }
    assert!(!words.starts_with('s'), "{words} of {came}");
}

#[test]
fn a_summary_is_a_message_of_the_user_before_the_next_turn() {
    let summarised = |came: &str| words(&summarised(&body(came), SUMMARIZE, &mut HashMap::new()));
    assert_eq!(summarised("u a:k+c1 u:r1*900+x a:c2 u:r2*900 a:c3 u:r3 a:c4 u:r4"), "u:x a:c3 u:r3 a:c4 u:r4");
}

#[test]
fn system_messages_go_on_behind_the_summary_that_stands_for_what_is_around_them() {
    let summarised = |came: &str| words(&summarised(&body(came), SUMMARIZE, &mut HashMap::new()));
    for (came, expected) in [
        ("u a:c1 u:r1*900 a:c2 u:r2*900+x s a:c3 u:r3 a:c4 u:r4", "u:x s a:c3 u:r3 a:c4 u:r4"),
        ("u a:c1 u:r1*900 s a:c2 u:r2*900 a:c3 u:r3 a:c4 u:r4", "u:x s a:c3 u:r3 a:c4 u:r4"),
        ("u s a:c1 u:r1*900 s s a:c2 u:r2*900 a:c3 u:r3 a:c4 u:r4", "u:x s s s a:c3 u:r3 a:c4 u:r4"),
        // A message of the user would follow it.
        ("u a:c1 u:r1*900 s a:c2 u:r2*900 u a:c3 u:r3", "u:x s a:c2 u:r2 u a:c3 u:r3"),
        ("u a:c1 u:r1*900 s a:c2 u:r2*900 a:x u a:c3 u:r3", "u:x s a:x u a:c3 u:r3"),
    ] {
        assert_eq!(summarised(came), expected, "{came}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn system_messages_keep_their_place_whatever_leaves(
        steps in prop::collection::vec((0..3_usize, any::<bool>(), 0..6_usize, 0..4_usize), 4..24),
        filter in prop::sample::select(vec!["", "\nfilter_tool_calls.max_tool_calls = 2"]),
        policy in prop::sample::select(vec![SUMMARIZE, "policy.edits = [\"filter_tool_calls\", \"patch_tool_calls\"]", PATCH]),
    ) {
        let (mut words, mut known, mut late) = ("u".to_owned(), HashMap::new(), Vec::new());
        let settings = [policy, filter].concat();
        for (n, (n_calls, says, next, n_late)) in steps.into_iter().enumerate() {
            let says = if says || n_calls == 0 { "x" } else { "" };
            let calls: Vec<_> = (0..n_calls).map(|call| format!("c{n}_{call}")).collect();
            let blocks: Vec<_> = Some(says.to_owned()).into_iter().filter(|says| !says.is_empty()).chain(calls.clone()).collect();
            let mut results: Vec<_> = calls.iter().map(|call| format!("{}*300", call.replace('c', "r"))).collect();
            if n_late > 1 {
                results.append(&mut late);
            } else {
                late.extend(results.drain(..n_late.min(results.len())));
            }
            let results = if results.is_empty() { " u".to_owned() } else { format!(" u:{}", results.join("+")) };
            words.push_str(&[" a:", &blocks.join("+"), &results].concat());
            words.push_str(["", "", "", " s", " u s", " u"][next]);
            let sent = self::words(&summarised(&body(&words), &settings, &mut known));
            assert_in_place(&sent, &words);
        }
    }
}
