//! `abridge models`: prints the context windows, encodings and token factors of models, with their sources.

use std::fmt::Write as _;

use serde::Serialize;

use super::doctor::STEP_TIMEOUT;
use super::status::required_forms;
use crate::cli::{Exit, OutputArgs, escape, print, runtime};
use crate::config::clients::{self, Client};
use crate::config::{Config, Environment, Sources};
use crate::tokens::Meter;
use crate::tokens::models::Entry;
use crate::units::grouped;
use crate::upstream::probe::Probe;

/// The output.
#[derive(Debug, Serialize)]
struct Listing {
    models: Vec<Entry>,
    upstream: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forms: Vec<String>,
}

/// The longest name that is printed in full, in characters.
const MAX_NAME_CHARS: usize = 100;

/// Prints what is known of all models.
pub fn run(args: &OutputArgs, sources: &Sources, config: &Config) -> anyhow::Result<Exit> {
    let environment = Environment::read(&sources.variables, config)?;
    let meter = Meter::new(&config.tokens, &config.models);
    let runtime = runtime()?;
    let upstream = runtime.block_on(query_upstream(config, &environment, &meter))?;
    // A name look-up that hangs is not waited for.
    runtime.shutdown_background();
    let listing = Listing { models: meter.models().entries(), upstream, forms: required_forms(sources, config) };
    print([args.render(&listing, Listing::to_text)?])
}

/// Asks the upstream for the windows of its models. Returns a sentence about the result.
async fn query_upstream(config: &Config, environment: &Environment, meter: &Meter) -> anyhow::Result<String> {
    if !config.tokens.ask_upstream {
        return Ok("not asked, as tokens.ask_upstream is false".to_owned());
    }
    let mut results = Vec::new();
    for Client { settings, name, upstream } in clients::all(config, environment) {
        let upstream = upstream?;
        let probed = Probe::run(&upstream, STEP_TIMEOUT.min(settings.connect_timeout.0)).await;
        let said = probed.said.clone();
        let windows = probed.windows(&upstream, STEP_TIMEOUT).await;
        for (model, window) in &windows {
            meter.models().learn(model, *window);
        }
        let said = if name.is_route() { format!("{name}: {said}") } else { said };
        let unknown = "; it reports no windows, so only those of the settings and the built-in ones are known";
        results.push(match windows.len() {
            0 => format!("{said}{unknown}"),
            n => format!("{said}, with {n} windows"),
        });
    }
    Ok(results.join("; "))
}

impl Listing {
    fn to_text(&self) -> String {
        let names: Vec<_> =
            self.models.iter().map(|entry| escape::to_single_line(&entry.pattern, MAX_NAME_CHARS)).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
        let mut text = format!("{:width$}  {:>9}  {:13}  factor  source\n", "model", "window", "encoding");
        for (name, Entry { window, encoding, factor, alias_of, source, .. }) in names.iter().zip(&self.models) {
            let window = window.map(grouped).unwrap_or_default();
            let encoding = encoding.map(|encoding| encoding.to_string()).unwrap_or_default();
            let factor = factor.map(|factor| factor.to_string()).unwrap_or_default();
            // Writing into a String never fails.
            let _written = write!(text, "{name:width$}  {window:>9}  {encoding:13}  {factor:6}  {source}");
            let alias =
                alias_of.as_ref().map(|model| format!(", alias of {}", escape::to_single_line(model, MAX_NAME_CHARS)));
            let _written = writeln!(text, "{}", alias.unwrap_or_default());
        }
        let forms = self.forms.iter().map(|line| ("forms", line));
        for (name, line) in [("\nupstream", &self.upstream)].into_iter().chain(forms) {
            let _written = writeln!(text, "{name}: {}", escape::to_single_line(line, usize::MAX));
        }
        text
    }
}
