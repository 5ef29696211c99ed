//! Calls and results of a program of the model, tools that a search found, tools that items offer, and search results:
//! in OpenAI Responses and Anthropic Messages.

use bytes::Bytes;

use super::{
    several_results::{edited, summarised},
    text,
};
use crate::plan::{Need, Plan};

const RECALL: &str = "recall = { via = \"http\", public_url = \"http://h\" }\n";
const SUMMARY: &str = "policy.edits = [\"summarize\"]\nsummarize = { trigger = { messages = 4 }, mode = \"blocking\", keep = { results = 1 } }";

/// The policies that take most away.
const EDITS: [&str; 4] = [
    "truncate_tool_results.max_bytes = 500",
    "clear_tool_results = { when = \"any\", trigger = { tokens = 10 }, keep = { results = 0 }, clear_at_least = 0, clear_tool_inputs = true }",
    "filter_tool_calls.max_tool_calls = 0",
    "policy.edits = [\"patch_tool_calls\"]",
];

fn rows(n: usize) -> String {
    format!("[{}]", vec![r#"{\"amount\":7}"#; n].join(","))
}

/// A program that calls twice and gets `n` rows each time, and a round of the model after it if it `ends`.
fn messages(n: usize, ends: bool) -> Bytes {
    let call = |id: &str| {
        format!(
            r#"{{"type":"tool_use","id":"{id}","name":"query","input":{{"sql":"select"}},"caller":{{"type":"code_execution_20260120","tool_id":"srvtoolu_1"}}}}"#
        )
    };
    let result = |id: &str| {
        format!(
            r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":"{}"}}]}}"#,
            rows(n)
        )
    };
    let server = r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"code_execution","input":{"code":"x"}}"#;
    let end = if ends {
        format!(
            r#",{{"role":"assistant","content":[{{"type":"code_execution_tool_result","tool_use_id":"srvtoolu_1","content":{{"stdout":"14"}}}},{{"type":"text","text":"14"}}]}},{{"role":"user","content":"more"}},
            {{"role":"assistant","content":[{{"type":"tool_use","id":"d","name":"bash","input":{{"c":"{0}"}},"caller":{{"type":"direct"}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"d","content":"{0}"}}]}},
            {{"role":"assistant","content":"done"}},{{"role":"user","content":"thanks"}}"#,
            text(2000).replace('\n', " ")
        )
    } else {
        String::new()
    };
    format!(
        r#"{{"model":"claude-sonnet-5","tools":[{{"name":"bash"}}],"messages":[{{"role":"user","content":"sum"}},{{"role":"assistant","content":[{server},{}]}},{},{{"role":"assistant","content":[{}]}},{}{end}]}}"#,
        call("a"),
        result("a"),
        call("b"),
        result("b")
    )
    .into()
}

/// The same in Responses.
fn responses(n: usize, ends: bool) -> Bytes {
    let call = |id: &str| {
        format!(
            r#"{{"type":"function_call","call_id":"{id}","name":"query","arguments":"{{\"sql\":1}}","caller":{{"type":"program","caller_id":"p"}}}}"#
        )
    };
    let result = |id: &str| format!(r#"{{"type":"function_call_output","call_id":"{id}","output":"{}"}}"#, rows(n));
    let end = if ends {
        format!(
            r#",{{"type":"program_output","call_id":"p","result":"14"}},{{"role":"assistant","content":"14"}},{{"role":"user","content":"more"}},
            {{"type":"function_call","call_id":"d","name":"bash","arguments":"{{\"c\":\"{0}\"}}","caller":{{"type":"direct"}}}},{{"type":"function_call_output","call_id":"d","output":"{0}"}},
            {{"role":"assistant","content":"done"}},{{"role":"user","content":"thanks"}}"#,
            text(2000).replace('\n', " ")
        )
    } else {
        String::new()
    };
    format!(
        r#"{{"model":"gpt-5","tools":[{{"type":"function","name":"bash"}}],"input":[{{"role":"user","content":"sum"}},{{"type":"program","call_id":"p","code":"x","fingerprint":"f"}},{},{},{},{}{end}]}}"#,
        call("a"),
        result("a"),
        call("b"),
        result("b")
    )
    .into()
}

type Write = fn(usize, bool) -> Bytes;
const DIALECTS: [(&str, Write); 2] = [("/v1/messages", messages), ("/v1/responses", responses)];

fn job_covers(plan: &Plan) -> Option<std::ops::Range<usize>> {
    match &plan.needs {
        Some(Need::Make(job)) => Some(job.covers.clone()),
        _ => None,
    }
}

#[test]
fn what_a_program_calls_and_gets_is_not_edited() {
    for (path, write) in DIALECTS {
        for (policy, ends) in EDITS.iter().flat_map(|policy| [(policy, true), (policy, false)]) {
            let came = write(200, ends);
            let (plan, out) = edited(path, &came, &format!("{RECALL}{policy}"));
            assert_eq!(out.matches(&*rows(200)).count(), 2, "{path} {policy}\n{plan}");
            assert_eq!(out.matches("sql").count(), 2, "{path} {policy}\n{plan}");
            let of_program = plan.report.changes.iter().filter(|change| !matches!(&*change.call_id, "d" | "")).count();
            assert_eq!(of_program, 0, "{path} {policy}\n{plan}");
        }
        let clears = EDITS[1];
        let (plan, out) = edited(path, &write(200, true), &format!("{RECALL}{clears}"));
        assert!(
            out.contains("[Cleared") && !out.contains("line 1"),
            "what the model itself has called is cleared\n{plan}"
        );
    }
}

#[test]
fn what_a_program_calls_and_gets_takes_no_tokens() {
    for (path, write) in DIALECTS {
        let count = |n| {
            let policy = "clear_tool_results = { when = \"any\", trigger = { tokens = 10 }, keep = { results = 9 } }";
            edited(path, &write(n, true), &format!("{RECALL}{policy}")).0.report.tokens_before.unwrap()
        };
        assert_eq!(count(1), count(2000), "{path}");
    }
}

#[test]
fn no_summary_ends_inside_of_a_program() {
    for (path, write) in DIALECTS {
        let (plan, _) = edited(path, &write(200, true), SUMMARY);
        let covers = job_covers(&plan).unwrap_or_else(|| panic!("{path} {plan}"));
        assert!(covers.start == 0 && covers.end > if path == "/v1/messages" { 5 } else { 6 }, "{path} {covers:?}");
        let (plan, _) = edited(path, &write(200, false), SUMMARY);
        assert_eq!(job_covers(&plan), None, "{path} {plan}");
    }
}

/// A search for tools, what it found, and some rounds behind.
fn found(path: &str, tools: &str) -> Bytes {
    let long = text(3000).replace('\n', " ");
    let body = if path == "/v1/messages" {
        let round = |id: &str| {
            format!(
                r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"{id}","name":"db","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":"{long}"}}]}}"#
            )
        };
        format!(
            r#"{{"model":"claude-sonnet-5","tools":[{{"name":"bash"}}{tools}],"messages":[{{"role":"user","content":"go"}},{{"role":"assistant","content":[{{"type":"tool_use","id":"s","name":"ToolSearch","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"s","content":[{{"type":"tool_reference","tool_name":"db"}}]}}]}},{},{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}},{},{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}}]}}"#,
            round("1"),
            round("2")
        )
    } else {
        let round = |id: &str| {
            format!(
                r#"{{"type":"function_call","call_id":"{id}","name":"db","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"{id}","output":"{long}"}}"#
            )
        };
        format!(
            r#"{{"model":"gpt-5","tools":[{{"type":"function","name":"bash"}}{tools}],"input":[{{"role":"user","content":"go"}},{{"type":"tool_search_call","call_id":"s","execution":"client","arguments":{{}}}},{{"type":"tool_search_output","call_id":"s","execution":"client","tools":[{{"type":"function","name":"db","defer_loading":true}}]}},{},{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}},{},{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}}]}}"#,
            round("1"),
            round("2")
        )
    };
    body.into()
}

#[test]
fn tools_that_were_found_stay_known_as_long_as_the_request_has_them() {
    const DEFERRED: &str = r#",{"name":"db","type":"function","defer_loading":true}"#;
    for path in ["/v1/messages", "/v1/responses"] {
        for policy in EDITS {
            let (plan, out) = edited(path, &found(path, DEFERRED), &format!("{RECALL}{policy}"));
            assert!(out.contains(r#""s","#) && out.matches("db").count() >= 2, "{policy} {plan}");
            let is_gone = plan.report.changes.iter().any(|change| change.call_id == "s");
            assert!(!is_gone, "{path} {policy} {plan}");
        }
        let filter = EDITS[2];
        let (plan, _) = edited(path, &found(path, ""), filter);
        assert!(
            plan.report.changes.iter().any(|change| change.call_id == "s"),
            "its tool is not offered any more {plan}"
        );
    }
}

#[test]
fn each_tool_that_an_item_offers_is_a_tool() {
    let body = |tools: &str| {
        let long = text(4000).replace('\n', " ");
        Bytes::from(format!(
            r#"{{"model":"gpt-5","input":[{{"type":"additional_tools","role":"developer","tools":[{tools}]}},{{"role":"user","content":"go"}},{{"type":"function_call","call_id":"1","name":"f","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"1","output":"{long}"}}]}}"#
        ))
    };
    let truncate = "truncate_tool_results.max_bytes = 1000\nrecall.public_url = \"http://h\"\n";
    let functions = |name: &str| {
        format!(r#"{{"type":"namespace","name":"functions","tools":[{{"type":"function","name":"{name}"}}]}}"#)
    };
    for (tools, more, expected) in [
        (functions("exec_command"), "", "GET http://h/abridge/recall/"),
        (functions("mcp__abridge__recall"), "", "with mcp__abridge__recall"),
        (functions("read_file"), "recall.export_dir = \"/x\"", "with read_file from /x/"),
        (functions("wait"), "", "with abridge_recall"),
    ] {
        let (plan, out) = edited("/v1/responses", &body(&tools), &format!("{truncate}{more}"));
        assert!(out.contains(expected), "{expected} {plan}\n{out}");
        assert!(!plan.report.lacks_recall, "{expected}");
    }
    // The tool that abridge adds follows those of the item.
    let (plan, out) = edited("/v1/responses", &body(&functions("wait")), truncate);
    assert!(plan.report.adds_tool && out.contains(r#"]},{"type":"function","name":"abridge_recall""#), "{out}");
    // And where there is no way, the report says so.
    let small = "[[models]]\nmatch = \"gpt-5\"\ncontext_window = 1024\n";
    let offered = format!("{truncate}recall.via = \"offered\"\n{small}");
    let (plan, _) = edited("/v1/responses", &body(&functions("wait")), &offered);
    assert!(plan.report.lacks_recall && !plan.report.adds_tool, "{plan}");
    let (plan, _) = edited("/v1/responses", &body(&functions("wait")), &format!("{truncate}recall.via = \"none\""));
    assert!(!plan.report.lacks_recall, "{plan}");
}

/// Clients add tools in the middle of a conversation.
#[test]
fn tools_that_come_later_do_not_change_what_was_said_of_reading_back() {
    let body = |tools: &str, items: &str| {
        let long = text(4000).replace('\n', " ");
        Bytes::from(format!(
            r#"{{"model":"gpt-5"{tools},"input":[{{"role":"user","content":"go"}},{{"type":"function_call","call_id":"1","name":"f","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"1","output":"{long}"}}{items}]}}"#
        ))
    };
    let truncate = "truncate_tool_results.max_bytes = 1000\nrecall.public_url = \"http://h\"\n";
    let more = r#",{"role":"assistant","content":"so"},{"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"exec_command"}]},{"role":"user","content":"on"}"#;
    let tools = r#","tools":[{"type":"function","name":"wait"}]"#;
    let [(_, before), (_, after)] = ["", more].map(|more| edited("/v1/responses", &body(tools, more), truncate));
    assert!(before.contains("with abridge_recall"), "{before}");
    assert!(after.starts_with(before.trim_end_matches("]}")), "{after}");
    let (_, alone) = edited("/v1/responses", &body("", more), truncate);
    assert!(alone.contains("GET http://h/abridge/recall/"), "there is no other way: {alone}");
}

#[test]
fn search_results_and_documents_in_results_are_texts() {
    let long = |word: &str| format!("{word} {}", text(3000).replace('\n', " "));
    let content = format!(
        r#"[{{"type":"search_result","source":"https://kb/1","title":"one","content":[{{"type":"text","text":"{}"}}],"citations":{{"enabled":true}}}},{{"type":"text","text":"between"}},{{"content":[{{"type":"text","text":"{}"}},{{"type":"text","text":"short"}}],"type":"search_result"}},{{"type":"document","source":{{"type":"content","content":[{{"type":"text","text":"{}"}}]}}}}]"#,
        long("first"),
        long("second"),
        long("third")
    );
    let body = Bytes::from(format!(
        r#"{{"model":"claude-sonnet-5","tools":[{{"name":"bash"}}],"messages":[{{"role":"user","content":"go"}},{{"role":"assistant","content":[{{"type":"tool_use","id":"1","name":"kb","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"1","content":{content}}}]}},{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}}]}}"#
    ));
    for (policy, mark) in [(EDITS[0], "left out here"), (EDITS[1], "[Cleared")] {
        let (plan, out) = edited("/v1/messages", &body, &format!("{RECALL}{policy}"));
        let stored: Vec<_> = plan.offloads.iter().map(|offload| offload.payload.bytes()).collect();
        assert_eq!(stored, ["first", "second", "third"].map(long), "{plan}");
        assert_eq!(out.matches(mark).count(), 3, "{plan}");
        assert!(out.contains(r#""source":"https://kb/1","title":"one""#) && out.contains("between"), "{out}");
        serde_json::from_str::<serde::de::IgnoredAny>(&out).unwrap();
        assert!(plan.report.tokens_after.is_none_or(|after| after < plan.report.tokens_before.unwrap()), "{plan}");
    }
}

#[test]
fn a_search_for_tools_goes_on_beside_the_summary() {
    const DEFERRED: &str = r#",{"name":"db","type":"function","defer_loading":true}"#;
    for path in ["/v1/messages", "/v1/responses"] {
        let out = summarised(path, &found(path, DEFERRED), SUMMARY);
        let places = ["So far.", r#""s""#].map(|word| out.find(word));
        assert!(places.is_sorted() && places.iter().all(Option::is_some), "{path} {out}");
        assert!(!out.contains(r#""1","#), "{path} {out}");
        assert_eq!(out.matches(r#""s""#).count(), 2, "the call and its result: {path} {out}");
        let again = edited(path, &Bytes::from(out), "policy.edits = [\"patch_tool_calls\"]").0;
        assert!(again.is_empty(), "{path} {again}");
        let out = summarised(path, &found(path, ""), SUMMARY);
        assert!(out.contains("So far.") && !out.contains(r#""s""#), "{path} {out}");
    }
}

#[test]
fn tools_that_an_item_offers_in_the_middle_stay_beside_the_summary() {
    let round = |id: &str| {
        format!(
            r#"{{"type":"function_call","call_id":"{id}","name":"db","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"{id}","output":"{}"}}"#,
            "word ".repeat(600)
        )
    };
    let tools = r#"{"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"db"}]}"#;
    let body = format!(
        r#"{{"model":"gpt-5","input":[{{"role":"user","content":"go"}},{{"role":"assistant","content":"so"}},{tools},{{"role":"user","content":"on"}},{},{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}},{},{{"role":"assistant","content":"so"}},{{"role":"user","content":"on"}}]}}"#,
        round("1"),
        round("2")
    );
    let out = summarised("/v1/responses", &Bytes::from(body), SUMMARY);
    assert!(out.contains("So far.") && out.contains(tools) && !out.contains(r#""1","#), "{out}");
}
