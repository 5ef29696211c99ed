//! How much each caller keeps of a store that is full.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// The bytes above which callers lose texts, so that together they lose `excess`: whoever has most, first. Who has no more keeps
/// everything, also if what others have above cannot be removed yet.
pub(crate) fn fair_level(stored: impl IntoIterator<Item = u64>, excess: u64) -> u64 {
    let mut stored: Vec<_> = stored.into_iter().collect();
    stored.sort_unstable_by(|one, other| other.cmp(one));
    let (mut n, mut sum) = (0_u64, 0_u64);
    for (bytes, next) in stored.iter().zip(stored.iter().skip(1).chain(&[0])) {
        (n, sum) = (n + 1, sum.saturating_add(*bytes));
        if sum.saturating_sub(next.saturating_mul(n)) >= excess {
            return sum.saturating_sub(excess) / n;
        }
    }
    0
}

/// Notes who has more than their share while a store is full, and logs whether it is.
pub(super) fn note_full<O>(held: &mut HashSet<O>, over: HashSet<O>) {
    let callers = over.len();
    match (std::mem::replace(held, over).len(), callers) {
        (0, 1..) => tracing::error!(
            callers,
            "the store is full of what is in use: new texts of those who have more than their share stay in their requests; raise store.max_bytes, or lower store.keep_for"
        ),
        (1.., 0) => tracing::warn!("the store has room again"),
        _ => {}
    }
}

/// Orders entries, the newest of which come first, so that the first ones are each caller's share: those come first that with
/// all newer ones of their owner cost least.
pub(super) fn fairest_first<T, O: Eq + Hash>(entries: Vec<T>, cost: impl Fn(&T) -> (O, u64)) -> Vec<T> {
    let mut costs = HashMap::new();
    let with_cost = |entry| {
        let (owner, cost) = cost(&entry);
        let all: &mut u64 = costs.entry(owner).or_default();
        *all = all.saturating_add(cost);
        (*all, entry)
    };
    let mut entries: Vec<_> = entries.into_iter().map(with_cost).collect();
    entries.sort_by_key(|(cost, _)| *cost);
    entries.into_iter().map(|(_, entry)| entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_each_come_first() {
        let entries = vec![("b", 2), ("b", 1), ("b", 2), ("a", 2), ("c", 9), ("a", 2)];
        let ordered = fairest_first(entries, |(owner, cost)| (*owner, *cost));
        assert_eq!(ordered, [("b", 2), ("a", 2), ("b", 1), ("a", 2), ("b", 2), ("c", 9)]);
    }

    #[test]
    fn who_has_most_loses_first() {
        assert_eq!(fair_level([10, 70, 20], 30), 40, "one alone");
        assert_eq!(fair_level([10, 70, 20], 50), 20, "down to the next");
        assert_eq!(fair_level([10, 70, 20], 60), 15, "then two");
        assert_eq!(fair_level([10, 70, 20], 90), 3, "then all");
        assert_eq!([fair_level([10, 70, 20], 200), fair_level([], 1)], [0, 0]);
        assert_eq!(fair_level([u64::MAX, u64::MAX], 0), u64::MAX);
    }
}
