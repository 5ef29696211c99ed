//! What abridge holds, read once a second from outside and out of its own numbers.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::Stage;
use super::line::{Line, get};
use crate::load::machine;
use crate::load::stats::float;
use crate::load::target::Process;

/// How long there is to give everything back once the load has ended, and how long unused threads and connections are kept.
const SETTLING: Duration = Duration::from_secs(45);
const UNUSED: Duration = Duration::from_secs(12);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Watch {
    address: SocketAddr,
    pid: u32,
    start: Instant,
}

/// What it held at one moment.
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

impl Watch {
    pub(super) fn new(address: SocketAddr, process: &Process) -> Self {
        Self { address, pid: process.id(), start: Instant::now() }
    }

    /// One sample a second until the time is over, or somebody who plays has gone.
    pub(super) fn run(&mut self, stage: &Stage, time: Duration) -> Result<Vec<Sample>> {
        self.start = Instant::now();
        let mut samples = Vec::new();
        while self.start.elapsed() < time && !stage.is_over() {
            thread::sleep(SECOND);
            samples.push(self.look()?);
        }
        Ok(samples)
    }

    /// What it holds when it has read its vocabulary and waits for somebody to come.
    pub(super) fn idle(&self) -> Result<Sample> {
        let start = Instant::now();
        let mut before = self.look()?;
        loop {
            thread::sleep(SECOND);
            let now = self.look()?;
            if now.memory_bytes <= before.memory_bytes || start.elapsed() > SETTLING {
                return Ok(now);
            }
            before = now;
        }
    }

    /// What it holds when everybody has gone, and there was time to give back what `idle` does not have.
    pub(super) fn end(&self, idle: &Sample) -> Result<Sample> {
        let start = Instant::now();
        loop {
            // A look is work, too, and keeps threads that would go.
            thread::sleep(UNUSED);
            let now = self.look()?;
            if now.kept(idle).is_empty() || start.elapsed() > SETTLING {
                return Ok(now);
            }
        }
    }

    pub(super) fn look(&self) -> Result<Sample> {
        let proc = PathBuf::from(format!("/proc/{}", self.pid));
        // Before the connection that asks for the rest, which is one more.
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
            let mut line = Line::open(self.address).await?;
            let text = line.exchange(&get("/abridge/metrics")).await?;
            Ok(String::from_utf8(text.to_vec())?)
        })
    }
}

impl Sample {
    /// What is held that `idle` did not hold.
    pub(super) fn kept(&self, idle: &Self) -> Vec<&'static str> {
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

/// Sees to it that the log has no alarm.
pub(super) fn check_log(folder: &Path) -> Result<()> {
    for line in BufReader::new(File::open(folder.join("stderr"))?).lines() {
        let line = line?;
        let alarm = ["ERROR", "WARN", "panicked"].iter().any(|word| line.contains(word));
        // What is said of a client that left in the midst of its body.
        ensure!(!alarm || line.contains("code=\"body_broken\""), "in the log: {line}");
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<f64> {
    Ok(float(fs::read_dir(folder)?.count()))
}
