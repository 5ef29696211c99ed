//! How many tokens are billed for each one that is counted: what the built-in table says of a model, and what the bills
//! of its answers have shown.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize, Serializer};

/// Billed tokens for 100 that are counted: a multiple of 5 from 50 to 400.
#[derive(Clone, Copy, Debug, Deserialize, derive_more::Display, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[display("{:.2}", self.ratio())]
#[serde(try_from = "f64")]
pub struct Factor(u16);

/// One answer: the counts of its request, the factor, and the bill.
#[derive(Clone, Copy, Debug)]
pub struct Bill {
    /// The tokens of the request as they were counted.
    pub counted: u64,
    /// The factor that they were counted with.
    pub factor: Factor,
    /// The tokens of the request as billed, those from a cache included.
    pub billed: u64,
}

/// The factors that bills have shown, by upstream and model.
#[derive(Debug, Default)]
pub struct LearntFactors {
    /// The model that was billed last is the last one.
    of: Vec<LearntFactor>,
}

/// The factor of one model at one upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct LearntFactor {
    /// The name of the upstream.
    pub upstream: String,
    /// The model, as requests name it.
    pub model: String,
    /// How many bills it was learnt from.
    pub n_bills: u64,
    /// The last ratios, the oldest first.
    ratios: VecDeque<f64>,
}

/// Requests of fewer billed tokens teach nothing: too large a part of them is around the messages.
pub const MIN_BILLED: u64 = 2000;

/// The most models whose factor is learnt. A further one takes the place of the one that was billed the longest ago.
pub const MAX_LEARNT: usize = 64;

/// The longest name in bytes of a model that is learnt: the names are labels of metrics.
const MAX_NAME: usize = 64;

/// The ratios that a vocabulary can have. The built-in ones have 0.91 to 1.67 tokens for each one of `o200k_base`, measured over 85
/// recorded requests of 1,000 tokens or more in three dialects; others may be a fifth beyond these. A ratio outside of that is
/// no count of the request: a server has reported what its cache did not have, the sum of several calls, or a prompt that it has
/// cut.
const PLAUSIBLE: RangeInclusive<f64> = 0.75..=2.0;

/// The factor is the median of this many ratios: no bill moves it alone, and a change is followed once half of them show it.
const MEDIAN_OF: usize = 15;

// === impl Factor ===

impl Factor {
    /// A token is a token.
    pub const ONE: Self = Self(100);

    const STEP: u16 = 5;
    const RANGE: (f64, f64) = (0.5, 4.0);

    /// The nearest factor to a ratio; that of 0.5 or 4 beyond those.
    pub fn nearest(ratio: f64) -> Self {
        let (least, most) = Self::RANGE;
        let steps = (ratio.clamp(least, most) * 100.0 / f64::from(Self::STEP)).round();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is from 10 to 80")]
        let steps = steps as u16;
        Self(steps * Self::STEP)
    }

    /// The billed tokens for 100 that are counted.
    pub(super) fn per_hundred(self) -> usize {
        self.0.into()
    }

    /// The factor as a number.
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl Serialize for Factor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.ratio())
    }
}

impl TryFrom<f64> for Factor {
    type Error = &'static str;

    fn try_from(ratio: f64) -> Result<Self, &'static str> {
        let factor = Self::nearest(ratio);
        let is_one = (factor.ratio() - ratio).abs() < 1e-9;
        is_one.then_some(factor).ok_or("a factor is from 0.5 to 4, in steps of 0.05")
    }
}

// === impl LearntFactors ===

impl LearntFactors {
    /// Learns from a bill, unless no vocabulary can explain it.
    pub fn learn(&mut self, upstream: &str, model: &str, Bill { counted, factor, billed }: Bill) {
        let is_label = model.len() <= MAX_NAME && !model.contains(char::is_control);
        if billed < MIN_BILLED || counted == 0 || !is_label {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2^53")]
        let ratio = billed as f64 / counted as f64 * factor.ratio();
        if !PLAUSIBLE.contains(&ratio) {
            return;
        }
        let known = self.of.iter().position(|learnt| learnt.is_of(upstream, model));
        let (upstream, model) = (upstream.to_owned(), model.to_owned());
        let mut learnt = match known {
            Some(at) => self.of.remove(at),
            None => LearntFactor { upstream, model, n_bills: 0, ratios: VecDeque::new() },
        };
        learnt.n_bills += 1;
        if learnt.ratios.len() == MEDIAN_OF {
            learnt.ratios.pop_front();
        }
        learnt.ratios.push_back(ratio);
        if self.of.len() == MAX_LEARNT {
            self.of.remove(0);
        }
        self.of.push(learnt);
    }

    /// The factor of a model, if there was a bill.
    pub fn get(&self, upstream: &str, model: &str) -> Option<Factor> {
        self.of.iter().find(|learnt| learnt.is_of(upstream, model)).map(LearntFactor::factor)
    }

    /// All factors, the one that was billed last at the end.
    pub fn all(&self) -> &[LearntFactor] {
        &self.of
    }
}

impl LearntFactor {
    /// The factor. Of an even number of ratios, the one of the two in the middle counts that is nearer to 1.
    pub fn factor(&self) -> Factor {
        let mut ratios: Vec<_> = self.ratios.iter().copied().collect();
        ratios.sort_by(f64::total_cmp);
        let middle = ratios.get(ratios.len().saturating_sub(1) / 2..=ratios.len() / 2).unwrap_or(&ratios);
        let distance = |ratio: &&f64| (**ratio - 1.0).abs();
        let median = middle.iter().min_by(|one, other| distance(one).total_cmp(&distance(other)));
        Factor::nearest(median.copied().unwrap_or(1.0))
    }

    fn is_of(&self, upstream: &str, model: &str) -> bool {
        self.upstream == upstream && self.model == model
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bill(counted: u64, factor: Factor, billed: u64) -> Bill {
        Bill { counted, factor, billed }
    }

    #[test]
    fn a_factor_is_a_multiple_of_5_percent_from_a_half_to_4() {
        for (ratio, expected) in [(1.0, 100), (1.02, 100), (1.03, 105), (1.55, 155), (0.1, 50), (17.0, 400)] {
            assert_eq!(Factor::nearest(ratio), Factor(expected), "{ratio}");
        }
        assert_eq!(Factor::nearest(1.55).to_string(), "1.55");
        let read = |json: &str| serde_json::from_str::<Factor>(json).map_err(|error| error.to_string());
        assert_eq!(read(&serde_json::to_string(&Factor(155)).unwrap()), Ok(Factor(155)));
        assert_eq!(read("1"), Ok(Factor::ONE));
        assert!(read("1.53").is_err() && read("0.4").is_err());
    }

    #[test]
    fn a_steady_ratio_is_learnt_at_once_and_whatever_it_was_counted_with() {
        let mut learnt = LearntFactors::default();
        assert_eq!(learnt.get("u", "m"), None);
        learnt.learn("u", "m", bill(10_000, Factor::ONE, 15_500));
        assert_eq!(learnt.get("u", "m"), Some(Factor(155)));
        learnt.learn("u", "m", bill(15_500, Factor(155), 15_500));
        assert_eq!((learnt.get("u", "m"), learnt.all()[0].n_bills), (Some(Factor(155)), 2));
        assert_eq!(learnt.get("v", "m").or(learnt.get("u", "n")), None);
    }

    #[test]
    fn a_change_of_the_ratio_is_followed_and_one_odd_bill_is_not() {
        let mut learnt = LearntFactors::default();
        let mut learn = |n, billed| {
            (0..n).for_each(|_| learnt.learn("u", "m", bill(10_000, Factor::ONE, billed)));
            learnt.get("u", "m").unwrap()
        };
        assert_eq!(learn(50, 10_000), Factor::ONE);
        for odd in [100_000, 20_000, 7_500] {
            assert_eq!(learn(1, odd), Factor::ONE, "{odd}");
        }
        assert_eq!(learn(100, 15_500), Factor(155));
    }

    #[test]
    fn usage_that_no_vocabulary_explains_teaches_nothing() {
        let mut learnt = LearntFactors::default();
        for (counted, factor, billed) in [
            (10_000, Factor::ONE, 7_400),
            (10_000, Factor::ONE, 20_100),
            (10_000, Factor(155), 14_000),
            (100_000, Factor::ONE, 4_096),
            (10_000, Factor::ONE, 50_000),
        ] {
            learnt.learn("u", "m", bill(counted, factor, billed));
        }
        assert_eq!((learnt.all(), learnt.get("u", "m")), (&[][..], None));
        for (billed, expected) in [(7_500, Factor(75)), (20_000, Factor(75)), (20_000, Factor(200))] {
            learnt.learn("u", "m", bill(10_000, Factor::ONE, billed));
            assert_eq!(learnt.get("u", "m"), Some(expected));
        }
    }

    #[test]
    fn a_sum_of_calls_now_and_then_does_not_move_the_factor() {
        // The reports of one conversation, whose requests have 4,000, 5,000, … tokens.
        let counts = || (4..34_u64).map(|thousands| thousands * 1000);
        let twice = counts().enumerate().map(|(n, honest)| if n % 3 == 2 { 2 * honest } else { honest });
        let summed = counts().scan(0, |sum, honest| {
            *sum += honest;
            Some(*sum)
        });
        let cut = counts().map(|honest| honest.min(4_096));
        let evaluated = counts().enumerate().map(|(n, honest)| if n == 0 { honest } else { 1_000 + 100 * n as u64 });
        for billed in [twice.collect::<Vec<_>>(), summed.collect(), cut.collect(), evaluated.collect()] {
            let mut learnt = LearntFactors::default();
            for (counted, billed) in counts().zip(&billed) {
                learnt.learn("u", "m", bill(counted, Factor::ONE, *billed));
            }
            assert_eq!(learnt.get("u", "m"), Some(Factor::ONE), "{billed:?}");
        }
    }

    #[test]
    fn short_requests_and_those_that_were_not_counted_teach_nothing() {
        let mut learnt = LearntFactors::default();
        learnt.learn("u", "m", bill(1000, Factor::ONE, MIN_BILLED - 1));
        learnt.learn("u", "m", bill(0, Factor::ONE, 10_000));
        for model in ["m".repeat(MAX_NAME + 1).as_str(), "a\nb"] {
            learnt.learn("u", model, bill(1000, Factor::ONE, MIN_BILLED));
        }
        assert_eq!(learnt.all(), []);
        learnt.learn("u", "m", bill(1000, Factor::ONE, MIN_BILLED));
        assert_eq!(learnt.get("u", "m"), Some(Factor(200)));
    }

    #[test]
    fn the_number_of_models_is_bounded_and_the_last_billed_stay() {
        let mut learnt = LearntFactors::default();
        let mut learn = |model: &str| learnt.learn("u", model, bill(10_000, Factor::ONE, 12_000));
        (0..MAX_LEARNT).for_each(|n| learn(&format!("m{n}")));
        learn("m0");
        learn("one more");
        assert_eq!(learnt.all().len(), MAX_LEARNT);
        assert!(learnt.get("u", "m0").is_some() && learnt.get("u", "one more").is_some());
        assert_eq!(learnt.get("u", "m1"), None);
    }
}
