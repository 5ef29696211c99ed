//! `abridge simulate`: runs transcripts through policies and compares the results.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::runtime::{self, Runtime};
use tokio::sync::{Mutex, mpsc};

use crate::body::{Budget, Limits, Pool};
use crate::cli::client::{ClientError, RunningProxy};
use crate::cli::{Exit, print, print_warning, to_json};
use crate::config::{Config, Sources};
use crate::demo;
use crate::dialect;
use crate::payload::Keys;
use crate::proxy::NO_EDITS;
use crate::simulate::judge::Arrival;
use crate::simulate::{
    Conditions, Judged, Page, PolicyUnderTest, Price, Prices, Simulation, Summarize, TranscriptSelection, sessions,
};
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

/// Runs the simulation and prints it. `model` makes the summaries, if there is one.
pub fn run(args: Args, sources: &Sources, config: &Config, model: Option<&Summarize>) -> anyhow::Result<Exit> {
    // A window for every model, which overrides all other sources.
    let window = |window| toml::from_str(&format!("match = \"*\"\ncontext_window = {window}")).context("--window");
    let window: Option<models::Settings> = args.window.map(window).transpose()?;
    let mut candidates: Vec<PolicyUnderTest> = Vec::new();
    let has_judged = args.policies.iter().any(|policy| is_url(policy));
    let judge = has_judged.then(|| Judge::listen(args.judge_upstream, args.summary_tokens)).transpose()?;
    for policy in &args.policies {
        let is_built_in = [PRESENT, NO_EDITS].contains(&policy.as_str());
        let named = Some(policy.as_str()).filter(|name| !is_built_in && config.policies.contains_key(*name));
        let judged =
            judge.as_ref().filter(|_| is_url(policy)).map(|judge| judge.through(policy, PATIENCE)).transpose()?;
        let mut config = if named.is_some() || judged.is_some() || is_built_in {
            config.clone()
        } else {
            Config::load(&Sources { file: Some(policy.into()), ..sources.clone() })?
        };
        config.models.splice(0..0, window.clone());
        // Where the settings say nothing.
        let [read, write] = [args.cache_read, args.cache_write].map(|price| prices::Price::new(price?.value()));
        config.prices.push(prices::Settings { read, write, ..prices::Settings::default() });
        if policy == NO_EDITS || judged.is_some() {
            config.policy.edits.clear();
            config.upstreams.clear();
            config.keep_alive.enabled = false;
        }
        // Policies with the same token settings share one meter, and so its counts.
        let same = candidates
            .iter()
            .map(|other| other.planners.default())
            .find(|other| other.settings.tokens == config.tokens && other.settings.models == config.models);
        let meter = same.map_or_else(|| config.meter(), |other| other.meter.clone());
        let planners = config.planners(named, config.address(), meter, Keys::well_known())?;
        let keep_alive = config.keep_alive.enabled.then_some(config.keep_alive.after.0);
        let name = policy.trim_start_matches("http://").trim_end_matches(".toml").to_owned();
        candidates.push(PolicyUnderTest { name, planners, judged, keep_alive });
    }
    let variables = &sources.variables;
    let of_user = || anyhow::Ok(sessions::places(variables.home()?.as_deref(), |name| variables.path(name)));
    let paths = if args.paths.is_empty() { of_user()? } else { args.paths };
    if paths.is_empty() {
        print_warning("found no sessions of Claude Code, Codex, pi, Gemini CLI or Cline; name files or a folder");
        return Ok(Exit::NoInput);
    }
    let Args { limit, five_minute_caches, .. } = args;
    let selection = TranscriptSelection { paths, limit, model: args.model, five_minute_caches };
    let Prices { cache_read, cache_write } = Prices::default();
    let prices = Prices {
        cache_read: args.cache_read.unwrap_or(cache_read),
        cache_write: args.cache_write.unwrap_or(cache_write),
    };
    let bar = progress_bar(args.json);
    let show = |played: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(played as u64);
    };
    let Args { summary_tokens, placebo, .. } = args;
    let conditions = Conditions { prices, summary_tokens, model, placebo, progress: Some(&show) };
    let simulation = Simulation::run(&selection, &candidates, &conditions);
    bar.finish_and_clear();
    if let Some(file) = &args.html {
        fs::write(file, Page(&simulation).to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let text = if args.json { to_json(&simulation)? } else { simulation.to_string() };
    print([text])?;
    let mut judged = simulation.totals.iter().filter_map(|total| total.outcome.sightings.as_ref());
    Ok(if simulation.transcripts.is_empty() {
        Exit::NoInput
    } else if judged.any(|seen| seen.lost > 0 && seen.lost == seen.requests) {
        Exit::Unavailable
    } else {
        Exit::Ok
    })
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

// === the upstream of proxies that are policies ===

/// The upstream. Proxies are asked one request at a time, so that what arrives is of that request.
struct Judge {
    arrivals: Arc<Mutex<mpsc::Receiver<Bytes>>>,
    /// It serves as long as this is there.
    _runtime: Runtime,
}

/// An answer of the upstream.
#[derive(Deserialize)]
struct Answer {
    whole: String,
    stream: String,
}

/// Whether a request asks for a stream.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Asked {
    stream: bool,
}

/// How long a proxy may take for an answer: some load a model at their first request.
const PATIENCE: Duration = Duration::from_mins(5);

/// After so many requests in a row that were not answered in time, a proxy is not asked any more.
const MOST_HUNG: usize = 2;

/// The longest body that the upstream reads, in bytes.
const MAX_BODY: usize = 256 << 20;

/// How many requests may arrive of one; further ones are not counted.
const MAX_ARRIVALS: usize = 256;

/// Which answer is given where.
const ANSWERS: &str = include_str!("judge/answers.toml");

impl Judge {
    /// Listens at the address. Each answer has so many words, for proxies that have the upstream summarise.
    fn listen(address: SocketAddr, n_words: usize) -> anyhow::Result<Self> {
        let answers: Arc<BTreeMap<String, Answer>> =
            Arc::new(toml::from_str(&ANSWERS.replace("WORDS", &vec!["word"; n_words].join(" ")))?);
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(address));
        let listener = listener.with_context(|| format!("--judge-upstream {address}"))?;
        let limits = Limits { max_body: MAX_BODY, budget: Budget::new(2 * MAX_BODY), pool: Pool::default() };
        let (sender, arrivals) = mpsc::channel(MAX_ARRIVALS);
        let entered = runtime.enter();
        demo::serve(listener, limits, move |path, body| {
            let body = body.unwrap_or_default();
            let streams = serde_json::from_slice::<Asked>(&body).is_ok_and(|asked| asked.stream);
            if !body.is_empty() {
                let _counted = sender.try_send(body);
            }
            let (kind, text) = match answers.iter().find(|(end, _)| path.ends_with(end.as_str())) {
                Some((_, answer)) if streams => ("text/event-stream", answer.stream.trim_start()),
                Some((_, answer)) => ("application/json", &*answer.whole),
                None => ("application/json", "{}"),
            };
            let mut response = Response::new(text.to_owned().into());
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            response
        });
        drop(entered);
        Ok(Self { arrivals: Arc::new(Mutex::new(arrivals)), _runtime: runtime })
    }

    /// What sends a request through the proxy at this base URL.
    fn through(&self, url: &str, patience: Duration) -> anyhow::Result<Box<Judged>> {
        let mut proxy = RunningProxy::of(Some(url), None, &Config::default())?;
        proxy.patience = patience;
        let path = url.parse::<http::Uri>()?.path().trim_end_matches('/').to_owned();
        let prefix = path.strip_suffix("/v1").unwrap_or(&path).to_owned();
        let (arrivals, hung) = (Arc::clone(&self.arrivals), AtomicUsize::default());
        Ok(Box::new(move |body| {
            let mut arrivals = arrivals.blocking_lock();
            if hung.load(Ordering::Relaxed) >= MOST_HUNG {
                return Err("not asked any more".to_owned());
            }
            let is_bearer = dialect::of_body(body).facts().key_field == "authorization";
            // Requests that came after the last answer, such as for summaries, are paid with this one.
            let mut further: Vec<_> = std::iter::from_fn(|| arrivals.try_recv().ok()).collect();
            let began = Instant::now();
            let answer = proxy.ask(&prefix, None, if is_bearer { "Bearer judge" } else { "judge" }, body);
            let within = began.elapsed();
            let n_hung = if within < patience { 0 } else { hung.load(Ordering::Relaxed) + 1 };
            hung.store(n_hung, Ordering::Relaxed);
            let mut arrived: Vec<_> = std::iter::from_fn(|| arrivals.try_recv().ok()).collect();
            match (arrived.pop(), answer) {
                (Some(body), _) => {
                    further.extend(arrived);
                    Ok(Arrival { body, further, within })
                }
                (None, Ok(answer)) => Err(format!("{}: {}", answer.status, answer.first_line())),
                (None, Err(ClientError::NotListening(..))) => Err("nothing listens there".to_owned()),
                (None, Err(ClientError::UnexpectedResponse(_, what))) => Err(format!("it answers with {what}")),
                (None, Err(error)) => Err(error.to_string()),
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener as BlockingListener;

    use super::*;

    #[test]
    fn a_proxy_that_hangs_is_not_asked_for_ever() {
        let judge = Judge::listen(SocketAddr::from(([127, 0, 0, 1], 0)), 1).unwrap();
        // The system accepts connections, and no program answers them.
        let hanging = BlockingListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", hanging.local_addr().unwrap());
        let judged = judge.through(&url, Duration::from_millis(200)).unwrap();
        let began = Instant::now();
        let asked: Vec<_> = (0..50).map(|_| judged(&Bytes::from_static(b"{}")).unwrap_err()).collect();
        assert!(began.elapsed() < Duration::from_secs(5) && began.elapsed() > Duration::from_millis(400));
        assert!(asked[..MOST_HUNG].iter().all(|why| why.contains("no answer from")), "{asked:?}");
        assert!(asked[MOST_HUNG..].iter().all(|why| why == "not asked any more"), "{asked:?}");
    }
}
