//! Numbers out of samples: quantiles, and how sure we are of a ratio.

use serde::Serialize;

/// How many times the rounds are drawn anew to see how far chance moves a ratio.
const RESAMPLES: usize = 300;

/// A ratio with the range that holds it in nine of ten redrawn runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The sample that `per_mille` of all samples do not exceed; 0 if there are none.
pub(crate) fn quantile(samples: &[f64], per_mille: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = sorted.len().saturating_sub(1) * per_mille / 1000;
    sorted.get(rank).copied().unwrap_or_default()
}

pub(crate) fn median(samples: &[f64]) -> f64 {
    quantile(samples, 500)
}

/// What a target adds to the direct connection: the difference is taken within each round, where both met the same
/// noise, and the median of the rounds counts.
pub(crate) fn added(target: &[f64], direct: &[f64]) -> f64 {
    median(&differences(target, direct))
}

/// What `target` adds, as a multiple of what `yardstick` adds. All three hold one figure a round.
pub(crate) fn added_ratio(target: &[f64], yardstick: &[f64], direct: &[f64]) -> Ratio {
    let target = differences(target, direct);
    let yardstick = differences(yardstick, direct);
    let mut draw = Random::new(7);
    let mut redrawn = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let rounds: Vec<usize> = target.iter().map(|_| draw.below(target.len())).collect();
        redrawn.push(median(&pick(&target, &rounds)) / median(&pick(&yardstick, &rounds)));
    }
    Ratio { value: median(&target) / median(&yardstick), low: quantile(&redrawn, 50), high: quantile(&redrawn, 950) }
}

fn differences(target: &[f64], direct: &[f64]) -> Vec<f64> {
    target.iter().zip(direct).map(|(target, direct)| target - direct).collect()
}

fn pick(values: &[f64], places: &[usize]) -> Vec<f64> {
    places.iter().filter_map(|&place| values.get(place).copied()).collect()
}

#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^52")]
pub(crate) fn float(count: usize) -> f64 {
    count as f64
}

/// `SplitMix64`: the same numbers in every run, so that every run sends the same bodies.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 if there is none.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let drawn = usize::try_from(self.next() >> 33).unwrap_or_default();
        drawn.checked_rem(limit).unwrap_or_default()
    }
}
