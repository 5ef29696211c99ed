//! `abridge doctor`: its checks, and each fault with its fix.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tempfile::TempDir;

use crate::support::tls::Certificate;
use crate::support::{ClosedPort, Setup, Upstream, binary};

/// The exit code and the output of a command.
#[derive(Debug)]
struct CommandOutput {
    code: i32,
    text: String,
}

#[derive(Debug, Deserialize)]
struct Findings {
    checks: Vec<Finding>,
}

#[derive(Debug, Deserialize)]
struct Finding {
    verdict: String,
    about: String,
    said: String,
    fix: Option<String>,
}

/// A folder with a `proxy.toml`, that `abridge doctor` runs in.
struct WorkFolder(TempDir);

impl WorkFolder {
    /// On a free port, in front of this upstream.
    fn before(url: &str, lines: &str) -> Self {
        let work_folder = Self(tempfile::tempdir().unwrap());
        work_folder.write("proxy.toml", format!("upstream.url = {url:?}\nserver.listen = \"127.0.0.1:0\"\n{lines}\n"));
        work_folder
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("doctor").args(args).current_dir(self.0.path()).env_clear().env("HOME", self.0.path());
        command.stdin(Stdio::null());
        command
    }

    /// Runs the doctor while the test plays the upstream.
    fn run_doctor(&self, args: &[&str]) -> JoinHandle<CommandOutput> {
        let mut command = self.command(args);
        thread::spawn(move || run(&mut command))
    }
}

fn run(command: &mut Command) -> CommandOutput {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert_eq!(String::from_utf8(stderr).unwrap(), "");
    CommandOutput { code: status.code().unwrap(), text: String::from_utf8(stdout).unwrap() }
}

impl CommandOutput {
    /// The line of this verdict about this, and the fix below it.
    fn check(&self, verdict: &str, about: &str, said: &str, fix: &str) {
        let start = format!("{verdict:<5} {about:<11} ");
        let mut lines = self.text.lines();
        let line = lines.by_ref().find(|line| line.starts_with(&start) && line.contains(said));
        assert!(line.is_some(), "no line {start}…{said} in\n{}", self.text);
        if !fix.is_empty() {
            let below = lines.next().unwrap_or_default();
            assert!(below.starts_with("      fix: ") && below.contains(fix), "{fix}: {}", self.text);
        }
        assert_eq!(self.code, i32::from(self.text.lines().any(|line| line.starts_with("fault"))), "{}", self.text);
    }
}

/// Where nothing listens, so that the upstream is the one fault that is always there.
fn closed_port() -> ClosedPort {
    ClosedPort::new()
}

#[tokio::test]
async fn a_healthy_system_is_reported_and_exits_0() {
    let mut upstream = Upstream::start().await;
    let work_folder = WorkFolder::before(&upstream.url(), "");
    for args in [&[][..], &["--json"]] {
        let doctor = work_folder.run_doctor(args);
        let mut call = upstream.request().await;
        assert_eq!(call.head.start, "GET /v1/models HTTP/1.1");
        call.json("{\"data\":[{\"id\":\"house\",\"max_model_len\":16000}]}").await;
        let output = doctor.join().unwrap();
        assert_eq!(output.code, 0, "{}", output.text);
        if args.is_empty() {
            for (about, said) in [
                ("settings", "proxy.toml, variables and flags are right"),
                ("address", "127.0.0.1:0 is free"),
                ("access", "operators show the token in "),
                ("proxy", "a reverse proxy in front must pass `host` on"),
                ("store", "will be made; its folder can be written to"),
                ("disk", "MiB free for the store, which takes at most 4GiB"),
                ("upstream", "/v1/models answers 200"),
                ("windows", "1 as the upstream says"),
            ] {
                let verdict = if about == "disk" && output.text.contains("warn  disk") { "warn" } else { "ok" };
                output.check(verdict, about, said, "");
            }
        } else {
            let Findings { checks } = serde_json::from_str(&output.text).unwrap();
            assert_eq!(checks.len(), 8);
            assert!(
                checks
                    .iter()
                    .all(|check| check.verdict != "fault" && !check.about.is_empty() && !check.said.is_empty())
            );
            assert!(checks.iter().all(|check| (check.verdict == "ok") == check.fix.is_none()));
        }
    }
    let left: Vec<_> = std::fs::read_dir(work_folder.0.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["proxy.toml"], "it leaves nothing behind");
}

#[tokio::test]
async fn invalid_settings_are_reported_with_their_line() {
    let closed = closed_port();
    let work_folder = WorkFolder::before(&closed.url(), "server.max_bodi = 1");
    let output = run(&mut work_folder.command(&[]));
    output.check("fault", "settings", "proxy.toml:3", "abridge explain");
    assert_eq!(output.text.lines().count(), 2, "nothing else can be looked at: {}", output.text);
    let work_folder = WorkFolder::before(&closed.url(), "upstream.api_key_env = \"NOT_SET\"");
    run(&mut work_folder.command(&[])).check("fault", "settings", "NOT_SET: not set", "set or correct");
}

#[tokio::test]
async fn a_running_abridge_is_not_a_fault() {
    let closed = closed_port();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("store.path = \"{}\"", folder.path().join("store.redb").display());
    let abridge = Setup::to(closed.url()).with(&store).start().await;
    let work_folder = WorkFolder::before(&closed.url(), &store);
    let output = run(&mut work_folder.command(&["--listen", &abridge.address().to_string()]));
    output.check("ok", "store", "a running abridge has it", "");
    output.check("ok", "address", "an abridge is running there", "");
}

#[tokio::test]
async fn broken_stores_are_reported() {
    let closed = closed_port();
    let work_folder = WorkFolder::before(&closed.url(), "store.path = \"store.redb\"");
    work_folder.write("store.redb", "this is no store ".repeat(1000));
    run(&mut work_folder.command(&[])).check(
        "fault",
        "store",
        "is not a store of abridge, or is damaged",
        "abridge store salvage",
    );

    let work_folder = WorkFolder::before(&closed.url(), "store.path = \"file/store.redb\"");
    work_folder.write("file", "");
    run(&mut work_folder.command(&[])).check("fault", "store", "cannot be made", "set store.path");

    let work_folder = WorkFolder::before(&closed.url(), "");
    let mut homeless = work_folder.command(&[]);
    run(homeless.env_remove("HOME")).check(
        "fault",
        "store",
        "neither XDG_STATE_HOME nor HOME is set",
        "set the variable",
    );

    let off = WorkFolder::before(&closed.url(), "store.enabled = false");
    run(&mut off.command(&[])).check("ok", "store", "off: ", "");
}

#[tokio::test]
async fn a_store_that_no_process_has_open_is_written_to() {
    let closed = closed_port();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let lines = format!("store.path = \"{}\"", path.display());
    let abridge = Setup::to(closed.url()).with(&lines).start().await;
    abridge.signal("TERM");
    abridge.exit().await;
    let work_folder = WorkFolder::before(&closed.url(), &lines);
    for _ in 0..2 {
        run(&mut work_folder.command(&[])).check("ok", "store", "opens and can be written to: 1 texts", "");
    }
}

#[tokio::test]
async fn unavailable_addresses_are_reported() {
    let closed = closed_port();
    let work_folder = WorkFolder::before(&closed.url(), "");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = silent.local_addr().unwrap().to_string();
    // What listens there is no abridge, and hangs up.
    thread::spawn(move || while silent.accept().is_ok() {});
    let taken_output = run(&mut work_folder.command(&["--listen", &taken]));
    taken_output.check("fault", "address", "is taken by another program", "listen elsewhere with --listen");
    let foreign = run(&mut work_folder.command(&["--listen", "192.0.2.1:8787"]));
    foreign.check("fault", "address", "192.0.2.1:8787 cannot be listened on", "an address of this machine");
    let socket = run(&mut work_folder.command(&["--listen", "unix:/no/such/folder/abridge.sock"]));
    socket.check("fault", "address", "cannot be listened on", "in a folder that it may write to");
}

#[tokio::test]
async fn unusable_certificates_are_reported() {
    let closed = closed_port();
    let work_folder = WorkFolder::before(&closed.url(), "tls.cert = \"cert.pem\"\ntls.key = \"key.pem\"");
    run(&mut work_folder.command(&[])).check(
        "fault",
        "certificate",
        "cert.pem could not be read",
        "tls.cert and tls.key",
    );
    let certificate = Certificate::new();
    let work_folder = WorkFolder::before(&closed.url(), &certificate.lines());
    run(&mut work_folder.command(&[])).check("ok", "certificate", "fits its key", "");
    let work_folder = WorkFolder::before(&closed.url(), "upstream.ca_file = \"proxy.toml\"");
    run(&mut work_folder.command(&[])).check("fault", "upstream", "no certificate could be read", "upstream.ca_file");
}

#[tokio::test]
async fn faulty_upstreams_are_reported() {
    let closed = closed_port();
    let refused = run(&mut WorkFolder::before(&closed.url(), "").command(&[]));
    refused.check("fault", "upstream", "nothing listens at", "start the server there");

    let mut upstream = Upstream::start().await;
    let work_folder = WorkFolder::before(&upstream.origin(), "");
    for (status, verdict, said, fix) in [
        ("404 Not Found", "fault", "answers 404", "the URL probably needs /v1"),
        ("401 Unauthorized", "ok", "clients bring their key", ""),
        ("500 Internal Server Error", "fault", "answers 500", "the server's own log"),
    ] {
        let doctor = work_folder.run_doctor(&[]);
        upstream.request().await.answer(status, &["connection: close"], "").await;
        doctor.join().unwrap().check(verdict, "upstream", said, fix);
    }
}

#[tokio::test]
async fn each_upstream_is_asked_and_named() {
    let (mut upstream, mut anthropic) = (Upstream::start().await, Upstream::start().await);
    let table = "[[upstreams]]\nname = \"anthropic\"\napi_key_env = \"KEY\"\nurl = ";
    let work_folder = WorkFolder::before(&upstream.url(), &format!("{table}{:?}", anthropic.origin()));
    let mut command = work_folder.command(&[]);
    command.env("KEY", "sk-ant");
    let doctor = thread::spawn(move || run(&mut command));
    let mut call = upstream.request().await;
    assert_eq!((call.head.get("x-api-key"), call.head.get("authorization")), (None, None));
    call.json("{\"data\":[]}").await;
    let mut call = anthropic.request().await;
    assert_eq!(call.head.start, "GET /v1/models?limit=1000 HTTP/1.1");
    let found = ["x-api-key", "anthropic-version", "authorization"].map(|name| call.head.get(name));
    assert_eq!(found, [Some("sk-ant"), Some("2023-06-01"), None]);
    call.answer("401 Unauthorized", &["connection: close"], "").await;
    let output = doctor.join().unwrap();
    output.check("ok", "upstream", "/v1/models answers 200", "");
    output.check("fault", "upstream", "anthropic: GET ", "api_key_env of [[upstreams]] \"anthropic\"");
}

#[tokio::test]
async fn clock_skew_and_unknown_windows_are_warnings() {
    let mut upstream = Upstream::start().await;
    let work_folder = WorkFolder::before(&upstream.url(), "");
    let mut asked = async |date: &str| {
        let doctor = work_folder.run_doctor(&[]);
        let fields = [&*format!("date: {date}"), "content-type: application/json"];
        upstream.request().await.answer("200 OK", &fields, "{\"data\":[{\"id\":\"house\"}]}").await;
        doctor.join().unwrap()
    };
    let later = |seconds| httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds));
    asked(&later(0)).await.check("ok", "clock", "s ahead of the upstream's", "");
    asked(&later(500)).await.check("warn", "clock", "s behind the upstream's", "set the clock");
    let output = asked("Sun, 06 Nov 1994 08:49:37 GMT").await;
    output.check("warn", "clock", "ahead of the upstream's", "set the clock");
    output.check("warn", "windows", "the upstream reports none", "add [[models]]");
    assert_eq!(output.code, 0);
}

#[tokio::test]
async fn a_system_without_roots_is_a_warning() {
    let closed = closed_port();
    let work_folder = WorkFolder::before(&closed.url().replace("http:", "https:"), "");
    work_folder.write("none.pem", "");
    let none = |command: &mut Command, folder: &Path| {
        run(command.env("SSL_CERT_FILE", folder.join("none.pem")).env("SSL_CERT_DIR", folder.join("none")))
    };
    none(&mut work_folder.command(&[]), work_folder.0.path()).check(
        "warn",
        "roots",
        "Mozilla's",
        "install ca-certificates",
    );
}
