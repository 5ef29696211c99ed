//! Makes splices from decisions about the elements of a JSON array.
//!
//! Commas and white space of the client stay where an element stays: a dropped element takes along what stands between it
//! and the element before it, the first ones of the array what follows them.

use bytes::{BufMut, Bytes, BytesMut};

use crate::span::{Span, Splice};

/// An element that is put into the array.
pub(super) struct InsertedElement {
    /// Where the element begins, in the body, that it is put behind.
    pub(super) behind: usize,
    /// The element.
    pub(super) bytes: Bytes,
}

/// The splices that keep the elements of an array whose flag is true, and put others in. Both lists are in order.
pub(super) fn splice_array(elements: &[(Span, bool)], inserted: &[InsertedElement]) -> Vec<Splice> {
    let first = elements.first().map_or(0, |(first, _)| first.start);
    let (mut splices, mut rest) = (Vec::new(), inserted.iter().peekable());
    // The gap that is open: the last kept element, the last dropped one after it, and what is put there.
    let (mut kept_before, mut dropped_to, mut inserted) = (None, None, Vec::new());
    for &(element, in_place) in elements {
        if in_place {
            splices.extend(filled_gap(first, kept_before, dropped_to.take(), Some(element), &inserted));
            inserted.clear();
            kept_before = Some(element);
        } else {
            dropped_to = Some(element);
        }
        while let Some(item) = rest.next_if(|item| item.behind == element.start) {
            inserted.push(&item.bytes);
        }
    }
    splices.extend(filled_gap(first, kept_before, dropped_to, None, &inserted));
    splices
}

/// Replaces what lies between two kept elements, or a kept element and the edge of the array, which begins at `first`:
/// `dropped_to` is the last element that is dropped there, `inserted` what is put there.
fn filled_gap(
    first: usize,
    before: Option<Span>,
    dropped_to: Option<Span>,
    behind: Option<Span>,
    inserted: &[&Bytes],
) -> Vec<Splice> {
    if dropped_to.is_none() && inserted.is_empty() {
        return Vec::new();
    }
    let start = before.map_or(first, |before| before.end);
    let end = match (before, behind) {
        (None, Some(behind)) => behind.start,
        _ => dropped_to.map_or(start, |dropped| dropped.end),
    };
    pieces(Span { start, end }, before.is_some(), inserted, before.is_none() && behind.is_some())
}

/// The splices that replace `cut` by array elements. Small elements are copied together; a large one, which is a moved
/// result, stays a slice of the body.
fn pieces(cut: Span, comma_before: bool, elements: &[&Bytes], comma_behind: bool) -> Vec<Splice> {
    const LARGE: usize = 4096;
    let mut pieces = Vec::new();
    let mut text = BytesMut::new();
    for (n, &element) in elements.iter().enumerate() {
        if n > 0 || comma_before {
            text.put_u8(b',');
        }
        if element.len() < LARGE {
            text.put_slice(element);
        } else {
            pieces.push(text.split().freeze());
            pieces.push(element.clone());
        }
    }
    if comma_behind && !elements.is_empty() {
        text.put_u8(b',');
    }
    pieces.push(text.freeze());
    let behind = Span::empty(cut.end);
    let spans = std::iter::once(cut).chain(std::iter::repeat(behind));
    spans.zip(pieces).map(|(span, with)| Splice { span, with }).filter(Splice::does_something).collect()
}
