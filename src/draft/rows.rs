//! The units as the edits so far have left them, and the elements that they are in.

use std::ops::Range;

use bytes::Bytes;

use super::{Draft, Inserted, InsertionIndex};
use crate::conversation::{BlockIndex, ElementIndex, Role, TurnUnit, Unit, UnitIndex};

/// One unit, as the edits so far have left the conversation.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Who speaks.
    pub role: Role,
    /// The index of the unit as it came; none for one that an edit has put in.
    pub unit: Option<UnitIndex>,
    /// Of a result, the block of the call that it answers.
    pub call: Option<BlockIndex>,
    /// The element that it is in, if it is there.
    pub element: RowElement,
    /// The insertion that put it where it is, if it is not where it was.
    pub(super) insertion: Option<InsertionIndex>,
}

/// The element that a row is in.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum RowElement {
    /// One that came.
    Original(ElementIndex),
    /// One that is put in after an element that came.
    Inserted(ElementIndex),
}

impl Draft<'_> {
    /// The messages as the edits so far have left them.
    pub fn rows(&self) -> Vec<Row> {
        let pairing = self.pairing();
        let insertions = self.insertions.iter().enumerate().map(|(n, item)| (InsertionIndex::new(n), item));
        let mut insertions: Vec<_> = insertions.collect();
        insertions.sort_by_key(|(_, item)| item.behind); // stable: what was put first stays first
        let mut insertions = insertions.into_iter().peekable();
        let mut rows = Vec::with_capacity(self.in_place.len());
        let sent = |index: UnitIndex, role| {
            let call = if role == Role::Tool { pairing.answered_block(index) } else { None };
            let element = RowElement::Original(self.element_of(index));
            Row { role, unit: Some(index), call, element, insertion: None }
        };
        for (index, unit) in self.request.conversation.indexed_units() {
            if self.is_in_place(index) {
                rows.push(sent(index, unit.role));
            }
            while let Some((n, item)) = insertions.next_if(|(_, item)| item.behind == index) {
                match item.what {
                    _ if item.gone => {}
                    Inserted::Stood { .. } => {} // always gone
                    Inserted::Moved { unit, .. } => {
                        let element = self.element_behind(index);
                        rows.push(Row { insertion: Some(n), element, ..sent(unit, Role::Tool) });
                    }
                    Inserted::New { call, .. } => {
                        let (call, element) = (Some(call), self.element_behind(index));
                        rows.push(Row { role: Role::Tool, unit: None, call, element, insertion: Some(n) });
                    }
                    Inserted::Text { .. } => {
                        let element = self.element_behind(index);
                        rows.push(Row { role: Role::User, unit: None, call: None, element, insertion: Some(n) });
                    }
                }
            }
        }
        rows
    }

    /// Whether a row is a result of a call that another result has answered before it.
    pub fn is_further(&self, row: &Row) -> bool {
        let pairing = self.pairing();
        row.unit.and_then(|unit| pairing.result(unit)).is_some_and(|result| result.is_further)
    }

    /// Whether a message calls, and not all of its calls have left.
    pub fn has_calls(&self, row: &Row) -> bool {
        let Some(unit) = row.unit else { return false };
        let n_calls =
            self.request.conversation.unit(unit).map_or(0, |unit| self.request.conversation.blocks_of(unit).len());
        self.batches.get(&unit).copied().unwrap_or(n_calls) > 0
    }

    /// Rows as [`unread_from`](crate::conversation::unread_from) is told of them.
    pub fn turn_units(&self, rows: &[Row]) -> Vec<TurnUnit> {
        let turn = |row: &Row| row.unit.and_then(|unit| self.request.conversation.unit(unit)).map(|unit| unit.turn);
        let mut before = None;
        let turn_units = rows.iter().map(|row| {
            let now = turn(row);
            let continues = now.is_some() && before == now && row.insertion.is_none();
            before = now;
            TurnUnit { role: row.role, calls: self.has_calls(row), continues }
        });
        turn_units.collect()
    }

    /// The elements that rows are in, as the edits so far have left them, each with the rows that it has.
    pub fn elements(&self, rows: &[Row]) -> Vec<(Bytes, Range<usize>)> {
        let inside = self.insertions_inside();
        let mut elements = Vec::new();
        let mut start = 0;
        while let Some(row) = rows.get(start) {
            let RowElement::Original(element) = row.element else {
                let json = self.request.dialect.result_elements(vec![self.json(row)]);
                elements.extend(json.into_iter().map(|json| (json, start..start + 1)));
                start += 1;
                continue;
            };
            let rest = rows.get(start..).unwrap_or_default();
            let end = start + rest.iter().take_while(|other| other.element == row.element).count();
            let span = self.request.conversation.element(element).map(|element| element.span).unwrap_or_default();
            let changed = self.inside(element, inside.get(&element).map_or(&[][..], Vec::as_slice));
            elements.push((self.spliced(span, &changed), start..end));
            start = end;
        }
        elements
    }

    /// How many elements rows are in. Each that is put in counts as one.
    pub fn n_elements(&self, rows: &[Row]) -> usize {
        let mut before = None;
        let begins = |row: &&Row| {
            let is_other = before.replace(row.element) != Some(row.element);
            is_other || matches!(row.element, RowElement::Inserted(_))
        };
        rows.iter().filter(begins).count()
    }

    // === helpers ===

    pub(super) fn element_of(&self, unit: UnitIndex) -> ElementIndex {
        self.request.conversation.unit(unit).map(|unit| unit.element).unwrap_or_default()
    }

    /// Whether what is put after a unit goes into its element: it is a result that is an entry of that.
    pub(super) fn inserts_into_element(&self, behind: UnitIndex) -> bool {
        let conversation = self.request.conversation;
        let unit = conversation.unit(behind);
        let is_entry = |unit: &&Unit| unit.role == Role::Tool && !conversation.is_element(unit);
        unit.filter(is_entry).is_some_and(|unit| self.entries(unit.element).is_some())
    }

    /// The element that a result is in which is put after a unit.
    pub(super) fn element_behind(&self, behind: UnitIndex) -> RowElement {
        let element = self.element_of(behind);
        if self.inserts_into_element(behind) { RowElement::Original(element) } else { RowElement::Inserted(element) }
    }
}
