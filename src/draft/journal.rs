//! The journal: all decisions of the edits, in the order in which they were made. The report is derived from it at the end.

use std::borrow::Cow;

use super::{Draft, Label};
use crate::conversation::{BlockIndex, BlockKind, UnitIndex};
use crate::plan::{Action, Change, Sizes, SkipReason, SkippedChange};

/// The decisions on one draft.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// The changes that were made; none where nothing is left of one.
    made: Vec<Option<Change>>,
    /// The changes that were not made.
    skipped: Vec<SkippedChange>,
}

/// Names a change in the journal.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct ChangeId(usize);

impl Journal {
    /// Notes a change.
    pub(super) fn make(&mut self, change: Change) -> ChangeId {
        self.made.push(Some(change));
        ChangeId(self.made.len() - 1)
    }

    /// Notes that nothing is left of a change.
    pub(super) fn revoke(&mut self, ChangeId(change): ChangeId) {
        if let Some(made) = self.made.get_mut(change) {
            *made = None;
        }
    }

    /// Notes that a change was not made.
    pub(super) fn skip(&mut self, change: Change, message: Option<UnitIndex>, why: SkipReason) {
        let Change { edit, call_id, tool_name, .. } = change;
        let message = message.map(UnitIndex::get);
        self.skipped.push(SkippedChange { edit, message, call_id, tool_name, why });
    }

    /// The changes that hold, and those that were not made.
    pub(super) fn outcome(self) -> (Vec<Change>, Vec<SkippedChange>) {
        (self.made.into_iter().flatten().collect(), self.skipped)
    }
}

impl Draft<'_> {
    /// Notes that a change was not made: of a result, or of more than one.
    pub fn skip_change(&mut self, edit: Label, unit: Option<UnitIndex>, why: SkipReason) {
        let call = unit.and_then(|unit| self.pairing().answered_block(unit));
        let of = unit.unwrap_or(UnitIndex::new(usize::MAX));
        let about = self.about(edit, Action::Drop { message: 0 }, of, call);
        self.journal.skip(about, unit, why);
    }

    /// Notes a change by which so many bytes of the body become so many others.
    pub(super) fn record(&mut self, change: Change, before: usize, after: usize) -> ChangeId {
        let comma = usize::from(before == 0 && after > 0);
        self.n_bytes = (self.n_bytes + after + comma).saturating_sub(before);
        self.journal.make(Change { bytes: Sizes { before, after }, ..change })
    }

    /// Notes that a unit is left out.
    pub(super) fn record_drop(&mut self, edit: Label, unit: UnitIndex) {
        let (message, call) = (unit.get(), self.call_that_is(unit));
        let action = if call.is_some() { Action::DropCall { message } } else { Action::Drop { message } };
        let stored = self.orphans.get(&unit).into_iter().flatten();
        let handles = stored.map(|(_, name)| name.key).collect();
        let change = Change { handles, ..self.about(edit, action, unit, call) };
        self.record(change, self.span(unit).len(), 0);
    }

    /// A change about a call, or about a unit that perhaps is a result.
    pub(super) fn about(&self, edit: Label, action: Action, unit: UnitIndex, call: Option<BlockIndex>) -> Change {
        let of_unit = || self.conversation.blocks_of(self.unit(unit)?).first();
        let block = call.map_or_else(of_unit, |call| self.conversation.block(call));
        let (call_id, tool_name) = match block.map(|block| &block.kind) {
            Some(BlockKind::ToolCall { id, name, .. }) if call.is_some() => (&*id.text, name.clone()),
            Some(BlockKind::ToolResult { call_id, .. }) => (&*call_id.text, None),
            _ => ("", None),
        };
        let tool_name = tool_name.map(Cow::into_owned);
        Change { call_id: call_id.to_owned(), tool_name, ..Change::new(edit, action, Sizes::default()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_change_is_not_in_the_outcome() {
        let mut journal = Journal::default();
        let [_, second, _] =
            [0, 1, 2].map(|message| journal.make(Change::new("e", Action::Clear { message }, Sizes::default())));
        journal.revoke(second);
        let (changes, skipped) = journal.outcome();
        let actions: Vec<_> = changes.iter().map(|change| change.action).collect();
        assert_eq!(actions, [Action::Clear { message: 0 }, Action::Clear { message: 2 }]);
        assert!(skipped.is_empty());
    }
}
