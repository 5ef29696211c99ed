//! Where a pass is made, and when it pays.

use serde_json::json;

use super::super::{AtLeast, Moment};
use super::policy;
use crate::edit::tests::{HTTP, body, body_of, check, check_untouched, messages, plan};
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
        let prices = format!("prices = [{{ {prices} }}]\n");
        let keys = format!("clear_at_least = 'auto'\n{keys}");
        prices + &policy(&keys)
    };
    let any = "trigger = { tokens = 1 }\nkeep = { results = 1 }";
    // The arguments of the first call make what a pass costs little beside what was paid so far.
    let requests: Vec<_> = (1..=12).map(|n| rounds(n).replacen("c:1", "c:1^400000", 1)).collect();
    // Without a cache a pass costs nothing, so each request gets one.
    assert_eq!(fronts(&requests, &auto("read = 1.0", any)), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    // With three kept, two whole rounds stay behind what a pass takes: some 1100 tokens, at the price of a write without a read.
    let three = "trigger = { tokens = 1 }\nkeep = { results = 3 }";
    assert_eq!(fronts(&requests, &auto("read = 0.5", three)), [0, 0, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8]);
    assert_eq!(fronts(&requests, &auto("read = 0.2", three)), [0, 0, 0, 0, 0, 0, 0, 5, 5, 5, 5, 5]);
    assert_eq!(fronts(&requests, &auto("read = 0.02", three)), [0; 12]);
    let requests: Vec<_> = (1..=12).map(rounds).collect();
    // Between turns the trigger has to hold, and what was paid till then counts.
    assert_eq!(fronts(&requests, &auto("read = 0.5", TURN)), [0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7]);
}

#[test]
fn where_reading_costs_nothing_only_the_trigger_makes_a_pass() {
    let keys = format!("{TURN}clear_at_least = 'auto'");
    // After sixty turns what a pass costs is little beside what was paid so far.
    let turns = "a u ".repeat(60);
    let turn = format!("{} {}", rounds(6), turns.trim());
    let free = format!("prices = [{{ read = 0 }}]\n{}", policy(&keys));
    check_untouched(&turn, &free);
    check(
        &turn.replacen("u ", "u c:9 t:9*9000 ", 1),
        &free,
        &format!("u c:9 t:9! c:1 t:1! c:2 t:2! c:3 t:3! c:4 t:4*2000 c:5 t:5*2000 c:6 t:6*2000 {}", turns.trim()),
    );
    // At a usual price the same conversation has a pass where the turn begins.
    let usual = plan(&body(&turn), &format!("prices = [{{ read = 0.5 }}]\n{}", policy(&keys))).0;
    assert_eq!(usual.report.changes.len(), 5);
    // So has it by the prices of the upstream and the model.
    let at = |upstream: &str| {
        plan(&body(&turn), &format!("upstream = '{upstream}'\n{}", policy(&keys))).0.report.changes.len()
    };
    assert_eq!((at("localhost"), at("api.openai.com")), (0, 5));
}

#[test]
fn what_is_not_set_follows_from_the_frontier_and_the_moment() {
    let of = |keys: &str| {
        let settings: super::Settings = toml::from_str(keys).unwrap();
        (settings.moment(), settings.at_least())
    };
    assert_eq!(of(""), (Moment::Turn, Some(AtLeast::Auto)));
    assert_eq!(of("trigger = { tokens = 9 }"), (Moment::Turn, Some(AtLeast::Auto)));
    assert_eq!(of("when = 'any'"), (Moment::Any, None));
    assert_eq!(of("clear_at_least = 7"), (Moment::Turn, Some(AtLeast::Tokens(7))));
    assert_eq!(of("frontier = 'sliding'"), (Moment::Any, Some(AtLeast::Tokens(0))));
}

#[test]
fn when_the_window_is_nearly_full_a_pass_need_not_pay() {
    let keys = "trigger = { tokens = 4000 }\nkeep = { results = 1 }\n";
    let cleared = |model: &str, n: usize, more: &str| {
        let policy = format!("prices = [{{ read = 0.01 }}]\n{HTTP}[clear_tool_results]\n{keys}{more}");
        let request = json!({"model": model, "messages": messages(&body(&rounds(n)))});
        let report = plan(&request.to_string().into(), &policy).0.report;
        (report.changes.len(), report.tokens_before.unwrap() >= 8192 - 8192 / 5)
    };
    // gpt-4 has a window of 8192.
    assert_eq!((cleared("gpt-4", 12, ""), cleared("gpt-4", 13, "")), ((0, false), (12, true)));
    assert_eq!(cleared("nobody-knows", 13, "").0, 0);
    // It frees a seventh of the trigger, or waits.
    assert_eq!(cleared("gpt-4", 13, "exclude_tools = ['bash']").0, 0);
    assert_eq!((cleared("gpt-4", 14, "").0, cleared("gpt-4", 15, "").0), (12, 12));
}

#[test]
fn no_pass_is_made_that_would_add_a_sixteenth_to_what_was_paid_so_far() {
    // Results that are cheap to read pay a rent that reaches the price of a pass, which is most of what was paid so far.
    let conversation = |n_requests: usize| format!("{} {}", rounds(9), "a u ".repeat(n_requests));
    let cleared = |read: &str, n_requests: usize| {
        let keys = "trigger = { tokens = 1 }\nkeep = { results = 4 }\nclear_at_least = 'auto'";
        let policy = format!("prices = [{{ read = {read} }}]\n{}", policy(keys));
        plan(&body(&conversation(n_requests)), &policy).0.report.changes.len()
    };
    // Some 2400 tokens stay behind 2150 that may go: at 0.02, these have paid for a pass after 55 requests.
    assert_eq!((cleared("0.02", 30), cleared("0.02", 60)), (0, 0));
    assert_eq!((cleared("0.2", 0), cleared("0.2", 60)), (0, 5));
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
