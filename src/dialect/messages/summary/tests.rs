//! Requests for a summary: cached, fresh, and what leaves them.

use super::*;
use crate::summary::{InputElement, SummaryInput};

const BODY: &str = r#"{"model":"claude-opus-5","max_tokens":32000,"stream":false,"system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],"tools":[{"name":"Bash"}],"tool_choice":{"type":"auto"},"thinking":{"type":"enabled","budget_tokens":2000},"output_config":{"effort":"high","format":{"type":"json_schema"}},"context_management":{"edits":[]},"stop_sequences":["x"],"container":"c","metadata":{"user_id":"u"},"unknown":1,"messages":[]}"#;
const CALL: &str = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"s"},{"type":"tool_use","id":"a","name":"Bash","input":{}}]}"#;
const RESULT: &str = r#"{ "role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x"}]}"#;

fn source(body: &str) -> SummaryInput {
    let piece =
        |json: &str| InputElement { json: Bytes::from(json.to_owned()), tokens: 1, opens: true, must_alternate: false };
    let messages = [r#"{"role":"user","content":"go"}"#, CALL, RESULT].map(piece).to_vec();
    SummaryInput { body: Bytes::from(body.to_owned()), messages, n_leading: 0, base_tokens: 0 }
}

fn prompt(input: PromptMode, model: Option<&str>) -> Prompt<'_> {
    Prompt { input, system: "You summarise.", instruction: "Sum \"it\" up.", max_tokens: 900, model }
}

fn written(body: &str, prompt: &Prompt<'_>) -> String {
    String::from_utf8(Messages.summary_request(&source(body), prompt).unwrap().to_vec()).unwrap()
}

#[test]
fn a_cached_request_is_the_clients_but_for_its_end() {
    let messages =
        format!(r#"[{{"role":"user","content":"go"}},{CALL},{RESULT},{{"role":"user","content":"Sum \"it\" up."}}]"#);
    let expected = format!(
        r#"{{"model":"claude-opus-5","system":[{{"type":"text","text":"Be brief.","cache_control":{{"type":"ephemeral"}}}}],"tools":[{{"name":"Bash"}}],"tool_choice":{{"type":"auto"}},"thinking":{{"type":"enabled","budget_tokens":2000}},"output_config":{{"effort":"high"}},"metadata":{{"user_id":"u"}},"unknown":1,"messages":{messages},"max_tokens":2900,"stream":true}}"#
    );
    assert_eq!(written(BODY, &prompt(PromptMode::Cached, None)), expected);
    let other = written(BODY, &prompt(PromptMode::Cached, Some("m")));
    assert_eq!(other, expected.replace("claude-opus-5", "m"));
}

#[test]
fn a_fresh_request_is_plain() {
    let call = r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"Bash","input":{}}]}"#;
    let messages =
        format!(r#"[{{"role":"user","content":"go"}},{call},{RESULT},{{"role":"user","content":"Sum \"it\" up."}}]"#);
    let rest = r#""max_tokens":900,"stream":true}"#;
    let expected = format!(r#"{{"model":"m","system":"You summarise.","messages":{messages},{rest}"#);
    assert_eq!(written(BODY, &prompt(PromptMode::Fresh, Some("m"))), expected);
    let same = expected.replace(r#""model":"m""#, r#""model":"claude-opus-5""#);
    let same = same.replace(rest, &format!(r#""metadata":{{"user_id":"u"}},{rest}"#));
    assert_eq!(written(BODY, &prompt(PromptMode::Fresh, None)), same);
}

#[test]
fn a_fresh_request_keeps_what_an_oauth_token_needs() {
    let system_of = |system: &str, model| {
        let body = format!(r#"{{"model":"claude-opus-5","system":{system},"messages":[]}}"#);
        let written = written(&body, &prompt(PromptMode::Fresh, model));
        Fields::of(&written).unwrap().get("system").unwrap().to_owned()
    };
    let own = r#"{"type":"text","text":"You summarise."}"#;
    let other = r#"{"type":"text","text":"Be brief."}"#;
    let billing = r#"{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.331"}"#;
    for named in [
        "You are Claude Code, Anthropic's official CLI for Claude.",
        "You are Claude Code, Anthropic's official CLI for Claude, running within the Claude Agent SDK.",
        "You are a Claude agent, built on Anthropic's Claude Agent SDK.",
    ] {
        let block = format!(r#"{{"type":"text","text":"{named}","cache_control":{{"type":"ephemeral"}}}}"#);
        assert_eq!(system_of(&format!("[{block},{other}]"), None), format!("[{block},{own}]"));
        assert_eq!(system_of(&format!("[{billing},{block},{other}]"), None), format!("[{billing},{block},{own}]"));
        assert_eq!(
            system_of(&format!(r#""{named}\nBe brief.""#), None),
            format!(r#"[{{"type":"text","text":"{named}"}},{own}]"#)
        );
        assert_eq!(system_of(&format!("[{block}]"), Some("m")), r#""You summarise.""#);
    }
    // As the classifier of Claude Code's auto mode asks (dyndynjyxa/aio-coding-hub#384).
    assert_eq!(system_of(&format!("[{billing},{other}]"), None), format!("[{billing},{own}]"));
    for others in [format!("[{other}]"), r#""Be brief.""#.to_owned(), "[]".to_owned(), "null".to_owned()] {
        assert_eq!(system_of(&others, None), r#""You summarise.""#, "{others}");
    }
}

#[test]
fn a_format_that_is_alone_leaves_with_its_key() {
    let body = r#"{"messages":[],"output_config":{"format":{}},"thinking":{"type":"adaptive"}}"#;
    let written = written(body, &prompt(PromptMode::Cached, Some("m")));
    assert!(!written.contains("output_config"), "{written}");
    assert!(
        written.ends_with(r#","thinking":{"type":"adaptive"},"model":"m","max_tokens":4996,"stream":true}"#),
        "{written}"
    );
}

#[test]
fn what_is_only_thinking_leaves() {
    let mut of_programs = HashSet::new();
    let mut without = |json| plain(json, &mut of_programs);
    assert_eq!(
        without(r#"{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"}]}"#).as_deref(),
        Some(&b""[..])
    );
    let call = r#"{"role":"assistant","content":[{"type":"text","text":"x"},{"type":"tool_use","id":"p","caller":{"type":"code_execution_20260120"}},{"type":"tool_use","id":"d","caller":{"type":"direct"}}]}"#;
    let kept = r#"{"role":"assistant","content":[{"type":"text","text":"x"},{"type":"tool_use","id":"d","caller":{"type":"direct"}}]}"#;
    assert_eq!(without(call).as_deref(), Some(kept.as_bytes()));
    assert_eq!(
        without(r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"p"}]}"#).as_deref(),
        Some(&b""[..])
    );
    assert_eq!(without(r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"d"}]}"#), None);
    assert_eq!(without(r#"{"role":"assistant","content":[{"type":"text","text":"x"}]}"#), None);
    assert_eq!(without(r#"{"role":"assistant","content":"x"}"#), None);
    assert_eq!(without(r#"{"role":"system","content":"x"}"#).as_deref(), Some(&b""[..]));
}

#[test]
fn no_request_is_made_of_what_is_none() {
    for body in ["[]", r#"{"model":"m"}"#, r#"{"messages":[],"messages":[]}"#] {
        assert_eq!(Messages.summary_request(&source(body), &prompt(PromptMode::Cached, None)), None, "{body}");
    }
    let empty = SummaryInput { messages: Vec::new(), ..source(BODY) };
    assert_eq!(Messages.summary_request(&empty, &prompt(PromptMode::Cached, None)), None);
}
