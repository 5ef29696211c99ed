//! The texts that edits write in place of results, recognised when they are sent back: an agent may keep what was sent, and one
//! abridge may precede another.

use super::template::Template;
use crate::handler::MAX_ANSWER;

/// The templates of the texts.
#[derive(Clone, Debug)]
pub struct OwnTexts {
    /// Of a missing result.
    pub(crate) missing: Template,
    /// Of the middle of a truncated one.
    pub(crate) truncated: Template,
    /// Of a cleared one.
    pub(crate) cleared: Template,
    /// Of what was cleared and is not text.
    pub(crate) cleared_media: Template,
}

/// A longer text is none of them, whatever it looks like.
const MAX_TEXT: usize = 4096;

/// A placeholder of more lines is not recognised after an answer.
const MAX_LINES: usize = 8;

impl OwnTexts {
    /// Whether a text may be one of them and nothing else. It is read only if it is short enough.
    pub(super) fn may_have<'t>(&self, len: usize, text: impl FnOnce() -> &'t str) -> bool {
        len < MAX_TEXT && {
            let text = text();
            [&self.cleared, &self.cleared_media, &self.truncated, &self.missing]
                .iter()
                .any(|template| template.may_have_made(text))
        }
    }

    /// Whether a text may replace a missing result.
    pub(super) fn may_be_missing(&self, text: &str) -> bool {
        text.len() < MAX_TEXT && self.missing.may_have_made(text)
    }

    /// Whether a text may be the answer of a handler followed by the placeholder. It is read only if it is short enough.
    pub(super) fn may_be_answer<'t>(&self, len: usize, text: impl FnOnce() -> &'t str) -> bool {
        len <= MAX_ANSWER + MAX_TEXT && {
            let text = text();
            let end = text.get(text.ceil_char_boundary(len.saturating_sub(MAX_TEXT))..).unwrap_or_default();
            let lines = memchr::memrchr_iter(b'\n', end.as_bytes()).take(MAX_LINES);
            lines.filter_map(|at| end.get(at + 1..)).any(|last| self.cleared.may_have_made(last))
        }
    }

    /// Whether a line may be one of them.
    pub fn may_be_line(&self, line: &str) -> bool {
        self.may_have(line.len(), || line) || self.truncated.may_have_made(&format!("\n{line}\n"))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::super::tests::{HTTP, body, plan, text};

    /// Texts of ours stay as they are when they return.
    fn check(words: &str, policy: &str, counts: &[(&str, usize)]) {
        let policy = format!("{HTTP}{policy}");
        let (first, once) = plan(&body(words), &policy);
        assert_eq!(first.report.counts(), counts, "{policy}");
        let (again, _) = plan(&once, &policy);
        assert!(again.is_empty(), "{policy}\n{}\n{again}", String::from_utf8_lossy(&once));
    }

    const CLEAR: &str = "[clear_tool_results]\nwhen = 'any'\ntrigger = { messages = 1 }\nkeep = { results = 0 }\n";

    #[test]
    fn what_stands_for_a_missing_result_is_neither_cleared_nor_truncated() {
        let interrupted = "u c:1^100 u a u";
        check(interrupted, &format!("{CLEAR}placeholder = '[cleared]'\nclear_tool_inputs = true"), &[("patch", 1)]);
        check(interrupted, "[truncate_tool_results]\nmax_bytes = 20", &[("patch", 1)]);
    }

    #[test]
    fn a_placeholder_is_not_truncated() {
        let policy = format!("[truncate_tool_results]\nmax_bytes = 100\n{CLEAR}growth_guard = false");
        check("u c:1 t:1*90 a u", &policy, &[("clear", 1)]);
    }

    #[test]
    fn a_placeholder_beside_a_text_does_not_make_the_text_too_long() {
        let policy =
            format!("{HTTP}[truncate_tool_results]\nmax_bytes = 200\nnotice = ''\n{CLEAR}clear_media = true\n");
        let result = |first: usize| -> Bytes {
            let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,".to_owned() + &"A".repeat(4000)}});
            let texts = [first, 2].map(|len| json!({"type": "text", "text": "a".repeat(len)}));
            let content = json!([texts[0], image, texts[1]]).to_string();
            let words = String::from_utf8(body("u c:1 t:1*77 a u").to_vec()).unwrap();
            words.replacen(&json!(text(77)).to_string(), &content, 1).into()
        };
        for (first, counts) in [(190, &[("clear", 1)][..]), (199, &[("truncate", 1), ("clear", 1)])] {
            let (edited, once) = plan(&result(first), &policy);
            assert_eq!(edited.report.counts(), counts, "{first}");
            let (again, _) = plan(&once, &policy);
            assert!(again.is_empty(), "{first}\n{}\n{again}", String::from_utf8_lossy(&once));
        }
    }

    #[test]
    fn a_placeholder_that_is_a_handle_or_a_way_back_is_not_cleared_again() {
        for placeholder in ["{handle}", "{how}", "{bytes}", "{bytes} {tool_name}", ""] {
            let policy = format!("{CLEAR}growth_guard = false\nplaceholder = '{placeholder}'");
            check("u c:1 t:1*2000 a u", &policy, &[("clear", 1)]);
        }
    }

    #[test]
    fn a_notice_with_nothing_around_it_is_not_cleared() {
        let notice = "[truncate_tool_results]\nmax_bytes = 6\nnotice = '[{left_out}]'\n";
        check("u c:1 t:1*5000 a u", &format!("{notice}{CLEAR}placeholder = '{{bytes}}b'"), &[("truncate", 1)]);
    }
}
