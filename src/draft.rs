//! The working copy that edits write on.
//!
//! A draft holds decisions, not bytes: which messages and calls leave, which values inside messages are replaced, and
//! what follows which place. It keeps what must hold whatever an edit asks for, so that no edit has to:
//!
//! - leading `system` and `developer` messages are not touched;
//! - a call is removed together with its result, or not at all;
//! - what the model has not read yet, the results after its last message, is neither cleared nor left out with its call;
//! - what is put in place of something is smaller than that, in tokens, unless the edit is told otherwise;
//! - what is said to be stored is among the plan's offloads, and is not taken out where it cannot be stored;
//! - of two edits that claim one message the first has it, except that a truncated result may still be cleared, and that a
//!   result without a call leaves whatever was written on it.
//!
//! [`Draft::finish`] turns the decisions into splices.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;

use crate::conversation::index::Index;
use crate::conversation::{BlockIndex, BlockKind, Conversation, ElementIndex, Pairing, Unit, UnitIndex};
use crate::dialect::{BytesAt, Dialect, Entries, Form, Switch, strings};
use crate::language::Language;
use crate::payload::{ChainKey, PayloadName};
use crate::plan::{Need, Report, SkipReason};
use crate::recall::{self, RetrievalMethod};
use crate::span::Span;
use crate::tokens::Gauge;

mod added_tool;
mod asks;
mod context;
mod finish;
mod forms;
mod insertion;
mod journal;
mod measure;
mod placement;
mod prefix_keys;
pub mod reasoning;
mod replace;
mod round_trip;
mod rows;
pub mod sent;
mod source_text;
mod timeline;
mod truncation_cache;

use context::ColdPassesFound;
use insertion::{Inserted, Insertion};
use journal::{ChangeId, Journal};
use replace::Replacement;

pub use asks::Question;
pub use context::{Calibration, ColdPasses, FactorIndex, LookUp, Offload, PlanContext, SummaryTiming};
pub use prefix_keys::{AppliedSummary, PrefixKeys, conversation_name};
pub use reasoning::{EndedTurns, ReasoningMode};
pub use replace::{NotApplicable, ProposedEdit, ReplaceOptions};
pub use rows::{Row, RowElement};
pub use sent::{Replayed, Sent, SentIndex};
pub use source_text::{ResultText, TextCut};
pub use timeline::{RowIndex, Tally, TimelineEvent};
pub use truncation_cache::TruncationCache;

/// An edit that changes what earlier requests had. Not every conversation may be given one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pass {
    /// Calls and their results are left out.
    Filter,
    /// Results are cleared.
    Clear,
    /// A summary is made.
    Summarize,
}

/// The label of an edit, as reports name it.
pub type Label = &'static str;

/// A request body with what a dialect has parsed from it.
#[derive(Clone, Copy, Debug)]
pub struct ParsedRequest<'a> {
    /// The dialect that the body is in.
    pub dialect: &'a dyn Dialect,
    /// The body.
    pub body: &'a Bytes,
    /// The conversation in it.
    pub conversation: &'a Conversation<'a>,
}

/// One request while edits write on it.
#[derive(Debug)]
pub struct Draft<'a> {
    dialect: &'a dyn Dialect,
    /// The body, as it came.
    pub(crate) body: &'a Bytes,
    /// The input of the edits, as it came.
    pub(crate) conversation: &'a Conversation<'a>,
    pub(crate) context: PlanContext<'a>,
    recall: &'a recall::Settings,
    language: Language,
    /// The first unit that edits may touch.
    pub(crate) first_editable: UnitIndex,
    /// The units of the last turn of the model; results after it have not been read.
    last_answer: Option<Range<UnitIndex>>,

    /// For each unit, whether it is still in its place.
    in_place: Vec<bool>,
    /// Whether units may leave it.
    pub(crate) leaving: Leaving,
    /// The results that have been put behind units, in the order of the decisions.
    insertions: Vec<Insertion>,
    /// The units after which texts of the user are inserted.
    texts: BTreeSet<UnitIndex>,
    /// The units that are among what was added.
    moved: BTreeSet<UnitIndex>,
    /// The calls that leave, by their blocks.
    dropped_calls: BTreeSet<BlockIndex>,
    /// For units that a call has left: how many of their calls have not.
    batches: BTreeMap<UnitIndex, usize>,
    /// The treatment of reasoning that is bound to its prefix, and the member that has the upstream drop it.
    reasoning: ReasoningMode,
    drops: Option<Switch>,
    /// The treatment of the reasoning of ended turns when results are cleared.
    ended_turns: EndedTurns,
    /// The forms that the upstream requires.
    pub forms: Vec<Form>,
    /// The last model call before which what was sent has changed.
    prefix_changed: UnitIndex,
    /// The changes outside the messages.
    beside: Vec<BytesAt>,
    /// Whether calls of the model control clearing.
    pub(crate) offers_control: bool,
    /// The units that entries with reasoning have left.
    stripped: BTreeSet<UnitIndex>,
    /// The texts of the reasoning of ended turns that was left out.
    ended_reasoning: Vec<(Span, PayloadName)>,
    /// The rows that were dropped with their calls, by the first model call without them.
    dropped_rows: BTreeMap<UnitIndex, Vec<Row>>,
    /// The results that no request has had, as they answer no call, and what of each is stored.
    orphans: BTreeMap<UnitIndex, Vec<(Span, PayloadName)>>,
    /// The values that are replaced, by where they begin.
    replacements: BTreeMap<usize, Replacement>,
    /// The decisions.
    journal: Journal,
    /// The fields of the report that edits set.
    pub(crate) report: Report,
    /// No fewer bytes than the body has now, and so no fewer tokens.
    pub(crate) n_bytes: usize,
    /// The bytes of what earlier requests had and this one has not.
    n_bytes_removed: usize,
    /// The missing input of a better plan.
    pub(crate) need: Option<Need>,
    /// The name under which other processes know the summaries of the conversation, if that is to be looked up.
    pub(crate) root: Option<ChainKey>,

    /// The conversation as it came, where a summary replaces messages of it.
    whole: &'a Conversation<'a>,
    known: Known<'a>,
}

/// The results of look-ups and counts, and the questions that these leave open.
#[derive(Debug, Default)]
struct Known<'a> {
    /// The passes that were made because the prompt cache had expired.
    cold: ColdPassesFound,
    /// The facts about earlier requests.
    sent: sent::SentFound,
    /// The questions to handlers.
    asks: RefCell<asks::Asks>,
    /// The arrays inside of elements that were asked for, by element.
    entries: RefCell<BTreeMap<ElementIndex, Option<Rc<Entries>>>>,
    /// The turns that leave as a whole or not at all.
    bound_turns: OnceCell<BTreeSet<usize>>,
    /// The units that no result is moved across.
    barriers: OnceCell<Vec<UnitIndex>>,
    /// The units of the model, for those that ask.
    of_model: OnceCell<Vec<UnitIndex>>,
    prefix_keys: OnceCell<PrefixKeys>,
    pairing: OnceCell<Rc<Pairing>>,
    gauge: OnceCell<Gauge>,
    /// The model's window, if it was asked for.
    window: OnceCell<Option<usize>>,
    counts: OnceCell<measure::Counts>,
    /// Of messages that were counted as they are now, which is not as they came.
    tokens_now: RefCell<BTreeMap<UnitIndex, usize>>,
    retrieval_method: OnceCell<RetrievalMethod<'a>>,
}

/// A result that is put after a unit, in the order of the decisions.
pub type InsertionIndex = Index<4>;

/// Whether a draft may take units out of their places.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Leaving {
    /// As edits and the rules of the dialect say.
    Allowed,
    /// Nothing leaves: what edits do to texts, and what they put in, is all that changes.
    Forbidden,
}

impl<'a> ParsedRequest<'a> {
    /// The JSON of the call that is a block; none if it is not a call.
    pub fn call(&self, call: BlockIndex) -> Option<Span> {
        let block = self.conversation.block(call)?;
        matches!(block.kind, BlockKind::ToolCall { .. }).then_some(block.span)
    }

    /// The arguments of the call that is a block, as the model has written them; none if it is not a call, or has none.
    pub fn arguments(&self, call: BlockIndex) -> Option<Cow<'a, str>> {
        strings::text_or_json(self.body, self.dialect.input(self.body, self.call(call)?)?.span)
    }

    /// The places of the texts of a unit.
    pub fn texts(&self, unit: &Unit) -> Vec<Span> {
        unit.content.map(|content| self.dialect.texts(self.body, content)).unwrap_or_default()
    }

    /// All texts of a unit; none if it has none.
    pub fn text(&self, unit: &Unit) -> Option<Cow<'a, str>> {
        let texts = self.texts(unit).into_iter().filter_map(|span| strings::text(self.body, span));
        let mut texts: Vec<_> = texts.collect();
        if texts.len() > 1 { Some(texts.join("\n").into()) } else { texts.pop() }
    }
}

impl<'a> Draft<'a> {
    /// The draft of one request. `recall` and `language` decide how texts say where the rest is.
    pub fn new(
        request: ParsedRequest<'a>,
        context: &PlanContext<'a>,
        recall: &'a recall::Settings,
        language: Language,
    ) -> Self {
        let ParsedRequest { dialect, body, conversation } = request;
        Self {
            dialect,
            body,
            conversation,
            context: *context,
            recall,
            language,
            first_editable: conversation.first_editable(),
            last_answer: conversation.last_answer(),
            in_place: vec![true; conversation.units.len()],
            insertions: Vec::new(),
            leaving: Leaving::Allowed,
            texts: BTreeSet::new(),
            moved: BTreeSet::new(),
            dropped_calls: BTreeSet::new(),
            batches: BTreeMap::new(),
            reasoning: ReasoningMode::Keep,
            drops: None,
            ended_turns: EndedTurns::Keep,
            forms: Vec::new(),
            prefix_changed: UnitIndex::default(),
            beside: Vec::new(),
            offers_control: false,
            stripped: BTreeSet::new(),
            ended_reasoning: Vec::new(),
            dropped_rows: BTreeMap::new(),
            orphans: BTreeMap::new(),
            replacements: BTreeMap::new(),
            journal: Journal::default(),
            report: Report::default(),
            n_bytes: body.len(),
            n_bytes_removed: 0,
            need: None,
            root: None,
            whole: conversation,
            known: Known::default(),
        }
    }

    // === what edits read ===

    /// The request as the edits see it: a summary may be in the place of messages.
    pub fn request(&self) -> ParsedRequest<'a> {
        let &Self { dialect, body, conversation, .. } = self;
        ParsedRequest { dialect, body, conversation }
    }

    /// The tool that a call is of; empty if it names none, or there is no call.
    pub fn tool_of(&self, call: Option<BlockIndex>) -> &'a str {
        call.map_or("", |call| self.conversation.tool_name(call))
    }

    /// Which result answers which call, as it came.
    pub fn pairing(&self) -> Rc<Pairing> {
        Rc::clone(self.known.pairing.get_or_init(|| {
            let mut pairing = Pairing::of(self.conversation);
            self.note_answers_in_words(&mut pairing);
            Rc::new(pairing)
        }))
    }

    /// The most messages that there can be, as the edits so far have left them.
    pub fn n_messages_at_most(&self) -> usize {
        self.conversation.elements.len() + self.insertions.len()
    }

    /// Whether the model has not read a unit yet: it follows the last turn of the model.
    pub fn is_unread(&self, unit: UnitIndex) -> bool {
        self.last_answer.as_ref().is_none_or(|last| unit >= last.end)
    }

    /// Whether a unit is in the last turn of the model.
    pub(super) fn is_in_last_answer(&self, unit: UnitIndex) -> bool {
        self.last_answer.as_ref().is_some_and(|last| last.contains(&unit))
    }

    /// Has edits change texts alone, and none of the first `n_frozen` messages: nothing leaves its place.
    pub fn edit_in_place(&mut self, n_frozen: usize) {
        let units = self.conversation.indexed_units();
        let frozen = units.filter(|(_, unit)| unit.element.get() < n_frozen).last().map(|(index, _)| index.next());
        self.first_editable = self.first_editable.max(frozen.unwrap_or_default());
        self.leaving = Leaving::Forbidden;
    }

    // === what edits decide about whole messages and calls ===

    /// Leaves a result out that answers no call, and with it what was written on it: no upstream takes it in any form. Its
    /// payloads are stored if there is a store. False if the message is not to be touched.
    pub fn drop_result(&mut self, edit: Label, unit: UnitIndex) -> bool {
        if self.leaving == Leaving::Forbidden || !self.take_out_of_place(edit, unit) {
            return false;
        }
        self.undo_replacements(unit);
        let is_stored = self.context.offload == Offload::Possible;
        let said = if is_stored { self.payloads_of(unit) } else { Vec::new() };
        self.orphans.insert(unit, said);
        self.record_drop(edit, unit);
        true
    }

    /// Why an edit is not to be made, if it is not.
    pub fn skip_reason(&self, pass: Pass) -> Option<SkipReason> {
        let traits = self.conversation.traits;
        match pass {
            _ if self.reasoning == ReasoningMode::Withhold && !self.summarises_all() && !self.has_sent_pass(pass) => {
                Some(SkipReason::PrefixBound)
            }
            _ if traits.history_elsewhere => Some(SkipReason::HistoryElsewhere),
            Pass::Clear if traits.clears_itself => Some(SkipReason::ServerClears),
            Pass::Summarize if traits.compacts_itself => Some(SkipReason::ServerCompacts),
            _ => None,
        }
    }

    // === helpers ===

    fn unit(&self, unit: UnitIndex) -> Option<&'a Unit> {
        self.conversation.unit(unit)
    }

    fn span(&self, unit: UnitIndex) -> Span {
        self.unit(unit).map(|unit| unit.span).unwrap_or_default()
    }

    /// Takes a unit out of its place, if it is still there and may leave.
    fn take(&mut self, unit: UnitIndex) -> bool {
        self.may_leave(unit) && self.in_place.get_mut(unit.get()).is_some_and(std::mem::take)
    }

    /// Whether a unit is still in its place.
    fn is_in_place(&self, unit: UnitIndex) -> bool {
        self.in_place.get(unit.get()).copied().unwrap_or_default()
    }

    /// Whether a unit can be taken out: it is not an instruction at the beginning, and an element, or an entry of an array that
    /// can be edited.
    fn may_leave(&self, unit: UnitIndex) -> bool {
        let is_element = |unit: &Unit| self.conversation.is_element(unit) || self.entries(unit.element).is_some();
        unit >= self.first_editable && self.unit(unit).is_some_and(is_element)
    }

    /// The array inside an element, if it can be edited.
    fn entries(&self, element: ElementIndex) -> Option<Rc<Entries>> {
        let read = || self.dialect.entries(self.body, self.conversation.element(element)?.span).map(Rc::new);
        self.known.entries.borrow_mut().entry(element).or_insert_with(read).clone()
    }

    /// The call that a unit is, and not just has.
    fn call_that_is(&self, unit: UnitIndex) -> Option<BlockIndex> {
        let call = self.conversation.block_range(unit..unit.next()).next()?;
        (self.request().call(call)? == self.span(unit)).then_some(call)
    }
}

#[cfg(test)]
mod tests;
