//! The units of a recorded answer, which the model wrote next, and whether an edit fails without them.

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
    let mut found: HashMap<u64, Needed> = HashMap::new();
    let mut add = |unit: Unit<'_>, is_old_text: bool| {
        let new = || Needed { hash: unit.hash(), kind: unit.kind, text: unit.text.to_owned(), is_old_text };
        found.entry(unit.hash()).or_insert_with(new).is_old_text |= is_old_text;
    };
    let turn = conversation.unit_range(&conversation.turn_of(first_unit));
    for unit in turn.iter().filter(|unit| unit.role == Role::Assistant) {
        let texts = unit.content.map(|content| dialect.texts(body, content)).unwrap_or_default();
        texts
            .into_iter()
            .filter_map(|text| strings::text(body, text))
            .for_each(|text| units(&text).for_each(|unit| add(unit, false)));
        for call in conversation.blocks_of(unit) {
            if matches!(call.kind, BlockKind::ToolCall { .. }) {
                let input = dialect.input(body, call.span);
                let arguments = input.and_then(|input| strings::text_or_json(body, input.span));
                arguments.iter().flat_map(|arguments| leaves(arguments)).for_each(|leaf| {
                    units(&leaf.text).for_each(|unit| add(unit, false));
                    let is_whole = OLD_TEXT_KEYS.contains(&leaf.key.as_str());
                    let old = if is_whole { leaf.text.lines().collect() } else { old_lines(&leaf.text) };
                    let old = old.into_iter().filter_map(units::line);
                    old.for_each(|text| add(Unit { kind: UnitKind::Line, text }, true));
                });
            }
        }
    }
    found.into_values().collect()
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
mod tests;
