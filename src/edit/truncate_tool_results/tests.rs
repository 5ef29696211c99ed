//! Which results are cut, where, and what is there.

use bytes::Bytes;
use serde_json::json;

use super::super::tests::{HTTP, body, body_of, check, check_untouched, messages, plan, plan_with, text};
use super::*;
use crate::{dialect, draft::Offload, replay::planner_from_toml, span::splice};

fn policy(keys: &str) -> String {
    format!("{HTTP}[truncate_tool_results]\n{keys}")
}

/// The content of the message at the end.
fn last(output: &[u8]) -> String {
    messages(output).last().unwrap()["content"].as_str().unwrap().to_owned()
}

#[test]
fn cuts_what_is_longer_than_allowed() {
    check("u c:1 t:1*60000", HTTP, "u c:1 t:1~");
    check_untouched("u c:1 t:1*50000", HTTP);
    check("u c:1 t:1*1000 c:2 t:2*1001", &policy("max_bytes = 1000"), "u c:1 t:1*1000 c:2 t:2~");
}

#[test]
fn old_and_new_results_are_cut_alike() {
    let plan =
        check("u c:1,2 t:1*3000 t:2 a u c:3 t:3*3000", &policy("max_bytes = 1000"), "u c:1,2 t:1~ t:2 a u c:3 t:3~");
    assert_eq!(plan.report.counts(), [("truncate", 2)]);
    assert_eq!(plan.offloads.len(), 1, "the same text is stored once");
    assert_eq!(plan.offloads[0].payload.bytes(), text(3000));
    assert_eq!(plan.report.changes[0].handles, [plan.offloads[0].key]);
    assert_eq!(plan.report.changes[0].bytes.before, 3000);
}

#[test]
fn what_is_left_is_whole_lines_of_both_ends() {
    let (plan, output) = plan(&body("u c:1 t:1*5000"), &policy("max_bytes = 1000"));
    let left = last(&output);
    assert!(left.len() <= 1000 && left.len() > 850, "{}", left.len());
    let handle = plan.offloads[0].key;
    let (head, rest) = left.split_once("\n\n[").unwrap();
    let (notice, tail) = rest.split_once("]\n").unwrap();
    let missing = 5000 - head.len() - 1 - tail.len();
    assert_eq!(
        notice,
        format!(
            "{missing} of 5000 bytes left out here. Read it with GET http://h/abridge/recall/{handle} (?lines=1-200, ?grep=TEXT, ?offset=0&limit=8000)."
        )
    );
    let original = text(5000);
    assert!(original.starts_with(&format!("{head}\n")));
    assert!(original.ends_with(tail) && tail.starts_with("line "));
}

#[test]
fn cuts_between_characters() {
    let long = "é😀".repeat(1000);
    let body = body_of(&[
        json!({"role": "assistant", "tool_calls": [{"id": "1"}]}),
        json!({"role": "tool", "tool_call_id": "1", "content": long}),
    ]);
    for max_bytes in 400..420 {
        let (plan, output) = plan(&body, &policy(&format!("max_bytes = {max_bytes}")));
        assert!(last(&output).len() <= max_bytes);
        assert_eq!(plan.offloads[0].payload.bytes(), long);
    }
    assert_eq!((head_end("é", 1), tail_start("é", 1), head_end("", 5), tail_start("", 5)), (0, 2, 0, 0));
    assert_eq!((head_end("0123456789012345678\n01", 21), head_end("\n01234567890", 12)), (20, 12));
    assert_eq!(
        (tail_start("0\n0123456789", 10), tail_start("01\n01234567890123456789", 21), tail_start("0123", 9)),
        (2, 3, 0)
    );
}

#[test]
fn texts_of_one_result_have_equal_shares() {
    let part = |n| json!({"type": "text", "text": text(n)});
    let image = json!({"type": "image_url", "image_url": {"url": "data:"}});
    #[expect(clippy::disallowed_types, reason = "a message is made here")]
    let of = |parts: serde_json::Value| {
        body_of(&[
            json!({"role": "assistant", "tool_calls": [{"id": "1"}]}),
            json!({"role": "tool", "tool_call_id": "1", "content": parts}),
        ])
    };
    let policy = policy("max_bytes = 2000");
    let (one, output) = plan(&of(json!([part(900), image, part(3000)])), &policy);
    let content = messages(&output)[1]["content"].clone();
    assert_eq!((&content[0], &content[1]), (&part(900), &image));
    assert!(content[2]["text"].as_str().unwrap().len() <= 1000);
    assert_eq!(one.offloads.len(), 1);
    let (both, _) = plan(&of(json!([part(1500), image, part(3000)])), &policy);
    assert_eq!((both.offloads.len(), both.report.changes[0].handles.len(), both.report.changes.len()), (2, 2, 1));
    assert!(plan(&of(json!([part(900), part(1000)])), &policy).0.is_empty());
}

#[test]
fn excluded_tools_and_reader_tools_stay_whole() {
    let input = "u c:1,read_file/2,mcp__x/3 t:1*60000 t:read_file/2*60000 t:mcp__x/3*60000";
    check(
        input,
        &policy("exclude_tools = [\"mcp__*\"]"),
        "u c:1,read_file/2,mcp__x/3 t:1~ t:read_file/2*60000 t:mcp__x/3*60000",
    );
    let readers = "[recall]\nreader_tools = [\"bash\"]";
    check(input, readers, "u c:1,read_file/2,mcp__x/3 t:1*60000 t:read_file/2~ t:mcp__x/3~");
}

#[test]
fn settings_of_a_tool_win() {
    let tools = |entry: &str| format!("{HTTP}[tools]\n{entry}");
    check_untouched("u c:1 t:1*60000", &tools("bash = { truncate = false }"));
    check(
        "u c:read_file/1 t:read_file/1*60000",
        &tools("read_file = { truncate = true }"),
        "u c:read_file/1 t:read_file/1~",
    );
    check("u c:1 t:1*3000", &tools("'b*' = { truncate = { max_bytes = 1000 } }"), "u c:1 t:1~");
    let lengths = |limits: &str| {
        let (_, output) = plan(&body("u c:1 t:1*60000"), &tools(&format!("bash = {{ truncate = {limits} }}")));
        let left = last(&output);
        let (head, rest) = left.split_once("\n[").unwrap();
        (head.len(), rest.split_once("]\n").unwrap().1.len())
    };
    let (head, tail) = lengths("{ max_bytes = 10000, head = 500, tail = 200 }");
    assert!((450..=500).contains(&head) && (180..=200).contains(&tail), "{head} {tail}");
    let (head, tail) = lengths("{ max_bytes = 10000, head = 0 }");
    assert!(head == 0 && (8900..=10000).contains(&tail), "{head} {tail}");
    let (head, tail) = lengths("{ max_bytes = 10000, tail = 20000 }");
    assert!(head == 0 && tail < 10000, "{head} {tail}");
}

/// One call of `bash` and its result.
#[expect(clippy::disallowed_types, reason = "a message is made here")]
fn round(arguments: &serde_json::Value, result: &str) -> Bytes {
    body_of(&[
        json!({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "bash", "arguments": arguments}}]}),
        json!({"role": "tool", "tool_call_id": "1", "content": result}),
    ])
}

#[test]
fn what_was_read_back_is_not_cut_again() {
    let path = format!("/abridge/recall/{}", "0".repeat(26));
    let escaped = path.replace('/', "\\/");
    for asks in [
        json!(json!({"command": format!("curl http://h{path}?lines=1-200")}).to_string()),
        json!(format!(r#"{{"url":"http:\/\/h{escaped}"}}"#)),
        json!({"command": format!("curl http://h{path}")}),
    ] {
        assert!(plan(&round(&asks, &text(60000)), HTTP).0.is_empty(), "{asks}");
        // The same text, come by in another way.
        assert!(!plan(&round(&json!("{}"), &text(60000)), HTTP).0.is_empty());
    }
}

#[test]
fn what_a_result_says_of_handles_makes_it_no_longer() {
    let url = format!("http://h/abridge/recall/{}", "0".repeat(26));
    let mut growing = text(40000);
    for _ in 0..3 {
        growing = format!("{growing}\n[1 of 2 bytes left out here. Read it with GET {url}.]\n{}", text(40000));
        for arguments in
            ["{}", r#"{"command":"ls /abridge/recall/"}"#, r#"{"command":"curl http://h/abridge/recall/0"}"#]
        {
            let (_, output) = plan(&round(&json!(arguments), &growing), HTTP);
            assert!(last(&output).len() <= 50_000, "{} {arguments}", last(&output).len());
        }
    }
}

#[test]
fn a_notice_alone_is_not_cut_again() {
    let tight = policy("max_bytes = 100");
    let (_, once) = plan(&body("u c:1 t:1*60000"), &tight);
    assert!(last(&once).len() > 100 && last(&once).contains("60000 of 60000 bytes"), "{}", last(&once));
    assert!(plan(&once, &tight).0.is_empty());
}

#[test]
fn what_only_begins_and_ends_like_a_notice_is_cut() {
    let policy = policy("max_bytes = 20\nnotice = '[{left_out} of {bytes} bytes left out.]'");
    let left = |result: &str| last(&plan(&round(&json!("{}"), result), &policy).1);
    let longest = format!("[{most} of {most} bytes left out.]", most = u64::MAX);
    assert_eq!(left(&longest), longest);
    let quoted = format!("[{} of 5 bytes left out.]", "x".repeat(200));
    assert_eq!(left(&quoted), format!("[{len} of {len} bytes left out.]", len = quoted.len()));
}

#[test]
fn what_is_too_long_only_as_it_is_written_is_not_spoken_of() {
    let (plan, _) = plan(&round(&json!("{}"), &"\n".repeat(600)), &policy("max_bytes = 1000"));
    assert!(plan.is_empty() && plan.report.left_out.is_empty(), "{plan}");
}

#[test]
fn without_a_store_results_stay_whole() {
    let (plan, _) = plan_with(&body("u c:1 t:1*60000"), HTTP, Offload::Impossible);
    assert!(plan.is_empty() && plan.offloads.is_empty());
    let left_out = &plan.report.left_out[0];
    assert_eq!((left_out.why, left_out.message, left_out.call_id.as_str()), (SkipReason::NoStore, Some(2), "1"));
}

#[test]
fn nothing_becomes_longer() {
    let (plan, _) = plan(&body("u c:1 t:1*120"), &policy("max_bytes = 100"));
    assert!(plan.is_empty(), "{plan}");
    assert_eq!(plan.report.left_out[0].why, SkipReason::NotSmaller);
}

#[test]
fn the_notice_can_be_written() {
    let notice = policy("max_bytes = 1000\nnotice = '<{tool_name} {left_out}/{bytes} {handle}>'");
    let (plan, output) = plan(&body("u c:1 t:1*5000"), &notice);
    assert!(last(&output).contains(&format!("/5000 {}>", plan.offloads[0].key)), "{}", last(&output));
    let (_, output) = self::plan(&body("u c:1 t:1*60000"), &format!("language = 'zh'\n{HTTP}"));
    assert!(last(&output).contains("字节，共 60000 字节。读取方式：GET http://h/abridge/recall/"));
    let (_, output) = self::plan(&body("u c:1 t:1*60000"), "[recall]\nvia = 'none'");
    assert!(last(&output).contains("of 60000 bytes left out here.]\n"));
}

#[test]
fn what_is_no_text_stays() {
    for content in [r#""\ud83d""#.to_owned(), "7".repeat(60000), format!("{{\"a\":\"{}\"}}", "x".repeat(60000))] {
        let body = format!(
            r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"id":"1"}}]}},{{"role":"tool","tool_call_id":"1","content":{content}}}]}}"#
        );
        assert!(plan(&body.into(), HTTP).0.is_empty());
    }
}

#[test]
fn what_is_remembered_of_a_result_with_parts_is_what_was_made_of_it() {
    let part = |n: usize| json!({"type": "text", "text": text(n)});
    let body = body_of(&[
        json!({"role": "assistant", "tool_calls": [{"id": "1"}]}),
        json!({"role": "tool", "tool_call_id": "1", "content": [part(3000), part(5000), part(10)]}),
    ]);
    let later = Bytes::from(String::from_utf8(body.to_vec()).unwrap().replacen('{', "{ \"model\": null, ", 1));
    let planner = planner_from_toml(&policy("max_bytes = 1500")).unwrap();
    let chat = dialect::for_path("/chat/completions").unwrap();
    let plans = [&body, &body, &later].map(|body| (body, planner.plan(chat, body).unwrap()));
    let contents = plans.each_ref().map(|(body, plan)| messages(&splice(body, &plan.splices).concat())[1].to_string());
    assert!(contents.iter().all(|content| *content == contents[0] && content.matches("left out here").count() == 2));
    for (_, plan) in &plans {
        assert_eq!(plan.offloads, plans[0].1.offloads);
        assert_eq!(plan.report.changes, plans[0].1.report.changes);
    }
}

#[test]
fn a_part_that_keeps_to_its_share_is_not_cut() {
    let part = |n: usize| json!({"type": "text", "text": text(n)});
    let lengths = |first: usize| {
        let body = body_of(&[
            json!({"role": "assistant", "tool_calls": [{"id": "1"}]}),
            json!({"role": "tool", "tool_call_id": "1", "content": [part(first), part(5000)]}),
        ]);
        let parts = messages(&plan(&body, &policy("max_bytes = 2000")).1)[1]["content"].clone();
        [0, 1].map(|n| parts[n]["text"].as_str().unwrap().len())
    };
    for first in [10, 990, 1000] {
        let [one, other] = lengths(first);
        assert_eq!(one, first);
        assert!(other <= 1000, "{other}");
    }
    assert!(lengths(1001)[0] <= 1000);
}

#[test]
fn messages_that_call_are_not_cut() {
    let body = body_of(&[
        json!({"role": "assistant", "content": text(5000), "tool_calls": [{"id": "1"}]}),
        json!({"role": "tool", "tool_call_id": "1", "content": "ok"}),
    ]);
    assert!(plan(&body, &policy("max_bytes = 1000")).0.is_empty());
}

#[test]
fn a_notice_of_ones_own_names_the_tool() {
    let keys = "max_bytes = 1000\nnotice = '<{tool_name}: {left_out} of {bytes}>'";
    let left = last(&plan(&body("u c:1 t:1*5000"), &policy(keys)).1);
    assert!(left.contains("<bash: ") && left.contains(" of 5000>"), "{left}");
    let lone = format!("{}\n[policy]\nedits = ['truncate_tool_results']", policy(keys));
    let left = last(&plan(&body("u t:1*5000"), &lone).1);
    assert!(left.contains(&format!("<{}: ", Language::En.tool_name(""))), "{left}");
}

#[test]
fn a_line_end_counts_in_the_last_tenth_of_the_beginning_and_the_first_of_the_end() {
    let text = |line_end: usize| format!("{}\n{}", "x".repeat(line_end), "x".repeat(2000 - line_end));
    for (line_end, end) in [(890, 1000), (899, 1000), (900, 901), (950, 951), (999, 1000), (1000, 1000)] {
        assert_eq!(head_end(&text(line_end), 1000), end, "{line_end}");
    }
    for (line_end, start) in [(999, 1001), (1000, 1001), (1050, 1051), (1100, 1101), (1101, 1001), (1200, 1001)] {
        assert_eq!(tail_start(&text(line_end), 1000), start, "{line_end}");
    }
}

#[test]
fn a_way_is_told_to_those_who_can_go_it() {
    let policy = "recall = { public_url = \"http://h\" }\n[truncate_tool_results]\nmax_bytes = 1000";
    let left = |tools: &str| {
        let request = String::from_utf8(body("u c:1 t:1*5000").to_vec()).unwrap();
        last(&plan(&Bytes::from(request.replacen('{', &format!("{{{tools}"), 1)), policy).1)
    };
    let offering = |name: &str| format!(r#""tools":[{{"type":"function","function":{{"name":"{name}"}}}}],"#);
    assert!(left(&offering("bash")).contains("GET http://h/abridge/recall/"));
    assert!(!left(&offering("search")).contains("http://h") && !left("").contains("http://h"));
}

// === half a surrogate pair ===

/// A request with a result whose content is written like this.
fn spelled(content: &str) -> Bytes {
    let call = r#"{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"bash","arguments":"{}"}}]}"#;
    format!(r#"{{"messages":[{call},{{"role":"tool","tool_call_id":"1","content":{content}}}]}}"#).into()
}

#[test]
fn a_text_with_half_a_surrogate_pair_is_cut_and_what_is_left_stays_as_it_is_written() {
    let content = format!(r#""\ud83d\/ {} \u00e9\uDE00""#, "word ".repeat(400));
    let planner = planner_from_toml(&policy("max_bytes = 1000")).unwrap();
    let body = spelled(&content);
    for _first_and_remembered in 0..2 {
        let plan = planner.plan(dialect::default(), &body).unwrap();
        let [offload] = plan.offloads.as_slice() else { panic!("{plan}") };
        assert_eq!((offload.payload.bytes(), offload.payload.len()), (Bytes::from(content.clone()), content.len()));
        let output = String::from_utf8(splice(&body, &plan.splices).concat()).unwrap();
        let (head, rest) = output.split_once(r#""content":"\ud83d\/ word "#).unwrap().1.split_once(r"\n[").unwrap();
        let (notice, tail) = rest.split_once(r"]\n").unwrap();
        assert!(content.contains(head) && content.contains(tail.strip_suffix("}]}").unwrap()), "{output}");
        assert!(tail.ends_with(r#" \u00e9\uDE00"}]}"#));
        // Each half counts as the three bytes of U+FFFD.
        assert!(notice.contains(" of 2011 bytes left out here."), "{notice}");
        assert!(notice.contains(&format!("/abridge/recall/{}", offload.key)), "{notice}");
    }
}

#[test]
fn a_pair_is_never_cut_in_half() {
    let content = format!(r#""x{}""#, r"\ud83d\ude00".repeat(600));
    for max_bytes in 1000..1008 {
        let (plan, output) = plan(&spelled(&content), &policy(&format!("max_bytes = {max_bytes}")));
        assert_eq!(plan.report.counts(), [("truncate", 1)]);
        // It is read as JSON, which a half would not be.
        let left = last(&output);
        assert!(left.starts_with("x😀") && left.ends_with('😀') && left.len() <= max_bytes, "{}", left.len());
    }
}
