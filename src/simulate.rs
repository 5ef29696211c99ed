//! `abridge simulate`: what policies would make of whole sessions, in tokens, cost and cache hits.
//!
//! A transcript is played as an agent's loop sent it: one request before each message of the model, each from the
//! beginning of the conversation, and one at the end. Each request goes through the policy as it would in the proxy, and
//! is then compared with the request before it.
//!
//! # How the cached prefix is computed
//! A prompt begins with the tool definitions, and the messages follow. Tokens are counted for each of them as a whole. The
//! prefix that a request shares with the one before it is: the definitions, if they are the same bytes; then each message,
//! as long as they are the same bytes; then, of the first message that differs, the part of its tokens that the equal
//! beginning is of its bytes. The sum is rounded down to whole blocks of 128 tokens, as caches hold them. Nothing is said
//! about how long a provider keeps a prompt, or how long it must be to be kept: it is what a cache could serve at best,
//! and the same for every policy.
//!
//! # How the cost is computed
//! In the price of an uncached input token. What the cache serves costs `cache_read`; what fills whole blocks behind it
//! costs `cache_write`, as it is written for the next request; the rest of the last block costs 1.
//!
//! # What summaries are
//! Unless an upstream is named to make them, a text of fixed size stands in for each, with everything around it that is computed from
//! the conversation. What the calls for summaries send is in the cost: `cache_read` for what they share with the request
//! before, 1 for the rest. What they answer is not.

use std::io;
use std::path::PathBuf;

use serde::Serialize;

use crate::dialect::{self, Dialect};
use crate::planner::Planner;

pub use self::figures::{Figures, Price, Prices};
pub use self::summarist::Summarist;
pub use self::transcript::{ReadError, Transcript};

mod figures;
mod find;
pub mod play;
pub mod sent;
mod summarist;
mod table;
mod transcript;

/// Where clients post the kind of body that is played.
const ROUTE: &str = "/chat/completions";

/// A policy that takes part.
#[derive(Debug)]
pub struct Contender {
    /// What it is called in the tables.
    pub name: String,
    /// What it does.
    pub planner: Planner,
}

/// What to play.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Files with a `messages` array, recordings, and folders of them at any depth.
    pub paths: Vec<PathBuf>,
    /// Only so many, the longest.
    pub limit: Option<usize>,
    /// The model of transcripts that name none.
    pub model: Option<String>,
}

/// What came of all transcripts.
#[derive(Debug, Serialize)]
pub struct Simulation {
    /// What tokens cost.
    pub prices: Prices,
    /// How many tokens the text has that stands in for a summary; none where a model has made them.
    pub stand_in: Option<usize>,
    /// The longest first.
    pub transcripts: Vec<Played>,
    /// The sums, a policy each.
    pub totals: Vec<Total>,
    /// Files that are no transcripts.
    pub unreadable: Vec<Unreadable>,
}

/// One transcript under every policy.
#[derive(Debug, Serialize)]
pub struct Played {
    /// Its path.
    pub name: String,
    /// The model that is asked.
    pub model: Option<String>,
    /// How many messages it has.
    pub messages: usize,
    /// A policy each, in the order in which they were given.
    pub runs: Vec<Run>,
}

/// One transcript under one policy.
#[derive(Debug, Serialize)]
pub struct Run {
    /// The policy.
    pub policy: String,
    /// The tokens that the model takes, if that is known.
    pub window: Option<usize>,
    /// What came of it.
    pub figures: Figures,
}

/// All transcripts under one policy.
#[derive(Debug, Serialize)]
pub struct Total {
    /// The policy.
    pub policy: String,
    /// The sums; of the largest requests, the largest.
    pub figures: Figures,
}

/// A file that could not be played.
#[derive(Debug, Serialize)]
pub struct Unreadable {
    /// Its path.
    pub name: String,
    /// Why, with its causes.
    pub why: String,
}

// === impl Simulation ===

impl Simulation {
    /// Plays everything through every policy.
    pub fn run(choice: &Choice, contenders: &[Contender], prices: Prices, summarist: Summarist<'_>) -> Self {
        let mut unreadable = Vec::new();
        let mut found = find::all(&choice.paths, &mut unreadable);
        // The size alone is no order, and the same call is to print the same table.
        found.sort_by(|a, b| b.n_bytes.cmp(&a.n_bytes).then_with(|| a.path.cmp(&b.path)));
        let mut transcripts = Vec::new();
        for found in found {
            if choice.limit.is_some_and(|limit| transcripts.len() >= limit) {
                break;
            }
            let name = found.path.display().to_string();
            let read = Transcript::read(&found.path, choice.model.as_deref());
            match read.and_then(|transcript| played(name.clone(), &transcript, contenders, prices, summarist)) {
                Ok(played) => transcripts.push(played),
                Err(error) => unreadable.push(Unreadable::new(name, &error)),
            }
        }
        unreadable.sort_by(|a, b| a.name.cmp(&b.name));
        let totals = contenders.iter().enumerate().map(|(n, contender)| Total {
            policy: contender.name.clone(),
            figures: transcripts
                .iter()
                .filter_map(|played| played.runs.get(n))
                .fold(Figures::default(), |sum, run| sum.plus(&run.figures)),
        });
        let stand_in = match summarist {
            Summarist::StandIn(tokens) => Some(tokens),
            Summarist::Model(_) => None,
        };
        Self { prices, stand_in, totals: totals.collect(), transcripts, unreadable }
    }
}

fn played(
    name: String,
    transcript: &Transcript,
    contenders: &[Contender],
    prices: Prices,
    summarist: Summarist<'_>,
) -> Result<Played, ReadError> {
    let run = |contender: &Contender| {
        let window = contender.planner.meter.for_model(transcript.model()).window();
        let figures = play::play(transcript, contender, prices, summarist)?;
        Ok(Run { policy: contender.name.clone(), window, figures })
    };
    let runs: Result<Vec<_>, ReadError> = contenders.iter().map(run).collect();
    Ok(Played { name, model: transcript.model().map(str::to_owned), messages: transcript.n_messages(), runs: runs? })
}

impl Unreadable {
    fn new(name: String, error: &dyn std::error::Error) -> Self {
        let causes = std::iter::successors(error.source(), |cause| cause.source());
        let why = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        Self { name, why }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

/// The dialect of everything that is played.
fn dialect() -> Result<&'static dyn Dialect, ReadError> {
    dialect::for_path(ROUTE).ok_or(ReadError::NoDialect)
}

#[cfg(test)]
mod tests;
