//! The names of the beginnings of a conversation, what is remembered of them, and the summary that stands for one.

use std::sync::Arc;

use super::{ParsedRequest, PlanContext};
use crate::{
    conversation::{Conversation, Element, Fold, Pairing, unread_from},
    payload::ChainKey,
    summary::{Summary, SummaryState},
};

/// The beginnings of one conversation: from behind its instructions to behind each element.
#[derive(Debug)]
pub struct PrefixKeys {
    /// The name of the empty one.
    scope: ChainKey,
    /// The first unit, and its element.
    start: usize,
    first: usize,
    /// The name of each, from the shortest on.
    names: Vec<ChainKey>,
    /// Before which units those end of which something is remembered, and what.
    known: Vec<(usize, SummaryState)>,
    /// The longest one that there is a summary of, if that has to be loaded.
    pub(super) load: Option<ChainKey>,
    applied: Option<AppliedSummary>,
}

/// A summary, and the units that it stands for.
#[derive(Clone, Debug)]
pub struct AppliedSummary {
    /// The units, and which of them stay beside the summary.
    pub fold: Fold,
    /// What stands for the others.
    pub summary: Arc<Summary>,
}

/// How many messages behind the instructions make a conversation's root: the second is the model's first answer.
const ROOT: usize = 2;

impl PrefixKeys {
    /// Those of a conversation as it came. `scope` sets apart what is remembered of the same messages.
    pub fn of(request: ParsedRequest<'_>, context: &PlanContext<'_>, scope: &[u8]) -> Self {
        let ParsedRequest { dialect, body, conversation } = request;
        let start = conversation.n_leading();
        let first = conversation.units.get(start).map_or(conversation.elements.len(), |unit| unit.element);
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
        prefix_keys.find(conversation);
        prefix_keys
    }

    /// The name of the empty one, which they have in common with all of the same caller, model and settings.
    pub fn scope(&self) -> ChainKey {
        self.scope
    }

    /// The name behind the second message; none if there is none.
    pub fn root(&self) -> Option<ChainKey> {
        self.names.get(ROOT - 1).copied()
    }

    /// The root of a conversation, without the names of its other beginnings.
    pub fn root_of(request: ParsedRequest<'_>, context: &PlanContext<'_>, scope: &[u8]) -> Option<ChainKey> {
        let ParsedRequest { dialect, body, conversation } = request;
        let first = conversation.units.get(conversation.n_leading())?.element;
        let elements = conversation.elements.get(first..first + ROOT)?;
        let mut chain = context.keys.chain(context.caller, scope);
        for element in elements {
            chain.push(conversation.element_fingerprint(element, body), || dialect.canonical(element.span.of(body)));
        }
        Some(chain.at())
    }

    /// The name of the one that ends before an element.
    pub fn name(&self, end: usize) -> Option<ChainKey> {
        self.names.get(end.checked_sub(self.first + 1)?).copied()
    }

    /// The longest one that there is a summary of.
    pub fn applied(&self) -> Option<&AppliedSummary> {
        self.applied.as_ref()
    }

    /// What is remembered of those that are longer than what is summarised, from the longest on: where they end, and what.
    pub fn longer(&self) -> impl Iterator<Item = (usize, &SummaryState)> {
        let summarised = self.applied.as_ref().map_or(self.start, |applied| applied.fold.units.end);
        self.known.iter().rev().map(|(end, known)| (*end, known)).take_while(move |(end, _)| *end > summarised)
    }

    /// Finds the longest summary that leaves what the model has not read.
    fn find(&mut self, conversation: &Conversation<'_>) {
        if !self.known.iter().any(|(_, known)| matches!(known, SummaryState::Summary(_) | SummaryState::Stored)) {
            return;
        }
        let most = unread_from(conversation.turn_units());
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
                self.load = self.name(conversation.elements_of(0..*end).end);
            }
        }
    }
}
