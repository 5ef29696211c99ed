//! Results and texts that are inserted after units.

use bytes::Bytes;

use super::journal::ChangeId;
use super::{Draft, Label};
use crate::conversation::{BlockIndex, BlockKind, UnitIndex};
use crate::plan::Action;

/// A result or a text that is inserted after a unit.
#[derive(Debug)]
pub(super) struct Insertion {
    /// The unit that it is put behind, which may itself have left.
    pub(super) behind: UnitIndex,
    pub(super) what: Inserted,
    /// The message at this place until now: the inserted one, or the one that replaced a result which has come since.
    pub(super) bytes: Bytes,
    /// The change that says so, if one does.
    pub(super) change: Option<ChangeId>,
    /// Whether it has been dropped again.
    pub(super) gone: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Inserted {
    /// A result that stood elsewhere.
    Moved(UnitIndex),
    /// Nothing: a late result that cannot be moved had a placeholder here.
    Stood(UnitIndex),
    /// A result that was not there, which answers the call of a block.
    New(BlockIndex),
    /// A text of the user, or of the model.
    Text,
}

impl Draft<'_> {
    /// Inserts a text of the user after the place of a message.
    pub(super) fn insert_text(&mut self, edit: Label, behind: UnitIndex, text: &str) {
        self.insert_message(edit, behind, self.dialect.render_user_entry(text));
        self.texts.insert(behind);
    }

    /// Inserts a message that is not a result after the place of a message.
    pub(super) fn insert_message(&mut self, edit: Label, behind: UnitIndex, bytes: Bytes) {
        let change = self.about(edit, Action::InsertText { behind: behind.get() }, behind, None);
        let change = Some(self.record(change, 0, bytes.len()));
        self.insertions.push(Insertion { behind, what: Inserted::Text, bytes, change, gone: false });
    }

    /// Moves a result after the place of another message, and behind what has been put there before. If it is late, a result
    /// that says `placeholder` was there in earlier requests. False if the message is not to be touched.
    pub fn move_result(&mut self, edit: Label, unit: UnitIndex, behind: UnitIndex, placeholder: Option<&str>) -> bool {
        if behind.get() >= self.in_place.len()
            || self.is_across_barrier(behind, unit)
            || !self.take_out_of_place(edit, unit)
        {
            return false;
        }
        if placeholder.is_some() {
            self.late_result_comes(behind, unit);
        }
        let n_bytes = self.span(unit).len();
        let action = Action::Move { message: unit.get(), behind: behind.get() };
        let change = Some(self.record(self.about(edit, action, unit, None), n_bytes, n_bytes));
        let rendered = |text| self.rendered(self.pairing().answered_block(unit), text);
        let bytes = placeholder.and_then(rendered).unwrap_or_default();
        self.n_bytes_removed += bytes.len() + 1;
        self.insertions.push(Insertion { behind, what: Inserted::Moved(unit), bytes, change, gone: false });
        self.moved.insert(unit);
        true
    }

    /// Notes a late result that is not moved. Earlier requests had a result with the text `placeholder` after the message
    /// `behind`.
    pub fn note_late_result(&mut self, unit: UnitIndex, behind: UnitIndex, placeholder: &str) {
        let Some(bytes) = self.rendered(self.pairing().answered_block(unit), placeholder) else { return };
        self.n_bytes_removed += bytes.len() + 1;
        self.insertions.push(Insertion { behind, what: Inserted::Stood(unit), bytes, change: None, gone: true });
    }

    /// Puts a result that says `text` in answer to the call that is block `call` after the place of a message, and
    /// behind what has been put there before. False if the block is not a call, or has left.
    pub fn insert_result(&mut self, edit: Label, call: BlockIndex, behind: UnitIndex, text: &str) -> bool {
        let caller = self.conversation.caller(call).unwrap_or_default();
        if behind.get() >= self.in_place.len() || caller < self.first_editable || self.dropped_calls.contains(&call) {
            return false;
        }
        let Some(bytes) = self.rendered(Some(call), text) else { return false };
        let change = self.about(edit, Action::Insert { behind: behind.get() }, caller, Some(call));
        let change = Some(self.record(change, 0, bytes.len()));
        self.insertions.push(Insertion { behind, what: Inserted::New(call), bytes, change, gone: false });
        true
    }

    /// A result that says `text` in answer to the call that is block `call`; none if the block is not a call.
    fn rendered(&self, call: Option<BlockIndex>, text: &str) -> Option<Bytes> {
        let BlockKind::ToolCall { id, name, .. } = &self.conversation.block(call?)?.kind else { return None };
        Some(self.dialect.render_tool_result(self.body, id, name.as_deref(), text))
    }
}
