//! Where `abridge run` sends requests in the other API, and what it leaves for `diff`, `show` and `replay` when it has ended.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use super::support::bodies::{DANGLING, assert_patched};
use super::support::offloads::{long_text, recalls, with_results};
use super::support::{ClosedPort, Upstream, Wire, binary, chat, post};

/// Prints the base URL, and ends with its standard input.
const WAIT: &str = "echo \"$ANTHROPIC_BASE_URL\"; read line; true";

/// A user with a home, and no abridge that runs.
struct User {
    home: TempDir,
    port: ClosedPort,
}

impl User {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), port: ClosedPort::new() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.home.path());
        command.env("ABRIDGE__SERVER__LISTEN", self.port.address().to_string());
        command.current_dir(self.home.path()).stdin(Stdio::null());
        command
    }

    /// The exit code, standard output and standard error of a command.
    fn ran(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }
}

/// Runs a command of `abridge run` that waits while `work` sends requests to this address.
async fn session(command: &mut Command, work: impl AsyncFnOnce(SocketAddr)) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    work(line.trim_end().strip_prefix("http://").unwrap_or_else(|| panic!("{line:?}")).parse().unwrap()).await;
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Sends a request that the upstream answers with `{}`: the id of the request, and the body that the upstream got.
async fn pass(at: SocketAddr, upstream: &mut Upstream, request: Vec<u8>) -> (Option<String>, Vec<u8>) {
    let mut client = Wire::connect(at).await;
    client.send(request).await;
    let mut call = upstream.request().await;
    let sent = call.bytes().await.to_vec();
    call.answer("200 OK", &["content-type: application/json", "connection: close"], "{}").await;
    let reply = client.reply().await;
    assert_eq!(reply.head.status(), 200);
    (reply.head.get("x-abridge-request-id").map(str::to_owned), sent)
}

fn waiting<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [arguments, &["--", "sh", "-c", WAIT]].concat()
}

#[tokio::test]
async fn what_a_run_keeps_is_shown_when_it_has_ended() {
    let user = User::new();
    let mut upstream = Upstream::start().await;
    let url = upstream.url().clone();
    let (text, mut ids, mut handle) = (long_text(1), Vec::new(), String::new());
    let arguments = waiting(&["run", "--keep", "--upstream", &url]);
    let mut command = user.command(&arguments);
    command.env("ABRIDGE__INSPECT__KEEP", "5");
    session(&mut command, async |at| {
        for body in [DANGLING.to_owned(), with_results(std::slice::from_ref(&text))] {
            let (id, sent) = pass(at, &mut upstream, chat(&body)).await;
            handle = recalls(&sent).pop().unwrap_or(handle.clone());
            ids.push(id.unwrap());
        }
    })
    .await;

    let short = |n: usize| ids[n].get(4..8).unwrap();
    for (name, id) in [("last", &ids[1]), (short(0), &ids[0]), (short(1), &ids[1]), (&ids[0], &ids[0])] {
        let (code, out, err) = user.ran(&["diff", name]);
        assert_eq!((code, &*err), (Some(0), ""), "{name}");
        assert!(out.starts_with(&format!("{id}, edited, ")) && out.contains("\n@@ "), "{out}");
    }
    let handle = handle.rsplit('/').next().unwrap();
    let (code, out, err) = user.ran(&["show", handle]);
    assert!((code, &*err) == (Some(0), "") && out == text, "{err}");

    // Where an address is given, that proxy is asked and nothing else.
    let at = format!("http://{}", user.port.address());
    assert_eq!(user.ran(&["diff", "last", "--at", &at]).0, Some(69));
    assert_eq!(user.ran(&["show", handle, "--at", &at]).0, Some(69));
}

#[tokio::test]
async fn what_a_run_has_not_kept_is_an_error_that_says_how_to_keep_it() {
    let user = User::new();
    for arguments in [["run", "--quiet", "--", "true"].as_slice(), &["run", "--quiet", "--keep", "--", "true"]] {
        assert_eq!(user.ran(arguments).0, Some(0));
        let (code, out, err) = user.ran(&["diff", "last"]);
        assert_eq!((code, &*out), (Some(69), ""), "{err}");
        assert!(
            err.contains("ABRIDGE__INSPECT__KEEP=20 abridge run --keep") && err.contains("nothing listens on"),
            "{err}"
        );
        let (code, out, err) = user.ran(&["show", "01j8z4k0v6m2n9x7q3r5t1w8ye"]);
        assert_eq!((code, &*out), (Some(69), ""), "{err}");
        assert!(err.contains("--keep") && err.contains("nothing listens on"), "{err}");
    }
}

#[tokio::test]
async fn a_run_records_its_exchanges() {
    for before in [false, true] {
        let user = User::new();
        let mut upstream = Upstream::start().await;
        let url = upstream.url().clone();
        let record = ["--record", "exchanges"];
        let arguments = if before { [&record[..], &["run"]].concat() } else { [&["run"], &record[..]].concat() };
        let arguments = waiting(&[&arguments[..], &["--upstream", &url]].concat());
        session(&mut user.command(&arguments), async |at| {
            assert_patched(&pass(at, &mut upstream, chat(DANGLING)).await.1);
        })
        .await;
        let folder = fs::read_dir(user.home.path().join("exchanges")).unwrap().next().unwrap().unwrap().path();
        assert_eq!(fs::read(folder.join("request.json")).unwrap(), DANGLING.as_bytes());
        let (code, _, err) = user.ran(&["replay", "exchanges"]);
        assert_eq!((code, &*err), (Some(0), ""));
    }
}

#[tokio::test]
async fn the_one_upstream_that_is_named_gets_the_requests_of_both_apis() {
    let user = User::new();
    let mut upstream = Upstream::start().await;
    let url = upstream.url().clone();
    let request = || post("/v1/messages", &["anthropic-version: 2023-06-01"], "{\"messages\":[]}");
    let file = user.home.path().join("mine.toml");
    fs::write(&file, format!("upstream.url = {url:?}\n")).unwrap();
    for arguments in [["run", "--upstream", &url], ["run", "--config", "mine.toml"]] {
        session(&mut user.command(&waiting(&arguments)), async |at| {
            assert_eq!(pass(at, &mut upstream, request()).await.1, b"{\"messages\":[]}");
        })
        .await;
    }
    // The client's own base URL is where it sends them.
    let mut other = Upstream::start().await;
    let mut command = user.command(&waiting(&["run", "--upstream", &url]));
    command.env("ANTHROPIC_BASE_URL", other.origin());
    session(&mut command, async |at| drop(pass(at, &mut other, request()).await)).await;
}

#[tokio::test]
async fn an_upstream_that_is_away_is_named_by_what_sets_it_and_by_no_file_that_there_is_not() {
    let user = User::new();
    let away = ClosedPort::new();
    let url = away.url();
    let anthropic = format!("anthropic={url}");
    for (upstream, flag) in [(&url, "or --upstream URL"), (&anthropic, "or --upstream anthropic=URL")] {
        session(&mut user.command(&waiting(&["run", "--upstream", upstream])), async |at| {
            let mut client = Wire::connect(at).await;
            client.send(post("/v1/messages", &["anthropic-version: 2023-06-01"], "{\"messages\":[]}")).await;
            let reply = client.reply().await;
            let body = String::from_utf8(reply.body.to_vec()).unwrap();
            assert_eq!(reply.head.status(), 502, "{body}");
            assert!(body.contains(flag) && !body.contains("proxy.toml"), "{body}");
        })
        .await;
    }
}
