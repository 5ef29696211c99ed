//! What a request would have been billed in its other form: without the edits, or in a dry run with them.

use crate::tokens::Usage;

/// A request in the form in which it was sent, and in the other one. All are tokens as billed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forms {
    /// The tokens in the other form.
    pub other_input: u64,
    /// The tokens as sent that an earlier request began with, if that is known.
    pub sent_known: Option<u64>,
    /// The tokens in the other form that an earlier request in that form began with, if that is known.
    pub other_known: Option<u64>,
    /// Whether the cache has what an earlier request of the conversation wrote, where nothing of this one can show it.
    pub is_warm: bool,
}

/// A known beginning of fewer tokens says nothing of a cache: not all keep it.
const MIN_KNOWN: u64 = 2048;

impl Forms {
    /// The usage of the other form. The cache serves the same share of what it can have: what it had lost, it had lost in
    /// either form.
    pub fn other_usage(&self, billed: &Usage) -> Usage {
        let Usage { input, cached, written, written_hour, output } = *billed;
        let other_input = self.other_input;
        let cached_share = |of: u64| scaled(of, cached, input);
        let other_cached = match (self.other_known, self.sent_known) {
            (Some(other), Some(sent)) if sent >= MIN_KNOWN => scaled(other, cached.min(sent), sent),
            (Some(other), _) if self.is_warm || other == 0 => other,
            (Some(_), _) => 0,
            (None, _) => cached_share(other_input),
        };
        // What the cache has served although no request was seen that began so: tools and instructions of both forms.
        let unseen = if self.sent_known.is_some_and(|sent| sent < MIN_KNOWN) { cached } else { 0 };
        let other_cached = other_cached.max(unseen).min(other_input);
        let (fresh, other_fresh) = (input.saturating_sub(cached), other_input - other_cached);
        let other_written = scaled(other_fresh, written, fresh);
        let other_hour = scaled(other_written, written_hour, written);
        Usage { input: other_input, cached: other_cached, written: other_written, written_hour: other_hour, output }
    }
}

/// `n` times `part` of `whole`; nothing of nothing.
fn scaled(n: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(n) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BILLED: Usage = Usage { input: 20_000, cached: 12_000, written: 6_000, written_hour: 3_000, output: 100 };

    #[test]
    fn the_same_form_is_billed_the_same() {
        let forms = Forms { other_input: 20_000, sent_known: Some(12_000), other_known: Some(12_000), is_warm: true };
        assert_eq!(forms.other_usage(&BILLED), BILLED);
        let forms = Forms { other_input: 20_000, ..Forms::default() };
        assert_eq!(forms.other_usage(&BILLED), BILLED, "nothing is known of caches");
    }

    #[test]
    fn what_was_cleared_would_have_been_read_from_the_cache() {
        // 80,000 were sent before, and all but the last 3,000 of 60,000 are cleared now: the cache has the first 12,000.
        let forms = Forms { other_input: 90_000, sent_known: Some(12_000), other_known: Some(80_000), is_warm: true };
        let other = forms.other_usage(&BILLED);
        assert_eq!(other, Usage { input: 90_000, cached: 80_000, written: 7_500, written_hour: 3_750, output: 100 });
    }

    #[test]
    fn a_cache_that_had_lost_it_had_lost_it_in_either_form() {
        let billed = Usage { cached: 0, written: 20_000, written_hour: 0, ..BILLED };
        let forms = Forms { other_input: 90_000, sent_known: Some(18_000), other_known: Some(80_000), is_warm: true };
        assert_eq!((forms.other_usage(&billed).cached, forms.other_usage(&billed).written), (0, 90_000));
    }

    #[test]
    fn without_a_known_beginning_a_pause_decides() {
        let billed = Usage { cached: 0, ..BILLED };
        let forms = |is_warm| Forms { other_input: 80_000, sent_known: Some(0), other_known: Some(70_000), is_warm };
        assert_eq!(forms(true).other_usage(&billed).cached, 70_000);
        assert_eq!(forms(false).other_usage(&billed).cached, 0);
    }

    #[test]
    fn nothing_divides_by_zero_or_overflows() {
        for n in [0, 1, u64::MAX] {
            let billed = Usage { input: n, cached: n, written: n, written_hour: n, output: n };
            for known in [None, Some(n)] {
                let forms = Forms { other_input: u64::MAX, sent_known: known, other_known: known, is_warm: true };
                let other = forms.other_usage(&billed);
                assert!(other.cached + other.written <= other.input, "{other:?}");
            }
        }
    }
}
