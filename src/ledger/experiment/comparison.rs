//! What the arms of an experiment cost, and what can be concluded: for texts, JSON and CSV.

use std::fmt;

use serde::Serialize;

use super::{Cluster, Clusters, Experiment};
use crate::units::{counted, grouped};

/// The two arms of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The policy that is tried.
    pub policy: String,
    /// What amounts are in.
    pub unit: Unit,
    /// The conversations that are edited as usual.
    pub usual: Arm,
    /// Those that are edited by the other policy.
    pub tried: Arm,
    /// How much more or less the tried policy has, as a part of what the usual one has; if nothing can be said, nothing.
    pub difference: Means,
    /// What can be concluded, in sentences.
    pub conclusion: Vec<String>,
}

/// What amounts are in.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, strum::Display)]
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
    /// How many requests.
    pub requests: u64,
    /// The cost as billed, or the tokens.
    pub amount: f64,
    /// The same of each conversation and request.
    #[serde(flatten)]
    pub means: Means,
}

/// Amounts, or differences of amounts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Means {
    /// Per conversation.
    pub per_conversation: Option<Estimate>,
    /// Per request.
    pub per_request: Option<Estimate>,
}

/// An estimate and how sure it is.
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

/// The amounts by conversation or by request.
#[derive(Clone, Copy, Debug)]
struct Estimates {
    usual: Option<Estimate>,
    tried: Option<Estimate>,
    difference: Option<Estimate>,
}

/// One of them.
type Part = fn(&Estimates) -> Option<Estimate>;

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
impl Experiment {
    /// The arms and the conclusion. `policy` is the tried one.
    pub fn compare(&self, policy: &str) -> Comparison {
        let arms = [&self.usual, &self.tried];
        let is_priced = arms.iter().all(|arm| arm.total().unpriced == 0);
        let (unit, amount): (_, Figure) = if is_priced {
            (Unit::Dollars, |cluster| cluster.cost.dollars())
        } else {
            (Unit::Tokens, |cluster| cluster.tokens as f64)
        };
        let conversations = arms.map(|arm| arm.conversations().map(rounded));
        let too_few = conversations.map(|n| n.filter(|n| *n < FEWEST));
        let are_counted = conversations.iter().all(Option::is_some);
        let estimates = |n: Figure| self.estimates([amount, n], too_few.map(|n| n.is_some()));
        let by_conversation = estimates(Cluster::conversations);
        let by_request = estimates(|cluster| cluster.requests as f64);
        let means = |at: Part, is_counted: bool| Means {
            per_conversation: at(&by_conversation).filter(|_| is_counted),
            per_request: at(&by_request),
        };
        let arm = |of: &Clusters, conversations: Option<u64>, at: Part| {
            let (total, means) = (of.total(), means(at, conversations.is_some()));
            Arm { conversations, requests: total.requests, amount: amount(&total), means }
        };
        let [n_usual, n_tried] = conversations;
        let mut comparison = Comparison {
            policy: policy.to_owned(),
            unit,
            usual: arm(&self.usual, n_usual, |of| of.usual),
            tried: arm(&self.tried, n_tried, |of| of.tried),
            difference: means(|of| of.difference, are_counted),
            conclusion: Vec::new(),
        };
        let mut names = ["the usual arm", policy].into_iter().zip(too_few);
        comparison.conclusion = match names.find_map(|(name, n)| Some((name, n?))) {
            Some((name, n)) => {
                let n = counted(n, "conversation");
                vec![format!("nothing can be concluded yet: {name} has {n}, and {FEWEST} are needed")]
            }
            None => comparison.conclusions(are_counted),
        };
        comparison
    }

    /// The means of both arms and their difference, and how sure they are: the clusters of each arm are drawn again, with
    /// repetition. Arms of too few conversations have no intervals.
    fn estimates(&self, ratio: [Figure; 2], are_too_few: [bool; 2]) -> Estimates {
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
        let mut samples = [const { Vec::new() }; 3];
        for _ in 0..N_SAMPLES {
            let (tried, usual) = (draw(&tried), draw(&usual));
            for (samples, sample) in samples.iter_mut().zip([usual, tried, tried / usual - 1.0]) {
                samples.push(sample);
            }
        }
        let (of_usual, of_tried) = (mean(usual.iter()), mean(tried.iter()));
        let [few_usual, few_tried] = are_too_few;
        let [usual, tried, difference] = samples;
        let difference = Estimate::new(of_tried / of_usual - 1.0, difference, few_usual || few_tried);
        Estimates {
            usual: Estimate::new(of_usual, usual, few_usual),
            tried: Estimate::new(of_tried, tried, few_tried),
            difference: difference.filter(|of| of.interval.is_some()),
        }
    }
}

/// The sum of all amounts by the sum of all numbers.
fn mean<'a>(of: impl Iterator<Item = &'a [f64; 2]>) -> f64 {
    let [amount, n] = of.fold([0.0; 2], |[amount, n], [a, b]| [amount + a, n + b]);
    amount / n
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of conversations")]
fn rounded(n: f64) -> u64 {
    n.round() as u64
}

impl Estimate {
    /// Of samples, which are not enough for an interval if they are of too few conversations; `None` for what no number says.
    fn new(estimate: f64, mut samples: Vec<f64>, is_too_few: bool) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let bounds = BOUNDS.map(|at| samples.get(at).copied().filter(|bound| bound.is_finite()));
        let interval = match bounds {
            [Some(from), Some(to)] if !is_too_few => Some([from, to]),
            _ => None,
        };
        estimate.is_finite().then_some(Self { estimate, interval })
    }
}

impl Comparison {
    fn conclusions(&self, are_counted: bool) -> Vec<String> {
        let policy = &self.policy;
        let mut lines = Vec::new();
        if !are_counted {
            lines.push(
                "nothing can be concluded per conversation: there are too many to count; choose fewer days".to_owned(),
            );
        }
        let Means { per_conversation, per_request } = self.difference;
        for (unit, difference) in [("conversation", per_conversation), ("request", per_request)] {
            lines.extend(difference.map(|difference| format!("per {unit}, {policy} has {}", difference.told())));
        }
        lines
    }
}

impl Estimate {
    /// A difference in words.
    fn told(self) -> String {
        let part = |part: f64| match (100.0 * part).round() {
            percent if percent < 0.0 => format!("{} % less", -percent),
            percent => format!("{} % more", percent.abs()),
        };
        let Some([from, to]) = self.interval else { return part(self.estimate) };
        let told = format!("{}, in 95 of 100 cases {} to {}", part(self.estimate), part(from), part(to));
        if from <= 0.0 && to >= 0.0 { told + ": nothing can be concluded" } else { told }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, unit, usual, tried, conclusion, .. } = self;
        let what = if *unit == Unit::Dollars { "cost" } else { "tokens" };
        writeln!(
            f,
            "experiment with the policy {policy}: conversations, requests, {what} per conversation, per request"
        )?;
        for (name, arm) in [("as usual", usual), (policy.as_str(), tried)] {
            let each = |mean: Option<Estimate>| match mean.map_or(0.0, |mean| mean.estimate) {
                dollars if *unit == Unit::Dollars => format!("${dollars:.4}"),
                tokens => format!("{tokens:.0}"),
            };
            let Arm { conversations, requests, means, .. } = arm;
            let (conversations, by_conversation) = match conversations {
                Some(n) => (n.to_string(), each(means.per_conversation)),
                None => ("too many".to_owned(), "-".to_owned()),
            };
            let (requests, by_request) = (grouped(*requests), each(means.per_request));
            writeln!(f, "{name:<12} {conversations:>8} {requests:>10} {by_conversation:>12} {by_request:>12}")?;
        }
        conclusion.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
