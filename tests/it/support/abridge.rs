//! The real binary, as a child process with its own configuration file.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::binary;
use super::upstream::Upstream;
use super::wire::Wire;
use super::{OPERATOR_TOKEN, minding_modes, within};

/// The settings that a process is started with.
pub(crate) struct Setup {
    url: String,
    listen: Vec<String>,
    lines: String,
    environment: Vec<(String, String)>,
    arguments: Vec<OsString>,
    survives_full_disks: bool,
    minds_modes: bool,
    mounts: Option<String>,
    address_space: Option<String>,
    probes: bool,
}

/// A running process. It is killed when dropped; if the test failed, what it wrote is shown.
pub(crate) struct Abridge {
    pid: u32,
    listeners: Vec<String>,
    stderr: watch::Receiver<Vec<String>>,
    exit: watch::Receiver<Option<ExitStatus>>,
    config: PathBuf,
    written: String,
    _folder: TempDir,
}

/// The output of a process that should not have started, and did not.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
}

/// Variables that would lead requests elsewhere, and that the machine may have set.
const FOREIGN: [&str; 8] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"];

// === impl Setup ===

impl Setup {
    /// In front of this upstream, on a free port, everything else at its default.
    pub(crate) fn before(upstream: &Upstream) -> Self {
        Self::to(upstream.url())
    }

    /// In front of this URL, on a free port, everything else at its default.
    pub(crate) fn to(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            listen: vec!["127.0.0.1:0".to_owned()],
            lines: String::new(),
            environment: Vec::new(),
            arguments: Vec::new(),
            survives_full_disks: false,
            minds_modes: false,
            address_space: None,
            mounts: None,
            probes: false,
        }
    }

    /// Adds one line to the configuration, its key with the table in front: `server.max_body = "1KiB"`.
    pub(crate) fn with(mut self, line: impl AsRef<str>) -> Self {
        writeln!(self.lines, "{}", line.as_ref()).unwrap();
        self
    }

    /// Listens there, and not on a free port.
    pub(crate) fn listen(mut self, addresses: &[&str]) -> Self {
        self.listen = addresses.iter().map(ToString::to_string).collect();
        self
    }

    /// Adds an argument to the command line.
    pub(crate) fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets an environment variable.
    pub(crate) fn environment(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// A file that cannot grow is an error to the process, as on a full disk, and not its end.
    pub(crate) fn survives_full_disks(mut self) -> Self {
        self.survives_full_disks = true;
        self
    }

    /// Returns what the modes of files forbid is forbidden to the process, even if the tests run as root.
    pub(crate) fn minds_modes(mut self) -> Self {
        self.minds_modes = true;
        self
    }

    /// What this command mounts is there for the process alone, and gone with it.
    pub(crate) fn in_a_mount_namespace(mut self, mount: String) -> Self {
        self.mounts = Some(mount);
        self
    }

    /// The process has so many bytes of address space.
    pub(crate) fn in_address_space(mut self, bytes: usize) -> Self {
        self.address_space = Some(format!("--as={bytes}"));
        self
    }

    /// The upstream is asked at start if it is there, and not only by the test's own requests.
    pub(crate) fn probes(mut self) -> Self {
        self.probes = true;
        self
    }

    /// Starts the process, and waits until it listens everywhere.
    pub(crate) async fn start(self) -> Abridge {
        let n_listeners = self.listen.len();
        let mut abridge = self.spawn();
        let mut stderr = abridge.stderr.clone();
        let listens = stderr.wait_for(|lines| listening(lines).len() == n_listeners);
        let started = within("abridge to listen", listens).await.is_ok();
        assert!(started, "abridge should have started");
        abridge.listeners = listening(&abridge.stderr());
        abridge
    }

    /// Starts a process that ends by itself.
    pub(crate) async fn fail(self) -> Failed {
        let abridge = self.spawn();
        Failed { status: abridge.exit().await, stderr: abridge.stderr().join("\n") }
    }

    fn spawn(self) -> Abridge {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("proxy.toml");
        let Self { url, listen, lines, probes, .. } = &self;
        let written = format!("upstream.url = {url:?}\nupstream.probe = {probes}\nserver.listen = {listen:?}\n{lines}");
        std::fs::write(&config, &written).unwrap();

        let mut program = Vec::new();
        if self.survives_full_disks {
            // A program that replaces a shell ignores the same signals.
            program.extend(["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
        }
        if self.minds_modes {
            program.extend(minding_modes());
        }
        let mounting = self.mounts.as_ref().map(|mount| format!("{mount} && exec \"$0\" \"$@\"")).unwrap_or_default();
        if !mounting.is_empty() {
            program.extend(["unshare", "-m", "--propagation", "private", "sh", "-c", &mounting]);
        }
        if let Some(limit) = &self.address_space {
            program.extend(["prlimit", limit]);
        }
        program.push(binary());
        let mut command = Command::new(program[0]);
        command
            .args(&program[1..])
            .arg("serve")
            .arg("--config")
            .arg(&config)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        for name in FOREIGN {
            command.env_remove(name);
        }
        // Its own store, unless the test names one, and a token of operators that the test knows.
        let state = folder.path().join("abridge");
        std::fs::create_dir(&state).unwrap();
        let token = OpenOptions::new().write(true).create_new(true).mode(0o600).open(state.join("operator-token"));
        token.unwrap().write_all(OPERATOR_TOKEN.as_bytes()).unwrap();
        command.env("XDG_STATE_HOME", folder.path());
        command.env("RUST_BACKTRACE", "1").envs(self.environment);
        let mut child = command.spawn().unwrap();

        let pid = child.id();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (lines, read) = watch::channel(Vec::new());
        let (exited, exit) = watch::channel(None);
        thread::spawn(move || {
            for line in stderr.split(b'\n').map_while(Result::ok) {
                lines.send_modify(|lines| lines.push(String::from_utf8_lossy(&line).into_owned()));
            }
            exited.send_replace(child.wait().ok());
        });
        Abridge { pid, listeners: Vec::new(), stderr: read, exit, config, written, _folder: folder }
    }
}

// === impl Abridge ===

impl Abridge {
    /// In front of this upstream, everything else at its default.
    pub(crate) async fn before(upstream: &Upstream) -> Self {
        Setup::before(upstream).start().await
    }

    /// The number of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns what it said that it listens on: URLs and `unix:` paths.
    pub(crate) fn listeners(&self) -> &[String] {
        &self.listeners
    }

    /// The first address that it listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        address(&self.listeners[0])
    }

    /// A connection to the first address.
    pub(crate) async fn connect(&self) -> Wire {
        self.connect_to(0).await
    }

    /// A connection to the address with this number.
    pub(crate) async fn connect_to(&self, listener: usize) -> Wire {
        let listener = &self.listeners[listener];
        match listener.strip_prefix("unix:") {
            Some(path) => Wire::new(within("connect", UnixStream::connect(path)).await.unwrap()),
            None => Wire::connect(address(listener)).await,
        }
    }

    /// Sends a signal, by its name without `SIG`.
    pub(crate) fn signal(&self, name: &str) {
        assert!(self.try_signal(name), "{name} should have reached the process");
    }

    /// The configuration file.
    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// Writes the configuration anew, with these lines at its end, and sends SIGHUP.
    pub(crate) fn reload_with(&self, lines: &str) {
        std::fs::write(&self.config, format!("{}{lines}\n", self.written)).unwrap();
        self.signal("HUP");
    }

    /// Waits for a line on standard error that holds this text, in any case, after the first `from` lines.
    pub(crate) async fn says(&self, text: &str, from: usize) -> String {
        let mut stderr = self.stderr.clone();
        let text = text.to_lowercase();
        let find = |lines: &[String]| lines.iter().skip(from).find(|line| line.to_lowercase().contains(&text)).cloned();
        let what = format!("abridge to say {text:?}");
        let lines = within(&what, stderr.wait_for(|lines| find(lines).is_some())).await;
        let lines = lines.unwrap_or_else(|_| panic!("abridge ended before it said {text:?}"));
        find(&lines).unwrap()
    }

    /// Waits until standard error has so many lines that hold this text; all lines that do.
    pub(crate) async fn said(&self, text: &str, n: usize) -> Vec<String> {
        let find = |lines: &[String]| lines.iter().filter(|line| line.contains(text)).cloned().collect::<Vec<_>>();
        let mut stderr = self.stderr.clone();
        let what = format!("abridge to say {text:?} {n} times");
        let lines = within(&what, stderr.wait_for(|lines| find(lines).len() >= n)).await;
        find(&lines.unwrap_or_else(|_| panic!("abridge ended before it said {text:?} {n} times")))
    }

    /// The lines of its standard error that were read so far. The process may have written more.
    pub(crate) fn stderr(&self) -> Vec<String> {
        self.stderr.borrow().clone()
    }

    /// Waits for the process to end, and for all that it wrote.
    pub(crate) async fn exit(&self) -> ExitStatus {
        let mut exit = self.exit.clone();
        let status = within("abridge to end", exit.wait_for(Option::is_some)).await;
        status.unwrap().unwrap()
    }

    /// How often it has these bytes in its memory, except for where the system has put its environment.
    pub(crate) fn copies_of(&self, bytes: &[u8]) -> usize {
        let memory = File::open(format!("/proc/{}/mem", self.pid)).unwrap();
        let regions = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap();
        let mut n_copies = 0;
        for region in regions.lines().filter(|region| region.contains(" rw") && !region.ends_with("[stack]")) {
            let (from, to) = region.split_once(' ').unwrap().0.split_once('-').unwrap();
            let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
            let mut read = vec![0; usize::try_from(to - from).unwrap()];
            // Some of it may have been given back meanwhile.
            if memory.read_exact_at(&mut read, from).is_ok() {
                n_copies += memchr::memmem::find_iter(&read, bytes).count();
            }
        }
        n_copies
    }

    /// The most memory that it has held at a time, in KiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// The most addresses that it has had at a time, in KiB.
    pub(crate) fn peak_addresses(&self) -> u64 {
        self.status("VmPeak:")
    }

    /// The memory that it holds, in KiB.
    pub(crate) fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// How much of that are pages of its program, in KiB.
    pub(crate) fn program_memory(&self) -> u64 {
        self.status("RssFile:")
    }

    fn status(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// No file of it can become longer than this, as on a full disk; `None` for no limit.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        self.limit(&format!("--fsize={limit}:unlimited"));
    }

    /// It can open so many descriptors more than it has now, and no others.
    pub(crate) fn limit_descriptors(&self, more: usize) {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).unwrap().count();
        self.limit(&format!("--nofile={}:", open + more));
    }

    /// The time that it has computed, in hundredths of a second.
    pub(crate) fn computed(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
        // After the name, which may hold anything: user time and system time are the fields 14 and 15 of all.
        let (_, behind) = stat.rsplit_once(')').unwrap();
        behind.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    fn limit(&self, limit: &str) {
        let pid = format!("--pid={}", self.pid);
        let set = Command::new("prlimit").args([&pid, limit]).status().expect("prlimit, of util-linux");
        assert!(set.success());
    }

    fn try_signal(&self, name: &str) -> bool {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.pid.to_string()).status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for Abridge {
    fn drop(&mut self) {
        // The thread that reads standard error reaps the process only after its end, so the id is still ours here.
        if self.exit.borrow().is_none() {
            self.try_signal("KILL");
        }
        if thread::panicking() {
            eprintln!("--- abridge, started with\n{}--- wrote\n{}\n---", self.written, self.stderr().join("\n"));
        }
    }
}

// === helpers ===

fn listening(lines: &[String]) -> Vec<String> {
    lines.iter().filter_map(|line| line.strip_prefix("abridge: listening on ")).map(str::to_owned).collect()
}

fn address(listener: &str) -> SocketAddr {
    let (_, address) = listener.split_once("://").unwrap_or_else(|| panic!("{listener} is not a TCP address"));
    address.trim_end_matches('/').parse().unwrap()
}
