//! `abridge simulate`: runs transcripts through policies and compares the results.

use std::fs;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::judge::Judge;
use crate::cli::{Exit, print, print_warning, to_json};
use crate::config::{Config, Sources};
use crate::payload::Keys;
use crate::plan::SummaryJob;
use crate::proxy::experiment::NO_EDITS;
use crate::simulate::{
    Conditions, Page, PolicyUnderTest, Price, Prices, Simulation, SummarySource, TranscriptSelection, sessions,
};
use crate::summary::Summary;
use crate::tokens::{models, prices};

/// The name of the policy in the present settings.
const PRESENT: &str = "present";

/// Arguments of `simulate`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files with a messages array, recordings, session files of agents, or folders of them at any depth [default: where
    /// Claude Code, Codex, pi, Gemini CLI and Cline keep the sessions of this user]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The policies to compare; the flag may be repeated.
    #[arg(long = "policy", value_name = "FILE|NAME|URL", default_values = [PRESENT, NO_EDITS])]
    #[arg(
        help = "A settings file to compare, or NAME of policies.NAME; present: the settings in effect, with the policies of \
                  [[upstreams]]; none: no edits; a URL: any proxy that sends to --judge-upstream; may be repeated"
    )]
    policies: Vec<String>,
    /// Where proxies that are policies send their requests
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8786")]
    judge_upstream: SocketAddr,
    /// The model for transcripts that name none
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The context window of every model, in tokens [default: what is known of the model]
    #[arg(long, value_name = "TOKENS")]
    window: Option<NonZeroUsize>,
    /// Use only the N longest transcripts
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// The price of a token read from the prompt cache, in uncached input tokens [default: 0.1]
    #[arg(long, value_name = "PRICE")]
    cache_read: Option<Price>,
    /// The price of a token written to the prompt cache, in uncached input tokens [default: 1.0]
    #[arg(long, value_name = "PRICE")]
    cache_write: Option<Price>,
    /// Count every prompt cache as one of five minutes, also where a session asked for an hour
    #[arg(long)]
    five_minute_caches: bool,
    /// The length of the text that replaces a summary, in tokens; with --upstream, the upstream makes the summaries
    #[arg(long, value_name = "TOKENS", default_value = "1500")]
    summary_tokens: usize,
    /// Count faults with the results of another session as well, which shows how many are chance
    #[arg(long)]
    placebo: bool,
    /// Write the result as a page of HTML, too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the simulation and prints it. With `--upstream`, `summarizer` makes the summaries.
pub fn run<D: Fn(SummaryJob) -> Option<Arc<Summary>> + Sync>(
    args: Args,
    sources: &Sources,
    config: &Config,
    summarizer: impl FnOnce() -> anyhow::Result<D>,
) -> anyhow::Result<Exit> {
    // A window for every model, which overrides all other sources.
    let window = |window| toml::from_str(&format!("match = \"*\"\ncontext_window = {window}")).context("--window");
    let window: Option<models::Settings> = args.window.map(window).transpose()?;
    let mut candidates: Vec<PolicyUnderTest> = Vec::new();
    let has_judged = args.policies.iter().any(|policy| is_url(policy));
    let judge = has_judged.then(|| Judge::listen(args.judge_upstream, args.summary_tokens)).transpose()?;
    for (name, policy) in policy_names(&args.policies).into_iter().zip(&args.policies) {
        let named = config.policies.names().find(|name| name == policy && ![PRESENT, NO_EDITS].contains(name));
        let judged = judge.as_ref().filter(|_| is_url(policy)).map(|judge| judge.through(policy)).transpose()?;
        let mut config = if named.is_some() || judged.is_some() || [PRESENT, NO_EDITS].contains(&policy.as_str()) {
            config.clone()
        } else {
            Config::load(&Sources { file: Some(policy.into()), ..sources.clone() })?
        };
        config.models.splice(0..0, window.clone());
        // Where the settings say nothing.
        let [read, write] = [args.cache_read, args.cache_write].map(|price| price.and_then(Price::as_setting));
        config.prices.push(prices::Settings { read, write, ..prices::Settings::default() });
        if policy == NO_EDITS || judged.is_some() {
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
        candidates.push(PolicyUnderTest { name, planners, judged });
    }
    let variables = &sources.variables;
    let of_user = || anyhow::Ok(sessions::places(variables.home()?.as_deref(), |name| variables.path(name)));
    let paths = if args.paths.is_empty() { of_user()? } else { args.paths };
    if paths.is_empty() {
        print_warning("found no sessions of Claude Code, Codex, pi, Gemini CLI or Cline; name files or a folder");
        return Ok(Exit::NoInput);
    }
    let Args { limit, model, five_minute_caches, .. } = args;
    let selection = TranscriptSelection { paths, limit, model, five_minute_caches };
    let Prices { cache_read, cache_write } = Prices::default();
    let prices = Prices {
        cache_read: args.cache_read.unwrap_or(cache_read),
        cache_write: args.cache_write.unwrap_or(cache_write),
    };
    let summarizer = sources.flags.has_default_upstream().then(summarizer).transpose()?;
    let summary_source = match &summarizer {
        Some(summarizer) => SummarySource::Model(summarizer),
        None => SummarySource::StandIn(args.summary_tokens),
    };
    let bar = progress_bar(args.json);
    let show = |played: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(played as u64);
    };
    let conditions = Conditions { prices, summary_source, placebo: args.placebo, progress: Some(&show) };
    let simulation = Simulation::run(&selection, &candidates, &conditions);
    bar.finish_and_clear();
    if let Some(file) = &args.html {
        fs::write(file, Page(&simulation).to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let text = if args.json { to_json(&simulation)? } else { simulation.to_string() };
    print([text])?;
    Ok(if simulation.transcripts.is_empty() { Exit::NoInput } else { Exit::Ok })
}

fn is_url(policy: &str) -> bool {
    policy.starts_with("http://")
}

/// A bar on standard error, if that is a terminal; none beside JSON that goes elsewhere.
fn progress_bar(json: bool) -> ProgressBar {
    let is_shown = io::stderr().is_terminal() && (!json || io::stdout().is_terminal());
    let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} requests, {eta} left");
    let bar = ProgressBar::with_draw_target(Some(0), target);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The names of the policies: the file stems, or the whole paths where stems are equal.
fn policy_names(policies: &[String]) -> Vec<String> {
    let stem = |policy: &String| {
        if is_url(policy) {
            return policy.trim_start_matches("http://").to_owned();
        }
        let stem = Path::new(policy).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        stem.unwrap_or_else(|| policy.clone())
    };
    let stems: Vec<String> = policies.iter().map(stem).collect();
    let alone = |name: &String| stems.iter().filter(|other| *other == name).count() == 1;
    stems.iter().zip(policies).map(|(stem, policy)| if alone(stem) { stem.clone() } else { policy.clone() }).collect()
}
