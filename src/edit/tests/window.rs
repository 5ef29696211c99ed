//! Requests fit the window of the model, and results keep the length at which they were first sent.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{HTTP, body_of, messages, text};
use crate::{dialect, planner::Planner, replay::planner_from_toml, span::splice};

/// Clients mark the newest message for the prompt cache, and another one in the next request.
#[test]
fn where_a_batch_is_cut_does_not_depend_on_marks() {
    let (planner, words) = (planner(8192, ""), "words ".repeat(3000));
    let cut = |content: Value| {
        let call = json!({"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{}"}});
        let result = json!({"role": "tool", "tool_call_id": "1", "content": content});
        let asks = json!({"role": "user", "content": "Go."});
        let (_, sent) = sent(&planner, &[asks, json!({"role": "assistant", "tool_calls": [call]}), result]);
        sent[2]["content"].as_str().or(sent[2]["content"][0]["text"].as_str()).unwrap().to_owned()
    };
    let expected = cut(json!(words));
    assert!(expected.len() < 15_000);
    assert_eq!(cut(json!([{"type": "text", "text": words}])), expected);
    assert_eq!(cut(json!([{"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}])), expected);
}

/// One round: the lengths of its results, and whether the first one is a file that is read.
type Round = (Vec<usize>, bool);

const WINDOWS: [usize; 3] = [8192, 16_384, 32_768];

fn planner(window: usize, keys: &str) -> Planner {
    // All texts of the sessions are alike.
    let alike = "deduplicate_tool_results.min_lines = 10000\n";
    planner_from_toml(&format!("{HTTP}{alike}{}{keys}", model(window))).unwrap()
}

fn model(window: usize) -> String {
    format!("[[models]]\nmatch = \"m\"\ncontext_window = {window}\n")
}

/// The messages of a session, and how many each request of it has.
fn session(rounds: &[Round]) -> (Vec<Value>, Vec<usize>) {
    let mut messages =
        vec![json!({"role": "system", "content": "Be brief."}), json!({"role": "user", "content": "Go."})];
    let mut requests = vec![messages.len()];
    for (n, (lengths, is_read)) in rounds.iter().enumerate() {
        let id = |i: usize| format!("call_{n}_{i}");
        let name = |i: usize| if i == 0 && *is_read { "read_file" } else { "bash" };
        let call = |i: usize| {
            let arguments = json!({"of": id(i)}).to_string();
            json!({"id": id(i), "type": "function", "function": {"name": name(i), "arguments": arguments}})
        };
        messages.push(json!({"role": "assistant", "tool_calls": (0..lengths.len()).map(call).collect::<Vec<_>>()}));
        let result = |(i, len): (usize, &usize)| json!({"role": "tool", "tool_call_id": id(i), "content": text(*len)});
        messages.extend(lengths.iter().enumerate().map(result));
        requests.push(messages.len());
    }
    (messages, requests)
}

/// The tokens of what is sent, and its messages.
fn sent(planner: &Planner, session: &[Value]) -> (usize, Vec<Value>) {
    let mut body: Value = serde_json::from_slice(&body_of(session)).unwrap();
    body["model"] = json!("m");
    let body = body.to_string().into();
    let plan = planner.plan(dialect::default(), &body).unwrap();
    let output = Bytes::from(splice(&body, &plan.splices).concat());
    let again = planner.plan(dialect::default(), &output).unwrap();
    assert!(!again.report.changes.iter().any(|change| change.edit == "truncate"), "{:?}", again.report.changes);
    (plan.report.tokens_after.unwrap_or(0), messages(&output))
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let length = prop_oneof![3 => 0_usize..2_000, 2 => 2_000_usize..20_000, 1 => 20_000_usize..120_000];
    prop::collection::vec((prop::collection::vec(length, 1..5), any::<bool>()), 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_request_of_a_session_fits_and_no_result_is_cut_anew(rounds in rounds(), window in 0..WINDOWS.len()) {
        let window = WINDOWS[window];
        let planner = planner(window, "");
        let (session, requests) = session(&rounds);
        let mut before: Vec<Value> = Vec::new();
        for n in requests {
            let (tokens, now) = sent(&planner, &session[..n]);
            prop_assert!(tokens <= window, "{tokens} of {window} tokens in a request of {n} messages");
            for (old, new) in before.iter().zip(&now) {
                let is_cleared = new["content"].as_str().is_some_and(|text| text.starts_with("[Cleared"));
                let (old, new) = (old.to_string(), new.to_string());
                prop_assert!(is_cleared || old == new, "{} bytes became {}: {}", old.len(), new.len(), new.chars().take(400).collect::<String>());
            }
            before = now;
        }
    }
}

#[test]
fn one_long_result_is_cut_to_a_quarter_of_the_window() {
    let (session, _) = session(&[(vec![49_000], false)]);
    for (window, most) in [(8192, 8192 / 4), (1 << 20, usize::MAX)] {
        let (tokens, sent) = sent(&planner(window, ""), &session);
        assert!(tokens <= most, "{tokens}");
        assert_eq!(sent == session, most == usize::MAX);
    }
}

#[test]
fn of_many_results_that_come_together_the_longest_are_cut_to_one_length() {
    let (session, _) = session(&[(vec![500, 49_000, 45_000, 49_000, 49_000], false)]);
    let (tokens, sent) = sent(&planner(32_768, ""), &session);
    assert!(tokens < 32_768 / 4 + 300 && tokens > 32_768 / 5, "{tokens}");
    assert_eq!(sent[3], session[3], "the short one is whole");
    let lengths: Vec<_> = sent[4..].iter().map(|message| message["content"].as_str().unwrap().len()).collect();
    let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
    assert!(most - least < 800, "{lengths:?}");
}

#[test]
fn what_is_read_back_is_cut_last_and_only_where_the_window_asks_for_it() {
    let read = |lengths: &[usize]| {
        let (session, _) = session(&[(lengths.to_vec(), true)]);
        let (tokens, sent) = sent(&planner(32_768, ""), &session);
        let changed: Vec<_> = (0..lengths.len()).filter(|i| sent[3 + i] != session[3 + i]).collect();
        (tokens, changed)
    };
    assert_eq!(read(&[30_000]).1, [0; 0], "more than a quarter of the window, and no more than half");
    assert_eq!(read(&[28_000, 30_000]).1, [1]);
    let (tokens, changed) = read(&[400_000, 3000]);
    assert!(changed == [0] && tokens < 32_768 / 2 + 300, "{changed:?} {tokens}");
}

#[test]
fn what_the_settings_keep_whole_stays_whole() {
    let (session, _) = session(&[(vec![90_000, 90_000], true)]);
    let keys = "[truncate_tool_results]\nexclude_tools = [\"bash\"]\n[tools.read_file]\ntruncate = false\n";
    assert_eq!(sent(&planner(8192, keys), &session).1, session);
}

#[test]
fn where_the_window_is_full_the_newest_are_cleared_too() {
    let keys = "[clear_tool_results]\ntrigger = { tokens = 1000000 }\nkeep = { results = 9 }\n";
    let rounds: Vec<Round> = (0..6).map(|_| (vec![4_000], false)).collect();
    let (session, _) = session(&rounds);
    let (tokens, sent) = sent(&planner(4096, keys), &session);
    assert!(tokens <= 4096, "{tokens}");
    let last = sent.last().unwrap()["content"].as_str().unwrap();
    assert!(last.starts_with("line"), "what was not read is there: {last}");
}

#[test]
fn without_a_way_to_read_it_again_a_result_is_cut_for_the_window_alone_and_says_so() {
    let (session, _) = session(&[(vec![90_000], false)]);
    let text = |window, tools: &Value, keys: &str| {
        let body = json!({"model": "m", "tools": tools, "messages": session}).to_string().into();
        let planner = planner_from_toml(&(keys.to_owned() + &model(window))).unwrap();
        let plan = planner.plan(dialect::default(), &body).unwrap();
        let sent = messages(&Bytes::from(splice(&body, &plan.splices).concat()));
        sent[3]["content"].as_str().unwrap().to_owned()
    };
    let tools = json!([{"type": "function", "function": {"name": "query"}}]);
    let (offered, none) = ("recall.via = \"offered\"\n", "recall.via = \"none\"\n");
    assert_eq!(json!(text(1 << 20, &tools, offered)), session[3]["content"]);
    let cut = text(8192, &tools, offered);
    assert!(cut.len() < 8192 && cut.contains("bytes left out here. It cannot be read again.]"), "{cut}");
    // If the settings ask for no way, or the request offers no tools, the length alone decides.
    for (tools, keys) in [(&tools, none), (&json!([]), offered), (&json!([]), none)] {
        let cut = text(1 << 20, tools, keys);
        assert!(cut.len() <= 50_000 && cut.contains("bytes left out here.]"), "{keys}{cut}");
    }
    let cut = text(1 << 20, &tools, "");
    assert!(cut.len() <= 50_000 && cut.contains("Read it with abridge_recall (handle="), "{cut}");
}
