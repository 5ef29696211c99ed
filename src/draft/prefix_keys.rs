//! The keys of the prefixes of a conversation, the state of their summaries, and the view with the summary in use in place of
//! its prefix.

use std::{ops::Range, sync::Arc};

use super::{ChangeId, Draft, Label, ParsedRequest, PlanContext, Replacement, SummaryTiming};
use crate::conversation::{Conversation, Element, ElementIndex, Fold, Pairing, UnitIndex, unread_from};
use crate::payload::{Caller, Chain, ChainKey, Keys, PayloadKey};
use crate::plan::{Action, Change, Need, Sizes};
use crate::span::Span;
use crate::summary::{NoSummaries, Summary, SummaryState};

/// The keys of the prefixes of one conversation. A prefix begins after the instructions and ends after an element.
#[derive(Clone, Debug)]
pub struct PrefixKeys {
    /// The key of the empty prefix, which all conversations of the same caller, model and settings share.
    pub(crate) scope: ChainKey,
    /// The first unit, and its element.
    start: UnitIndex,
    first: usize,
    /// The key of each, from the shortest on.
    names: Vec<ChainKey>,
    /// The prefixes with a known summary state, by the unit that they end before.
    known: Vec<(UnitIndex, SummaryState)>,
    /// The longest one with a summary, if that has to be loaded.
    load: Option<ChainKey>,
    /// The longest prefix with a loaded summary.
    pub(crate) applied: Option<AppliedSummary>,
}

/// The summary in use, and the units that it replaces.
#[derive(Clone, Debug)]
pub struct AppliedSummary {
    /// The units, and which of them stay beside the summary.
    pub fold: Fold,
    /// The summary of the others.
    pub summary: Arc<Summary>,
}

/// How many messages name a conversation on the page. Some clients begin all sessions of a folder with the same message.
pub(super) const MAX_OPENING: usize = 8;

/// The name of the beginning that ends with an element, after that of the one before it.
fn push(chain: &mut Chain, request: ParsedRequest<'_>, element: &Element) -> ChainKey {
    let ParsedRequest { dialect, body, conversation } = request;
    chain.push(conversation.element_fingerprint(element, body), || dialect.canonical(element.span.of(body)))
}

/// The name of a conversation by the first messages of the user, and not by instructions, which may have the time. `None` if the
/// request does not show its beginning. Every request gets one, so it is made of hashes that are remembered.
pub fn conversation_name(request: ParsedRequest<'_>, keys: &Keys, caller: Caller, most: usize) -> Option<ChainKey> {
    let ParsedRequest { dialect, body, conversation } = request;
    let key = |element: &Element| {
        let written = conversation.element_fingerprint(element, body);
        let key = keys.message(caller, written, || dialect.canonical(element.span.of(body)));
        u128::from_be_bytes(*key.as_bytes())
    };
    let opening = conversation.opening().take(most).filter(|_| !conversation.traits.history_elsewhere);
    let name = opening.map(key).reduce(|name, key| name.rotate_left(1) ^ key)?;
    Some(ChainKey::from_bytes(name.to_be_bytes()))
}

/// How many messages after the instructions make a conversation's root: the second is the model's first answer.
const ROOT: usize = 2;

impl PrefixKeys {
    /// The keys of a conversation as it came. `scope` keeps the summaries of other settings apart.
    pub fn of(request: ParsedRequest<'_>, context: &PlanContext<'_>, scope: &[u8]) -> Self {
        let conversation = request.conversation;
        let start = conversation.first_editable();
        let first = conversation.unit(start).map_or(conversation.elements.len(), |unit| unit.element.get());
        let elements = conversation.elements.get(first..).unwrap_or_default();
        let mut chain = context.keys.chain(context.caller, scope);
        let scope = chain.at();
        let names: Vec<_> = elements.iter().map(|element| push(&mut chain, request, element)).collect();
        let states = names.iter().filter(|_| !context.summaries.is_empty()).map(|name| context.summaries.state(*name));
        let known = elements.iter().map(|element| element.units.end).zip(states);
        let known = known.filter(|(_, known)| !matches!(known, SummaryState::Unknown)).collect();
        let mut prefix_keys = Self { scope, start, first, names, known, load: None, applied: None };
        let reads_all = context.summarize == SummaryTiming::Whole;
        let most = if reads_all { conversation.units.len() } else { unread_from(conversation.turn_units()) };
        prefix_keys.find(conversation, UnitIndex::new(most));
        prefix_keys
    }

    /// The name after the second message; none if there is none.
    pub fn root(&self) -> Option<ChainKey> {
        self.names.get(ROOT - 1).copied()
    }

    /// The root of a conversation, without the names of its other beginnings.
    pub fn root_of(request: ParsedRequest<'_>, context: &PlanContext<'_>, scope: &[u8]) -> Option<ChainKey> {
        let conversation = request.conversation;
        let first = conversation.unit(conversation.first_editable())?.element.get();
        let mut chain = context.keys.chain(context.caller, scope);
        let names = conversation.elements.get(first..first + ROOT)?.iter();
        names.map(|element| push(&mut chain, request, element)).last()
    }

    /// The key of the prefix that ends before an element.
    pub fn name(&self, end: ElementIndex) -> Option<ChainKey> {
        self.names.get(end.get().checked_sub(self.first + 1)?).copied()
    }

    /// The prefixes that are longer than what is summarised, from the longest on: where they end, and their summary state.
    pub fn longer(&self) -> impl Iterator<Item = (UnitIndex, &SummaryState)> {
        let summarised = self.applied.as_ref().map_or(self.start, |applied| applied.fold.units.end);
        self.known.iter().rev().map(|(end, known)| (*end, known)).take_while(move |(end, _)| *end > summarised)
    }

    /// Finds the longest summary that ends before unit `most` or there: what the model has not read stays.
    fn find(&mut self, conversation: &Conversation<'_>, most: UnitIndex) {
        let is_made = |known: &SummaryState| matches!(known, SummaryState::Summary(_) | SummaryState::Stored);
        if !self.known.iter().any(|(_, known)| is_made(known)) {
            return;
        }
        let pairing = Pairing::of(conversation);
        for (end, known) in self.known.iter().rev().filter(|(end, known)| *end <= most && is_made(known)) {
            let Some(fold) = Fold::of(conversation, &pairing, self.start..*end) else { continue };
            if let SummaryState::Summary(summary) = known {
                self.applied = Some(AppliedSummary { fold, summary: Arc::clone(summary) });
                return;
            }
            let before = conversation.elements_of(UnitIndex::default()..*end).end;
            self.load = self.load.or_else(|| self.name(before));
        }
    }
}

impl<'a> Draft<'a> {
    /// Puts the summary in its place that `prefix_keys` has found, in a draft of what `whole` is with one message for those
    /// that it replaces.
    pub fn apply_summary(&mut self, edit: Label, whole: &'a Conversation<'a>, prefix_keys: PrefixKeys) {
        self.whole = whole;
        self.need = prefix_keys.load.map(Need::Load);
        if let Some(AppliedSummary { fold, summary }) = &prefix_keys.applied {
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
        self.known.prefix_keys = prefix_keys.into();
    }

    // === what edits read ===

    /// The request as it came: the messages that a summary replaces are in it.
    pub fn whole(&self) -> ParsedRequest<'a> {
        ParsedRequest { conversation: self.whole, ..self.request() }
    }

    /// The scope of names of this kind, for conversations with one model.
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
        self.known.prefix_keys.get_or_init(|| self.keys_of(&scope()))
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
        edit: Label,
        units: Range<UnitIndex>,
        after: usize,
        stored: Option<PayloadKey>,
    ) -> ChangeId {
        let before = self.whole.span_of(units.clone()).len();
        let elements = self.whole.elements_of(units);
        let action = Action::Summarize { from: elements.start.get(), to: elements.end.get() };
        let handles = stored.into_iter().collect();
        self.record(Change { handles, ..Change::new(edit, action, Sizes::default()) }, before, after)
    }

    /// The messages that the summary has replaced, besides those that it takes the place of.
    pub(super) fn hidden(&self) -> impl Iterator<Item = Span> {
        let folds = self.applied().into_iter().map(|applied| &applied.fold);
        let hidden = folds.flat_map(|fold| fold.hidden().filter(|units| *units != fold.place()));
        hidden.map(|units| self.whole.span_of(units))
    }

    /// The summary that is in the place of messages.
    pub(super) fn applied(&self) -> Option<&AppliedSummary> {
        self.known.prefix_keys.get()?.applied.as_ref()
    }
}
