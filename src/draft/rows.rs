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

impl Row {
    /// Whether the next row is in the same element. Each that is put in has its own.
    fn shares_element(&self, next: &Self) -> bool {
        self.element == next.element && matches!(self.element, RowElement::Original(_))
    }
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
        let call_of = |unit, role| if role == Role::Tool { pairing.answered_block(unit) } else { None };
        for (index, of) in self.conversation.indexed_units() {
            if self.is_in_place(index) {
                let (unit, call) = (Some(index), call_of(index, of.role));
                let element = RowElement::Original(of.element);
                rows.push(Row { role: of.role, unit, call, element, insertion: None });
            }
            while let Some((n, item)) = insertions.next_if(|(_, item)| item.behind == index) {
                let (role, unit, call) = match item.what {
                    _ if item.gone => continue,
                    Inserted::Moved(unit) | Inserted::Stood(unit) => {
                        (Role::Tool, Some(unit), call_of(unit, Role::Tool))
                    }
                    Inserted::New(call) => (Role::Tool, None, Some(call)),
                    Inserted::Text => (Role::User, None, None),
                };
                rows.push(Row { role, unit, call, element: self.element_behind(index), insertion: Some(n) });
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
        let n_calls = |unit: UnitIndex| match self.batches.get(&unit) {
            Some(n_left) => *n_left,
            None => self.unit(unit).map_or(0, |unit| self.conversation.blocks_of(unit).len()),
        };
        row.unit.is_some_and(|unit| n_calls(unit) > 0)
    }

    /// Rows as [`unread_from`](crate::conversation::unread_from) is told of them.
    pub fn turn_units(&self, rows: &[Row]) -> Vec<TurnUnit> {
        let mut before = None;
        let turn_units = rows.iter().map(|row| {
            let now = row.unit.and_then(|unit| self.unit(unit)).map(|unit| unit.turn);
            let continues = now.is_some() && before == now && row.insertion.is_none();
            before = now;
            TurnUnit { role: row.role, calls: self.has_calls(row), continues }
        });
        turn_units.collect()
    }

    /// The elements that rows are in, as the edits so far have left them, each with the rows that it has.
    pub fn elements(&self, rows: &[Row]) -> Vec<(Bytes, Range<usize>)> {
        let inside = self.insertions_inside();
        let (mut elements, mut end) = (Vec::new(), 0);
        for rows in rows.chunk_by(Row::shares_element) {
            let start = end;
            end += rows.len();
            let Some(row) = rows.first() else { continue };
            if let RowElement::Original(element) = row.element {
                let span = self.conversation.element(element).map(|element| element.span).unwrap_or_default();
                let changed = self.inside(element, inside.get(&element).map_or(&[][..], Vec::as_slice));
                elements.push((self.spliced(span, &changed), start..end));
            } else {
                let json = self.dialect.result_elements(vec![self.json(row)]);
                elements.extend(json.into_iter().map(|json| (json, start..end)));
            }
        }
        elements
    }

    /// A message as the edits so far have left it.
    fn json(&self, row: &Row) -> Bytes {
        let inserted = || self.insertion_of(row).map(|inserted| inserted.bytes.clone());
        row.unit.map(|unit| self.json_with(unit, &[])).or_else(inserted).unwrap_or_default()
    }

    /// How many elements rows are in. Each that is put in counts as one.
    pub fn n_elements(&self, rows: &[Row]) -> usize {
        rows.chunk_by(Row::shares_element).count()
    }

    // === helpers ===

    pub(super) fn element_of(&self, unit: UnitIndex) -> ElementIndex {
        self.unit(unit).map(|unit| unit.element).unwrap_or_default()
    }

    /// Whether what is put after a unit goes into its element: it is a result that is an entry of that.
    pub(super) fn inserts_into_element(&self, behind: UnitIndex) -> bool {
        let is_entry = |unit: &Unit| unit.role == Role::Tool && !self.conversation.is_element(unit);
        self.unit(behind).is_some_and(|unit| is_entry(unit) && self.entries(unit.element).is_some())
    }

    /// The element that a result is in which is put after a unit.
    pub(super) fn element_behind(&self, behind: UnitIndex) -> RowElement {
        let element = self.element_of(behind);
        if self.inserts_into_element(behind) { RowElement::Original(element) } else { RowElement::Inserted(element) }
    }
}
