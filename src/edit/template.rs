//! Texts with places in them that are filled in.

/// A text with places for values, which are written as names in braces.
#[derive(Debug)]
pub(super) struct Template {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
enum Piece {
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
            let place =
                |&&name: &&&'static str| Some((name, rest.strip_prefix('{')?.strip_prefix(name)?.strip_prefix('}')?));
            let Some((name, behind)) = names.iter().find_map(|name| place(&name)) else {
                text.push(next);
                rest = rest.split_at(next.len_utf8()).1;
                continue;
            };
            if !text.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
            }
            pieces.push(Piece::Value(name));
            rest = behind;
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        Self { pieces }
    }

    /// The text with its values, which are not looked at again. An empty value takes along the space before it.
    pub(super) fn fill<'v>(&self, value: impl Fn(&str) -> &'v str) -> String {
        let mut filled = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => filled.push_str(text),
                Piece::Value(name) => match value(name) {
                    "" if filled.ends_with(' ') => drop(filled.pop()),
                    value => filled.push_str(value),
                },
            }
        }
        filled
    }

    /// Whether a text may be this one, filled in. A template that is nothing but places is never recognised.
    pub(super) fn may_have_made(&self, text: &str) -> bool {
        let mut rest = text;
        let mut any = false;
        let mut open = false; // whether a value, of any length, stands before `rest`
        let n_pieces = self.pieces.len();
        for (n, piece) in self.pieces.iter().enumerate() {
            let Piece::Text(literal) = piece else {
                open = true;
                continue;
            };
            any = true;
            // An empty value has taken a space along.
            let literal = if n + 1 < n_pieces { literal.trim_end_matches(' ') } else { literal };
            let at = if !open {
                rest.starts_with(literal).then_some(0)
            } else if n + 1 == n_pieces {
                rest.ends_with(literal).then(|| rest.len() - literal.len())
            } else {
                rest.find(literal)
            };
            let Some(behind) = at.and_then(|at| rest.get(at + literal.len()..)) else { return false };
            (rest, open) = (behind, false);
        }
        any && (open || rest.is_empty())
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
        assert!(Template::new("[cleared]", &NAMES).may_have_made("[cleared]"));
        assert!(!Template::new("[cleared]", &NAMES).may_have_made("[cleared] "));
        assert!(!Template::new("{tool_name}", &NAMES).may_have_made("a"));
        let spaced = Template::new("of {tool_name} ", &NAMES);
        assert!(spaced.may_have_made("of bash ") && !spaced.may_have_made("of bash"));
    }
}
