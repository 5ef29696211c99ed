//! `abridge demo`: what its table claims.
#![expect(clippy::disallowed_types, reason = "requests of the demo are looked at")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use abridge_proxy::units::grouped;
use tempfile::TempDir;

use super::support::{binary, validator};

/// The window of the demo's model, as its introduction says.
const WINDOW: usize = 8192;

/// The turns of the session.
const TURNS: usize = 44;

/// A machine for one run: nothing at home, nothing temporary, and every way to other machines a dead end.
struct Machine {
    folder: TempDir,
}

/// One row of the table.
#[derive(Debug)]
struct Row {
    turn: usize,
    bytes: usize,
    direct: String,
    abridge: String,
}

// === impl Machine ===

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "tmp", "here"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        // Settings of the user, which the demo has no business with.
        fs::write(folder.path().join("here/proxy.toml"), "this is no setting").unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.path("home")).env("TMPDIR", self.path("tmp"));
        for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
            command.env(name, "http://127.0.0.1:1");
        }
        command.env("ABRIDGE__UPSTREAM__URL", "not a URL").current_dir(self.path("here")).stdin(Stdio::null());
        command
    }

    fn demo(&self, args: &[&str]) -> Output {
        self.command(binary()).arg("demo").args(args).output().unwrap()
    }

    /// Everything below the folder, and the processes that were started in it.
    #[track_caller]
    fn has_nothing_left(&self) {
        let files: Vec<_> = ["home", "tmp"].into_iter().flat_map(|name| entries(&self.path(name))).collect();
        assert!(files.is_empty(), "{files:?}");
        assert_eq!(entries(&self.path("here")), [self.path("here/proxy.toml")]);
        let tmp = self.path("tmp");
        let is_of_demo = |process: &PathBuf| {
            let line = fs::read(process.join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(tmp.to_str().unwrap())
        };
        let left: Vec<_> = entries(Path::new("/proc")).into_iter().filter(is_of_demo).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

// === impl Row ===

impl Row {
    /// The rows of the table: turn, what is new, its bytes, and the two answers, each in its columns.
    fn all(text: &str) -> Vec<Self> {
        let cells = |line: &str| {
            let chars: Vec<char> = line.chars().collect();
            let cell = |from: usize, to: usize| -> String {
                chars.get(from..to.min(chars.len())).unwrap_or_default().iter().collect::<String>().trim().to_owned()
            };
            [cell(0, 4), cell(26, 32), cell(34, 61), cell(63, 81)]
        };
        let row = |line: &str| {
            let [turn, bytes, direct, abridge] = cells(line);
            Some(Self { turn: turn.parse().ok()?, bytes: number(&bytes), direct, abridge })
        };
        text.lines().filter_map(row).collect()
    }

    /// The tokens that the agent sent, and those that the upstream got.
    fn tokens(&self) -> (usize, usize) {
        let tokens = self.abridge.strip_prefix("ok ").unwrap_or_else(|| panic!("no answer: {self:?}"));
        let (before, after) = tokens.split_once('→').unwrap_or((tokens, tokens));
        (number(before), number(after))
    }
}

fn number(text: &str) -> usize {
    text.trim().replace(',', "").parse().unwrap_or_else(|_| panic!("no number: {text:?}"))
}

/// The line that begins so, without its beginning.
#[track_caller]
fn line<'a>(text: &'a str, beginning: &str) -> &'a str {
    let mut lines = text.lines().filter_map(|line| line.trim_start().strip_prefix(beginning));
    lines.next().unwrap_or_else(|| panic!("no line begins with {beginning:?}:\n{text}")).trim()
}

#[test]
fn direct_requests_are_refused_by_the_rules_and_every_turn_through_abridge_is_answered() {
    let machine = Machine::new();
    let kept = machine.path("kept");
    let output = machine.demo(&["--keep", kept.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    machine.has_nothing_left();
    assert!(!text.contains('\x1b'), "{text}");
    let wide: Vec<_> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(wide.is_empty(), "longer than a terminal is wide: {wide:#?}");

    let rows = Row::all(&text);
    assert_eq!(rows.iter().map(|row| row.turn).collect::<Vec<_>>(), (1..=TURNS).collect::<Vec<_>>(), "{text}");
    assert!(rows.iter().any(|row| row.bytes > 60_000), "no long log: {text}");
    let judged: BTreeSet<_> = rows.iter().map(|row| judge(row, &kept)).collect();
    let all = ["400 context_length_exceeded", "400 tool call unanswered", "ok"];
    assert_eq!(judged, BTreeSet::from(all.map(str::to_owned)));
    // Once it fails it fails for good.
    let n_ok = rows.iter().take_while(|row| row.direct.starts_with("ok")).count();
    assert!(rows[n_ok..].iter().all(|row| !row.direct.starts_with("ok")), "{text}");
    let edited = rows.iter().filter(|row| row.abridge.contains('→')).count();
    assert_eq!(edited, TURNS - n_ok, "{text}");

    let turns: Vec<_> =
        line(&text, "turns answered").split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect();
    assert_eq!(turns, [format!("{n_ok} of {TURNS}"), format!("{TURNS} of {TURNS}")]);
    let largest = rows.iter().map(|row| row.tokens().1).max().unwrap();
    assert_eq!(line(&text, "largest request, tokens").split_whitespace().nth(1).map(number), Some(largest));
    let sent: usize = rows.iter().map(|row| row.tokens().1).sum();
    assert_eq!(line(&text, "sent upstream in all, tokens").split_whitespace().nth(1).map(number), Some(sent));
    let changes = |side| format!("{}", prefix_changes(&kept, side));
    assert_eq!(
        line(&text, "requests that change the prefix").split_whitespace().collect::<Vec<_>>(),
        [changes("agent"), changes("upstream")]
    );
    let unchanged = line(&text, "unchanged prefix, tokens").split_whitespace().nth(1).map(number).unwrap();
    assert!((sent * 4 / 5..sent).contains(&unchanged), "{unchanged} of {sent}");
}

/// The number of requests that do not begin with all messages of the request before.
fn prefix_changes(kept: &Path, side: &str) -> usize {
    let messages = |turn: usize| {
        let body = fs::read(kept.join(format!("{turn:02}-{side}.json"))).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        body["messages"].as_array().unwrap().clone()
    };
    let requests: Vec<_> = (1..=TURNS).map(messages).collect();
    requests.windows(2).filter(|pair| !pair[1].starts_with(&pair[0])).count()
}

/// Checks one row against the requests of its turn, and says what the direct answer was.
#[track_caller]
fn judge(row: &Row, kept: &Path) -> String {
    let read = |side: &str| fs::read(kept.join(format!("{:02}-{side}.json", row.turn))).unwrap();
    let (agent, upstream) = (read("agent"), read("upstream"));
    let (before, after) = row.tokens();
    validator::check(&upstream).unwrap();
    assert!(after <= WINDOW, "{row:?}");
    assert_eq!(row.abridge.contains('→'), agent != upstream, "{row:?}");
    match row.direct.as_str() {
        "400 context_length_exceeded" => assert!(before > WINDOW, "{row:?}"),
        "400 tool call unanswered" => {
            let wrong = validator::check(&agent).unwrap_err();
            assert!(wrong.contains("1 calls, 0 results"), "{wrong}");
        }
        _ => {
            validator::check(&agent).unwrap();
            assert!(before <= WINDOW, "{row:?}");
            assert_eq!(number(row.direct.strip_prefix("ok").unwrap()), before, "{row:?}");
            return "ok".to_owned();
        }
    }
    row.direct.clone()
}

#[test]
fn every_dialect_has_the_same_session_with_requests_of_its_own_form() {
    let formats = [
        ("chat", "\"role\":\"system\""),
        ("responses", "\"input\":[{\"content\":[{\"text\":"),
        ("messages", "\"messages\":[{\"content\":[{\"text\":"),
    ];
    let overflow = "400 context_length_exceeded";
    for (dialect, form) in formats {
        let machine = Machine::new();
        let kept = machine.path("kept");
        let output = machine.demo(&["--dialect", dialect, "--keep", kept.to_str().unwrap()]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{dialect}: {text}{}", String::from_utf8_lossy(&output.stderr));
        machine.has_nothing_left();

        let rows = Row::all(&text);
        assert_eq!(rows.len(), TURNS, "{dialect}: {text}");
        let n_ok = rows.iter().take_while(|row| row.direct.starts_with("ok")).count();
        let refused: BTreeSet<_> = rows[n_ok..].iter().map(|row| row.direct.as_str()).collect();
        assert_eq!(refused, BTreeSet::from([overflow, "400 tool call unanswered"]), "{dialect}: {text}");
        for row in &rows {
            let (before, after) = row.tokens();
            assert!(after <= WINDOW, "{dialect}: {row:?}");
            assert_eq!(row.abridge.contains('→'), row.turn > n_ok, "{dialect}: {row:?}");
            assert_eq!(before > WINDOW, row.direct == overflow, "{dialect}: {row:?}");
            for side in ["agent", "upstream"] {
                let request = fs::read_to_string(kept.join(format!("{:02}-{side}.json", row.turn))).unwrap();
                assert!(request.contains(form), "{dialect}: {request:.300}");
            }
        }
        assert!(line(&text, "turns answered").ends_with(&format!("{TURNS} of {TURNS}")), "{dialect}: {text}");
        let named = number(line(&text, "placeholders in the last request"));
        assert!(named > 10, "{dialect}: {text}");
        assert_eq!(number(line(&text, "their originals read back, equal")), named, "{dialect}");
        for note in ["the call was interrupted", "cut the middle out", "asks abridge for the 3"] {
            assert!(text.contains(note), "{dialect}: {note}: {text}");
        }
    }
}

#[test]
fn an_unknown_dialect_is_a_usage_error_that_names_those_there_are() {
    let output = Machine::new().demo(&["--dialect", "morse"]);
    assert_eq!(output.status.code(), Some(64));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("chat_completions, responses, messages"), "{error}");
}

#[test]
fn the_demo_prints_the_same_figures_in_each_run_and_every_dialect() {
    for dialect in ["chat", "responses", "messages", "gemini"] {
        let printed = || {
            let text = String::from_utf8(Machine::new().demo(&["--dialect", dialect]).stdout).unwrap();
            let (figures, time) = text.split_once("\nThat took ").unwrap();
            assert!(time.contains(" s, and no process"), "{time}");
            figures.to_owned()
        };
        assert_eq!(printed(), printed(), "{dialect}");
    }
}

#[test]
fn the_documents_show_the_demos_figures() {
    let machine = Machine::new();
    let kept = machine.path("kept");
    let text = String::from_utf8(machine.demo(&["--keep", kept.to_str().unwrap()]).stdout).unwrap();
    let document = |name: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    let readme = document("README.md");
    // The last one only shows the command beside that of the tests.
    let blocks = ["```text\nsum ", "```console\n$ cargo run -- demo\n  upstream "].map(|beginning| {
        let (_, block) = readme.split_once(beginning).unwrap_or_else(|| panic!("README.md has no {beginning}"));
        let (_, head) = beginning.rsplit_once('\n').unwrap();
        format!("{head}{}", block.split_once("\n```").unwrap().0)
    });
    for block in &blocks {
        let mut printed = text.lines();
        for line in block.lines().filter(|line| line.trim() != "⋮") {
            assert!(printed.any(|other| other == line), "README.md, where the demo has another line: {line}\n{text}");
        }
    }
    // docs/operations.md quotes the same session.
    let rows = Row::all(&text);
    let (before, after) = rows.iter().map(Row::tokens).fold((0, 0), |sum, tokens| (sum.0 + tokens.0, sum.1 + tokens.1));
    let edited = rows.iter().filter(|row| row.abridge.contains('→')).count();
    let named: BTreeSet<_> = (1..=TURNS)
        .flat_map(|turn| {
            let request = fs::read_to_string(kept.join(format!("{turn:02}-upstream.json"))).unwrap();
            let handles = request.split("/abridge/recall/").skip(1);
            handles
                .map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap().to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    let saved = (before - after) * 100 / before;
    let line = format!(
        "abridge: {TURNS} requests, {edited} edited, {} → {} tokens ({saved} % less), {} texts taken out\n",
        grouped(before),
        grouped(after),
        named.len()
    );
    assert!(document("docs/operations.md").contains(&line), "docs/operations.md has another line than {line}");
}

#[test]
fn the_demo_needs_no_network() {
    let machine = Machine::new();
    let mut alone = machine.command("unshare");
    let demo = format!("ip link set lo up && exec {} demo", binary());
    alone.args(["-rn", "sh", "-c"]).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let mut permitted = machine.command("unshare");
    let permitted =
        permitted.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").args(["-rn", "ip", "link", "set", "lo", "up"]);
    if permitted.output().is_ok_and(|output| output.status.success()) {
        let output = alone.arg(&demo).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    } else {
        // Everything that is left of other machines are the proxies of the variables, and those are dead ends.
        assert!(machine.demo(&[]).status.success());
    }
    machine.has_nothing_left();
}

#[test]
fn recalled_originals_equal_the_agents_results_byte_by_byte() {
    let machine = Machine::new();
    let kept = machine.path("kept");
    let text = String::from_utf8(machine.demo(&["--keep", kept.to_str().unwrap()]).stdout).unwrap();
    let agent: Vec<_> = line(&text, "the agent has").split_whitespace().take(4).map(str::to_owned).collect();
    let abridge: Vec<_> = line(&text, "abridge gives").split_whitespace().take(4).map(str::to_owned).collect();
    assert_eq!(agent, abridge);
    assert!(number(&agent[0]) > 60_000, "{agent:?}");
    assert!(line(&text, "abridge gives").ends_with("equal, byte by byte"));
    let named = number(line(&text, "placeholders in the last request"));
    assert_eq!(number(line(&text, "their originals read back, equal")), named);
    // The last request names that many, and the model has read some of the log again.
    let read = |name: String| fs::read_to_string(kept.join(name)).unwrap();
    let last = read(format!("{TURNS:02}-upstream.json"));
    assert_eq!(last.matches("[Cleared: ").count(), named);
    let url = line(&text, "GET ");
    assert!(last.contains(url), "{url}");
    let asked = (1..=TURNS).find(|n| read(format!("{n:02}-agent.json")).contains("?grep=tzdata")).unwrap();
    let found = read(format!("{asked:02}-agent.json"));
    assert!(!read(format!("{:02}-upstream.json", asked - 1)).contains("no package tzdata"), "it was not cleared");
    assert_eq!(found.matches("no package tzdata in site-packages").count(), 2, "in the log, and read back");
}

#[test]
fn a_signal_ends_the_demo_and_leaves_no_process_and_no_file() {
    for signal in ["INT", "TERM", "HUP"] {
        let machine = Machine::new();
        let demo = machine.command(binary()).arg("demo").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut demo: Child = demo.unwrap();
        let mut out = BufReader::new(demo.stdout.take().unwrap());
        // The proxy listens when the first line comes.
        out.read_line(&mut String::new()).unwrap();
        assert_eq!(entries(&machine.path("tmp")).len(), 1);
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(demo.id().to_string()).status().unwrap();
        assert!(sent.success());
        let status = demo.wait().unwrap();
        let mut said = String::new();
        demo.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(
            (status.code(), said.trim()),
            (Some(1), "abridge: stopped; nothing of the demo is left"),
            "{signal}"
        );
        machine.has_nothing_left();
    }
}

#[test]
fn a_closed_pipe_ends_the_demo_and_leaves_no_process_and_no_file() {
    let machine = Machine::new();
    let mut demo = machine.command(binary()).arg("demo").stdout(Stdio::piped()).spawn().unwrap();
    drop(demo.stdout.take());
    assert!(demo.wait().unwrap().success());
    machine.has_nothing_left();
}

#[test]
fn colour_is_only_on_terminals_that_allow_it() {
    let machine = Machine::new();
    let shown = |no_colour: bool| {
        // `script`, of util-linux, has a terminal for it.
        let mut script = machine.command("script");
        let demo = format!("{} demo", binary());
        script.args(["-qec", &demo, "/dev/null"]).env("TERM", "xterm");
        if no_colour {
            script.env("NO_COLOR", "1");
        }
        let output = script.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let (coloured, plain) = (shown(false), shown(true));
    assert!(coloured.contains("\x1b[31m400 context_length_exceeded"), "{coloured}");
    assert!(plain.contains("400 context_length_exceeded") && !plain.contains('\x1b'), "{plain}");
    machine.has_nothing_left();
}

#[test]
fn the_demo_refuses_settings() {
    let machine = Machine::new();
    for args in [&["--upstream", "http://127.0.0.1:1"][..], &["--config", "proxy.toml"], &["--dry-run"]] {
        let output = machine.demo(args);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("its own settings"), "{args:?}");
    }
    machine.has_nothing_left();
}
