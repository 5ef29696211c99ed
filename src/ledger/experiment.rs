//! The bills of the two arms of an experiment, of which each conversation is in one for life.
//!
//! Conversations are the units that are drawn, so what is said of a difference is drawn from them, and not from their requests.
//! A conversation is counted in one of 64 clusters by its hash, so that days and processes add up.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Figures;
use crate::tokens::prices::Nanodollars;

mod comparison;

pub use comparison::{Arm, Comparison, Estimate, Means, Unit};

/// The arm that a conversation is in.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The policy that the experiment tries.
    pub policy: Arc<str>,
    /// Whether the conversation is edited by it.
    pub is_tried: bool,
    /// A hash of the conversation's beginning.
    pub conversation: u64,
}

/// Experiments by the policy that they try.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Experiments(BTreeMap<String, Experiment>);

/// The two arms of an experiment.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Experiment {
    /// The conversations that are edited as usual.
    pub usual: Clusters,
    /// Those that are edited by the other policy.
    pub tried: Clusters,
}

/// The bills of an arm by cluster.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Clusters(BTreeMap<u8, Cluster>);

/// The sums of the conversations of a cluster.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Cluster {
    /// A bit for each conversation, which two may share.
    seen: u64,
    pub(crate) requests: u64,
    unpriced: u64,
    tokens: u64,
    pub(crate) cost: Nanodollars,
}

/// How many experiments are kept; those of further policies are not.
const MAX_EXPERIMENTS: usize = 8;

const N_CLUSTERS: u64 = 64;

/// With fewer free bits in a cluster, which is about 200 conversations, their number is unknown.
const FEWEST_FREE: u32 = 2;

// === impl Experiments ===

impl Experiments {
    /// Adds a request or a call for a summary.
    pub(super) fn add(&mut self, to: &Assignment, figures: &Figures) {
        let Some(experiment) = self.of(&to.policy) else { return };
        let arm = if to.is_tried { &mut experiment.tried } else { &mut experiment.usual };
        let number = u8::try_from(to.conversation % N_CLUSTERS).unwrap_or_default();
        arm.0.entry(number).or_default().add(&Cluster {
            seen: 1 << (to.conversation / N_CLUSTERS % 64),
            requests: figures.requests,
            unpriced: figures.unpriced,
            tokens: figures.billed.input + figures.billed.output,
            cost: figures.edited_cost,
        });
    }

    /// The experiment with a policy; none if there are too many others.
    fn of(&mut self, policy: &str) -> Option<&mut Experiment> {
        let has_room = self.0.len() < MAX_EXPERIMENTS || self.0.contains_key(policy);
        has_room.then(|| self.0.entry(policy.to_owned()).or_default())
    }

    /// Adds other experiments.
    pub(super) fn merge(&mut self, other: &Self) {
        for (policy, experiment) in &other.0 {
            if let Some(into) = self.of(policy) {
                into.usual.merge(&experiment.usual);
                into.tried.merge(&experiment.tried);
            }
        }
    }

    /// Each experiment, and the policy that it tries.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Experiment)> {
        self.0.iter().map(|(policy, experiment)| (policy.as_str(), experiment))
    }
}

// === impl Clusters ===

impl Clusters {
    fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(number, cluster)| self.0.entry(*number).or_default().add(cluster));
    }

    /// The sums of all conversations.
    pub(crate) fn total(&self) -> Cluster {
        let mut total = Cluster::default();
        self.0.values().for_each(|cluster| total.add(cluster));
        total
    }

    /// About how many conversations there are; none if a cluster has too many.
    pub fn conversations(&self) -> Option<f64> {
        let can_tell = self.0.values().all(|cluster| cluster.seen.count_zeros() >= FEWEST_FREE);
        can_tell.then(|| self.0.values().map(Cluster::conversations).sum())
    }
}

impl Cluster {
    fn add(&mut self, other: &Self) {
        self.seen |= other.seen;
        for (sum, n) in [
            (&mut self.requests, other.requests),
            (&mut self.unpriced, other.unpriced),
            (&mut self.tokens, other.tokens),
            (&mut self.cost.0, other.cost.0),
        ] {
            *sum = sum.saturating_add(n);
        }
    }

    /// About how many conversations have set so many of 64 bits, of which some are free.
    fn conversations(&self) -> f64 {
        -64.0 * (f64::from(self.seen.count_zeros()) / 64.0).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Usage;

    /// Conversations whose requests cost about so much, in two processes.
    fn experiment(n: [u64; 2], dollars: [u64; 2]) -> Experiments {
        let mut processes = [Experiments::default(), Experiments::default()];
        for (arm, is_tried) in [false, true].into_iter().enumerate() {
            for number in 0..n[arm] {
                let mut hash = (number * 2 + arm as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                hash ^= hash >> 29;
                let to = Assignment { policy: "none".into(), is_tried, conversation: hash };
                for request in 0..10 {
                    let cost = Nanodollars(dollars[arm] * 1_000_000_000 / 10 * (50 + number * 37 % 101) / 100);
                    let billed = Usage { input: cost.0 / 1_000_000, ..Usage::default() };
                    let figures = Figures { requests: 1, edited_cost: cost, billed, ..Figures::default() };
                    processes[request % 2].add(&to, &figures);
                }
            }
        }
        let [mut all, other] = processes;
        all.merge(&serde_json::from_str(&serde_json::to_string(&other).unwrap()).unwrap());
        all
    }

    fn described(experiments: &Experiments) -> String {
        let [(policy, experiment)] = experiments.iter().collect::<Vec<_>>()[..] else { panic!("one experiment") };
        experiment.compare(policy).to_string()
    }

    #[test]
    fn a_difference_is_concluded_where_its_interval_has_no_zero() {
        let told = described(&experiment([400, 60], [10, 15]));
        let conversations: Vec<_> =
            told.lines().skip(1).take(2).map(|line| line.split_at(12).1.split_whitespace().next().unwrap()).collect();
        let near = |text: &str, n: f64| (text.parse::<f64>().unwrap() / n - 1.0).abs() < 0.1;
        assert!(near(conversations[0], 400.0) && near(conversations[1], 60.0), "{told}");
        let [by_conversation, by_request] = told.lines().skip(3).collect::<Vec<_>>()[..] else { panic!("{told}") };
        for line in [by_conversation, by_request] {
            let estimate: f64 = line.split("none has ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
            assert!((35.0..65.0).contains(&estimate) && !line.contains("nothing") && !line.contains("less"), "{told}");
        }
        assert_eq!(described(&experiment([400, 60], [10, 15])), told, "the same bills give the same text");
    }

    #[test]
    fn nothing_is_concluded_from_chance_or_few_conversations() {
        let same = described(&experiment([400, 60], [10, 10]));
        assert_eq!(same.matches(": nothing can be concluded").count(), 2, "{same}");
        let few = described(&experiment([400, 12], [10, 15]));
        assert!(few.ends_with("nothing can be concluded yet: none has 12 conversations, and 30 are needed\n"), "{few}");
    }

    #[test]
    fn arms_have_their_own_intervals_and_the_difference_one() {
        let all = experiment([400, 60], [10, 15]);
        let Comparison { usual, tried, difference, conclusion, .. } =
            all.iter().map(|(policy, experiment)| experiment.compare(policy)).next().unwrap();
        for (of, amount) in [(usual.means, 10.0), (tried.means, 15.0), (difference, 0.5)] {
            let Means { per_conversation: Some(conversation), per_request: Some(request) } = of else { panic!() };
            for (of, per) in [(conversation, 1.0), (request, if amount < 1.0 { 1.0 } else { 10.0 })] {
                let [from, to] = of.interval.unwrap();
                assert!(from < of.estimate && of.estimate < to, "{of:?}");
                assert!(from < amount * 1.1 / per && to > amount * 0.9 / per, "{of:?}");
            }
        }
        assert!(conclusion.len() == 2 && usual.requests == 4000);
        let few = experiment([400, 12], [10, 15]);
        let few = few.iter().map(|(policy, experiment)| experiment.compare(policy)).next().unwrap();
        assert!(few.usual.means.per_request.unwrap().interval.is_some(), "of the arm that has enough");
        let tried = few.tried.means.per_request.unwrap();
        assert!(tried.interval.is_none() && few.difference.per_request.is_none(), "{few:?}");
    }

    #[test]
    fn more_conversations_than_can_be_counted_are_not() {
        let told = described(&experiment([40_000, 400], [10, 10]));
        assert!(told.lines().skip(1).take(2).all(|arm| arm.contains(" to ")), "each arm has intervals: {told}");
        assert!(told.contains("as usual     too many ") && !told.contains("per conversation, none has"), "{told}");
        assert!(told.contains("nothing can be concluded per conversation: there are too many to count"), "{told}");
        assert!(told.lines().last().unwrap().starts_with("per request, none has "), "{told}");
    }

    #[test]
    fn without_prices_tokens_are_compared() {
        let mut all = experiment([40, 40], [10, 15]);
        let to = Assignment { policy: "none".into(), is_tried: false, conversation: 7 };
        all.add(&to, &Figures { requests: 1, unpriced: 1, ..Figures::default() });
        let told = described(&all);
        assert!(told.contains("tokens per conversation") && !told.contains('$'), "{told}");
    }

    #[test]
    fn experiments_have_a_limit() {
        let mut all = Experiments::default();
        for n in 0..2 * MAX_EXPERIMENTS {
            let to = Assignment { policy: n.to_string().into(), is_tried: true, conversation: 1 };
            all.add(&to, &Figures::default());
        }
        assert_eq!(all.iter().count(), MAX_EXPERIMENTS);
    }
}
