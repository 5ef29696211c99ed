//! Calls that are left out with their results.

use super::{Draft, Placed, Row};
use crate::{
    plan::{Action, Sizes},
    span::Span,
};

/// A message that a call has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    /// How many of its calls have not left.
    pub(super) n_left: usize,
    /// What is cut out if none is left.
    pub(super) key: Span,
}

impl Draft<'_> {
    /// Leaves a result out together with the call that it answers, and with the message that called, if nothing is left
    /// of that; `since` is the model call that they were not there for any more. False if one of them is not to be
    /// touched, or has not been read. Where a result has come since that is in the place of the row now, that and the call
    /// stay.
    pub fn drop_round_trip(&mut self, edit: &'static str, row: &Row, since: usize) -> bool {
        let n_bytes = self.n_bytes;
        let left = match row.call {
            Some(call) if self.is_superseded(row) => self.batch_of(call).is_some(),
            Some(call) => self.drop_call(edit, row, call),
            None => self.drop_uncalled(edit, row),
        };
        if left {
            self.n_bytes_gone += n_bytes.saturating_sub(self.n_bytes);
            self.departed.entry(since).or_default().push(*row);
        }
        left
    }

    /// Whether a message has content that is not empty.
    pub(super) fn says_something(&self, message: usize) -> bool {
        let content = self.source.conversation.messages.get(message).and_then(|message| message.content);
        content.is_some_and(|content| !matches!(content.of(self.source.body), b"\"\"" | b"[]"))
    }

    // === helpers ===

    /// Whether a row stood for a result that has come since.
    fn is_superseded(&self, row: &Row) -> bool {
        row.message.is_none() && row.call.is_some_and(|call| self.pairing().is_answered(call))
    }

    /// Leaves a result out that answers no call.
    fn drop_uncalled(&mut self, edit: &'static str, row: &Row) -> bool {
        let may_go = |message: &usize| !self.is_unread(*message) && !self.is_written_on(*message);
        let Some(message) = row.message.filter(may_go) else { return false };
        let gone = row.added.is_none() && self.take(message);
        if gone {
            self.record_drop(edit, message);
        }
        gone
    }

    fn drop_call(&mut self, edit: &'static str, row: &Row, call: usize) -> bool {
        let Some(batch) = self.batch_of(call) else { return false };
        let caller = self.source.conversation.blocks.get(call).map_or(0, |block| block.message);
        let may_not_go = |message| self.is_unread(message) || self.is_written_on(message);
        if self.last_assistant == Some(caller) || row.message.is_some_and(may_not_go) || !self.take_result(row) {
            return false;
        }
        let n_left = batch.n_left - 1;
        self.tokens_now.borrow_mut().remove(&caller);
        self.batches.insert(caller, Batch { n_left, ..batch });
        self.dropped_calls.insert(call);
        let span = self.source.conversation.blocks.get(call).map_or(Span::default(), |block| block.span);
        let sizes = Sizes { before: span.len(), after: 0 };
        self.record(self.about_call(edit, Action::DropCall { message: caller }, call, sizes));
        self.n_bytes = self.n_bytes.saturating_sub(span.len());
        // That it was moved or put in is moot now.
        let moot = row.added.and_then(|n| self.added.get(n)).map(|added| added.change);
        if let Some(change) = moot.and_then(|change| self.changes.get_mut(change)) {
            *change = None;
        }
        match row.message {
            Some(message) => {
                self.moved.remove(&message);
                self.record_drop(edit, message);
            }
            None => self.n_bytes = self.n_bytes.saturating_sub(self.added_len(row)),
        }
        if n_left == 0 && !self.says_something(caller) && self.take(caller) {
            self.record_drop(edit, caller);
        }
        true
    }

    /// Takes a result out of where it is. There is none where nothing stands for one that is missing.
    fn take_result(&mut self, row: &Row) -> bool {
        match (row.added.and_then(|n| self.added.get_mut(n)), row.message) {
            (Some(added), _) => !std::mem::replace(&mut added.gone, true),
            (None, Some(message)) => self.take(message),
            (None, None) => true,
        }
    }

    /// What is left of the message that a call stands in; none if the call cannot be taken out of it.
    fn batch_of(&self, call: usize) -> Option<Batch> {
        let caller = self.source.conversation.blocks.get(call)?.message;
        if self.dropped_calls.contains(&call) || !*self.in_place.get(caller)? {
            return None;
        }
        if let Some(batch) = self.batches.get(&caller) {
            return Some(*batch);
        }
        if self.is_written_on(caller) {
            return None;
        }
        let message = self.source.conversation.messages.get(caller)?;
        let key = self.source.dialect.calls_key(self.source.body, message.span)?;
        Some(Batch { n_left: message.blocks.len(), key })
    }

    fn added_len(&self, row: &Row) -> usize {
        match self.put_in(row) {
            Some(Placed::New { bytes, .. }) => bytes.len(),
            _ => 0,
        }
    }
}
