//! Recognises results that clients write as messages of the user or of the legacy role `function`, for servers without the
//! role `tool`.

use memchr::memmem;

use super::texts;
use crate::dialect::json::{decode, fields_of};
use crate::dialect::reading::id_text;
use crate::dialect::{OpenCalls, strings};
use crate::span::Span;

/// The most bytes of the label at the beginning of a result: `Tool result of read (c1):`, `<tool_response>`.
const MAX_LABEL: usize = 100;

/// The first words of a label, besides the name of a tool and the id of a call.
const FIRST_WORDS: [&str; 6] = ["tool", "function", "observation", "call", "工具", "函数"];

/// The words for a result in a label.
const KINDS: [&str; 6] = ["result", "response", "output", "observation", "returned", "结果"];

/// The least bytes of an id that counts as named without a label; it needs a digit, too.
const MIN_ID: usize = 8;

/// To look for more ids than this in a text, one by one, takes longer than to read its words.
const MANY_IDS: usize = 8;

/// Whether a message answers one of the open calls.
pub(super) fn answers(body: &[u8], message: Span, open: &OpenCalls<'_>) -> Option<bool> {
    let keys: [&[u8]; 4] = [b"role", b"name", b"tool_call_id", b"content"];
    let [role, name, id, content] = fields_of(body, message, keys)?;
    if id.and_then(|id| id_text(id.of(body))).is_some_and(|id| open.ids.contains(&*id)) {
        return Some(true);
    }
    match &*decode(role?.of(body))? {
        "function" => Some(open.tools.contains(&*decode(name?.of(body))?)),
        "user" => in_text(body, content?, open),
        _ => None,
    }
}

/// Whether the user answers a call: the text names its id, or says that it is a result.
fn in_text(body: &[u8], content: Span, open: &OpenCalls<'_>) -> Option<bool> {
    let texts: Vec<_> = texts(body, content)?.into_iter().filter_map(|text| strings::text(body, text)).collect();
    let has_part = content.of(body).starts_with(b"[") && memmem::find(content.of(body), b"\"tool_result\"").is_some();
    let is_distinctive = |word: &str| word.len() >= MIN_ID && word.bytes().any(|byte| byte.is_ascii_digit());
    let may_name = |text: &str| {
        open.ids.len() > MANY_IDS || open.ids.iter().any(|id| memmem::find(text.as_bytes(), id.as_bytes()).is_some())
    };
    let mut naming = texts.iter().filter(|text| may_name(text)).flat_map(|text| words(text));
    let mut is_named = || naming.any(|word| is_distinctive(word) && open.ids.contains(word));
    Some(has_part || texts.first().is_some_and(|text| is_labelled(text, open)) || is_named())
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
    let is_of_call = open.ids.contains(first) || open.tools.contains(first) || FIRST_WORDS.iter().any(begins);
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

    fn answers(message: &str) -> bool {
        let calls = OpenCalls { ids: ["c1", "call_7f3a9b"].into(), tools: ["read", "run_tests"].into() };
        let all = Span { start: 0, end: message.len() };
        super::answers(message.as_bytes(), all, &calls).unwrap_or_default()
    }

    fn said(text: &str) -> bool {
        answers(&format!(r#"{{"role":"user","content":{}}}"#, serde_json::to_string(text).unwrap()))
    }

    #[test]
    fn results_that_the_user_says_are_recognised() {
        for text in [
            "Tool result of read (c1): text",
            "tool_result[c1]: text",
            "[read] Result: see c1",
            "<tool_response>\n{\"id\": \"c1\"}\n</tool_response>",
            "Here is what call_7f3a9b has said.\nok",
            "Function results:\n- c1: a\n- call_7f3a9b: b",
            "<tool_response>\ntext\n</tool_response>",
            "[run_tests for 'a'] Result:\nok",
            "Observation: it rains",
            "**Tool output**\nok",
            "工具结果：好",
        ] {
            assert!(said(text), "{text}");
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
            assert!(!said(text), "{text}");
        }
        assert!(!answers(r#"{"role":"critic","content":"Tool result (c1): x"}"#));
        assert!(!answers(r#"{"role":"user"}"#));
    }

    #[test]
    fn fields_name_a_call_in_any_role() {
        assert!(answers(r#"{"role":"user","tool_call_id":"c1","content":"x"}"#));
        assert!(answers(r#"{"role":"ipython","tool_call_id":"call_7f3a9b","content":"x"}"#));
        assert!(answers(r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"x"}]}"#));
        assert!(answers(r#"{"role":"function","name":"read","content":"x"}"#));
        assert!(!answers(r#"{"role":"function","content":"x"}"#));
    }
}
