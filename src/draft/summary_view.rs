//! The view of a conversation with a summary in place of its prefix, and what a draft knows of that prefix.

use std::ops::Range;

use bytes::Bytes;

use super::replacement::Replacement;
use super::{AppliedSummary, ChangeId, Draft, Inserted, ParsedRequest, PlanContext, PrefixKeys, Row, SummaryTiming};
use crate::conversation::{Conversation, ElementIndex, UnitIndex};
use crate::payload::{MediaType, PayloadKey};
use crate::plan::{Action, Change, Need, Sizes};
use crate::summary::NoSummaries;

impl<'a> Draft<'a> {
    /// Puts the summary in its place that `prefix_keys` has found, in a draft of what `whole` is with one message for those
    /// that it replaces.
    pub fn apply_summary(&mut self, edit: &'static str, whole: &'a Conversation<'a>, prefix_keys: PrefixKeys) {
        self.whole = whole;
        self.need = prefix_keys.load.map(Need::Load);
        if let Some(AppliedSummary { fold, summary }) = prefix_keys.applied() {
            let dialect = self.request.dialect;
            let json = dialect.render_user_message(&summary.text);
            let span = whole.span_of(fold.place());
            let sizes = Sizes { before: span.len(), after: json.len() };
            let change = self.record_summary(edit, whole.elements_of(fold.place()), sizes, summary.transcript);
            // The request that it was made for was the first to be sent with it.
            self.prefix_changes(fold.view_unit(whole.first_unit(ElementIndex::new(summary.made_at))));
            self.replacements.insert(span.start, Replacement::whole(span, json, change));
            for segment in fold.hidden().filter(|segment| *segment != fold.place()) {
                let span = whole.span_of(segment.clone());
                let sizes = Sizes { before: span.len(), after: 0 };
                self.record_summary(edit, whole.elements_of(segment), sizes, None);
                self.hidden.push(span);
            }
        }
        self.prefix_keys = prefix_keys.into();
    }

    // === what edits read ===

    /// The request as it came: the messages that a summary replaces are in it.
    pub fn whole(&self) -> ParsedRequest<'a> {
        ParsedRequest { conversation: self.whole, ..self.request }
    }

    /// What sets names of this kind apart, and those of conversations with one model.
    pub(super) fn scope(&self, kind: &[u8]) -> Vec<u8> {
        [kind, self.whole.model.as_deref().unwrap_or_default().as_bytes()].concat()
    }

    /// The beginnings of the conversation as it came. `scope` is asked for if nothing was remembered of any conversation when
    /// the plan was begun. A summary that was made since is not in use here, so it is not looked for.
    pub fn prefix_keys(&self, scope: impl FnOnce() -> Vec<u8>) -> &PrefixKeys {
        let context = PlanContext { summaries: &NoSummaries, ..self.context };
        self.prefix_keys.get_or_init(|| PrefixKeys::of(self.whole(), &context, &scope()))
    }

    /// The message that a summary is, if there is one.
    pub fn summarised(&self) -> Option<UnitIndex> {
        self.applied().map(|applied| applied.fold.summary())
    }

    /// Whether a message is a summary, or one of a round that is reopened beside it.
    pub fn is_folded(&self, unit: UnitIndex) -> bool {
        self.applied().is_some_and(|applied| applied.fold.in_place().contains(&unit))
    }

    /// The index that a message had as it came.
    pub fn original_unit(&self, unit: UnitIndex) -> UnitIndex {
        self.applied().map_or(unit, |applied| applied.fold.original_unit(unit))
    }

    /// The index that a message has now; that of the summary for one that it replaces.
    pub fn view_unit(&self, unit: UnitIndex) -> UnitIndex {
        self.applied().map_or(unit, |applied| applied.fold.view_unit(unit))
    }

    /// A message as the edits so far have left it.
    pub fn json(&self, row: &Row) -> Bytes {
        match (row.unit, self.insertion_of(row)) {
            (Some(unit), _) => self.unit_json(unit),
            (None, Some(Inserted::New { bytes, .. } | Inserted::Text { bytes })) => bytes.clone(),
            (None, _) => Bytes::new(),
        }
    }

    /// The tokens that messages had as they came, those that a summary replaces among them.
    pub fn original_tokens(&self, units: Range<UnitIndex>) -> usize {
        self.counts().units.get(UnitIndex::numbers(&units)).unwrap_or_default().iter().sum()
    }

    /// The words that say how to read what is stored under a name.
    pub fn retrieval_words(&self, key: PayloadKey, media: MediaType) -> String {
        if self.lacks_way() {
            return crate::recall::lost_words(self.language).to_owned();
        }
        self.retrieval_method().words(self.language, key, media)
    }

    /// Whether that summary is to replace all messages, also for what the model has not read.
    pub fn summarises_all(&self) -> bool {
        self.context.summarize == SummaryTiming::Whole
    }

    // === what an edit decides ===

    /// Notes the type of the unit that no summary may replace.
    pub fn note_blocking(&mut self, unit: UnitIndex) {
        const LONGEST: usize = 64;
        let ParsedRequest { dialect, body, .. } = self.request;
        let fields = dialect.fields(self.span(unit).of(body));
        let said = |name| fields.iter().find(|field| field.name == name).map(|field| field.value.concat());
        let kind = said("type").or_else(|| said("role")).unwrap_or_default();
        let kind = String::from_utf8_lossy(&kind);
        self.report.blocked_by = Some(kind.trim_matches('"').chars().take(LONGEST).collect());
    }

    // === helpers ===

    /// Notes that a summary replaces messages, which have not been counted as gone yet.
    fn record_summary(
        &mut self,
        edit: &'static str,
        elements: Range<ElementIndex>,
        bytes: Sizes,
        transcript: Option<PayloadKey>,
    ) -> ChangeId {
        self.n_bytes = (self.n_bytes + bytes.after).saturating_sub(bytes.before);
        let action = Action::Summarize { from: elements.start.get(), to: elements.end.get() };
        self.journal.make(Change { handles: transcript.into_iter().collect(), ..Change::new(edit, action, bytes) })
    }

    /// The summary that is in the place of messages.
    pub(super) fn applied(&self) -> Option<&AppliedSummary> {
        self.prefix_keys.get().and_then(PrefixKeys::applied)
    }
}
