//! What of an answer counts, in every dialect.

use super::*;
use crate::dialect;

fn found(body: &str) -> Vec<(String, bool)> {
    let dialect = dialect::of_body(body.as_bytes());
    let conversation = dialect.parse(body.as_bytes()).unwrap();
    let mut units = conversation.indexed_units();
    let (first, _) = units.find(|(_, unit)| unit.role == Role::Assistant).unwrap();
    let needed = needed(dialect, body.as_bytes(), &conversation, first);
    let mut found: Vec<_> = needed.into_iter().map(|needed| (needed.text, needed.is_old_text)).collect();
    found.sort();
    found
}

fn expected(units: &[(&str, bool)]) -> Vec<(String, bool)> {
    units.iter().map(|(text, is_old)| ((*text).to_owned(), *is_old)).collect()
}

#[test]
fn texts_and_arguments_count_and_reasoning_does_not_in_every_dialect() {
    let bodies = [
        r#"{"messages":[{"role":"user","content":"Hi."},{"role":"assistant","reasoning_content":"think_one",
                "content":"say_two","tool_calls":[{"id":"a","type":"function","function":{"name":"call_three",
                "arguments":"{\"old_string\":\"x\\nthe fourth line is long\",\"n\":5555}"}}]}]}"#,
        r#"{"input":[{"role":"user","content":"Hi."},
                {"type":"reasoning","summary":[{"type":"summary_text","text":"think_one"}]},
                {"type":"message","role":"assistant","content":[{"type":"output_text","text":"say_two"}]},
                {"type":"function_call","call_id":"a","name":"call_three",
                "arguments":"{\"old_string\":\"x\\nthe fourth line is long\",\"n\":5555}"}]}"#,
        r#"{"system":"s","messages":[{"role":"user","content":"Hi."},{"role":"assistant","content":[
                {"type":"thinking","thinking":"think_one","signature":"sign_two"},{"type":"text","text":"say_two"},
                {"type":"tool_use","id":"a","name":"call_three",
                "input":{"old_string":"x\nthe fourth line is long","n":5555}}]}]}"#,
    ];
    for body in bodies {
        assert_eq!(found(body), expected(&[("say_two", false), ("the fourth line is long", true)]), "{body}");
    }
}

#[test]
fn what_a_patch_takes_out_is_old_text() {
    let body = r#"{"input":[{"role":"user","content":"Hi."},{"type":"custom_tool_call","call_id":"a","name":"p",
            "input":"*** Begin Patch\n@@\n one line that stays there\n-one line that is taken\n+one line that is put in"}]}"#;
    let lines = [
        ("+one line that is put in", false),
        ("-one line that is taken", false),
        ("one line that is taken", true),
        ("one line that stays there", true),
    ];
    assert_eq!(found(body), expected(&lines));
    let searched = "<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE";
    assert_eq!(old_lines(searched), ["old"]);
}
