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

use crate::conversation::index::index;
use crate::conversation::{BlockIndex, BlockKind, Conversation, ElementIndex, Pairing, Unit, UnitIndex};
use crate::dialect::{BytesAt, Dialect, Entries, Form, Switch};
use crate::language::Language;
use crate::payload::{ChainKey, PayloadName};
use crate::plan::{Action, Change, Need, Report, Sizes, SkipReason};
use crate::recall::{self, RetrievalMethod};
use crate::span::Span;
use crate::tokens::Gauge;

mod added_tool;
mod answered_in_words;
mod asks;
mod calibration;
mod cold_passes;
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
mod replacement;
mod round_trip;
mod rows;
pub mod sent;
mod source_text;
mod splice_array;
mod summary_view;
mod tally;
mod timeline;
mod truncation_cache;

use cold_passes::ColdPassesFound;
use insertion::{Inserted, Insertion};
use journal::{ChangeId, Journal};
use replacement::Replacement;

pub use asks::Question;
pub use calibration::{Calibration, FactorIndex};
pub use cold_passes::{ColdPassIndex, ColdPasses};
pub use context::{LookUp, Offload, PlanContext, SummaryTiming};
pub use prefix_keys::{AppliedSummary, CONVERSATIONS, PrefixKeys, conversation_name};
pub use reasoning::{EndedTurns, ReasoningMode};
pub use replace::{NotApplicable, ProposedEdit, ReplaceOptions};
pub use rows::{Row, RowElement};
pub use sent::{Replayed, Sent, SentIndex};
pub use source_text::{ResultText, TextCut};
pub use tally::Tally;
pub use timeline::{RowIndex, TimelineEvent};
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

/// A request body with what a dialect has parsed from it.
#[derive(Clone, Copy, Debug)]
pub struct ParsedRequest<'a> {
    /// Who has read it.
    pub dialect: &'a dyn Dialect,
    /// What was read.
    pub body: &'a Bytes,
    /// The conversation in it.
    pub conversation: &'a Conversation<'a>,
}

/// One request while edits write on it.
#[derive(Debug)]
pub struct Draft<'a> {
    request: ParsedRequest<'a>,
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
    /// The placeholders of late results that are not moved.
    stood: BTreeMap<UnitIndex, InsertionIndex>,
    /// The units after which texts of the user are inserted.
    texts: BTreeSet<UnitIndex>,
    /// The units that are among what was added.
    moved: BTreeSet<UnitIndex>,
    /// The calls that leave, by their blocks.
    dropped_calls: BTreeSet<BlockIndex>,
    /// For units that a call has left: how many of their calls have not.
    batches: BTreeMap<UnitIndex, usize>,
    /// The arrays inside of elements that were asked for, by element.
    entries: RefCell<BTreeMap<ElementIndex, Option<Rc<Entries>>>>,
    /// The turns that leave as a whole or not at all.
    bound_turns: OnceCell<BTreeSet<usize>>,
    /// The units that no result is moved across.
    barriers: OnceCell<Vec<UnitIndex>>,
    /// What becomes of reasoning that is bound to its prefix, and what has the upstream drop it.
    reasoning: ReasoningMode,
    drops: Option<Switch>,
    /// What becomes of the reasoning of ended turns when results are cleared.
    ended_turns: EndedTurns,
    /// The forms that the upstream requires.
    pub forms: Vec<Form>,
    /// The last model call before which what was sent has changed.
    prefix_changed: UnitIndex,
    /// The mark that is added to ask for the prompt cache.
    cache_request: Option<BytesAt>,
    /// Whether the model controls clearing.
    offers_control: bool,
    /// The units of the model, for those that ask.
    of_model: OnceCell<Vec<UnitIndex>>,
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
    /// No fewer bytes than the body has now.
    n_bytes: usize,
    /// The bytes of what earlier requests had and this one has not.
    n_bytes_removed: usize,
    /// The missing input of a better plan.
    pub(crate) need: Option<Need>,
    /// The name under which other processes know the summaries of the conversation, if that is to be looked up.
    pub(crate) root: Option<ChainKey>,
    /// The passes that were made because the prompt cache had expired.
    cold: ColdPassesFound,
    /// The facts about earlier requests.
    sent: sent::SentFound,
    /// What handlers have to be asked for one.
    asks: RefCell<asks::Asks>,

    /// The conversation as it came, where a summary replaces messages of it.
    whole: &'a Conversation<'a>,
    /// The messages that a summary has replaced already, besides those that it replaces now.
    hidden: Vec<Span>,
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

index! {
    /// A result that is put after a unit, in the order of the decisions.
    InsertionIndex
}

/// Whether a draft may take units out of their places.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Leaving {
    /// As edits and the rules of the dialect say.
    Allowed,
    /// Results without a call leave, which no server takes, and nothing else.
    Orphans,
    /// Nothing leaves: what edits do to texts, and what they put in, is all that changes.
    Forbidden,
}

impl<'a> Draft<'a> {
    /// The draft of one request. `recall` and `language` decide how texts say where the rest is.
    pub fn new(
        request: ParsedRequest<'a>,
        context: &PlanContext<'a>,
        recall: &'a recall::Settings,
        language: Language,
    ) -> Self {
        let conversation = request.conversation;
        Self {
            request,
            context: *context,
            recall,
            language,
            first_editable: conversation.first_editable(),
            last_answer: conversation.last_answer(),
            in_place: vec![true; conversation.units.len()],
            insertions: Vec::new(),
            leaving: Leaving::Allowed,
            stood: BTreeMap::new(),
            texts: BTreeSet::new(),
            moved: BTreeSet::new(),
            dropped_calls: BTreeSet::new(),
            batches: BTreeMap::new(),
            entries: RefCell::default(),
            bound_turns: OnceCell::new(),
            barriers: OnceCell::new(),
            reasoning: ReasoningMode::Keep,
            drops: None,
            ended_turns: EndedTurns::Keep,
            forms: Vec::new(),
            prefix_changed: UnitIndex::default(),
            cache_request: None,
            offers_control: false,
            of_model: OnceCell::new(),
            stripped: BTreeSet::new(),
            ended_reasoning: Vec::new(),
            dropped_rows: BTreeMap::new(),
            orphans: BTreeMap::new(),
            replacements: BTreeMap::new(),
            journal: Journal::default(),
            report: Report::default(),
            n_bytes: request.body.len(),
            n_bytes_removed: 0,
            need: None,
            root: None,
            cold: ColdPassesFound::default(),
            sent: sent::SentFound::default(),
            asks: RefCell::default(),
            whole: conversation,
            hidden: Vec::new(),
            prefix_keys: OnceCell::new(),
            pairing: OnceCell::new(),
            gauge: OnceCell::new(),
            window: OnceCell::new(),
            counts: OnceCell::new(),
            tokens_now: RefCell::default(),
            retrieval_method: OnceCell::new(),
        }
    }

    // === what edits read ===

    /// The body, as it came.
    pub fn body(&self) -> &'a [u8] {
        self.request.body
    }

    /// The input of the edits, as it came.
    pub fn conversation(&self) -> &'a Conversation<'a> {
        self.request.conversation
    }

    /// Which result answers which call, as it came.
    pub fn pairing(&self) -> Rc<Pairing> {
        Rc::clone(self.pairing.get_or_init(|| {
            let mut pairing = Pairing::of(self.request.conversation);
            self.note_answers_in_words(&mut pairing);
            Rc::new(pairing)
        }))
    }

    /// How many messages have been put somewhere.
    pub fn n_added(&self) -> usize {
        self.insertions.len()
    }

    /// Whether the model has not read a unit yet: it follows the last turn of the model.
    pub fn is_unread(&self, unit: UnitIndex) -> bool {
        self.last_answer.as_ref().is_none_or(|last| unit >= last.end)
    }

    /// The offset in the body from which on the model has read nothing.
    fn unread_start(&self) -> usize {
        let first = self.last_answer.as_ref().map_or(UnitIndex::new(0), |last| last.end);
        self.request.conversation.unit(first).map_or(self.request.body.len(), |unit| unit.span.start)
    }

    /// Whether a unit is in the last turn of the model.
    pub(super) fn is_in_last_answer(&self, unit: UnitIndex) -> bool {
        self.last_answer.as_ref().is_some_and(|last| last.contains(&unit))
    }

    /// Has edits change texts alone, and none of the first `n_frozen` messages: nothing leaves its place.
    pub fn edit_in_place(&mut self, n_frozen: usize) {
        let units = self.request.conversation.indexed_units();
        let frozen = units.filter(|(_, unit)| unit.element.get() < n_frozen).last().map(|(index, _)| index.next());
        self.first_editable = self.first_editable.max(frozen.unwrap_or_default());
        self.leaving = Leaving::Forbidden;
    }

    // === what edits decide about whole messages and calls ===

    /// Leaves a result out that answers no call, and with it what was written on it: no upstream takes it in any form. Its
    /// payloads are stored if there is a store. False if the message is not to be touched.
    pub fn drop_result(&mut self, edit: &'static str, unit: UnitIndex) -> bool {
        if self.leaving == Leaving::Forbidden || !self.take_out_of_place(edit, unit) {
            return false;
        }
        self.undo_replacements(unit);
        let said = self.context.offload == Offload::Possible;
        let said = if said { self.payloads_of(unit) } else { Vec::new() };
        self.orphans.insert(unit, said);
        self.record_drop(edit, unit);
        true
    }

    /// Why an edit is not to be made, if it is not.
    pub fn skip_reason(&self, pass: Pass) -> Option<SkipReason> {
        let traits = self.request.conversation.traits;
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

    /// Notes that a change was not made: of a result, or of more than one.
    pub fn skip_change(&mut self, edit: &'static str, unit: Option<UnitIndex>, why: SkipReason) {
        let (drop, none) = (Action::Drop { message: 0 }, Sizes::default());
        let about = match unit.and_then(|unit| self.pairing().answered_block(unit)) {
            Some(call) => self.about_call(edit, drop, call, none),
            None => self.about_result(edit, drop, unit.unwrap_or(UnitIndex::new(usize::MAX)), none),
        };
        self.journal.skip(about, unit.map(UnitIndex::get), why);
    }

    // === helpers ===

    fn span(&self, unit: UnitIndex) -> Span {
        self.request.conversation.unit(unit).map_or(Span::default(), |unit| unit.span)
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
        let conversation = self.request.conversation;
        let is_element = |unit: &Unit| conversation.is_element(unit) || self.entries(unit.element).is_some();
        unit >= self.first_editable && conversation.unit(unit).is_some_and(is_element)
    }

    /// The values in a message that are replaced.
    fn replacements_in(&self, unit: UnitIndex) -> impl Iterator<Item = &Replacement> {
        let Span { start, end } = self.span(unit);
        self.replacements.range(start..end.max(start)).map(|(_, replacement)| replacement)
    }

    /// The same with more of them, which go first.
    fn replacements_with<'s>(
        &'s self,
        unit: UnitIndex,
        more: &'s [Replacement],
    ) -> impl Iterator<Item = &'s Replacement> {
        let is_other = |decided: &&Replacement| more.iter().all(|more| more.span != decided.span);
        more.iter().chain(self.replacements_in(unit).filter(is_other))
    }

    /// Whether a value in a message has been replaced.
    fn has_replacements(&self, unit: UnitIndex) -> bool {
        self.replacements_in(unit).next().is_some()
    }

    /// Takes back what was written on a message, and that it was.
    fn undo_replacements(&mut self, unit: UnitIndex) {
        let Span { start, end } = self.span(unit);
        while let Some((&at, _)) = self.replacements.range(start..end.max(start)).next() {
            let Some(replacement) = self.replacements.remove(&at) else { return };
            self.n_bytes = (self.n_bytes + replacement.span.len()).saturating_sub(replacement.with.len());
            self.revoke_if_gone(replacement.change, unit);
        }
    }

    /// A result that says `text` in answer to the call that is block `call`; none if the block is not a call.
    fn rendered(&self, call: Option<BlockIndex>, text: &str) -> Option<Bytes> {
        match &self.request.conversation.block(call?)?.kind {
            BlockKind::ToolCall { id, name, .. } => {
                Some(self.request.dialect.render_tool_result(self.request.body, id, name.as_deref(), text))
            }
            BlockKind::ToolResult { .. } => None,
        }
    }

    /// The array inside an element, if it can be edited.
    fn entries(&self, element: ElementIndex) -> Option<Rc<Entries>> {
        let ParsedRequest { dialect, body, conversation } = self.request;
        let read = || {
            let span = conversation.element(element)?.span;
            dialect.entries(body, span).map(Rc::new)
        };
        self.entries.borrow_mut().entry(element).or_insert_with(read).clone()
    }

    fn record_drop(&mut self, edit: &'static str, unit: UnitIndex) {
        let before = self.span(unit).len();
        self.n_bytes = self.n_bytes.saturating_sub(before);
        let sizes = Sizes { before, after: 0 };
        let change = if let Some(call) = self.call_that_is(unit) {
            self.about_call(edit, Action::DropCall { message: unit.get() }, call, sizes)
        } else {
            let stored = self.orphans.get(&unit).into_iter().flatten();
            let handles = stored.map(|(_, name)| name.key).collect();
            Change { handles, ..self.about_result(edit, Action::Drop { message: unit.get() }, unit, sizes) }
        };
        self.journal.make(change);
    }

    /// The call that a unit is, and not just has.
    fn call_that_is(&self, unit: UnitIndex) -> Option<BlockIndex> {
        let conversation = self.request.conversation;
        let of = conversation.unit(unit)?;
        let call = conversation.block_range(unit..unit.next()).next()?;
        let block = conversation.block(call)?;
        let is_call = matches!(block.kind, BlockKind::ToolCall { .. }) && block.span == of.span;
        is_call.then_some(call)
    }

    /// A change about a unit that perhaps is a result.
    fn about_result(&self, edit: &'static str, action: Action, unit: UnitIndex, bytes: Sizes) -> Change {
        let conversation = self.request.conversation;
        let block = conversation.unit(unit).and_then(|unit| conversation.blocks_of(unit).first());
        let call_id = match block.map(|block| &block.kind) {
            Some(BlockKind::ToolResult { call_id, .. }) => call_id.text.clone().into_owned(),
            _ => String::new(),
        };
        Change { call_id, ..Change::new(edit, action, bytes) }
    }

    /// A change about a call, or about the result of one.
    fn about_call(&self, edit: &'static str, action: Action, call: BlockIndex, bytes: Sizes) -> Change {
        let (call_id, tool_name) = match self.request.conversation.block(call).map(|block| &block.kind) {
            Some(BlockKind::ToolCall { id, name, .. }) => {
                (id.text.clone().into_owned(), name.clone().map(Cow::into_owned))
            }
            _ => (String::new(), None),
        };
        Change { call_id, tool_name, ..Change::new(edit, action, bytes) }
    }
}

#[cfg(test)]
mod tests;
