//! `abridge models`: what is known of models, and who says so.

use std::fmt::Write as _;

use anyhow::Context;
use serde::Serialize;
use tokio::runtime;

use super::doctor::upstream::{PATIENCE, client};
use crate::cli::{Exit, escape, print};
use crate::config::{Config, Environment, Sources};
use crate::tokens::Meter;
use crate::tokens::models::{Entry, Model};
use crate::units::grouped;
use crate::upstream::probe::Probe;

/// Which model, and how to print.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print what abridge uses for this model, named as requests name it
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// All that is known.
#[derive(Debug, Serialize)]
struct Listing {
    models: Vec<Entry>,
    upstream: String,
}

/// What is known of one model.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    model: &'a str,
    #[serde(flatten)]
    known: Model,
    upstream: String,
}

/// The longest name that is printed whole.
const LONGEST: usize = 100;

/// Prints what is known of all models, or of one.
pub fn run(args: &Args, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let environment = Environment::read(&sources.variables, config)?;
    let meter = Meter::new(&config.tokens, &config.models);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("no thread to ask with")?;
    let upstream = runtime.block_on(ask(config, &environment, &meter))?;
    // A look-up of a name that hangs is not waited for.
    runtime.shutdown_background();
    let text = if let Some(model) = &args.model {
        let answer = Answer { model, known: meter.model(model), upstream };
        if args.json { json(&answer)? } else { answer.text() }
    } else {
        let listing = Listing { models: meter.models(), upstream };
        if args.json { json(&listing)? } else { listing.text() }
    };
    print([text])?;
    Ok(Exit::Ok)
}

/// Asks the upstream for the windows of its models, and tells what came of it.
async fn ask(config: &Config, environment: &Environment, meter: &Meter) -> anyhow::Result<String> {
    if !config.tokens.ask_upstream {
        return Ok("not asked, as tokens.ask_upstream is false".to_owned());
    }
    let upstream = client(config, environment)?;
    let probed = Probe::run(&upstream, PATIENCE.min(config.upstream.connect_timeout.0)).await;
    let said = probed.outcome.describe(&probed.url, &upstream);
    let windows = probed.windows(PATIENCE).await;
    for (model, window) in &windows {
        meter.learn_window(model, *window);
    }
    Ok(match windows.len() {
        0 => format!("{said}; it tells no windows, so there are only those of the settings and those built in"),
        n => format!("{said}, with {n} windows"),
    })
}

fn json(what: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(what)? + "\n")
}

impl Listing {
    fn text(&self) -> String {
        let names: Vec<_> = self.models.iter().map(|entry| escape::line(&entry.pattern, LONGEST)).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
        let mut text = format!("{:width$}  {:>9}  {:13}  source\n", "model", "window", "encoding");
        for (name, Entry { window, encoding, source, .. }) in names.iter().zip(&self.models) {
            let window = window.map(grouped).unwrap_or_default();
            let encoding = encoding.map(|encoding| encoding.to_string()).unwrap_or_default();
            // Into a String nothing fails.
            let _written = writeln!(text, "{name:width$}  {window:>9}  {encoding:13}  {source}");
        }
        text + "\nupstream: " + &escape::line(&self.upstream, usize::MAX) + "\n"
    }
}

impl Answer<'_> {
    fn text(&self) -> String {
        let Model { window, encoding } = &self.known;
        let window = window.map_or_else(
            || "unknown".to_owned(),
            |window| format!("{} tokens ({})", grouped(window.value), window.source),
        );
        format!(
            "model     {}\nwindow    {window}\nencoding  {} ({})\nupstream  {}\n",
            escape::line(self.model, LONGEST),
            encoding.value,
            encoding.source,
            escape::line(&self.upstream, usize::MAX)
        )
    }
}
