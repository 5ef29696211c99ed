//! The size of the messages as the edits so far have left them: always a bound in bytes, and tokens on request.
//!
//! Counting is what costs, so nothing here counts before it is asked to, and what is counted is counted once.

use std::{cell::OnceCell, iter};

use super::replace::Replacement;
use super::{AppliedSummary, Draft, Insertion, Row};
use crate::conversation::{BlockIndex, Unit, UnitIndex};
use crate::dialect::BytesAt;
use crate::payload::Fingerprint;
use crate::plan::{PromptSegment, Received};
use crate::raw::lossy;
use crate::span::Span;
use crate::tokens::{Countable, REQUEST_OVERHEAD};

/// The tokens of the request as it came.
#[derive(Debug)]
pub(super) struct Counts {
    /// The rest beside the units: the tool definitions, the form of the answer, instructions outside the array.
    pub(super) base: usize,
    /// Of each unit.
    pub(super) units: Vec<usize>,
}

impl Draft<'_> {
    /// How many tokens the model of this request takes, if that is known.
    pub fn window(&self) -> Option<usize> {
        let window = || self.context.meter.window(self.conversation.model.as_deref());
        *self.known.window.get_or_init(window)
    }

    /// The tokens of the window that are free for the prompt, unless the prompt certainly fits. The answer's limit is
    /// subtracted, rounded up to sixteenths of the window, so that requests whose limits differ a little are edited alike.
    pub fn prompt_limit(&self) -> Option<usize> {
        let n_bytes = self.n_bytes_at_most();
        let window = self.window().filter(|window| n_bytes > window / 2)?;
        let grain = window / 16;
        let answer = self.conversation.traits.max_answer_tokens.unwrap_or(grain).min(window);
        Some(window - (answer.div_ceil(grain.max(1)) * grain).min(window / 2)).filter(|limit| n_bytes > *limit)
    }

    /// The tokens of one unit as it came.
    pub fn tokens_as_received(&self, unit: UnitIndex) -> usize {
        self.counts().units.get(unit.get()).copied().unwrap_or_default()
    }

    /// No fewer bytes than any request of this conversation has had, as the edits so far have left them.
    pub fn n_bytes_at_most(&self) -> usize {
        self.n_bytes + self.n_bytes_removed
    }

    /// The tokens that a request has beside its messages.
    pub fn base_tokens(&self) -> usize {
        self.counts().base
    }

    /// The tokens of one message as the edits so far have left it.
    pub fn tokens_of(&self, row: &Row) -> usize {
        match (row.unit, self.insertion_of(row)) {
            (Some(unit), _) => self.message_tokens(unit),
            (None, Some(inserted)) => self.dialect.element_tokens(self.gauge(), &inserted.bytes),
            (None, None) => 0,
        }
    }

    /// Returns what the call that is a block adds to the tokens of its message, with some of its values replaced.
    pub(super) fn call_tokens(&self, call: BlockIndex, with: &[Replacement]) -> usize {
        let Some(span) = self.conversation.block(call).map(|block| block.span) else { return 0 };
        let splices: Vec<_> = with.iter().map(|replacement| replacement.splice.clone()).collect();
        self.dialect.count(self.gauge(), Countable::Call, &lossy(&self.spliced(span, &splices)))
    }

    pub(super) fn insertion_of(&self, row: &Row) -> Option<&Insertion> {
        self.insertions.get(row.insertion?.get())
    }

    /// The tokens of one message as the edits so far have left it, wherever it stands.
    pub(super) fn message_tokens(&self, unit: UnitIndex) -> usize {
        let known = self.known.tokens_now.borrow().get(&unit).copied();
        if let Some(tokens) = known {
            return tokens;
        }
        if !self.has_replacements(unit) && !self.has_lost_entries(unit) {
            return self.tokens_as_received(unit);
        }
        let tokens = self.tokens_with(unit, &[]);
        self.known.tokens_now.borrow_mut().insert(unit, tokens);
        tokens
    }

    /// The tokens of a message with more values replaced than are yet. It is known by what it is made of, and put together
    /// only if that was not counted before.
    pub(super) fn tokens_with(&self, unit: UnitIndex, more: &[Replacement]) -> usize {
        let fingerprint = self.fingerprint_with(unit, more);
        self.dialect.known_tokens(self.gauge(), Countable::Element, fingerprint, || self.json_with(unit, more))
    }

    /// The text that the model reads, in order, if tokens were asked for: beside the messages, then each message.
    pub(super) fn prompt_segments(&self, added_tools: Option<&BytesAt>) -> Vec<PromptSegment> {
        let Some(counts) = self.known.counts.get() else { return Vec::new() };
        let tools = self.conversation.tools.map_or(&[][..], |tools| tools.of(self.body));
        let added = added_tools.map(|tools| [b"[", tools.bytes.get(1..).unwrap_or_default(), b"]"].concat());
        let fingerprint = Fingerprint::of(tools);
        let fingerprint = added.as_deref().map_or(fingerprint, |added| fingerprint.then(Fingerprint::of(added)));
        let added = added.map_or(0, |added| self.dialect.tokens(self.gauge(), Countable::Tools, &added));
        let beside = PromptSegment { fingerprint, tokens: counts.base + added };
        let unit = |row: Row| {
            let inserted = || self.insertion_of(&row).map(|inserted| Fingerprint::of(&inserted.bytes));
            let fingerprint = row.unit.map(|unit| self.read_fingerprint(unit)).or_else(inserted);
            PromptSegment { fingerprint: fingerprint.unwrap_or_default(), tokens: self.tokens_of(&row) }
        };
        iter::once(beside).chain(self.rows().into_iter().map(unit)).collect()
    }

    /// Returns what the client sent, if anyone has asked for tokens.
    pub(super) fn received(&self) -> Option<Box<Received>> {
        let counts = self.known.counts.get()?;
        let message = |unit: &Unit| self.message_fingerprint(unit);
        let tools = self.conversation.tools.map_or(&[][..], |tools| tools.of(self.body));
        let messages = iter::once(Fingerprint::of(tools)).chain(self.whole.units.iter().map(message)).collect();
        let first = self.whole.units.iter().skip(self.whole.first_editable().get()).take(2);
        let root = first.map(message).fold(Fingerprint::default(), Fingerprint::then);
        let answer = self.conversation.last_answer();
        let base = if answer.is_none() { counts.base } else { 0 };
        let new = counts.units.iter().skip(answer.unwrap_or_default().start.get());
        Some(Box::new(Received { messages, root, new_tokens: base + new.sum::<usize>() }))
    }

    /// Returns what a message, as it came, is known by, whichever way the client spells it.
    fn message_fingerprint(&self, message: &Unit) -> Fingerprint {
        let canonical = || {
            self.context.meter.yield_now();
            self.dialect.canonical(message.span.of(self.body))
        };
        let name = self.context.keys.message(self.context.caller, message.fingerprint(self.body), canonical);
        Fingerprint::of(name.as_bytes())
    }

    /// Returns what a message is known by as its model reads it, whichever way the client spells it.
    fn read_fingerprint(&self, unit: UnitIndex) -> Fingerprint {
        let Some(of) = self.unit(unit) else { return Fingerprint::default() };
        // Places are not the same in every spelling, but which text or which call it is. A content may hold both.
        let texts = OnceCell::new();
        let n_texts = |value: Span| {
            let is_inside = |content: Span| content.start <= value.start && value.end <= content.end;
            let texts = || texts.get_or_init(|| self.request().texts(of));
            let before = || texts().partition_point(|text| text.start < value.start);
            if of.content.is_some_and(is_inside) { before() } else { 0 }
        };
        let blocks = self.conversation.blocks_of(of);
        let n_blocks = |value: Span| blocks.partition_point(|block| block.span.end <= value.start);
        let place = |value: Span| Fingerprint::of_numbers(n_texts(value), n_blocks(value));
        self.known_by(unit, self.replacements_in(unit), || self.message_fingerprint(of), place)
    }

    /// Returns what a message is known by with more values replaced than are yet.
    fn fingerprint_with(&self, unit: UnitIndex, more: &[Replacement]) -> Fingerprint {
        let start = self.span(unit).start;
        let place = |value: Span| Fingerprint::of_numbers(value.start - start, value.end - start);
        self.known_by(unit, self.replacements_with(unit, more), || self.fingerprint(unit), place)
    }

    /// Returns what a message is known by that was known by `before`, with these values replaced and without the calls that
    /// have left it. `place` says which value one is.
    fn known_by<'r>(
        &self,
        unit: UnitIndex,
        replacements: impl Iterator<Item = &'r Replacement>,
        before: impl FnOnce() -> Fingerprint,
        place: impl Fn(Span) -> Fingerprint,
    ) -> Fingerprint {
        let (mut replacements, span) = (replacements.peekable(), self.span(unit));
        if let Some(summary) = replacements.next_if(|replacement| replacement.span == span) {
            return summary.fingerprint; // nothing of what it replaces is left
        }
        let known = replacements
            .fold(before(), |known, Replacement { span, fingerprint, .. }| known.then(place(*span)).then(*fingerprint));
        if !self.has_lost_entries(unit) {
            return known;
        }
        let stripped = self.stripped.contains(&unit).then(|| Fingerprint::of_numbers(usize::MAX, usize::MAX));
        let calls = self.conversation.block_range(unit..unit.next()).enumerate();
        let gone = calls.filter(|(_, call)| self.dropped_calls.contains(call));
        let gone = gone.map(|(n, _)| Fingerprint::of_numbers(n, usize::MAX));
        stripped.into_iter().chain(gone).fold(known, Fingerprint::then)
    }

    /// Whether a unit is sent as it came, in its place, and the model reads it: it is not before a compaction of the server.
    pub fn is_in_sight(&self, unit: UnitIndex) -> bool {
        let is_read = unit.get() >= self.conversation.traits.n_compacted;
        is_read && self.is_in_place(unit) && !self.has_replacements(unit) && !self.has_lost_entries(unit)
    }

    /// The fingerprint of a unit as it came.
    pub fn fingerprint(&self, unit: UnitIndex) -> Fingerprint {
        self.unit(unit).map(|unit| unit.fingerprint(self.body)).unwrap_or_default()
    }

    /// The hash of the content of a message as it came.
    pub(super) fn content_fingerprint(&self, unit: UnitIndex) -> Fingerprint {
        self.unit(unit).map(|unit| unit.content_fingerprint(self.body)).unwrap_or_default()
    }

    /// The tokens of the request as it came.
    pub(super) fn counts(&self) -> &Counts {
        self.known.counts.get_or_init(|| {
            let (gauge, &Self { dialect, body, conversation, .. }) = (self.gauge(), self);
            let beside = [
                (Countable::Tools, conversation.tools),
                (Countable::Format, conversation.format),
                (Countable::Instructions, conversation.instructions),
            ];
            let tokens = beside.map(|(of, value)| value.map_or(0, |value| dialect.tokens(gauge, of, value.of(body))));
            let base = REQUEST_OVERHEAD + tokens.iter().sum::<usize>();
            let applied = self.applied();
            let summary = applied.map(|applied| applied.fold.summary());
            let tokens = |(index, unit): (UnitIndex, &Unit)| {
                if summary == Some(index) || index.get() < conversation.traits.n_compacted || unit.flags.for_program {
                    return 0;
                }
                dialect.known_tokens(gauge, Countable::Element, unit.fingerprint(body), || unit.span.of(body))
            };
            let mut units: Vec<_> = conversation.indexed_units().map(tokens).collect();
            if let Some(AppliedSummary { fold, summary }) = applied {
                let reopened: usize = units.get(UnitIndex::numbers(&fold.in_place())).unwrap_or_default().iter().sum();
                if let Some(tokens) = units.get_mut(fold.summary().get()) {
                    *tokens = summary.tokens_replaced.saturating_sub(reopened);
                }
            }
            Counts { base, units }
        })
    }
}
