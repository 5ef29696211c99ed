//! The text that stands for a missing result.

/// A text with places for the name of the tool and the id of the call.
#[derive(Debug)]
pub(super) struct Template {
    pieces: Vec<Piece>,
    /// What stands for a name or an id that is missing.
    unnamed: &'static str,
}

#[derive(Debug)]
enum Piece {
    Text(String),
    ToolName,
    ToolCallId,
}

impl Template {
    /// Reads a template. Braces around anything but the two names are text.
    pub(super) fn new(template: &str, unnamed: &'static str) -> Self {
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut rest = template;
        while let Some(next) = rest.chars().next() {
            let (piece, behind) = if let Some(behind) = rest.strip_prefix("{tool_name}") {
                (Piece::ToolName, behind)
            } else if let Some(behind) = rest.strip_prefix("{tool_call_id}") {
                (Piece::ToolCallId, behind)
            } else {
                text.push(next);
                rest = rest.split_at(next.len_utf8()).1;
                continue;
            };
            if !text.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
            }
            pieces.push(piece);
            rest = behind;
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        Self { pieces, unnamed }
    }

    /// The text for one call. What is filled in is not looked at again.
    pub(super) fn fill(&self, tool_name: &str, tool_call_id: &str) -> String {
        let or_unnamed = |name| if str::is_empty(name) { self.unnamed } else { name };
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text,
                Piece::ToolName => or_unnamed(tool_name),
                Piece::ToolCallId => or_unnamed(tool_call_id),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(template: &str, expected: &str) {
        assert_eq!(Template::new(template, "?").fill("{tool_call_id}", "{tool_name}"), expected);
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
    fn what_is_missing_is_said_to_be() {
        assert_eq!(Template::new("{tool_name}/{tool_call_id}", "?").fill("", ""), "?/?");
    }
}
