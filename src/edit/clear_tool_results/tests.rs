//! When a pass is made, what it spares, and what it leaves.

use bytes::Bytes;
use serde_json::json;

use super::super::tests::{HTTP, body, body_of, check, check_untouched, messages, plan, plan_with, text, words};
use super::*;
use crate::draft::Offload;

mod media;
mod moments;
mod reads;
mod regrets;
mod walk;

/// The placeholder has some 50 tokens.
fn policy(keys: &str) -> String {
    let when = if keys.contains("when = ") || keys.contains("'sliding'") { "" } else { "when = 'any'\n" };
    format!("{HTTP}[clear_tool_results]\n{when}{keys}")
}

const ALWAYS: &str = "trigger = { messages = 1 }\n";

fn always(keys: &str) -> String {
    policy(&format!("{ALWAYS}{keys}"))
}

const FIVE: &str = "u c:1 t:1*2000 c:2 t:2*2000 c:3 t:3*2000 c:4 t:4*2000 c:5 t:5*2000";

#[test]
fn clears_all_but_the_newest() {
    check(FIVE, &always(""), "u c:1 t:1! c:2 t:2! c:3 t:3*2000 c:4 t:4*2000 c:5 t:5*2000");
    check_untouched(FIVE, HTTP);
}

#[test]
fn says_what_was_there_and_how_to_read_it() {
    let (plan, output) = plan(&body(FIVE), &always(""));
    let handle = plan.offloads[0].key;
    let expected = format!(
        "[Cleared: 2000 bytes of output of bash. Read it with GET http://h/abridge/recall/{handle} (?lines=1-200, ?grep=TEXT, ?offset=0&limit=8000).]"
    );
    assert_eq!(messages(&output)[2]["content"], expected);
    assert_eq!(plan.offloads.len(), 1, "both are the same text");
    assert_eq!(plan.offloads[0].payload.bytes(), text(2000));
    assert_eq!(plan.report.counts(), [("clear", 2)]);
    let change = &plan.report.changes[0];
    assert_eq!(
        (change.action, change.bytes.before, change.bytes.after),
        (Action::Clear { message: 2 }, 2000, expected.len())
    );
    assert_eq!(
        (change.call_id.as_str(), change.tool_name.as_deref(), &change.handles),
        ("1", Some("bash"), &vec![handle])
    );
}

#[test]
fn results_that_were_put_in_count_as_messages() {
    let words = "u c:1 t:1*2000 c:2,3 u";
    let counts = |least: usize| {
        plan(&body(words), &policy(&format!("trigger = {{ messages = {least} }}\nkeep = {{ results = 2 }}")))
            .0
            .report
            .counts()
    };
    assert_eq!(counts(7), [("patch", 2), ("clear", 1)]);
    assert_eq!(counts(8), [("patch", 2)]);
}

#[test]
fn what_is_kept_may_have_just_so_many_tokens() {
    let last = super::super::tests::result_of(&body(FIVE), "5").unwrap().1;
    let kept = |most: usize| words(&plan(&body(FIVE), &always(&format!("keep = {{ tokens = {most} }}"))).1);
    assert!(kept(last).ends_with("t:4! c:5 t:5*2000"), "{}", kept(last));
    assert!(kept(2 * last).ends_with("t:3! c:4 t:4*2000 c:5 t:5*2000"), "{}", kept(2 * last));
    assert!(kept(2 * last - 1).ends_with("t:4! c:5 t:5*2000"), "{}", kept(2 * last - 1));
}

#[test]
fn tokens_are_counted_and_windows_asked_for_only_where_a_trigger_does() {
    let alone = "\n[policy]\nedits = ['clear_tool_results']";
    let report = |keys: &str| plan(&body(FIVE), &(policy(keys) + alone)).0.report;
    let messages = report("trigger = { messages = 1 }");
    assert_eq!((messages.tokens_before, messages.unknown_window), (None, false));
    let tokens = report("trigger = { tokens = 1 }");
    assert!(tokens.tokens_before.is_some() && !tokens.unknown_window);
    assert!(report("trigger = [{ tokens = 1 }, { fraction = 0.5 }]").unknown_window);
}

#[test]
fn cleared_arguments_are_those_of_the_calls_of_cleared_results() {
    let (plan, _) = plan(
        &body("u c:1^300 t:1*2000 c:2^300 t:2*2000 c:3 t:3*9 u"),
        &always("keep = { results = 1 }\nclear_tool_inputs = true"),
    );
    let inputs = plan.report.changes.iter().filter_map(|change| match change.action {
        Action::ClearInput { message } => Some(message),
        _ => None,
    });
    assert_eq!(inputs.collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn what_clear_tool_inputs_may_be_is_said() {
    let error = toml::from_str::<Settings>("clear_tool_inputs = 7").unwrap_err();
    assert!(error.message().contains("true, false or a list of tool names"), "{error}");
}

#[test]
fn the_placeholder_can_be_written() {
    let cleared = |policy: &str| messages(&plan(&body(FIVE), policy).1)[2]["content"].as_str().unwrap().to_owned();
    assert_eq!(cleared(&always("placeholder = '[cleared]'")), "[cleared]");
    let own = always("placeholder = '<{tool_name} {bytes} {handle}> {how}'");
    let handle = plan(&body(FIVE), &own).0.offloads[0].key;
    let own = cleared(&own);
    assert!(own.starts_with(&format!("<bash 2000 {handle}> ")) && own.ends_with("limit=8000)."), "{own}");
    let none = "[recall]\nvia = 'none'\n[clear_tool_results]\nwhen = 'any'\ntrigger = { messages = 1 }";
    assert_eq!(cleared(none), "[Cleared: 2000 bytes of output of bash.]");
    assert!(
        cleared(&format!("language = 'zh'\n{}", always("")))
            .starts_with("[已清除：bash 的输出，共 2000 字节。读取方式：GET http://h/")
    );
}

#[test]
fn triggers() {
    // 5 results of 500 tokens and a little
    for (trigger, holds) in [
        ("{ tokens = 2500 }", true),
        ("{ tokens = 4000 }", false),
        ("{ messages = 11 }", true),
        ("{ messages = 12 }", false),
        ("{ tokens = 2500, messages = 12 }", false),
        ("[{ tokens = 4000 }, { messages = 11 }]", true),
        ("[{ tokens = 4000 }, { messages = 12 }]", false),
    ] {
        let (plan, _) = plan(&body(FIVE), &policy(&format!("trigger = {trigger}")));
        assert_eq!(!plan.is_empty(), holds, "{trigger}\n{plan}");
    }
}

#[test]
fn the_form_of_the_answer_is_a_part_of_the_size() {
    let ask = |request: String| plan(&request.into(), &policy("trigger = { tokens = 4000 }")).0;
    let messages = messages(&body(FIVE));
    assert!(ask(json!({"messages": messages}).to_string()).is_empty());
    let format = json!({"type": "json_schema", "json_schema": {"name": text(8000)}});
    let cleared = ask(json!({"response_format": format, "messages": messages}).to_string());
    assert_eq!(cleared.report.counts(), [("clear", 2)]);
    // With an escaped key, too.
    let escaped = json!({"response_format": format, "messages": messages}).to_string();
    let escaped = escaped.replacen("\"messages\"", "\"m\\u0065ssages\"", 1);
    let (plan, _) = plan(&escaped.into(), &policy("trigger = { tokens = 4000 }"));
    assert_eq!(plan.report.tokens_before, cleared.report.tokens_before);
    assert!(ask(json!({"response_format": null, "messages": messages}).to_string()).is_empty());
}

#[test]
fn a_fraction_is_one_of_a_known_window() {
    let ask = |model: &str, keys: &str| {
        let messages = messages(&body(FIVE));
        plan(&json!({"model": model, "messages": messages}).to_string().into(), &policy(keys)).0
    };
    // gpt-4 has a window of 8192.
    assert!(!ask("gpt-4", "trigger = { fraction = 0.25 }").is_empty());
    assert!(ask("gpt-4", "trigger = { fraction = 0.9 }").is_empty());
    let unknown = ask("nobody-knows", "trigger = { fraction = 0.25 }");
    assert!(unknown.is_empty() && unknown.report.unknown_window);
    assert!(!ask("nobody-knows", "trigger = [{ fraction = 0.25 }, { messages = 1 }]").is_empty());
    // Keep a part of an unknown window: three results.
    let kept = ask("nobody-knows", "trigger = { messages = 1 }\nkeep = { fraction = 0.01 }");
    assert!(kept.report.unknown_window);
    assert_eq!(kept.report.changes.len(), 2);
    assert_eq!(ask("gpt-4", "trigger = { messages = 1 }\nkeep = { fraction = 0.1 }").report.changes.len(), 4);
}

#[test]
fn nothing_is_counted_below_the_trigger() {
    let (plan, _) = plan(&body(FIVE), &policy("trigger = { tokens = 20000 }"));
    assert_eq!(plan.report.tokens_before, None);
    let (plan, _) = self::plan(&body(FIVE), &policy("trigger = { tokens = 4000 }"));
    assert!(plan.is_empty() && plan.report.tokens_before.is_some_and(|tokens| tokens < 4000));
}

#[test]
fn keeps() {
    let cleared = |keep: &str| {
        plan(
            &body("u c:1,2 t:1*1000 t:2*2000 c:3 t:3*2000 a c:4 t:4*4000 c:5 t:5*2000 a u"),
            &always(&format!("keep = {keep}")),
        )
        .0
        .report
        .changes
        .iter()
        .map(|change| change.call_id.clone())
        .collect::<String>()
    };
    assert_eq!(cleared("{ results = 4 }"), "1");
    assert_eq!(cleared("{ results = 0 }"), "12345");
    assert_eq!(cleared("{ rounds = 1 }"), "1234");
    assert_eq!(cleared("{ rounds = 3 }"), "12");
    assert_eq!(cleared("{ rounds = 4 }"), "");
    assert_eq!(cleared("{ tokens = 600 }"), "1234");
    // The first that does not fit ends it, though older ones would fit.
    assert_eq!(cleared("{ tokens = 1100 }"), "1234");
    assert_eq!(cleared("{ tokens = 1700 }"), "123");
    assert_eq!(cleared("{ tokens = 9 }"), "12345");
}

#[test]
fn what_was_not_read_is_never_cleared() {
    check(FIVE, &always("keep = { results = 0 }"), "u c:1 t:1! c:2 t:2! c:3 t:3! c:4 t:4! c:5 t:5*2000");
    check("u c:1,2 t:1*2000 t:2*2000 u", &always("keep = { results = 0 }"), "u c:1,2 t:1*2000 t:2*2000 u");
    check("u c:1,2 t:1*2000 t:2*2000 u a u", &always("keep = { results = 0 }"), "u c:1,2 t:1! t:2! u a u");
}

#[test]
fn what_only_a_prefill_stands_behind_is_not_cleared() {
    let sticky = always("keep = { results = 0 }");
    for policy in [&sticky, &format!("{sticky}\nfrontier = 'sliding'")] {
        check("u c:1 t:1*2000 c:2,3 t:2*2000 t:3*2000 a", policy, "u c:1 t:1! c:2,3 t:2*2000 t:3*2000 a");
        check_untouched("u c:1,2 t:1*2000 t:2*2000 a a", policy);
        // One with calls is an answer, though no one has carried them out.
        check("u c:1 t:1*2000 c:2", policy, "u c:1 t:1! c:2 t:2*72");
        // In a later request it is an answer as all others, and so is what the model has said after it.
        check("u c:1 t:1*2000 a u", policy, "u c:1 t:1! a u");
        check("u c:1 t:1*2000 a a u", policy, "u c:1 t:1! a a u");
    }
}

#[test]
fn a_pass_that_frees_too_little_is_not_made() {
    let untouched =
        check_untouched("u c:1 t:1*2000 c:2 t:2*2000 a u", &always("keep = { results = 1 }\nclear_at_least = 900"));
    assert_eq!(untouched.report.left_out[0].why, SkipReason::TooLittle);
    check(
        "u c:1 t:1*2000 c:2 t:2*2000 c:3 t:3*2000 a u",
        &always("keep = { results = 1 }\nclear_at_least = 800"),
        "u c:1 t:1! c:2 t:2! c:3 t:3*2000 a u",
    );
}

#[test]
fn a_sticky_frontier_waits_for_a_part_of_the_trigger() {
    // A result has 500 tokens, of which a pass frees some 430; 857 are a seventh of the trigger.
    let input = "u c:1^24000 t:1*2000 c:2 t:2*2000 a u";
    let keys = "trigger = { tokens = 6000 }\nkeep = { results = 1 }\n";
    let waits = check_untouched(input, &policy(keys));
    assert_eq!(waits.report.left_out[0].why, SkipReason::TooLittle);
    let cleared = "u c:1^24000 t:1! c:2 t:2*2000 a u";
    for more in ["clear_at_least = 0", "clear_at_least = 400", "frontier = 'sliding'"] {
        check(input, &policy(&format!("{keys}{more}")), cleared);
    }
    // The least of the conditions counts, and messages are not tokens.
    for trigger in ["[{ tokens = 6000 }, { tokens = 2100 }]", "{ messages = 1 }"] {
        check(input, &policy(&format!("trigger = {trigger}\nkeep = {{ results = 1 }}")), cleared);
    }
}

#[test]
fn arguments_are_cleared_with_their_results() {
    let input = "u C:1^400,read_file/2^400 t:1*2000 t:read_file/2*2000 c:3 t:3 a u";
    let keep = "keep = { results = 1 }\n";
    check(
        input,
        &always(&format!("{keep}clear_tool_inputs = true")),
        "u C:1-,read_file/2- t:1! t:read_file/2! c:3 t:3 a u",
    );
    check(
        input,
        &always(&format!("{keep}clear_tool_inputs = ['read_*']")),
        "u C:1^400,read_file/2- t:1! t:read_file/2! c:3 t:3 a u",
    );
    // Of a call whose result is too short to be cleared, too: it is just as old.
    let plan = check(
        "u c:1^400 t:1 c:2 t:2 a u",
        &always(&format!("{keep}clear_tool_inputs = true")),
        "u c:1- t:1 c:2 t:2 a u",
    );
    let (change, stored) = (&plan.report.changes[0], &plan.offloads[0]);
    assert_eq!((change.action, &change.handles), (Action::ClearInput { message: 1 }, &vec![stored.key]));
    assert_eq!(stored.payload.bytes(), json!({"a": text(400)}).to_string());
}

#[test]
fn excluded_tools_use_up_places() {
    check(
        "u c:1 t:1*2000 c:read_file/2 t:read_file/2*2000 c:3 t:3*2000 a u",
        &always("exclude_tools = ['read_file']\nkeep = { results = 1 }"),
        "u c:1 t:1! c:read_file/2 t:read_file/2*2000 c:3 t:3*2000 a u",
    );
    check(
        "u c:1 t:1*2000 c:read_file/2 t:read_file/2*2000 a u",
        &always("exclude_tools = ['*_file']\nkeep = { results = 1 }"),
        "u c:1 t:1! c:read_file/2 t:read_file/2*2000 a u",
    );
}

#[test]
fn settings_of_a_tool_win() {
    let with = |keys: &str, tools: &str| format!("{}\n[tools]\n{tools}", always(keys));
    let input = "u c:1^400 t:1*2000 c:x/2 t:x/2*2000 c:3^400 t:3*2000 c:x/4 t:x/4*2000 a u";
    check(
        input,
        &with("keep = { results = 0 }", "bash = { clear = false }"),
        "u c:1^400 t:1*2000 c:x/2 t:x/2! c:3^400 t:3*2000 c:x/4 t:x/4! a u",
    );
    check(
        input,
        &with("keep = { results = 0 }\nexclude_tools = ['*']", "bash = { clear = true }"),
        "u c:1^400 t:1! c:x/2 t:x/2*2000 c:3^400 t:3! c:x/4 t:x/4*2000 a u",
    );
}

#[test]
fn what_is_not_longer_than_its_placeholder_stays() {
    let input = "u c:1 t:1*120 c:2 t:2*2000 a u";
    check(input, &always("keep = { results = 0 }"), "u c:1 t:1*120 c:2 t:2! a u");
    check(input, &always("keep = { results = 0 }\ngrowth_guard = false"), "u c:1 t:1! c:2 t:2! a u");
}

#[test]
fn without_a_store_results_stay_unless_none_is_wanted() {
    let (plan, _) = plan_with(&body(FIVE), &always(""), Offload::Impossible);
    assert!(plan.is_empty() && plan.offloads.is_empty());
    assert_eq!(plan.report.left_out.iter().map(|left_out| left_out.why).collect::<Vec<_>>(), [SkipReason::NoStore; 2]);
    let (plan, output) = plan_with(&body(FIVE), &always("offload = false"), Offload::Impossible);
    assert_eq!(messages(&output)[2]["content"], "[Cleared: 2000 bytes of output of bash.]");
    assert!(plan.offloads.is_empty() && plan.report.changes[0].handles.is_empty());
}

#[test]
fn a_truncated_result_is_stored_as_it_came() {
    let input = "u c:1 t:1*60000 c:2 t:2*70000 a u";
    let plan = check(input, &always("keep = { results = 1 }"), "u c:1 t:1! c:2 t:2~ a u");
    assert_eq!(plan.report.counts(), [("truncate", 1), ("clear", 1)]);
    let mut lengths: Vec<_> = plan.offloads.iter().map(|offload| offload.payload.len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [60000, 70000]);
}

#[test]
fn parts_that_hold_no_data_stay() {
    let image = json!({"type": "image_url", "image_url": {"url": "https://x/a.png"}});
    let parts = json!([{"type": "text", "text": text(2000)}, image, {"type": "text", "text": text(3000)}]);
    let body = body_of(&[
        json!({"role": "assistant", "tool_calls": [{"id": "1"}]}),
        json!({"role": "tool", "tool_call_id": "1", "content": parts}),
        json!({"role": "assistant", "content": "hi"}),
        json!({"role": "user", "content": "hi"}),
    ]);
    let (plan, output) = plan(&body, &always("keep = { results = 0 }"));
    let content = messages(&output)[1]["content"].clone();
    assert_eq!(content[1], image);
    assert!(content[0]["text"].as_str().unwrap().starts_with("[Cleared: 2000 bytes"));
    assert!(
        content[2]["text"].as_str().unwrap().starts_with("[Cleared: 3000 bytes of output of a tool without a name.")
    );
    assert_eq!((plan.report.changes.len(), plan.offloads.len()), (1, 2));
}

#[test]
fn our_own_words_are_not_cleared_again() {
    let quoted = format!(
        "[Cleared: 2000 bytes of output of bash. Read it with GET http://h/abridge/recall/{} (?lines=1-200).]",
        "0".repeat(26)
    );
    let body = body_of(&[
        json!({"role": "assistant", "tool_calls": [{"id": "1"}]}),
        json!({"role": "tool", "tool_call_id": "1", "content": quoted}),
        json!({"role": "assistant", "content": "hi"}),
        json!({"role": "user", "content": "hi"}),
    ]);
    assert!(plan(&body, &always("keep = { results = 0 }\ngrowth_guard = false")).0.is_empty());
}

#[test]
fn texts_and_arguments_with_half_a_surrogate_pair_are_cleared_and_stored_as_they_are_written() {
    let half = |of: &str| format!(r#""{} \ud83d""#, of.repeat(200));
    let (arguments, content) = (half("path "), half("word "));
    let body: Bytes = format!(
        r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"id":"1","function":{{"name":"bash","arguments":{arguments}}}}}]}},
            {{"role":"tool","tool_call_id":"1","content":{content}}},{{"role":"assistant","content":"hi"}},
            {{"role":"user","content":"hi"}}]}}"#
    )
    .into();
    let (plan, output) = plan(&body, &always("keep = { results = 0 }\nclear_tool_inputs = true"));
    assert_eq!(plan.report.counts(), [("clear", 2)]);
    let stored: Vec<_> = plan.offloads.iter().map(|offload| offload.payload.bytes()).collect();
    assert_eq!(stored, [arguments, content]);
    let placeholder = messages(&output)[1]["content"].as_str().unwrap().to_owned();
    // Each half counts as the three bytes of U+FFFD.
    let expected = format!(
        "[Cleared: 1004 bytes of output of bash. Read it with GET http://h/abridge/recall/{} ",
        plan.offloads[1].key
    );
    assert!(placeholder.starts_with(&expected), "{placeholder}");
}
