//! Calls that ask for something cleared, and what follows.

#![expect(clippy::disallowed_types, reason = "messages are made here, and looked at by eyes of our own")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::policy;
use crate::{
    edit::tests::{body, body_of, messages, plan},
    plan::{Plan, Regrets},
};

/// From 1000 tokens on a pass clears all but the newest result. A result has 500 tokens.
const KEYS: &str = "trigger = { tokens = 1000 }\nclear_at_least = 0\nkeep = { results = 1 }\nkeep_reads = 0";

fn of(input: &str) -> Plan {
    plan(&body(input), &policy(KEYS)).0
}

fn rounds(calls: &[usize]) -> String {
    calls.iter().fold("u".to_owned(), |words, n| format!("{words} c:{n} t:{n}*2000"))
}

#[test]
fn the_second_call_that_repeats_a_cleared_one_doubles_keep_for_later_passes() {
    let none = of(&rounds(&[1, 2, 3, 4]));
    assert_eq!((none.report.regrets, none.report.changes.len()), (Regrets::default(), 3));
    // 27 has the arguments of 1, which is cleared; 30 those of 4, which is not cleared when it is called.
    let one = of(&rounds(&[1, 2, 3, 27, 4, 30]));
    assert_eq!(one.report.regrets, Regrets { repeated: 0, recalled: 0, in_all: 1, keep_doubled: false });
    assert_eq!(one.report.changes.len(), 5);
    let second = of(&rounds(&[1, 2, 3, 27, 4, 28]));
    assert_eq!(second.report.regrets, Regrets { repeated: 1, recalled: 0, in_all: 2, keep_doubled: true });
    assert!(second.to_string().contains("something cleared: 2; new: 1 repeated, 0 recalled; keep is doubled for that"));
    // The pass of this request spares one more than what had come to be old enough before; later ones spare two.
    let later = of(&rounds(&[1, 2, 3, 27, 4, 28, 5, 6, 7]));
    assert_eq!(later.report.regrets, Regrets { repeated: 0, recalled: 0, in_all: 2, keep_doubled: true });
    assert_eq!(later.report.changes.len(), 7);
    assert_eq!(of(&rounds(&[1, 2, 3, 8, 4, 9, 5, 6, 7])).report.changes.len(), 8);
}

#[test]
fn a_call_that_names_a_cleared_result_is_a_recall() {
    let handle = of(&rounds(&[1, 2, 3])).offloads[0].key;
    let with_last = |arguments: String| {
        let mut messages = messages(&body(&rounds(&[1, 2, 3])));
        let call = json!({"id": "r", "type": "function", "function": {"name": "bash", "arguments": arguments}});
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": "r", "content": "back"}));
        plan(&body_of(&messages), &policy(KEYS)).0.report.regrets
    };
    let recalled = Regrets { repeated: 0, recalled: 1, in_all: 1, keep_doubled: false };
    for arguments in [
        json!({"command": format!("curl http://h/abridge/recall/{handle}?lines=1-9")}),
        json!({"path": format!("/exported/{handle}.txt")}),
        json!({"handle": handle.to_string()}),
    ] {
        assert_eq!(with_last(arguments.to_string()), recalled, "{arguments}");
    }
    assert_eq!(with_last(json!({"handle": "0".repeat(26)}).to_string()), Regrets::default());
    // Everything that is longer than a call that reads is not looked at.
    let long = |n: usize| with_last(json!({"command": format!("{handle} {}", "x".repeat(n))}).to_string());
    assert_eq!((long(3900), long(4096)), (recalled, Regrets::default()));
}

#[test]
fn arguments_are_compared_by_value() {
    let with = |first: &str, last: &str, tool: &str| {
        let call = |id: &str, name: &str, arguments: &str| {
            let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        };
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "word ".repeat(500)});
        let (a, b, c) = (call("a", "view", first), call("b", "view", "{}"), call("c", tool, last));
        let body = body_of(&[json!({"role": "user"}), a, result("a"), b, result("b"), c, result("c")]);
        plan(&body, &policy(KEYS)).0.report.regrets.repeated
    };
    let first = r#"{"path": "a.rs", "lines": [1, 9]}"#;
    for (last, tool, repeated) in [
        (first, "view", 1),
        (r#"{"lines":[1,9],"path":"a\u002ers"}"#, "view", 1),
        (r#"{"path": "a.rs", "lines": [1, 8]}"#, "view", 0),
        (first, "read", 0),
        ("no JSON", "view", 0),
    ] {
        assert_eq!(with(first, last, tool), repeated, "{last} {tool}");
    }
    assert_eq!(with("no JSON", "no JSON", "view"), 1);
}

#[test]
fn a_late_result_of_an_old_call_repeats_nothing() {
    let late = "u c:1 c:27 t:1*2000 u c:2 t:2*2000 c:3 t:3*2000 a u t:27*2000 a u";
    assert_eq!(of(late).report.regrets, Regrets::default());
}

/// A conversation of rounds, each with the name of what it asks for and the length of the answer.
fn conversation(rounds: &[(u8, usize)]) -> Vec<Value> {
    let mut messages = vec![json!({"role": "user", "content": "hi"})];
    for (n, (name, len)) in rounds.iter().enumerate() {
        let (id, arguments) = (format!("call_{n}"), json!({"name": name}).to_string());
        let call = json!({"id": id, "type": "function", "function": {"name": "view", "arguments": arguments}});
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "word ".repeat(*len)}));
    }
    messages
}

proptest! {
    #[test]
    fn what_is_cleared_stays_cleared_and_doubled_stays_doubled(
        rounds in prop::collection::vec((0..5_u8, 100..800_usize), 1..24),
    ) {
        let mut before = (Vec::new(), BTreeSet::new(), Regrets::default());
        let mut doubled_at = usize::MAX;
        for n in 1..=rounds.len() {
            let came = conversation(&rounds[..n]);
            let (plan, output) = plan(&body_of(&came), &policy(KEYS));
            let went = messages(&output);
            let cleared: BTreeSet<usize> = (0..came.len()).filter(|at| came[*at] != went[*at]).collect();
            let regrets = plan.report.regrets;
            prop_assert!(before.1.is_subset(&cleared) && regrets.in_all >= before.2.in_all, "{plan}");
            prop_assert_eq!(regrets.repeated, regrets.in_all - before.2.in_all, "{}", plan);
            prop_assert_eq!(regrets.keep_doubled, regrets.in_all >= 2);
            if cleared == before.1 {
                prop_assert_eq!(&went[..before.0.len()], &before.0[..]);
            }
            if regrets.keep_doubled {
                doubled_at = doubled_at.min(n);
            }
            // With two results since then, two are spared: one of them has been read.
            let newest_but_one = (came.len() > 4).then(|| came.len() - 3);
            if n >= doubled_at.saturating_add(2) {
                prop_assert!(newest_but_one.is_some_and(|at| !cleared.contains(&at)), "{plan}");
            }
            before = (went, cleared, regrets);
        }
    }
}
