//! Samples once a second what abridge holds, from `/proc` and from its own metrics.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::Progress;
use super::connection::{AsyncConnection, get};
use crate::load::machine;
use crate::load::stats::float;
use crate::load::target::Process;

/// The maximum time for releasing everything after the load has ended, and the time for which unused threads and
/// connections are kept.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(45);
const IDLE_KEEP_ALIVE: Duration = Duration::from_secs(12);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Sampler {
    address: SocketAddr,
    pid: u32,
    start: Instant,
}

/// What abridge holds at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) at: Duration,
    pub(super) memory_bytes: f64,
    pub(super) descriptors: f64,
    pub(super) threads: f64,
    pub(super) tasks: f64,
    pub(super) in_flight: f64,
    pub(super) buffered_bytes: f64,
    pub(super) store_bytes: f64,
}

impl Sampler {
    pub(super) fn new(address: SocketAddr, process: &Process) -> Self {
        Self { address, pid: process.id(), start: Instant::now() }
    }

    /// Takes one sample a second until the time is over, or until a client has failed.
    pub(super) fn run(&mut self, progress: &Progress, time: Duration) -> Result<Vec<Sample>> {
        self.start = Instant::now();
        let mut samples = Vec::new();
        while self.start.elapsed() < time && !progress.is_over() {
            thread::sleep(SECOND);
            samples.push(self.sample()?);
        }
        Ok(samples)
    }

    /// The state before the load, with the vocabulary loaded.
    pub(super) fn idle(&self) -> Result<Sample> {
        let start = Instant::now();
        let mut before = self.sample()?;
        loop {
            thread::sleep(SECOND);
            let now = self.sample()?;
            if now.memory_bytes <= before.memory_bytes || start.elapsed() > SETTLE_TIMEOUT {
                return Ok(now);
            }
            before = now;
        }
    }

    /// The state after the load, when there was time to release what `idle` does not have.
    pub(super) fn end(&self, idle: &Sample) -> Result<Sample> {
        let start = Instant::now();
        loop {
            // A sample itself keeps threads alive, so samples are rare here.
            thread::sleep(IDLE_KEEP_ALIVE);
            let now = self.sample()?;
            if now.exceeding(idle).is_empty() || start.elapsed() > SETTLE_TIMEOUT {
                return Ok(now);
            }
        }
    }

    pub(super) fn sample(&self) -> Result<Sample> {
        let proc = PathBuf::from(format!("/proc/{}", self.pid));
        // Read before the connection for the metrics is opened, which is one more descriptor.
        let (descriptors, threads) = (entries(&proc.join("fd"))?, entries(&proc.join("task"))?);
        let numbers = self.scrape()?;
        let number = |name: &str| {
            let mut lines = numbers.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            lines.next().and_then(|value| value.trim().parse().ok()).with_context(|| format!("no {name}"))
        };
        Ok(Sample {
            at: self.start.elapsed(),
            memory_bytes: float(machine::memory(self.pid)?.now),
            descriptors,
            threads,
            tasks: number("abridge_tasks")?,
            in_flight: number("abridge_in_flight")?,
            buffered_bytes: number("abridge_buffered_bytes")?,
            store_bytes: number("abridge_store_file_bytes")?,
        })
    }

    fn scrape(&self) -> Result<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut connection = AsyncConnection::open(self.address).await?;
            let text = connection.exchange(&get("/abridge/metrics")).await?;
            Ok(String::from_utf8(text.to_vec())?)
        })
    }
}

impl Sample {
    /// The figures that are above those of `idle`.
    pub(super) fn exceeding(&self, idle: &Self) -> Vec<&'static str> {
        let all = [
            ("descriptors", self.descriptors, idle.descriptors),
            ("threads", self.threads, idle.threads),
            ("tasks", self.tasks, idle.tasks),
            ("requests in flight", self.in_flight, 0.0),
            ("bytes of bodies", self.buffered_bytes, 0.0),
        ];
        all.into_iter().filter(|(_, now, before)| now > before).map(|(what, ..)| what).collect()
    }
}

/// Checks that the log has no warning and no error.
pub(super) fn check_log(folder: &Path) -> Result<()> {
    for line in BufReader::new(File::open(folder.join("stderr"))?).lines() {
        let line = line?;
        let alarm = ["ERROR", "WARN", "panicked"].iter().any(|word| line.contains(word));
        // Logged when a client disconnects in the middle of its body.
        ensure!(!alarm || line.contains("code=\"body_broken\""), "in the log: {line}");
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<f64> {
    Ok(float(fs::read_dir(folder)?.count()))
}
