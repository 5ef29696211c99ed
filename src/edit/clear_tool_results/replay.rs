//! Which results are cleared, found out by walking the conversation as it grew.
//!
//! Sums run along, and each result is looked at once when it comes and once when it goes, however many passes there are:
//! what has come to be old enough is weighed when a pass comes to it, and then waits, if it has to, with its weight known.
//!
//! Results count in the order in which they came. So those that the model has not read are always the last ones, also
//! where one of them answers an old call.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use self::controls::Controls;
use super::ended_turns::{EndedTurns, Reasoning};
use super::reads::Reads;
use super::regrets::RegretWatch;
use super::rent::Rent;
use super::{AtLeast, ClearToolResults, Clearing, Frontier, NEARLY_FULL, TURN, WORTH_A_PASS};
use crate::conversation::{Role, UnitIndex};
use crate::dialect::marks_an_hour;
use crate::draft::{Draft, Pass, Replayed, Row, RowIndex, Tally, TimelineEvent};
use crate::edit::file_use::{self, FileUse};
use crate::edit::trigger::{Keep, Limits, Moment};
use crate::plan::{Regrets, SentFact};

pub(super) mod controls;

/// A file read of fewer bytes than this is taken for an error.
const LEAST_FILE: usize = 200;

/// The walk. Messages have the numbers that they have in the timeline.
pub(super) struct Replay<'r, 'd> {
    edit: &'r ClearToolResults,
    draft: &'r Draft<'d>,
    /// The conditions that hold for a pass anywhere.
    limits: Limits,
    /// The conditions for a pass where a user's turn begins, if they differ.
    turn: Option<Limits>,
    /// The fewest tokens that a pass frees where their price does not decide.
    at_least: usize,
    /// From so many tokens on neither their price nor a file read that is kept prevents a pass.
    nearly_full: Option<usize>,
    /// If a request has more tokens than this, all results that the model has read are cleared, whatever `keep` says.
    prompt_limit: Option<usize>,
    /// Decides whether a pass pays, where prices do.
    rent: Option<Rent>,
    /// Whether tokens are counted.
    count: bool,
    /// The size at the present place, as the passes so far have left it.
    tally: Tally<'r, 'd>,
    /// The last message of the model before the present place.
    read: Option<RowIndex>,
    /// What `keep` spares at the present place.
    newest: KeepWindow,
    /// The results that may be cleared and have not been, in the order in which they are cleared.
    waiting: VecDeque<RowIndex>,
    /// File reads, where some of them are kept.
    reads: Option<Reads>,
    /// The calls by which the model controls clearing.
    controls: Controls,
    /// The reasoning of ended turns, if it leaves with a pass.
    ended_turns: Option<EndedTurns>,
    /// The results that may be cleared now and were not, because they free too little.
    ready: BTreeMap<RowIndex, Clearing>,
    /// How many tokens that would free.
    ready_frees: usize,
    cleared: Vec<(RowIndex, Clearing)>,
    /// The calls that ask for something cleared.
    regrets: RegretWatch,
    /// How many messages had come when something was cleared last.
    n_came_then: usize,
    found: ClearedResults,
}

/// The cleared results, as the walk has found them.
#[derive(Debug, Default)]
pub(super) struct ClearedResults {
    /// The units that are cleared.
    pub(super) cleared: Vec<(UnitIndex, Clearing)>,
    /// The unit before which all reasoning leaves.
    pub(super) reasoning_left: UnitIndex,
    /// Whether the last pass was not made because it would have freed too little.
    pub(super) too_little: bool,
    /// The model calls of the passes that have cleared something, each with what is to be remembered of it.
    pub(super) passes: Vec<(UnitIndex, Option<SentFact>)>,
    /// The last model call, if a pass would be made there if the prompt cache had expired.
    pub(super) cold_at: Option<UnitIndex>,
    /// The calls that ask for something cleared.
    pub(super) regrets: Regrets,
}

/// What `keep` spares at the present place.
struct KeepWindow {
    keep: Keep,
    /// What counts: results, or messages with calls.
    counted: VecDeque<WindowItem>,
    n_here: usize,
    /// Their tokens, if those count.
    tokens: usize,
    /// The last turn that counted.
    last_turn: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct WindowItem {
    number: RowIndex,
    tokens: usize,
    is_here: bool,
}

impl<'r, 'd> Replay<'r, 'd> {
    pub(super) fn new(edit: &'r ClearToolResults, draft: &'r Draft<'d>, limits: Limits, keep: Keep) -> Self {
        let ClearToolResults { settings, prices, .. } = edit;
        let (by_price, least_tokens) = (settings.at_least() == Some(AtLeast::Auto), limits.least_tokens());
        let at_least = match settings.at_least() {
            Some(AtLeast::Tokens(tokens)) => tokens,
            Some(AtLeast::Auto) | None => least_tokens / WORTH_A_PASS,
        };
        let model = draft.conversation.model.as_deref();
        let prices = by_price.then(|| prices.of_request(model, marks_an_hour(draft.body)));
        let prices = prices.filter(|prices| !prices.read.is_free());
        let rent = prices.map(|prices| Rent::new(prices, draft.base_tokens()));
        let turn = (settings.moment() == Moment::Turn && (!by_price || rent.is_some())).then(|| limits.at(TURN));
        let window = if rent.is_some() || settings.keep_reads > 0 { draft.window() } else { None };
        let prompt_limit = draft.prompt_limit();
        let count = limits.ask_for_tokens() || matches!(keep, Keep::Tokens(_));
        let count = count || draft.offers_control || rent.is_some() || at_least > 0 || prompt_limit.is_some();
        Self {
            edit,
            draft,
            limits,
            turn,
            at_least,
            nearly_full: window.map(|window| NEARLY_FULL.of(window)),
            prompt_limit,
            rent,
            count,
            tally: Tally::new(draft, count),
            read: None,
            newest: KeepWindow::new(keep),
            waiting: VecDeque::new(),
            reads: Some(settings.keep_reads).filter(|most| *most > 0).map(Reads::new),
            controls: Controls::new(least_tokens),
            ended_turns: draft.clears_ended_reasoning().then(EndedTurns::default),
            ready: BTreeMap::new(),
            ready_frees: 0,
            cleared: Vec::new(),
            regrets: RegretWatch::default(),
            n_came_then: 0,
            found: ClearedResults::default(),
        }
    }

    /// Walks to the end.
    pub(super) fn run(mut self) -> ClearedResults {
        let timeline = self.draft.timeline();
        let calls = timeline.iter().enumerate().rev().filter(|(_, event)| matches!(event, TimelineEvent::ModelCall(_)));
        let mut calls = calls.map(|(n, _)| n);
        let last_call = calls.next().unwrap_or_default();
        // The calls of the model's last answer are new to this request.
        let new_from = calls.next().unwrap_or_default();
        let is_sticky = self.edit.settings.frontier == Frontier::Sticky;
        let first_call = if is_sticky { 0 } else { last_call };
        for (n, event) in timeline.into_iter().enumerate() {
            self.tally.follow(event);
            match event {
                TimelineEvent::Added(row) => {
                    self.came(RowIndex::new(self.tally.n_rows() - 1), &row);
                    if self.regrets.came(&self.edit.calls, self.draft, &row, n > new_from) {
                        // Everything that is too old already stays so.
                        self.newest.keep = self.newest.keep.doubled();
                    }
                }
                TimelineEvent::Superseded(number) => {
                    self.newest.goes(number);
                    self.rent.iter_mut().for_each(|rent| rent.remove(number));
                }
                TimelineEvent::Removed(number) => {
                    self.ready_frees -= self.ready.remove(&number).map_or(0, |clearing| clearing.freed);
                    self.rent.iter_mut().for_each(|rent| rent.remove(number));
                }
                TimelineEvent::ModelCall(place) => self.model_call(place, n >= first_call),
            }
        }
        let Self { tally, cleared, found, regrets, ended_turns, .. } = self;
        let unit = |number| tally.row(number).filter(|_| tally.is_here(number))?.unit;
        let cleared = cleared.into_iter().filter_map(|(number, clearing)| Some((unit(number)?, clearing)));
        let reasoning_left = ended_turns.map(|turns| turns.left).unwrap_or_default();
        ClearedResults { cleared: cleared.collect(), reasoning_left, regrets: regrets.found, ..found }
    }

    fn came(&mut self, number: RowIndex, row: &Row) {
        if row.role == Role::Assistant {
            self.read = Some(number);
        }
        if let (Some(turns), Some(unit)) = (&mut self.ended_turns, row.unit) {
            turns.came(self.draft, number, unit);
        }
        let counted = WindowItem { number, tokens: self.tally.tokens_of(number), is_here: true };
        self.rent.iter_mut().for_each(|rent| rent.came(counted.tokens));
        if self.control_came(row) {
            return;
        }
        let draft = self.draft;
        if self.newest.counts(row, draft) {
            self.newest.came(counted);
        }
        if row.role == Role::Tool && row.is_there() && !row.unit.is_some_and(|unit| draft.is_for_program(unit)) {
            let tool = draft.tool_of(row.call);
            if row.unit.is_some() && self.edit.clears(tool) {
                self.waiting.push_back(number);
            }
            self.file_used(row, number, tool);
        }
    }

    /// Notes what the call that a result answers does with files. What is too short to be a file is an error, and reads
    /// none.
    fn file_used(&mut self, row: &Row, number: RowIndex, tool: &str) {
        let (Some(reads), Some(call)) = (&mut self.reads, row.call.filter(|_| !self.draft.is_further(row))) else {
            return;
        };
        let arguments = || self.draft.request().arguments(call).map(Cow::into_owned);
        let is_content = || row.unit.is_some_and(|unit| self.draft.content_len(unit) >= LEAST_FILE);
        match file_use::of_call(&self.edit.shared.tools, tool, arguments) {
            Some(FileUse::Read { .. }) if !is_content() => {}
            Some(file_use) => reads.came(number, file_use),
            None => {}
        }
    }

    /// Here a model was called. By the rules, a pass is made at some calls only.
    fn model_call(&mut self, place: UnitIndex, has_rules: bool) {
        (self.found.too_little, self.found.cold_at) = (false, None);
        let replayed = self.draft.replayed(Pass::Clear, place);
        let compacts = self.apply_controls(place, replayed);
        let is_asked = compacts && replayed == Replayed::ByRule;
        let has_none = replayed == Replayed::ByRule && !has_rules;
        let replayed = if has_none { Replayed::NotMade } else { replayed };
        let is_made = matches!(replayed, Replayed::Made(_));
        // The room for a prompt depends on the answer that this request asks for, so it decides here alone where passes are
        // remembered; the same request may come again, and ask for a longer answer.
        let is_limited = replayed != Replayed::NotMade
            && (place == self.draft.conversation.next_unit() || !self.draft.sent_index_is_used());
        let exceeds_prompt_limit = is_limited && self.exceeds_prompt_limit(0);
        let by_rule = replayed == Replayed::ByRule && (self.may_pass(place) || exceeds_prompt_limit);
        let may_pass = by_rule || is_asked;
        if !may_pass && !is_made && self.rent.is_none() {
            return;
        }
        self.ripen();
        if (may_pass || is_made) && (compacts || self.is_nearly_full(self.ready_frees)) {
            self.reads.iter_mut().for_each(Reads::let_go);
            self.ripen();
        }
        let spares_nothing = replayed == Replayed::Made(SentFact::ClearedAll)
            || (is_limited && self.exceeds_prompt_limit(self.ready_frees));
        if spares_nothing {
            self.ripen_all();
        }
        let first = self.ready.first_key_value().map(|(number, _)| *number);
        let is_paid = self.is_paid(first);
        let is_large = || self.ready_frees >= self.at_least;
        let is_due = is_paid.map_or_else(is_large, |is_paid| is_paid || (self.is_nearly_full(0) && is_large()));
        let is_due = is_asked || exceeds_prompt_limit || is_due;
        if first.is_none() {
            return;
        }
        // From the whole trigger on, a pass is found again where the model is called next, whatever became of its request.
        let found_again = self.edit.settings.frontier == Frontier::Sliding
            || (!exceeds_prompt_limit && (self.hold(&self.limits) || is_asked));
        let is_bound = self.draft.is_bound();
        let by_settings = self.edit.settings.spares_nothing();
        let fact = if by_settings || spares_nothing { SentFact::ClearedAll } else { SentFact::Cleared };
        let pass = |is_remembered: bool| (place, (by_settings || is_remembered).then_some(fact));
        if may_pass && is_due {
            return self.pass(pass(is_bound || !found_again), Rent::settle);
        }
        let may_pass_cold = replayed != Replayed::NotMade && self.may_pass_cold(place);
        if may_pass_cold && self.draft.was_cold(place) {
            return self.pass(pass(is_bound), Rent::settle_cold);
        }
        if is_made {
            return self.pass(pass(is_bound || !found_again), Rent::settle);
        }
        self.found.too_little = may_pass;
        self.found.cold_at = may_pass_cold.then_some(place);
    }

    /// Whether a pass pays, where prices decide. It also removes the reasoning of ended turns, so that pays rent with the results.
    fn is_paid(&mut self, first: Option<RowIndex>) -> Option<bool> {
        let ended = first.and_then(|_| self.ended_turns.as_ref()?.ended());
        let first = first.into_iter().chain(ended.map(|(number, _)| number)).min();
        let freed = self.ready_frees + ended.map_or(0, |(_, tokens)| tokens);
        Some(self.rent.as_mut()?.is_due(first, freed))
    }

    /// Whether a pass may be made at this model call, if it is worth it.
    fn may_pass(&self, place: UnitIndex) -> bool {
        let in_turn =
            || self.turn.as_ref().is_some_and(|limits| self.hold(limits) && self.draft.begins_user_turn(place));
        (self.hold(&self.limits) || in_turn()) && self.draft.may_clear(place, self.tally.tokens)
    }

    /// Whether a pass may be made at this model call if the prompt cache has expired: from as many tokens on as where a user's
    /// turn begins.
    fn may_pass_cold(&self, place: UnitIndex) -> bool {
        let limits = self.turn.as_ref().unwrap_or(&self.limits);
        let is_sticky = self.edit.settings.frontier == Frontier::Sticky;
        self.rent.is_some() && is_sticky && self.hold(limits) && self.draft.may_clear(place, self.tally.tokens)
    }

    fn hold(&self, limits: &Limits) -> bool {
        let n_new = self.tally.n_came - self.n_came_then;
        limits.hold_anew(self.tally.tokens, self.tally.n_messages, n_new)
    }

    /// Whether the request takes most of the window without so many tokens.
    fn is_nearly_full(&self, less: usize) -> bool {
        self.nearly_full.is_some_and(|least| self.tally.tokens.saturating_sub(less) >= least)
    }

    /// Whether the request takes more of the window than there is for it, without so many tokens.
    fn exceeds_prompt_limit(&self, less: usize) -> bool {
        self.prompt_limit.is_some_and(|limit| self.tally.tokens.saturating_sub(less) > limit)
    }

    /// Weighs what has come to be old enough.
    fn ripen(&mut self) {
        while let Some(number) = self.reads.as_mut().and_then(|reads| reads.released.pop()) {
            self.weigh(number);
        }
        while let Some(number) = self.next_old_enough() {
            if !self.reads.as_mut().is_some_and(|reads| reads.hold(number)) {
                self.weigh(number);
            }
        }
    }

    /// Weighs all that the model has read.
    fn ripen_all(&mut self) {
        let Some(read) = self.read else { return };
        self.controls.let_go();
        self.reads.iter_mut().for_each(Reads::let_go);
        self.ripen();
        while let Some(number) = self.waiting.pop_front_if(|number| *number < read) {
            self.weigh(number);
        }
    }

    fn weigh(&mut self, number: RowIndex) {
        if self.controls.has_pinned(number) {
            return self.wait(number);
        }
        let row = self.tally.row(number).filter(|_| self.tally.is_here(number));
        if let Some(clearing) = row.and_then(|row| self.edit.clearing(self.draft, row, self.count, None)) {
            self.ready_frees += clearing.freed;
            self.ready.insert(number, clearing);
        }
    }

    /// Clears what is ready, and the reasoning of ended turns.
    fn pass(&mut self, pass: (UnitIndex, Option<SentFact>), settle: fn(&mut Rent)) {
        let n_cleared = self.cleared.len();
        self.n_came_then = self.tally.n_came;
        self.ready_frees = 0;
        for (number, clearing) in std::mem::take(&mut self.ready) {
            let Some(mut clearing) = self.handled(number, clearing) else { continue };
            self.tally.shrink(number, clearing.freed);
            self.rent.iter_mut().for_each(|rent| rent.clear(number, clearing.freed));
            if let Some(row) = self.tally.row(number) {
                self.regrets.cleared(&self.edit.calls, self.draft, row, &clearing);
            }
            if let (Some(reads), Some(result)) = (&self.reads, &mut clearing.result) {
                result.why = reads.stale.get(&number).copied();
            }
            self.cleared.push((number, clearing));
        }
        if self.cleared.len() > n_cleared {
            let ended = self.ended_turns.as_mut().map(EndedTurns::leave).unwrap_or_default();
            for Reasoning { number, tokens, .. } in ended {
                self.tally.leave_reasoning_out(number, tokens);
                self.rent.iter_mut().for_each(|rent| rent.clear(number, tokens));
            }
            self.found.passes.push(pass);
        }
        self.rent.iter_mut().for_each(settle);
    }

    /// The clearing as a handler has it, if there is one: none if that leaves the result as it is. Whether a pass is made does
    /// not depend on what handlers say, else a request would have to ask about all that it might clear.
    fn handled(&self, number: RowIndex, clearing: Clearing) -> Option<Clearing> {
        let asked = |row| Some((row, self.edit.handler(self.draft, row)?));
        let Some((row, handler)) = self.tally.row(number).and_then(asked) else { return Some(clearing) };
        self.edit.clearing(self.draft, row, self.count, Some(handler))
    }

    /// Takes out the next result that has been read and that nothing spares.
    fn next_old_enough(&mut self) -> Option<RowIndex> {
        let goes_before = self.read?.min(self.newest.from());
        let mut at = 0;
        while let Some(number) = self.waiting.get(at).copied().filter(|number| *number < goes_before) {
            let is_here = self.tally.is_here(number);
            if is_here && self.controls.has_pinned(number) {
                at += 1;
            } else {
                self.waiting.remove(at);
                if is_here {
                    return Some(number);
                }
            }
        }
        None
    }

    /// A result that may be cleared waits.
    fn wait(&mut self, number: RowIndex) {
        let at = self.waiting.partition_point(|waiting| *waiting < number);
        self.waiting.insert(at, number);
    }
}

impl KeepWindow {
    fn new(keep: Keep) -> Self {
        Self { keep, counted: VecDeque::new(), n_here: 0, tokens: 0, last_turn: None }
    }

    /// Whether a unit counts. Of a turn, the first unit that calls does.
    fn counts(&mut self, row: &Row, draft: &Draft<'_>) -> bool {
        let unit = row.unit.and_then(|unit| draft.conversation.unit(unit));
        match self.keep {
            Keep::Rounds(_) => unit.is_some_and(|unit| {
                let calls = row.role == Role::Assistant && !unit.blocks.is_empty();
                calls && self.last_turn.replace(unit.turn) != Some(unit.turn)
            }),
            _ => row.role == Role::Tool && row.is_there() && unit.is_none_or(|unit| !unit.flags.for_program),
        }
    }

    /// A message that counts came.
    fn came(&mut self, counted: WindowItem) {
        self.counted.push_back(counted);
        self.n_here += 1;
        self.tokens += counted.tokens;
        self.shorten();
    }

    /// A message is not there any more, and another counts instead.
    fn goes(&mut self, number: RowIndex) {
        let at = self.counted.binary_search_by_key(&number, |counted| counted.number);
        if let Some(counted) = at.ok().and_then(|at| self.counted.get_mut(at))
            && std::mem::take(&mut counted.is_here)
        {
            self.n_here -= 1;
            self.tokens -= counted.tokens;
            self.shorten();
        }
    }

    /// Takes out what is too old, and what is not there any more before the first that is.
    fn shorten(&mut self) {
        let (most, most_tokens) = match self.keep {
            Keep::Results(most) | Keep::Rounds(most) => (most, usize::MAX),
            Keep::Tokens(most) => (usize::MAX, most),
            Keep::Fraction(_) => (usize::MAX, usize::MAX), // resolved before
        };
        while let Some(oldest) = self.counted.front().copied() {
            let is_spared = self.n_here <= most && self.tokens <= most_tokens;
            if oldest.is_here && is_spared {
                return;
            }
            self.counted.pop_front();
            if oldest.is_here {
                self.n_here -= 1;
                self.tokens -= oldest.tokens;
            }
        }
    }

    /// The first that is spared.
    fn from(&self) -> RowIndex {
        self.counted.front().map_or(RowIndex::new(usize::MAX), |counted| counted.number)
    }
}
