//! The size of the messages as the edits so far have left them: always a bound in bytes, and tokens on request.
//!
//! Counting is what costs, so nothing here counts before it is asked to, and what is counted is counted once.

use std::{cell::OnceCell, iter};

use super::replacement::Replacement;
use super::{AppliedSummary, Draft, Inserted, ParsedRequest, Row};
use crate::conversation::{BlockIndex, Fingerprints, Unit, UnitIndex};
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

impl Counts {
    /// The tokens of one unit.
    pub(super) fn of(&self, unit: UnitIndex) -> Option<usize> {
        self.units.get(unit.get()).copied()
    }
}

impl Draft<'_> {
    /// No fewer bytes than the body has now, and so no fewer tokens.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// How many tokens the model of this request takes, if that is known.
    pub fn window(&self) -> Option<usize> {
        let window = || self.context.meter.window(self.request.conversation.model.as_deref());
        *self.window.get_or_init(window)
    }

    /// The tokens of the window that are free for the prompt, unless the prompt certainly fits. The answer's limit is
    /// subtracted, rounded up to sixteenths of the window, so that requests whose limits differ a little are edited alike.
    pub fn prompt_limit(&self) -> Option<usize> {
        let n_bytes = self.n_bytes_at_most();
        let window = self.window().filter(|window| n_bytes > window / 2)?;
        let grain = window / 16;
        let answer = self.request.conversation.traits.max_answer_tokens.unwrap_or(grain).min(window);
        Some(window - (answer.div_ceil(grain.max(1)) * grain).min(window / 2)).filter(|limit| n_bytes > *limit)
    }

    /// The tokens of one unit as it came.
    pub fn tokens_as_received(&self, unit: UnitIndex) -> usize {
        self.counts().of(unit).unwrap_or_default()
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
            (None, Some(inserted)) => self.request.dialect.element_tokens(self.gauge(), inserted.until_then()),
            (None, None) => 0,
        }
    }

    /// The same of a message when all of its calls were there.
    pub(super) fn tokens_with_all_calls(&self, row: &Row) -> usize {
        match row.unit {
            Some(unit) if self.batches.contains_key(&unit) => self.counts().of(unit).unwrap_or_default(),
            _ => self.tokens_of(row),
        }
    }

    /// Returns what the call that is a block adds to the tokens of its message, with some of its values replaced.
    pub(super) fn call_tokens(&self, call: BlockIndex, with: &[Replacement]) -> usize {
        let Some(span) = self.request.conversation.block(call).map(|block| block.span) else { return 0 };
        let splices: Vec<_> = with.iter().map(Replacement::splice).collect();
        self.request.dialect.count(self.gauge(), Countable::Call, &lossy(&self.spliced(span, &splices)))
    }

    pub(super) fn insertion_of(&self, row: &Row) -> Option<&Inserted> {
        Some(&self.insertions.get(row.insertion?.get())?.what)
    }

    /// The tokens of one message as the edits so far have left it, wherever it stands.
    pub(super) fn message_tokens(&self, unit: UnitIndex) -> usize {
        let known = self.tokens_now.borrow().get(&unit).copied();
        if let Some(tokens) = known {
            return tokens;
        }
        if !self.has_replacements(unit) && !self.has_lost_entries(unit) {
            return self.counts().of(unit).unwrap_or_default();
        }
        let tokens = self.tokens_with(unit, &[]);
        self.tokens_now.borrow_mut().insert(unit, tokens);
        tokens
    }

    /// The tokens of a message with more values replaced than are yet. It is known by what it is made of, and put together
    /// only if that was not counted before.
    pub(super) fn tokens_with(&self, unit: UnitIndex, more: &[Replacement]) -> usize {
        let fingerprint = self.fingerprint_with(unit, more);
        self.request.dialect.known_tokens(self.gauge(), Countable::Element, fingerprint, || self.json_with(unit, more))
    }

    /// The text that the model reads, in order, if tokens were asked for: beside the messages, then each message.
    pub(super) fn prompt_segments(&self) -> Vec<PromptSegment> {
        let Some(counts) = self.counts.get() else { return Vec::new() };
        let tools = self.request.conversation.tools.map_or(&[][..], |tools| tools.of(self.request.body));
        let added = self.added_tools().map(|tools| [b"[", tools.bytes.get(1..).unwrap_or_default(), b"]"].concat());
        let fingerprint = Fingerprint::of(tools);
        let fingerprint = added.as_deref().map_or(fingerprint, |added| fingerprint.then(Fingerprint::of(added)));
        let added = added.map_or(0, |added| self.request.dialect.tokens(self.gauge(), Countable::Tools, &added));
        let beside = PromptSegment { fingerprint, tokens: counts.base + added };
        let unit = |row: Row| PromptSegment { fingerprint: self.fingerprint_of(&row), tokens: self.tokens_of(&row) };
        iter::once(beside).chain(self.rows().into_iter().map(unit)).collect()
    }

    /// Returns what the client sent, if anyone has asked for tokens.
    pub(super) fn received(&self) -> Option<Box<Received>> {
        let counts = self.counts.get()?;
        let message = |unit: &Unit| self.message_fingerprint(unit);
        let tools = self.request.conversation.tools.map_or(&[][..], |tools| tools.of(self.request.body));
        let messages = iter::once(Fingerprint::of(tools)).chain(self.whole.units.iter().map(message)).collect();
        let first = self.whole.units.iter().skip(self.whole.first_editable().get()).take(2);
        let root = first.map(message).fold(Fingerprint::default(), Fingerprint::then);
        let answer = self.request.conversation.last_answer();
        let base = if answer.is_none() { counts.base } else { 0 };
        let new = counts.units.iter().skip(answer.unwrap_or_default().start.get());
        Some(Box::new(Received { messages, root, new_tokens: base + new.sum::<usize>() }))
    }

    fn fingerprint_of(&self, row: &Row) -> Fingerprint {
        match (row.unit, self.insertion_of(row)) {
            (Some(unit), _) => self.read_fingerprint(unit),
            (None, Some(Inserted::New { bytes, .. } | Inserted::Text { bytes })) => Fingerprint::of(bytes),
            (None, _) => Fingerprint::default(),
        }
    }

    /// Returns what a message, as it came, is known by, whichever way the client spells it.
    fn message_fingerprint(&self, message: &Unit) -> Fingerprint {
        let ParsedRequest { dialect, body, .. } = self.request;
        let canonical = || {
            self.context.meter.yield_now();
            dialect.canonical(message.span.of(body))
        };
        let name = self.context.keys.message(self.context.caller, message.fingerprints(body).unit, canonical);
        Fingerprint::of(name.as_bytes())
    }

    /// Returns what a message is known by as its model reads it, whichever way the client spells it.
    fn read_fingerprint(&self, unit: UnitIndex) -> Fingerprint {
        let span = self.span(unit);
        let mut replacements = self.replacements_in(unit).peekable();
        if let Some(summary) = replacements.next_if(|replacement| replacement.span == span) {
            return summary.fingerprint;
        }
        let ParsedRequest { dialect, body, conversation } = self.request;
        let Some(of) = conversation.unit(unit) else { return Fingerprint::default() };
        // Places are not the same in every spelling, but which text or which call it is. A content may hold both.
        let texts = OnceCell::new();
        let n_texts = |value: Span| {
            let content = of.content.filter(|content| content.start <= value.start && value.end <= content.end);
            content.map_or(0, |content| {
                texts.get_or_init(|| dialect.texts(body, content)).partition_point(|text| text.start < value.start)
            })
        };
        let n_blocks = |value: Span| conversation.blocks_of(of).partition_point(|block| block.span.end <= value.start);
        let known = replacements.fold(self.message_fingerprint(of), |known, replacement| {
            let place = Fingerprint::of_numbers(n_texts(replacement.span), n_blocks(replacement.span));
            known.then(place).then(replacement.fingerprint)
        });
        self.without_calls(unit, known)
    }

    /// Whether a unit is sent as it came, in its place, and the model reads it: it is not before a compaction of the server.
    pub fn is_in_sight(&self, unit: UnitIndex) -> bool {
        let is_read = unit.get() >= self.request.conversation.traits.n_compacted;
        is_read && self.is_in_place(unit) && !self.has_replacements(unit) && !self.has_lost_entries(unit)
    }

    /// The fingerprint of a unit as it came.
    pub fn fingerprint(&self, unit: UnitIndex) -> Fingerprint {
        self.fingerprints(unit).unit
    }

    /// Returns what a message is known by.
    pub(super) fn fingerprints(&self, unit: UnitIndex) -> Fingerprints {
        let unit = self.request.conversation.unit(unit);
        unit.map(|unit| unit.fingerprints(self.request.body)).unwrap_or_default()
    }

    /// Returns what a message is known by with more values replaced than are yet.
    fn fingerprint_with(&self, unit: UnitIndex, more: &[Replacement]) -> Fingerprint {
        let Span { start, end } = self.span(unit);
        let mut replacements = self.replacements_with(unit, more).peekable();
        if let Some(summary) = replacements.next_if(|replacement| replacement.span == Span { start, end }) {
            return summary.fingerprint; // nothing of what it replaces is left
        }
        let known = replacements.fold(self.fingerprints(unit).unit, |known, Replacement { span, fingerprint, .. }| {
            known.then(Fingerprint::of_numbers(span.start - start, span.end - start)).then(*fingerprint)
        });
        self.without_calls(unit, known)
    }

    /// Returns what a message is known by without the calls that have left it.
    fn without_calls(&self, unit: UnitIndex, known: Fingerprint) -> Fingerprint {
        if !self.has_lost_entries(unit) {
            return known;
        }
        let stripped = self.stripped.contains(&unit).then(|| Fingerprint::of_numbers(usize::MAX, usize::MAX));
        let known = stripped.map_or(known, |stripped| known.then(stripped));
        let calls = self.request.conversation.block_range(unit..unit.next()).enumerate();
        let gone = calls.filter(|(_, call)| self.dropped_calls.contains(call));
        gone.fold(known, |known, (n, _)| known.then(Fingerprint::of_numbers(n, usize::MAX)))
    }

    /// The tokens of the request as it came.
    pub(super) fn counts(&self) -> &Counts {
        self.counts.get_or_init(|| {
            let (ParsedRequest { dialect, body, conversation }, gauge) = (self.request, self.gauge());
            let tools = conversation.tools.map_or(0, |tools| dialect.tokens(gauge, Countable::Tools, tools.of(body)));
            let format =
                conversation.format.map_or(0, |format| dialect.tokens(gauge, Countable::Format, format.of(body)));
            let instructions = conversation.instructions.map(|instructions| instructions.of(body));
            let instructions = instructions.map_or(0, |raw| dialect.tokens(gauge, Countable::Instructions, raw));
            let applied = self.applied();
            let summary = applied.map(|applied| applied.fold.summary());
            let tokens = |(index, unit): (UnitIndex, &Unit)| {
                if summary == Some(index) || index.get() < conversation.traits.n_compacted || unit.flags.for_program {
                    return 0;
                }
                dialect.known_tokens(gauge, Countable::Element, unit.fingerprints(body).unit, || unit.span.of(body))
            };
            let mut units: Vec<_> = conversation.indexed_units().map(tokens).collect();
            if let Some(AppliedSummary { fold, summary }) = applied {
                let reopened: usize = units.get(UnitIndex::numbers(&fold.in_place())).unwrap_or_default().iter().sum();
                if let Some(tokens) = units.get_mut(fold.summary().get()) {
                    *tokens = summary.tokens_replaced.saturating_sub(reopened);
                }
            }
            let base = REQUEST_OVERHEAD + tools + format + instructions;
            Counts { base, units }
        })
    }
}
