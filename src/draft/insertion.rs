//! Results and texts that are inserted after units.

use bytes::Bytes;

use super::journal::ChangeId;
use super::{Draft, InsertionIndex};
use crate::conversation::{BlockIndex, UnitIndex};
use crate::plan::{Action, Sizes};

/// A result or a text that is inserted after a unit.
#[derive(Debug)]
pub(super) struct Insertion {
    /// The unit that it is put behind, which may itself have left.
    pub(super) behind: UnitIndex,
    pub(super) what: Inserted,
    /// The change that says so.
    pub(super) change: ChangeId,
    /// Whether it has been dropped again.
    pub(super) gone: bool,
}

#[derive(Debug)]
pub(super) enum Inserted {
    /// A result that stood elsewhere, and what replaces it where it has not come yet.
    Moved { unit: UnitIndex, until_then: Bytes },
    /// The placeholder of a late result that cannot be moved. It is gone.
    Stood { until_then: Bytes },
    /// A result that was not there, which answers the call of a block.
    New { call: BlockIndex, bytes: Bytes },
    /// A text of the user, or of the model.
    Text { bytes: Bytes },
}

impl Inserted {
    /// The message at this place until now: the inserted one, or the one that replaced a result which has come since.
    pub(super) fn until_then(&self) -> &Bytes {
        match self {
            Self::Moved { until_then: bytes, .. }
            | Self::Stood { until_then: bytes }
            | Self::New { bytes, .. }
            | Self::Text { bytes } => bytes,
        }
    }
}

impl Draft<'_> {
    /// Inserts a text of the user after the place of a message.
    pub(super) fn insert_text(&mut self, edit: &'static str, behind: UnitIndex, text: &str) {
        self.insert_message(edit, behind, self.request.dialect.render_user_entry(text));
        self.texts.insert(behind);
    }

    /// Inserts a message that is not a result after the place of a message.
    pub(super) fn insert_message(&mut self, edit: &'static str, behind: UnitIndex, bytes: Bytes) {
        self.n_bytes += bytes.len() + 1;
        let sizes = Sizes { before: 0, after: bytes.len() };
        let change =
            self.journal.make(self.about_result(edit, Action::InsertText { behind: behind.get() }, behind, sizes));
        self.insertions.push(Insertion { behind, what: Inserted::Text { bytes }, change, gone: false });
    }

    /// Moves a result after the place of another message, and behind what has been put there before. If it is late, a result
    /// that says `placeholder` was there in earlier requests. False if the message is not to be touched.
    pub fn move_result(
        &mut self,
        edit: &'static str,
        unit: UnitIndex,
        behind: UnitIndex,
        placeholder: Option<&str>,
    ) -> bool {
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
        let sizes = Sizes { before: n_bytes, after: n_bytes };
        let action = Action::Move { message: unit.get(), behind: behind.get() };
        let change = self.journal.make(self.about_result(edit, action, unit, sizes));
        let rendered = |text| self.rendered(self.pairing().answered_block(unit), text);
        let until_then = placeholder.and_then(rendered).unwrap_or_default();
        self.n_bytes_removed += until_then.len() + 1;
        self.insertions.push(Insertion { behind, what: Inserted::Moved { unit, until_then }, change, gone: false });
        self.moved.insert(unit);
        true
    }

    /// Whether a unit is a whole message.
    pub fn is_element(&self, unit: UnitIndex) -> bool {
        let conversation = self.request.conversation;
        conversation.unit(unit).is_some_and(|unit| conversation.is_element(unit))
    }

    /// Notes a late result that is not moved. Earlier requests had a result with the text `placeholder` after the message
    /// `behind`.
    pub fn note_late_result(&mut self, edit: &'static str, unit: UnitIndex, behind: UnitIndex, placeholder: &str) {
        let call = self.pairing().answered_block(unit);
        let Some(until_then) = self.rendered(call, placeholder) else { return };
        let action = Action::Insert { behind: behind.get() };
        let change = self.journal.make(self.about_result(edit, action, unit, Sizes::default()));
        self.journal.revoke(change);
        self.n_bytes_removed += until_then.len() + 1;
        self.stood.insert(unit, InsertionIndex::new(self.insertions.len()));
        self.insertions.push(Insertion { behind, what: Inserted::Stood { until_then }, change, gone: true });
    }

    /// Puts a result that says `text` in answer to the call that is block `call` after the place of a message, and
    /// behind what has been put there before. False if the block is not a call, or has left.
    pub fn insert_result(&mut self, edit: &'static str, call: BlockIndex, behind: UnitIndex, text: &str) -> bool {
        let caller = self.request.conversation.caller(call).unwrap_or_default();
        if behind.get() >= self.in_place.len() || caller < self.first_editable || self.dropped_calls.contains(&call) {
            return false;
        }
        let Some(bytes) = self.rendered(Some(call), text) else { return false };
        self.n_bytes += bytes.len() + 1;
        let sizes = Sizes { before: 0, after: bytes.len() };
        let change = self.journal.make(self.about_call(edit, Action::Insert { behind: behind.get() }, call, sizes));
        self.insertions.push(Insertion { behind, what: Inserted::New { call, bytes }, change, gone: false });
        true
    }
}
