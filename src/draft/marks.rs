//! A mark for the prompt cache at the end of what passes have edited: what stays as it is until the next pass.

use serde::{Deserialize, Serialize};

use super::Draft;
use crate::conversation::{Role, UnitIndex};
use crate::dialect::BytesAt;
use crate::plan::Action;
use crate::span::{Span, Splice, joined, splice};

/// `[messages]` of `proxy.toml`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Puts a `cache_control` mark at the end of what `clear_tool_results`, `filter_tool_calls` and `summarize` have
    /// edited, in conversations in Anthropic Messages whose requests have fewer than four marks, all of one kind. What
    /// stands before it stays as it is until the next pass.
    pub mark_frontier: bool,
}

/// The labels of the edits that make passes.
const PASSES: [&str; 3] = ["clear", "filter", "summary"];

impl Draft<'_> {
    /// Sets whether the end of what passes have edited is marked.
    pub fn mark_frontier(&mut self, settings: Settings) {
        self.marks = settings;
    }

    /// Adds the mark to splices that are in order.
    pub(super) fn add_mark(&self, splices: &mut Vec<Splice>) {
        if !self.marks.mark_frontier {
            return;
        }
        let Some(end) = self.end_of_passes() else { return };
        let may_carry = |unit: &UnitIndex| {
            self.is_in_place(*unit) && (self.is_entry_of_result(*unit) || self.summarised() == Some(*unit))
        };
        let Some(unit) = UnitIndex::each(&(self.first_editable..end.next())).rev().find(may_carry) else { return };
        let span = self.span(unit);
        let json = self.rewritten(unit).unwrap_or_else(|| self.request.body.slice(span.start..span.end));
        let Some(BytesAt { at, bytes: mark }) = self.request.dialect.cache_mark(self.request.body, &json) else {
            return;
        };
        if self.summarised() == Some(unit) {
            let mark = Splice { span: Span::empty(at), with: mark };
            if let Some(summary) = splices.iter_mut().find(|splice| splice.span == span) {
                summary.with = joined(splice(&summary.with, &[mark]));
            }
            return;
        }
        // An entry is marked before its end, which no edit touches.
        let mark = Splice { span: Span::empty(span.end - (json.len() - at)), with: mark };
        let behind = splices.partition_point(|splice| splice.span.start < mark.span.start);
        splices.insert(behind, mark);
    }

    /// The last unit that a pass has edited.
    fn end_of_passes(&self) -> Option<UnitIndex> {
        let changes = self.journal.changes().filter(|change| PASSES.contains(&change.edit));
        let units = changes.filter_map(|change| match change.action {
            Action::Clear { message } | Action::Drop { message } | Action::DropCall { message } => {
                Some(UnitIndex::new(message))
            }
            _ => None,
        });
        units.chain(self.summarised()).max()
    }

    fn is_entry_of_result(&self, unit: UnitIndex) -> bool {
        let conversation = self.request.conversation;
        let unit = conversation.unit(unit).filter(|unit| unit.role == Role::Tool);
        unit.is_some_and(|unit| !conversation.is_element(unit))
    }
}
