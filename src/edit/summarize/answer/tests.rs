//! Texts that are summaries, and texts that are not.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::platform::testing::thread_time;

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(summary_of(text).as_deref(), Some(expected), "{text}");
}

#[track_caller]
fn check_fault(text: &str, fault: Fault) {
    assert_eq!(checked(text, Stop::Done), Err(fault), "{text}");
}

#[track_caller]
fn check_taken(text: &str) {
    assert_eq!(checked(text, Stop::Done).as_deref(), Ok(text));
}

#[test]
fn thoughts_and_tags_are_taken_off() {
    check("  S\n", "S");
    check("<analysis>\nA\n</analysis>\n\n<summary>\nS\n</summary>\n", "S");
    check("<analysis>甲</analysis><summary>1. 请求与意图：修复</summary>", "1. 请求与意图：修复");
    check("<think>T</think>\n<analysis>A</analysis>\n<summary>S</summary>", "S");
    check("<think>T</think><thinking>T</thinking><reasoning>T</reasoning>S", "S");
    check("<summary>\n<analysis>A</analysis>\nS\n</summary>", "S");
    check("<Analysis>A</Analysis><SUMMARY>S</Summary>", "S");
    check("<analysis>A</analysis>\n\nS", "S");
}

#[test]
fn remarks_around_are_taken_off() {
    check("Here it is:\n\n<summary>\nS\n</summary>", "S");
    check("好的，总结如下：\n<analysis>A</analysis>\n<summary>S</summary>", "S");
    check("<analysis>A</analysis>\nHere it is:\n<summary>\nS\n</summary>", "S");
    check("<summary>\nS\n</summary>\n\nTell me if you need more.", "S");
}

#[test]
fn missing_ends_are_borne() {
    check("<summary>\nS", "S");
    check("<analysis>\nA\n\n<summary>\nS\n</summary>", "S");
    check("T, T and T.</think>\n<summary>S</summary>", "S");
    check("I say\n<summary>\nx\n</summary>\nand so on.</think>\n<summary>\nS\n</summary>", "S");
    check("T</think>\n\n<analysis>A</analysis><summary>S</summary>", "S");
}

#[test]
fn a_remark_is_as_long_as_it_may_be_or_a_text_of_its_own() {
    let text = |n: usize| format!("{}\n<summary>S</summary>", "x".repeat(n - 1));
    check(&text(MAX_REMARK), "S");
    let own = text(MAX_REMARK + 1);
    check(&own, &own);
}

#[test]
fn thoughts_behind_a_remark_may_quote_a_summary() {
    for remark in ["Well:", "Well, here it is:"] {
        let quoted = "I say\n<summary>\nx\n</summary>\n";
        check(&format!("{remark}\n<think>{quoted}</think>\n<summary>\nS\n</summary>"), "S");
    }
}

#[test]
fn thoughts_alone_are_no_summary() {
    for text in [
        "",
        " \n",
        "<analysis>A</analysis>",
        "<analysis>A and nothing else",
        "<think>T",
        "<summary></summary>",
        "<analysis>A</analysis><summary> \n</summary>",
        "<summary><think>T</summary>",
    ] {
        assert_eq!(summary_of(text), None, "{text}");
        check_fault(text, Fault::Empty);
    }
}

#[test]
fn tags_that_are_only_spoken_of_lose_nothing() {
    for text in [
        "The page has <details><summary>More</summary> in it.\nNext: style it.",
        "<details>\n<summary>More</summary>\n</details>\nNext: style it.",
        "The template ends thoughts with </think>, and the parser must know that.",
        "1. Request: read <analysis> tags, also unclosed ones.",
        "1. 请求：支持 <think> 标签",
    ] {
        check(text, text);
    }
    let inside = "Make `<details><summary>x</summary>` work, and </summary> alone.\nThen `<analysis>`.";
    check(&format!("<analysis>A</analysis>\n<summary>\n{inside}\n</summary>"), inside);
    check(&format!("<summary>\n{inside}\n</summary>\nThat is all."), inside);
    check("<summary>\nMake <summary>x</summary> work.\nTo do: all.", "Make <summary>x</summary> work.\nTo do: all.");
    check("<summary>We wrap it in <summary> now.</summary>", "We wrap it in <summary> now.");
    check("<analysis>It speaks of </analysis> too.</analysis>\n<summary>S</summary>", "S");
}

#[test]
fn what_ended_badly_is_refused_whatever_it_says() {
    for (stop, fault) in [
        (Stop::Length, Fault::CutOff),
        (Stop::ContentFilter, Fault::Filtered),
        (Stop::ToolCall, Fault::ToolCall),
        (Stop::Error, Fault::ErrorText),
    ] {
        assert_eq!(checked("S", stop), Err(fault), "{stop:?}");
    }
    assert_eq!(checked("S", Stop::Done), Ok("S".to_owned()));
}

#[test]
fn errors_in_disguise_are_refused() {
    let long_page = format!("<!DOCTYPE html><html><head><title>502</title></head>{}</html>", "x".repeat(5000));
    for text in [
        r#"{"error":{"message":"Rate limit reached","type":"requests"}}"#,
        r#"[{"error": {"code": 400}}]"#,
        "```json\n{\"error\": \"overloaded\"}\n```",
        r#"{"object":"error","message":"too long","code":400}"#,
        r#"<summary>{"error":{"message":"no"}}</summary>"#,
        "Error: Request timed out.",
        "Error code: 429 - {'error': {'message': 'Rate limit reached'}}",
        "An error occurred while processing your request. Please try again later.",
        "Internal Server Error",
        "502 Bad Gateway",
        "upstream connect error or disconnect/reset before headers",
        "Error 503: the model is overloaded",
        "<think>T</think>Error: maximum context length exceeded",
        "错误：请求超时，请稍后重试",
        "内部服务器错误",
        &long_page,
    ] {
        check_fault(text, Fault::ErrorText);
    }
}

#[test]
fn calls_and_refusals_in_disguise_are_refused() {
    for text in [
        "<tool_call>\n{\"name\": \"bash\", \"arguments\": {}}\n</tool_call>",
        "<analysis>A</analysis>\n<function=bash>",
        "[TOOL_CALLS][{\"name\":\"bash\"}]",
        "<｜tool▁calls▁begin｜>bash",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"bash\">",
        "<minimax:tool_call>\n<invoke name=\"bash\">",
        "<function_calls>\n<invoke name=\"bash\">",
        "<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{\"cmd\":\"ls\"}<|call|>",
        "<|start|>assistant<|channel|>analysis<|message|>Let me see.",
        "Let me look at the files first.\n\n<function_calls>\n<invoke name=\"bash\">",
        "I will check this.\n  <minimax:tool_call>",
        r#"{"name": "bash", "arguments": {"cmd": "ls"}}"#,
        r#"[{"name": "bash", "parameters": {}}]"#,
        r#"{"tool_calls": [{}]}"#,
    ] {
        check_fault(text, Fault::ToolCall);
    }
    for text in ["I'm sorry, but I can't help with that.", "I’m sorry, but I cannot do this.", "抱歉，我无法协助完成。"]
    {
        check_fault(text, Fault::Refusal);
    }
}

#[test]
fn summaries_that_speak_of_errors_are_taken() {
    let long = format!("Error: request timed out was what the user saw first. {}", "Then more was done. ".repeat(30));
    for text in [
        "Error handling was added to the API client; the upstream now answers 502 Bad Gateway.",
        "Error: `cargo test` failed in src/lib.rs:3, mended by the import. Next: push.",
        "The service answered {\"error\":{\"code\":429}} until the quota was raised.",
        "{\"name\": \"abridge\", \"next\": \"write the parser\"}",
        "{\"plan\": \"write the parser\", \"errors\": [\"E0308\"]}",
        "1. Request and intent: mend the error `Internal Server Error` of /login.",
        "4. Errors and fixes: Error: rate limit exceeded, mended by waiting.",
        "The user wrote: I'm sorry, but I can't reproduce it.",
        "The model called <tool_call> in plain text, which the parser refuses.",
        "错误与修复：内部服务器错误已修复。",
        "错误：编译失败，缺少分号，已修复。",
        long.trim(),
    ] {
        check_taken(text);
    }
    // Who keeps to the form means what it says.
    for text in
        ["Error: request timed out, try again: that is all the user has sent.", "Internal Server Error is mended."]
    {
        let answer = format!("<summary>{text}</summary>");
        assert_eq!(checked(&answer, Stop::Done).as_deref(), Ok(text));
    }
}

#[test]
fn a_summary_must_have_room_for_what_it_stands_for() {
    for (replaced, least) in [(100, 0), (LONG - 1, 0), (LONG, 30), (16_000, 40), (1_000_000, 40)] {
        assert_eq!(long_enough(least, replaced), Ok(()), "{replaced}");
        if let Some(tokens) = least.checked_sub(1) {
            assert_eq!(long_enough(tokens, replaced), Err(Fault::TooShort { tokens, replaced }));
        }
    }
}

#[test]
fn a_summary_in_the_form_that_was_asked_for_may_quote_calls() {
    let text = "The parser refuses this:\n<function_calls>\nas of now.";
    assert_eq!(checked(&format!("<summary>\n{text}\n</summary>"), Stop::Done).as_deref(), Ok(text));
}

#[test]
fn a_summary_must_be_smaller() {
    assert_eq!(smaller(9, 10), Ok(()));
    for tokens in [10, 11] {
        assert_eq!(smaller(tokens, 10), Err(Fault::NotSmaller { tokens, replaced: 10 }));
    }
    let text = Fault::NotSmaller { tokens: 12, replaced: 10 }.to_string();
    assert_eq!(text, "the summary has 12 tokens, what it would replace has 10");
}

#[test]
fn many_tags_take_no_time_to_speak_of() {
    for tag in
        ["<summary>", "</summary>", "<think></think>", "<analysis>", "</think>", "<think>", "<analysis>\n</analysis>"]
    {
        let before = thread_time();
        let _ = checked(&tag.repeat(100_000), Stop::Done);
        let took = thread_time().saturating_sub(before);
        assert!(took < Duration::from_secs(20), "{tag}: {took:?}");
    }
}

/// Texts that are made of what the reader looks for, and of anything else.
fn any_answer() -> impl Strategy<Value = String> {
    let names = prop::sample::select(vec!["summary", "analysis", "think", "thinking", "SUMMARY", "tool_call"]);
    let tag =
        (names, any::<bool>()).prop_map(|(name, close)| if close { format!("</{name}>") } else { format!("<{name}>") });
    let piece =
        prop_oneof![3 => tag, 2 => "[a-z \n`<>/\"{}:]{0,6}", 2 => "\\PC{0,6}", 1 => Just("错误：\n".to_owned())];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn a_summary_is_a_part_of_the_answer(text in any_answer()) {
        if let Some(summary) = summary_of(&text) {
            prop_assert!(text.contains(&summary));
            prop_assert!(!summary.is_empty() && summary.trim() == summary);
        }
        let taken = checked(&text, Stop::Done);
        prop_assert!(taken.is_err() || taken.ok() == summary_of(&text));
    }

    #[test]
    fn what_was_asked_for_is_found(thought in "[^<]{0,40}", said in "[^<]{0,40}[^<\\s]", gap in "[ \n]{0,3}") {
        let text = format!("<analysis>{thought}</analysis>{gap}<summary>{said}</summary>");
        prop_assert_eq!(summary_of(&text), Some(said.trim().to_owned()));
        let without_tags = format!("<think>{thought}</think>{gap}{said}");
        prop_assert_eq!(summary_of(&without_tags), Some(said.trim().to_owned()));
    }
}
