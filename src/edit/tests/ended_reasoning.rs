//! The reasoning of ended turns leaves with a clearing, and only with one.
#![expect(clippy::disallowed_types, reason = "bodies are written here")]

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    dialect,
    plan::{Action, Plan},
    planner::Planner,
    replay::planner_from_toml,
    span::splice,
};

const POLICY: &str = "policy.edits = ['patch_tool_calls', 'clear_tool_results']\n\
     recall = { via = 'http', public_url = 'http://h' }\n\
     reasoning.ended_turns = 'clear'\n\
     clear_tool_results = { trigger = { tokens = 4000 }, clear_at_least = 0, keep = { results = 1 }, when = 'any' }\n";

const MODEL: &str = "claude-opus-4-6";

/// A turn: the bytes of the results of its rounds, and whether the user adds a text to the first of them.
#[derive(Clone, Debug)]
struct Turn {
    results: Vec<usize>,
    with_results: bool,
}

fn thought(n: usize) -> String {
    format!("thought {n} {}", "about what is to be done next ".repeat(8))
}

/// The messages of a session, and how many of them each request has.
fn session(turns: &[Turn]) -> (Vec<Value>, Vec<usize>) {
    let (mut messages, mut requests, mut n) = (Vec::new(), Vec::new(), 0);
    for turn in turns {
        messages.push(json!({"role": "user", "content": "Go on."}));
        for (round, length) in turn.results.iter().enumerate() {
            requests.push(messages.len());
            n += 1;
            let think = json!({"type": "thinking", "thinking": thought(n), "signature": "c2ln".repeat(60)});
            let call = json!({"type": "tool_use", "id": format!("c{n}"), "name": "run", "input": {"n": n}});
            messages.push(json!({"role": "assistant", "content": [think, call]}));
            let text = format!("result {n} ") + &"word ".repeat(length / 5);
            let mut content = vec![json!({"type": "tool_result", "tool_use_id": format!("c{n}"), "content": text})];
            if turn.with_results && round == 0 {
                content.push(json!({"type": "text", "text": "And be quick."}));
            }
            messages.push(json!({"role": "user", "content": content}));
        }
        requests.push(messages.len());
        n += 1;
        let think = json!({"type": "thinking", "thinking": thought(n), "signature": "c2ln".repeat(60)});
        messages.push(json!({"role": "assistant", "content": [think, {"type": "text", "text": "Done."}]}));
    }
    (messages, requests)
}

fn planned(planner: &Planner, model: &str, messages: &[Value]) -> (Plan, Vec<Value>) {
    let body = json!({"model": model, "max_tokens": 9, "messages": messages});
    let bytes = Bytes::from(body.to_string());
    let plan = planner.plan(dialect::for_path("/v1/messages").unwrap(), &bytes).unwrap();
    let sent: Value = serde_json::from_slice(&splice(&bytes, &plan.splices).concat()).unwrap();
    (plan, sent["messages"].as_array().unwrap().clone())
}

/// The messages that have reasoning.
fn places(messages: &[Value]) -> Vec<usize> {
    let thinks = |message: &Value| message.to_string().contains("\"thinking\"");
    messages.iter().enumerate().filter(|(_, message)| thinks(message)).map(|(n, _)| n).collect()
}

fn n_thoughts(messages: &[Value]) -> usize {
    places(messages).len()
}

fn n_cleared(messages: &[Value]) -> usize {
    messages.iter().filter(|message| message.to_string().contains("[Cleared: ")).count()
}

/// Where the running turn begins.
fn turn_start(messages: &[Value]) -> usize {
    messages.iter().rposition(|message| message["content"].is_string()).unwrap()
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = (prop::collection::vec(200_usize..9_000, 0..6), any::<bool>());
    prop::collection::vec(turn.prop_map(|(results, with_results)| Turn { results, with_results }), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn it_leaves_with_a_clearing_is_stored_and_never_comes_back(turns in turns(), by_price in any::<bool>()) {
        let (messages, requests) = session(&turns);
        let [planner, other, without] =
            [POLICY.to_owned(), POLICY.to_owned(), POLICY.replace("'clear'\n", "'keep'\n")]
                .map(|policy| if by_price { policy.replace("clear_at_least = 0", "clear_at_least = 'auto'") } else { policy })
                .map(|policy| planner_from_toml(&policy).unwrap());
        let (mut before, mut n_left_before) = (Vec::new(), 0);
        for n in requests {
            let came = &messages[..n];
            let (plan, sent) = planned(&planner, MODEL, came);
            prop_assert_eq!(&planned(&other, MODEL, came).1, &sent, "another process");
            let (kept, _) = planned(&without, MODEL, came);
            let clears = |plan: &Plan| plan.report.changes.iter().any(|change| matches!(change.action, Action::Clear { .. }));
            let n_left = n_thoughts(came) - n_thoughts(&sent);
            prop_assert!(n_left == 0 || clears(&plan), "no clearing is made without a result");
            prop_assert!(by_price || clears(&kept) || !clears(&plan), "clearings come no earlier");
            let start = turn_start(came);
            prop_assert_eq!(n_thoughts(&sent[start..]), n_thoughts(&came[start..]), "the running turn keeps its own");
            // What stays is a run to the end, which begins no earlier than before.
            let [there, stays, stayed] = [came, &sent, &before].map(places);
            prop_assert_eq!(&stays, &there[n_left..]);
            prop_assert!(stayed.first() <= stays.first() || stays.is_empty());
            let is_pass = n_left > n_left_before || n_cleared(&sent) > n_cleared(&before);
            prop_assert!(is_pass || sent[..before.len()] == before[..], "a change of the prefix without a pass");
            n_left_before = n_left;
            let strips: Vec<_> = plan.report.changes.iter().filter(|change| matches!(change.action, Action::Strip { .. })).collect();
            prop_assert_eq!(strips.len(), n_left);
            for change in strips {
                let stored = plan.offloads.iter().find(|stored| change.handles == [stored.key]);
                let Action::Strip { message } = change.action else { unreachable!() };
                prop_assert_eq!(stored.unwrap().payload.bytes(), came[message]["content"][0]["thinking"].as_str().unwrap());
            }
            before = sent;
        }
    }
}

/// Two turns, of which the second reaches the trigger.
fn two_turns() -> Vec<Value> {
    let turn = |n| Turn { results: vec![6000; n], with_results: false };
    let (mut messages, _) = session(&[turn(1), turn(4)]);
    messages.pop();
    messages
}

#[test]
fn only_of_models_whose_makers_let_it_and_never_where_it_is_bound() {
    let messages = two_turns();
    let planner = planner_from_toml(POLICY).unwrap();
    for (model, n_left) in [
        (MODEL, 2),
        ("anthropic/claude-sonnet-5", 2),
        ("us.anthropic.claude-opus-4-8-20260416-v1:0", 2),
        ("claude-sonnet-4-5", 0), // its API drops it by itself
        ("MiniMax-M2", 0),
        ("m", 0),
    ] {
        let (_, sent) = planned(&planner, model, &messages);
        assert_eq!(n_thoughts(&messages) - n_thoughts(&sent), n_left, "{model}");
    }
    let (bound, _) = planned(&planner, "claude-opus-5-5", &messages);
    assert!(
        bound
            .report
            .changes
            .iter()
            .all(|change| change.handles.is_empty() || !matches!(change.action, Action::Strip { .. }))
    );
    let kept = planner_from_toml(&POLICY.replace("'clear'\n", "'keep'\n")).unwrap();
    assert_eq!(n_thoughts(&planned(&kept, MODEL, &messages).1), n_thoughts(&messages));
}

/// The trigger counts what is sent: reasoning that has left does not hold it again.
#[test]
fn what_has_left_does_not_count() {
    let messages = two_turns();
    let (plan, sent) = planned(&planner_from_toml(POLICY).unwrap(), MODEL, &messages);
    let counted = planned(&planner_from_toml("policy.edits = ['patch_tool_calls', 'clear_tool_results']\nclear_tool_results = { trigger = { tokens = 1 }, keep = { results = 99 } }").unwrap(), MODEL, &sent).0;
    assert_eq!(plan.report.tokens_after, counted.report.tokens_before);
}

#[test]
fn where_prices_decide_it_pays_rent_with_the_results() {
    let (mut messages, _) = session(&vec![Turn { results: vec![600], with_results: false }; 60]);
    messages.push(json!({"role": "user", "content": "Go on."}));
    let policy = POLICY.replace("clear_at_least = 0", "clear_at_least = 'auto'");
    let policy = format!("prices = [{{ read = 0.1, write = 1.0 }}]\n{}", policy.replace("4000", "1000"));
    // The results alone would never have paid for a pass.
    for (policy, n) in [(policy.replace("'clear'\n", "'keep'\n"), 0), (policy, 58)] {
        let (_, sent) = planned(&planner_from_toml(&policy).unwrap(), MODEL, &messages);
        assert_eq!((n_cleared(&sent), n_thoughts(&messages) - n_thoughts(&sent)), (n, n * 2), "{policy}");
    }
}
