//! The comparison of the two arms of an experiment: their costs with intervals, and the conclusions.

use std::fmt;

use serde::Serialize;

use super::{Cluster, Clusters, Experiment};
use crate::units::{counted, grouped};

/// The two arms of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The policy that is tried.
    pub policy: String,
    /// The unit of amounts.
    pub unit: Unit,
    /// The conversations that are edited as usual.
    pub usual: Arm,
    /// The conversations that are edited by the tried policy.
    pub tried: Arm,
    /// The amount of the tried policy less that of the usual one, as a part of the latter.
    pub difference: Means,
    /// What can be concluded, in sentences.
    pub conclusion: Vec<String>,
}

/// The unit of amounts.
#[derive(Clone, Copy, Debug, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Unit {
    /// Dollars.
    Dollars,
    /// Tokens, if a model has no price.
    Tokens,
}

/// The sums of an arm.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Arm {
    /// About how many conversations it has; none if there are too many to tell.
    pub conversations: Option<u64>,
    /// How many requests it has.
    pub requests: u64,
    /// The cost as billed, or the tokens.
    pub amount: f64,
    /// The mean amounts.
    #[serde(flatten)]
    pub means: Means,
}

/// Mean amounts, or differences between them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Means {
    /// Per conversation.
    pub per_conversation: Option<Estimate>,
    /// Per request.
    pub per_request: Option<Estimate>,
}

/// An estimate and its precision.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Estimate {
    /// The estimate.
    pub estimate: f64,
    /// The interval that has the true value in 95 of 100 experiments; none for too few conversations.
    pub interval: Option<[f64; 2]>,
}

/// With fewer conversations in an arm nothing is concluded.
const FEWEST: u64 = 30;

/// How often the clusters are drawn again, and which of the sorted results bound 95 of 100.
const N_SAMPLES: usize = 2000;
const BOUNDS: [usize; 2] = [N_SAMPLES / 40, N_SAMPLES - N_SAMPLES / 40 - 1];

/// A number of a cluster.
type Figure = fn(&Cluster) -> f64;

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
impl Experiment {
    /// Compares the arms. `policy` is the tried one.
    pub fn compare(&self, policy: &str) -> Comparison {
        let arms = [&self.usual, &self.tried];
        let is_priced = arms.iter().all(|arm| arm.total().unpriced == 0);
        let (unit, amount): (_, Figure) = if is_priced {
            (Unit::Dollars, |cluster| cluster.cost.dollars())
        } else {
            (Unit::Tokens, |cluster| cluster.tokens as f64)
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of conversations")]
        let [n_usual, n_tried] = arms.map(|arm| arm.conversations().map(|n| n.round() as u64));
        let has_enough = [n_usual, n_tried].map(|n| n.is_none_or(|n| n >= FEWEST));
        let [of_usual, of_tried, differs] = self.estimates([amount, Cluster::conversations], has_enough);
        let by_request = self.estimates([amount, |cluster| cluster.requests as f64], has_enough);
        let per = |n: Option<u64>, per_conversation: Option<Estimate>, per_request| Means {
            per_conversation: n.and(per_conversation),
            per_request,
        };
        let arm = |of: &Clusters, conversations, means| {
            let total = of.total();
            Arm { conversations, requests: total.requests, amount: amount(&total), means }
        };
        let [usual, tried, difference] = by_request;
        let difference = per(n_usual.and(n_tried), differs, difference);
        Comparison {
            policy: policy.to_owned(),
            unit,
            usual: arm(&self.usual, n_usual, per(n_usual, of_usual, usual)),
            tried: arm(&self.tried, n_tried, per(n_tried, of_tried, tried)),
            difference,
            conclusion: conclude(policy, [n_usual, n_tried], difference),
        }
    }

    /// The means of the usual arm and of the tried one, and their difference. For their intervals, the clusters of each arm are
    /// drawn again, with repetition.
    fn estimates(&self, ratio: [Figure; 2], has_enough: [bool; 2]) -> [Option<Estimate>; 3] {
        let pairs = |arm: &Clusters| arm.0.values().map(|cluster| ratio.map(|of| of(cluster))).collect::<Vec<_>>();
        let (usual, tried) = (pairs(&self.usual), pairs(&self.tried));
        // The same draws each time, so that the same bills give the same text.
        let mut state = 0_u64;
        let mut draw = |from: &[[f64; 2]]| {
            let drawn = (0..from.len()).filter_map(|_| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                from.get(usize::try_from((mixed >> 32) % from.len() as u64).ok()?)
            });
            mean(drawn)
        };
        let samples: Vec<_> = (0..N_SAMPLES).map(|_| [draw(&usual), draw(&tried)]).collect();
        let estimate = |of: fn([f64; 2]) -> f64, is_known: bool| {
            let mut samples: Vec<_> = samples.iter().map(|means| of(*means)).collect();
            samples.sort_by(f64::total_cmp);
            let estimate = of([mean(usual.iter()), mean(tried.iter())]);
            let [from, to] = BOUNDS.map(|at| samples.get(at).copied().filter(|bound| is_known && bound.is_finite()));
            estimate.is_finite().then_some(Estimate { estimate, interval: from.zip(to).map(<[f64; 2]>::from) })
        };
        let [knows_usual, knows_tried] = has_enough;
        let difference = estimate(|[usual, tried]| tried / usual - 1.0, knows_usual && knows_tried);
        [
            estimate(|[usual, _]| usual, knows_usual),
            estimate(|[_, tried]| tried, knows_tried),
            difference.filter(|of| of.interval.is_some()),
        ]
    }
}

/// The sum of all amounts by the sum of all numbers.
fn mean<'a>(of: impl Iterator<Item = &'a [f64; 2]>) -> f64 {
    let [amount, n] = of.fold([0.0; 2], |[amount, n], [a, b]| [amount + a, n + b]);
    amount / n
}

/// The conclusions from the difference between arms of so many conversations.
fn conclude(policy: &str, conversations: [Option<u64>; 2], difference: Means) -> Vec<String> {
    let mut arms = ["the usual arm", policy].into_iter().zip(conversations);
    if let Some((name, Some(n))) = arms.find(|(_, n)| n.is_some_and(|n| n < FEWEST)) {
        let n = counted(n, "conversation");
        return vec![format!("nothing can be concluded yet: {name} has {n}, and {FEWEST} are needed")];
    }
    let too_many = "nothing can be concluded per conversation: there are too many to count; choose fewer days";
    let per_conversation = if conversations.contains(&None) {
        Some(too_many.to_owned())
    } else {
        difference.per_conversation.map(|of| format!("per conversation, {policy} has {}", of.in_words()))
    };
    let per_request = difference.per_request.map(|of| format!("per request, {policy} has {}", of.in_words()));
    per_conversation.into_iter().chain(per_request).collect()
}

impl Estimate {
    /// A difference in words.
    fn in_words(self) -> String {
        let part = |part: f64| match (100.0 * part).round() {
            percent if percent < 0.0 => format!("{} % less", -percent),
            percent => format!("{} % more", percent.abs()),
        };
        let [from, to] = self.interval.unwrap_or([self.estimate; 2]);
        let words = format!("{}, in 95 of 100 cases {} to {}", part(self.estimate), part(from), part(to));
        if from <= 0.0 && to >= 0.0 { words + ": nothing can be concluded" } else { words }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, unit, usual, tried, conclusion, .. } = self;
        let (what, amount): (_, fn(f64) -> String) = match unit {
            Unit::Dollars => ("cost", |dollars| format!("${dollars:.4}")),
            Unit::Tokens => ("tokens", |tokens| format!("{tokens:.0}")),
        };
        writeln!(
            f,
            "experiment with the policy {policy}: conversations, requests, {what} per conversation, per request"
        )?;
        for (name, arm) in [("as usual", usual), (policy.as_str(), tried)] {
            let each = |mean: Option<Estimate>| match mean {
                None => "-".to_owned(),
                Some(Estimate { estimate, interval: None }) => amount(estimate),
                Some(Estimate { estimate, interval: Some([from, to]) }) => {
                    format!("{} ({} to {})", amount(estimate), amount(from), amount(to))
                }
            };
            let conversations = arm.conversations.map_or_else(|| "too many".to_owned(), grouped);
            let Means { per_conversation, per_request } = arm.means;
            let (requests, per_conversation, per_request) =
                (grouped(arm.requests), each(per_conversation), each(per_request));
            writeln!(f, "{name:<12} {conversations:>8} {requests:>10}  {per_conversation:<30} {per_request}")?;
        }
        conclusion.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
