//! Facts about earlier requests: the passes they had, where reasoning was left out, and the form they were sent in.
//!
//! A client resends its originals, so its messages do not show the bytes that the upstream has read. Bound reasoning is valid
//! after exactly those bytes. When facts about earlier requests are known:
//!
//! - a pass that was made is made again at the same model call, whatever the settings are now;
//! - with bound reasoning, no pass is made at an earlier model call at which none was;
//! - reasoning stays only if all before it is in the form in which it was sent. Otherwise all reasoning so far leaves, once.
//!
//! Each fact is a name: of the messages before a model call as the client sends them, and of what was done there. A fact is
//! stored by its name alone. A request that was sent as it came has none.

use std::cell::OnceCell;
use std::fmt::Debug;

use strum::VariantArray as _;

use super::{Draft, LookUp, Pass, PrefixKeys, ReasoningMode};
use crate::conversation::{ElementIndex, Unit, UnitIndex};
use crate::payload::ChainKey;
use crate::plan::{Basis, SentFact, SentFacts, SentNames};
use crate::recall::own_tools::is_added;
use crate::span::{Span, Splice};

/// The facts about earlier requests.
#[derive(Clone, Copy, Debug)]
pub enum Sent<'a> {
    /// They were sent by the present settings, so replay finds what was done.
    Assumed,
    /// They are remembered.
    Remembered(&'a dyn SentIndex),
    /// They are those of the recording.
    Recorded(&'a SentFacts),
}

/// The names of what was sent, and of where passes were made because the prompt cache had expired.
pub trait SentIndex: Debug + Sync {
    /// Whether nothing is remembered of any conversation.
    fn is_empty(&self) -> bool;

    /// Whether other processes remember more.
    fn is_shared(&self) -> bool;

    /// Whether this name is remembered.
    fn has(&self, name: ChainKey) -> bool;
}

/// The decision about a pass at a model call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Replayed {
    /// The rules of the edit decide.
    ByRule,
    /// The pass that was made there.
    Made(SentFact),
    /// Nothing: the request was sent without a pass.
    NotMade,
}

/// The facts that a draft finds and adds.
#[derive(Debug, Default)]
pub(super) struct SentFound {
    facts: OnceCell<Vec<FoundFact>>,
    /// The names of all beginnings.
    names: OnceCell<PrefixKeys>,
    new: Vec<(UnitIndex, SentFact)>,
    /// Whether there is any reasoning.
    thinks: bool,
    /// Whether all reasoning so far leaves.
    pub(super) strips_now: bool,
}

#[derive(Clone, Copy, Debug)]
struct FoundFact {
    n_elements: usize,
    model_call: UnitIndex,
    fact: SentFact,
}

/// Sets these names apart from those of summaries.
const SCOPE: &[u8] = b"sent of ";

/// The names for a conversation of which something is known, and for a request in which something was done or that was edited.
const ANY: &str = "any";
const EDITED: &str = "edited";

// === what edits read ===

impl Draft<'_> {
    /// The decision about a pass at a model call.
    pub fn replayed(&self, pass: Pass, model_call: UnitIndex) -> Replayed {
        let is_of = |fact: SentFact| match pass {
            Pass::Filter => fact == SentFact::Filtered,
            Pass::Clear => matches!(fact, SentFact::Cleared | SentFact::ClearedAll),
            Pass::Summarize => false,
        };
        let here = self.sent_facts().iter().filter(|found| found.model_call == model_call && is_of(found.fact));
        match here.map(|found| found.fact).next_back() {
            Some(fact) => Replayed::Made(fact),
            None if self.sent_index_is_used() && self.reasoning == ReasoningMode::Withhold => Replayed::NotMade,
            None if self.repeats_passes() && !self.is_now(model_call) => Replayed::NotMade,
            None => Replayed::ByRule,
        }
    }

    /// Whether passes of this kind were made in earlier requests.
    pub fn has_sent_pass(&self, pass: Pass) -> bool {
        self.sent_facts().iter().any(|found| matches!(self.replayed(pass, found.model_call), Replayed::Made(_)))
    }

    /// Whether earlier model calls have the passes that were made there and no others.
    pub fn repeats_passes(&self) -> bool {
        self.sent_index_is_used() && self.keeps_bound() && self.known.sent.thinks && !self.known.sent.strips_now
    }

    /// Whether reasoning is bound to the messages before it.
    pub fn is_bound(&self) -> bool {
        self.reasoning != ReasoningMode::Keep
    }

    /// Notes a pass at a model call that has changed something.
    pub fn pass_made(&mut self, fact: SentFact, model_call: UnitIndex) {
        let is_new = self.is_now(model_call) || self.known.sent.strips_now;
        if !self.repeats_passes() || is_new {
            self.prefix_changes(model_call);
        }
        let is_noted = self.keeps_bound() || fact != SentFact::Filtered;
        if self.sent_index_is_used() && is_new && is_noted {
            self.known.sent.new.push((model_call, fact));
        }
    }

    // === for the other parts of the draft ===

    /// Sets what is known of the reasoning in earlier requests, once it is known what becomes of bound reasoning.
    pub(super) fn bind_to_sent(&mut self, strips_now: bool) {
        self.known.sent.thinks = self.is_bound() && self.conversation.units.iter().any(|unit| unit.flags.thinks);
        self.known.sent.strips_now = strips_now && self.is_bound() && self.sent_index_is_used();
        if self.known.sent.strips_now {
            self.prefix_changes(self.conversation.next_unit());
        } else if self.repeats_passes() {
            let stripped = self.sent_facts().iter().filter(|found| found.fact == SentFact::Stripped);
            self.prefix_changed = stripped.map(|found| found.model_call).max().unwrap_or_default();
        }
    }

    /// The model calls that are known to have been sent, answered or not.
    pub(super) fn sent_calls(&self) -> impl Iterator<Item = UnitIndex> {
        self.sent_facts().iter().map(|found| found.model_call)
    }

    /// The facts about earlier requests that the plan depends on, and those to remember of this one, whose array these splices
    /// change.
    pub(super) fn note_sent(&mut self, splices: &[Splice], adds_tool: bool) -> Basis {
        let mut noted = Basis::default();
        if !self.sent_index_is_used() {
            return noted;
        }
        let facts = self.sent_facts().iter().map(|found| (found.n_elements, found.fact)).collect();
        let is_known = self.is_bound() || !self.sent_facts().is_empty();
        noted.sent = SentFacts { facts, is_known, strips_now: self.known.sent.strips_now };
        let Sent::Remembered(index) = self.context.sent else { return noted };
        if self.keeps_bound() && self.prefix_changed == self.conversation.next_unit() {
            self.known.sent.new.push((self.prefix_changed, SentFact::Stripped));
        }
        noted.asks_what_was_sent = self.known.sent.thinks || !self.known.sent.new.is_empty();
        let looks_up = noted.asks_what_was_sent && self.context.look_up == LookUp::Pending;
        noted.sent_root = if looks_up { self.root_of(SCOPE) } else { None };
        let passes = self.known.sent.new.iter().filter_map(|(model_call, fact)| self.fact_names(*model_call, *fact));
        noted.sent_passes = self.new_names(index, passes.flatten());
        if !self.is_bound() {
            return noted;
        }
        let end = self.whole.elements.len();
        if let Some(form) = self.form(splices, adds_tool, end) {
            let names = self.beginning(end).map(|beginning| self.form_names(beginning, form));
            noted.sent_form = self.new_names(index, names.into_iter().flatten());
        }
        let call = self.bound_call().filter(|_| !self.known.sent.strips_now);
        noted.is_unknown_form = call.is_some_and(|call| {
            let n_elements = self.original_element(call);
            let form = self.form(splices, adds_tool, n_elements);
            if form.is_none() && index.is_empty() {
                return false;
            }
            let Some(beginning) = self.beginning(n_elements) else { return form.is_some() };
            let [edited, exactly] = self.form_names(beginning, form.unwrap_or(beginning));
            if form.is_some() { !index.has(exactly) } else { index.has(edited) }
        });
        noted
    }

    // === helpers ===

    /// Whether passes of earlier requests are remembered.
    pub fn sent_index_is_used(&self) -> bool {
        match self.context.sent {
            Sent::Assumed => false,
            // Other processes are asked for what they know where reasoning depends on it.
            Sent::Remembered(index) => self.is_bound() || !index.is_shared(),
            Sent::Recorded(_) => true,
        }
    }

    /// Whether reasoning is bound and the upstream does not drop it itself.
    fn keeps_bound(&self) -> bool {
        matches!(self.reasoning, ReasoningMode::Strip | ReasoningMode::Withhold)
    }

    fn is_now(&self, model_call: UnitIndex) -> bool {
        model_call == self.conversation.next_unit()
    }

    fn sent_facts(&self) -> &[FoundFact] {
        self.known.sent.facts.get_or_init(|| {
            let facts = match self.context.sent {
                Sent::Recorded(recorded) => recorded.facts.clone(),
                Sent::Remembered(index) if self.sent_index_is_used() => self.remembered_facts(index),
                _ => Vec::new(),
            };
            let summarised = self.applied().map_or(UnitIndex::default(), |applied| applied.fold.units.end);
            let found = facts.into_iter().map(|(n_elements, fact)| {
                let unit = self.whole.first_unit(ElementIndex::new(n_elements));
                (unit >= summarised).then(|| FoundFact { n_elements, model_call: self.view_unit(unit), fact })
            });
            found.flatten().collect()
        })
    }

    fn remembered_facts(&self, index: &dyn SentIndex) -> Vec<(usize, SentFact)> {
        if index.is_empty() || !self.root_of(SCOPE).is_some_and(|root| index.has(self.fact_name(root, ANY))) {
            return Vec::new();
        }
        let places = (0..=self.whole.elements.len()).filter_map(|end| Some((end, self.beginning(end)?)));
        let places = places.filter(|(_, beginning)| index.has(self.fact_name(*beginning, ANY)));
        let facts = places.flat_map(|(end, beginning)| {
            let is_here = move |fact: &&SentFact| index.has(self.fact_name(beginning, (*fact).into()));
            SentFact::VARIANTS.iter().filter(is_here).map(move |fact| (end, *fact))
        });
        facts.collect()
    }

    /// The units whose reasoning stays.
    fn bound_units(&self) -> impl DoubleEndedIterator<Item = (UnitIndex, &Unit)> {
        let units = UnitIndex::each(&(self.prefix_changed..self.conversation.next_unit()));
        let units = units.filter_map(|index| Some((index, self.unit(index)?)));
        units.filter(|(index, unit)| unit.flags.thinks && self.is_in_place(*index) && !self.stripped.contains(index))
    }

    /// The place of the last model call whose reasoning stays.
    fn bound_call(&self) -> Option<UnitIndex> {
        let (last, _) = self.bound_units().next_back()?;
        let calls = self.conversation.model_calls();
        let mut at = calls.partition_point(|call| *call <= last).checked_sub(1)?;
        // Where abridge itself has answered a call, it has sent the rest of the request as it was.
        while let Some((before, call)) = at.checked_sub(1).and_then(|n| Some((*calls.get(n)?, *calls.get(at)?)))
            && self.calls_own_tool(before, call)
        {
            at -= 1;
        }
        calls.get(at).copied()
    }

    fn calls_own_tool(&self, from: UnitIndex, to: UnitIndex) -> bool {
        let blocks = self.conversation.block_range(from..to);
        let mut calls = blocks.filter(|block| self.request().call(*block).is_some()).peekable();
        calls.peek().is_some() && calls.all(|call| is_added(self.conversation.tool_name(call)))
    }

    /// The form in which the first elements are sent, `None` if they are sent as they came. It leaves out members that a model
    /// does not read, and the tools and instructions of the client.
    fn form(&self, splices: &[Splice], adds_tool: bool, n_elements: usize) -> Option<ChainKey> {
        let elements = &self.whole.elements;
        let end = elements.get(n_elements).map_or(usize::MAX, |next| next.span.start);
        let tools: &[&[u8]] = if self.offers_control { &[b"tool", b"control"] } else { &[b"tool"] };
        let mut form = adds_tool.then(|| self.sent_key(tools));
        let mut add = |parts: &[&[u8]]| form = Some(self.form_and(form, parts));
        let mut rest = splices.iter().take_while(|splice| splice.span.start < end).peekable();
        while let Some(splice) = rest.next() {
            let at = elements.partition_point(|element| element.span.end <= splice.span.start);
            let number = at.to_le_bytes();
            let inside = |splice: &Splice, of: Span| splice.span.start > of.start && splice.span.end < of.end;
            let element = elements.get(at).map(|element| element.span).filter(|of| inside(splice, *of));
            if let Some(of) = element {
                let mut changes = vec![splice.clone()];
                changes.extend(std::iter::from_fn(|| rest.next_if(|next| inside(next, of)).cloned()));
                let (dialect, edited) = (self.dialect, self.spliced(of, &changes));
                let (edited, came) = (dialect.canonical(&edited).concat(), dialect.canonical(of.of(self.body)));
                if edited != came.concat() {
                    add(&[b"edited", &number, &edited]);
                }
                continue;
            }
            let gone = elements.iter().enumerate().skip(at);
            let gone = gone.take_while(|(_, element)| element.span.end <= splice.span.end);
            for (n, element) in gone {
                let units = self.whole.unit_range(&element.units);
                if !units.iter().all(|unit| unit.flags.thinks && !unit.flags.speaks && unit.blocks.is_empty()) {
                    add(&[b"gone", &n.to_le_bytes()]);
                }
            }
            let put = splice.with.trim_ascii();
            let put = put.strip_prefix(b",").unwrap_or(put);
            let put = put.strip_suffix(b",").unwrap_or(put);
            if !put.is_empty() {
                add(&[b"put", &number, put]);
            }
        }
        // Where something was edited, the reasoning that stays tells this conversation from one that only says the same.
        if form.is_some() {
            for (_, unit) in self.bound_units().filter(|(_, unit)| unit.span.start < end) {
                let reasoning = self.entries(unit.element).map_or(vec![unit.span], |of| of.reasoning.clone());
                for reasoning in reasoning {
                    form = Some(self.form_and(form, &[b"reasoning", reasoning.of(self.body)]));
                }
            }
        }
        form
    }

    fn form_and(&self, form: Option<ChainKey>, parts: &[&[u8]]) -> ChainKey {
        let before = form.map(|form| *form.as_bytes()).unwrap_or_default();
        self.sent_key(&[&[before.as_slice()], parts].concat())
    }

    fn sent_key(&self, parts: &[&[u8]]) -> ChainKey {
        self.context.keys.answer(self.context.caller, &[&[b"sent".as_slice()], parts].concat())
    }

    fn fact_name(&self, beginning: ChainKey, tag: &str) -> ChainKey {
        self.sent_key(&[beginning.as_bytes(), tag.as_bytes(), &[]])
    }

    fn form_names(&self, beginning: ChainKey, form: ChainKey) -> [ChainKey; 2] {
        let exactly = self.sent_key(&[beginning.as_bytes(), EDITED.as_bytes(), form.as_bytes()]);
        [self.fact_name(beginning, EDITED), exactly]
    }

    /// The names of what was done at a model call.
    fn fact_names(&self, model_call: UnitIndex, fact: SentFact) -> Option<[ChainKey; 2]> {
        let beginning = self.beginning(self.original_element(model_call))?;
        Some([ANY, fact.into()].map(|tag| self.fact_name(beginning, tag)))
    }

    /// Those of some names that are to be stored, with the one that says that something is known of the conversation.
    fn new_names(&self, index: &dyn SentIndex, names: impl Iterator<Item = ChainKey>) -> SentNames {
        let mut names: Vec<_> = names.filter(|name| !index.has(*name)).collect();
        // The first request of a conversation has no root yet.
        let root = || self.root_of(SCOPE).or_else(|| self.beginning(self.whole.elements.len()));
        let Some(root) = (if names.is_empty() { None } else { root() }) else { return SentNames::default() };
        names.push(self.fact_name(root, ANY));
        SentNames { root: Some(root), names }
    }

    fn beginning(&self, n_elements: usize) -> Option<ChainKey> {
        self.known.sent.names.get_or_init(|| self.names_of(SCOPE)).name(ElementIndex::new(n_elements))
    }
}
