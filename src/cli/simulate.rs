//! `abridge simulate`: transcripts through policies, to choose one by its figures.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cli::{Exit, print};
use crate::config::{Config, Sources};
use crate::planner::{Parts, Policy, Settings};
use crate::server::listen::reached_at;
use crate::simulate::{Choice, Contender, Price, Prices, Simulation};
use crate::tokens::{Meter, models};

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
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Plays everything, and prints what came of it.
pub fn run(args: Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let mut meters: Vec<(Config, Meter)> = Vec::new();
    let mut contenders = Vec::new();
    for (name, policy) in names(&args.policies).into_iter().zip(&args.policies) {
        let (mut config, mut parts) = match policy.as_str() {
            PRESENT | NONE => (config.clone(), config.parts()),
            file => {
                let config = Config::load(&Sources { file: Some(file.into()), ..sources.clone() })?;
                let parts = config.parts();
                (config, parts)
            }
        };
        // As `serve` does, so that placeholders are as long as they would be.
        let address = reached_at(&config.server.listen.0, config.tls.is_some());
        parts.recall.public_url = parts.recall.public_url.or(address);
        if policy == NONE {
            parts = Parts { policy: Settings { edits: Vec::new() }, ..parts };
        }
        config.models.splice(0..0, args.window.map(everywhere).transpose()?);
        // What one policy has counted, another need not count again.
        let same = meters.iter().find(|(other, _)| other.tokens == config.tokens && other.models == config.models);
        let meter = same.map_or_else(|| Meter::new(&config.tokens, &config.models), |(_, meter)| meter.clone());
        meters.push((config, meter.clone()));
        contenders.push(Contender { name, policy: Policy::new(&parts), meter });
    }
    let choice = Choice { paths: args.paths, limit: args.limit, model: args.model };
    let prices = Prices { cache_read: args.cache_read, cache_write: args.cache_write };
    let simulation = Simulation::run(&choice, &contenders, prices);
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
