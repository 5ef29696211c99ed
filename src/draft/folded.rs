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
        if let Some(Applied { messages, summary }) = beginnings.applied() {
            let (from, to, span) = (messages.start, messages.end, self.span(messages.start));
            let json = self.source.dialect.render_user_message(&summary.text);
            let change = self.record(Change {
                edit,
                action: Action::Summarize { from, to },
                call_id: String::new(),
                tool_name: None,
                bytes: Sizes { before: span.len(), after: json.len() },
                tokens: None,
                handles: summary.transcript.into_iter().collect(),
            });
            self.n_bytes = (self.n_bytes + json.len()).saturating_sub(span.len());
            self.slots.insert(span.start, Slot::whole(span, json, change));
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
        self.applied().map(|applied| applied.messages.start)
    }

    /// The index that a message had as it came.
    pub fn as_it_came(&self, message: usize) -> usize {
        match self.applied() {
            Some(applied) if message > applied.messages.start => message + applied.messages.len() - 1,
            _ => message,
        }
    }

    /// The index that a message has now; that of the summary for one that it stands for.
    pub fn in_view(&self, message: usize) -> usize {
        match self.applied() {
            Some(Applied { messages, .. }) if message > messages.start => {
                messages.start.max((message + 1).saturating_sub(messages.len()))
            }
            _ => message,
        }
    }

    /// A message as the edits so far have left it.
    pub fn json(&self, row: &Row) -> Bytes {
        match (row.message, self.put_in(row)) {
            (Some(message), _) => self.rewritten(message).unwrap_or_else(|| {
                let Span { start, end } = self.span(message);
                self.source.body.slice(start..end)
            }),
            (None, Some(Placed::New { bytes, .. })) => bytes.clone(),
            (None, _) => Bytes::new(),
        }
    }

    /// The tokens that messages had as they came, those that a summary stands for among them.
    pub fn tokens_as_they_came(&self, messages: Range<usize>) -> usize {
        self.counts().messages.get(messages).unwrap_or_default().iter().sum()
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

    /// The summary that stands in the place of messages.
    pub(super) fn applied(&self) -> Option<&Applied> {
        self.beginnings.get().and_then(Beginnings::applied)
    }
}
