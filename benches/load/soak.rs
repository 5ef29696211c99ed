//! Soak test: runs one abridge under mixed load for a long time, and fails if it leaks anything.
//!
//! Slow streams and agents come and go, some in the middle of a request or an answer, while a probe measures what
//! abridge adds and a sampler reads every second what it holds. A longer run begins when all caches of texts and names
//! are full. The first quarter is for warming up; the last quarter may hold no more than the second one, except for
//! noise. After the load has ended, everything must be released.
//!
//! Answers are checked, too: every stream has all of its events, and every original that a handle names is returned
//! whole.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use tokio::task::JoinSet;

use crate::{Bench, note};

use super::machine::Facts;
use super::target::Process;

mod agent;
mod connection;
mod probe;
mod sampler;
mod slow_stream;
mod verdict;

/// The files that this process opens: both ends of streams and agents, and some more.
pub(crate) const FILES: usize = 2 * (STREAMS + AGENTS) + 1024;

const STREAMS: usize = 500;
const AGENTS: usize = 50;

/// In runs shorter than this, agents repeat the same texts in each session: the store keeps everything for a minute
/// whatever its limit, so with new texts its size could not be flat.
const UNIQUE_TEXTS_FROM: Duration = Duration::from_mins(5);

/// Before a longer run, some agents send without pauses until there were so many requests, each with a new result: all
/// caches of texts, names and handles, the largest of which holds 65,536 entries, are full then, and cannot grow.
const FILL_REQUESTS: u64 = 100_000;
/// Few agents fill the caches: with all of them, the peak memory of that phase would hide later growth.
const FILL_AGENTS: u64 = 4;

/// Small caches and a small store, so that they are full long before the end. The first lines belong to the table
/// `[upstream]`, which is already open.
const SETTINGS: &str = "\
probe = false

[tokens]
ask_upstream = false

[store]
max_bytes = \"24MiB\"
keep_for = \"10m\"

[recall]
via = \"http\"

[truncate_tool_results]
max_bytes = 10000

[clear_tool_results]
when = 'any'
trigger = { tokens = 12000 }

[summarize]
trigger = { tokens = 11000 }
";

/// State that all clients share.
#[derive(Debug, Default)]
struct Progress {
    over: AtomicBool,
    is_filling: AtomicBool,
    counters: Counters,
}

/// Counts of what has happened.
#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    streams: AtomicU64,
    left: AtomicU64,
    recalls: AtomicU64,
}

/// Runs the soak test, prints the samples, and fails if anything grows.
pub(crate) fn run(bench: &Bench, machine: &Facts, time: Duration) -> Result<()> {
    ensure!(time >= Duration::from_secs(20), "too short to have quarters");
    let (address, process) = Process::abridge(bench, SETTINGS)?;
    let mut monitor = sampler::Sampler::new(address, &process);
    let idle = monitor.idle()?;

    let repeats = time < UNIQUE_TEXTS_FROM;
    let progress = Arc::new(Progress { is_filling: AtomicBool::new(!repeats), ..Progress::default() });
    let playing = {
        let progress = Arc::clone(&progress);
        thread::Builder::new().name("clients".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let played = runtime.block_on(play(&progress, address, repeats));
            // Ends the sampling, as nothing more would happen.
            progress.over.store(true, Ordering::Relaxed);
            played
        })?
    };
    if !repeats {
        wait_until_filled(&progress);
    }
    let probing = {
        let (progress, upstream) = (Arc::clone(&progress), bench.upstream.address);
        thread::Builder::new().name("probe".to_owned()).spawn(move || {
            let probed = probe::run(&progress, upstream, address);
            progress.over.store(true, Ordering::Relaxed);
            probed
        })?
    };
    note(&format!("{STREAMS} streams and {AGENTS} agents for {} s", time.as_secs()));
    let monitored = monitor.run(&progress, time);
    progress.over.store(true, Ordering::Relaxed);
    let played = playing.join().map_err(|_| anyhow!("the clients panicked"))?;
    let probes = probing.join().map_err(|_| anyhow!("the probe panicked"))?;
    let samples = monitored?;
    played?;
    let probes = probes?;

    note("the load has ended");
    let end = monitor.end(&idle)?;
    let verdict = verdict::Verdict::new(time, &samples, &probes, idle, end);
    print(&verdict, machine, &progress.counters)?;
    sampler::check_log(process.folder())?;
    verdict.check()
}

/// Waits until the agents have filled the caches.
fn wait_until_filled(progress: &Progress) {
    let start = Instant::now();
    note(&format!("{FILL_AGENTS} agents send without pauses until there were {FILL_REQUESTS} results"));
    while progress.counters.requests.load(Ordering::Relaxed) < FILL_REQUESTS && !progress.is_over() {
        thread::sleep(Duration::from_millis(100));
    }
    progress.is_filling.store(false, Ordering::Relaxed);
    note(&format!("that took {} s", start.elapsed().as_secs()));
}

/// Runs all clients until the end of the test or the first error.
async fn play(progress: &Arc<Progress>, address: SocketAddr, repeats: bool) -> Result<()> {
    let mut clients = JoinSet::new();
    for n in 0..STREAMS as u64 {
        let progress = Arc::clone(progress);
        clients.spawn(async move { slow_stream::run(&progress, address, n).await.context("a stream") });
    }
    for n in 0..AGENTS as u64 {
        let progress = Arc::clone(progress);
        clients.spawn(async move { agent::run(&progress, address, n, repeats).await.context("an agent") });
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    Ok(())
}

impl Progress {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether this agent sends without pauses.
    fn is_filling(&self, n: u64) -> bool {
        n < FILL_AGENTS && self.is_filling.load(Ordering::Relaxed)
    }
}

impl Counters {
    fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn print(verdict: &verdict::Verdict, machine: &Facts, counters: &Counters) -> Result<()> {
    let [requests, streams, left, recalls] = [&counters.requests, &counters.streams, &counters.left, &counters.recalls]
        .map(|count| count.load(Ordering::Relaxed));
    let mut out = io::stdout().lock();
    writeln!(out, "{}\n", machine.line())?;
    writeln!(
        out,
        "{STREAMS} streams at a time, {streams} in all; {AGENTS} agents, {requests} requests, {recalls} recalls; {left} times a client left in the midst of it.\n"
    )?;
    write!(out, "{verdict}")?;
    Ok(out.flush()?)
}
