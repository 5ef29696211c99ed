//! From decisions to splices, offloads and the report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::asks;
use super::prefix_keys::{MAX_OPENING, conversation_name};
use super::replace::Replacement;
use super::{AppliedSummary, Draft, Inserted, Insertion};
use crate::conversation::{ElementIndex, UnitIndex};
use crate::dialect::BytesAt;
use crate::payload::{Lifetime, OffloadedPayload, Payload, PayloadName};
use crate::plan::{Action, Basis, Layout, Plan, Report, Sizes};
use crate::span::{Span, Splice, apart, joined, splice};
use crate::summary::UsedSummary;

impl Draft<'_> {
    /// The plan that makes it so.
    pub fn finish(&mut self) -> Box<Plan> {
        self.strip_reasoning();
        let (mut splices, messages_after, layout) = self.splices();
        let added_tool = self.added_tools();
        let noted = self.note_sent(&splices, added_tool.is_some());
        let drops = self.drops_reasoning().cloned();
        let insertions = drops.iter().map(|drops| &drops.insertion).chain(&added_tool).chain(&self.beside);
        for BytesAt { at, bytes } in insertions {
            let behind = splices.partition_point(|splice| splice.span.start < *at);
            splices.insert(behind, Splice { span: Span::empty(*at), with: bytes.clone() });
        }
        let body_len = self.body.len();
        let bytes_after =
            splices.iter().fold(body_len, |length, splice| length + splice.with.len() - splice.span.len());
        if self.applied().is_some() {
            // A summary leaves less than triggers look at, and the estimate of what it saves needs the tokens.
            self.counts();
        }
        let segments = self.prompt_segments(added_tool.as_ref());
        let counts = self.known.counts.get();
        let tokens_before = counts.map(|counts| counts.base + counts.units.iter().sum::<usize>());
        let tokens_after = counts.map(|_| segments.iter().map(|segment| segment.tokens).sum());
        let (mut changes, mut left_out) = std::mem::take(&mut self.journal).outcome();
        for change in &mut changes {
            change.tokens = self.measured(change.action);
            change.action = change.action.renumbered(|unit| self.original_element(UnitIndex::new(unit)));
        }
        for skipped in &mut left_out {
            skipped.message = skipped.message.map(|unit| self.original_element(UnitIndex::new(unit)));
        }
        let window = self.known.window.get().copied().flatten();
        let report = Report {
            model: self.conversation.model.clone().map(Into::into),
            messages_before: self.whole.elements.len(),
            messages_after,
            bytes_before: body_len,
            bytes_after,
            tokens_before,
            tokens_after,
            left_out,
            adds_tool: added_tool.is_some(),
            lacks_recall: self.lacks_recall(),
            beyond_window: window.filter(|window| tokens_after.is_some_and(|tokens| tokens > *window)),
            changes,
            layout,
            ..std::mem::take(&mut self.report)
        };
        let used = |applied: &AppliedSummary| {
            let end = self.whole.elements_of(applied.fold.units.clone()).end.get();
            UsedSummary { end, summary: Arc::clone(&applied.summary) }
        };
        let asks::Asks { list: asks, used: answers, .. } = self.known.asks.take();
        let basis = Basis {
            answers,
            window,
            root: self.root,
            conversation: conversation_name(self.whole(), self.context.keys, self.context.caller, MAX_OPENING),
            summary: self.applied().map(used),
            counted: self.counted_with(),
            received: self.received(),
            cold_passes: self.known.cold.made.take(),
            cold_pass_place: self.known.cold.place,
            ..noted
        };
        let is_chained = self.conversation.traits.history_elsewhere;
        let lifetime = if is_chained { Lifetime::Chained } else { Lifetime::Usual };
        let (beta, needs) = (drops.map(|drops| drops.beta), self.need.take());
        Box::new(Plan { splices, beta, lifetime, needs, asks, offloads: self.offloads(), segments, basis, report })
    }

    /// The index that the element of a unit had as it came.
    pub(super) fn original_element(&self, unit: UnitIndex) -> usize {
        self.whole.unit(self.original_unit(unit)).map_or(self.whole.elements.len(), |unit| unit.element.get())
    }

    /// A unit as the edits have left it, with more values replaced than are yet.
    pub(super) fn json_with(&self, unit: UnitIndex, replacements: &[Replacement]) -> Bytes {
        self.spliced(self.span(unit), &self.splices_in(unit, replacements))
    }

    /// A part of the body with some of it replaced.
    pub(super) fn spliced(&self, Span { start, end }: Span, splices: &[Splice]) -> Bytes {
        let moved = |of: &Splice| {
            let span = Span { start: of.span.start.saturating_sub(start), end: of.span.end.saturating_sub(start) };
            Splice { span, with: of.with.clone() }
        };
        joined(splice(&self.body.slice(start..end), &splices.iter().map(moved).collect::<Vec<_>>()))
    }

    /// The changes inside a message; `more` goes before what has been decided.
    fn splices_in(&self, unit: UnitIndex, more: &[Replacement]) -> Vec<Splice> {
        let replacements = self.replacements_with(unit, more);
        let mut splices: Vec<_> = replacements.map(|replacement| replacement.splice.clone()).collect();
        if self.has_lost_entries(unit) {
            splices.extend(self.entries_changed(self.element_of(unit), &[]));
        }
        splices.sort_by_key(|splice| splice.span.start);
        apart(self.body, splices)
    }

    /// Whether calls or reasoning have left a unit.
    pub(super) fn has_lost_entries(&self, unit: UnitIndex) -> bool {
        self.batches.contains_key(&unit) || self.stripped.contains(&unit)
    }

    /// The splices that leave of the array inside an element what stays, and put results in.
    fn entries_changed(&self, element: ElementIndex, inserted: &[InsertedElement]) -> Vec<Splice> {
        let units = self.conversation.element(element).map(|element| element.units.clone()).unwrap_or_default();
        let stripped = UnitIndex::each(&units).any(|unit| self.stripped.contains(&unit));
        let units_gone = UnitIndex::each(&units).filter(|unit| !self.is_in_place(*unit));
        let calls_gone = self.conversation.block_range(units).filter(|call| self.dropped_calls.contains(call));
        let calls_gone = calls_gone.filter_map(|call| self.conversation.block(call)).map(|block| block.span);
        let gone = units_gone.map(|unit| self.span(unit)).chain(calls_gone);
        let mut gone: BTreeSet<usize> = gone.map(|span| span.start).collect();
        if gone.is_empty() && !stripped && inserted.is_empty() {
            return Vec::new();
        }
        let Some(entries) = self.entries(element) else { return Vec::new() };
        gone.extend(entries.reasoning.iter().filter(|_| stripped).map(|span| span.start));
        let stand: Vec<_> = entries.spans.iter().map(|span| (*span, !gone.contains(&span.start))).collect();
        let is_emptied = inserted.is_empty() && stand.iter().all(|(_, stands)| !stands);
        match entries.key.filter(|_| is_emptied) {
            Some(key) => vec![Splice { span: key, with: Bytes::new() }],
            None => splice_array(&stand, inserted),
        }
    }

    /// The changes of the array, how many elements it has then, and where they are.
    fn splices(&self) -> (Vec<Splice>, usize, Layout) {
        if self.is_untouched() {
            return (Vec::new(), self.conversation.elements.len(), Layout::default());
        }
        let inside = self.insertions_inside();
        let (inserted, placed) = self.inserted_elements();
        let elements = self.conversation.elements.iter().enumerate().map(|(n, of)| (ElementIndex::new(n), of));
        let stands = elements.clone().map(|(element, of)| {
            inside.contains_key(&element) || UnitIndex::each(&of.units).any(|unit| self.is_in_place(unit))
        });
        let stands: Vec<bool> = stands.collect();
        let n_elements = inserted.len() + stands.iter().filter(|stands| **stands).count();
        let mut hidden = self.hidden().peekable();
        let changed_order = !inserted.is_empty() || hidden.peek().is_some() || stands.contains(&false);
        let mut splices = if changed_order {
            let mut elements: Vec<_> = elements.map(|(_, of)| of.span).zip(stands.iter().copied()).collect();
            elements.extend(hidden.map(|hidden| (hidden, false)));
            elements.sort_by_key(|(span, _)| span.start);
            splice_array(&elements, &inserted)
        } else {
            Vec::new()
        };
        let n_outside = splices.len();
        for element in self.touched(&inside) {
            if stands.get(element.get()).copied().unwrap_or_default() {
                splices.extend(self.inside(element, inside.get(&element).map_or(&[][..], Vec::as_slice)));
            }
        }
        if splices.len() > n_outside {
            splices.sort_by_key(|splice| splice.span.start);
        }
        (splices, n_elements, self.layout(&stands, placed))
    }

    /// Whether all messages are as they came.
    fn is_untouched(&self) -> bool {
        self.insertions.is_empty()
            && self.replacements.is_empty()
            && self.batches.is_empty()
            && self.stripped.is_empty()
            && self.applied().is_none()
            && !self.in_place.contains(&false)
    }

    /// Where the elements are, by the indices that they had as they came.
    fn layout(&self, stands: &[bool], placed: Vec<(ElementIndex, Option<ElementIndex>)>) -> Layout {
        let moved: BTreeSet<_> = placed.iter().filter_map(|(_, moved)| *moved).collect();
        let came = |element: ElementIndex| self.original_element(self.conversation.first_unit(element));
        let stands = stands.iter().enumerate().map(|(element, stands)| (ElementIndex::new(element), *stands));
        let gone = stands.filter(|(element, stands)| !*stands && !moved.contains(element));
        Layout {
            gone: gone.map(|(element, _)| came(element)).collect(),
            placed: placed.into_iter().map(|(behind, moved)| (came(behind), moved.map(came))).collect(),
        }
    }

    /// The changes inside an element.
    pub(super) fn inside(&self, element: ElementIndex, inserted: &[InsertedElement]) -> Vec<Splice> {
        let units = self.conversation.element(element).map(|element| element.units.clone()).unwrap_or_default();
        let is_array = self.conversation.unit(units.start).is_some_and(|unit| !self.conversation.is_element(unit));
        if !is_array {
            return self.splices_in(units.start, &[]);
        }
        let mut splices = self.entries_changed(element, inserted);
        let standing = UnitIndex::each(&units).filter(|unit| self.is_in_place(*unit));
        splices.extend(standing.flat_map(|unit| self.splices_in(unit, &[])));
        splices.sort_by_key(|splice| splice.span.start); // stable
        splices
    }

    /// The insertions, by the element that they are put into, each list in the order of the decisions.
    pub(super) fn insertions_inside(&self) -> BTreeMap<ElementIndex, Vec<InsertedElement>> {
        let mut inside: BTreeMap<ElementIndex, Vec<InsertedElement>> = BTreeMap::new();
        for added in self.insertions.iter().filter(|added| !added.gone && self.inserts_into_element(added.behind)) {
            let inserted = InsertedElement { behind: self.span(added.behind).start, bytes: self.added_bytes(added) };
            inside.entry(self.element_of(added.behind)).or_default().push(inserted);
        }
        for inserted in inside.values_mut() {
            inserted.sort_by_key(|inserted| inserted.behind); // stable
        }
        inside
    }

    /// The elements that are put in: what they are, and after which element they come, with the one that each was.
    fn inserted_elements(&self) -> (Vec<InsertedElement>, Vec<(ElementIndex, Option<ElementIndex>)>) {
        let mut results: BTreeMap<ElementIndex, Vec<&Insertion>> = BTreeMap::new();
        for added in self.insertions.iter().filter(|added| !added.gone && !self.inserts_into_element(added.behind)) {
            results.entry(self.element_of(added.behind)).or_default().push(added);
        }
        let (mut inserted, mut placed) = (Vec::new(), Vec::new());
        for (behind, results) in results {
            let bytes = results.iter().map(|added| self.added_bytes(added));
            let elements = self.dialect.result_elements(bytes.collect());
            let moved = results.into_iter().map(|added| match added.what {
                Inserted::Moved(unit) => self.unit(unit).filter(|unit| self.conversation.is_element(unit)),
                _ => None,
            });
            let moved = moved.map(|unit| Some(unit?.element)).chain(std::iter::repeat(None));
            placed.extend(elements.iter().zip(moved).map(|(_, moved)| (behind, moved)));
            let start = self.conversation.element(behind).map_or(0, |element| element.span.start);
            inserted.extend(elements.into_iter().map(|bytes| InsertedElement { behind: start, bytes }));
        }
        (inserted, placed)
    }

    fn added_bytes(&self, added: &Insertion) -> Bytes {
        if let Inserted::Moved(unit) = added.what { self.json_with(unit, &[]) } else { added.bytes.clone() }
    }

    /// The elements with something inside them that is different.
    fn touched(&self, inside: &BTreeMap<ElementIndex, Vec<InsertedElement>>) -> BTreeSet<ElementIndex> {
        let units = self.conversation.units.iter().zip(&self.in_place);
        let entries_gone = units.filter(|(unit, in_place)| !**in_place && !self.conversation.is_element(unit));
        let entries_gone = entries_gone.map(|(unit, _)| unit.element);
        let in_unit = |at: &usize| UnitIndex::new(self.conversation.units.partition_point(|unit| unit.span.end <= *at));
        let lost = self.batches.keys().chain(&self.stripped).copied();
        let written = self.replacements.keys().map(in_unit).chain(lost).map(|unit| self.element_of(unit));
        written.chain(entries_gone).chain(inside.keys().copied()).collect()
    }

    /// The tokens before and after a change that made a text smaller, if anyone has asked for tokens.
    fn measured(&self, action: Action) -> Option<Sizes> {
        let counts = self.known.counts.get()?;
        let unit = match action {
            Action::Truncate { message } | Action::Clear { message } | Action::Drop { message } => {
                UnitIndex::new(message)
            }
            Action::Summarize { from, .. } => {
                self.summarised().filter(|summary| self.original_element(*summary) == from)?
            }
            _ => return None,
        };
        let after = if let Action::Drop { .. } = action { 0 } else { self.message_tokens(unit) };
        Some(Sizes { before: *counts.units.get(unit.get())?, after })
    }

    /// Returns what must be stored, each payload once.
    fn offloads(&self) -> Vec<OffloadedPayload> {
        let mut seen = BTreeSet::new();
        // The offset in the body from which on the model has read nothing.
        let unread = self.last_answer.as_ref().map(|last| last.end).unwrap_or_default();
        let unread_start = self.unit(unread).map_or(self.body.len(), |unit| unit.span.start);
        let replaced =
            self.replacements.values().filter_map(|replacement| Some((replacement.source, replacement.stored?)));
        let stored = replaced.chain(self.orphans.values().flatten().chain(&self.ended_reasoning).copied());
        let new = stored.filter(|(_, name)| seen.insert(name.key));
        new.map(|(source, PayloadName { key, stored_len, media, .. })| OffloadedPayload {
            key,
            payload: Payload::of_value(self.body.slice(source.start..source.end), stored_len, media),
            likely_stored: source.start < unread_start,
        })
        .collect()
    }
}

/// An element that is put into the array.
pub(super) struct InsertedElement {
    /// Where the element begins, in the body, that it is put behind.
    pub(super) behind: usize,
    /// The element.
    pub(super) bytes: Bytes,
}

/// The splices that keep the elements of an array whose flag is true, and put others in. Both lists are in order. Commas and
/// white space of the client stay where an element stays: a dropped element takes along what is between it and the element
/// before it, the first ones of the array what follows them.
fn splice_array(elements: &[(Span, bool)], inserted: &[InsertedElement]) -> Vec<Splice> {
    let first = elements.first().map_or(0, |(first, _)| first.start);
    let (mut splices, mut rest) = (Vec::new(), inserted.iter().peekable());
    // The gap that is open: the last kept element, the last dropped one after it, and what is put there.
    let (mut kept_before, mut dropped_to, mut inserted) = (None, None, Vec::new());
    for &(element, in_place) in elements {
        if in_place {
            splices.extend(gap(first, kept_before, dropped_to.take(), Some(element), &inserted));
            inserted.clear();
            kept_before = Some(element);
        } else {
            dropped_to = Some(element);
        }
        while let Some(item) = rest.next_if(|item| item.behind == element.start) {
            inserted.push(&*item.bytes);
        }
    }
    splices.extend(gap(first, kept_before, dropped_to, None, &inserted));
    splices
}

/// Replaces what lies between two kept elements, or a kept element and the edge of the array, which begins at `first`:
/// `dropped` is the last element that is dropped there, `put` what is put there.
fn gap(first: usize, before: Option<Span>, dropped: Option<Span>, next: Option<Span>, put: &[&[u8]]) -> Option<Splice> {
    if dropped.is_none() && put.is_empty() {
        return None;
    }
    let start = before.map_or(first, |before| before.end);
    let end = match (before, next) {
        (None, Some(next)) => next.start,
        _ => dropped.map_or(start, |dropped| dropped.end),
    };
    let mut with = put.join(&b","[..]);
    match (before, next) {
        _ if put.is_empty() => {}
        (Some(_), _) => with.insert(0, b','),
        (None, Some(_)) => with.push(b','),
        (None, None) => {}
    }
    Some(Splice { span: Span { start, end }, with: with.into() })
}
