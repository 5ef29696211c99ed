//! `abridge replay`: recorded requests, run through the present policy and compared with what was sent when they were recorded.
//!
//! A folder that has its own `policy.toml`, as fixtures have, is planned under that, unless the user named a policy: then
//! the question is what *that* policy would do, and the recorded one is no answer to it.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use crate::dialect;
use crate::payload::Keys;
use crate::planner::{Offload, Planner, Situation};
use crate::recording::{Exchange, PlanInputs, ReadError, RequestForm};
use crate::span::{joined, splice};
use crate::summary::{NoMemory, Recollection, Used};
use crate::tokens::Meter;

/// How many bytes either side of a difference are shown.
const EXCERPT: usize = 40;

/// What makes the plans, and whether its settings were asked for.
#[derive(Debug)]
pub enum Chosen {
    /// The user named the settings: they hold for every folder.
    ByUser(Planner),
    /// They hold for folders that have none of their own.
    ByDefault(Planner),
}

/// What became of all exchanges.
#[derive(Debug, Serialize)]
pub struct Replay {
    /// One row an exchange, in the order of the folders.
    pub exchanges: Vec<Row>,
    /// The sums.
    pub totals: Totals,
}

/// One replayed exchange.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The folder.
    pub name: String,
    /// The length of the recorded request.
    pub bytes_in: usize,
    /// The length of what is sent now.
    pub bytes_out: usize,
    /// The edits that changed something and how often, as in the header `x-abridge-edits`.
    pub edits: String,
    /// The comparison.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// How the present rewrite compares with the recorded one.
#[derive(Debug, Eq, PartialEq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Verdict {
    /// Byte for byte what was recorded.
    Same,
    /// Something else.
    Different(Difference),
    /// The folder could not be read.
    Unreadable {
        /// The reason, with its causes.
        why: String,
    },
}

/// Where two bodies part.
#[derive(Debug, Eq, PartialEq, Serialize)]
pub struct Difference {
    /// The offset of the first byte that differs.
    pub at: usize,
    /// What was recorded around it.
    pub recorded: String,
    /// What is there now.
    pub now: String,
}

/// The sums of a replay.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Totals {
    /// Exchanges whose rewrite is what it was.
    pub same: usize,
    /// Exchanges whose rewrite is another one.
    pub different: usize,
    /// Folders that could not be read.
    pub unreadable: usize,
}

/// Why an exchange cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The folder is no exchange.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Its `policy.toml` cannot be used.
    #[error("policy.toml")]
    Policy(#[source] toml::de::Error),
}

// === impl Replay ===

impl Replay {
    /// Replays every exchange in `dirs`, at any depth.
    pub fn run(dirs: &[PathBuf], chosen: &Chosen) -> Self {
        let exchanges: Vec<_> = dirs.iter().flat_map(|dir| rows(dir, chosen)).collect();
        let totals = exchanges.iter().fold(Totals::default(), Totals::plus);
        Self { exchanges, totals }
    }

    /// Whether there was something to replay and all of it is as it was.
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
            let Row { name: folder, bytes_in, bytes_out, edits: made, verdict } = row;
            writeln!(f, "{folder:name$}  {bytes_in:>10}  {bytes_out:>10}  {made:edits$}  {verdict}")?;
        }
        write!(f, "{}", self.totals)
    }
}

// === impl Totals ===

impl Totals {
    fn plus(mut self, row: &Row) -> Self {
        match row.verdict {
            Verdict::Same => self.same += 1,
            Verdict::Different(_) => self.different += 1,
            Verdict::Unreadable { .. } => self.unreadable += 1,
        }
        self
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { same, different, unreadable } = self;
        write!(
            f,
            "{} replayed: {same} same, {different} different, {unreadable} unreadable",
            same + different + unreadable
        )
    }
}

// === impl Verdict ===

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("same"),
            Self::Different(difference) => difference.fmt(f),
            Self::Unreadable { why } => write!(f, "unreadable: {why}"),
        }
    }
}

// === impl Difference ===

impl Difference {
    /// The first difference, if there is one.
    pub fn between(recorded: &[u8], now: &[u8]) -> Option<Self> {
        if recorded == now {
            return None;
        }
        let common = recorded.iter().zip(now).take_while(|(a, b)| a == b).count();
        Some(Self { at: common, recorded: excerpt(recorded, common), now: excerpt(now, common) })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, recorded, now } = self;
        write!(f, "DIFFERENT at byte {at}\n    recorded: {recorded}\n    now:      {now}")
    }
}

// === impl Chosen ===

impl Chosen {
    /// Plans and splices one exchange as the server would do it now.
    pub fn rewrite(&self, exchange: &Exchange) -> Result<Rewritten, ReplayError> {
        match (self, &exchange.policy) {
            (Self::ByDefault(_), Some(text)) => Ok(rewrite(&own_planner(text)?, exchange)),
            (Self::ByUser(planner) | Self::ByDefault(planner), _) => Ok(rewrite(planner, exchange)),
        }
    }
}

/// What would be sent now.
#[derive(Debug)]
pub struct Rewritten {
    /// The body.
    pub body: Bytes,
    /// What was done to it, as in the header `x-abridge-edits`.
    pub edits: String,
}

// === helpers ===

/// The planner that a folder's `policy.toml` asks for.
pub fn own_planner(text: &str) -> Result<Planner, ReplayError> {
    toml::from_str(text).map(Planner::new).map_err(ReplayError::Policy)
}

/// Every folder in and below `dir` that is a recorded exchange, sorted by name. A symbolic link is not followed, and what
/// a recorder has not finished is not seen.
pub fn folders(dir: &Path) -> io::Result<Vec<PathBuf>> {
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
    let nested: io::Result<Vec<_>> = below.iter().map(|dir| folders(dir)).collect();
    Ok(nested?.concat())
}

/// The rows of one argument. One that holds nothing is a row of its own, for it is hardly what was meant.
fn rows(dir: &Path, chosen: &Chosen) -> Vec<Row> {
    match folders(dir) {
        Ok(found) if found.is_empty() => vec![Row::unreadable(dir, "no recorded exchange in it".to_owned())],
        Ok(found) => found.iter().map(|dir| row(dir, chosen)).collect(),
        Err(error) => vec![Row::unreadable(dir, error.to_string())],
    }
}

fn row(dir: &Path, chosen: &Chosen) -> Row {
    let replayed = Exchange::read(dir).map_err(ReplayError::from).and_then(|exchange| {
        let now = chosen.rewrite(&exchange)?;
        Ok((exchange, now))
    });
    let (exchange, now) = match replayed {
        Ok(both) => both,
        Err(error) => return Row::unreadable(dir, chain(&error)),
    };
    let verdict = Difference::between(exchange.forwarded(), &now.body).map_or(Verdict::Same, Verdict::Different);
    Row {
        name: dir.display().to_string(),
        bytes_in: exchange.request.len(),
        bytes_out: now.body.len(),
        edits: now.edits,
        verdict,
    }
}

impl Row {
    fn unreadable(dir: &Path, why: String) -> Self {
        let verdict = Verdict::Unreadable { why };
        Self { name: dir.display().to_string(), bytes_in: 0, bytes_out: 0, edits: String::new(), verdict }
    }
}

fn rewrite(planner: &Planner, exchange: &Exchange) -> Rewritten {
    let inputs = exchange.meta.inputs.clone().unwrap_or_default();
    let body = &exchange.request;
    let unedited = || Rewritten { body: body.clone(), edits: String::new() };
    let dialect = dialect::for_path(exchange.meta.path_only()).filter(|_| inputs.form != RequestForm::Unedited);
    let Some(dialect) = dialect else { return unedited() };

    let planner = knowing(planner, inputs);
    let situation = planner.anonymous(&NoMemory);
    let mut summaries = HashMap::new();
    if let Some(Used { end, summary }) = &exchange.summary {
        let name = planner.policy.beginning(dialect, body, &situation, *end);
        summaries.extend(name.map(|name| (name, Recollection::Summary(Arc::clone(summary)))));
    }
    let situation = Situation { summaries: &summaries, ..situation };
    let Ok(plan) = planner.policy.plan(dialect, body, &situation) else { return unedited() };
    let edits: Vec<_> = plan.report.counts().iter().map(|(label, n)| format!("{label}={n}")).collect();
    Rewritten { body: joined(splice(body, &plan.splices)), edits: edits.join(";") }
}

/// A planner for the same settings that knows what was known when a request was recorded. What the settings say wins.
fn knowing(planner: &Planner, inputs: PlanInputs) -> Planner {
    let PlanInputs { form, address, windows, not_stored, handles } = inputs;
    let mut parts = if form == RequestForm::Shortest { planner.parts.shortest() } else { planner.parts.clone() };
    parts.recall.public_url = parts.recall.public_url.or(address);
    let offload = if not_stored { Offload::Impossible } else { planner.offload };
    let meter = if windows.is_empty() { planner.meter.clone() } else { Meter::new(&parts.tokens, &parts.models) };
    for (model, window) in &windows {
        meter.learn_window(model, *window);
    }
    Planner::with(parts, meter, Keys::recorded(handles), offload)
}

/// An error with all its causes, each of which prints its own level only.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {}", cause.to_string().trim_end()))
}

fn excerpt(body: &[u8], at: usize) -> String {
    let end = body.len().min(at + EXCERPT);
    let piece = body.get(at.saturating_sub(EXCERPT)..end).unwrap_or_default();
    piece.escape_ascii().to_string()
}

#[cfg(test)]
mod tests;
