//! `abridge replay`: plans recorded requests under the present policy and compares the result with what was sent then.
//!
//! A folder with its own `policy.toml`, as fixtures have, is planned under that policy, unless the user named one: then
//! the user's policy is the one in question.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use bytes::Bytes;
use serde::Serialize;

use crate::dialect;
use crate::payload::Keys;
use crate::planner::{Calibration, ColdPasses, Offload, PlanContext, Planner, Sent};
use crate::recall::Via;
use crate::recording::{Exchange, InPlace, PlanInputs, ReadError, RequestForm};
use crate::span::{joined, splice};
use crate::string_index::IndexedBody;
use crate::summary::{NoSummaries, SummaryState, UsedSummary};
use crate::upstream::routes::Routes;

/// The number of bytes that are shown on either side of a difference.
const EXCERPT_BYTES: usize = 40;

/// The policy of a replay, and whether it overrides the policies in the folders.
#[derive(Debug)]
pub enum ReplayPolicy {
    /// The user named the settings: they apply to every folder.
    Explicit(Routes<Planner>),
    /// The settings apply to folders without their own policy.
    Fallback(Routes<Planner>),
}

/// The result of a replay.
#[derive(Debug, Serialize)]
pub struct Replay {
    /// The exchanges, in the order of the folders.
    pub exchanges: Vec<ReplayedExchange>,
    /// The totals.
    pub totals: Totals,
}

/// One replayed exchange.
#[derive(Debug, Serialize)]
pub struct ReplayedExchange {
    /// The path of the folder.
    pub name: String,
    /// The length of the recorded request, in bytes.
    pub bytes_in: usize,
    /// The length of the request as sent now, in bytes.
    pub bytes_out: usize,
    /// The edits that changed something, with counts, as in the header `x-abridge-edits`.
    pub edits: String,
    /// The comparison.
    #[serde(flatten)]
    pub comparison: Comparison,
}

/// How the present body compares with the recorded one.
#[derive(Debug, derive_more::Display, Eq, PartialEq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Comparison {
    /// Both are equal.
    #[display("same")]
    Same,
    /// They differ.
    Different(Difference),
    /// The folder could not be read.
    #[display("unreadable: {why}")]
    Unreadable {
        /// The reason, with its causes.
        why: String,
    },
}

/// The first difference of two bodies.
#[derive(Debug, derive_more::Display, Eq, PartialEq, Serialize)]
#[display("DIFFERENT at byte {at}\n    recorded: {recorded}\n    now:      {now}")]
pub struct Difference {
    /// The offset of the first byte that differs.
    pub at: usize,
    /// The recorded bytes around it.
    pub recorded: String,
    /// The present bytes around it.
    pub now: String,
}

/// The totals of a replay.
#[derive(Clone, Copy, Debug, Default, derive_more::Display, Eq, PartialEq, Serialize)]
#[display("{} replayed: {same} same, {different} different, {unreadable} unreadable", same + different + unreadable)]
pub struct Totals {
    /// Exchanges whose body is the same.
    pub same: usize,
    /// Exchanges whose body is different.
    pub different: usize,
    /// Folders that could not be read.
    pub unreadable: usize,
}

// === impl Replay ===

impl Replay {
    /// Replays every exchange in `dirs`, at any depth.
    pub fn run(dirs: &[PathBuf], policy: &ReplayPolicy) -> Self {
        let exchanges: Vec<_> = dirs.iter().flat_map(|dir| replay_all(dir, policy)).collect();
        let count = |is: fn(&Comparison) -> bool| exchanges.iter().filter(|row| is(&row.comparison)).count();
        let totals = Totals {
            same: count(|found| matches!(found, Comparison::Same)),
            different: count(|found| matches!(found, Comparison::Different(_))),
            unreadable: count(|found| matches!(found, Comparison::Unreadable { .. })),
        };
        Self { exchanges, totals }
    }

    /// Whether there was at least one exchange and all are the same.
    pub fn is_clean(&self) -> bool {
        self.totals.same > 0 && self.totals.same == self.exchanges.len()
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.exchanges.iter().map(|row| row.name.chars().count()).fold("exchange".len(), usize::max);
        let edits = self.exchanges.iter().map(|row| row.edits.len()).fold("edits".len(), usize::max);
        writeln!(f, "{:name$}  {:>10}  {:>10}  {:edits$}  result", "exchange", "bytes in", "bytes out", "edits")?;
        for row in &self.exchanges {
            let ReplayedExchange { name: folder, bytes_in, bytes_out, edits: made, comparison } = row;
            writeln!(f, "{folder:name$}  {bytes_in:>10}  {bytes_out:>10}  {made:edits$}  {comparison}")?;
        }
        write!(f, "{}", self.totals)
    }
}

// === impl Difference ===

impl Difference {
    /// The first difference, or `None` if the bodies are equal.
    pub fn between(recorded: &[u8], now: &[u8]) -> Option<Self> {
        if recorded == now {
            return None;
        }
        let common = recorded.iter().zip(now).take_while(|(a, b)| a == b).count();
        Some(Self { at: common, recorded: excerpt(recorded, common), now: excerpt(now, common) })
    }
}

// === impl ReplayPolicy ===

impl ReplayPolicy {
    /// Plans and splices one exchange as the server would now.
    pub fn rewrite(&self, exchange: &Exchange) -> Result<Rewritten, ReadError> {
        match (self, &exchange.policy) {
            (Self::Fallback(_), Some(text)) => Ok(rewrite(&Routes::only(planner_from_toml(text)?), exchange)),
            (Self::Explicit(planners) | Self::Fallback(planners), _) => Ok(rewrite(planners, exchange)),
        }
    }
}

/// The request as it would be sent now.
#[derive(Debug)]
pub struct Rewritten {
    /// The body.
    pub body: Bytes,
    /// The edits, as in the header `x-abridge-edits`.
    pub edits: String,
}

// === helpers ===

/// The planner for the text of a `policy.toml`.
pub fn planner_from_toml(text: &str) -> Result<Planner, ReadError> {
    let invalid = |error| ReadError { file: "policy.toml", source: io::Error::other(error) };
    toml::from_str(text).map(Planner::new).map_err(invalid)
}

/// Every folder in and below `dir` that is a recorded exchange, sorted by name. Symbolic links are not followed, and
/// unfinished recordings are left out.
pub fn find_exchanges(dir: &Path) -> io::Result<Vec<PathBuf>> {
    if dir.join("request.json").is_file() {
        return Ok(vec![dir.to_owned()]);
    }
    let mut below = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if entry.file_type()?.is_dir() && !hidden {
            below.push(entry.path());
        }
    }
    below.sort();
    let nested: io::Result<Vec<_>> = below.iter().map(|dir| find_exchanges(dir)).collect();
    Ok(nested?.concat())
}

/// Replays the exchanges below one argument. An argument without any is reported as unreadable, as it is probably a
/// mistake.
fn replay_all(dir: &Path, policy: &ReplayPolicy) -> Vec<ReplayedExchange> {
    match find_exchanges(dir) {
        Ok(found) if found.is_empty() => {
            vec![ReplayedExchange::unreadable(dir, "no recorded exchange in it".to_owned())]
        }
        Ok(found) => found.iter().map(|dir| replay_one(dir, policy)).collect(),
        Err(error) => vec![ReplayedExchange::unreadable(dir, error.to_string())],
    }
}

fn replay_one(dir: &Path, policy: &ReplayPolicy) -> ReplayedExchange {
    let replayed = Exchange::read(dir);
    let replayed = replayed.and_then(|exchange| policy.rewrite(&exchange).map(|now| (exchange, now)));
    let (exchange, now) = match replayed {
        Ok(both) => both,
        Err(error) => {
            let why = format!("{:#}", anyhow::Error::from(error));
            return ReplayedExchange::unreadable(dir, why.trim_end().to_owned());
        }
    };
    let comparison =
        Difference::between(exchange.forwarded(), &now.body).map_or(Comparison::Same, Comparison::Different);
    ReplayedExchange {
        name: dir.display().to_string(),
        bytes_in: exchange.request.len(),
        bytes_out: now.body.len(),
        edits: now.edits,
        comparison,
    }
}

impl ReplayedExchange {
    fn unreadable(dir: &Path, why: String) -> Self {
        let comparison = Comparison::Unreadable { why };
        Self { name: dir.display().to_string(), bytes_in: 0, bytes_out: 0, edits: String::new(), comparison }
    }
}

fn rewrite(planners: &Routes<Planner>, exchange: &Exchange) -> Rewritten {
    let none = PlanInputs::default();
    let (inputs, path) = (exchange.meta.inputs.as_ref().unwrap_or(&none), exchange.meta.path_only());
    let body = &exchange.request;
    let unedited = || Rewritten { body: body.clone(), edits: String::new() };
    let of_path = || dialect::for_path(path);
    let dialect = inputs.in_place.map(|_| dialect::of_body(body)).or_else(of_path);
    let dialect = dialect.filter(|_| inputs.form != RequestForm::Unedited);
    let Some(dialect) = dialect else { return unedited() };

    let planner = planners.find_without_headers(Some(path), dialect, body);
    let factor = inputs.token_factor.filter(|_| planner.settings.tokens.is_calibrated());
    let answers: HashMap<_, _> = inputs.answers.iter().map(|(key, answer)| (*key, Arc::new(answer.clone()))).collect();
    let planner = with_recorded_inputs(planner, inputs);
    let indexed = IndexedBody::from(body.clone()).at(dialect.path_facts(path));
    let context = PlanContext {
        strings: indexed.strings(),
        calibration: factor.map_or(Calibration::Table, Calibration::Fixed),
        cold_passes: ColdPasses::At(&inputs.cold_passes),
        sent: if inputs.sent.is_empty() { Sent::Assumed } else { Sent::Recorded(&inputs.sent) },
        strips_now: inputs.sent.strips_now,
        in_place: inputs.in_place.map(|in_place| in_place.n_frozen),
        ..planner.anonymous(&NoSummaries)
    };
    let mut summaries = HashMap::new();
    if let Some(UsedSummary { end, summary }) = &exchange.summary {
        let name = planner.policy.beginning(dialect, body, &context, *end);
        summaries.extend(name.map(|name| (name, SummaryState::Summary(Arc::clone(summary)))));
    }
    let context = PlanContext { summaries: &summaries, answers: &answers, ..context };
    let Ok(plan) = planner.policy.plan(dialect, body, &context) else { return unedited() };
    let edits: Vec<_> = plan.report.counts().iter().map(|(label, n)| format!("{label}={n}")).collect();
    Rewritten { body: joined(splice(body, &plan.splices)), edits: edits.join(";") }
}

/// A planner with the same settings and the recorded inputs: address, windows, handles. Settings override recorded
/// inputs.
fn with_recorded_inputs(planner: &Planner, inputs: &PlanInputs) -> Planner {
    let settings = &planner.settings;
    let mut parts = match inputs.form {
        RequestForm::Shortest => settings.shortest(),
        RequestForm::Stripped => settings.stripping(),
        RequestForm::Edited | RequestForm::Unedited => settings.clone(),
    }
    .with_forms(&inputs.forms);
    parts.recall.public_url = parts.recall.public_url.or_else(|| inputs.address.clone());
    if let Some(InPlace { by_hash, .. }) = inputs.in_place {
        parts = parts.in_place(if by_hash { Via::Retrieve } else { parts.recall.via });
    }
    parts.upstream = inputs.upstream.clone().unwrap_or(parts.upstream);
    let offload = if inputs.not_stored { Offload::Impossible } else { planner.offload };
    Planner::with(parts, planner.meter_with(&inputs.windows), Keys::recorded(inputs.handles.clone()), offload)
}

fn excerpt(body: &[u8], at: usize) -> String {
    let end = body.len().min(at + EXCERPT_BYTES);
    let piece = body.get(at.saturating_sub(EXCERPT_BYTES)..end).unwrap_or_default();
    piece.escape_ascii().to_string()
}

#[cfg(test)]
mod tests;
