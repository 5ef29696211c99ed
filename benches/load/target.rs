//! Whom the bench measures: the upstream itself, nginx, and abridge on each of its ways through, each as a process of
//! its own whose processor time and memory can be read.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use tempfile::TempDir;

use crate::Bench;

use super::conversation::Calls;
use super::floor::Floor;
use super::machine;

const START_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// One way from the client to the upstream.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Route {
    /// No proxy between them
    Direct,
    /// nginx, nothing buffered
    Nginx,
    /// nginx as before, with a buffer of 1 MB in place of 16 KB to read a request's body into
    Tuned,
    /// A proxy of hyper and nothing else, both ways streamed
    Streamed,
    /// The same, the request's body collected first
    Collected,
    /// abridge, on a path that it does not edit
    Pass,
    /// abridge, on a path that it edits, with nothing to edit in the request
    Edit,
    /// abridge, with one tool call to repair
    Patch,
    /// abridge, with results to truncate and to clear, all but the last message of the request seen before
    Warm,
    /// abridge, with results to truncate and to clear, none of them seen before
    Cold,
}

impl Route {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Tuned => "nginx, buffer of 1 MB",
            Self::Streamed => "hyper alone, streamed",
            Self::Collected => "hyper alone, collected",
            Self::Pass => "abridge, passed through",
            Self::Edit => "abridge, nothing to edit",
            Self::Patch => "abridge, one repair",
            Self::Warm => "abridge, cleared, seen before",
            Self::Cold => "abridge, cleared, all new",
        }
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Pass => "/v1/embeddings",
            _ => "/v1/chat/completions",
        }
    }

    pub(crate) fn calls(self) -> Calls {
        if self.repairs() { Calls::OneDangling } else { Calls::Answered }
    }

    pub(crate) fn repairs(self) -> bool {
        self == Self::Patch
    }

    /// Whether results are truncated and cleared.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::Warm | Self::Cold)
    }

    /// What follows in the configuration of abridge behind the listener and the upstream.
    fn policy(self) -> &'static str {
        if self.reduces() {
            "[truncate_tool_results]\nmax_bytes = 10000\n\n\
             [clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 20000 }\nkeep = { results = 3 }\n"
        } else {
            "[policy]\nedits = [\"patch_tool_calls\"]\n"
        }
    }

    pub(crate) fn is_nginx(self) -> bool {
        matches!(self, Self::Nginx | Self::Tuned)
    }

    pub(crate) fn is_abridge(self) -> bool {
        !matches!(self, Self::Direct | Self::Nginx | Self::Tuned | Self::Streamed | Self::Collected)
    }
}

/// A route that is up, fresh from its start.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) route: Route,
    pub(crate) address: SocketAddr,
    pub(crate) process: Option<Process>,
}

/// A proxy that runs until this is dropped, with the folder of its configuration and its log.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    folder: TempDir,
}

impl Target {
    pub(crate) fn start(bench: &Bench, route: Route) -> Result<Self> {
        match route {
            Route::Direct => Ok(Self { route, address: bench.upstream.address, process: None }),
            Route::Nginx => start_nginx(bench, route, "16k"),
            Route::Tuned => start_nginx(bench, route, "1m"),
            Route::Streamed | Route::Collected => start_floor(bench, route),
            _ => start_abridge(bench, route),
        }
    }

    /// Processor time used so far; zero for the direct route.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.as_ref().map_or(Ok(Duration::ZERO), |process| machine::cpu(process.child.id()))
    }

    /// Memory held now and at most, in bytes; none for the direct route.
    pub(crate) fn memory(&self) -> Result<Option<machine::Memory>> {
        self.process.as_ref().map(|process| machine::memory(process.child.id())).transpose()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_abridge(bench: &Bench, route: Route) -> Result<Target> {
    let (address, process) = Process::abridge(bench, route.policy())?;
    Ok(Target { route, address, process: Some(process) })
}

impl Process {
    /// An abridge before the upstream, with these settings behind those.
    pub(crate) fn abridge(bench: &Bench, policy: &str) -> Result<(SocketAddr, Self)> {
        let folder = TempDir::new()?;
        let config = folder.path().join("proxy.toml");
        let upstream = bench.upstream.address;
        let settings =
            format!("[server]\nlisten = \"127.0.0.1:0\"\n\n[upstream]\nurl = \"http://{upstream}/v1\"\n\n{policy}");
        fs::write(&config, settings)?;
        // An empty environment keeps proxies and settings of this shell out of it.
        let mut command = command(bench, &bench.abridge);
        command.args(["serve", "--config"]).arg(&config).env_clear().env("XDG_STATE_HOME", folder.path());
        Self::spawn(command, folder, listening).context("cannot start abridge")
    }

    /// Starts a proxy, and waits until `ready` returns something of its log.
    fn spawn<T>(mut command: Command, folder: TempDir, ready: impl Fn(&Path) -> Option<T>) -> Result<(T, Self)> {
        let log = folder.path().join("stderr");
        // The log goes to a file: a pipe would have to be read here, at the cost of what is measured.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let mut process = Self { child: command.spawn()?, folder };
        let found = wait(&mut process.child, &log, || ready(&log))?;
        Ok((found, process))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where its configuration, its log and its store are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// A command on the cores that proxies have. `taskset` becomes the program, so the process is the same.
fn command(bench: &Bench, program: &Path) -> Command {
    let Some(cores) = &bench.proxy_cores else {
        return Command::new(program);
    };
    let mut command = Command::new(machine::TASKSET);
    command.args(["-c", cores]).arg(program);
    command
}

/// The address that a log names, once it is there.
fn listening(log: &Path) -> Option<SocketAddr> {
    let text = fs::read_to_string(log).ok()?;
    let (_, rest) = text.split_once("listening on http://")?;
    rest.split_once(char::is_whitespace)?.0.parse().ok()
}

/// This program itself, as a proxy that does nothing else.
fn start_floor(bench: &Bench, route: Route) -> Result<Target> {
    let mut command = command(bench, &std::env::current_exe()?);
    command.args(["--floor", &Floor::argument(route, bench.upstream.address)]);
    let (address, process) =
        Process::spawn(command, TempDir::new()?, listening).context("cannot start a proxy of hyper alone")?;
    Ok(Target { route, address, process: Some(process) })
}

fn start_nginx(bench: &Bench, route: Route, buffer: &str) -> Result<Target> {
    let folder = TempDir::new()?;
    let address = free_address()?;
    let config = folder.path().join("nginx.conf");
    fs::write(&config, nginx_config(folder.path(), address, bench.upstream.address, buffer))?;
    let mut command = command(bench, Path::new(machine::NGINX));
    command.arg("-c").arg(&config).arg("-p").arg(folder.path());
    let (_, process) =
        Process::spawn(command, folder, |_| TcpStream::connect(address).ok()).context("cannot start nginx")?;
    Ok(Target { route, address, process: Some(process) })
}

/// nginx as one would set it up in front of a streaming API: one worker, nothing buffered, connections kept, no log.
fn nginx_config(folder: &Path, address: SocketAddr, upstream: SocketAddr, buffer: &str) -> String {
    let folder = folder.display();
    format!(
        "daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr error;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    tcp_nodelay on;
    client_max_body_size 0; client_body_buffer_size {buffer};
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000; keepalive_timeout 1h;
    upstream api {{ server {upstream}; keepalive 64; keepalive_requests 1000000000; keepalive_timeout 1h; }}
    server {{
        listen {address} backlog=4096;
        location / {{
            proxy_pass http://api;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 1h; proxy_send_timeout 1h;
        }}
    }}
}}
"
    )
}

/// An address that was free a moment ago: nginx cannot be asked which one it took.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Waits until `ready` has something; with what the process said if it ends or takes too long.
fn wait<T>(child: &mut Child, log: &Path, ready: impl Fn() -> Option<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = ready() {
            return Ok(found);
        }
        let ended = child.try_wait()?;
        if ended.is_some() || start.elapsed() > START_TIMEOUT {
            let said = fs::read_to_string(log).unwrap_or_default();
            bail!("a proxy did not start ({ended:?}); it said:\n{said}");
        }
        thread::sleep(POLL);
    }
}
