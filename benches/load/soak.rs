//! One abridge under everything at once for a long time: whether anything of it grows.
//!
//! Slow streams and agents come and go, some of them in the midst of things, while a probe measures what abridge adds and a
//! watch reads every second what it holds. A longer run begins when all is full that remembers what was said. The first quarter
//! is for warming up; what the last quarter holds may be no more than what the second one held, but for what chance moves. When
//! the load has ended, everything is to be given back.
//!
//! What an answer says is checked, too: every stream has all of its events, and whatever a handle stands for is given back whole.

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
mod line;
mod probe;
mod slow;
mod verdict;
mod watch;

/// The files that this process opens: the two ends of streams, of agents, and some more.
pub(crate) const FILES: usize = 2 * (STREAMS + AGENTS) + 1024;

const STREAMS: usize = 500;
const AGENTS: usize = 50;

/// In shorter runs agents say the same again in each session: what is stored is spared for a minute, whatever the limit is, so
/// nothing that is new could be flat.
const NEW_FROM: Duration = Duration::from_mins(5);

/// Before a longer run, some agents hurry until there were so many requests, each with a result that nobody had said before:
/// whatever remembers texts, names and handles, of which the largest memory has room for 65,536, is full then, and what it
/// holds cannot grow.
const TO_BE_SAID: u64 = 100_000;
/// They are few: if all of them hurried, memory that was used at the height of it would hide what grows later.
const HURRY: u64 = 4;

/// The caches are small, so that they are full long before the end, and the store is, too. The first lines are of the table
/// `[upstream]`, which is open.
const SETTINGS: &str = "\
pool_idle_timeout = \"5s\"
probe = false

[tokens]
memo = \"4MiB\"
ask_upstream = false

[store]
max_bytes = \"24MiB\"
keep_for = \"10m\"
cache = \"4MiB\"

[recall]
via = \"http\"

[truncate_tool_results]
max_bytes = 10000

[clear_tool_results]
trigger = { tokens = 12000 }

[summarize]
trigger = { tokens = 11000 }
";

/// What all who play share.
#[derive(Debug, Default)]
struct Stage {
    over: AtomicBool,
    hurries: AtomicBool,
    tally: Tally,
}

/// What has happened so far.
#[derive(Debug, Default)]
struct Tally {
    requests: AtomicU64,
    streams: AtomicU64,
    left: AtomicU64,
    recalls: AtomicU64,
}

/// Soaks abridge, prints what it held, and fails if that grows.
pub(crate) fn run(bench: &Bench, machine: &Facts, time: Duration) -> Result<()> {
    ensure!(time >= Duration::from_secs(20), "too short to have quarters");
    let (address, process) = Process::abridge(bench, SETTINGS)?;
    let mut watch = watch::Watch::new(address, &process);
    let idle = watch.idle()?;

    let repeats = time < NEW_FROM;
    let stage = Arc::new(Stage { hurries: AtomicBool::new(!repeats), ..Stage::default() });
    let playing = {
        let stage = Arc::clone(&stage);
        thread::Builder::new().name("clients".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let played = runtime.block_on(play(&stage, address, repeats));
            // Who watches does not wait for what cannot come any more.
            stage.over.store(true, Ordering::Relaxed);
            played
        })?
    };
    if !repeats {
        fill(&stage);
    }
    let probing = {
        let (stage, upstream) = (Arc::clone(&stage), bench.upstream.address);
        thread::Builder::new().name("probe".to_owned()).spawn(move || {
            let probed = probe::run(&stage, upstream, address);
            stage.over.store(true, Ordering::Relaxed);
            probed
        })?
    };
    note(&format!("{STREAMS} streams and {AGENTS} agents for {} s", time.as_secs()));
    let watched = watch.run(&stage, time);
    stage.over.store(true, Ordering::Relaxed);
    let played = playing.join().map_err(|_| anyhow!("the clients panicked"))?;
    let probes = probing.join().map_err(|_| anyhow!("the probe panicked"))?;
    let samples = watched?;
    played?;
    let probes = probes?;

    note("the load has ended");
    let end = watch.end(&idle)?;
    let verdict = verdict::Verdict::new(time, &samples, &probes, idle, end);
    print(&verdict, machine, &stage.tally)?;
    watch::check_log(process.folder())?;
    verdict.check()
}

/// Waits until the agents have filled what remembers their texts.
fn fill(stage: &Stage) {
    let start = Instant::now();
    note(&format!("{HURRY} agents hurry until {TO_BE_SAID} results are said"));
    while stage.tally.requests.load(Ordering::Relaxed) < TO_BE_SAID && !stage.is_over() {
        thread::sleep(Duration::from_millis(100));
    }
    stage.hurries.store(false, Ordering::Relaxed);
    note(&format!("that took {} s", start.elapsed().as_secs()));
}

/// All clients, until it is over or one of them is wronged.
async fn play(stage: &Arc<Stage>, address: SocketAddr, repeats: bool) -> Result<()> {
    let mut clients = JoinSet::new();
    for n in 0..STREAMS as u64 {
        let stage = Arc::clone(stage);
        clients.spawn(async move { slow::run(&stage, address, n).await.context("a stream") });
    }
    for n in 0..AGENTS as u64 {
        let stage = Arc::clone(stage);
        clients.spawn(async move { agent::run(&stage, address, n, repeats).await.context("an agent") });
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    Ok(())
}

impl Stage {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether this agent does.
    fn hurries(&self, n: u64) -> bool {
        n < HURRY && self.hurries.load(Ordering::Relaxed)
    }
}

impl Tally {
    fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn print(verdict: &verdict::Verdict, machine: &Facts, tally: &Tally) -> Result<()> {
    let [requests, streams, left, recalls] =
        [&tally.requests, &tally.streams, &tally.left, &tally.recalls].map(|count| count.load(Ordering::Relaxed));
    let mut out = io::stdout().lock();
    writeln!(out, "{}\n", machine.line())?;
    writeln!(
        out,
        "{STREAMS} streams at a time, {streams} in all; {AGENTS} agents, {requests} requests, {recalls} recalls; {left} times a client left in the midst of it.\n"
    )?;
    write!(out, "{verdict}")?;
    Ok(out.flush()?)
}
