//! Replicas on one engine behind a balancer that chooses at random, or by the client: whether they behave as one, and what
//! that costs.
//!
//! Agents grow conversations by one round a request. Before the upstream answers, it checks of each request that
//!
//! - each handle that it names, and was not named before, is read through another replica, to the byte;
//! - it begins with the bytes of the conversation's last request, unless more is cleared or summarised now;
//! - no summary was asked for of what another one was asked for.
//!
//! `cargo bench --bench fleet -- --engine postgres --replicas 1,2,4` prints a table, and fails where a check did. Times
//! include what the upstream does before it answers; with `--unchecked` it answers at once. What several replicas do that one
//! does not is told by requests a second only where each has a core; with `--share 10` each has a tenth of one.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints what it has found")]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it spawns the other sides of a connection, and shares what it has found with them"
)]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a bench that cannot go on ends"
)]

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use clap::{Parser, ValueEnum};
use tokio::task::JoinSet;

#[path = "../tests/it"]
#[expect(dead_code, unused_imports, reason = "it serves the integration tests, too")]
mod it {
    pub(crate) mod support;
}
#[path = "../tests/fleet"]
#[expect(dead_code, unused_imports, unused_macros, reason = "it serves the tests of fleets, too")]
mod fleet {
    pub(crate) mod engine;
}
#[path = "fleet/share.rs"]
mod share;
#[path = "load/stats.rs"]
#[expect(dead_code, reason = "it serves the other bench, too")]
mod stats;

use fleet::engine::{Engine, Postgres, Redis};
use it::support::offloads::recalls;
use it::support::upstream::whole;
use it::support::{Abridge, Setup, Upstream, Wire, chat, request};
use share::Share;
use stats::{Random, quantile};

/// Measures replicas on one engine.
#[derive(Debug, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own, and no two exclude each other")]
#[command(name = "fleet")]
struct Options {
    /// Where the replicas keep what they share; `file` is one process with a file of its own, whatever `--replicas` says
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["file", "postgres", "redis"])]
    engine: Vec<Kind>,
    /// How many replicas, one run each
    #[arg(long, value_delimiter = ',', default_values = ["1", "2", "4"])]
    replicas: Vec<usize>,
    /// Requests of each run
    #[arg(long, default_value_t = 2000)]
    requests: usize,
    /// Conversations that go on at the same time
    #[arg(long, default_value_t = 8)]
    agents: usize,
    /// The tokens from which on results are cleared. Those of each second agent are not, and at twice as many tokens its
    /// conversations are summarised
    #[arg(long, default_value_t = 30_000)]
    trigger: usize,
    /// Let each agent have one replica, as behind a balancer that goes by the client
    #[arg(long)]
    sticky: bool,
    /// Hold each replica to so many hundredths of a core, by a control group of Linux
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    share: Option<u32>,
    /// Encrypt what the engine holds
    #[arg(long)]
    seal: bool,
    /// Check nothing, and answer at once
    #[arg(long)]
    unchecked: bool,
    /// What `cargo bench` says to each bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Kind {
    File,
    Postgres,
    Redis,
}

/// The result of a run.
struct Run {
    seconds: f64,
    times: Times,
    /// Seconds of processor time of all replicas.
    processor: f64,
    /// The hundredths of a core that each replica has, if it is held to a share.
    share: Option<u32>,
    seen: Seen,
}

/// How long requests took, in milliseconds.
#[derive(Default)]
struct Times {
    /// Those whose newest result is truncated, and stored.
    storing: Vec<f64>,
    /// All others; a pass may store something there, too.
    others: Vec<f64>,
}

/// What the upstream has found.
#[derive(Default)]
struct Seen {
    handles: usize,
    passes: usize,
    summaries: usize,
    failures: Vec<String>,
}

/// The upstream of one run.
struct Judge {
    replicas: Vec<SocketAddr>,
    checks: bool,
    seen: Mutex<Seen>,
    /// The last request of each conversation.
    last: Mutex<HashMap<String, Bytes>>,
    read: Mutex<HashSet<String>>,
    summarised: Mutex<HashSet<Bytes>>,
}

/// Results that are longer than this, in bytes, are truncated, so the next request stores them.
const MAX_RESULT: usize = 8000;

/// The settings of replicas that encrypt.
const SEALED: &str = "store.seal = true\nstore.secret_env = \"STORE_SECRET\"";

const INSTRUCTION: &str = "WRITE THE SUMMARY NOW";

/// A conversation has so many rounds, and then another one begins.
const MAX_ROUNDS: usize = 60;

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let failed = runtime.block_on(async {
        println!("| engine | replicas | requests/s | storing: p50 ms | p99 | others: p50 ms | p99 | processor ms a request | of its share | handles read | passes | summaries | failures |");
        println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
        let mut failed = 0;
        for kind in &options.engine {
            let counts = if *kind == Kind::File { &[1][..] } else { &options.replicas };
            for n in counts {
                let Some(run) = run(*kind, *n, &options).await else { continue };
                failed += run.seen.failures.len();
                run.print(*kind, *n, options.requests);
            }
        }
        failed
    });
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One run; `None` where the engine is not installed.
async fn run(kind: Kind, n_replicas: usize, options: &Options) -> Option<Run> {
    let mut upstream = Upstream::start().await;
    let engine = match kind {
        Kind::File => None,
        Kind::Postgres => Some(Engine::Postgres(Postgres::start().await?)),
        Kind::Redis => Some(Engine::Redis(Redis::start().await?)),
    };
    let mut replicas = Vec::new();
    for _ in 0..n_replicas {
        let setup = match &engine {
            Some(engine) => {
                if replicas.is_empty() {
                    engine.init("").await;
                }
                let replica = engine.replica(&upstream);
                if options.seal { replica.with(SEALED).environment("STORE_SECRET", "5e".repeat(32)) } else { replica }
            }
            None => Setup::before(&upstream).with("recall.public_url = \"http://abridge.test\""),
        };
        replicas.push(setup.with(policy(options.trigger)).start().await);
    }
    let addresses: Vec<_> = replicas.iter().map(Abridge::address).collect();
    let judge = Arc::new(Judge {
        replicas: addresses.clone(),
        checks: !options.unchecked,
        seen: Mutex::default(),
        last: Mutex::default(),
        read: Mutex::default(),
        summarised: Mutex::default(),
    });
    let of_upstream = Arc::clone(&judge);
    let serving = tokio::spawn(async move {
        while let Some(wire) = upstream.accept().await {
            let judge = Arc::clone(&of_upstream);
            tokio::spawn(async move { judge.serve(wire).await });
        }
    });
    let held =
        |percent| replicas.iter().map(move |replica| Share::of(replica.pid(), percent).expect("a control group"));
    let shares: Vec<_> = options.share.into_iter().flat_map(held).collect();
    let before = processor_time(&replicas);
    let began = Instant::now();
    let mut agents = JoinSet::new();
    for agent in 0..options.agents {
        let n_requests = options.requests / options.agents + usize::from(agent < options.requests % options.agents);
        let only = options.sticky.then_some(agent % addresses.len());
        agents.spawn(drive(agent, n_requests, addresses.clone(), only));
    }
    let mut times = Times::default();
    for of_agent in agents.join_all().await {
        times.storing.extend(of_agent.storing);
        times.others.extend(of_agent.others);
    }
    let seconds = began.elapsed().as_secs_f64();
    let processor = processor_time(&replicas) - before;
    drop(shares);
    serving.abort();
    let seen = std::mem::take(&mut *judge.seen.lock().unwrap());
    if judge.checks && seen.summaries == 0 {
        eprintln!(
            "no summary fell due, so nothing is said about summaries: take more requests, and two agents at least"
        );
    }
    if !seen.failures.is_empty() {
        for line in replicas.iter().flat_map(Abridge::stderr).filter(|line| !line.contains("INFO")).take(20) {
            eprintln!("{line}");
        }
    }
    Some(Run { seconds, times, processor, share: options.share, seen })
}

/// The settings of all replicas.
fn policy(trigger: usize) -> String {
    let summarize = 2 * trigger;
    format!(
        "clear_tool_results = {{ when = \"any\", trigger = {{ tokens = {trigger} }}, keep = {{ results = 3 }}, keep_reads = 0 }}\n\
         truncate_tool_results = {{ max_bytes = {MAX_RESULT} }}\n\
         tools = {{ read_page = {{ clear = false }} }}\n\
         summarize = {{ trigger = {{ tokens = {summarize} }}, instruction = \"{INSTRUCTION}\" }}\n\
         tokens.counter = \"estimate\""
    )
}

/// Grows conversations, each request through one replica if `only` names it, and else through one that is drawn; returns
/// how long each took.
async fn drive(agent: usize, n_requests: usize, replicas: Vec<SocketAddr>, only: Option<usize>) -> Times {
    let mut draw = Random::new(agent as u64);
    let mut times = Times::default();
    let tool = if agent.is_multiple_of(2) { "bash" } else { "read_page" };
    let (mut conversation, mut messages, mut stores) = (0, String::new(), false);
    for n in 0..n_requests {
        let round = n % MAX_ROUNDS;
        if round == 0 {
            (conversation, stores) = (conversation + 1, false);
            messages = format!(r#"{{"role":"user","content":"talk ({agent}.{conversation})"}}"#);
        }
        let through = only.unwrap_or_else(|| draw.below(replicas.len()));
        let body = format!(
            r#"{{"model":"gpt-4o","messages":[{messages}],"tools":[{{"type":"function","function":{{"name":"{tool}"}}}}],"user":"replica {through}."}}"#
        );
        let began = Instant::now();
        let mut wire = Wire::connect(replicas[through]).await;
        wire.send(chat(&body)).await;
        let reply = wire.reply().await;
        assert_eq!(reply.head.status(), 200, "{}", String::from_utf8_lossy(&reply.body));
        let of_kind = if stores { &mut times.storing } else { &mut times.others };
        of_kind.push(began.elapsed().as_secs_f64() * 1e3);
        let text = result(&format!("{agent}.{conversation}.{round}"), 20 + draw.below(300));
        stores = text.len() > MAX_RESULT;
        let text = serde_json::to_string(&text).unwrap();
        write!(
            messages,
            r#",{{"role":"assistant","content":"Next.","tool_calls":[{{"id":"c{round}","type":"function","function":{{"name":"{tool}","arguments":"{{\"n\":{round}}}"}}}}]}},{{"role":"tool","tool_call_id":"c{round}","content":{text}}}"#
        )
        .unwrap();
    }
    times
}

/// A result of so many lines, which is found again by its first one.
fn result(name: &str, n_lines: usize) -> String {
    let line = |n: usize| format!("{name} {n_lines}: line {n}\tpath/to/\"file {}\".rs\n", n * 7919 % 1000);
    (0..n_lines).map(line).collect()
}

// === impl Judge ===

impl Judge {
    async fn serve(&self, mut wire: Wire) {
        while let Some((_, body)) = wire.next_whole().await {
            if memchr::memmem::find(&body, INSTRUCTION.as_bytes()).is_some() {
                wire.send(self.summary(body)).await;
                return;
            }
            if self.checks {
                self.check(&body).await;
            }
            let answer =
                r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Next."},"finish_reason":"stop"}]}"#;
            wire.send(whole("200 OK", &["content-type: application/json"], answer)).await;
        }
    }

    /// A summary, in events.
    fn summary(&self, asked: Bytes) -> Vec<u8> {
        self.seen.lock().unwrap().summaries += 1;
        if !self.summarised.lock().unwrap().insert(asked) {
            self.fail("a summary was asked for twice".to_owned());
        }
        let n = self.seen.lock().unwrap().summaries;
        let events = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"Summary {n}: files were read.\"}},\"finish_reason\":null}}]}}\n\n\
             data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\ndata: [DONE]\n\n"
        );
        whole("200 OK", &["content-type: text/event-stream", "connection: close"], events)
    }

    async fn check(&self, body: &Bytes) {
        let text = std::str::from_utf8(body).expect("bodies of this bench are text");
        let through: usize = between(text, "\"user\":\"replica ", ".").parse().expect("a number");
        let conversation = between(text, "talk (", ")").to_owned();
        self.begins_as_before(&conversation, body);
        for target in recalls(body) {
            if self.read.lock().unwrap().insert(target.clone()) {
                self.reads(&conversation, &target, through).await;
            }
        }
    }

    /// Up to the end of its last message, a request is how the next one begins.
    fn begins_as_before(&self, conversation: &str, body: &Bytes) {
        let end = memchr::memmem::rfind(body, b"],\"tools\":").expect("a request has tools");
        let messages = body.slice(..end);
        let Some(before) = self.last.lock().unwrap().insert(conversation.to_owned(), messages.clone()) else { return };
        if messages.starts_with(&before) {
            return;
        }
        // How many results are cleared, and which summary stands at the beginning.
        let taken = |messages: &Bytes| {
            let n_cleared = memchr::memmem::find_iter(messages, b"[Cleared: ").count();
            (n_cleared, between(&String::from_utf8_lossy(messages), "Summary ", ":").to_owned())
        };
        let ((n_cleared, summary), now) = (taken(&before), taken(&messages));
        if now.0 > n_cleared || now.1 != summary {
            self.seen.lock().unwrap().passes += 1;
        } else {
            self.fail(format!("{conversation} begins in another way, with nothing more taken out"));
        }
    }

    /// What a handle stands for is read through a replica that has not named it, to the byte.
    async fn reads(&self, conversation: &str, target: &str, through: usize) {
        let at = self.replicas[(through + 1) % self.replicas.len()];
        let mut wire = Wire::connect(at).await;
        wire.send(request("GET", target, &["connection: close"])).await;
        let reply = wire.reply().await;
        self.seen.lock().unwrap().handles += 1;
        let text = String::from_utf8_lossy(&reply.body);
        let name = text.split(':').next().unwrap_or_default();
        let is_transcript = text.contains("Next.");
        let is_whole = name.rsplit_once(' ').is_some_and(|(name, lines)| {
            name.starts_with(conversation) && lines.parse().is_ok_and(|lines| text == result(name, lines))
        });
        if reply.head.status() != 200 || !(is_whole || is_transcript) {
            self.fail(format!("{target} of {conversation}: {}, {} bytes", reply.head.status(), reply.body.len()));
        }
    }

    fn fail(&self, what: String) {
        let failures = &mut self.seen.lock().unwrap().failures;
        if failures.len() < 5 {
            eprintln!("{what}");
        }
        failures.push(what);
    }
}

// === impl Run ===

impl Run {
    #[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^52")]
    fn print(&self, kind: Kind, n_replicas: usize, n_requests: usize) {
        let Self { seconds, times, processor, share, seen } = self;
        let (rate, each) = (n_requests as f64 / seconds, 1e3 * processor / n_requests as f64);
        let Times { storing, others } = times;
        let [p50, p99, p50_others, p99_others] =
            [(storing, 500), (storing, 990), (others, 500), (others, 990)].map(|(times, at)| quantile(times, at));
        // The part of their shares that the replicas have used.
        let used = share.map_or_else(String::new, |percent| {
            format!("{:.2}", 100.0 * processor / (seconds * f64::from(percent) * n_replicas as f64))
        });
        let Seen { handles, passes, summaries, failures } = seen;
        println!(
            "| {kind:?} | {n_replicas} | {rate:.0} | {p50:.2} | {p99:.2} | {p50_others:.2} | {p99_others:.2} | {each:.2} | {used} | {handles} | {passes} | {summaries} | {} |",
            failures.len()
        );
    }
}

// === helpers ===

/// What stands between two texts; nothing if they are not there.
fn between<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let behind = text.split_once(from).map_or("", |(_, behind)| behind);
    behind.split_once(to).map_or("", |(between, _)| between)
}

/// The seconds of processor time that processes have taken.
#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^52")]
fn processor_time(processes: &[Abridge]) -> f64 {
    let ticks = |process: &Abridge| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap_or_default();
        let (_, behind) = stat.rsplit_once(')').unwrap_or_default();
        behind.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>()
    };
    processes.iter().map(ticks).sum::<u64>() as f64 / 100.0
}
