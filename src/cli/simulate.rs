//! `abridge simulate`: transcripts through policies, to choose one by its figures.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use crate::cli::{Exit, print};
use crate::config::{Config, Sources};
use crate::payload::Keys;
use crate::plan::SummaryEffect;
use crate::simulate::{Choice, Contender, Price, Prices, Simulation, Summarist};
use crate::summary::Summary;
use crate::tokens::models;

/// The policy of the present settings.
const PRESENT: &str = "present";
/// The policy without edits.
const NONE: &str = "none";

/// What to play, and through which policies.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files with a messages array, recordings, or folders of them at any depth
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// A file of settings to play under, as often as given.
    #[arg(long = "policy", value_name = "FILE", default_values = [PRESENT, NONE])]
    #[arg(
        help = "A file of settings to play under; present: those in effect; none: no edits; may be given more than once"
    )]
    policies: Vec<String>,
    /// The model of transcripts that name none
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The context window of every model, in tokens [default: what is known of the model]
    #[arg(long, value_name = "TOKENS")]
    window: Option<NonZeroUsize>,
    /// Play only the N longest
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// What a token costs that the prompt cache serves, in uncached ones
    #[arg(long, value_name = "PRICE", default_value = "0.1")]
    cache_read: Price,
    /// What a token costs that is written to the prompt cache
    #[arg(long, value_name = "PRICE", default_value = "1.0")]
    cache_write: Price,
    /// The tokens of the text that stands in for a summary; with --upstream, that one is asked for summaries
    #[arg(long, value_name = "TOKENS", default_value = "1500")]
    summary_tokens: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Plays everything, and prints what came of it. Where an upstream is named, `desk` has it make the summaries.
pub fn run<D: Fn(SummaryEffect) -> Option<Arc<Summary>>>(
    args: Args,
    sources: &Sources,
    config: &Config,
    desk: impl FnOnce() -> anyhow::Result<D>,
) -> anyhow::Result<Exit> {
    let window = args.window.map(everywhere).transpose()?;
    let mut contenders: Vec<Contender> = Vec::new();
    for (name, policy) in names(&args.policies).into_iter().zip(&args.policies) {
        let mut config = match policy.as_str() {
            PRESENT | NONE => config.clone(),
            file => Config::load(&Sources { file: Some(file.into()), ..sources.clone() })?,
        };
        config.models.splice(0..0, window.clone());
        if policy == NONE {
            config.policy.edits.clear();
        }
        // What one policy has counted, another need not count again.
        let same = contenders
            .iter()
            .map(|other| &other.planner)
            .find(|other| other.parts.tokens == config.tokens && other.parts.models == config.models);
        let meter = same.map_or_else(|| config.meter(), |other| other.meter.clone());
        let planner = config.planner(config.address(), meter, Keys::well_known());
        contenders.push(Contender { name, planner });
    }
    let choice = Choice { paths: args.paths, limit: args.limit, model: args.model };
    let prices = Prices { cache_read: args.cache_read, cache_write: args.cache_write };
    let desk = sources.flags.upstream.is_some().then(desk).transpose()?;
    let summarist = desk.as_ref().map_or(Summarist::StandIn(args.summary_tokens), |desk| Summarist::Model(desk));
    let simulation = Simulation::run(&choice, &contenders, prices, summarist);
    let text = if args.json { serde_json::to_string_pretty(&simulation)? + "\n" } else { simulation.to_string() };
    print([text])?;
    Ok(if simulation.transcripts.is_empty() { Exit::NoInput } else { Exit::Ok })
}

/// A window for every model, before all others that are known.
fn everywhere(window: NonZeroUsize) -> anyhow::Result<models::Settings> {
    toml::from_str(&format!("match = \"*\"\ncontext_window = {window}")).context("--window")
}

/// What the policies are called: files by their names, if those tell them apart.
fn names(policies: &[String]) -> Vec<String> {
    let stem = |policy: &String| {
        let stem = Path::new(policy).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        stem.unwrap_or_else(|| policy.clone())
    };
    let stems: Vec<String> = policies.iter().map(stem).collect();
    let alone = |name: &String| stems.iter().filter(|other| *other == name).count() == 1;
    stems.iter().zip(policies).map(|(stem, policy)| if alone(stem) { stem.clone() } else { policy.clone() }).collect()
}
