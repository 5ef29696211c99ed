//! Every type of item of OpenAI Responses under every edit.

use bytes::Bytes;

use super::{several_results::edited, text};
use crate::plan::{Need, Plan};

/// Whether a summary crosses an item.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Summary {
    Crosses,
    /// It represents what is after the item.
    Begins,
    /// It ends before the item, and a warning names this type.
    Blocked(&'static str),
}

use Summary::{Begins, Blocked, Crosses};

/// Items of each type, with what belongs to them.
const ITEMS: [(&str, Summary); 26] = [
    (r#"{"type":"message","role":"user","content":"x"}"#, Crosses),
    (r#"{"role":"assistant","content":"x"}"#, Crosses),
    (r#"{"type":"reasoning","summary":[],"encrypted_content":"gAAA"},{"role":"assistant","content":"x"}"#, Crosses),
    (
        r#"{"type":"function_call","call_id":"i","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"i","output":"x"}"#,
        Crosses,
    ),
    (
        r#"{"type":"custom_tool_call","call_id":"i","name":"f","input":"y"},{"type":"custom_tool_call_output","call_id":"i","output":"x"}"#,
        Crosses,
    ),
    (
        r#"{"type":"local_shell_call","call_id":"i","action":{}},{"type":"local_shell_call_output","id":"i","output":"x"}"#,
        Crosses,
    ),
    (
        r#"{"type":"apply_patch_call","call_id":"i","operation":{}},{"type":"apply_patch_call_output","call_id":"i","status":"completed","output":"x"}"#,
        Crosses,
    ),
    (
        r#"{"type":"shell_call","call_id":"i","action":{}},{"type":"shell_call_output","call_id":"i","output":[]}"#,
        Crosses,
    ),
    (
        r#"{"type":"shell_call","call_id":"i","environment":{"type":"container"}},{"type":"shell_call_output","call_id":"i","output":[]}"#,
        Crosses,
    ),
    (
        r#"{"type":"computer_call","call_id":"i","action":{}},{"type":"computer_call_output","call_id":"i","output":{}}"#,
        Crosses,
    ),
    (
        r#"{"type":"tool_search_call","call_id":"i","execution":"client","arguments":{}},{"type":"tool_search_output","call_id":"i","execution":"client","tools":[]}"#,
        Crosses,
    ),
    (
        r#"{"type":"tool_search_call","execution":"server","arguments":{}},{"type":"tool_search_output","execution":"server","tools":[]}"#,
        Crosses,
    ),
    (r#"{"type":"web_search_call","id":"i"}"#, Crosses),
    (r#"{"type":"file_search_call","id":"i"}"#, Crosses),
    (r#"{"type":"code_interpreter_call","id":"i"}"#, Crosses),
    (r#"{"type":"image_generation_call","id":"i","result":"AAAA"}"#, Crosses),
    (r#"{"type":"mcp_call","id":"i"},{"type":"mcp_list_tools","id":"j"}"#, Crosses),
    (
        r#"{"type":"program","call_id":"i","code":"x","fingerprint":"y"},{"type":"program_output","call_id":"i","result":"x"}"#,
        Crosses,
    ),
    (
        r#"{"type":"agent_message","author":"/root/a","recipient":"/root","content":[{"type":"input_text","text":"x"}]}"#,
        Crosses,
    ),
    (r#"{"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"g"}]}"#, Crosses),
    (r#"{"type":"compaction","encrypted_content":"gAAA"}"#, Begins),
    (r#"{"type":"future_message","role":"user","content":[{"type":"input_text","text":"x"}]}"#, Crosses),
    (
        r#"{"type":"mcp_approval_request","id":"i"},{"type":"mcp_approval_response","approval_request_id":"i"}"#,
        Blocked("mcp_approval_request"),
    ),
    (r#"{"type":"item_reference","id":"i"}"#, Blocked("item_reference")),
    (r#"{"type":"future_state","of":[1]}"#, Blocked("future_state")),
    (r#"{"type":"future_call","call_id":"i","content":"x"}"#, Blocked("future_call")),
];

fn body(items: &str) -> (Bytes, usize) {
    let round = |id: &str| {
        format!(
            r#"{{"type":"function_call","call_id":"{id}","name":"f","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"{id}","output":"{}"}}"#,
            text(4000).replace('\n', " ")
        )
    };
    let behind = format!(
        r#"{{"role":"user","content":"on"}},{},{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}},{},{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}}"#,
        round("1"),
        round("2")
    );
    let before = r#"{"role":"user","content":"do it"}"#;
    let body = format!(
        r#"{{"model":"gpt-5","tools":[{{"type":"function","name":"bash"}}],"input":[{before},{items},{behind}]}}"#
    );
    let end = 1 + serde_json::from_str::<Vec<serde::de::IgnoredAny>>(&format!("[{items}]")).unwrap().len();
    (body.into(), end)
}

const RECALL: &str = "recall = { via = \"http\", public_url = \"http://h\" }\n";

fn under(policy: &str, items: &str) -> (Plan, String, usize) {
    let (came, end) = body(items);
    let (plan, out) = edited("/v1/responses", &came, &format!("{RECALL}{policy}"));
    (plan, out, end)
}

#[test]
fn items_stay_as_they_are_under_each_edit_but_for_their_calls_and_results() {
    for (items, _) in ITEMS {
        for policy in [
            "policy.edits = [\"patch_tool_calls\"]",
            "truncate_tool_results.max_bytes = 1000",
            "clear_tool_results = { when = \"any\", trigger = { tokens = 10 }, keep = { results = 1 } }",
        ] {
            let (plan, out, _) = under(policy, items);
            assert!(out.contains(items), "{policy}\n{plan}\n{out}");
        }
        let (plan, out, _) = under("filter_tool_calls.max_tool_calls = 1", items);
        let is_call = plan.report.changes.iter().any(|change| change.call_id == "i");
        assert!(out.contains(items) || is_call, "{plan}");
        assert!(!is_call || items.starts_with("{\"type\":\"") && !out.contains("\"i\""), "{items} {plan}");
    }
}

#[test]
fn a_summary_crosses_what_it_can_stand_for_and_names_what_it_cannot() {
    const POLICY: &str = "policy.edits = [\"summarize\"]\nsummarize = { trigger = { messages = 6 }, mode = \"blocking\", keep = { results = 1 } }";
    for (items, expected) in ITEMS {
        let (plan, _, end) = under(POLICY, items);
        let covers = match &plan.needs {
            Some(Need::Make(job)) => Some(job.covers.clone()),
            _ => None,
        };
        match expected {
            Crosses => assert!(covers.is_some_and(|covers| covers.start == 0 && covers.end > end), "{items} {plan}"),
            Begins => assert!(covers.is_some_and(|covers| covers.start == end), "{items} {plan}"),
            Blocked(kind) => {
                assert_eq!((covers, plan.report.blocked_by.as_deref()), (None, Some(kind)), "{items} {plan}");
            }
        }
        assert_eq!(plan.report.blocked_by.is_some(), matches!(expected, Blocked(_)), "{items}");
    }
}

#[test]
fn what_another_agent_says_is_counted_and_read_as_what_the_user_says() {
    let message = |content: &str| {
        format!(r#"{{"type":"agent_message","author":"/root/a","recipient":"/root","content":[{content}]}}"#)
    };
    let tokens = |items: &str| {
        under("clear_tool_results = { when = \"any\", trigger = { tokens = 10 }, keep = { results = 9 } }", items)
            .0
            .report
            .tokens_before
            .unwrap()
    };
    let said = message(&format!(r#"{{"type":"input_text","text":"{}"}}"#, "word ".repeat(400)));
    assert!(tokens(&said) > tokens(&message("")) + 380);
    let encrypted =
        |n: usize| message(&format!(r#"{{"type":"encrypted_content","encrypted_content":"{}"}}"#, "gAk4".repeat(n)));
    let (short, long) = (tokens(&encrypted(1000)), tokens(&encrypted(2000)));
    assert_eq!(long - short, 750, "a quarter of its bytes");
    // The user's turn begins with it, as with a word of the user.
    let (plan, _, _) =
        under("policy.edits = [\"summarize\"]\nsummarize = { trigger = { messages = 6 }, mode = \"blocking\" }", &said);
    let Some(Need::Make(job)) = &plan.needs else { panic!("{plan}") };
    assert!(job.frame.around("it").contains("word word"), "kept word for word");
}
