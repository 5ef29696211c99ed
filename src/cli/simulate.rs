//! `abridge simulate`: runs transcripts through policies and compares the results.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use crate::cli::{Exit, print};
use crate::config::{Config, Sources};
use crate::payload::Keys;
use crate::plan::SummaryJob;
use crate::simulate::{PolicyUnderTest, Price, Prices, Simulation, SummarySource, TranscriptSelection};
use crate::summary::Summary;
use crate::tokens::models;

/// The name of the policy in the present settings.
const PRESENT: &str = "present";
/// The name of the policy without edits.
const NONE: &str = "none";

/// Arguments of `simulate`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files with a messages array, recordings, or folders of them at any depth
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The policies to compare; the flag may be repeated.
    #[arg(long = "policy", value_name = "FILE|NAME", default_values = [PRESENT, NONE])]
    #[arg(
        help = "A settings file to compare, or NAME of policies.NAME; present: the settings in effect, with the policies of \
                  [[upstreams]]; none: no edits; may be repeated"
    )]
    policies: Vec<String>,
    /// The model for transcripts that name none
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The context window of every model, in tokens [default: what is known of the model]
    #[arg(long, value_name = "TOKENS")]
    window: Option<NonZeroUsize>,
    /// Use only the N longest transcripts
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// The price of a token read from the prompt cache, in uncached input tokens
    #[arg(long, value_name = "PRICE", default_value = "0.1")]
    cache_read: Price,
    /// The price of a token written to the prompt cache, in uncached input tokens
    #[arg(long, value_name = "PRICE", default_value = "1.0")]
    cache_write: Price,
    /// The length of the text that replaces a summary, in tokens; with --upstream, the upstream makes the summaries
    #[arg(long, value_name = "TOKENS", default_value = "1500")]
    summary_tokens: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the simulation and prints it. With `--upstream`, `summarizer` makes the summaries.
pub fn run<D: Fn(SummaryJob) -> Option<Arc<Summary>>>(
    args: Args,
    sources: &Sources,
    config: &Config,
    summarizer: impl FnOnce() -> anyhow::Result<D>,
) -> anyhow::Result<Exit> {
    let window = args.window.map(window_for_all_models).transpose()?;
    let mut candidates: Vec<PolicyUnderTest> = Vec::new();
    for (name, policy) in policy_names(&args.policies).into_iter().zip(&args.policies) {
        let named = config.policies.names().find(|name| name == policy && ![PRESENT, NONE].contains(name));
        let mut config = match policy.as_str() {
            PRESENT | NONE => config.clone(),
            _ if named.is_some() => config.clone(),
            file => Config::load(&Sources { file: Some(file.into()), ..sources.clone() })?,
        };
        config.models.splice(0..0, window.clone());
        if policy == NONE {
            config.policy.edits.clear();
            config.upstreams.clear();
        }
        // Policies with the same token settings share one meter, and so its counts.
        let same = candidates
            .iter()
            .map(|other| other.planners.default())
            .find(|other| other.settings.tokens == config.tokens && other.settings.models == config.models);
        let meter = same.map_or_else(|| config.meter(), |other| other.meter.clone());
        let planners = config.planners(named, config.address(), meter, Keys::well_known())?;
        candidates.push(PolicyUnderTest { name, planners });
    }
    let selection = TranscriptSelection { paths: args.paths, limit: args.limit, model: args.model };
    let prices = Prices { cache_read: args.cache_read, cache_write: args.cache_write };
    let summarizer = sources.flags.has_default_upstream().then(summarizer).transpose()?;
    let summary_source = summarizer
        .as_ref()
        .map_or(SummarySource::StandIn(args.summary_tokens), |summarizer| SummarySource::Model(summarizer));
    let simulation = Simulation::run(&selection, &candidates, prices, summary_source);
    let text = if args.json { serde_json::to_string_pretty(&simulation)? + "\n" } else { simulation.to_string() };
    print([text])?;
    Ok(if simulation.transcripts.is_empty() { Exit::NoInput } else { Exit::Ok })
}

/// A window for every model, which overrides all other sources.
fn window_for_all_models(window: NonZeroUsize) -> anyhow::Result<models::Settings> {
    toml::from_str(&format!("match = \"*\"\ncontext_window = {window}")).context("--window")
}

/// The names of the policies: the file stems, or the whole paths where stems are equal.
fn policy_names(policies: &[String]) -> Vec<String> {
    let stem = |policy: &String| {
        let stem = Path::new(policy).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        stem.unwrap_or_else(|| policy.clone())
    };
    let stems: Vec<String> = policies.iter().map(stem).collect();
    let alone = |name: &String| stems.iter().filter(|other| *other == name).count() == 1;
    stems.iter().zip(policies).map(|(stem, policy)| if alone(stem) { stem.clone() } else { policy.clone() }).collect()
}
