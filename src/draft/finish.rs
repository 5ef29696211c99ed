//! From decisions to splices, offloads and the report.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;

use super::{Applied, Draft, Placed, replace::Slot, seams};
use crate::{
    payload::{Name, Payload},
    plan::{Action, Basis, OffloadEffect, Plan, Report, Sizes, Stretch},
    span::{Span, Splice, joined, splice},
    summary::Used,
};

impl Draft<'_> {
    /// The plan that makes it so.
    pub fn finish(mut self) -> Plan {
        let splices = self.splices();
        let body_len = self.source.body.len();
        let bytes_after =
            splices.iter().fold(body_len, |length, splice| length + splice.with.len() - splice.span.len());
        let rewritten = self.rewritten_tokens();
        let reads = self.stretches();
        let (tokens_before, tokens_after) = self.total_tokens(&reads);
        self.measure_changes(&rewritten);
        self.number_as_they_came();
        let n_added = self.added.iter().filter(|added| !added.gone).count();
        let report = Report {
            model: self.source.conversation.model.clone().map(Into::into),
            messages_before: self.whole.messages.len(),
            messages_after: self.in_place.iter().filter(|in_place| **in_place).count() + n_added,
            bytes_before: body_len,
            bytes_after,
            tokens_before,
            tokens_after,
            left_out: std::mem::take(&mut self.left_out),
            unknown_window: self.unknown_window,
            changes: std::mem::take(&mut self.changes).into_iter().flatten().collect(),
        };
        let window = self.window.get().copied().flatten();
        let used = |applied: &Applied| Used { end: applied.fold.messages.end, summary: Arc::clone(&applied.summary) };
        let basis = Basis { window, summary: self.applied().map(used) };
        Plan { splices, needs: self.need.take(), offloads: self.offloads(), reads, basis, report }
    }

    /// Gives messages in changes the indices that they had as they came.
    fn number_as_they_came(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        for change in changes.iter_mut().flatten() {
            change.action = change.action.renumbered(|message| self.as_it_came(message));
        }
        let mut left_out = std::mem::take(&mut self.left_out);
        for left_out in &mut left_out {
            left_out.message = left_out.message.map(|message| self.as_it_came(message));
        }
        (self.changes, self.left_out) = (changes, left_out);
    }

    /// A message as the edits have left it; none if no value and no call in it is another one now.
    pub(super) fn rewritten(&self, message: usize) -> Option<Bytes> {
        let splices = self.splices_in(message, &[]);
        (!splices.is_empty()).then(|| self.spliced(self.span(message), &splices))
    }

    /// A message with more values replaced than are yet.
    pub(super) fn written_with(&self, message: usize, slots: &[Slot]) -> Bytes {
        self.spliced(self.span(message), &self.splices_in(message, slots))
    }

    /// A part of the body with some of it replaced.
    pub(super) fn spliced(&self, span: Span, splices: &[Splice]) -> Bytes {
        let at_zero = |at: usize| at.saturating_sub(span.start);
        let splices: Vec<_> = splices
            .iter()
            .map(|Splice { span, with }| Splice {
                span: Span { start: at_zero(span.start), end: at_zero(span.end) },
                with: with.clone(),
            })
            .collect();
        joined(splice(&self.source.body.slice(span.start..span.end), &splices))
    }

    /// What changes inside a message; `more` goes before what has been decided.
    fn splices_in(&self, message: usize, more: &[Slot]) -> Vec<Splice> {
        let Span { start, end } = self.span(message);
        let decided = self.slots.range(start..end.max(start)).map(|(_, slot)| slot);
        let decided = decided.filter(|slot| more.iter().all(|more| more.span != slot.span));
        let slots = more.iter().chain(decided);
        let mut splices: Vec<_> = slots.map(Slot::splice).chain(self.calls_out(message)).collect();
        splices.sort_by_key(|splice| splice.span.start);
        splices
    }

    /// What takes calls out of a message.
    fn calls_out(&self, message: usize) -> Vec<Splice> {
        let Some(batch) = self.batches.get(&message) else { return Vec::new() };
        if batch.n_left == 0 {
            return vec![Splice { span: batch.key, with: Bytes::new() }];
        }
        let conversation = self.source.conversation;
        let range = conversation.messages.get(message).map(|message| message.blocks.clone()).unwrap_or_default();
        let blocks = conversation.blocks.get(range.clone()).unwrap_or_default();
        let stands = range.map(|call| !self.dropped_calls.contains(&call));
        let entries: Vec<_> = blocks.iter().map(|block| block.span).zip(stands).collect();
        seams::sew(&entries, &[])
    }

    fn splices(&self) -> Vec<Splice> {
        let mut coming: Vec<_> = self
            .added
            .iter()
            .filter(|added| !added.gone)
            .map(|added| {
                let bytes = match &added.what {
                    Placed::New { bytes, .. } => bytes.clone(),
                    Placed::Moved { message, .. } => self.rewritten(*message).unwrap_or_else(|| {
                        let span = self.span(*message);
                        self.source.body.slice(span.start..span.end)
                    }),
                };
                seams::Coming { behind: self.span(added.behind).start, bytes }
            })
            .collect();
        coming.sort_by_key(|coming| coming.behind); // stable: what was put first stays first
        let changed_order = !coming.is_empty() || !self.hidden.is_empty() || self.in_place.contains(&false);
        let mut splices = if changed_order {
            let messages = self.source.conversation.messages.iter().map(|message| message.span);
            let mut elements: Vec<_> = messages.zip(self.in_place.iter().copied()).collect();
            elements.extend(self.hidden.iter().map(|hidden| (*hidden, false)));
            elements.sort_by_key(|(span, _)| span.start);
            seams::sew(&elements, &coming)
        } else {
            Vec::new()
        };
        let standing = |message: &usize| self.in_place.get(*message).copied().unwrap_or_default();
        let inside: Vec<_> =
            self.written_on().into_iter().filter(standing).flat_map(|message| self.splices_in(message, &[])).collect();
        if !inside.is_empty() {
            splices.extend(inside);
            splices.sort_by_key(|splice| splice.span.start); // stable: pieces at one place stay in order
        }
        splices
    }

    /// The messages with something in them that is another now.
    fn written_on(&self) -> BTreeSet<usize> {
        let messages = &self.source.conversation.messages;
        let in_message = |at: &usize| messages.partition_point(|message| message.span.end <= *at);
        self.slots.keys().map(in_message).chain(self.batches.keys().copied()).collect()
    }

    /// The tokens of the messages with something in them that is another now, if anybody has asked for tokens.
    fn rewritten_tokens(&self) -> BTreeMap<usize, usize> {
        let asked = self.counts.get().map(|_| self.written_on());
        asked.into_iter().flatten().map(|message| (message, self.message_tokens(message))).collect()
    }

    /// The tokens of the whole request before and after, if anybody has asked for tokens.
    fn total_tokens(&self, reads: &[Stretch]) -> (Option<usize>, Option<usize>) {
        let Some(counts) = self.counts.get() else { return (None, None) };
        let before = counts.base + counts.messages.iter().sum::<usize>();
        (Some(before), Some(reads.iter().map(|stretch| stretch.tokens).sum()))
    }

    /// Puts tokens to the changes that made a text smaller, if anybody has asked for tokens.
    fn measure_changes(&mut self, rewritten: &BTreeMap<usize, usize>) {
        let Some(counts) = self.counts.get() else { return };
        let sizes: Vec<_> = self
            .changes
            .iter()
            .map(|change| match change.as_ref()?.action {
                Action::Truncate { message } | Action::Clear { message } => {
                    let before = counts.messages.get(message).copied()?;
                    Some(Sizes { before, after: rewritten.get(&message).copied().unwrap_or(before) })
                }
                Action::Summarize { from, .. } => {
                    let summary = self.summarised().filter(|summary| self.as_it_came(*summary) == from)?;
                    let before = counts.messages.get(summary).copied()?;
                    Some(Sizes { before, after: rewritten.get(&summary).copied().unwrap_or(before) })
                }
                Action::Drop { message } => Some(Sizes { before: counts.messages.get(message).copied()?, after: 0 }),
                _ => None,
            })
            .collect();
        for (change, tokens) in self.changes.iter_mut().zip(sizes) {
            if let Some(change) = change {
                change.tokens = tokens;
            }
        }
    }

    /// What must be stored, each payload once.
    fn offloads(self) -> Vec<OffloadEffect> {
        let mut seen = BTreeSet::new();
        let stored = self.slots.into_values().filter_map(|slot| Some((slot.span, slot.stored?)));
        let new = stored.filter(|(_, name)| seen.insert(name.key));
        let raw = |Span { start, end }| self.source.body.slice(start..end);
        new.map(|(span, Name { key, stored_len, .. })| OffloadEffect {
            key,
            payload: Payload::of_value(raw(span), stored_len),
        })
        .collect()
    }
}
