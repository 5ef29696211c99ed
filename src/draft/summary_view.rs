//! The view of a conversation with a summary in place of its prefix, and what a draft knows of that prefix.

use std::ops::Range;

use super::{AppliedSummary, ChangeId, Draft, ParsedRequest, PlanContext, PrefixKeys, Replacement, SummaryTiming};
use crate::conversation::{Conversation, ElementIndex, UnitIndex};
use crate::payload::{ChainKey, PayloadKey};
use crate::plan::{Action, Change, Need, Sizes};
use crate::span::Span;
use crate::summary::NoSummaries;

impl<'a> Draft<'a> {
    /// Puts the summary in its place that `prefix_keys` has found, in a draft of what `whole` is with one message for those
    /// that it replaces.
    pub fn apply_summary(&mut self, edit: &'static str, whole: &'a Conversation<'a>, prefix_keys: PrefixKeys) {
        self.whole = whole;
        self.need = prefix_keys.load.map(Need::Load);
        if let Some(AppliedSummary { fold, summary }) = prefix_keys.applied() {
            let json = self.dialect.render_user_message(&summary.text);
            let span = whole.span_of(fold.place());
            let change = Some(self.record_summary(edit, fold.place(), json.len(), summary.transcript));
            // The request that it was made for was the first to be sent with it.
            self.prefix_changes(fold.view_unit(whole.first_unit(ElementIndex::new(summary.made_at))));
            self.replacements.insert(span.start, Replacement { change, ..Replacement::whole(span, json, None) });
            for units in fold.hidden().filter(|units| *units != fold.place()) {
                self.record_summary(edit, units, 0, None);
            }
        }
        self.prefix_keys = prefix_keys.into();
    }

    // === what edits read ===

    /// The request as it came: the messages that a summary replaces are in it.
    pub fn whole(&self) -> ParsedRequest<'a> {
        ParsedRequest { conversation: self.whole, ..self.request() }
    }

    /// What sets names of this kind apart, and those of conversations with one model.
    fn scope(&self, kind: &[u8]) -> Vec<u8> {
        [kind, self.whole.model.as_deref().unwrap_or_default().as_bytes()].concat()
    }

    /// The name of this kind after the second message; none if there is none.
    pub(super) fn root_of(&self, kind: &[u8]) -> Option<ChainKey> {
        PrefixKeys::root_of(self.whole(), &self.context, &self.scope(kind))
    }

    /// The names of this kind of all beginnings.
    pub(super) fn names_of(&self, kind: &[u8]) -> PrefixKeys {
        self.keys_of(&self.scope(kind))
    }

    fn keys_of(&self, scope: &[u8]) -> PrefixKeys {
        let context = PlanContext { summaries: &NoSummaries, ..self.context };
        PrefixKeys::of(self.whole(), &context, scope)
    }

    /// The beginnings of the conversation as it came. `scope` is asked for if nothing was remembered of any conversation when
    /// the plan was begun. A summary that was made since is not in use here, so it is not looked for.
    pub fn prefix_keys(&self, scope: impl FnOnce() -> Vec<u8>) -> &PrefixKeys {
        self.prefix_keys.get_or_init(|| self.keys_of(&scope()))
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

    /// The tokens that messages had as they came, those that a summary replaces among them.
    pub fn original_tokens(&self, units: Range<UnitIndex>) -> usize {
        self.counts().units.get(UnitIndex::numbers(&units)).unwrap_or_default().iter().sum()
    }

    /// Whether that summary is to replace all messages, also for what the model has not read.
    pub fn summarises_all(&self) -> bool {
        self.context.summarize == SummaryTiming::Whole
    }

    // === what an edit decides ===

    /// Notes the type of the unit that no summary may replace.
    pub fn note_blocking(&mut self, unit: UnitIndex) {
        const LONGEST: usize = 64;
        let fields = self.dialect.fields(self.span(unit).of(self.body));
        let said = |name| fields.iter().find(|field| field.name == name).map(|field| field.value.concat());
        let kind = said("type").or_else(|| said("role")).unwrap_or_default();
        let kind = String::from_utf8_lossy(&kind);
        self.report.blocked_by = Some(kind.trim_matches('"').chars().take(LONGEST).collect());
    }

    // === helpers ===

    /// Notes that a summary of so many bytes replaces messages, which have not been counted as gone yet.
    fn record_summary(
        &mut self,
        edit: &'static str,
        units: Range<UnitIndex>,
        after: usize,
        transcript: Option<PayloadKey>,
    ) -> ChangeId {
        let sizes = Sizes { before: self.whole.span_of(units.clone()).len(), after };
        let elements = self.whole.elements_of(units);
        let action = Action::Summarize { from: elements.start.get(), to: elements.end.get() };
        let handles = transcript.into_iter().collect();
        self.record(Change { handles, ..Change::new(edit, action, sizes) })
    }

    /// The messages that the summary has replaced, besides those that it takes the place of.
    pub(super) fn hidden(&self) -> impl Iterator<Item = Span> {
        let folds = self.applied().into_iter().map(|applied| &applied.fold);
        let hidden = folds.flat_map(|fold| fold.hidden().filter(|units| *units != fold.place()));
        hidden.map(|units| self.whole.span_of(units))
    }

    /// The summary that is in the place of messages.
    pub(super) fn applied(&self) -> Option<&AppliedSummary> {
        self.prefix_keys.get().and_then(PrefixKeys::applied)
    }
}
