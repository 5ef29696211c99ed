//! What a draft knows of the messages that a summary stands for, or is to stand for.

use std::ops::Range;

use bytes::Bytes;

use super::{Applied, Beginnings, Draft, Offload, Placed, Row, Source, When, replace::Slot};
use crate::{
    conversation::Conversation,
    payload::PayloadKey,
    plan::{Action, Change, Need, Sizes},
    span::Span,
};

impl<'a> Draft<'a> {
    /// Puts the summary in its place that `beginnings` has found, in a draft of what `whole` is with one message for those
    /// that it stands for.
    pub fn begin(&mut self, edit: &'static str, whole: &'a Conversation<'a>, beginnings: Beginnings) {
        self.whole = whole;
        self.need = beginnings.load.map(Need::Load);
        if let Some(Applied { fold, summary }) = beginnings.applied() {
            let json = self.source.dialect.render_user_message(&summary.text);
            let span = whole.span_of(fold.place());
            let change = self.record_summary(
                edit,
                whole.elements_of(fold.place()),
                Sizes { before: span.len(), after: json.len() },
            );
            if let Some(Some(change)) = self.changes.get_mut(change) {
                change.handles = summary.transcript.into_iter().collect();
            }
            // The request that it was made for was the first to be sent with it.
            self.prefix_changes(fold.in_view(whole.first_unit(summary.made_at)));
            self.slots.insert(span.start, Slot::whole(span, json, change));
            for stretch in fold.hidden().filter(|stretch| *stretch != fold.place()) {
                let span = whole.span_of(stretch.clone());
                self.record_summary(edit, whole.elements_of(stretch), Sizes { before: span.len(), after: 0 });
                self.hidden.push(span);
            }
        }
        self.beginnings = beginnings.into();
    }

    // === what edits read ===

    /// The request as it came: the messages that a summary stands for are in it.
    pub fn whole(&self) -> Source<'a> {
        Source { conversation: self.whole, ..self.source }
    }

    /// The beginnings of the conversation as it came. `scope` is asked for if nothing was remembered of any conversation.
    pub fn beginnings(&self, scope: impl FnOnce() -> Vec<u8>) -> &Beginnings {
        self.beginnings.get_or_init(|| Beginnings::of(self.whole(), &self.situation, &scope()))
    }

    /// How many messages at the beginning are instructions.
    pub fn n_leading(&self) -> usize {
        self.n_leading
    }

    /// The message that a summary is, if there is one.
    pub fn summarised(&self) -> Option<usize> {
        self.applied().map(|applied| applied.fold.summary())
    }

    /// Whether a message is a summary, or one of a round that is reopened beside it.
    pub fn is_folded(&self, unit: usize) -> bool {
        self.applied().is_some_and(|applied| applied.fold.in_place().contains(&unit))
    }

    /// The index that a message had as it came.
    pub fn as_it_came(&self, unit: usize) -> usize {
        self.applied().map_or(unit, |applied| applied.fold.as_it_came(unit))
    }

    /// The index that a message has now; that of the summary for one that it stands for.
    pub fn in_view(&self, unit: usize) -> usize {
        self.applied().map_or(unit, |applied| applied.fold.in_view(unit))
    }

    /// A message as the edits so far have left it.
    pub fn json(&self, row: &Row) -> Bytes {
        match (row.unit, self.put_in(row)) {
            (Some(unit), _) => self.rewritten(unit).unwrap_or_else(|| {
                let Span { start, end } = self.span(unit);
                self.source.body.slice(start..end)
            }),
            (None, Some(Placed::New { bytes, .. })) => bytes.clone(),
            (None, _) => Bytes::new(),
        }
    }

    /// The tokens that messages had as they came, those that a summary stands for among them.
    pub fn tokens_as_they_came(&self, units: Range<usize>) -> usize {
        self.counts().units.get(units).unwrap_or_default().iter().sum()
    }

    /// The name that a payload has in the store.
    pub fn name_payload(&self, payload: &[u8]) -> PayloadKey {
        self.situation.keys.payload(self.situation.caller, payload)
    }

    /// The words that say how to read what is stored under a name.
    pub fn words_for(&self, key: PayloadKey) -> String {
        self.way().words(self.language, key)
    }

    /// Whether something can be stored.
    pub fn can_store(&self) -> bool {
        self.situation.offload == Offload::Possible
    }

    /// Whether a summary is wanted whatever the size.
    pub fn is_asked_for_summary(&self) -> bool {
        self.situation.summarize == When::Now
    }

    /// Whether something is needed for a better plan.
    pub fn has_need(&self) -> bool {
        self.need.is_some()
    }

    // === what an edit decides ===

    /// Says what is needed for a better plan.
    pub fn ask_for(&mut self, need: Need) {
        self.need = Some(need);
    }

    // === helpers ===

    /// Notes that a summary stands for messages, which have not been counted as gone yet.
    fn record_summary(&mut self, edit: &'static str, elements: Range<usize>, bytes: Sizes) -> usize {
        self.n_bytes = (self.n_bytes + bytes.after).saturating_sub(bytes.before);
        self.record(Change {
            edit,
            action: Action::Summarize { from: elements.start, to: elements.end },
            call_id: String::new(),
            tool_name: None,
            bytes,
            tokens: None,
            handles: Vec::new(),
            why: None,
        })
    }

    /// The summary that stands in the place of messages.
    pub(super) fn applied(&self) -> Option<&Applied> {
        self.beginnings.get().and_then(Beginnings::applied)
    }
}
