//! What abridge adds to a request, measured beside nginx and beside no proxy at all, in one run.
//!
//! Every target is measured in turn, a few requests at a time, round after round, so that whatever else the machine
//! does falls on all of them alike; every answer is checked while it is timed. docs/benchmarking.md says how to read the
//! tables that this prints.
//!
//! `cargo bench --bench load -- --help` lists the options; `--once` goes through everything one time, to see that it
//! works, not how quick it is.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};

use load::conversation::sample;
use load::floor::Floor;
use load::recorded::Session;
use load::report::Results;
use load::target::Route;
use load::upstream::Upstream;
use load::{events, interference, latency, machine, memory, peers, rate, soak, streams};

/// The parts of the bench, in `benches/load/`.
mod load {
    pub(crate) mod client;
    pub(crate) mod conversation;
    pub(crate) mod events;
    pub(crate) mod floor;
    pub(crate) mod interference;
    pub(crate) mod latency;
    pub(crate) mod machine;
    pub(crate) mod memory;
    pub(crate) mod peers;
    pub(crate) mod rate;
    pub(crate) mod recorded;
    pub(crate) mod report;
    pub(crate) mod soak;
    pub(crate) mod stats;
    pub(crate) mod streams;
    pub(crate) mod target;
    pub(crate) mod upstream;
}

/// Measures abridge beside nginx and beside a direct connection.
#[derive(Debug, Parser)]
#[command(name = "load")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own, and no two exclude each other")]
struct Options {
    /// Go through everything once, in seconds, and fail if any answer is wrong
    #[arg(long)]
    once: bool,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
    /// Seconds for each body size and each other measurement
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Slow streams open at a time
    #[arg(long, default_value_t = 2000)]
    streams: usize,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["latency", "recorded", "reduce", "beside", "rate", "events", "streams"])]
    parts: Vec<Part>,
    /// Whom to measure; a direct connection always is
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["direct", "nginx", "tuned", "streamed", "collected", "pass", "edit", "patch"])]
    targets: Vec<Route>,
    /// The abridge to measure, in place of the one that was built with this bench
    #[arg(long, default_value = env!("CARGO_BIN_EXE_abridge"))]
    abridge: PathBuf,
    /// Leave it to the scheduler which core runs what
    #[arg(long)]
    float: bool,
    /// Be nothing but the upstream, at this address, until killed
    #[arg(long, value_name = "ADDRESS")]
    serve: Option<SocketAddr>,
    /// Be nothing but a proxy of hyper alone, until killed
    #[arg(long, hide = true)]
    floor: Option<Floor>,
    /// Measure the targets that this file names, which run already; `benches/peers/run.py` writes it
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Soak abridge for so many seconds, and fail if anything grows
    #[arg(long, value_name = "SECONDS")]
    soak: Option<u64>,
    /// What cargo passes to benches; without it (`cargo test --benches`) the run is one of `--once`
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Part {
    /// Time of one request after the other, by body size
    Latency,
    /// The same with texts of a session: that of `ABRIDGE_CORPUS` with the most escapes, or a generated one
    Recorded,
    /// The same where results are truncated and cleared
    Reduce,
    /// Time of small requests beside large ones that are counted
    Beside,
    /// Requests a second over 32 connections
    Rate,
    /// Delay and cost of a streamed event
    Events,
    /// Many slow streams at a time
    Streams,
    /// Memory at most under loads that would fill it
    Memory,
}

/// What every measurement needs.
#[derive(Debug)]
struct Bench {
    upstream: Upstream,
    abridge: PathBuf,
    /// The cores of the proxies; all, if there is no list.
    proxy_cores: Option<String>,
    routes: Vec<Route>,
    /// How long each measurement goes on; at least one round is always made.
    budget: Duration,
    streams: streams::Shape,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(address) = options.serve {
        return peers::serve(address);
    }
    if let Some(floor) = options.floor {
        return floor.serve();
    }
    if let Some(plan) = &options.plan {
        return peers::measure(plan);
    }
    let once = options.once || !options.bench;
    let streams = if once { streams::Shape::brief() } else { streams::Shape::of(options.streams) };
    let files = if options.parts.contains(&Part::Memory) { memory::FILES } else { 0 };
    raise_file_limit(streams.files().max(soak::FILES).max(files))?;

    let mut machine = machine::Facts::read(&options.abridge);
    if !options.float {
        machine.cores = machine::Cores::claim();
    }
    let bench = Bench {
        upstream: Upstream::start(Instant::now())?,
        abridge: options.abridge,
        proxy_cores: machine.cores.as_ref().map(|cores| cores.proxies.clone()),
        routes: routes(&options.targets)?,
        budget: if once { Duration::ZERO } else { Duration::from_secs(options.seconds) },
        streams,
    };
    if let Some(seconds) = options.soak {
        return soak::run(&bench, &machine, Duration::from_secs(seconds));
    }
    let wanted = |part| options.parts.contains(&part);
    let mut results = Results { machine, ..Results::default() };
    if bench.routes.iter().any(|route| route.is_abridge()) {
        results.footprint = Some(machine::Footprint::measure(&bench)?);
    }
    if wanted(Part::Latency) {
        for size in latency::SIZES {
            note(&format!("latency, {} bytes", size.bytes));
            results.latency.push(latency::measure(&bench, size, &bench.routes, sample)?);
        }
    }
    if wanted(Part::Recorded) {
        let session = Session::load()?;
        results.texts = Some(session.texts()?);
        for size in latency::RECORDED {
            note(&format!("texts of a session, {} bytes", size.bytes));
            let sample = |bytes, calls| session.sample(bytes, calls);
            results.recorded.push(latency::measure(&bench, size, &bench.routes, sample)?);
        }
    }
    if wanted(Part::Reduce) {
        for size in latency::REDUCED {
            note(&format!("results truncated and cleared, {} bytes", size.bytes));
            results.reduced.push(latency::measure(&bench, size, &latency::REDUCING, sample)?);
        }
    }
    if wanted(Part::Beside) {
        note("small requests beside large new ones");
        results.interference = interference::measure(&bench)?;
    }
    if wanted(Part::Rate) {
        note("requests a second");
        results.rate = rate::measure(&bench)?;
    }
    if wanted(Part::Events) {
        note("events, spaced");
        results.spaced = events::measure(&bench, &events::Flow::spaced(once))?;
        note("events, back to back");
        results.packed = events::measure(&bench, &events::Flow::packed(once))?;
    }
    if wanted(Part::Streams) {
        note("slow streams");
        results.streams = streams::measure(&bench)?;
    }
    if wanted(Part::Memory) {
        note("memory under load");
        results.memory = memory::measure(&bench)?;
    }
    results.print(options.json)
}

/// The routes asked for that this machine can measure, the direct one first.
fn routes(asked: &[Route]) -> Result<Vec<Route>> {
    let mut routes = vec![Route::Direct];
    for &route in asked.iter().filter(|&&route| route != Route::Direct && !route.reduces()) {
        if route.is_nginx() && machine::nginx_version().is_none() {
            note(&format!("nginx is not installed: {} is left out", route.label()));
        } else {
            routes.push(route);
        }
    }
    ensure!(routes.len() > 1, "nothing to compare with the direct connection");
    Ok(routes)
}

/// Starts this program anew under a higher limit of open files, if the present one is too low.
fn raise_file_limit(needed: usize) -> Result<()> {
    if machine::file_limit().is_none_or(|limit| limit >= needed) {
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let failure = Command::new("sh")
        .args(["-c", &format!("ulimit -n {needed} && exec \"$0\" \"$@\"")])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(failure).context("cannot raise the limit of open files; ask for fewer --streams")
}

/// Says on stderr what is going on; what it costs to lose this is nothing.
fn note(text: &str) {
    let _ = writeln!(io::stderr(), "load: {text}");
}
