//! The part of the window that results which arrive together may take.
//!
//! All results between two messages of the model are a batch: the model reads them at once. A batch may take a quarter of
//! the window. This limit ignores the rest of the request, so that later requests cut the same results in the same way. The
//! three results that `clear_tool_results` keeps then fit together with a new batch. The longest results are cut first, to a
//! common length.
//!
//! Results that read something back are cut only if the batch takes more than half of the window without that.

use std::collections::BTreeMap;

use crate::conversation::{Role, UnitIndex};
use crate::draft::Draft;

/// Which results are cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CutRule {
    /// It is never cut.
    Never,
    /// It is cut where the window asks for it, after all others.
    LastResort,
    /// It may be cut.
    Usual,
}

/// The part of the window that a batch may take; where it has results that are read back, twice as much.
const PART: usize = 4;

/// The least part of the window that the results under one rule keep in a batch.
const LEAST_PART: usize = 16;

/// The part of what there is room for that is used: the tokens of a text are not spread evenly, and what is sent again with
/// its notices must not be too much.
const USED: (usize, usize) = (4, 5);

/// A batch of fewer bytes fits, as no token is shorter than a byte.
pub(super) fn least_bytes(window: usize) -> usize {
    window / PART
}

/// The most bytes of each result, for the batches that exceed their part.
pub(super) fn shares(draft: &Draft<'_>, rule: impl Fn(UnitIndex) -> CutRule) -> BTreeMap<UnitIndex, usize> {
    let is_long = |window: &usize| draft.n_bytes > least_bytes(*window);
    let Some(window) = draft.window().filter(is_long) else { return BTreeMap::new() };
    let units = draft.conversation.indexed_units();
    let units: Vec<_> = units.filter(|(_, unit)| matches!(unit.role, Role::Tool | Role::Assistant)).collect();
    let batches = units.chunk_by(|(_, one), (_, next)| one.role == next.role).map(|batch| {
        let results = batch.iter().filter(|(_, unit)| unit.role == Role::Tool);
        results.map(|(index, _)| *index).collect::<Vec<_>>()
    });
    let n_bytes = |batch: &[UnitIndex]| batch.iter().map(|unit| draft.content_len(*unit)).sum::<usize>();
    let long = batches.filter(|batch| n_bytes(batch) > least_bytes(window));
    long.flat_map(|batch| shares_of(draft, window, &batch, &rule)).collect()
}

/// The most bytes of each result of one batch.
fn shares_of(
    draft: &Draft<'_>,
    window: usize,
    batch: &[UnitIndex],
    rule: impl Fn(UnitIndex) -> CutRule,
) -> Vec<(UnitIndex, usize)> {
    let batch: Vec<_> = batch.iter().map(|unit| (*unit, rule(*unit), draft.tokens_as_received(*unit))).collect();
    let tokens_of =
        |of: CutRule| batch.iter().filter(move |(_, rule, _)| *rule == of).map(|(_, _, n_tokens)| *n_tokens);
    let total = |of: CutRule| tokens_of(of).sum::<usize>();
    let level_of = |of: CutRule, room: usize| {
        let (room, (part, whole)) = (room.max(window / LEAST_PART), USED);
        if total(of) <= room { usize::MAX } else { level(tokens_of(of).collect(), room / whole * part) }
    };
    let whole = total(CutRule::Never);
    let room = (window / PART).saturating_sub(whole + total(CutRule::LastResort));
    let usual = level_of(CutRule::Usual, room);
    // The usual results, once cut, are counted with all of their room, so that the same is found when they are sent again.
    let rest = whole + total(CutRule::Usual).min(room.max(window / LEAST_PART));
    let last = level_of(CutRule::LastResort, (window / PART * 2).saturating_sub(rest));
    let share = |&(unit, rule, n_tokens): &(UnitIndex, CutRule, usize)| {
        let level = match rule {
            CutRule::Never => return None,
            CutRule::LastResort => last,
            CutRule::Usual => usual,
        };
        (n_tokens > level).then(|| (unit, draft.text_len(unit).saturating_mul(level) / n_tokens))
    };
    batch.iter().filter_map(share).collect()
}

/// The greatest common limit under which all sizes together are at most `most`.
fn level(mut sizes: Vec<usize>, most: usize) -> usize {
    sizes.sort_unstable();
    let (n, mut left) = (sizes.len(), most);
    for (i, size) in sizes.into_iter().enumerate() {
        let share = left / (n - i);
        if size > share {
            return share;
        }
        left -= size;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_are_cut_to_a_common_length() {
        for (sizes, most, expected) in [
            (vec![], 10, usize::MAX),
            (vec![5, 5], 10, usize::MAX),
            (vec![5, 6], 10, 5),
            (vec![1, 9, 9], 11, 5),
            (vec![9, 1, 3, 30], 20, 8),
            (vec![8, 8, 8], 0, 0),
        ] {
            let found = level(sizes.clone(), most);
            assert_eq!(found, expected, "{sizes:?} {most}");
            assert!(found == usize::MAX || sizes.iter().map(|size| size.min(&found)).sum::<usize>() <= most);
        }
    }
}
