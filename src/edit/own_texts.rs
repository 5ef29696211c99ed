//! The texts that edits write in place of results, recognised when they are sent back: an agent may keep what was sent, and one
//! abridge may precede another.

use crate::draft::ResultText;
use crate::language::Language;
use crate::payload::{HANDLE_LEN, MediaType, PayloadKey};
use crate::recall;

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

    /// Whether a line may be one of them.
    pub fn may_be_line(&self, line: &str) -> bool {
        self.may_have(line.len(), || line) || self.truncated.may_have_made(&format!("\n{line}\n"))
    }
}

/// A text with places for values, which are written as names in braces.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// Each value, with the text between it and the one before.
    values: Vec<(String, &'static str)>,
    /// The text after the last value.
    end: String,
}

impl Template {
    /// Reads a template. Braces around anything but one of `names` are text.
    pub(super) fn new(template: &str, names: &[&'static str]) -> Self {
        let text = |from: usize, to: usize| template.get(from..to).unwrap_or_default().to_owned();
        let (mut values, mut from) = (Vec::new(), 0);
        for (at, brace) in template.match_indices('{') {
            let behind = |name: &str| template.get(at + brace.len()..)?.strip_prefix(name)?.strip_prefix('}');
            if let Some((name, behind)) = names.iter().find_map(|name| Some((name, behind(name)?))) {
                values.push((text(from, at), *name));
                from = template.len() - behind.len();
            }
        }
        Self { values, end: text(from, template.len()) }
    }

    /// The text with its values, which are not looked at again. An empty value takes along the space before it.
    pub(super) fn fill<'v>(&self, value: impl Fn(&str) -> &'v str) -> String {
        let mut filled = String::new();
        for (text, name) in &self.values {
            filled.push_str(text);
            match value(name) {
                "" if filled.ends_with(' ') => drop(filled.pop()),
                value => filled.push_str(value),
            }
        }
        filled + &self.end
    }

    /// The same about a text of a result, of which `left_out` bytes are left out.
    pub(super) fn about(&self, text: &ResultText<'_, '_>, tool: &str, left_out: &str, language: Language) -> String {
        let (handle, how) = text.retrieval();
        let bytes = text.len.to_string();
        self.fill(|place| match place {
            "tool_name" => language.tool_name(tool),
            "left_out" => left_out,
            "bytes" => &bytes,
            "media_type" => text.media.unwrap_or(MediaType::Text).name(),
            "handle" => handle,
            _ => how,
        })
    }

    /// Whether a text may be this one, filled in: it has what stands between the values, and up to the first one that may be
    /// anything, numbers and handles where they must be. A template that has none of them is never recognised.
    pub(super) fn may_have_made(&self, text: &str) -> bool {
        let (mut rest, mut any) = (text, self.values.is_empty());
        // Whether a value of any length precedes `rest`, and whether one has anywhere.
        let (mut open, mut was_open) = (false, false);
        for (literal, name) in &self.values {
            let literal = literal.trim_end_matches(' '); // an empty value has taken a space along
            if !literal.is_empty() {
                let behind = || if open { Some(rest.split_once(literal)?.1) } else { rest.strip_prefix(literal) };
                let Some(behind) = behind() else { return false };
                (any, rest, open) = (true, behind, false);
            }
            if was_open || !matches!(*name, "bytes" | "left_out" | "handle") {
                any |= *name == "how" && recall::may_be_words(rest);
                (open, was_open) = (true, true);
            } else {
                let Some(behind) = behind_value(name, rest) else { return false };
                any |= behind.len() < rest.len();
                rest = behind;
            }
        }
        let is_end = if open { rest.ends_with(&self.end) } else { rest == self.end };
        is_end && (any || !self.end.is_empty())
    }
}

/// The rest of a text that begins with a number or a handle; none if it does not.
fn behind_value<'t>(name: &str, text: &'t str) -> Option<&'t str> {
    let value = text.trim_start_matches(' ');
    if name == "handle" {
        // Of what is not stored it is empty.
        let handle = value.split_at_checked(HANDLE_LEN).filter(|(handle, _)| handle.parse::<PayloadKey>().is_ok());
        return Some(handle.map_or(text, |(_, behind)| behind));
    }
    let behind = value.trim_start_matches(|c: char| c.is_ascii_digit());
    (behind.len() < value.len()).then_some(behind)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::super::tests::{HTTP, body, plan, text};
    use super::*;

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

    const NAMES: [&str; 2] = ["tool_name", "tool_call_id"];

    fn fills(template: &str, expected: &str) {
        let fill = |name: &str| if name == "tool_name" { "{tool_call_id}" } else { "{tool_name}" };
        assert_eq!(Template::new(template, &NAMES).fill(fill), expected);
    }

    #[test]
    fn fills_in_once() {
        fills("a {tool_name} b {tool_call_id}{tool_call_id}", "a {tool_call_id} b {tool_name}{tool_name}");
    }

    #[test]
    fn other_braces_are_text() {
        fills("{{tool_name}} {tool} {tool_name {} é{", "{{tool_call_id}} {tool} {tool_name {} é{");
        fills("", "");
    }

    #[test]
    fn an_empty_value_takes_its_space_along() {
        let template = Template::new("a {tool_name} b. {tool_call_id}", &NAMES);
        assert_eq!(template.fill(|_| ""), "a b.");
    }

    #[test]
    fn knows_its_own() {
        let template = Template::new("[{tool_name} gave {tool_call_id} bytes. {tool_name}]", &NAMES);
        for values in [["", ""], ["a", "7"], ["] gave", "x bytes."]] {
            let text = template.fill(|name| if name == "tool_name" { values[0] } else { values[1] });
            assert!(template.may_have_made(&text), "{text}");
        }
        for text in ["", "[", "[a gave 7 bytes. ] ", "x[a gave 7 bytes.]", "[a bytes.]"] {
            assert!(!template.may_have_made(text), "{text}");
        }
        assert!(Template::new("", &NAMES).may_have_made("") && !Template::new("", &NAMES).may_have_made("a"));
        assert!(Template::new("[cleared]", &NAMES).may_have_made("[cleared]"));
        assert!(!Template::new("[cleared]", &NAMES).may_have_made("[cleared] "));
        assert!(!Template::new("{tool_name}", &NAMES).may_have_made("a"));
        let spaced = Template::new("of {tool_name} ", &NAMES);
        assert!(spaced.may_have_made("of bash ") && !spaced.may_have_made("of bash"));
    }

    #[test]
    fn numbers_handles_and_ways_back_are_known_by_what_they_are() {
        const NAMES: [&str; 4] = ["tool_name", "bytes", "handle", "how"];
        let handle = "0123456789abcdefghjkmnpqrs";
        let how = format!("Read it with read_file from /x/{handle}.txt.");
        for template in [
            "{handle}",
            "{bytes}",
            "{how}",
            "{tool_name} {handle}",
            "{bytes} {tool_name}",
            "<{bytes} {handle}>",
            "{bytes}{how}",
        ] {
            let template = Template::new(template, &NAMES);
            let text = template.fill(|name| match name {
                "tool_name" => "bash",
                "bytes" => "12",
                "handle" => handle,
                _ => &how,
            });
            let is_seen = !template.values.iter().any(|(_, name)| *name == "tool_name") || text.starts_with("12");
            assert_eq!(template.may_have_made(&text), is_seen, "{text}");
            for other in ["", "bash", "x12", "abcdefghjkmnpqrs012345678", "<12 bytes", "Read it with care."] {
                assert!(!template.may_have_made(other), "{template:?} {other}");
            }
        }
    }
}
