//! Reasoning of the model that is bound to what precedes it.
//!
//! Some models sign their reasoning together with all that they had read. An edit that changes what was sent before makes
//! such reasoning invalid, and all that follows it. So a pass that changes the prefix at a model call removes the
//! reasoning that precedes that call. The edits find the same calls in each later request, so what has left stays
//! away: always a run from the beginning, without a gap.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Draft, Leaving, Offload, Replacement};
use crate::conversation::{Conversation, Role, UnitIndex};
use crate::dialect::Switch;
use crate::payload::{Fingerprint, PayloadKey};
use crate::plan::{Action, Change, Sizes};
use crate::span::Span;
use crate::tokens::models::Pattern;

/// `[reasoning]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What becomes of reasoning that is bound to its prefix when an edit changes that: `"strip"` leaves it out before each
    /// pass; `"keep"` leaves the decision to the upstream; `"withhold"` makes no pass; `"drop_block"` has Anthropic's API drop
    /// what does not fit, now and in all later requests, by `thinking.block_binding` and a name in `anthropic-beta`. It is `"strip"` where that cannot be added: in other dialects,
    /// and in requests without `thinking`, or with their own `block_binding`.
    pub bound: ReasoningMode,
    /// Models whose reasoning is bound to its prefix, by name or pattern, besides those that are known to be so.
    ///
    /// Example: `["claude-opus-6*"]`
    pub models: Vec<Pattern>,
    /// What becomes of the reasoning of ended turns when `clear_tool_results` clears: `"keep"`, or `"clear"`, which leaves it
    /// out and stores its text. Only of models whose maker lets a client leave it out and bills it as input, and not if it is
    /// bound. `policy.goal = "thrifty"` sets `"clear"`.
    pub ended_turns: EndedTurns,
}

/// What becomes of the reasoning of ended turns when results are cleared.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndedTurns {
    /// It stays.
    #[default]
    Keep,
    /// It is left out, and its text is stored.
    Clear,
}

/// What becomes of reasoning that is bound to its prefix, when an edit would change that.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningMode {
    /// It stays: nothing is bound, or the upstream is to decide.
    Keep,
    /// It is left out before each pass. Filters and summaries wait for the beginning of a user's turn, and so do clearings
    /// where thinking has a budget.
    #[default]
    Strip,
    /// It stays, and the upstream is told to drop what does not fit.
    DropBlock,
    /// It stays, and no pass is made.
    Withhold,
}

/// The label of the changes that leave reasoning out.
const LABEL: &str = "reasoning";

/// A pass waits no longer for the beginning of a user's turn when this part of the window is free: a tenth.
const MIN_FREE: usize = 10;

impl Draft<'_> {
    /// Sets what becomes of the reasoning in a conversation. With `strips_now`, all that is bound leaves.
    pub fn bind_reasoning(&mut self, settings: &Settings, conversation: &Conversation<'_>, strips_now: bool) {
        let name = conversation.model.as_deref().unwrap_or_default();
        let model = self.context.meter.models().unaliased(name);
        let is_bound = !conversation.traits.drops_reasoning && self.dialect.binds_reasoning(model)
            || settings.models.iter().any(|pattern| pattern.fits(name) || pattern.fits(model));
        let reasoning = if is_bound { settings.bound } else { ReasoningMode::Keep };
        self.ended_turns = settings.ended_turns;
        self.drops = if reasoning == ReasoningMode::DropBlock { self.dialect.drop_reasoning(self.body) } else { None };
        let is_left = reasoning == ReasoningMode::DropBlock && self.drops.is_none();
        self.reasoning = if is_left { ReasoningMode::Strip } else { reasoning };
        self.bind_to_sent(strips_now);
    }

    /// Returns what has the upstream drop the reasoning that precedes the last pass, if there is some.
    pub(super) fn drops_reasoning(&self) -> Option<&Switch> {
        let before = self.conversation.units.iter().zip(&self.in_place).take(self.prefix_changed.get());
        let mut thinking = before.filter(|(unit, in_place)| unit.flags.thinks && **in_place);
        self.drops.as_ref().filter(|_| thinking.next().is_some())
    }

    /// Whether reasoning is left out before each pass.
    pub fn strips_reasoning(&self) -> bool {
        self.reasoning == ReasoningMode::Strip
    }

    /// Whether a pass may be made at a model call with a request of so many tokens. Within a round of tool calls it would
    /// take away what the model is thinking just now.
    pub fn may_pass(&self, model_call: UnitIndex, tokens: usize) -> bool {
        if !self.strips_reasoning() || self.known.sent.strips_now {
            return true;
        }
        let before = self.conversation.unit_range(&(UnitIndex::default()..model_call));
        let new = || before.iter().rev().take_while(|unit| unit.role != Role::Assistant);
        let begins_turn = new().all(|unit| unit.role != Role::Tool);
        begins_turn || self.window().is_some_and(|window| tokens >= window - window / MIN_FREE)
    }

    /// Whether results may be cleared at a model call with a request of so many tokens. A clearing is rare and has its price in
    /// tokens, so it does not wait for the end of a round of tool calls, unless the server refuses calls without reasoning.
    pub fn may_clear(&self, model_call: UnitIndex, tokens: usize) -> bool {
        !self.conversation.traits.thinks_by_budget || self.may_pass(model_call, tokens)
    }

    /// Whether reasoning of ended turns leaves when results are cleared.
    pub fn clears_ended_reasoning(&self) -> bool {
        let is_wanted = self.ended_turns == EndedTurns::Clear && !self.is_bound();
        is_wanted && self.context.offload == Offload::Possible && self.gauge().reasoning.ended_turns
    }

    /// The tokens of the reasoning of a unit; none if it has none that can leave.
    pub fn reasoning_tokens(&self, unit: UnitIndex) -> Option<usize> {
        let reasoning = self.reasoning_of(unit)?;
        Some(reasoning.iter().map(|span| self.dialect.element_tokens(self.gauge(), span.of(self.body))).sum())
    }

    /// Leaves out the reasoning of all units before one, and stores its texts.
    pub fn leave_reasoning_out(&mut self, end: UnitIndex) {
        for unit in UnitIndex::each(&(self.first_editable..end)) {
            let Some(reasoning) = self.reasoning_of(unit) else { continue };
            let texts = reasoning.iter().filter_map(|entry| self.dialect.reasoning_text(self.body, *entry));
            let texts = texts.filter_map(|text| self.source_text(text, || Fingerprint::of(text.of(self.body))));
            let texts: Vec<_> = texts.filter(|text| text.name.len > 0).map(|text| (text.source, text.name)).collect();
            let handles = texts.iter().map(|(_, name)| name.key).collect();
            if self.strip(unit, handles) {
                self.ended_reasoning.extend(texts);
            }
        }
    }

    /// The entries of a unit that are reasoning and can leave.
    fn reasoning_of(&self, unit: UnitIndex) -> Option<Vec<Span>> {
        let of = self.unit(unit).filter(|of| of.flags.thinks && self.is_in_place(unit))?;
        let reasoning = self.entries(of.element)?.reasoning.clone();
        (unit >= self.first_editable && !reasoning.is_empty()).then_some(reasoning)
    }

    /// Notes that what was sent before a model call has changed.
    pub fn prefix_changes(&mut self, model_call: UnitIndex) {
        self.prefix_changed = self.prefix_changed.max(model_call);
    }

    /// Notes that a late result replaces what was in its place when the model was called.
    pub(super) fn late_result_comes(&mut self, behind: UnitIndex, result: UnitIndex) {
        if !self.strips_reasoning() || self.repeats_passes() {
            return; // the stored facts decide
        }
        let units = self.conversation.indexed_units();
        let of_model = units.filter(|(_, unit)| unit.role == Role::Assistant).map(|(index, _)| index);
        let of_model = self.known.of_model.get_or_init(|| of_model.collect());
        let next = of_model.get(of_model.partition_point(|unit| *unit <= behind));
        if next.is_some_and(|unit| *unit < result) {
            self.prefix_changes(result);
        }
    }

    /// Leaves out the reasoning that precedes the last pass.
    pub(super) fn strip_reasoning(&mut self) {
        let withholds = self.sent_index_is_used() && self.reasoning == ReasoningMode::Withhold;
        if !self.strips_reasoning() && !withholds {
            return;
        }
        for unit in UnitIndex::each(&(self.first_editable..self.prefix_changed)) {
            if self.unit(unit).is_some_and(|unit| unit.flags.thinks) && self.is_in_place(unit) {
                self.strip(unit, Vec::new());
            }
        }
    }

    /// Removes the ids of the items after reasoning in its turn, because the server would look for the reasoning.
    fn unname_rest_of_turn(&mut self, reasoning: UnitIndex) {
        let rest = reasoning.next()..self.conversation.turn_of(reasoning).end;
        for unit in UnitIndex::each(&rest) {
            let name = self.dialect.name_beside_reasoning(self.body, self.span(unit));
            if let Some(name) = name.filter(|_| self.is_in_place(unit)) {
                let new = Replacement::whole(name, Bytes::new(), None);
                self.overwrite(LABEL, Action::Strip { message: unit.get() }, unit, new);
            }
        }
    }

    /// Leaves the reasoning of a unit out, whose texts have these handles. False if it stays.
    fn strip(&mut self, unit: UnitIndex, handles: Vec<PayloadKey>) -> bool {
        let Some(of) = self.unit(unit) else { return false };
        let (before, is_all) = match self.entries(of.element) {
            Some(entries) => {
                let reasoning = entries.reasoning.iter().map(|span| span.len());
                (reasoning.sum(), entries.reasoning.len() == entries.spans.len())
            }
            None => (of.span.len(), true),
        };
        let is_whole_unit = is_all && of.blocks.is_empty() && !of.flags.speaks;
        if is_whole_unit && self.leaving == Leaving::Allowed {
            if !self.take(unit) {
                return false;
            }
            self.unname_rest_of_turn(unit);
        } else if is_all {
            return false;
        } else {
            self.stripped.insert(unit);
        }
        self.known.tokens_now.borrow_mut().remove(&unit);
        let change = Change::new(LABEL, Action::Strip { message: unit.get() }, Sizes::default());
        self.record(Change { handles, ..change }, before, 0);
        true
    }
}
