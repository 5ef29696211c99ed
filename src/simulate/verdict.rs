//! The first lines of a simulation: the cost, and the savings under a policy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::{Agent, Paid, PolicyUnderTest, TranscriptResult};
use crate::tokens::prices::Nanodollars;
use crate::units::{counted, grouped};

/// The cost of sessions with recorded usage, and the part that a policy would have saved.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The policy: the first one with edits or calls of `[keep_alive]`.
    pub policy: String,
    /// The number of sessions, by agent.
    pub sessions: BTreeMap<Agent, usize>,
    /// The number of days with requests, in UTC.
    pub days: usize,
    /// The paid amount.
    pub paid: Paid,
    /// The savings under the policy, in billionths of a dollar; negative if it would have cost more.
    pub saved: i64,
    /// The part that would have been saved of the median session, in percent.
    pub median: f64,
    /// The number of sessions that would have cost more.
    pub dearer: usize,
    /// The largest part that a session of a dollar or more would have cost more, in percent.
    pub worst: f64,
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

/// Sessions of less are too small for a percentage, in billionths of a dollar.
const DOLLAR: u64 = 1_000_000_000;

/// The number of sessions that are named.
const N_NAMED: usize = 3;

// === impl Verdict ===

impl Verdict {
    /// The verdict on the first policy with edits; `None` if no usage was recorded, or no policy has edits.
    pub(super) fn of(transcripts: &[TranscriptResult], candidates: &[PolicyUnderTest]) -> Option<Self> {
        let has_edits = |policy: &PolicyUnderTest| {
            policy.keep_alive.is_some() || !policy.planners.default().settings.policy.edits.is_empty()
        };
        let n = candidates.iter().position(has_edits)?;
        let billed = || transcripts.iter().filter(|played| played.paid != Paid::default());
        billed().next()?;
        let mut sessions = BTreeMap::new();
        billed().filter_map(|played| played.agent).for_each(|agent| *sessions.entry(agent).or_default() += 1);
        let amount = |dollars: Nanodollars| i64::try_from(dollars.0).unwrap_or(i64::MAX);
        let runs = || billed().filter_map(|played| Some((played, played.runs.get(n)?)));
        let verdicts = runs().map(|(played, run)| SessionVerdict {
            name: played.name.clone(),
            paid: played.paid.dollars,
            saved: amount(played.paid.dollars) - amount(run.outcome.dollars),
        });
        let mut verdicts: Vec<_> = verdicts.filter(|verdict| verdict.paid.0 > 0).collect();
        verdicts.sort_by_key(|verdict| -verdict.saved);
        let mut parts: Vec<_> = verdicts.iter().map(|verdict| percent(verdict.saved, verdict.paid)).collect();
        parts.sort_by(f64::total_cmp);
        let large = verdicts.iter().filter(|verdict| verdict.paid.0 >= DOLLAR);
        let most = verdicts.iter().take(N_NAMED).filter(|verdict| verdict.saved > 0).cloned().collect();
        let least = verdicts.iter().skip(N_NAMED).rev().take(N_NAMED).cloned().collect();
        Some(Self {
            policy: candidates.get(n)?.name.clone(),
            sessions,
            days: billed().flat_map(|played| &played.days).collect::<BTreeSet<_>>().len(),
            paid: billed().fold(Paid::default(), |sum, played| sum + played.paid),
            saved: verdicts.iter().map(|verdict| verdict.saved).sum(),
            median: parts.get(parts.len() / 2).copied().unwrap_or_default(),
            dearer: verdicts.iter().filter(|verdict| verdict.saved < 0).count(),
            worst: large.map(|verdict| -percent(verdict.saved, verdict.paid)).fold(0.0, f64::max),
            faults: runs().map(|(_, run)| run.outcome.regret.faults).sum(),
            answers: runs().map(|(_, run)| run.outcome.regret.answers).sum(),
            most,
            least,
            lines_skipped: billed().map(|played| played.lines_skipped).sum(),
        })
    }
}

/// A part of an amount, in percent.
#[expect(clippy::cast_precision_loss, reason = "a few digits are printed")]
fn percent(part: i64, whole: Nanodollars) -> f64 {
    if whole.0 == 0 { 0.0 } else { 100.0 * part as f64 / whole.0 as f64 }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, sessions, days, paid, saved, median, dearer, worst, .. } = self;
        let Self { faults, answers, most, least, lines_skipped, .. } = self;
        let agents = sessions.iter().map(|(agent, n)| format!("{} of {agent}", grouped(*n)));
        let agents = agents.collect::<Vec<_>>().join(", ");
        let n_sessions = counted(sessions.values().sum::<usize>() as u64, "session");
        let requests = counted(paid.requests as u64, "request");
        writeln!(f, "{n_sessions} ({agents}) on {}: {requests}", counted(*days as u64, "day"))?;
        let whole = paid.dollars;
        writeln!(f, "paid, at list prices:            {:>10}", whole.to_string())?;
        let part = percent(*saved, whole);
        writeln!(f, "{:33}{:>10}  {part:.1} %", format!("would be saved by {policy}:"), change(*saved))?;
        writeln!(f, "of the median session:           {median:>8.1} %")?;
        let dearest = format!("the worst of $1 or more by {worst:.1} %");
        writeln!(f, "sessions that would cost more:   {:>10}  {dearest}", grouped(*dearer))?;
        let rate = super::regret::percent(*faults as u64, (*answers).max(1) as u64);
        writeln!(f, "texts asked for again:           {:>10}  {rate:.2} in 100 answers", grouped(*faults))?;
        for (what, verdicts) in [("most", most), ("least", least)] {
            for SessionVerdict { name, paid, saved } in verdicts {
                let (part, paid) = (format!("{:.1} %", percent(*saved, *paid)), paid.to_string());
                writeln!(f, "  {what:5} saved: {:>10} of {paid:>10}  {part:>8}  {name}", change(*saved))?;
            }
        }
        if paid.unpriced > 0 {
            writeln!(
                f,
                "without a price or recorded usage, and so in no sum: {}",
                counted(paid.unpriced as u64, "request")
            )?;
        }
        if *lines_skipped > 0 {
            writeln!(f, "not understood, and skipped: {}", counted(*lines_skipped as u64, "line"))?;
        }
        Ok(())
    }
}

/// Billionths of a dollar, more or less than nothing.
fn change(amount: i64) -> String {
    format!("{}{}", if amount < 0 { "-" } else { "" }, Nanodollars(amount.unsigned_abs()))
}
