//! The units of a recorded answer: what the model wrote next, and whether an edit fails without it.

use std::collections::HashMap;

use super::units::{self, Unit, UnitKind, units};
use crate::conversation::{BlockKind, Conversation, Role, UnitIndex};
use crate::dialect::{Dialect, strings};
use crate::raw::leaves;

/// A unit of an answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Needed {
    pub(super) hash: u64,
    pub(super) kind: UnitKind,
    pub(super) text: String,
    /// Whether it is a line of the old text of an edit, without which the edit fails.
    pub(super) is_old_text: bool,
}

/// The keys of arguments that hold the old text of an edit.
const OLD_TEXT_KEYS: [&str; 7] = ["old_string", "old_str", "oldText", "oldString", "old_text", "oldStr", "search"];

/// The units of the turn of the model that begins at a unit, each once: in its texts and in the arguments of its calls,
/// not in its reasoning.
pub(super) fn needed(
    dialect: &dyn Dialect,
    body: &[u8],
    conversation: &Conversation<'_>,
    first_unit: UnitIndex,
) -> Vec<Needed> {
    let mut found = Found::default();
    let turn = conversation.unit_range(&conversation.turn_of(first_unit));
    for unit in turn.iter().filter(|unit| unit.role == Role::Assistant) {
        let texts = unit.content.map(|content| dialect.texts(body, content)).unwrap_or_default();
        texts.into_iter().filter_map(|text| strings::text(body, text)).for_each(|text| found.add(&text));
        for call in conversation.blocks_of(unit) {
            if matches!(call.kind, BlockKind::ToolCall { .. }) {
                let input = dialect.input(body, call.span);
                let arguments = input.and_then(|input| strings::text_or_json(body, input.span));
                arguments.iter().flat_map(|arguments| leaves(arguments)).for_each(|leaf| {
                    found.add(&leaf.text);
                    found.add_old_text(if OLD_TEXT_KEYS.contains(&leaf.key.as_str()) {
                        OldText::Whole(&leaf.text)
                    } else {
                        OldText::OfPatch(&leaf.text)
                    });
                });
            }
        }
    }
    found.0.into_values().collect()
}

#[derive(Default)]
struct Found(HashMap<u64, Needed>);

/// Where the old text of an edit is.
#[derive(Clone, Copy)]
enum OldText<'t> {
    Whole(&'t str),
    /// The lines that a patch in it takes out or stands between.
    OfPatch(&'t str),
}

impl Found {
    fn add(&mut self, text: &str) {
        for unit in units(text) {
            self.entry(unit);
        }
    }

    fn entry(&mut self, unit: Unit<'_>) -> &mut Needed {
        let new = || Needed { hash: unit.hash(), kind: unit.kind, text: unit.text.to_owned(), is_old_text: false };
        self.0.entry(unit.hash()).or_insert_with(new)
    }

    fn add_old_text(&mut self, old: OldText<'_>) {
        let lines: Vec<&str> = match old {
            OldText::Whole(text) => text.lines().collect(),
            OldText::OfPatch(text) => old_lines(text),
        };
        for text in lines.into_iter().filter_map(units::line) {
            self.entry(Unit { kind: UnitKind::Line, text }).is_old_text = true;
        }
    }
}

/// The old lines of a patch: those behind `-` or a blank where the text has the marks of a patch; those between the marks
/// of blocks to search for and to replace.
fn old_lines(text: &str) -> Vec<&str> {
    if text.contains("*** Begin Patch") || text.contains("\n@@") {
        return text.lines().filter_map(|line| line.strip_prefix(['-', ' '])).collect();
    }
    let (mut is_old, mut old) = (false, Vec::new());
    for line in text.lines() {
        let is_mark = line.starts_with("<<<<<<< SEARCH") || line.starts_with("------- SEARCH");
        is_old = is_mark || (is_old && !line.starts_with("======="));
        old.extend((is_old && !is_mark).then_some(line));
    }
    old
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    fn found(body: &str) -> Vec<(String, bool)> {
        let dialect = dialect::of_body(body.as_bytes());
        let conversation = dialect.parse(body.as_bytes()).unwrap();
        let mut units = conversation.indexed_units();
        let (first, _) = units.find(|(_, unit)| unit.role == Role::Assistant).unwrap();
        let needed = needed(dialect, body.as_bytes(), &conversation, first);
        let mut found: Vec<_> = needed.into_iter().map(|needed| (needed.text, needed.is_old_text)).collect();
        found.sort();
        found
    }

    fn expected(units: &[(&str, bool)]) -> Vec<(String, bool)> {
        units.iter().map(|(text, is_old)| ((*text).to_owned(), *is_old)).collect()
    }

    #[test]
    fn texts_and_arguments_count_and_reasoning_does_not_in_every_dialect() {
        let bodies = [
            r#"{"messages":[{"role":"user","content":"Hi."},{"role":"assistant","reasoning_content":"think_one",
                "content":"say_two","tool_calls":[{"id":"a","type":"function","function":{"name":"call_three",
                "arguments":"{\"old_string\":\"x\\nthe fourth line is long\",\"n\":5555}"}}]}]}"#,
            r#"{"input":[{"role":"user","content":"Hi."},
                {"type":"reasoning","summary":[{"type":"summary_text","text":"think_one"}]},
                {"type":"message","role":"assistant","content":[{"type":"output_text","text":"say_two"}]},
                {"type":"function_call","call_id":"a","name":"call_three",
                "arguments":"{\"old_string\":\"x\\nthe fourth line is long\",\"n\":5555}"}]}"#,
            r#"{"system":"s","messages":[{"role":"user","content":"Hi."},{"role":"assistant","content":[
                {"type":"thinking","thinking":"think_one","signature":"sign_two"},{"type":"text","text":"say_two"},
                {"type":"tool_use","id":"a","name":"call_three",
                "input":{"old_string":"x\nthe fourth line is long","n":5555}}]}]}"#,
        ];
        for body in bodies {
            assert_eq!(found(body), expected(&[("say_two", false), ("the fourth line is long", true)]), "{body}");
        }
    }

    #[test]
    fn what_a_patch_takes_out_is_old_text() {
        let body = r#"{"input":[{"role":"user","content":"Hi."},{"type":"custom_tool_call","call_id":"a","name":"p",
            "input":"*** Begin Patch\n@@\n one line that stays there\n-one line that is taken\n+one line that is put in"}]}"#;
        let lines = [
            ("+one line that is put in", false),
            ("-one line that is taken", false),
            ("one line that is taken", true),
            ("one line that stays there", true),
        ];
        assert_eq!(found(body), expected(&lines));
        let searched = "<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE";
        assert_eq!(old_lines(searched), ["old"]);
    }
}
