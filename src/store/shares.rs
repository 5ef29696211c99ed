//! How much each caller keeps of a store that is full.

/// The bytes above which callers lose texts, so that together they lose `excess`: whoever has most, first. Who has no more keeps
/// everything, also if what others have above cannot be removed yet.
pub(super) fn fair_level(stored: impl IntoIterator<Item = u64>, excess: u64) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;

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
