//! Conversations in shorthand, one word a message:
//!
//! - `s`, `u`, `a`, `f`: a system, user, plain assistant and legacy function message
//! - `a:1,2`: an assistant message that calls `1` and `2`; a name of `_` is an empty id, `0` is null, `-` none at all
//! - `t:1`: a result for the call `1`; `t:1=x` tells it from others
//! - `p:1`: what replaces a missing result; in expectations only

use std::fmt::Write as _;

use bytes::Bytes;

use super::*;
use crate::{
    conversation::{CallIndex, Pairing},
    dialect::{self, Dialect},
    plan::Plan,
    planner::{PlanSettings, Planner},
    platform::testing::thread_time,
    span::splice,
};

const TEMPLATE: &str = "none for {tool_name}/{tool_call_id}";

fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").unwrap()
}

fn settings(orphans: Orphans) -> Settings {
    Settings { template: Some(TEMPLATE.to_owned()), orphans, handler: None }
}

fn planner(settings: &Settings, language: Language) -> Planner {
    Planner::new(PlanSettings { language, patch_tool_calls: settings.clone(), ..PlanSettings::default() })
}

/// The JSON of one word.
fn message(word: &str) -> String {
    let field = |key: &str, id: &str| match id {
        "-" => String::new(),
        "0" => format!(r#""{key}":null,"#),
        "_" => format!(r#""{key}":"","#),
        id => format!(r#""{key}":"{id}","#),
    };
    match word.split_once(':') {
        None => {
            let role = match word {
                "s" => "system",
                "u" => "user",
                "a" => "assistant",
                _ => "function",
            };
            format!(r#"{{"role":"{role}","content":"hi"}}"#)
        }
        Some(("a", calls)) => {
            let calls: Vec<_> =
                calls.split(',').map(|id| format!(r#"{{{}"function":{{"name":"f"}}}}"#, field("id", id))).collect();
            format!(r#"{{"role":"assistant","tool_calls":[{}]}}"#, calls.join(","))
        }
        Some(("p", id)) => {
            let (raw, text) = if ["-", "0", "_"].contains(&id) { ("", "unknown") } else { (id, id) };
            format!(r#"{{"role":"tool","tool_call_id":"{raw}","content":"none for f/{text}"}}"#)
        }
        Some((_, result)) => {
            let (id, content) = result.split_once('=').unwrap_or((result, ""));
            format!(r#"{{"role":"tool",{}"content":"{content}"}}"#, field("tool_call_id", id))
        }
    }
}

fn body(words: &str) -> Bytes {
    let messages: Vec<_> = words.split_whitespace().map(message).collect();
    Bytes::from(format!(r#"{{"messages":[{}]}}"#, messages.join(",")))
}

fn run(body: &Bytes, settings: &Settings) -> (Plan, String) {
    let plan = planner(settings, Language::En).plan(dialect(), body).unwrap();
    let output = splice(body, &plan.splices).concat();
    (plan, String::from_utf8(output).unwrap())
}

fn check_with(orphans: Orphans, words: &str, expected: &str) {
    let expected = String::from_utf8(body(expected).to_vec()).unwrap();
    let (plan, output) = run(&body(words), &settings(orphans));
    assert_eq!(output, expected, "{words}\n{plan}");
    assert_eq!(plan.is_empty(), plan.report.changes.is_empty());
    let (again, _) = run(&Bytes::from(output), &settings(orphans));
    assert!(again.is_empty(), "{words}\n{again}");
}

fn check(words: &str, expected: &str) {
    check_with(Orphans::Drop, words, expected);
}

/// Checks that a conversation in order is left alone.
fn check_untouched(words: &str) {
    check_with(Orphans::Drop, words, words);
    check_with(Orphans::Keep, words, words);
}

#[test]
fn leaves_valid_conversations_alone() {
    check_untouched("");
    check_untouched("s u a u a");
    check_untouched("u a:1 t:1 a:2,3 t:2 t:3 a u");
    check_untouched("s u f a f");
}

#[test]
fn a_dangling_call_gets_a_result() {
    check("u a:1 u", "u a:1 p:1 u");
    check("u a:1 a:2 t:2", "u a:1 p:1 a:2 t:2");
    check("a:1", "a:1 p:1");
    check("u a:1,2", "u a:1,2 p:1 p:2");
}

#[test]
fn results_have_the_order_of_the_calls() {
    check("u a:1,2 t:2 t:1 a u", "u a:1,2 t:1 t:2 a u");
    check("a:1,2,3 t:2 t:3 t:1", "a:1,2,3 t:1 t:2 t:3");
    check("a:1,2,3 t:3 t:1 t:2", "a:1,2,3 t:1 t:2 t:3");
    check("a:1,2 t:2 t:1 a:1,2 t:2 t:1", "a:1,2 t:1 t:2 a:1,2 t:1 t:2");
    check("a:1,2,3 t:2 t:1 u t:3", "a:1,2,3 t:1 t:2 t:3 u");
    check("a:1,2,3 t:1 t:2 u t:3", "a:1,2,3 t:1 t:2 t:3 u");
    check("a:1,2,3 t:3 t:1 u", "a:1,2,3 t:1 p:2 t:3 u");
    // Without an id on each side, position decides.
    check_untouched("a:1,- t:- t:1");
    check("a:1,2,3,4 t:3 u", "a:1,2,3,4 p:1 p:2 t:3 p:4 u");
    check("a:1,2 u t:1", "a:1,2 t:1 p:2 u");
}

#[test]
fn a_displaced_result_goes_to_its_run() {
    check("a:1 u t:1", "a:1 t:1 u");
    check("a:1,2 t:2 u t:1 a", "a:1,2 t:1 t:2 u a");
    check("a:1,2 s t:2 u t:1 a", "a:1,2 t:1 t:2 s u a");
    check("a:1 a:2 t:2 t:1 u", "a:1 t:1 a:2 t:2 u");
    check("a:1 a:2 t:1 t:2 u", "a:1 t:1 a:2 t:2 u");
    check("a:1 f t:1", "a:1 t:1 f");
}

#[test]
fn ids_may_repeat_from_turn_to_turn() {
    check_untouched("a:1 t:1 a:1 t:1 a:1 t:1");
    check("a:1 u a:1 t:1", "a:1 p:1 u a:1 t:1");
    check("a:1 u a:1 t:1=x u t:1=y", "a:1 t:1=y u a:1 t:1=x u");
    check("a:1 t:1 u a:1 u", "a:1 t:1 u a:1 p:1 u");
}

#[test]
fn ids_may_repeat_in_one_batch() {
    check_untouched("a:1,1,1 t:1 t:1 t:1");
    check("a:1,1 t:1 u", "a:1,1 t:1 p:1 u");
    check("a:1,1 t:1=x u t:1=y t:1=z", "a:1,1 t:1=x t:1=y u");
}

#[test]
fn of_calls_with_one_id_the_first_is_answered_first() {
    let body = Bytes::from_static(
        br#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"g"}},{"id":"1","custom":{"name":"h"}}]},{"role":"tool","tool_call_id":"1"}]}"#,
    );
    let (_, output) = run(&body, &settings(Orphans::Drop));
    assert!(output.ends_with(r#","content":"none for h/1"}]}"#), "{output}");
}

#[test]
fn orphans_are_dropped_or_kept() {
    check("u t:1 u", "u u");
    check("t:1", "t:1"); // no array is emptied
    check("t:1 t:2 u a:1 t:1", "u a:1 t:1");
    check("a:1 t:2 t:1 u", "a:1 t:1 u");
    check("a:1 t:2", "a:1 p:1");
    check("t:1=early a:1 u", "a:1 p:1 u");
    check_with(Orphans::Keep, "u t:1 u", "u t:1 u");
    check_with(Orphans::Keep, "a:1 t:2 u", "a:1 p:1 t:2 u");
}

#[test]
fn of_two_results_for_a_call_the_first_counts() {
    check("a:1 t:1=x t:1=y u", "a:1 t:1=x u");
    check("a:1 t:1=x u t:1=y", "a:1 t:1=x u");
    check_with(Orphans::Keep, "a:1 t:1=x t:1=y u", "a:1 t:1=x t:1=y u");
}

#[test]
fn without_ids_position_counts() {
    for none in ["_", "0", "-"] {
        check_untouched(&format!("a:{none},{none} t:{none} t:{none} u"));
        check_untouched(&format!("a:1,{none} t:1 t:{none} u"));
        check_untouched(&format!("a:1,2 t:{none} t:{none} u"));
        check_untouched(&format!("a:{none} t:1 u"));
        check(&format!("a:{none},{none} t:{none} u"), &format!("a:{none},{none} t:{none} p:{none} u"));
        check(&format!("a:1,{none} t:{none} u"), &format!("a:1,{none} t:{none} p:1 u"));
        check(&format!("a:1 t:1 t:{none} u"), "a:1 t:1 u");
        // Beside ids that nothing else has.
        check_untouched(&format!("a:1,{none} t:{none} t:2 u"));
        check_untouched(&format!("a:{none},1 t:2 t:{none} u"));
        check_untouched(&format!("a:{none},1 t:{none} t:2 u"));
        check_untouched(&format!("a:{none},1,{none} t:2 t:1 t:3 u"));
        check(&format!("a:1,2,{none} t:{none} t:3 u"), &format!("a:1,2,{none} t:{none} t:3 p:2 u"));
        check(&format!("a:{none} u t:{none}"), &format!("a:{none} p:{none} u"));
    }
    check("a:1,2 t:- u t:1=late t:2", "a:1,2 t:- t:2 u");
}

#[test]
fn of_calls_and_results_without_ids_the_first_belong_together() {
    let answers = |words: &str| {
        let body = body(words);
        let conversation = dialect().parse(&body).unwrap();
        let pairing = Pairing::of(&conversation);
        pairing.results.iter().map(|result| result.answers.map(CallIndex::get)).collect::<Vec<_>>()
    };
    assert_eq!(answers("a:1,- t:- t:-"), [Some(0), Some(1)]);
    assert_eq!(answers("a:-,1 t:- t:-"), [Some(0), Some(1)]);
    assert_eq!(answers("a:1,- t:- t:2"), [Some(0), Some(1)]);
    assert_eq!(answers("a:-,2,- t:- t:2 t:3"), [Some(0), Some(1), Some(2)]);
    assert_eq!(answers("a:1,- t:-"), [Some(1)]);
}

#[test]
fn calls_of_one_turn_without_results_are_paired_in_linear_time() {
    let time = |n: usize| {
        let call =
            r#"{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"role":"assistant","content":"x"}"#;
        let body = format!(r#"{{"input":[{}]}}"#, vec![call; n].join(","));
        let conversation = dialect::for_path("/v1/responses").unwrap().parse(body.as_bytes()).unwrap();
        let before = thread_time();
        assert_eq!(Pairing::of(&conversation).calls.len(), n);
        thread_time().saturating_sub(before)
    };
    let (few, many) = (time(2_000), time(32_000));
    assert!(many < few * 80, "{few:?} {many:?}");
}

#[test]
fn nothing_is_put_in_for_calls_that_are_answered_in_other_words() {
    let call = r#"{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"read"}},{"id":"c2","function":{"name":"ls"}}]}"#;
    let check = |behind: &str, n_inserted: usize| {
        let body = Bytes::from(format!(r#"{{"messages":[{call},{behind}]}}"#));
        let (plan, output) = run(&body, &settings(Orphans::Drop));
        assert_eq!(output.matches("none for ").count(), n_inserted, "{behind}");
        assert_eq!(plan.report.changes.len(), n_inserted, "{plan}");
    };
    let said = |text: &str| format!(r#"{{"role":"user","content":"{text}"}}"#);
    check(&said("Tool result of read (c1): a"), 0);
    check(&[said("Tool result of read (c1): a"), said("Tool result of ls (c2): b")].join(","), 0);
    check(r#"{"role":"function","name":"ls","content":"b"},{"role":"function","name":"read","content":"a"}"#, 0);
    check(&format!(r#"{{"role":"tool","tool_call_id":"c1","content":"a"}},{}"#, said("Result of c2: b")), 1);
    check(&format!(r#"{{"role":"tool","tool_call_id":"c1","content":"a"}},{}"#, said("Tool result c2: b")), 0);
    check(&said("No, run only unit tests"), 2);
    check(&format!(r#"{{"role":"assistant","content":"x"}},{}"#, said("Tool result of read (c1): a")), 2);
}

#[test]
fn a_placeholder_shows_the_beginning_of_a_long_id() {
    let id = format!("call_9__thought__{}", "é+/".repeat(1_000));
    let body = Bytes::from(format!(
        r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"id":"{id}","function":{{"name":"{}"}}}}]}}]}}"#,
        "f".repeat(65)
    ));
    let (_, output) = run(&body, &settings(Orphans::Drop));
    let (_, placeholder) = output.rsplit_once("none for ").unwrap();
    assert!(placeholder.starts_with(&format!("{}/call_9__thought__", "f".repeat(64))) && placeholder.len() < 150);
    assert_eq!(output.matches(&*id).count(), 2, "the result has the id of the call");
}

#[test]
fn ids_that_are_numbers_are_ids() {
    for (path, body, result) in [
        (
            "/chat/completions",
            r#"{"messages":[{"role":"assistant","tool_calls":[{"id":7,"function":{"name":"f"}},{"id":8,"function":{"name":"f"}}]},{"role":"tool","tool_call_id":8}]}"#,
            r#""tool_call_id":7,"#,
        ),
        (
            "/responses",
            r#"{"input":[{"type":"function_call","call_id":7,"name":"f","arguments":"{}"}]}"#,
            r#""call_id":7,"output""#,
        ),
        (
            "/v1/messages",
            r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":7,"name":"f","input":{}}]}]}"#,
            r#""tool_use_id":7,"#,
        ),
    ] {
        let (dialect, body) = (dialect::for_path(path).unwrap(), Bytes::from_static(body.as_bytes()));
        let plan = planner(&settings(Orphans::Drop), Language::En).plan(dialect, &body).unwrap();
        let output = String::from_utf8(splice(&body, &plan.splices).concat()).unwrap();
        assert!(output.contains(result) && output.contains("none for f/7"), "{output}");
    }
}

#[test]
fn a_placeholder_has_the_bytes_of_the_id() {
    let body = Bytes::from_static(
        br#"{"messages":[{"role":"assistant","tool_calls":[{"id":"\u0061\"\/","function":{"name":"{tool_call_id}\n"}}]}]}"#,
    );
    let (_, output) = run(&body, &settings(Orphans::Drop));
    let expected = r#"{"role":"tool","tool_call_id":"\u0061\"\/","content":"none for {tool_call_id}\n/a\"/"}]}"#;
    assert!(output.ends_with(expected), "{output}");
}

#[test]
fn the_text_is_in_the_language_asked_for() {
    let body = body("a:call_1");
    let text = |language| {
        let plan = planner(&Settings::default(), language).plan(dialect(), &body).unwrap();
        String::from_utf8(splice(&body, &plan.splices).concat()).unwrap()
    };
    assert!(text(Language::En).contains("Tool call f (call_1) has no result: it was interrupted before it finished."));
    assert!(text(Language::Zh).contains("工具调用 f（call_1）没有结果"));
}

#[test]
fn the_report_says_what_was_done() {
    let (plan, output) = run(&body("a:1,2 u t:2 t:3"), &settings(Orphans::Drop));
    let (before, after) = (body("a:1,2 u t:2 t:3").len(), output.len());
    let expected = format!(
        "messages 4 -> 4, bytes {before} -> {after}\n\
         patch: drop message 3, call \"3\"\n\
         patch: insert a result behind message 0, call \"1\" of tool \"f\"\n\
         patch: move message 2 behind message 0, call \"2\"\n"
    );
    assert_eq!(plan.to_string(), expected);
    assert_eq!(plan.report.counts(), [("patch", 3)]);
}

#[test]
fn of_many_calls_of_one_id_each_gets_a_result() {
    let n = 5_000;
    let mut words = "a:1".to_owned();
    words.push_str(&",1".repeat(n - 1));
    let (plan, _) = run(&body(&words), &settings(Orphans::Drop));
    assert_eq!(plan.report.counts(), [("patch", n)]);

    let answered = words + " u" + &" t:1".repeat(n);
    let (plan, _) = run(&body(&answered), &settings(Orphans::Drop));
    assert_eq!(plan.report.counts(), [("patch", n)]);
}

#[test]
fn many_messages_are_patched_one_by_one() {
    let n = 2_500;
    let mut words = String::new();
    for index in 0..n {
        write!(words, "a:1,x{index} u t:1 t:- ").unwrap();
    }
    let (plan, _) = run(&body(&words), &settings(Orphans::Drop));
    assert_eq!(plan.report.counts(), [("patch", 3 * n)]);
}
