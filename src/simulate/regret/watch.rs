//! Compares what an answer needs with what the policy has left in sight, request by request.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::answer::Needed;
use super::pieces::{Anatomy, Piece, PieceKind};
use super::units::UnitKind;
use super::{Fault, Missed, background};
use crate::dialect::{self, Dialect, ParseError};
use crate::payload::Fingerprint;
use crate::simulate::sent_request::SentRequest;
use crate::simulate::{Transcript, TranscriptError};

/// The history of one session as the client sends it, with all that was recalled, and what is known of its texts.
#[derive(Debug, Default)]
pub(super) struct Watch {
    history: Vec<Past>,
    /// Where each unit is in the history: the elements and the pieces in them, the oldest first.
    occurrences: HashMap<u64, Vec<At>>,
    in_history: HashSet<Fingerprint>,
    /// The pieces of elements that are in views only: placeholders, cut results, summaries.
    made: HashMap<Fingerprint, Arc<[Piece]>>,
    /// The units that are in sight of every request: those of the tools and of instructions outside the array.
    outside: HashSet<u64>,
    n_results: usize,
}

/// An element of the history.
#[derive(Debug)]
struct Past {
    print: Fingerprint,
    pieces: Vec<Piece>,
    /// The number of its first result among all results.
    first_result: usize,
}

/// A piece of the history.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct At {
    element: usize,
    piece: usize,
}

/// The elements that a request has, as it is sent.
pub(super) struct View {
    prints: HashSet<Fingerprint>,
    made: Vec<Arc<[Piece]>>,
}

/// The results of another session, by which the noise of the measure is found.
pub(in crate::simulate) struct Placebo(Vec<Piece>);

/// A piece that owns units which an answer needs.
type Owner<'a> = (&'a Piece, Vec<&'a Needed>);

/// The most units that a fault lists, and the most characters of each.
const MAX_LISTED: usize = 20;
const MAX_LISTED_CHARS: usize = 200;

// === impl Watch ===

impl Watch {
    /// A watch over a session whose requests have this outside of the array.
    pub(super) fn new(outside: Vec<u64>) -> Self {
        Self { outside: outside.into_iter().collect(), ..Self::default() }
    }

    /// Adds an element to the history.
    pub(super) fn push(&mut self, element: &[u8], pieces: Vec<Piece>) {
        let (print, n) = (Fingerprint::of(element), self.history.len());
        for (piece, of) in pieces.iter().enumerate() {
            for unit in &*of.units {
                self.occurrences.entry(*unit).or_default().push(At { element: n, piece });
            }
        }
        self.in_history.insert(print);
        let first_result = self.n_results;
        self.n_results += pieces.iter().filter(|piece| piece.place.kind == PieceKind::Result).count();
        self.history.push(Past { print, pieces, first_result });
    }

    /// Returns what a request shows, as it is sent.
    pub(super) fn view(&mut self, dialect: &dyn Dialect, sent: &SentRequest) -> Result<View, ParseError> {
        let (mut prints, mut made, mut anatomy) = (HashSet::new(), Vec::new(), None);
        for (n, element) in sent.elements().enumerate() {
            let print = Fingerprint::of(element);
            if self.in_history.contains(&print) {
                prints.insert(print);
                continue;
            }
            let pieces = match self.made.entry(print) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let new = || Anatomy::new(dialect, sent.body());
                    let anatomy = anatomy.take().map_or_else(new, Ok).map(|taken| &*anatomy.insert(taken))?;
                    place.insert(anatomy.pieces(n).into())
                }
            };
            made.push(pieces.clone());
        }
        Ok(View { prints, made })
    }

    /// The faults that an answer to this view would have had, the newest owner first.
    pub(super) fn faults(&self, view: &View, needed: &[Needed]) -> Vec<Fault> {
        let mut owners: BTreeMap<At, Vec<&Needed>> = BTreeMap::new();
        for unit in needed.iter().filter(|unit| !self.is_in_sight(view, unit)) {
            for at in self.occurrences.get(&unit.hash).into_iter().flatten() {
                owners.entry(*at).or_default().push(unit);
            }
        }
        let piece = |at: At| self.history.get(at.element)?.pieces.get(at.piece);
        cover(owners.into_iter().rev().filter_map(|(at, needed)| Some((piece(at)?, needed))))
    }

    /// The faults if each result that is out of sight had been the one of the same number in another session.
    pub(super) fn placebo_faults(&self, view: &View, needed: &[Needed], placebo: &Placebo) -> usize {
        let needed: Vec<_> = needed.iter().filter(|unit| !self.is_in_sight(view, unit)).collect();
        let hidden = self.history.iter().rev().filter(|past| !view.prints.contains(&past.print));
        let owners = hidden.flat_map(|past| {
            let n_results = past.pieces.iter().filter(|piece| piece.place.kind == PieceKind::Result).count();
            (past.first_result..past.first_result + n_results).rev()
        });
        let owners = owners.filter_map(|n| {
            let piece = placebo.0.get(n.checked_rem(placebo.0.len())?)?;
            let needed: Vec<_> = needed.iter().copied().filter(|unit| piece.has(unit.hash)).collect();
            Some((piece, needed))
        });
        cover(owners).len()
    }

    /// Whether a unit is in sight, or is so common that it says nothing.
    fn is_in_sight(&self, view: &View, unit: &Needed) -> bool {
        let at = self.occurrences.get(&unit.hash).into_iter().flatten();
        let mut prints = at.filter_map(|at| self.history.get(at.element)).map(|past| past.print);
        background::has(unit.hash)
            || self.outside.contains(&unit.hash)
            || prints.any(|print| view.prints.contains(&print))
            || view.made.iter().any(|pieces| pieces.iter().any(|piece| piece.has(unit.hash)))
    }
}

// === impl Placebo ===

impl Placebo {
    /// The results of a session.
    pub(in crate::simulate) fn of(segments: &[Transcript]) -> Result<Self, TranscriptError> {
        let mut results = Vec::new();
        for segment in segments {
            let body = &segment.body;
            let anatomy = Anatomy::new(dialect::of_body(body), body)?;
            let pieces = (0..segment.n_messages()).flat_map(|n| anatomy.pieces(n));
            results.extend(pieces.filter(|piece| piece.place.kind == PieceKind::Result));
        }
        Ok(Self(results))
    }
}

/// Greedy cover: each owner in turn takes the units that none before it has taken, and is a fault if these are a line or
/// two names.
fn cover<'a>(owners: impl Iterator<Item = Owner<'a>>) -> Vec<Fault> {
    let mut taken = HashSet::new();
    let mut faults = Vec::new();
    for (piece, needed) in owners {
        let needed: Vec<_> = needed.into_iter().filter(|unit| !taken.contains(&unit.hash)).collect();
        if needed.len() > 1 || needed.iter().any(|unit| unit.kind == UnitKind::Line) {
            taken.extend(needed.iter().map(|unit| unit.hash));
            faults.push(fault(piece, needed));
        }
    }
    faults
}

fn fault(piece: &Piece, mut needed: Vec<&Needed>) -> Fault {
    // Lines that an edit needs come first, then other lines, then names.
    needed.sort_by_key(|unit| (!unit.is_old_text, unit.kind, unit.hash));
    let missed = needed.iter().take(MAX_LISTED).map(|unit| Missed {
        kind: unit.kind,
        text: unit.text.chars().take(MAX_LISTED_CHARS).collect(),
        line: piece.text.lines().position(|line| line.contains(&unit.text)).map_or(0, |n| n + 1),
    });
    Fault {
        request: 0,
        from: piece.place.clone(),
        hard: needed.iter().any(|unit| unit.is_old_text),
        n_missed: needed.len(),
        missed: missed.collect(),
        recalled: Arc::clone(&piece.text),
    }
}
