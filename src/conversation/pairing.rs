//! Which result answers which call. One walk over the conversation; each call and each result is looked at a fixed
//! number of times, however often ids repeat.

use std::cell::LazyCell;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::{Block, BlockIndex, BlockKind, CallId, CallIndex, Conversation, Role, UnitIndex};
use crate::payload::Fingerprint;

/// Who answers whom.
#[derive(Debug, Default)]
pub struct Pairing {
    /// All calls, in order.
    pub calls: Vec<PairedCall>,
    /// All results, in order.
    pub results: Vec<PairedResult>,
    batches: Vec<Batch>,
}

/// A call.
#[derive(Debug)]
pub struct PairedCall {
    /// Its block.
    pub block: BlockIndex,
    /// Whether a result answers it.
    pub answered: bool,
    /// How many more results it has than the one that answers it.
    pub n_further: usize,
    /// Whether a text can answer it that the client has not sent.
    pub answerable: bool,
    /// The index of its batch.
    batch: usize,
    /// Whether it has an id.
    pub named: bool,
    /// The next call of the same id, in the order in which results answer them.
    next: Option<CallIndex>,
}

/// A result.
#[derive(Debug)]
pub struct PairedResult {
    /// The index of the unit.
    pub unit: UnitIndex,
    /// The call it answers; none makes it an orphan.
    pub answers: Option<CallIndex>,
    /// Whether another result has answered that call before it.
    pub is_further: bool,
    /// Whether it may leave if it is an orphan.
    pub may_leave: bool,
    /// Whether it names the call it answers.
    pub named: bool,
}

/// The calls of one turn of the model and its run: the results that stand directly after it. Calls without results that more of
/// the turn follows form a further batch without a run: the rest of the turn may answer the text in place of their results.
#[derive(Clone, Copy, Debug)]
struct Batch {
    first_call: usize,
    first_result: usize,
    /// The last unit of the turn.
    turn_end: UnitIndex,
    /// The last unit of the run; of the turn itself, if the run is empty.
    run_end: UnitIndex,
}

impl Pairing {
    /// Pairs the calls and results of a conversation.
    pub fn of(conversation: &Conversation<'_>) -> Self {
        let (by_position, repeats_results) =
            (conversation.traits.pairs_by_position, conversation.traits.repeats_results);
        let mut walk = Walk { by_position, repeats_results, ..Walk::default() };
        let mut units = conversation.indexed_units().peekable();
        while let Some((index, unit)) = units.next() {
            match (unit.role, conversation.blocks_of(unit)) {
                (Role::Tool, [Block { kind: BlockKind::ToolResult { call_id, may_leave }, .. }]) => {
                    walk.result(index, call_id, *may_leave);
                }
                (Role::Assistant, _) => {
                    let mut end = index.next();
                    while units.next_if(|(_, next)| next.turn == unit.turn).is_some() {
                        end = end.next();
                    }
                    walk.end_run(conversation, Some(unit.role));
                    walk.turn(conversation, index..end);
                }
                _ => walk.end_run(conversation, Some(unit.role)),
            }
        }
        walk.end_run(conversation, None);
        walk.pairing
    }

    /// The answer that a message is, if it is a result.
    pub fn result(&self, unit: UnitIndex) -> Option<&PairedResult> {
        let at = self.results.binary_search_by_key(&unit, |result| result.unit).ok()?;
        self.results.get(at)
    }

    /// A call.
    pub fn call(&self, call: CallIndex) -> Option<&PairedCall> {
        self.calls.get(call.get())
    }

    /// The call that is a block.
    pub fn call_of(&self, block: BlockIndex) -> Option<&PairedCall> {
        self.calls.get(self.calls.binary_search_by_key(&block, |call| call.block).ok()?)
    }

    /// The block of the call that a message answers.
    pub fn answered_block(&self, unit: UnitIndex) -> Option<BlockIndex> {
        self.call(self.result(unit)?.answers?).map(|call| call.block)
    }

    /// The run after the batch that `call` is in.
    pub fn run_of(&self, call: &PairedCall) -> &[PairedResult] {
        let Some(batch) = self.batches.get(call.batch) else { return &[] };
        let results = self.results.get(batch.first_result..).unwrap_or_default();
        let end = results.partition_point(|result| result.unit <= batch.run_end);
        results.get(..end).unwrap_or_default()
    }

    /// The last message before that run.
    pub fn run_start_of(&self, call: &PairedCall) -> Option<UnitIndex> {
        let before = |first: &PairedResult| UnitIndex::new(first.unit.get().saturating_sub(1));
        self.run_of(call).first().map(before).or_else(|| self.run_end_of(call))
    }

    /// The last message of the run after the batch that `call` is in.
    pub fn run_end_of(&self, call: &PairedCall) -> Option<UnitIndex> {
        self.batches.get(call.batch).map(|batch| batch.run_end)
    }
}

#[derive(Default)]
struct Walk {
    pairing: Pairing,
    /// The calls of each kind and id. The id is a hash with a seed, as clients choose ids.
    named: FxHashMap<(&'static str, Fingerprint), NamedCalls>,
    /// Whether the last batch still gathers its run.
    in_run: bool,
    by_position: bool,
    repeats_results: bool,
}

/// The calls of one kind and id.
#[derive(Default)]
struct NamedCalls {
    /// The call that the next result answers: the first one of the latest batch.
    open: Option<CallIndex>,
    /// The call that was answered last.
    answered: Option<CallIndex>,
}

impl Walk {
    /// A turn of the model.
    fn turn(&mut self, conversation: &Conversation<'_>, units: Range<UnitIndex>) {
        let blocks = conversation.block_range(units.clone());
        let Some(run_end) = UnitIndex::each(&units).next_back().filter(|_| blocks.len() > 0) else { return };
        let Pairing { calls, results, batches } = &mut self.pairing;
        let (batch, first_call) = (batches.len(), calls.len());
        batches.push(Batch { first_call, first_result: results.len(), turn_end: run_end, run_end });
        // The last call first, so that of calls with one id the first one comes to are in front of the others, and all
        // of this batch in front of those of earlier batches.
        for (n, block) in blocks.enumerate().rev() {
            let kind = conversation.block(block).map(|block| &block.kind);
            let Some(BlockKind::ToolCall { id, answerable, .. }) = kind else { continue };
            let (named, answerable) = (!id.text.is_empty(), *answerable);
            let index = CallIndex::new(first_call + n);
            let next = if named { self.named.entry(name(id)).or_default().open.replace(index) } else { None };
            calls.push(PairedCall { block, answered: false, n_further: 0, answerable, batch, named, next });
        }
        if let Some(new) = calls.get_mut(first_call..) {
            new.reverse();
        }
        self.in_run = true;
    }

    fn result(&mut self, index: UnitIndex, id: &CallId<'_>, may_leave: bool) {
        let (calls, repeats_results) = (&mut self.pairing.calls, self.repeats_results);
        let (mut answers, mut is_further) = (None, false);
        if let Some(named) = self.named.get_mut(&name(id)) {
            answers = next_unanswered(calls, &mut named.open);
            if answers.is_some() {
                named.answered = answers;
            } else if let Some(call) = named.answered.filter(|_| repeats_results) {
                (answers, is_further) = (Some(call), true);
                if let Some(call) = calls.get_mut(call.get()) {
                    call.n_further += 1;
                }
            }
        }
        let named = !id.text.is_empty();
        self.pairing.results.push(PairedResult { unit: index, answers, is_further, may_leave, named });
        if self.in_run
            && let Some(batch) = self.pairing.batches.last_mut()
        {
            batch.run_end = index;
        }
    }

    /// Ends the run of the last batch; `next` is the role of what follows.
    fn end_run(&mut self, conversation: &Conversation<'_>, next: Option<Role>) {
        if !std::mem::take(&mut self.in_run) {
            return;
        }
        self.pair_by_position();
        let Pairing { calls, batches, .. } = &mut self.pairing;
        let Some(&batch) = batches.last() else { return };
        // Instructions follow the user, and so the results of the turn. Where the model thinks within a budget, no message of the
        // running turn may begin without.
        if conversation.traits.thinks_by_budget || next == Some(Role::System) {
            return;
        }
        let caller = |call: &PairedCall| conversation.caller(call.block).unwrap_or_default();
        // Calls of one message are of one answer; where each call is an item, those are that directly follow each other.
        let joins = |call: UnitIndex, next| call == next || self.repeats_results && call.next() == next;
        let calls = calls.get_mut(batch.first_call..).unwrap_or_default();
        let first = calls.first().map(caller).unwrap_or_default();
        let last_barrier = LazyCell::new(|| {
            let is_barrier = |unit: &UnitIndex| conversation.unit(*unit).is_some_and(|unit| unit.flags.barrier);
            UnitIndex::each(&(first..batch.turn_end.next())).rev().find(is_barrier)
        });
        for calls in calls.chunk_by_mut(|call, next| joins(caller(call), caller(next))) {
            let last = calls.last().map(caller).filter(|_| calls.iter().all(|call| !call.answered));
            let goes_on = |unit: &UnitIndex| *unit < batch.turn_end && last_barrier.is_none_or(|at| at < *unit);
            if let Some(run_end) = last.filter(goes_on) {
                for call in calls {
                    call.batch = batches.len();
                }
                batches.push(Batch { run_end, ..batch });
            }
        }
    }

    /// Pairs by position what the last batch and its run have left, where one side has no id: each result with the next call,
    /// if that answers all calls. Where a result is missing, those without an id belong together.
    fn pair_by_position(&mut self) {
        let Pairing { calls, results, batches } = &mut self.pairing;
        let Some(batch) = batches.last().filter(|_| self.by_position) else { return };
        let (Some(calls), Some(results)) = (calls.get_mut(batch.first_call..), results.get_mut(batch.first_result..))
        else {
            return;
        };
        if calls.iter().all(|call| call.answered) {
            return;
        }
        let mut open: Vec<_> = calls.iter_mut().enumerate().filter(|(_, call)| !call.answered).collect();
        let mut left: Vec<_> = results.iter_mut().filter(|result| result.answers.is_none()).collect();
        if left.is_empty() {
            return;
        }
        let fit = open.iter().zip(&left).all(|((_, call), result)| !(call.named && result.named));
        let phases: &[_] = if fit && left.len() >= open.len() { &[None] } else { &phases(&open, &left).map(Some) };
        for phase in phases {
            let takes =
                |named: bool, of: fn(&(bool, bool)) -> bool| phase.as_ref().is_none_or(|phase| of(phase) == named);
            let calls = open.iter_mut().filter(|(_, call)| !call.answered && takes(call.named, |phase| phase.0));
            let results =
                left.iter_mut().filter(|result| result.answers.is_none() && takes(result.named, |phase| phase.1));
            for ((n, call), result) in calls.zip(results) {
                call.answered = true;
                result.answers = Some(CallIndex::new(batch.first_call + *n));
            }
        }
    }
}

fn name(id: &CallId<'_>) -> (&'static str, Fingerprint) {
    (id.kind, Fingerprint::of(id.text.as_bytes()))
}

/// Whether calls and results have ids, in the order in which they are paired. Those without an id are paired with one
/// another, unless fewer would be paired then.
fn phases(calls: &[(usize, &mut PairedCall)], results: &[&mut PairedResult]) -> [(bool, bool); 3] {
    let named_calls = calls.iter().filter(|(_, call)| call.named).count();
    let named_results = results.iter().filter(|result| result.named).count();
    let alike = (calls.len() - named_calls).min(results.len() - named_results);
    let (spare_calls, spare_results) = (calls.len() - named_calls - alike, results.len() - named_results - alike);
    let loses = named_calls > spare_results && named_results > spare_calls && alike > 0;
    if loses { [(true, false), (false, true), (false, false)] } else { [(false, false), (true, false), (false, true)] }
}

/// Answers the first unanswered call of the list that begins at `open`, and shortens the list to what is after it.
fn next_unanswered(calls: &mut [PairedCall], open: &mut Option<CallIndex>) -> Option<CallIndex> {
    while let Some(index) = *open {
        let call = calls.get_mut(index.get())?;
        *open = call.next;
        if !std::mem::replace(&mut call.answered, true) {
            return Some(index);
        }
    }
    None
}
