//! The packages of `packaging/pack.py`, made of this binary, installed into scratch folders, and run from there.
//!
//! Needs python3 (3.11), npm and dpkg-deb. Where one is missing, the tests that need it say `NOT RUN`, and pass.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is a test's answer"
)]
#![expect(clippy::disallowed_methods, reason = "a variable names the program that is tested")]
#![expect(clippy::print_stderr, reason = "what is not run is said")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

mod binary;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SERVER: &str = "https://example.com";
const REPOSITORY: &str = "someone/abridge";

/// Each platform that packages are made for, and npm's name of it.
const PLATFORMS: [(&str, &str); 7] = [
    ("x86_64-unknown-linux-gnu", "linux-x64"),
    ("aarch64-unknown-linux-gnu", "linux-arm64"),
    ("x86_64-unknown-linux-musl", "linux-x64-musl"),
    ("aarch64-unknown-linux-musl", "linux-arm64-musl"),
    ("x86_64-apple-darwin", "darwin-x64"),
    ("aarch64-apple-darwin", "darwin-arm64"),
    ("x86_64-pc-windows-msvc", "win32-x64"),
];

/// A program that no platform can run, and that asks for an old glibc.
const DUMMY: &str = "GLIBC_2.17";

/// The folder with all packages of a release: this binary for this platform, a dummy for the others.
fn packages() -> Option<PathBuf> {
    static PACKED: OnceLock<Option<PathBuf>> = OnceLock::new();
    PACKED.get_or_init(pack).clone()
}

fn pack() -> Option<PathBuf> {
    installed("python3", &["-c", "import tomllib"])?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let [packed, binary, dummy] = ["packed", "abridge", "dummy"].map(|name| folder.join(name));
    // Of the last run.
    let _none = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    // A release has no use for these either.
    succeed(Command::new("strip").arg("-o").arg(&binary).arg(binary::binary()));
    fs::write(&dummy, DUMMY).unwrap();
    for (triple, _) in PLATFORMS {
        let binary = if triple == host().0 { &binary } else { &dummy };
        succeed(pack_py().arg(triple).arg(binary).arg(&packed));
    }
    succeed(pack_py().arg("release").arg(&packed));
    Some(packed)
}

/// The platform of the binary.
fn host() -> (&'static str, &'static str) {
    let libc = if binary::is_static() { "musl" } else { std::env::consts::OS };
    let is_host = |name: &str| name.starts_with(std::env::consts::ARCH) && name.contains(libc);
    *PLATFORMS.iter().find(|(triple, _)| is_host(triple)).expect("packages are made for this platform")
}

fn pack_py() -> Command {
    let mut command = Command::new("python3");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/pack.py")).env("PACK_LEVEL", "1");
    command.env("GITHUB_SERVER_URL", SERVER).env("GITHUB_REPOSITORY", REPOSITORY);
    command
}

/// The one package whose name begins and ends so.
fn package(packages: &Path, beginning: &str, end: &str) -> PathBuf {
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(beginning) && name.ends_with(end)
    };
    let mut found = entries(packages).into_iter().filter(is_it);
    let package = found.next().unwrap_or_else(|| panic!("no package {beginning}…{end}"));
    assert_eq!(found.next(), None);
    package
}

// === each package ===

#[test]
fn the_wheel_has_both_commands_and_runs_the_demo() {
    let Some(packages) = packages() else { return };
    // Those for other platforms have a dummy.
    let is_real = |path: &PathBuf| fs::metadata(path).unwrap().len() > 1_000_000;
    let mut wheels = entries(&packages).into_iter().filter(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheels.find(is_real).expect("a wheel for this platform");

    let folder = tempfile::tempdir().unwrap();
    let venv = folder.path().join("venv");
    succeed(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let mut pip = Command::new(venv.join("bin/python"));
    succeed(pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]).arg(wheel));
    for name in ["abridge", "abridge-proxy"] {
        let command = || Command::new(venv.join("bin").join(name));
        is_this_abridge(command);
    }
    runs_the_demo(Command::new(venv.join("bin/abridge-proxy")));
    ends_as_its_signals_say(|| Command::new(venv.join("bin/abridge-proxy")));
    let mut pip = Command::new(venv.join("bin/python"));
    succeed(pip.args(["-m", "pip", "uninstall", "--quiet", "--yes", "abridge-proxy"]));
    assert!(!venv.join("bin/abridge").exists());
}

#[test]
fn npm_installs_the_package_of_this_platform_alone_and_the_launcher_ends_as_abridge_ends() {
    let Some(packages) = packages() else { return };
    if installed("npm", &["--version"]).is_none() {
        return;
    }
    let registry = Registry::of(&packages);
    let folder = tempfile::tempdir().unwrap();
    succeed(registry.npm(folder.path()).args(["install", "--no-audit", "--no-fund", "abridge-proxy"]));
    let modules = folder.path().join("node_modules");
    assert_eq!(entries(&modules.join("@abridge-proxy")), [modules.join("@abridge-proxy").join(host().1)]);

    let launcher = |name: &str| Command::new(modules.join(".bin").join(name));
    for name in ["abridge", "abridge-proxy"] {
        is_this_abridge(|| launcher(name));
    }
    runs_the_demo(registry.npx(folder.path()));
    ends_as_its_signals_say(|| launcher("abridge"));
    a_child_that_is_killed_ends_the_launcher_by_the_same_signal(launcher("abridge"));

    fs::remove_dir_all(modules.join("@abridge-proxy")).unwrap();
    let output = launcher("abridge").output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--omit=optional"), "{output:?}");
}

#[test]
fn the_deb_keeps_changed_settings_and_leaves_nothing_when_it_is_purged() {
    let Some(packages) = packages() else { return };
    if installed("dpkg-deb", &["--version"]).is_none() {
        return;
    }
    if !host().0.ends_with("gnu") {
        eprintln!("NOT RUN: Debian's package is made of a program for glibc");
        return;
    }
    let arch = if host().0.starts_with("x86_64") { "amd64.deb" } else { "arm64.deb" };
    let package = package(&packages, "abridge-proxy_", arch);
    let folder = tempfile::tempdir().unwrap();
    succeed(Command::new("dpkg-deb").arg("-x").arg(&package).arg(folder.path()));
    let abridge = || Command::new(folder.path().join("usr/bin/abridge"));
    is_this_abridge(abridge);
    runs_the_demo(abridge());
    let settings = folder.path().join("etc/abridge/proxy.toml");
    succeed(abridge().args(["check-config", "--config"]).arg(&settings));
    systemd_finds_no_fault(folder.path());
    the_unit_keeps_store_and_token_in_its_state_directory(folder.path());
    for path in ["man/man1/abridge.1.gz", "man/man1/abridge-simulate.1.gz", "bash-completion/completions/abridge"] {
        let file = folder.path().join("usr/share").join(path);
        assert!(file.metadata().is_ok_and(|file| file.len() > 500), "{file:?}");
    }

    if !geteuid().is_root() {
        eprintln!("NOT RUN: dpkg installs as root alone");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for path in ["info", "updates", "triggers"] {
        fs::create_dir_all(root.path().join("var/lib/dpkg").join(path)).unwrap();
    }
    fs::write(root.path().join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = |argument: &str, what: &Path| {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", root.path().display()));
        // There is no C library in this root, and no shell for the scripts of the package.
        command.args(["--force-script-chrootless", "--force-depends", "--force-confdef", "--log=/dev/null"]);
        succeed(command.arg(argument).arg(what));
    };
    dpkg("--install", &package);
    let settings = root.path().join("etc/abridge/proxy.toml");
    let changed = fs::read_to_string(&settings).unwrap() + "# changed\n";
    fs::write(&settings, &changed).unwrap();
    dpkg("--install", &package);
    dpkg("--remove", Path::new("abridge-proxy"));
    assert_eq!(fs::read_to_string(&settings).unwrap(), changed);
    assert!(!root.path().join("usr").exists());
    fs::create_dir_all(root.path().join("var/lib/private/abridge")).unwrap();
    dpkg("--purge", Path::new("abridge-proxy"));
    assert!(!root.path().join("etc").exists() && !root.path().join("var/lib/private/abridge").exists());
}

// === all of them ===

#[test]
fn the_same_binary_gives_the_same_packages() {
    let Some(packages) = packages() else { return };
    let folder = tempfile::tempdir().unwrap();
    let dummy = folder.path().join("dummy");
    fs::write(&dummy, DUMMY).unwrap();
    for (triple, _) in PLATFORMS.into_iter().filter(|(triple, _)| *triple != host().0) {
        succeed(pack_py().arg(triple).arg(&dummy).arg(folder.path().join("again")));
    }
    let again = entries(&folder.path().join("again"));
    assert!(again.len() >= 3 * (PLATFORMS.len() - 1), "{again:?}");
    for path in again {
        let first = package(&packages, &path.file_name().unwrap().to_string_lossy(), "");
        assert!(fs::read(&first).unwrap() == fs::read(&path).unwrap(), "{}", first.display());
    }
}

#[test]
fn formula_and_manifest_name_each_archive_with_its_sum() {
    let Some(packed) = packages() else { return };
    let formula = fs::read_to_string(packed.join("abridge-proxy.rb")).unwrap();
    let manifest = fs::read_to_string(packed.join("abridge-proxy.json")).unwrap();
    let sums = fs::read_to_string(packed.join("SHA256SUMS")).unwrap();
    succeed(Command::new("sha256sum").args(["--check", "--strict", "--quiet", "SHA256SUMS"]).current_dir(&packed));
    assert_eq!(sums.lines().count() + 1, entries(&packed).len());

    let parsed: serde_json::Map<_, _> = serde_json::from_str(&manifest).unwrap();
    assert_eq!(parsed["version"], VERSION);
    for (text, n_archives) in [(&formula, 4), (&manifest, 1)] {
        assert!(!text.contains('@') && text.contains(VERSION), "{text}");
        let archives = format!("{SERVER}/{REPOSITORY}/releases/download/v{VERSION}/");
        let named: Vec<_> = text.split(&archives).skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(named.len(), n_archives, "{text}");
        for name in named {
            let sum = sums.lines().find_map(|line| line.strip_suffix(&format!("  {name}"))).expect(name);
            assert!(text.contains(&format!("\"{sum}\"")), "{name}");
        }
    }
    if installed("ruby", &["--version"]).is_some() {
        succeed(Command::new("ruby").arg("-c").arg(packed.join("abridge-proxy.rb")));
    }
}

// === what holds for each command ===

fn is_this_abridge(command: impl Fn() -> Command) {
    let output = succeed(command().arg("--version"));
    assert_eq!(output, format!("abridge {VERSION}\n"));
    assert_eq!(command().arg("no-such-command").output().unwrap().status.code(), Some(64));
}

fn runs_the_demo(mut command: Command) {
    let said = succeed(command.arg("demo"));
    assert!(said.contains("\n  turns answered                             8 of 44          44 of 44\n"), "{said}");
}

/// SIGHUP reloads, and SIGTERM ends it well.
fn ends_as_its_signals_say(command: impl Fn() -> Command) {
    for signal in [Signal::TERM, Signal::INT] {
        let mut served = Served::start(command());
        served.send(Signal::HUP);
        served.wait_for("reloaded");
        served.send(signal);
        served.wait_for("stopped: every answer was finished");
        assert_eq!(served.child.wait().unwrap().code(), Some(0));
    }
}

fn a_child_that_is_killed_ends_the_launcher_by_the_same_signal(command: Command) {
    let mut served = Served::start(command);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", served.child.id())).unwrap();
    let child = children.split_whitespace().next().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    assert_eq!(served.child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
}

/// The unit of the package, with the program where it lies here.
fn systemd_finds_no_fault(root: &Path) {
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/abridge.service")).unwrap();
    let copy = root.join("abridge.service");
    let program = root.join("usr/bin/abridge");
    assert!(unit.contains("\nExecStart=/usr/bin/abridge "), "{unit}");
    fs::write(&copy, unit.replace("/usr/bin/abridge", program.to_str().unwrap())).unwrap();
    match Command::new("systemd-analyze").arg("verify").arg(copy).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && !said.contains("abridge.service"), "{said}");
        }
        Err(error) => eprintln!("NOT RUN: systemd-analyze: {error}"),
    }
}

/// `DynamicUser` has a home that it cannot write to, so the unit's variables must name the place.
fn the_unit_keeps_store_and_token_in_its_state_directory(root: &Path) {
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/abridge.service")).unwrap();
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(root.join("usr/bin/abridge"));
    command.env_clear().env("HOME", "/proc");
    for (name, value) in unit.lines().filter_map(|line| line.strip_prefix("Environment=")?.split_once('=')) {
        command.env(name, value.replace("/var/lib", state.path().to_str().unwrap()));
    }
    let folder = state.path().join("abridge");
    let _served = Served::start_with(command, state);
    for name in ["store.redb", "operator-token"] {
        assert!(folder.join(name).exists(), "{name} is not in the state directory of the unit");
    }
}

// === a running abridge ===

struct Served {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    _state: TempDir,
}

impl Served {
    fn start(mut command: Command) -> Self {
        let state = tempfile::tempdir().unwrap();
        command.env("XDG_STATE_HOME", state.path());
        Self::start_with(command, state)
    }

    fn start_with(mut command: Command, state: TempDir) -> Self {
        command.args(["serve", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9/v1"]);
        command.current_dir(state.path()).stdin(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut served = Self { child, stderr, _state: state };
        served.wait_for("abridge: clients:");
        served
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    #[track_caller]
    fn wait_for(&mut self, what: &str) {
        let mut said = String::new();
        while self.stderr.read_line(&mut said).unwrap() > 0 {
            if said.lines().last().is_some_and(|line| line.contains(what)) {
                return;
            }
        }
        panic!("it ended without {what:?}: {said}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

// === a registry of npm ===

/// The packages of a folder, as a registry has them.
struct Registry(SocketAddr);

impl Registry {
    fn of(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (folder, address) = (folder.to_owned(), listener.local_addr().unwrap());
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let folder = folder.clone();
                thread::spawn(move || answer(client, &folder, address));
            }
        });
        Self(address)
    }

    fn npm(&self, folder: &Path) -> Command {
        self.command("npm", folder)
    }

    /// npx, with nothing installed.
    fn npx(&self, folder: &Path) -> Command {
        let elsewhere = folder.join("npx");
        fs::create_dir(&elsewhere).unwrap();
        let mut command = self.command("npx", &elsewhere);
        command.args(["--yes", "abridge-proxy"]);
        command
    }

    fn command(&self, program: &str, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).env("HOME", folder).env("npm_config_cache", folder.join("cache"));
        command.env("npm_config_registry", format!("http://{}", self.0)).env("npm_config_update_notifier", "false");
        if binary::is_static() {
            // Else npm takes the package of the machine's C library, which has a dummy.
            command.env("npm_config_libc", "musl");
        }
        for name in
            ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "npm_config_proxy", "npm_config_https_proxy"]
        {
            command.env_remove(name);
        }
        command
    }
}

/// One request: for what is known of a package, or for its tarball.
fn answer(mut client: TcpStream, folder: &Path, registry: SocketAddr) {
    let mut lines = BufReader::new(&client).lines();
    let target = lines.next().and_then(Result::ok).unwrap_or_default();
    // The rest of the head; a GET has no body.
    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
    let path =
        target.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').replace("%2f", "-").replace('@', "");
    let is_tarball = path.contains(".tgz");
    let file = if is_tarball { path } else { format!("{path}-{VERSION}.tgz") };
    let Ok(mut body) = fs::read(folder.join(&file)) else {
        let _sent = client.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
        return;
    };
    if !is_tarball {
        let read =
            Command::new("tar").arg("-xOzf").arg(folder.join(&file)).arg("package/package.json").output().unwrap();
        let mut manifest: serde_json::Map<_, _> = serde_json::from_slice(&read.stdout).unwrap();
        manifest.insert("dist".to_owned(), serde_json::json!({"tarball": format!("http://{registry}/{file}")}));
        let known = serde_json::json!({
            "name": manifest["name"],
            "dist-tags": {"latest": VERSION},
            "versions": {VERSION: manifest},
        });
        body = serde_json::to_vec(&known).unwrap();
    }
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    // npm may have gone.
    let _sent = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&body));
}

// === helpers ===

/// Says so if a program is not there.
fn installed(program: &str, arguments: &[&str]) -> Option<()> {
    let found = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        eprintln!("NOT RUN: {program} {} does not work here", arguments.join(" "));
    }
    found.then_some(())
}

/// Runs a command that must succeed, and returns its standard output.
#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output: Output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}
