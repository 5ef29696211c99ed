//! Names that only what is summarised has and that the rest uses.

use super::*;
use crate::{
    dialect,
    planner::{PlanSettings, Planner},
    tokens::Counter,
};

/// Returns what is listed after a summary that has no names.
fn listed(body: &str, language: &str) -> Vec<String> {
    let settings = format!("language = '{language}'\nsummarize.trigger = {{ messages = 4 }}");
    let mut settings: PlanSettings = toml::from_str(&settings).unwrap();
    settings.tokens.counter = Counter::Estimate;
    let heading = &instruction::words(settings.language).names;
    let (planner, memory, body) = (Planner::new(settings), Map::default(), Bytes::from(body.to_owned()));
    let plan = planner.policy.plan(dialect::of_body(&body), &body, &planner.anonymous(&memory)).unwrap();
    let text = made(&plan).frame.around("So far.");
    let list = text.lines().skip_while(|line| *line != heading).skip(1);
    list.take_while(|line| line.starts_with("- ")).map(str::to_owned).collect()
}

#[test]
fn names_in_texts_arguments_and_results_are_found_in_every_dialect_and_language() {
    let read = format!("fn read_one() {{}}\\nfn read_two() {{}}\\nrule_of_ours tool_of_ours {}", "filler ".repeat(500));
    let (first, last) =
        (r#"{"path":"src/first_file.rs"}"#, r#"{"new":"a\nread_two(rule_of_ours)","path":"first_file.rs"}"#);
    let quoted = |arguments: &str| serde_json::to_string(arguments).unwrap();
    let call = |id: &str, arguments: &str| {
        format!(
            r#"{{"role":"assistant","tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"f","arguments":{}}}}}]}}"#,
            quoted(arguments)
        )
    };
    let chat = format!(
        r#"{{"tools":[{{"type":"function","function":{{"name":"f","description":"Of tool_of_ours.\ntool_of_ours"}}}}],
        "messages":[{{"role":"system","content":"Mind\nrule_of_ours."}},{{"role":"user","content":"Mind user_wish."}},
        {},{{"role":"tool","tool_call_id":"a","content":"{read}"}},{{"role":"assistant","content":"I see read_one."}},
        {{"role":"user","content":"Go on with user_wish and tool_of_ours."}},
        {},{{"role":"tool","tool_call_id":"b","content":"new_name"}}]}}"#,
        call("a", first),
        call("b", last)
    );
    let item = |id: &str, arguments: &str| {
        format!(r#"{{"type":"function_call","call_id":"{id}","name":"f","arguments":{}}}"#, quoted(arguments))
    };
    let responses = format!(
        r#"{{"tools":[{{"type":"function","name":"f","description":"Of tool_of_ours."}}],"instructions":"Mind\nrule_of_ours.",
        "input":[{{"role":"user","content":"Mind user_wish."}},{},
        {{"type":"function_call_output","call_id":"a","output":"{read}"}},
        {{"type":"message","role":"assistant","content":[{{"type":"output_text","text":"I see read_one."}}]}},
        {{"role":"user","content":"Go on with user_wish and tool_of_ours."}},{},
        {{"type":"function_call_output","call_id":"b","output":"new_name"}}]}}"#,
        item("a", first),
        item("b", last)
    );
    let block = |id: &str, input: &str| {
        format!(r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"{id}","name":"f","input":{input}}}]}}"#)
    };
    let result = |id: &str, text: &str| {
        format!(r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":"{text}"}}]}}"#)
    };
    let messages = format!(
        r#"{{"tools":[{{"name":"f","description":"Of tool_of_ours."}}],"system":"Mind\nrule_of_ours.","max_tokens":9,
        "messages":[{{"role":"user","content":"Mind user_wish."}},{},{},
        {{"role":"assistant","content":[{{"type":"text","text":"I see read_one."}}]}},
        {{"role":"user","content":"Go on with user_wish and tool_of_ours."}},{},{}]}}"#,
        block("a", first),
        result("a", &read),
        block("b", last),
        result("b", "new_name")
    );
    for (body, language) in [chat, responses, messages].iter().flat_map(|body| [(body, "en"), (body, "zh")]) {
        let expected = ["- src/first_file.rs", "- fn read_two() {}", "- fn read_one() {}"];
        assert_eq!(listed(body, language), expected, "{language} {body}");
    }
}

#[test]
fn a_list_takes_an_eighth_of_a_short_conversation_at_most() {
    let names = (0..90).map(|n| format!("name_number_{n}\\n")).collect::<Vec<_>>().concat();
    let list = |filler: usize| {
        let read = format!("{names}{}", "filler ".repeat(filler));
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"Hi."}},{{"role":"assistant","content":"{read}"}},
            {{"role":"user","content":"Go."}},{{"role":"assistant","content":"{names}"}},{{"role":"user","content":"Go."}}]}}"#
        );
        listed(&body, "en")
    };
    let bytes = |list: &[String]| list.iter().map(|line| line.len() + 1).sum::<usize>();
    let (short, long) = (list(0), list(5000));
    assert!(short.len() > 5 && bytes(&short) <= 1600 / 8, "{short:?}");
    assert_eq!((long.len(), &*long[0]), (50, "- name_number_89"));
}

#[test]
fn summaries_of_the_default_settings_are_those_of_the_release_before() {
    let scope = Scope::of(&Settings::default(), Language::En, &recall::Settings::default());
    let shaping =
        r#"[1,"en",["model","cached",null,null,null,null],[null,null,{"enabled":true,"max_tokens":null},null,true],["#;
    assert!(scope.0.starts_with(shaping), "{}", scope.0);
}
