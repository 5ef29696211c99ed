//! The bill of a request without its edits, or in a dry run with them.

use crate::tokens::Usage;
use crate::units::prorated;

/// A request as it was not sent: without its edits, or in a dry run with them. All are tokens as billed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counterfactual {
    /// Its tokens.
    pub input: u64,
    /// Those that the request before it would have had in common with it.
    pub shared: u64,
    /// Whether this process has seen that request; otherwise another process may have.
    pub is_known: bool,
    /// The tokens of the request that was sent which an earlier one had in common with it, if that is known.
    pub sent_shared: Option<u64>,
    /// Whether the upstream's prompt cache still has the earlier request, where nothing of the one that was sent can show it.
    pub is_warm: bool,
}

/// A beginning of fewer tokens says nothing of a cache: not all keep it.
const MIN_SHARED: u64 = 2048;

impl Counterfactual {
    /// Its usage, where this was billed for the request that was sent. The cache serves the same share of what it can have: what
    /// it had lost of one, it had lost of the other. If it has served more than that, another process had sent the rest; then
    /// both have the same new tokens.
    pub fn usage(&self, billed: &Usage) -> Usage {
        let Usage { input: sent, cached, .. } = *billed;
        let all_but_new = self.input.saturating_sub(sent - cached.min(sent));
        let known = match self.sent_shared.filter(|_| self.is_known) {
            Some(sent_shared) if sent_shared >= MIN_SHARED => {
                let missing = sent_shared.saturating_sub(cached);
                // Edits leave the end of a request as it is, so the same tokens are missing there, unless half of them are.
                if 2 * missing <= sent_shared {
                    self.shared.saturating_sub(missing)
                } else {
                    prorated(self.shared, cached, sent_shared)
                }
            }
            _ if self.is_warm => self.shared,
            // Another process has sent the request before it, or this one before a restart.
            _ if !self.is_known && cached > 0 => self.shared.max(cached),
            _ => 0,
        };
        let beyond = self.sent_shared.map_or(0, |shared| cached.saturating_sub(shared));
        let served = known.max(known.saturating_add(beyond).min(all_but_new));
        // The part that the cache has served without an earlier request: tools and instructions, which both have.
        let unseen = if self.sent_shared.is_some_and(|shared| shared < MIN_SHARED) { cached } else { 0 };
        billed.with_input(self.input, served.max(unseen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BILLED: Usage = Usage { input: 20_000, cached: 12_000, written: 6_000, written_hour: 3_000, output: 100 };

    fn known(input: u64, shared: u64) -> Counterfactual {
        Counterfactual { input, shared, is_known: true, sent_shared: None, is_warm: true }
    }

    #[test]
    fn the_same_request_is_billed_the_same() {
        let same = Counterfactual { sent_shared: Some(12_000), ..known(20_000, 12_000) };
        assert_eq!(same.usage(&BILLED), BILLED);
        let same = Counterfactual { input: 20_000, ..Counterfactual::default() };
        assert_eq!(same.usage(&BILLED), BILLED, "nothing is known of caches");
    }

    #[test]
    fn what_was_cleared_would_have_been_read_from_the_cache() {
        // 80,000 were sent before, and all but the last 3,000 of 60,000 are cleared now: the cache has the first 12,000. As of the
        // request that was sent, all but 2,000 of the others are written.
        let unedited = Counterfactual { sent_shared: Some(12_000), ..known(90_000, 80_000) };
        let expected = Usage { input: 90_000, cached: 80_000, written: 8_000, written_hour: 4_000, output: 100 };
        assert_eq!(unedited.usage(&BILLED), expected);
    }

    #[test]
    fn what_a_cache_had_lost_of_one_it_had_lost_of_the_other() {
        let billed = Usage { cached: 0, written: 20_000, written_hour: 0, ..BILLED };
        let unedited = Counterfactual { sent_shared: Some(18_000), ..known(90_000, 80_000) };
        assert_eq!((unedited.usage(&billed).cached, unedited.usage(&billed).written), (0, 90_000));
    }

    #[test]
    fn what_a_cache_lacks_at_the_end_of_one_it_lacks_at_the_end_of_the_other() {
        // An answer was cancelled, and its request with 2,000 new tokens is not in the cache.
        let billed = Usage { cached: 10_000, written: 10_000, written_hour: 0, ..BILLED };
        let unedited = Counterfactual { sent_shared: Some(12_000), ..known(90_000, 80_000) };
        assert_eq!(unedited.usage(&billed).cached, 78_000);
    }

    #[test]
    fn what_another_process_had_sent_is_new_in_neither() {
        // This process knows two turns less of both than the cache has served.
        let billed = Usage { cached: 19_000, written: 1_000, written_hour: 0, ..BILLED };
        let unedited = Counterfactual { sent_shared: Some(17_000), ..known(90_000, 87_000) };
        assert_eq!(unedited.usage(&billed).cached, 89_000);
        // The other process had cleared.
        let unedited = Counterfactual { sent_shared: Some(3_000), ..unedited };
        assert_eq!(unedited.usage(&billed).cached, 89_000);
    }

    #[test]
    fn where_the_request_that_was_sent_shared_nothing_a_pause_decides() {
        let billed = Usage { cached: 0, ..BILLED };
        let unedited = |is_warm| Counterfactual { is_warm, sent_shared: Some(0), ..known(80_000, 70_000) };
        assert_eq!(unedited(true).usage(&billed).cached, 70_000);
        assert_eq!(unedited(false).usage(&billed).cached, 0);
    }

    #[test]
    fn what_only_another_process_has_seen_is_in_the_cache_if_anything_is() {
        // All results are cleared in the first request that this process sees.
        let billed = |cached| Usage { cached, ..BILLED };
        let unedited = Counterfactual { is_known: false, is_warm: false, ..known(90_000, 87_000) };
        assert_eq!(unedited.usage(&billed(2_000)).cached, 87_000);
        assert_eq!(unedited.usage(&billed(0)).cached, 0);
    }

    #[test]
    fn nothing_divides_by_zero_or_overflows() {
        for n in [0, 1, u64::MAX] {
            let billed = Usage { input: n, cached: n, written: n, written_hour: n, output: n };
            for sent_shared in [None, Some(n)] {
                let unedited = Counterfactual { sent_shared, ..known(u64::MAX, n) };
                let usage = unedited.usage(&billed);
                assert!(usage.cached + usage.written <= usage.input, "{usage:?}");
            }
        }
    }
}
