//! Recognises results that clients write as messages of the user or of the legacy role `function`, for servers without the
//! role `tool`.

use super::texts;
use crate::dialect::json::{decode, fields_of};
use crate::dialect::reading::id_text;
use crate::dialect::{AnsweredInWords, OpenCalls, strings};
use crate::raw::utf8;
use crate::span::Span;

/// The most bytes of the label at the beginning of a result: `Tool result of read (c1):`, `<tool_response>`.
const MAX_LABEL: usize = 100;

/// The first words of a label, besides the name of a tool and the id of a call.
const FIRST_WORDS: [&str; 6] = ["tool", "function", "observation", "call", "工具", "函数"];

/// The words for a result in a label.
const KINDS: [&str; 6] = ["result", "response", "output", "observation", "returned", "结果"];

/// The least bytes of an id that counts as named without a label; it needs a digit, too.
const MIN_ID: usize = 8;

/// Which of the open calls a message answers.
pub(super) fn answered(body: &[u8], message: Span, open: &OpenCalls<'_>) -> Option<AnsweredInWords> {
    let keys: [&[u8]; 4] = [b"role", b"name", b"tool_call_id", b"content"];
    let [role, name, id, content] = fields_of(body, message, keys)?;
    if let Some(call) = id.and_then(|id| open.by_id(&id_text(id.of(body))?)) {
        return Some(AnsweredInWords::Calls(vec![call]));
    }
    match &*decode(role?.of(body))? {
        "function" => Some(AnsweredInWords::Tool(decode(name?.of(body))?.into_owned())),
        "user" => in_text(body, content?, open),
        _ => None,
    }
}

/// Which calls the user answers: those whose ids the text names; or all of them, if it says that it is a result.
fn in_text(body: &[u8], content: Span, open: &OpenCalls<'_>) -> Option<AnsweredInWords> {
    let texts: Vec<_> = texts(body, content)?.into_iter().filter_map(|text| strings::text(body, text)).collect();
    let is_part = |raw: &[u8]| memchr::memmem::find(raw, b"\"tool_result\"").is_some();
    let part = utf8(content.of(body)).filter(|raw| raw.starts_with('[') && is_part(raw.as_bytes()));
    let says_so = part.is_some() || texts.first().is_some_and(|text| is_labelled(text, open));
    let texts = texts.iter().map(|text| &**text).chain(part).filter(|text| open.may_be_named_in(text));
    let words = texts.flat_map(words);
    let is_distinctive = |word: &str| word.len() >= MIN_ID && word.bytes().any(|byte| byte.is_ascii_digit());
    let named = words.filter(|word| says_so || is_distinctive(word)).filter_map(|word| open.by_id(word));
    let calls: Vec<_> = named.collect();
    if calls.is_empty() { says_so.then_some(AnsweredInWords::All) } else { Some(AnsweredInWords::Calls(calls)) }
}

/// Whether a text begins with words that say that it is a result: of a tool, of a function, or of one of the calls.
fn is_labelled(text: &str, open: &OpenCalls<'_>) -> bool {
    let text = text.trim_start();
    let line = text.get(..text.floor_char_boundary(MAX_LABEL)).unwrap_or_default().lines().next().unwrap_or_default();
    let is_tag = line.starts_with(['<', '[', '#', '*', '`']);
    let label = match [':', '：'].into_iter().filter_map(|colon| line.find(colon)).min() {
        Some(colon) => line.get(..colon).unwrap_or_default(),
        None if is_tag => line,
        None => return false,
    };
    let Some(first) = words(label).next() else { return false };
    let label = label.to_lowercase();
    let begins = |known: &&str| first.to_lowercase().starts_with(*known);
    let is_of_call = open.by_id(first).is_some() || open.tools.contains_key(first) || FIRST_WORDS.iter().any(begins);
    let is_kind = KINDS.iter().any(|kind| label.contains(kind));
    is_kind && (is_of_call || is_tag)
}

/// The words of a text, without the marks around them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let ends = |c: char| c.is_whitespace() || "()[]{}<>\"'`,;=（）".contains(c);
    let words = text.split(ends).map(|word| word.trim_matches([':', '.', '#', '*', '!', '?', '：', '。']));
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered_by(message: &str) -> Option<AnsweredInWords> {
        let calls = [("c1", "read"), ("call_7f3a9b", "run_tests")];
        let all = Span { start: 0, end: message.len() };
        answered(message.as_bytes(), all, &OpenCalls::new(calls.into_iter()))
    }

    fn said(text: &str) -> Option<AnsweredInWords> {
        answered_by(&format!(r#"{{"role":"user","content":{}}}"#, serde_json::to_string(text).unwrap()))
    }

    #[test]
    fn results_that_the_user_says_name_the_calls_that_they_answer() {
        use AnsweredInWords::{All, Calls};
        for (text, expected) in [
            ("Tool result of read (c1): text", Calls(vec![0])),
            ("tool_result[c1]: text", Calls(vec![0])),
            ("[read] Result: see c1", Calls(vec![0])),
            ("<tool_response>\n{\"id\": \"c1\"}\n</tool_response>", Calls(vec![0])),
            ("Here is what call_7f3a9b has said.\nok", Calls(vec![1])),
            ("Function results:\n- c1: a\n- call_7f3a9b: b", Calls(vec![0, 1])),
            ("<tool_response>\ntext\n</tool_response>", All),
            ("[run_tests for 'a'] Result:\nok", All),
            ("Observation: it rains", All),
            ("**Tool output**\nok", All),
            ("工具结果：好", All),
        ] {
            assert_eq!(said(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_words_of_the_user_answer_nothing() {
        for text in [
            "No, run only unit tests",
            "No: the tool result is wrong",
            "Tool result is wrong, run it again",
            "c1",
            "tools: none",
            "run_tests, and show the output",
            "",
        ] {
            assert_eq!(said(text), None, "{text}");
        }
        assert_eq!(answered_by(r#"{"role":"critic","content":"Tool result (c1): x"}"#), None);
        assert_eq!(answered_by(r#"{"role":"user"}"#), None);
    }

    #[test]
    fn fields_name_a_call_in_any_role() {
        let calls = |n| Some(AnsweredInWords::Calls(vec![n]));
        assert_eq!(answered_by(r#"{"role":"user","tool_call_id":"c1","content":"x"}"#), calls(0));
        assert_eq!(answered_by(r#"{"role":"ipython","tool_call_id":"call_7f3a9b","content":"x"}"#), calls(1));
        let part = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"x"}]}"#;
        assert_eq!(answered_by(part), calls(0));
        let tool = Some(AnsweredInWords::Tool("read".to_owned()));
        assert_eq!(answered_by(r#"{"role":"function","name":"read","content":"x"}"#), tool);
        assert_eq!(answered_by(r#"{"role":"function","content":"x"}"#), None);
    }
}
