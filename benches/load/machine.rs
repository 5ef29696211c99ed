//! What Linux says about this machine and about a process; elsewhere the figures are missing.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::Bench;

use super::target::{Route, Target};

pub(crate) const NGINX: &str = "nginx";
pub(crate) const TASKSET: &str = "taskset";

/// `/proc/PID/stat` counts in hundredths of a second, whatever the kernel's own clock does.
const TICK: Duration = Duration::from_millis(10);

/// What a reader has to know to place the figures.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Facts {
    pub(crate) cpu: String,
    pub(crate) n_cores: usize,
    /// None if the scheduler decides.
    pub(crate) cores: Option<Cores>,
    pub(crate) memory_gib: usize,
    pub(crate) kernel: String,
    /// Processes that wanted the processor in the minute before the run.
    pub(crate) load: String,
    pub(crate) abridge: String,
    pub(crate) nginx: Option<String>,
    pub(crate) command: String,
}

impl Facts {
    pub(crate) fn read(abridge: &Path) -> Self {
        let file = |path| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, value)| value).trim().to_owned()
        };
        let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
        let separator = if arguments.is_empty() { "" } else { " -- " };
        Self {
            cpu: field(&file("/proc/cpuinfo"), "model name"),
            n_cores: std::thread::available_parallelism().map_or(0, usize::from),
            cores: None,
            memory_gib: kib(&file("/proc/meminfo"), "MemTotal").unwrap_or_default().div_ceil(1 << 30),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: file("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            abridge: version(abridge, "--version").unwrap_or_default(),
            nginx: nginx_version(),
            command: format!("cargo bench --bench load{separator}{}", arguments.join(" ")),
        }
    }

    /// All of it in one line.
    pub(crate) fn line(&self) -> String {
        format!(
            "{} ({} cores; {}), {} GiB, Linux {}, load {} before the run; {}; {}; `{}`",
            self.cpu,
            self.n_cores,
            self.cores.as_ref().map_or_else(
                || "the scheduler's choice".to_owned(),
                |cores| format!("client and upstream on {}, proxies on {}", cores.ours, cores.proxies)
            ),
            self.memory_gib,
            self.kernel,
            self.load,
            self.abridge,
            self.nginx.as_deref().unwrap_or("no nginx"),
            self.command
        )
    }
}

/// Which cores client and upstream run on, and which the proxies.
///
/// Left to the scheduler, a proxy runs beside its client on one core or across from it on another, and stays there; a
/// request takes three times as long in one case as in the other. Kept apart, all targets are in the same case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cores {
    pub(crate) ours: String,
    pub(crate) proxies: String,
}

impl Cores {
    /// Takes cores for this process; none if there is only one, or no `taskset` to take it with.
    pub(crate) fn claim() -> Option<Self> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let allowed = expand(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?);
        let (ours, rest) = allowed.split_at_checked((allowed.len() / 2).min(2))?;
        let (proxies, _) = rest.split_at_checked(ours.len())?;
        let list = |cores: &[usize]| cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let cores = Self { ours: list(ours), proxies: list(proxies) };
        let pid = std::process::id().to_string();
        let taskset = Command::new(TASKSET).args(["-a", "-c", "-p", &cores.ours, &pid]).output().ok()?;
        taskset.status.success().then_some(cores)
    }
}

/// The numbers in a list like `0-3,8`.
fn expand(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        Some(low.parse().ok()?..=high.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// What abridge takes before it has anything to do.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Footprint {
    pub(crate) binary_bytes: u64,
    pub(crate) idle_bytes: usize,
    pub(crate) start_micros: f64,
}

impl Footprint {
    pub(crate) fn measure(bench: &Bench) -> Result<Self> {
        let start = Instant::now();
        let target = Target::start(bench, Route::Edit)?;
        let start_micros = micros(start.elapsed());
        std::thread::sleep(Duration::from_millis(500));
        let idle_bytes = target.memory()?.map_or(0, |memory| memory.now);
        Ok(Self { binary_bytes: fs::metadata(&bench.abridge)?.len(), idle_bytes, start_micros })
    }
}

/// Resident memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) now: usize,
    pub(crate) peak: usize,
}

pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name| kib(&status, name).context("a process without memory");
    Ok(Memory { now: field("VmRSS")?, peak: field("VmHWM")? })
}

/// Processor time of a process since its start, its threads included.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is a name in parentheses that may hold spaces; user and system time are the 14th and 15th.
    let (_, fields) = stat.rsplit_once(')').context("not a stat line")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u32>).sum::<Result<u32, _>>()?;
    Ok(TICK * ticks)
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(crate) fn nginx_version() -> Option<String> {
    version(Path::new(NGINX), "-v")
}

/// How many files this process may have open.
pub(crate) fn file_limit() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The first line that a program says about itself, on whichever output.
fn version(program: &Path, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned())
}

/// A field of a file of `/proc` that is given in KiB, in bytes.
fn kib(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<usize>().ok().map(|kib| kib * 1024)
}
