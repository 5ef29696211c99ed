//! What fits into a request for a summary, and what is left out.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

mod as_text;

fn piece(json: &str, tokens: usize, opens: bool) -> InputElement {
    InputElement { json: Bytes::copy_from_slice(json.as_bytes()), tokens, opens, must_alternate: false }
}

/// A source of messages with so many tokens, the first being the client's instructions; `.5` goes with what is before it, and
/// `5m` is of the model.
fn sized(tokens: &str) -> SummaryInput {
    let messages = tokens.split(' ').enumerate().map(|(n, word)| {
        let size = word.trim_matches(['.', 'm']).parse().unwrap();
        let piece = piece(&n.to_string(), size, !word.starts_with('.'));
        InputElement { must_alternate: word.ends_with('m'), ..piece }
    });
    SummaryInput { body: Bytes::new(), messages: messages.collect(), n_leading: 1, base_tokens: 10 }
}

/// `expected` has the messages that are left.
#[track_caller]
fn check_fitted(tokens: &str, most: usize, expected: &str) {
    let fitted = fitted(&sized(tokens), most);
    let left: Vec<_> = fitted.messages.iter().map(|piece| str::from_utf8(&piece.json).unwrap()).collect();
    assert_eq!(left.join(" "), expected, "{tokens} in {most}");
}

#[test]
fn what_fits_stays_whole() {
    check_fitted("10 10 10 10", 50, "0 1 2 3");
    check_fitted("10 10 10 10", 49, "0 1 3");
    check_fitted("10", 0, "0");
}

#[test]
fn the_middle_is_left_out() {
    // There is room for 80: 20 at the beginning, the rest at the end.
    check_fitted("10 10 10 10 10 10 10 10 10 10 10", 100, "0 1 2 5 6 7 8 9 10");
    // The end may use the room that the beginning does not.
    check_fitted("10 15 10 10 10 10 10 10 10 10 10", 100, "0 1 5 6 7 8 9 10");
    check_fitted("10 5 41 10 10 10 10 10 10 10 10", 100, "0 1 4 5 6 7 8 9 10");
}

#[test]
fn what_belongs_together_is_not_parted() {
    check_fitted("10 10 .10 .10 10 .10 .10 10 .10 .10", 80, "0 1 2 3 7 8 9");
    check_fitted("10 10 .10 10 .40 10 .10 .10", 80, "0 1 2 5 6 7");
}

#[test]
fn no_two_messages_of_the_model_come_together() {
    check_fitted("10 10 10m 10 10m .10 10m .10 10m .10", 100, "0 1 4 5 6 7 8 9");
    check_fitted("10 10 10m 10m 30 10m .20 10m .30", 140, "0 1 5 6 7 8");
}

#[test]
fn the_summary_before_may_take_half() {
    check_fitted("10 40 10 10 10 10 10 10", 100, "0 1 4 5 6 7");
    check_fitted("10 41 10 10 10 10 10 10", 100, "0 2 3 4 5 6 7");
}

#[test]
fn the_end_goes_before_the_beginning() {
    check_fitted("10 20 50 70", 100, "0 3");
    check_fitted("10 20 50 80", 100, "0 3");
    // Not even the end fits: it is left to the upstream to say so.
    check_fitted("10 20 50 81", 100, "0 1 2 3");
    check_fitted("10 20 50 81", 5, "0 1 2 3");
}

#[test]
fn a_source_with_nothing_to_summarise_stays_as_it_is() {
    for n_leading in [3, 4] {
        let nothing = SummaryInput { n_leading, ..sized("5 5 5") };
        assert_eq!(fitted(&nothing, 0), nothing);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn what_is_fitted_fits(sizes in prop::collection::vec((1..50_usize, any::<bool>()), 1..20), most in 0..600_usize) {
        let all: Vec<_> = sizes.iter().enumerate().map(|(n, (size, opens))| piece(&n.to_string(), *size, *opens || n < 2)).collect();
        let source = SummaryInput { body: Bytes::new(), messages: all.clone(), n_leading: 1, base_tokens: 10 };
        let fitted = fitted(&source, most);
        if fitted == source {
            return Ok(());
        }
        prop_assert!(fitted.base_tokens + tokens(&fitted.messages) <= most);
        prop_assert!(fitted.messages.first() == all.first() && fitted.messages.last() == all.last());
        // In their order, none twice, and parted where they may be.
        let places: Vec<_> = fitted.messages.iter().map(|piece| all.iter().position(|other| other == piece).unwrap()).collect();
        prop_assert!(places.is_sorted_by(|a, b| a < b));
        let gaps: Vec<_> = places.windows(2).filter(|pair| pair[1] != pair[0] + 1).collect();
        prop_assert!(gaps.len() == 1 && all[gaps[0][1]].opens && all[gaps[0][0] + 1].opens, "{places:?}");
    }
}
