//! Where a pass is made, and when it pays.

use serde_json::json;

use super::policy;
use crate::edit::tests::{body, body_of, check, check_untouched, messages, plan};
use crate::plan::SkipReason;

/// A round has some 510 tokens, of which a pass frees some 430. At the beginning of a turn 1500 tokens are enough.
const TURN: &str = "trigger = { tokens = 4000 }\nwhen = 'turn'\nkeep = { results = 1 }\n";

/// The same, where a pass frees a seventh of the trigger.
fn fixed(keys: &str) -> String {
    policy(&format!("{TURN}clear_at_least = 571\n{keys}"))
}

fn rounds(n: usize) -> String {
    let rounds: Vec<_> = (1..=n).map(|n| format!("c:{n} t:{n}*2000")).collect();
    format!("u {}", rounds.join(" "))
}

/// How many results are cleared in each request of a growing conversation.
fn fronts(inputs: &[String], policy: &str) -> Vec<usize> {
    inputs.iter().map(|input| plan(&body(input), policy).0.report.changes.len()).collect()
}

#[test]
fn a_pass_waits_for_the_user_or_for_the_trigger() {
    check_untouched(&rounds(4), &fixed(""));
    let cleared = "u c:1 t:1! c:2 t:2! c:3 t:3! c:4 t:4*2000";
    check(&format!("{} a u", rounds(4)), &fixed(""), &format!("{cleared} a u"));
    // What the user says beside results begins a turn, too.
    check(&format!("{} u", rounds(4)), &fixed(""), "u c:1 t:1! c:2 t:2! c:3 t:3! c:4 t:4*2000 u");
    // It stays cleared, and the next rounds stay whole.
    let more = "a u c:5 t:5*2000 c:6 t:6*2000";
    check(&format!("{} {more}", rounds(4)), &fixed(""), &format!("{cleared} {more}"));
    // Below three eighths of the trigger nothing is done, and from the trigger on the user is not waited for.
    check_untouched(&format!("{} a u", rounds(2)), &fixed(""));
    let requests: Vec<_> = (5..=9).map(rounds).collect();
    assert_eq!(fronts(&requests, &fixed("")), [0, 0, 0, 7, 7]);
    assert_eq!(fronts(&requests, &fixed("").replace("turn", "any")), [0, 0, 0, 7, 7]);
    // Only at the beginning of a turn, a pass that frees too little is left out with a word.
    let waits = |input: &str| plan(&body(input), &policy(&format!("{TURN}clear_at_least = 2000"))).0.report.left_out;
    assert_eq!(waits(&format!("{} a u", rounds(4)))[0].why, SkipReason::TooLittle);
    assert_eq!(waits(&rounds(4)), []);
}

#[test]
fn a_reminder_of_the_client_is_not_the_user() {
    let with_last = |text: &str| {
        let mut messages = messages(&body(&rounds(4)));
        messages.push(json!({"role": "user", "content": [{"type": "text", "text": text}]}));
        plan(&body_of(&messages), &fixed("")).0.report.changes.len()
    };
    assert_eq!(with_last("<system-reminder>The list of tasks is empty.</system-reminder>"), 0);
    assert_eq!(with_last("Look at <system-reminder> once more."), 3);
}

#[test]
fn with_auto_a_pass_is_made_when_it_pays() {
    let auto = |prices: &str, keys: &str| {
        let prices = format!("prices = {{ {prices} }}\n");
        let keys = format!("clear_at_least = 'auto'\n{keys}");
        prices + &policy(&keys)
    };
    let any = "trigger = { tokens = 1 }\nkeep = { results = 1 }";
    let requests: Vec<_> = (1..=12).map(rounds).collect();
    // Without a cache a pass costs nothing, so each request gets one.
    assert_eq!(fronts(&requests, &auto("read = 1.0", any)), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    // With three kept, two whole rounds stay behind what a pass takes: some 1100 tokens, at the price of a write without a read.
    let three = "trigger = { tokens = 1 }\nkeep = { results = 3 }";
    assert_eq!(fronts(&requests, &auto("read = 0.5", three)), [0, 0, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8]);
    assert_eq!(fronts(&requests, &auto("read = 0.2", three)), [0, 0, 0, 0, 0, 0, 0, 5, 5, 5, 5, 5]);
    assert_eq!(fronts(&requests, &auto("read = 0.02", three)), [0; 12]);
    // Between turns the trigger has to hold, and what was paid till then counts.
    assert_eq!(fronts(&requests, &auto("read = 0.5", TURN)), [0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7]);
}

#[test]
fn where_reading_costs_nothing_only_the_trigger_makes_a_pass() {
    let keys = format!("{TURN}clear_at_least = 'auto'");
    let turn = format!("{} a u", rounds(6));
    let free = format!("prices = {{ read = 0 }}\n{}", policy(&keys));
    check_untouched(&turn, &free);
    check(
        &turn.replacen("u ", "u c:9 t:9*9000 ", 1),
        &free,
        "u c:9 t:9! c:1 t:1! c:2 t:2! c:3 t:3! c:4 t:4*2000 c:5 t:5*2000 c:6 t:6*2000 a u",
    );
    // At a usual price the same conversation has a pass where the turn begins.
    let usual = plan(&body(&turn), &format!("prices = {{ read = 0.5 }}\n{}", policy(&keys))).0;
    assert_eq!(usual.report.changes.len(), 5);
    // So has it by the prices of the upstream and the model.
    let at = |upstream: &str| {
        plan(&body(&turn), &format!("upstream = '{upstream}'\n{}", policy(&keys))).0.report.changes.len()
    };
    assert_eq!((at("localhost"), at("api.openai.com")), (0, 5));
}

#[test]
fn clear_at_least_is_a_number_or_auto() {
    let read = |text: &str| toml::from_str::<super::Settings>(&format!("clear_at_least = {text}"));
    for text in ["0", "14285", "\"auto\""] {
        let settings = read(text).unwrap();
        assert!(toml::to_string(&settings).unwrap().contains(&format!("clear_at_least = {text}\n")));
    }
    for text in ["-1", "\"Auto\"", "true", "0.5"] {
        assert!(read(text).unwrap_err().message().contains("a number of tokens or \"auto\""), "{text}");
    }
}
