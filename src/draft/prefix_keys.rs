//! The keys of the prefixes of a conversation, the state of their summaries, and the summary in use.

use std::sync::Arc;

use super::{ParsedRequest, PlanContext, SummaryTiming};
use crate::conversation::{Conversation, Element, ElementIndex, Fold, Pairing, UnitIndex, unread_from};
use crate::payload::{Chain, ChainKey};
use crate::summary::{Summary, SummaryState};

/// The keys of the prefixes of one conversation. A prefix begins after the instructions and ends after an element.
#[derive(Clone, Debug)]
pub struct PrefixKeys {
    /// The key of the empty prefix.
    scope: ChainKey,
    /// The first unit, and its element.
    start: UnitIndex,
    first: usize,
    /// The key of each, from the shortest on.
    names: Vec<ChainKey>,
    /// The prefixes with a known summary state, by the unit that they end before.
    known: Vec<(UnitIndex, SummaryState)>,
    /// The longest one with a summary, if that has to be loaded.
    pub(super) load: Option<ChainKey>,
    applied: Option<AppliedSummary>,
}

/// The summary in use, and the units that it replaces.
#[derive(Clone, Debug)]
pub struct AppliedSummary {
    /// The units, and which of them stay beside the summary.
    pub fold: Fold,
    /// What represents the others.
    pub summary: Arc<Summary>,
}

/// The scope of the names of conversations, which separates them from the keys of summaries.
pub const CONVERSATIONS: &[u8] = b"conversation";

/// How many messages name a conversation on the page. Some clients begin all sessions of a folder with the same message.
const MAX_OPENING: usize = 8;

/// The name of a conversation by the first message of the user, and not by instructions, which may have the time. `None` if the
/// request does not show its beginning. `chain` has the scope [`CONVERSATIONS`].
pub fn conversation_name(request: ParsedRequest<'_>, mut chain: Chain) -> Option<ChainKey> {
    let ParsedRequest { dialect, body, conversation } = request;
    let first = conversation.opening().next().filter(|_| !conversation.traits.history_elsewhere)?;
    Some(chain.push(conversation.element_fingerprint(first, body), || dialect.canonical(first.span.of(body))))
}

/// The name of a conversation on the page: by all that the user says before the first answer. Every request gets one, so it is
/// made of hashes that are remembered.
pub(super) fn display_name(request: ParsedRequest<'_>, context: &PlanContext<'_>) -> Option<ChainKey> {
    let ParsedRequest { dialect, body, conversation } = request;
    let key = |element: &Element| {
        let written = conversation.element_fingerprint(element, body);
        let key = context.keys.message(context.caller, written, || dialect.canonical(element.span.of(body)));
        u128::from_be_bytes(*key.as_bytes())
    };
    let opening = conversation.opening().take(MAX_OPENING).filter(|_| !conversation.traits.history_elsewhere);
    let name = opening.map(key).reduce(|name, key| name.rotate_left(1) ^ key)?;
    Some(ChainKey::from_bytes(name.to_be_bytes()))
}

/// How many messages after the instructions make a conversation's root: the second is the model's first answer.
const ROOT: usize = 2;

impl PrefixKeys {
    /// The keys of a conversation as it came. `scope` keeps the summaries of other settings apart.
    pub fn of(request: ParsedRequest<'_>, context: &PlanContext<'_>, scope: &[u8]) -> Self {
        let ParsedRequest { dialect, body, conversation } = request;
        let start = conversation.first_editable();
        let first = conversation.unit(start).map_or(conversation.elements.len(), |unit| unit.element.get());
        let elements = conversation.elements.get(first..).unwrap_or_default();
        let mut chain = context.keys.chain(context.caller, scope);
        let scope = chain.at();
        let name = |element: &Element| {
            chain.push(conversation.element_fingerprint(element, body), || dialect.canonical(element.span.of(body)))
        };
        let names: Vec<_> = elements.iter().map(name).collect();
        let known = if context.summaries.is_empty() {
            Vec::new()
        } else {
            let known = names.iter().map(|name| context.summaries.state(*name));
            let ends = elements.iter().map(|element| element.units.end);
            ends.zip(known).filter(|(_, known)| !matches!(known, SummaryState::Unknown)).collect()
        };
        let mut prefix_keys = Self { scope, start, first, names, known, load: None, applied: None };
        let reads_all = context.summarize == SummaryTiming::Whole;
        let most = if reads_all { conversation.units.len() } else { unread_from(conversation.turn_units()) };
        prefix_keys.find(conversation, UnitIndex::new(most));
        prefix_keys
    }

    /// The key of the empty prefix, which all conversations of the same caller, model and settings share.
    pub fn scope(&self) -> ChainKey {
        self.scope
    }

    /// The name after the second message; none if there is none.
    pub fn root(&self) -> Option<ChainKey> {
        self.names.get(ROOT - 1).copied()
    }

    /// The root of a conversation, without the names of its other beginnings.
    pub fn root_of(request: ParsedRequest<'_>, context: &PlanContext<'_>, scope: &[u8]) -> Option<ChainKey> {
        let ParsedRequest { dialect, body, conversation } = request;
        let first = conversation.unit(conversation.first_editable())?.element.get();
        let elements = conversation.elements.get(first..first + ROOT)?;
        let mut chain = context.keys.chain(context.caller, scope);
        for element in elements {
            chain.push(conversation.element_fingerprint(element, body), || dialect.canonical(element.span.of(body)));
        }
        Some(chain.at())
    }

    /// The key of the prefix that ends before an element.
    pub fn name(&self, end: ElementIndex) -> Option<ChainKey> {
        self.names.get(end.get().checked_sub(self.first + 1)?).copied()
    }

    /// The longest prefix with a loaded summary.
    pub fn applied(&self) -> Option<&AppliedSummary> {
        self.applied.as_ref()
    }

    /// The prefixes that are longer than what is summarised, from the longest on: where they end, and their summary state.
    pub fn longer(&self) -> impl Iterator<Item = (UnitIndex, &SummaryState)> {
        let summarised = self.applied.as_ref().map_or(self.start, |applied| applied.fold.units.end);
        self.known.iter().rev().map(|(end, known)| (*end, known)).take_while(move |(end, _)| *end > summarised)
    }

    /// Finds the longest summary that ends before unit `most` or there: what the model has not read stays.
    fn find(&mut self, conversation: &Conversation<'_>, most: UnitIndex) {
        if !self.known.iter().any(|(_, known)| matches!(known, SummaryState::Summary(_) | SummaryState::Stored)) {
            return;
        }
        let pairing = Pairing::of(conversation);
        for (end, known) in self.known.iter().rev().filter(|(end, _)| *end <= most) {
            if !matches!(known, SummaryState::Summary(_) | SummaryState::Stored) {
                continue;
            }
            let Some(fold) = Fold::of(conversation, &pairing, self.start..*end) else { continue };
            if let SummaryState::Summary(summary) = known {
                self.applied = Some(AppliedSummary { fold, summary: Arc::clone(summary) });
                return;
            }
            if self.load.is_none() {
                self.load = self.name(conversation.elements_of(UnitIndex::default()..*end).end);
            }
        }
    }
}
