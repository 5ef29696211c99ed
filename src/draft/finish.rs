//! From decisions to splices, offloads and the report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::asks;
use super::prefix_keys::display_name;
use super::replacement::Replacement;
use super::splice_array::{InsertedElement, splice_array};
use super::{AppliedSummary, Draft, Inserted, Insertion};
use crate::conversation::{ElementIndex, UnitIndex};
use crate::dialect::{BytesAt, Emptied};
use crate::payload::{Lifetime, Payload, PayloadName};
use crate::plan::{Action, Basis, Layout, OffloadedPayload, Plan, PromptSegment, Report, Sizes};
use crate::span::{Span, Splice, joined, splice};
use crate::summary::UsedSummary;

impl Draft<'_> {
    /// The plan that makes it so.
    pub fn finish(mut self) -> Plan {
        self.strip_reasoning();
        let (mut splices, messages_after, layout) = self.splices();
        let added_tool = self.added_tools();
        let noted = self.note_sent(&splices, added_tool.is_some());
        let drops = self.drops_reasoning().cloned();
        let insertions = drops.iter().map(|drops| &drops.insertion).chain(&added_tool).chain(&self.cache_request);
        for BytesAt { at, bytes } in insertions {
            let behind = splices.partition_point(|splice| splice.span.start < *at);
            splices.insert(behind, Splice { span: Span::empty(*at), with: bytes.clone() });
        }
        let body_len = self.request.body.len();
        let bytes_after =
            splices.iter().fold(body_len, |length, splice| length + splice.with.len() - splice.span.len());
        let rewritten = self.rewritten_tokens();
        let segments = self.prompt_segments();
        let (tokens_before, tokens_after) = self.total_tokens(&segments);
        let (mut changes, mut left_out) = std::mem::take(&mut self.journal).outcome();
        for change in &mut changes {
            change.tokens = self.measured(change.action, &rewritten);
            change.action = change.action.renumbered(|unit| self.original_element(UnitIndex::new(unit)));
        }
        for skipped in &mut left_out {
            skipped.message = skipped.message.map(|unit| self.original_element(UnitIndex::new(unit)));
        }
        let window = self.window.get().copied().flatten();
        let report = Report {
            model: self.request.conversation.model.clone().map(Into::into),
            messages_before: self.whole.elements.len(),
            messages_after,
            bytes_before: body_len,
            bytes_after,
            tokens_before,
            tokens_after,
            left_out,
            adds_tool: added_tool.is_some(),
            requests_cache: self.cache_request.is_some(),
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
        let asks::Asks { list: asks, used: answers, .. } = self.asks.take();
        let basis = Basis {
            answers,
            window,
            root: self.root,
            conversation: display_name(self.whole(), &self.context),
            summary: self.applied().map(used),
            counted: self.counted_with(),
            received: self.received(),
            cold_passes: self.cold.made.take(),
            cold_pass_place: self.cold.place,
            ..noted
        };
        let lifetime =
            if self.request.conversation.traits.history_elsewhere { Lifetime::Chained } else { Lifetime::Usual };
        let beta = drops.map(|drops| drops.beta);
        let needs = self.need.take();
        Plan { splices, beta, lifetime, needs, asks, offloads: self.offloads(), segments, basis, report }
    }

    /// The index that the element of a unit had as it came.
    pub(super) fn original_element(&self, unit: UnitIndex) -> usize {
        self.whole.unit(self.original_unit(unit)).map_or(self.whole.elements.len(), |unit| unit.element.get())
    }

    /// A unit as the edits have left it.
    pub(super) fn unit_json(&self, unit: UnitIndex) -> Bytes {
        self.json_with(unit, &[])
    }

    /// A message with more values replaced than are yet.
    pub(super) fn json_with(&self, unit: UnitIndex, replacements: &[Replacement]) -> Bytes {
        self.spliced(self.span(unit), &self.splices_in(unit, replacements))
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
        joined(splice(&self.request.body.slice(span.start..span.end), &splices))
    }

    /// What changes inside a message; `more` goes before what has been decided.
    fn splices_in(&self, unit: UnitIndex, more: &[Replacement]) -> Vec<Splice> {
        let replacements = self.replacements_with(unit, more);
        let mut splices: Vec<_> = replacements.map(Replacement::splice).collect();
        if self.has_lost_entries(unit) {
            splices.extend(self.entries_changed(self.element_of(unit), &[]));
        }
        splices.sort_by_key(|splice| splice.span.start);
        splices
    }

    /// Whether calls or reasoning have left a unit.
    pub(super) fn has_lost_entries(&self, unit: UnitIndex) -> bool {
        self.batches.contains_key(&unit) || self.stripped.contains(&unit)
    }

    /// The splices that leave of the array inside an element what stays, and put results in.
    fn entries_changed(&self, element: ElementIndex, inserted: &[InsertedElement]) -> Vec<Splice> {
        let conversation = self.request.conversation;
        let units = conversation.element(element).map(|element| element.units.clone()).unwrap_or_default();
        let units_gone = UnitIndex::each(&units).filter(|unit| !self.is_in_place(*unit));
        let units_gone = units_gone.filter_map(|unit| conversation.unit(unit)).map(|unit| unit.span.start);
        let stripped = UnitIndex::each(&units).any(|unit| self.stripped.contains(&unit));
        let calls = conversation.block_range(units);
        let calls_gone = calls.filter(|call| self.dropped_calls.contains(call));
        let calls_gone = calls_gone.filter_map(|call| conversation.block(call)).map(|block| block.span.start);
        let mut gone: BTreeSet<usize> = units_gone.chain(calls_gone).collect();
        if gone.is_empty() && !stripped && inserted.is_empty() {
            return Vec::new();
        }
        let Some(entries) = self.entries(element) else { return Vec::new() };
        gone.extend(entries.reasoning.iter().filter(|_| stripped).map(|span| span.start));
        let stand: Vec<_> = entries.spans.iter().map(|span| (*span, !gone.contains(&span.start))).collect();
        match entries.emptied {
            Emptied::CutKey(key) if inserted.is_empty() && stand.iter().all(|(_, stands)| !stands) => {
                vec![Splice { span: key, with: Bytes::new() }]
            }
            _ => splice_array(&stand, inserted),
        }
    }

    /// What changes in the array, how many elements it has then, and where they are.
    fn splices(&self) -> (Vec<Splice>, usize, Layout) {
        let conversation = self.request.conversation;
        let inside = self.insertions_inside();
        let (inserted, placed) = self.inserted_elements();
        let mut stands: Vec<bool> = vec![false; conversation.elements.len()];
        let standing = conversation.units.iter().zip(&self.in_place).filter(|(_, in_place)| **in_place);
        for element in standing.map(|(unit, _)| unit.element).chain(inside.keys().copied()) {
            if let Some(stands) = stands.get_mut(element.get()) {
                *stands = true;
            }
        }
        let n_elements = inserted.len() + stands.iter().filter(|stands| **stands).count();
        let changed_order = !inserted.is_empty() || !self.hidden.is_empty() || stands.contains(&false);
        let mut splices = if changed_order {
            let elements = conversation.elements.iter().map(|element| element.span);
            let mut elements: Vec<_> = elements.zip(stands.iter().copied()).collect();
            elements.extend(self.hidden.iter().map(|hidden| (*hidden, false)));
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
            splices.sort_by_key(|splice| splice.span.start); // stable: pieces at one place stay in order
        }
        (splices, n_elements, self.layout(&stands, placed))
    }

    /// Where the elements are, by the indices that they had as they came.
    fn layout(&self, stands: &[bool], placed: Vec<(ElementIndex, Option<ElementIndex>)>) -> Layout {
        let moved: BTreeSet<_> = placed.iter().filter_map(|(_, moved)| *moved).collect();
        let came = |element: ElementIndex| self.original_element(self.request.conversation.first_unit(element));
        let stands = stands.iter().enumerate().map(|(element, stands)| (ElementIndex::new(element), *stands));
        let gone = stands.filter(|(element, stands)| !*stands && !moved.contains(element));
        Layout {
            gone: gone.map(|(element, _)| came(element)).collect(),
            placed: placed.into_iter().map(|(behind, moved)| (came(behind), moved.map(came))).collect(),
        }
    }

    /// What changes inside an element.
    pub(super) fn inside(&self, element: ElementIndex, inserted: &[InsertedElement]) -> Vec<Splice> {
        let conversation = self.request.conversation;
        let units = conversation.element(element).map(|element| element.units.clone()).unwrap_or_default();
        let is_array = conversation.unit(units.start).is_some_and(|unit| !conversation.is_element(unit));
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
        let conversation = self.request.conversation;
        let mut results: BTreeMap<ElementIndex, Vec<&Insertion>> = BTreeMap::new();
        for added in self.insertions.iter().filter(|added| !added.gone && !self.inserts_into_element(added.behind)) {
            results.entry(self.element_of(added.behind)).or_default().push(added);
        }
        let (mut inserted, mut placed) = (Vec::new(), Vec::new());
        for (behind, results) in results {
            let elements =
                self.request.dialect.result_elements(results.iter().map(|added| self.added_bytes(added)).collect());
            let moved = |added: &Insertion| match added.what {
                Inserted::Moved { unit, .. } => conversation.unit(unit).filter(|unit| conversation.is_element(unit)),
                Inserted::New { .. } | Inserted::Stood { .. } | Inserted::Text { .. } => None,
            };
            let moved =
                results.into_iter().map(|added| moved(added).map(|unit| unit.element)).chain(std::iter::repeat(None));
            placed.extend(elements.iter().zip(moved).map(|(_, moved)| (behind, moved)));
            let start = conversation.element(behind).map_or(0, |element| element.span.start);
            inserted.extend(elements.into_iter().map(|bytes| InsertedElement { behind: start, bytes }));
        }
        (inserted, placed)
    }

    fn added_bytes(&self, added: &Insertion) -> Bytes {
        match &added.what {
            Inserted::Moved { unit, .. } => self.unit_json(*unit),
            inserted => inserted.until_then().clone(),
        }
    }

    /// The elements with something inside them that is different.
    fn touched(&self, inside: &BTreeMap<ElementIndex, Vec<InsertedElement>>) -> BTreeSet<ElementIndex> {
        let conversation = self.request.conversation;
        let entries_gone = conversation.units.iter().zip(&self.in_place).filter(|(_, in_place)| !**in_place);
        let entries_gone =
            entries_gone.filter(|(unit, _)| !conversation.is_element(unit)).map(|(unit, _)| unit.element);
        let written = self.changed_units().into_iter().map(|unit| self.element_of(unit));
        written.chain(entries_gone).chain(inside.keys().copied()).collect()
    }

    /// The units with something in them that is different.
    fn changed_units(&self) -> BTreeSet<UnitIndex> {
        let units = &self.request.conversation.units;
        let in_unit = |at: &usize| UnitIndex::new(units.partition_point(|unit| unit.span.end <= *at));
        let lost = self.batches.keys().chain(&self.stripped).copied();
        self.replacements.keys().map(in_unit).chain(lost).collect()
    }

    /// The tokens of the messages with something in them that is different, if anyone has asked for tokens.
    fn rewritten_tokens(&self) -> BTreeMap<UnitIndex, usize> {
        let asked = self.counts.get().map(|_| self.changed_units());
        asked.into_iter().flatten().map(|unit| (unit, self.message_tokens(unit))).collect()
    }

    /// The tokens of the whole request before and after, if anyone has asked for tokens.
    fn total_tokens(&self, segments: &[PromptSegment]) -> (Option<usize>, Option<usize>) {
        let Some(counts) = self.counts.get() else { return (None, None) };
        let before = counts.base + counts.units.iter().sum::<usize>();
        (Some(before), Some(segments.iter().map(|segment| segment.tokens).sum()))
    }

    /// The tokens before and after a change that made a text smaller, if anyone has asked for tokens.
    fn measured(&self, action: Action, rewritten: &BTreeMap<UnitIndex, usize>) -> Option<Sizes> {
        let counts = self.counts.get()?;
        let (unit, is_dropped) = match action {
            Action::Truncate { message } | Action::Clear { message } => (UnitIndex::new(message), false),
            Action::Drop { message } => (UnitIndex::new(message), true),
            Action::Summarize { from, .. } => {
                (self.summarised().filter(|summary| self.original_element(*summary) == from)?, false)
            }
            _ => return None,
        };
        let before = counts.of(unit)?;
        let after = if is_dropped { 0 } else { rewritten.get(&unit).copied().unwrap_or(before) };
        Some(Sizes { before, after })
    }

    /// Returns what must be stored, each payload once.
    fn offloads(self) -> Vec<OffloadedPayload> {
        let mut seen = BTreeSet::new();
        let unread_start = self.unread_start();
        let replaced =
            self.replacements.into_values().filter_map(|replacement| Some((replacement.source, replacement.stored?)));
        let stored = replaced.chain(self.orphans.into_values().flatten()).chain(self.ended_reasoning);
        let new = stored.filter(|(_, name)| seen.insert(name.key));
        let raw = |Span { start, end }| self.request.body.slice(start..end);
        new.map(|(source, PayloadName { key, stored_len, media, .. })| OffloadedPayload {
            key,
            payload: Payload::of_value(raw(source), stored_len, media),
            likely_stored: source.start < unread_start,
        })
        .collect()
    }
}
