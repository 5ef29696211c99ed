//! The rule against the best schedule of passes in hindsight, on generated prices and conversations.

use proptest::prelude::*;

use super::*;
use crate::tokens::prices::Price;

/// A conversation of requests, each of which adds an answer of the model and a result to the one before.
#[derive(Debug)]
struct Course {
    prices: Prices,
    base: usize,
    /// The tokens of each answer, of each result, and of what replaces it when it is cleared.
    rounds: Vec<(usize, usize, usize)>,
    /// How many of the newest results are not cleared.
    keep: usize,
}

impl Course {
    /// The results that may be cleared in a request: those before this one.
    fn old(&self, request: usize) -> usize {
        request.saturating_sub(self.keep)
    }

    /// The tokens of a range of rounds where the results before `cleared` are cleared.
    fn tokens(&self, rounds: std::ops::Range<usize>, cleared: usize) -> usize {
        rounds.map(|n| self.rounds[n].0 + if n < cleared { self.rounds[n].2 } else { self.rounds[n].1 }).sum()
    }

    /// What a request costs, with the results cleared that the last pass has cleared, and those of a pass that is made now.
    fn cost(&self, request: usize, cleared: usize, passes: bool) -> u64 {
        let Prices { read, write, on_break } = self.prices;
        let now = if passes { self.old(request) } else { cleared };
        let whole = self.base + self.tokens(0..request + 1, now);
        let cached = match (request, passes, on_break) {
            (0, ..) | (_, true, Break::All) => 0,
            (_, true, Break::Suffix) => {
                let first = (cleared..now).find(|n| self.rounds[*n].1 > self.rounds[*n].2).unwrap_or(cleared);
                self.base + self.tokens(0..first, now) + self.rounds[first].0
            }
            (_, false, _) => self.base + self.tokens(0..request, now),
        };
        read.of(cached) + write.of(whole - cached)
    }

    fn can_pass(&self, request: usize, cleared: usize) -> bool {
        (cleared..self.old(request)).any(|n| self.rounds[n].1 > self.rounds[n].2)
    }

    /// The cost of the passes that the rule makes.
    fn by_rule(&self) -> u64 {
        let mut rent = Rent::new(self.prices, self.base);
        let (mut cleared, mut cost) = (0, 0);
        for (request, (answer, result, _)) in self.rounds.iter().enumerate() {
            rent.came(*answer);
            rent.came(*result);
            let freed = |n: usize| self.rounds[n].1.saturating_sub(self.rounds[n].2);
            let first = (cleared..self.old(request)).find(|n| freed(*n) > 0);
            let all = (cleared..self.old(request)).map(freed).sum();
            let passes = rent.is_due(first.map(|n| RowIndex::new(2 * n + 1)), all) && first.is_some();
            cost += self.cost(request, cleared, passes);
            if passes {
                rent.settle();
                for n in cleared..self.old(request) {
                    rent.clear(RowIndex::new(2 * n + 1), freed(n));
                }
                cleared = self.old(request);
            }
        }
        cost
    }

    /// The cost without any pass.
    fn unedited(&self) -> u64 {
        (0..self.rounds.len()).map(|request| self.cost(request, 0, false)).sum()
    }

    /// The least cost of all schedules: by how much is cleared, from the last request to the first.
    fn in_hindsight(&self) -> u64 {
        let n = self.rounds.len();
        let mut rest = vec![0; n + 1];
        for request in (0..n).rev() {
            rest = (0..=n)
                .map(|cleared| {
                    let waits = self.cost(request, cleared.min(request), false) + rest[cleared.min(request)];
                    if cleared < request && self.can_pass(request, cleared) {
                        waits.min(self.cost(request, cleared, true) + rest[self.old(request)])
                    } else {
                        waits
                    }
                })
                .collect();
        }
        rest[0]
    }
}

fn course() -> impl Strategy<Value = Course> {
    let price = |least: u32| (least..=1000).prop_map(|n| f64::from(n) / 1000.0);
    let prices = (price(1), price(0), any::<bool>()).prop_map(|(read, more, all)| Prices {
        read: Price::new(read).unwrap(),
        write: Price::new(read + more).unwrap(),
        on_break: if all { Break::All } else { Break::Suffix },
    });
    let tokens = || prop_oneof![Just(0_usize), 1..100_usize, 100..5000_usize, 5000..100_000_usize];
    let round = (tokens(), tokens(), 0..60_usize).prop_map(|(answer, result, left)| (answer, result, left.min(result)));
    let rounds = prop::collection::vec(round, 1..40);
    (prices, tokens(), rounds, 0..4_usize).prop_map(|(prices, base, rounds, keep)| Course {
        prices,
        base,
        rounds,
        keep: keep + 1,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn passes_cost_at_most_twice_as_much_as_the_best_schedule_in_hindsight(course in course()) {
        let (rule, best) = (course.by_rule(), course.in_hindsight());
        prop_assert!(best <= rule, "{best} {rule}");
        prop_assert!(rule <= 2 * best, "{rule} is more than twice {best}");
        let unedited = course.unedited();
        prop_assert!(rule <= unedited + unedited / 16, "{rule} is more than a sixteenth above {unedited}");
    }

    #[test]
    fn sums_are_those_of_the_numbers(numbers in prop::collection::vec(0..1000_usize, 1..50), less in prop::collection::vec((0..50_usize, 0..2000_usize), 0..50)) {
        let mut numbers = numbers;
        let mut sums = Sums::default();
        for number in &numbers {
            sums.push(*number);
        }
        for (index, by) in less.into_iter().filter(|(index, _)| *index < numbers.len()).collect::<Vec<_>>() {
            numbers[index] = numbers[index].saturating_sub(by);
            sums.subtract(index, by);
            for end in 0..=numbers.len() {
                prop_assert_eq!(sums.before(end), numbers[..end].iter().sum::<usize>());
            }
        }
    }
}

#[test]
fn without_a_cache_a_pass_is_always_due_and_where_reading_is_dear_sooner() {
    let requests_until_due = |read: f64, write: f64| {
        let [read, write] = [read, write].map(|price| Price::new(price).unwrap());
        // Everything that is beside the messages is paid for with each request, and lost with no pass.
        let mut rent = Rent::new(Prices { read, write, on_break: Break::Suffix }, 1_000_000);
        rent.came(1000);
        rent.came(9000);
        rent.is_due(None, 0);
        (1..100).find(|_| {
            rent.came(0);
            rent.is_due(Some(RowIndex::new(0)), 1000)
        })
    };
    // 9000 tokens stay after a result of 1000: the price is that of 9000 writes without the reads.
    assert_eq!(requests_until_due(1.0, 1.0), Some(1));
    assert_eq!(requests_until_due(0.5, 1.0), Some(9));
    assert_eq!(requests_until_due(0.1, 1.0), Some(81));
    assert_eq!(requests_until_due(0.1, 0.2), Some(9));
}
