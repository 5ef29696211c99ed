//! `abridge doctor`: what is well, and each fault with its fix.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};

use serde::Deserialize;
use tempfile::TempDir;

use crate::support::tls::Certificate;
use crate::support::{ClosedPort, Setup, Upstream};

/// What it has printed.
#[derive(Debug)]
struct Told {
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

/// A folder with a `proxy.toml`, in which the doctor looks around.
struct Place(TempDir);

impl Place {
    /// On a free port, in front of this upstream.
    fn before(url: &str, lines: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write("proxy.toml", format!("upstream.url = {url:?}\nserver.listen = \"127.0.0.1:0\"\n{lines}\n"));
        place
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_abridge"));
        command.arg("doctor").args(args).current_dir(self.0.path()).env_clear().env("HOME", self.0.path());
        command.stdin(Stdio::null());
        command
    }

    /// Looks around while the test plays the upstream.
    fn looks(&self, args: &[&str]) -> JoinHandle<Told> {
        let mut command = self.command(args);
        thread::spawn(move || told(&mut command))
    }
}

fn told(command: &mut Command) -> Told {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert_eq!(String::from_utf8(stderr).unwrap(), "");
    Told { code: status.code().unwrap(), text: String::from_utf8(stdout).unwrap() }
}

impl Told {
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
fn nowhere() -> ClosedPort {
    ClosedPort::new()
}

#[tokio::test]
async fn what_is_well_is_told_and_ends_with_0() {
    let mut upstream = Upstream::start().await;
    let place = Place::before(&upstream.url(), "");
    for args in [&[][..], &["--json"]] {
        let doctor = place.looks(args);
        let mut call = upstream.request().await;
        assert_eq!(call.head.start, "GET /v1/models HTTP/1.1");
        call.json("{\"data\":[{\"id\":\"house\",\"max_model_len\":16000}]}").await;
        let told = doctor.join().unwrap();
        assert_eq!(told.code, 0, "{}", told.text);
        if args.is_empty() {
            for (about, said) in [
                ("settings", "proxy.toml, variables and flags are right"),
                ("address", "127.0.0.1:0 is free"),
                ("store", "will be made; its folder can be written to"),
                ("disk", "MiB free for the store, which takes at most 4GiB"),
                ("roots", "not needed"),
                ("upstream", "/v1/models answers 200"),
                ("clock", "the upstream tells no date"),
                ("windows", "1 as the upstream says: house = 16000"),
            ] {
                let verdict = if about == "disk" && told.text.contains("warn  disk") { "warn" } else { "ok" };
                told.check(verdict, about, said, "");
            }
        } else {
            let Findings { checks } = serde_json::from_str(&told.text).unwrap();
            assert_eq!(checks.len(), 8);
            assert!(
                checks
                    .iter()
                    .all(|check| check.verdict != "fault" && !check.about.is_empty() && !check.said.is_empty())
            );
            assert!(checks.iter().all(|check| (check.verdict == "ok") == check.fix.is_none()));
        }
    }
    let left: Vec<_> = std::fs::read_dir(place.0.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["proxy.toml"], "it leaves nothing behind");
}

#[tokio::test]
async fn wrong_settings_are_told_with_their_line() {
    let closed = nowhere();
    let place = Place::before(&closed.url(), "server.max_bodi = 1");
    let told = told(&mut place.command(&[]));
    told.check("fault", "settings", "proxy.toml:3", "correct it there");
    assert_eq!(told.text.lines().count(), 2, "nothing else can be looked at: {}", told.text);
    let place = Place::before(&closed.url(), "upstream.api_key_env = \"NOT_SET\"");
    self::told(&mut place.command(&[])).check("fault", "settings", "NOT_SET: not set", "correct it there");
}

#[tokio::test]
async fn a_running_abridge_is_no_fault() {
    let closed = nowhere();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("store.path = \"{}\"", folder.path().join("store.redb").display());
    let abridge = Setup::to(closed.url()).with(&store).start().await;
    let place = Place::before(&closed.url(), &store);
    let told = told(&mut place.command(&["--listen", &abridge.address().to_string()]));
    told.check("ok", "store", "a running abridge has it", "");
    told.check("ok", "address", "an abridge is running there", "");
}

#[tokio::test]
async fn stores_that_do_not_work_are_told() {
    let closed = nowhere();
    let place = Place::before(&closed.url(), "store.path = \"store.redb\"");
    place.write("store.redb", "this is no store ".repeat(1000));
    told(&mut place.command(&[])).check("fault", "store", "is no store of abridge, or is damaged", "move it away");

    let place = Place::before(&closed.url(), "store.path = \"file/store.redb\"");
    place.write("file", "");
    told(&mut place.command(&[])).check("fault", "store", "cannot be made", "set store.path");

    let place = Place::before(&closed.url(), "");
    let mut homeless = place.command(&[]);
    told(homeless.env_remove("HOME")).check("fault", "store", "neither XDG_STATE_HOME nor HOME is set", "export HOME");

    let off = Place::before(&closed.url(), "store.enabled = false");
    told(&mut off.command(&[])).check("ok", "store", "off: ", "");
}

#[tokio::test]
async fn a_store_that_nobody_has_is_written_to() {
    let closed = nowhere();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let lines = format!("store.path = \"{}\"", path.display());
    let abridge = Setup::to(closed.url()).with(&lines).start().await;
    abridge.signal("TERM");
    abridge.exit().await;
    let place = Place::before(&closed.url(), &lines);
    for _ in 0..2 {
        told(&mut place.command(&[])).check("ok", "store", "opens and takes what is written: 1 texts", "");
    }
}

#[tokio::test]
async fn addresses_that_cannot_be_had_are_told() {
    let closed = nowhere();
    let place = Place::before(&closed.url(), "");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = silent.local_addr().unwrap().to_string();
    // What listens there is no abridge, and hangs up.
    thread::spawn(move || while silent.accept().is_ok() {});
    let told_taken = told(&mut place.command(&["--listen", &taken]));
    told_taken.check("fault", "address", "is taken by another program", "listen elsewhere with --listen");
    let foreign = told(&mut place.command(&["--listen", "192.0.2.1:8787"]));
    foreign.check("fault", "address", "192.0.2.1:8787 cannot be listened on", "an address of this machine");
    let socket = told(&mut place.command(&["--listen", "unix:/no/such/folder/abridge.sock"]));
    socket.check("fault", "address", "cannot be listened on", "make the folder");
}

#[tokio::test]
async fn certificates_that_cannot_be_used_are_told() {
    let closed = nowhere();
    let place = Place::before(&closed.url(), "tls.cert = \"cert.pem\"\ntls.key = \"key.pem\"");
    told(&mut place.command(&[])).check("fault", "certificate", "cert.pem could not be read", "tls.cert and tls.key");
    let certificate = Certificate::new();
    let place = Place::before(&closed.url(), &certificate.lines());
    told(&mut place.command(&[])).check("ok", "certificate", "fits its key", "");
    let place = Place::before(&closed.url(), "upstream.ca_file = \"proxy.toml\"");
    told(&mut place.command(&[])).check("fault", "upstream", "no certificate could be read", "upstream.ca_file");
}

#[tokio::test]
async fn upstreams_that_do_not_answer_well_are_told() {
    let closed = nowhere();
    let refused = told(&mut Place::before(&closed.url(), "").command(&[]));
    refused.check("fault", "upstream", "nothing listens at", "start the server there");

    let mut upstream = Upstream::start().await;
    let place = Place::before(&upstream.origin(), "");
    for (status, verdict, said, fix) in [
        ("404 Not Found", "fault", "answers 404", "the URL probably needs /v1"),
        ("401 Unauthorized", "ok", "clients bring their key", ""),
        ("500 Internal Server Error", "fault", "answers 500", "the server's own log"),
    ] {
        let doctor = place.looks(&[]);
        upstream.request().await.answer(status, &["connection: close"], "").await;
        doctor.join().unwrap().check(verdict, "upstream", said, fix);
    }
}

#[tokio::test]
async fn clocks_that_are_apart_and_windows_that_are_unknown_are_warnings() {
    let mut upstream = Upstream::start().await;
    let place = Place::before(&upstream.url(), "");
    let doctor = place.looks(&[]);
    let fields = ["date: Sun, 06 Nov 1994 08:49:37 GMT", "content-type: application/json"];
    upstream.request().await.answer("200 OK", &fields, "{\"data\":[{\"id\":\"house\"}]}").await;
    let told = doctor.join().unwrap();
    told.check("warn", "clock", "ahead of the upstream's", "set the clock");
    told.check("warn", "windows", "the upstream tells none", "add [[models]]");
    assert_eq!(told.code, 0);
}

#[tokio::test]
async fn a_system_without_roots_is_a_warning() {
    let closed = nowhere();
    let place = Place::before(&closed.url().replace("http:", "https:"), "");
    place.write("none.pem", "");
    let none = |command: &mut Command, folder: &Path| {
        told(command.env("SSL_CERT_FILE", folder.join("none.pem")).env("SSL_CERT_DIR", folder.join("none")))
    };
    none(&mut place.command(&[]), place.0.path()).check("warn", "roots", "Mozilla's", "install ca-certificates");
}
