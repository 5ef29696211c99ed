//! `abridge run`: the environment, exit code, signals and terminal of the command, and what is left behind.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::support::bodies::{DANGLING, assert_patched};
use super::support::offloads::{long_text, recalls, with_results};
use super::support::{Abridge, ClosedPort, Setup, Upstream, Wire, binary, chat, post, request};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_mins(2);

/// Prints the base URLs, and ends with 4 when a line was read.
const SHOW: &str =
    r#"echo "$OPENAI_BASE_URL $OPENAI_API_BASE $ANTHROPIC_BASE_URL"; read line; echo "read $line"; exit 4"#;

/// The prompt of the shell in a terminal.
const PROMPT: &str = "prompt> ";

/// A user with empty folders and nothing in the environment.
struct User {
    folder: TempDir,
}

/// A command that runs.
struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

/// A shell in its own terminal.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    shown: mpsc::Receiver<String>,
    text: String,
}

// === impl User ===

impl User {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "tmp", "here"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        // Not with the signals that the tests were started to ignore, as those of a script in the background are.
        let mut command = Command::new("env");
        command
            .arg("--default-signal")
            .arg(program)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.path("tmp"));
        // Never the foreground group of the terminal of the tests.
        command.current_dir(self.path("here")).stdin(Stdio::null()).process_group(0);
        command
    }

    /// `abridge run` with these arguments.
    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(binary());
        command.arg("run").args(arguments);
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.run(arguments).output().unwrap()
    }

    /// Every file of the user.
    fn files(&self) -> Vec<PathBuf> {
        let mut folders: Vec<_> = ["home", "tmp", "here"].map(|name| self.path(name)).into();
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { &mut folders } else { &mut files }.push(path);
            }
        }
        files
    }

    #[track_caller]
    fn has_nothing_left(&self) {
        assert_eq!(self.files(), Vec::<PathBuf>::new());
        assert_eq!(fs::read_dir(self.path("tmp")).unwrap().count(), 0);
    }
}

// === impl Running ===

impl Running {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the end: the exit code, and what was written to standard error.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.stdin);
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), None);
        (status.code(), stderr)
    }
}

// === impl Terminal ===

impl Terminal {
    /// A shell with job control. `script`, of util-linux, has a terminal for it.
    fn start(user: &User) -> Self {
        let mut script = user.command("script");
        script.args(["-qec", "bash --norc --noprofile -i", "/dev/null"]).env("TERM", "dumb").env("PS1", PROMPT);
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, shown) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = out.read(&mut bytes) {
                if sender.send(String::from_utf8_lossy(&bytes[..n]).into_owned()).is_err() {
                    break;
                }
            }
        });
        Self { child, keys, shown, text: String::new() }
    }

    /// Types a command when the shell takes one.
    #[track_caller]
    fn command(&mut self, command: &str) {
        self.shows(PROMPT);
        self.press(&format!("{command}\n"));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until this is shown, behind what was waited for before.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        loop {
            if let Some(at) = self.text.find(text) {
                self.text.drain(..at + text.len());
                return;
            }
            let Ok(more) = self.shown.recv_timeout(PATIENCE) else { panic!("{text:?} is not in {:?}", self.text) };
            self.text.push_str(&more);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

// === helpers ===

/// The address in a base URL, and its path.
fn parts(url: &str) -> (SocketAddr, &str) {
    let rest = url.strip_prefix("http://").unwrap();
    let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    (address.parse().unwrap(), path)
}

/// Sends a request that the upstream answers with `{}`; the body that the upstream got.
async fn pass(at: SocketAddr, upstream: &mut Upstream, request: Vec<u8>, target: &str) -> Vec<u8> {
    let mut client = Wire::connect(at).await;
    client.send(request).await;
    let mut call = upstream.request().await;
    assert_eq!(call.head.target(), target);
    let sent = call.bytes().await.to_vec();
    call.answer("200 OK", &["content-type: application/json", "connection: close"], "{}").await;
    assert_eq!(client.reply().await.head.status(), 200);
    sent
}

// === the command and its end ===

#[test]
fn the_exit_code_is_that_of_the_command_or_128_and_its_signal() {
    let user = User::new();
    let cases = [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)];
    for (script, code) in cases {
        let output = user.output(&["--quiet", "--", "sh", "-c", script]);
        assert_eq!((output.status.code(), &*output.stderr), (Some(code), &b""[..]), "{script}");
    }
    user.has_nothing_left();
}

#[test]
fn a_command_that_is_not_there_is_127_and_one_that_cannot_be_run_126() {
    let user = User::new();
    let stderr = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let output = user.output(&["--", "codx", "exec"]);
    let expected = "abridge: cannot run \"codx\": command not found; name one of PATH, or a path such as ./agent\n";
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(127), expected));
    user.has_nothing_left();
    fs::write(user.path("here/agent"), "").unwrap();
    fs::set_permissions(user.path("here/agent"), fs::Permissions::from_mode(0o600)).unwrap();
    let output = user.output(&["--", "./agent"]);
    assert_eq!(output.status.code(), Some(126));
    assert!(stderr(&output).starts_with("abridge: cannot run \"./agent\": Permission denied"), "{}", stderr(&output));
    assert_eq!(user.output(&[]).status.code(), Some(64));
    assert_eq!(user.files(), [user.path("here/agent")]);
}

#[test]
fn a_command_has_standard_input_and_output_and_arguments_as_they_are() {
    let user = User::new();
    let mut command = user.run(&["sh", "-c", "cat; echo err >&2; echo \"$1|$2|$3\"", "sh", "--quiet", "", "a b"]);
    let mut running = Running::start(&mut command);
    running.stdin.write_all(b"in\n").unwrap();
    drop(std::mem::replace(
        &mut running.stdin,
        Command::new("true").stdin(Stdio::piped()).spawn().unwrap().stdin.unwrap(),
    ));
    assert_eq!((&*running.line(), &*running.line()), ("in", "--quiet||a b"));
    let (code, stderr) = running.end();
    assert_eq!(code, Some(0));
    let (first, report) = stderr.split_once('\n').unwrap();
    assert_eq!(first, "err");
    assert!(report.starts_with("abridge: no request came through abridge; "), "{report}");
    user.has_nothing_left();
}

// === where requests go ===

#[tokio::test]
async fn requests_go_where_the_environment_said_and_the_end_says_what_was_saved() {
    let user = User::new();
    let (mut openai, mut anthropic) = (Upstream::start().await, Upstream::start().await);
    let mut command = user.run(&["--", "sh", "-c", SHOW]);
    command.env("OPENAI_BASE_URL", format!("{}/gateway/v1", openai.origin()));
    command.env("ANTHROPIC_BASE_URL", format!("{}/anthropic", anthropic.origin()));
    let mut running = Running::start(&mut command);
    let line = running.line();
    let [base, same, messages] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let (at, path) = parts(base);
    assert_eq!((path, same), ("/gateway/v1", base));
    assert_eq!(parts(messages), (at, "/anthropic"));
    assert!(at.ip().is_loopback());

    let target = "/gateway/v1/chat/completions";
    assert_patched(&pass(at, &mut openai, post(target, &[], DANGLING), target).await);
    let (text, fields) = (long_text(1), ["authorization: Bearer sk-1"]);
    let sent = pass(at, &mut openai, post(target, &fields, with_results(std::slice::from_ref(&text))), target).await;
    let mut client = Wire::connect(at).await;
    client.send(request("GET", &recalls(&sent)[0], &[])).await;
    assert_eq!(client.reply().await.body, text);
    let target = "/anthropic/v1/messages";
    pass(at, &mut anthropic, post(target, &["anthropic-version: 2023-06-01"], "{\"messages\":[]}"), target).await;

    running.stdin.write_all(b"it\n").unwrap();
    assert_eq!(running.line(), "read it");
    let (code, stderr) = running.end();
    assert_eq!(code, Some(4));
    let report = stderr.strip_prefix("abridge: 3 requests, 2 edited, ").unwrap_or_else(|| panic!("{stderr}"));
    assert!(report.contains(" tokens (") && report.ends_with(" % less), 1 text taken out\n"), "{report}");
    user.has_nothing_left();
}

#[tokio::test]
async fn the_settings_of_abridge_win_over_the_environment_of_the_client() {
    let user = User::new();
    let (mut upstream, elsewhere) = (Upstream::start().await, ClosedPort::new());
    let flag = ["--upstream".to_owned(), format!("anthropic={}", upstream.origin())];
    fs::write(user.path("here/mine.toml"), format!("upstream.url = {:?}\npolicy.edits = []\n", upstream.url()))
        .unwrap();
    let arguments = ["--config", "mine.toml", &flag[0], &flag[1], "--", "sh", "-c", SHOW];
    let mut command = user.run(&arguments);
    command.env("OPENAI_BASE_URL", elsewhere.url()).env("ANTHROPIC_BASE_URL", elsewhere.url());
    let mut running = Running::start(&mut command);
    let line = running.line();
    let (base, rest) = line.split_once(' ').unwrap();
    let (at, path) = parts(base);
    assert_eq!((path, parts(rest.split(' ').nth(1).unwrap())), ("/v1", (at, "")));
    let sent = pass(at, &mut upstream, chat(DANGLING), "/v1/chat/completions").await;
    assert_eq!(sent, DANGLING.as_bytes());
    pass(at, &mut upstream, post("/v1/messages", &[], "{\"messages\":[]}"), "/v1/messages").await;
    assert_eq!(running.end().1, "abridge: 2 requests, 0 edited (no edit is on)\n");
    assert_eq!(user.files(), [user.path("here/mine.toml")]);
}

#[test]
fn a_client_behind_a_proxy_speaks_to_abridge_directly() {
    let user = User::new();
    let exempt = |proxy: Option<&str>, hosts: &str| {
        let mut command = user.run(&["-q", "--", "sh", "-c", "echo \"$no_proxy $NO_PROXY\""]);
        command.env("NO_PROXY", hosts);
        if let Some(proxy) = proxy {
            command.env("http_proxy", proxy);
        }
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(exempt(None, "a,b"), " a,b\n");
    assert_eq!(exempt(Some("http://127.0.0.1:1"), "a,b"), "a,b,127.0.0.1 a,b,127.0.0.1\n");
}

#[test]
fn a_base_url_that_is_none_is_an_error_that_names_the_variable_and_not_its_value() {
    let user = User::new();
    let mut command = user.run(&["--", "true"]);
    let output = command.env("OPENAI_BASE_URL", "http://me:secret@host").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.starts_with("OPENAI_BASE_URL: not an upstream URL") && !stderr.contains("secret"), "{stderr}");
    assert_eq!(output.status.code(), Some(78));
}

// === signals ===

/// Prints `ready`, and ends with 7 at this signal.
fn trap(signal: &str) -> String {
    format!("trap 'kill $!; exit 7' {signal}; sleep 30 & echo ready; wait")
}

#[test]
fn signals_reach_the_command_and_its_answer_is_the_exit_code() {
    let user = User::new();
    for signal in ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"] {
        let mut running = Running::start(&mut user.run(&["-q", "--", "sh", "-c", &trap(signal)]));
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        assert_eq!(running.end(), (Some(7), String::new()), "{signal}");
    }
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let mut running = Running::start(&mut user.run(&["-q", "--", "sh", "-c", "echo ready; exec sleep 30"]));
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        assert_eq!(running.end(), (Some(code), String::new()), "{signal}");
    }
    user.has_nothing_left();
}

#[test]
fn a_signal_that_is_ignored_from_the_start_is_ignored_by_the_command_too() {
    let user = User::new();
    let script = format!("trap '' HUP; exec {} run -q -- sh -c 'kill -HUP $$; echo alive'", binary());
    let output = user.command("sh").args(["-c", &script]).output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"alive\n"[..]));
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let user = User::new();
    let mut terminal = Terminal::start(&user);
    let count = "n=0; trap 'n=$((n+1)); echo int' INT; echo rea''dy; read x; [ \"$x\" ] || read x; echo count=$n";
    terminal.command(&format!("{} run -q -- sh -c '{}'", binary(), count.replace('\'', "'\\''")));
    terminal.shows("ready");
    terminal.press("\x03");
    terminal.shows("int");
    terminal.press("end\n");
    terminal.shows("count=1");
}

#[test]
fn a_command_that_stops_gives_the_shell_its_terminal_and_goes_on_in_the_foreground() {
    let user = User::new();
    let mut terminal = Terminal::start(&user);
    let run = |script: &str| format!("{} run -q -- sh -c '{script}'", binary());
    // By the key.
    terminal.command(&run("echo rea\"\"dy; read x; echo re\"\"st=$x"));
    terminal.shows("ready");
    terminal.press("\x1a");
    terminal.shows("Stopped");
    terminal.command("fg");
    terminal.shows("st=$x"); // the shell says what goes on
    terminal.press("hello\n");
    terminal.shows("rest=hello");
    // By itself, alone, as programs do that have switched the key off.
    terminal.command(&run("kill -STOP $$; echo ba\"\"ck; exit 5"));
    terminal.shows("Stopped");
    terminal.command("fg");
    terminal.shows("back");
    terminal.command("echo co''de=$?");
    terminal.shows("code=5");
}

// === store and log ===

#[tokio::test]
async fn with_keep_a_later_run_recalls_what_an_earlier_one_took_out() {
    let user = User::new();
    let mut upstream = Upstream::start().await;
    let url = upstream.url();
    let start = |user: &User| {
        let mut command = user.run(&["--keep", "--", "sh", "-c", SHOW]);
        Running::start(command.env("OPENAI_BASE_URL", &url))
    };
    let mut first = start(&user);
    let at = parts(first.line().split(' ').next().unwrap()).0;
    let sent = pass(at, &mut upstream, chat(with_results(&[long_text(1)])), "/v1/chat/completions").await;
    // The store has one user at a time: a second run has its own store.
    let mut second = start(&user);
    second.line();
    assert_eq!(fs::read_dir(user.path("tmp")).unwrap().count(), 1);
    let said = second.end().1;
    assert!(said.starts_with("abridge: this run has a store of its own: ") && said.contains("in use"), "{said}");
    first.end();
    assert_eq!(user.files(), [user.path("home/.local/state/abridge/store.redb")]);
    let mut third = start(&user);
    let mut client = Wire::connect(parts(third.line().split(' ').next().unwrap()).0).await;
    client.send(request("GET", &recalls(&sent)[0], &[])).await;
    assert_eq!(client.reply().await.body, long_text(1));
}

#[tokio::test]
async fn the_log_goes_to_the_file_that_is_named_and_to_nothing_else() {
    let user = User::new();
    let mut upstream = Upstream::start().await;
    for arguments in [&["-q"][..], &["-q", "--log", "abridge.log"]] {
        let mut command = user.run(&[arguments, &["--", "sh", "-c", SHOW]].concat());
        let mut running = Running::start(command.env("OPENAI_BASE_URL", upstream.url()));
        let at = parts(running.line().split(' ').next().unwrap()).0;
        pass(at, &mut upstream, chat(DANGLING), "/v1/chat/completions").await;
        assert_eq!(running.end(), (Some(4), String::new()));
    }
    assert_eq!(user.files(), [user.path("here/abridge.log")]);
    let log = fs::read_to_string(user.path("here/abridge.log")).unwrap();
    assert!(log.contains("patched 1 dangling call") && !log.contains('\x1b'), "{log}");
}

#[tokio::test]
async fn a_run_beside_a_proxy_that_serves_does_not_disturb_it() {
    let (user, upstream) = (User::new(), Upstream::start().await);
    let serving: Abridge = Setup::before(&upstream).start().await;
    let config = serving.config().to_str().unwrap();
    let output = user.output(&["-q", "--config", config, "--", "sh", "-c", "echo $OPENAI_BASE_URL"]);
    assert_eq!(output.status.code(), Some(0));
    let url = String::from_utf8(output.stdout).unwrap();
    assert_ne!(parts(url.trim_end()).0, serving.address());
    serving.connect().await;
}
