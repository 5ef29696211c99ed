//! Calls of OpenAI Responses that have several results, and results that answer no call in every dialect.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;

use super::text;
use crate::{
    dialect,
    plan::{Need, Plan},
    planner::{PlanSettings, Planner},
    span::splice,
    summary::{Summary, SummaryState},
};

const PATCH: &str = "policy.edits = [\"patch_tool_calls\"]";

/// One word an item: `u` the user, `a` the model, `c1` a call, `k` reasoning, `r1=x` a result that says `x`, and
/// `r1*400` one of 400 bytes. Capitals are items of functions, others of custom tools.
fn item(word: &str) -> String {
    let (kind, rest) = word.split_at(1);
    let (id, said) = match rest.split_once('*') {
        Some((id, length)) => (id, format!("{word} {}", text(length.parse::<usize>().unwrap()).replace('\n', " "))),
        None => rest.split_once('=').map_or((rest, rest.to_owned()), |(id, said)| (id, said.to_owned())),
    };
    match kind {
        "u" => r#"{"role":"user","content":"go on"}"#.to_owned(),
        "a" => r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"so"}]}"#.to_owned(),
        "k" => r#"{"type":"reasoning","summary":[],"encrypted_content":"gAAA"}"#.to_owned(),
        "C" => format!(r#"{{"type":"function_call","call_id":"{id}","name":"exec","arguments":"{{}}"}}"#),
        "R" => format!(r#"{{"type":"function_call_output","call_id":"{id}","output":"{said}"}}"#),
        "c" => format!(r#"{{"type":"custom_tool_call","call_id":"{id}","name":"exec","input":"{id}"}}"#),
        _ => format!(r#"{{"type":"custom_tool_call_output","call_id":"{id}","output":"{said}"}}"#),
    }
}

fn body(words: &str) -> Bytes {
    let items: Vec<_> = words.split_whitespace().map(item).collect();
    format!(r#"{{"model":"gpt-5","store":false,"input":[{}]}}"#, items.join(",")).into()
}

/// The plan for a body, and what becomes of it.
pub(super) fn edited(path: &str, came: &Bytes, settings: &str) -> (Plan, String) {
    let settings: PlanSettings = toml::from_str(settings).unwrap();
    let plan = Planner::new(settings).plan(dialect::for_path(path).unwrap(), came).unwrap();
    let out = splice(came, &plan.splices).concat();
    (plan, String::from_utf8(out).unwrap())
}

/// Returns what is sent of a body, with all summaries made that it asks for.
pub(super) fn summarised(path: &str, came: &Bytes, settings: &str) -> String {
    let settings: PlanSettings = toml::from_str(settings).unwrap();
    let planner = Planner::new(settings);
    let mut known = HashMap::new();
    loop {
        let dialect = dialect::for_path(path).unwrap();
        let plan = planner.policy.plan(dialect, came, &planner.anonymous(&known)).unwrap();
        let job = match plan.needs {
            Some(Need::Make(job)) if !known.contains_key(&job.key) => job,
            _ => return String::from_utf8(splice(came, &plan.splices).concat()).unwrap(),
        };
        let (text, tokens_replaced, made_at) = (job.frame.around("So far."), job.tokens_replaced, job.n_elements);
        let summary = Summary { text, tokens_replaced, made_at, transcript: None };
        known.insert(job.key, SummaryState::Summary(Arc::new(summary)));
    }
}

fn check(came: &str, settings: &str, expected: &str) {
    let (plan, out) = edited("/v1/responses", &body(came), settings);
    let expected = String::from_utf8(body(expected).to_vec()).unwrap();
    let placeholder = "Tool call exec (2) has no result: it was interrupted before it finished.";
    assert_eq!(out.replace(placeholder, "none"), expected, "{came}\n{plan}");
}

#[test]
fn a_further_result_that_comes_later_moves_nothing() {
    let before = "u c2 c1 r1=x a u";
    let sent = |words: &str| edited("/v1/responses", &body(words), PATCH).1;
    let (first, later) = (sent(before), sent(&format!("{before} r1=y a u")));
    assert!(later.starts_with(first.strip_suffix("]}").unwrap()), "{first}\n{later}");
    assert!(first.find("has no result") < first.find(r#""output":"x""#), "in the order of the calls: {first}");
}

#[test]
fn results_get_the_order_of_the_calls_unless_a_call_has_several_there() {
    check("u c1 c2 r2 r1 a u", PATCH, "u c1 c2 r1 r2 a u");
    check("u k c1 C2 c3 r3 r1 R2 a u", PATCH, "u k c1 C2 c3 r1 R2 r3 a u");
    for same in ["u c1 c2 r2 r1=x r1=y a u", "u c1 c2 r2=x r1 r2=y a u"] {
        check(same, PATCH, same);
    }
    // A further result in a later turn changes nothing of what was sent.
    check("u c1 c2 r2 r1=x a u r1=y a u", PATCH, "u c1 c2 r1=x r2 a u r1=y a u");
}

#[test]
fn all_results_of_a_call_stay_where_they_are() {
    for same in [
        "u c1 r1=x r1=y r1=z a u",
        "u C1 R1=x R1=y a u",
        // Of several calls, in any order.
        "u c1 c2 r1=x r2=x r1=y r2=y r1=z a u",
        "u k c1 C2 R2=x r1=x R2=y r1=y a u",
        // A notification that comes behind other items, or in a later turn.
        "u c1 r1=x u r1=y a r1=z u a u r1=w",
        "u c1 r1=x a c2 r2=x r1=y a",
        // Ids that are used again: of the newest call.
        "u c1 r1=x r1=y u c1 r1=x u r1=y",
    ] {
        check(same, PATCH, same);
        check(same, "", same);
    }
}

#[test]
fn the_first_of_several_late_results_replaces_the_placeholder_and_the_others_stay() {
    check("u c1 c2 r1=x u", PATCH, "u c1 c2 r1=x r2=none u");
    check("u c1 c2 r1=x u r1=y r2=x r2=y", PATCH, "u c1 c2 r1=x r2=x u r1=y r2=y");
    // The calls of one id are answered first.
    check("u c2 u c2 r2=x r2=y r2=z", PATCH, "u c2 r2=y u c2 r2=x r2=z");
    check("u r1=early c1 r1=x r1=y", PATCH, "u c1 r1=x r1=y");
    check("u c1 r1=x R1=y", PATCH, "u c1 r1=x");
}

#[test]
fn a_further_result_changes_nothing_that_was_sent_before() {
    let words = "u c1 c2 r1=x a u r1*4000 k c3 r3*4000 a u r1*900 a u r1=z r3=y";
    let settings =
        "recall.via = \"http\"\nrecall.public_url = \"http://h\"\ntruncate_tool_results = { max_bytes = 500 }";
    let all: Vec<_> = words.split_whitespace().collect();
    let sent = |n: usize| edited("/v1/responses", &body(&all[..n].join(" ")), settings).1;
    for (before, after) in [(4, 6), (6, 7), (7, 10), (10, 12), (12, 13), (13, 15), (15, 16), (16, 17)] {
        let (before, after) = (sent(before), sent(after));
        assert!(after.starts_with(before.trim_end_matches("]}")), "{before}\n{after}");
    }
}

#[test]
fn each_of_several_results_is_truncated_and_cleared_by_itself() {
    let came = "u c1 r1*4000 r1=y r1*5000 a u r1*6000 c2 r2=x a u";
    let recall = "recall = { via = \"http\", public_url = \"http://h\" }\n";
    let (plan, out) = edited("/v1/responses", &body(came), &format!("{recall}truncate_tool_results.max_bytes = 1000"));
    assert_eq!((plan.offloads.len(), out.matches("left out here").count()), (3, 3), "{plan}");
    let clear = "clear_tool_results = { when = \"any\", trigger = { tokens = 10 }, keep = { results = 2 }, clear_at_least = 0 }";
    let (plan, out) = edited("/v1/responses", &body(came), &format!("{recall}{clear}"));
    assert_eq!((plan.offloads.len(), out.matches("[Cleared").count()), (2, 2), "{plan}");
    assert!(out.contains("r1*6000 line") && out.contains(r#""output":"y""#), "{out}");
}

#[test]
fn a_call_leaves_with_all_of_its_results_or_not_at_all() {
    let filter = "filter_tool_calls.max_tool_calls = 1";
    check("u c1 r1=x r1=y c2 r2=x a u", filter, "u c2 r2=x a u");
    check("u k c1 r1=x r1=y k c2 r2=x a u", filter, "u k c2 r2=x a u");
    // The second came when the call had left: the call is back.
    check("u c1 r1=x c2 r2=x a u a", filter, "u c2 r2=x a u a");
    check("u c1 r1=x c2 r2=x a u a r1=y a", filter, "u c1 r1=x c2 r2=x a u a r1=y a");
    check("u c1 r1=x c2 r2=x a u a r1=y a u", filter, "u c1 r1=x a u a r1=y a u");
}

#[test]
fn the_round_of_a_further_result_stays_beside_the_summary() {
    let settings = "policy.edits = [\"patch_tool_calls\", \"summarize\"]\n\
                    summarize = { trigger = { messages = 6 }, mode = \"blocking\", keep = { results = 1 } }";
    let out = summarised("/v1/responses", &body("u c1 r1=x a u c2 r2*4000 a u c3 r3=x r1=late"), settings);
    let places = ["So far.", r#""call_id":"1","name""#, r#""output":"x""#, r#""call_id":"3","name""#, "late"];
    let places = places.map(|word| out.find(word));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{out}");
    assert!(!out.contains(r#""call_id":"2""#), "{out}");
}

/// Of a result that answers no call, what it says and what its handle is.
#[test]
fn what_leaves_without_a_call_is_stored_and_named_in_the_report() {
    let said = "nobody \\\"asked\\\" for this";
    for (path, body) in [
        (
            "/v1/chat/completions",
            format!(
                r#"{{"messages":[{{"role":"user","content":"x"}},{{"role":"tool","tool_call_id":"9","content":"{said}"}},{{"role":"user","content":"y"}}]}}"#
            ),
        ),
        (
            "/v1/chat/completions",
            format!(
                r#"{{"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","tool_calls":[{{"id":"9","function":{{"name":"f"}}}}]}},{{"role":"tool","tool_call_id":"9","content":"a"}},{{"role":"tool","tool_call_id":"9","content":[{{"type":"text","text":"{said}"}}]}}]}}"#
            ),
        ),
        (
            "/v1/responses",
            format!(
                r#"{{"input":[{{"role":"user","content":"x"}},{{"type":"function_call_output","call_id":"9","output":"{said}"}}]}}"#
            ),
        ),
        (
            "/v1/responses",
            format!(
                r#"{{"input":[{{"role":"user","content":"x"}},{{"type":"shell_call_output","call_id":"9","output":[{{"stdout":"{said}","stderr":"","outcome":{{"type":"exit","exit_code":0}}}}]}}]}}"#
            ),
        ),
        (
            "/v1/messages",
            format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"9","content":[{{"type":"text","text":"{said}"}}]}},{{"type":"text","text":"x"}}]}}]}}"#
            ),
        ),
    ] {
        let (plan, out) = edited(path, &Bytes::from(body), "");
        assert!(!out.contains("nobody"), "{plan}");
        let stored: Vec<_> = plan.offloads.iter().map(|offload| offload.payload.bytes()).collect();
        assert_eq!(stored, ["nobody \"asked\" for this"], "{path} {plan}");
        assert_eq!(plan.report.changes[0].handles, [plan.offloads[0].key], "{path} {plan}");
    }
    // Everything that has no text is stored as it is written.
    let odd = br#"{"input":[{"role":"user","content":"x"},{"type":"function_call_output","call_id":"9","output":[{"type":"future","of":[1]}]}]}"#;
    let (plan, _) = edited("/v1/responses", &Bytes::from_static(odd), "");
    assert_eq!(plan.offloads[0].payload.bytes(), &br#"[{"type":"future","of":[1]}]"#[..], "{plan}");
}
