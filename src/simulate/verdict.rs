//! The first lines of a simulation: the cost, and the savings under a policy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::{Agent, Paid, PolicyUnderTest, TranscriptResult};
use crate::tokens::prices::Nanodollars;
use crate::units::grouped;

/// The cost of sessions with recorded usage, and the part that a policy would have saved.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The policy: the first one with edits.
    pub policy: String,
    /// The number of sessions, by agent.
    pub sessions: BTreeMap<Agent, usize>,
    /// The number of days with requests, in UTC.
    pub days: usize,
    /// The paid amount.
    pub paid: Paid,
    /// The savings under the policy, in billionths of a dollar; negative if it would have cost more.
    pub saved: i64,
    /// The texts that the model would have had to ask for again.
    pub faults: usize,
    /// The number of answers in which it could have.
    pub answers: usize,
    /// The sessions of which the policy would have saved most, in order.
    pub most: Vec<SessionVerdict>,
    /// Those of which it would have saved least, the last one in order first.
    pub least: Vec<SessionVerdict>,
    /// The number of lines of the files that were not understood.
    pub lines_skipped: usize,
}

/// The cost of one session, and the part that a policy would have saved.
#[derive(Clone, Debug, Serialize)]
pub struct SessionVerdict {
    /// The path of the file.
    pub name: String,
    /// The paid amount, in billionths of a dollar.
    pub paid: Nanodollars,
    /// The savings under the policy.
    pub saved: i64,
}

/// The number of sessions that are named.
const N_NAMED: usize = 3;

/// What becomes of the files.
pub(super) const PRIVATE: &str = "The files were only read. Nothing of them has left this machine.\n";

/// Billionths of a dollar, more or less than nothing.
#[derive(Clone, Copy, Debug)]
struct Change(i64);

/// A part of an amount, in percent.
#[derive(Clone, Copy, Debug)]
struct Part {
    part: i64,
    whole: Nanodollars,
}

// === impl Verdict ===

impl Verdict {
    /// The verdict on the first policy with edits; `None` if no usage was recorded, or no policy has edits.
    pub(super) fn of(transcripts: &[TranscriptResult], candidates: &[PolicyUnderTest]) -> Option<Self> {
        let has_edits = |policy: &PolicyUnderTest| !policy.planners.default().settings.policy.edits.is_empty();
        let n = candidates.iter().position(has_edits)?;
        let billed = || transcripts.iter().filter(|played| played.paid != Paid::default());
        billed().next()?;
        let mut sessions = BTreeMap::new();
        billed().filter_map(|played| played.agent).for_each(|agent| *sessions.entry(agent).or_default() += 1);
        let runs = || billed().filter_map(|played| Some((played, played.runs.get(n)?)));
        let verdicts = runs().map(|(played, run)| SessionVerdict {
            name: played.name.clone(),
            paid: played.paid.dollars,
            saved: saved(played.paid.dollars, run.dollars),
        });
        let mut verdicts: Vec<_> = verdicts.filter(|verdict| verdict.paid.0 > 0).collect();
        verdicts.sort_by_key(|verdict| -verdict.saved);
        let most = verdicts.iter().take(N_NAMED).filter(|verdict| verdict.saved > 0).cloned().collect();
        let least = verdicts.iter().skip(N_NAMED).rev().take(N_NAMED).cloned().collect();
        Some(Self {
            policy: candidates.get(n)?.name.clone(),
            sessions,
            days: billed().flat_map(|played| &played.days).collect::<BTreeSet<_>>().len(),
            paid: billed().fold(Paid::default(), |sum, played| sum.plus(played.paid)),
            saved: verdicts.iter().map(|verdict| verdict.saved).sum(),
            faults: runs().map(|(_, run)| run.regret.faults).sum(),
            answers: runs().map(|(_, run)| run.regret.answers).sum(),
            most,
            least,
            lines_skipped: billed().map(|played| played.lines_skipped).sum(),
        })
    }
}

fn saved(paid: Nanodollars, cost: Nanodollars) -> i64 {
    i64::try_from(paid.0).unwrap_or(i64::MAX) - i64::try_from(cost.0).unwrap_or(i64::MAX)
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, sessions, days, paid, saved, faults, answers, most, least, lines_skipped } = self;
        let count = |n: usize, what: &str| format!("{} {what}{}", grouped(n), if n == 1 { "" } else { "s" });
        let agents = sessions.iter().map(|(agent, n)| format!("{} of {agent}", grouped(*n)));
        let agents = agents.collect::<Vec<_>>().join(", ");
        let n_sessions = count(sessions.values().sum(), "session");
        let requests = count(paid.requests, "request");
        writeln!(f, "{n_sessions} ({agents}) on {}: {requests}", count(*days, "day"))?;
        let whole = paid.dollars;
        writeln!(f, "paid, at list prices:            {:>10}", whole.to_string())?;
        let part = Part { part: *saved, whole };
        writeln!(f, "{:33}{:>10}  {part}", format!("would be saved by {policy}:"), Change(*saved))?;
        let rate = super::regret::percent(*faults as u64, (*answers).max(1) as u64);
        writeln!(f, "texts asked for again:           {:>10}  {rate:.2} in 100 answers", grouped(*faults))?;
        for (what, verdicts) in [("most", most), ("least", least)] {
            for SessionVerdict { name, paid, saved } in verdicts {
                let (part, paid) = (Part { part: *saved, whole: *paid }, paid.to_string());
                writeln!(f, "  {what:5} saved: {:>10} of {paid:>10}  {part:>8}  {name}", Change(*saved))?;
            }
        }
        if paid.unpriced > 0 {
            writeln!(f, "without a price or recorded usage, and so in no sum: {}", count(paid.unpriced, "request"))?;
        }
        if *lines_skipped > 0 {
            writeln!(f, "not understood, and skipped: {}", count(*lines_skipped, "line"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = Nanodollars(self.0.unsigned_abs());
        f.pad(&if self.0 < 0 { format!("-{amount}") } else { amount.to_string() })
    }
}

impl fmt::Display for Part {
    #[expect(clippy::cast_precision_loss, reason = "a few digits are printed")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = if self.whole.0 == 0 { 0.0 } else { 100.0 * self.part as f64 / self.whole.0 as f64 };
        f.pad(&format!("{percent:.1} %"))
    }
}
