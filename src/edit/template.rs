//! Texts with places in them that are filled in.

use crate::draft::ResultText;
use crate::language::Language;
use crate::payload::{HANDLE_LEN, MediaType, PayloadKey};
use crate::recall;

/// A text with places for values, which are written as names in braces.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pieces: Vec<TemplatePart>,
}

#[derive(Clone, Debug)]
enum TemplatePart {
    Text(String),
    Value(&'static str),
}

impl Template {
    /// Reads a template. Braces around anything but one of `names` are text.
    pub(super) fn new(template: &str, names: &[&'static str]) -> Self {
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut rest = template;
        while let Some(next) = rest.chars().next() {
            let behind = |name: &str| rest.strip_prefix('{')?.strip_prefix(name)?.strip_prefix('}');
            let Some((name, behind)) = names.iter().find_map(|name| Some((name, behind(name)?))) else {
                text.push(next);
                rest = rest.split_at(next.len_utf8()).1;
                continue;
            };
            if !text.is_empty() {
                pieces.push(TemplatePart::Text(std::mem::take(&mut text)));
            }
            pieces.push(TemplatePart::Value(name));
            rest = behind;
        }
        if !text.is_empty() {
            pieces.push(TemplatePart::Text(text));
        }
        Self { pieces }
    }

    /// The text with its values, which are not looked at again. An empty value takes along the space before it.
    pub(super) fn fill<'v>(&self, value: impl Fn(&str) -> &'v str) -> String {
        let mut filled = String::new();
        for piece in &self.pieces {
            match piece {
                TemplatePart::Text(text) => filled.push_str(text),
                TemplatePart::Value(name) => match value(name) {
                    "" if filled.ends_with(' ') => drop(filled.pop()),
                    value => filled.push_str(value),
                },
            }
        }
        filled
    }

    /// The same about a text of a result, of which `left_out` bytes are left out.
    pub(super) fn about(&self, text: &ResultText<'_, '_>, tool: &str, left_out: &str, language: Language) -> String {
        let (handle, how) = text.retrieval();
        let bytes = text.len.to_string();
        self.fill(|place| match place {
            "tool_name" if tool.is_empty() => language.unnamed_tool(),
            "tool_name" => tool,
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
        let mut rest = text;
        let mut any = self.pieces.is_empty();
        // Whether a value of any length precedes `rest`, and whether one has anywhere.
        let (mut open, mut was_open) = (false, false);
        let last = self.pieces.len().saturating_sub(1);
        for (n, piece) in self.pieces.iter().enumerate() {
            let literal = match piece {
                // An empty value has taken a space along.
                TemplatePart::Text(literal) if n < last => literal.trim_end_matches(' '),
                TemplatePart::Text(literal) => literal,
                TemplatePart::Value(name) => {
                    match value_at(name, rest) {
                        Start::Known { behind } if !was_open => {
                            any |= behind.len() < rest.len();
                            rest = behind;
                        }
                        Start::Absent if !was_open => return false,
                        _ => {
                            any |= *name == "how" && recall::may_be_words(rest);
                            (open, was_open) = (true, true);
                        }
                    }
                    continue;
                }
            };
            if literal.is_empty() {
                continue;
            }
            let behind = match (open, n == last) {
                (false, _) => rest.strip_prefix(literal),
                (true, true) => rest.ends_with(literal).then_some(""),
                (true, false) => rest.split_once(literal).map(|(_, behind)| behind),
            };
            let Some(behind) = behind else { return false };
            (any, rest, open) = (true, behind, false);
        }
        any && (open || rest.is_empty())
    }
}

/// The beginning of a text that has a value in it.
enum Start<'t> {
    /// The value, before this.
    Known { behind: &'t str },
    /// Not the value.
    Absent,
    /// Perhaps the value, which may be anything.
    Any,
}

fn value_at<'t>(name: &str, text: &'t str) -> Start<'t> {
    let value = text.trim_start_matches(' ');
    match name {
        "bytes" | "left_out" => match value.trim_start_matches(|c: char| c.is_ascii_digit()) {
            behind if behind.len() < value.len() => Start::Known { behind },
            _ => Start::Absent,
        },
        // Of what is not stored it is empty.
        "handle" => match value.split_at_checked(HANDLE_LEN) {
            Some((handle, behind)) if handle.parse::<PayloadKey>().is_ok() => Start::Known { behind },
            _ => Start::Known { behind: text },
        },
        _ => Start::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["tool_name", "tool_call_id"];

    fn check(template: &str, expected: &str) {
        let fill = |name: &str| if name == "tool_name" { "{tool_call_id}" } else { "{tool_name}" };
        assert_eq!(Template::new(template, &NAMES).fill(fill), expected);
    }

    #[test]
    fn fills_in_once() {
        check("a {tool_name} b {tool_call_id}{tool_call_id}", "a {tool_call_id} b {tool_name}{tool_name}");
    }

    #[test]
    fn other_braces_are_text() {
        check("{{tool_name}} {tool} {tool_name {} é{", "{{tool_call_id}} {tool} {tool_name {} é{");
        check("", "");
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
            let is_seen = !template.pieces.iter().any(|piece| matches!(piece, TemplatePart::Value("tool_name")))
                || text.starts_with("12");
            assert_eq!(template.may_have_made(&text), is_seen, "{text}");
            for other in ["", "bash", "x12", "abcdefghjkmnpqrs012345678", "<12 bytes", "Read it with care."] {
                assert!(!template.may_have_made(other), "{template:?} {other}");
            }
        }
    }
}
