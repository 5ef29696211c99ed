//! What earlier requests were like: frontiers that stay, results that came late, rounds that a filter has left out.

use super::{always, policy};
use crate::edit::tests::{body, check, check_late, check_untouched, plan, words};

#[test]
fn sticky_clears_again_only_when_the_trigger_holds_again() {
    // A round has some 550 tokens, and some 110 when its result is cleared.
    let keys = "trigger = { tokens = 1800 }\nkeep = { results = 1 }";
    let mut input = "u".to_owned();
    let mut fronts = Vec::new();
    for n in 1..=9 {
        input = format!("{input} c:{n} t:{n}*2000");
        let (plan, _) = plan(&body(&input), &policy(keys));
        fronts.push(plan.report.changes.len());
    }
    assert_eq!(fronts, [0, 0, 0, 3, 3, 3, 6, 6, 8]);
    let (sliding, _) = plan(&body(&input), &policy(&format!("{keys}\nfrontier = 'sliding'")));
    assert_eq!(sliding.report.changes.len(), 8);
}

/// Clearing makes messages no fewer, so a trigger that asks for these alone would hold for ever.
#[test]
fn a_trigger_of_messages_alone_holds_again_when_as_many_have_come() {
    let clears = |n_rounds: usize, trigger: &str| {
        let rounds: Vec<_> = (1..=n_rounds).map(|n| format!("c:{n} t:{n}*2000")).collect();
        let keys = format!("trigger = {trigger}\nkeep = {{ results = 1 }}");
        plan(&body(&format!("u {}", rounds.join(" "))), &policy(&keys)).0.report.changes.len()
    };
    let fronts = |trigger: &str| (1..=13).map(|n| clears(n, trigger)).collect::<Vec<_>>();
    assert_eq!(fronts("{ messages = 8 }"), [0, 0, 0, 3, 3, 3, 3, 7, 7, 7, 7, 11, 11]);
    // With tokens beside them, these say when it holds again.
    assert_eq!(fronts("{ messages = 8, tokens = 1800 }"), [0, 0, 0, 3, 3, 3, 6, 6, 8, 8, 10, 10, 12]);
}

#[test]
fn what_was_cleared_stays_cleared_when_a_filter_leaves_more_out() {
    let keys = "trigger = { tokens = 1800 }\nkeep = { results = 1 }\n[filter_tool_calls]\nmax_tool_calls = 3";
    let four = "u c:1 t:1*2000 c:2 t:2*2000 c:3 t:3*2000 c:4 t:4*2000";
    check(four, &policy(keys), "u c:1 t:1! c:2 t:2! c:3 t:3! c:4 t:4*2000");
    // Less is sent than the trigger asks for.
    check(&format!("{four} a u"), &policy(keys), "u c:2 t:2! c:3 t:3! c:4 t:4*2000 a u");
    // Everything that was truncated and has left counts as it was then: with 5000 bytes it would make a pass.
    let truncated = format!("{keys}\n[truncate_tool_results]\nmax_bytes = 1000");
    check_untouched("u c:1 t:1*1000 c:2 t:2*1000 c:3 t:3*1000 c:4 t:4*1000", &policy(&truncated));
    let long = "u c:1 t:1*5000 c:2 t:2*1000 c:3 t:3*1000 c:4 t:4*1000";
    check(long, &policy(&truncated), "u c:1 t:1~ c:2 t:2*1000 c:3 t:3*1000 c:4 t:4*1000");
    check(&format!("{long} a u"), &policy(&truncated), "u c:2 t:2*1000 c:3 t:3*1000 c:4 t:4*1000 a u");
}

#[test]
fn the_trigger_holds_for_what_a_filter_has_left() {
    let filter = "\n[filter_tool_calls]\nmax_tool_calls = 1";
    // One call of two, both, and both out of a message that has text; one is back, as its result has arrive late.
    for input in [
        "u c:1^900,2 t:1 t:2*2000 c:3^300 t:3*2000 u c:4 t:4*2000 u a u",
        "u c:1^900,2 t:1 t:2*2000 u C:3^300,4 t:3*2000 t:4 u c:5 t:5*2000 u a u",
        "u C:1^900,2 t:2*2000 c:3^300 t:3*2000 u c:4 t:4*2000 u a u t:1*2000",
        "u c:1^900,2 c:3^300 t:3*2000 u c:4 t:4*2000 u a u t:1*2000",
    ] {
        let count = format!(
            "[clear_tool_results]\nwhen = 'any'\ntrigger = {{ tokens = 100 }}\nclear_at_least = 100000{filter}"
        );
        let (counted, _) = plan(&body(input), &count);
        let (n_tokens, n_messages) = (counted.report.tokens_after.unwrap(), counted.report.messages_after);
        for (trigger, holds) in [
            (format!("tokens = {n_tokens}"), true),
            (format!("tokens = {}", n_tokens + 1), false),
            (format!("messages = {n_messages}"), true),
            (format!("messages = {}", n_messages + 1), false),
        ] {
            let keys = format!(
                "trigger = {{ {trigger} }}\nclear_at_least = 0\nkeep = {{ results = 0 }}\nfrontier = 'sliding'{filter}"
            );
            let (plan, _) = plan(&body(input), &policy(&keys));
            assert_eq!(plan.report.changes.iter().any(|change| change.edit == "clear"), holds, "{trigger} {input}");
        }
    }
}

#[test]
fn a_late_result_brings_nothing_back() {
    let rounds = |cleared: usize| {
        let round = |n| format!("c:{n} t:{n}{}", if n <= cleared { "!" } else { "*2000" });
        (1..=14).map(round).collect::<Vec<_>>().join(" ")
    };
    let (before, late) = (format!("u c:b u {} a u", rounds(0)), format!("u c:b u {} a u t:b*900", rounds(0)));
    for frontier in ["sticky", "sliding"] {
        for (trigger, keep, cleared) in [("messages = 1", "results = 3", 11), ("tokens = 2000", "rounds = 1", 13)] {
            let policy = policy(&format!(
                "trigger = {{ {trigger} }}\nkeep = {{ {keep} }}\nclear_at_least = 0\nfrontier = '{frontier}'"
            ));
            check_late(&before, &policy, &format!("u c:b t:b*72 u {} a u", rounds(cleared)));
            // Of three that are kept it is the newest.
            let cleared = if keep == "results = 3" { 12 } else { cleared };
            check_late(&late, &policy, &format!("u c:b t:b*900 u {} a u", rounds(cleared)));
            // Two of one batch, one of them of no call, and one of the last round.
            let many = late.replacen("c:b", "c:b,d t:d", 1).replace("t:b*900", "c:e,f t:e u t:x t:f*900 t:b*900");
            let (plan, output) = plan(&body(&many), &policy);
            assert!(words(&output).ends_with("a u c:e,f t:e t:f*900 u"), "{}", words(&output));
            assert!(plan.report.changes.iter().filter(|change| change.edit == "clear").count() >= 12, "{plan}");
        }
    }
}

#[test]
fn a_late_result_counts_by_when_it_came() {
    let kept = |n: usize| always(&format!("keep = {{ results = {n} }}"));
    let late = "u c:1 u c:2 t:2*2000 c:3 t:3*2000 a u t:1*2000 a u";
    check_late(late, &kept(1), "u c:1 t:1*2000 u c:2 t:2! c:3 t:3! a u a u");
    check_late(&format!("{late} c:4 t:4*2000"), &kept(1), "u c:1 t:1! u c:2 t:2! c:3 t:3! a u a u c:4 t:4*2000");
    // What replaced it does not count any more.
    check_late(
        "u c:1 u c:2 t:2*2000 c:3 t:3*2000 a u t:1*2000",
        &kept(3),
        "u c:1 t:1*2000 u c:2 t:2*2000 c:3 t:3*2000 a u",
    );
    // One of a tool that is never cleared, and one that is larger than all that is kept.
    let excluded = always("exclude_tools = ['x']\nkeep = { results = 1 }");
    check_late(
        "u c:x/1 u c:2 t:2*2000 c:3 t:3*2000 a u t:x/1*2000 a u",
        &excluded,
        "u c:x/1 t:x/1*2000 u c:2 t:2! c:3 t:3! a u a u",
    );
    let tokens = always("keep = { tokens = 600 }");
    check_late("u c:1 u c:2 t:2*2000 a u t:1*9000 a u", &tokens, "u c:1 t:1! u c:2 t:2! a u a u");
}

#[test]
fn a_moved_result_is_cleared_where_it_stands() {
    check("u c:1,2 t:1*2000 u t:2*2000 a u", &always("keep = { results = 0 }"), "u c:1,2 t:1! t:2! u a u");
    // The model has not read it, though it precedes a message of the model now.
    let (plan, _) = plan(&body("u c:1 u a t:1*2000"), &always("keep = { results = 0 }"));
    assert_eq!(plan.report.counts(), [("patch", 2)], "it is moved, and a text is in its place");
}
