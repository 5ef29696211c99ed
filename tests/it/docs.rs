//! Every command in the documents is run as it is written, or is on a list with the reason why not; every flag is one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{ClosedPort, OPERATOR_TOKEN, Setup, Upstream, binary, chat};

/// How a command is held to what the documents say of it.
#[derive(Clone, Copy)]
enum Held {
    /// It ends, and a line of its output begins so.
    Prints(&'static str),
    /// It serves until it is stopped, and a line of its log begins so.
    Serves(&'static str),
    /// It is not run here, for this reason.
    Elsewhere(&'static str),
}

use Held::{Elsewhere, Prints, Serves};

const COMMANDS: [(&str, Held); 25] = [
    ("cargo run -- demo", Elsewhere("tests/it/demo.rs runs the demo")),
    ("cargo run --release -- simulate", Elsewhere("`abridge simulate` below is the same program")),
    ("cargo test --no-fail-fast", Elsewhere("it is what runs this")),
    ("just bench-peers", Elsewhere("needs PyPI and eight minutes")),
    ("benches/peers/run.py --out docs/peers.md", Elsewhere("needs PyPI and eight minutes")),
    ("benches/peers/run.py --once --only awecompress", Elsewhere("needs PyPI")),
    ("python3 -m venv /tmp/llama", Elsewhere("needs a model of 200 MB")),
    ("cat /tmp/llama/", Elsewhere("needs a model of 200 MB")),
    ("/tmp/llama/bin/python", Elsewhere("needs a model of 200 MB")),
    ("LLAMA_SERVER=", Elsewhere("needs a model of 200 MB")),
    ("export LD_LIBRARY_PATH", Elsewhere("needs a model of 200 MB")),
    ("cargo build --profile dist", Elsewhere("needs a model of 200 MB")),
    ("abridge run -- codex", Elsewhere("tests/clients/run.rs runs Codex and Claude Code under it")),
    ("export OPENAI_BASE_URL", Elsewhere("sets variables, which tests/clients/ sets for each client")),
    ("curl -N http://127.0.0.1:8787/abridge/events", Elsewhere("tests/it/events.rs reads the stream")),
    ("uvx abridge-proxy", Elsewhere("tests/packages.rs installs the wheel, without uv")),
    ("any-proxy --port 9000", Elsewhere("stands for another program")),
    ("abridge simulate ./sessions --policy http://", Elsewhere("tests/it/judge.rs plays sessions through proxies")),
    ("curl -s http://127.0.0.1:8787/abridge/summarize", Elsewhere("tests/it/manual_summary.rs has an upstream for it")),
    ("abridge serve --upstream https://api.openai.com/v1", Serves("abridge: upstream: https://api.openai.com/v1/chat")),
    (
        "abridge --upstream https://api.openai.com/v1 --upstream anthropic=https://api.anthropic.com",
        Serves("abridge: upstreams: anthropic at https://api.anthropic.com/"),
    ),
    ("abridge savings --days 7", Prints("last 7 days: nothing edited in 1 request")),
    ("abridge doctor --upstream http://127.0.0.1:8000", Prints("fault address     ")),
    ("abridge simulate ./exchanges", Prints("{")),
    ("abridge simulate", Prints("policy ")),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The documents that people read: their names and texts.
fn documents() -> Vec<(String, String)> {
    let pages = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let others =
        ["README.md", "CONTRIBUTING.md", "BENCHMARKS.md", "ARCHITECTURE.md", "SECURITY.md", "packaging/README.md"];
    let others = others.map(|name| root().join(name));
    let files = pages.chain(others).filter(|path| path.extension().is_some_and(|end| end == "md"));
    files.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect()
}

/// The commands in console blocks, without their comments.
fn commands() -> BTreeSet<String> {
    let mut commands = BTreeSet::new();
    for (_, text) in documents() {
        for block in text.split("```console\n").skip(1) {
            let block = block.split("\n```").next().unwrap();
            let lines = block.lines().filter_map(|line| line.strip_prefix("$ "));
            commands.extend(lines.map(|line| line.split("  #").next().unwrap().trim().to_owned()));
        }
    }
    commands
}

fn held(command: &str) -> Option<(usize, Held)> {
    let found = COMMANDS.iter().enumerate().filter(|(_, (begin, _))| command.starts_with(begin));
    found.max_by_key(|(_, (begin, _))| begin.len()).map(|(n, (_, held))| (n, *held))
}

/// A command in a shell, with this program first in its path and nothing else of this environment.
fn shell(command: &str, place: &Path, listen: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec {command}")]).current_dir(place).env_clear().stdin(Stdio::null());
    let folder = Path::new(binary()).parent().unwrap().display().to_string();
    shell.env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap_or_default())).env("HOME", place);
    shell.env("ABRIDGE__SERVER__LISTEN", format!("[\"{listen}\"]")).env("ABRIDGE__UPSTREAM__PROBE", "false");
    shell.env("ABRIDGE_ADMIN_TOKEN", OPERATOR_TOKEN);
    shell
}

/// A folder with what the commands name.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let transcripts: Vec<_> =
        fs::read_dir(root().join("fixtures/transcripts")).unwrap().map(|entry| entry.unwrap().path()).collect();
    for folder in ["transcripts", "exchanges"] {
        fs::create_dir(at(folder)).unwrap();
        for transcript in &transcripts {
            fs::copy(transcript, at(folder).join(transcript.file_name().unwrap())).unwrap();
        }
    }
    for name in ["sticky.toml", "sliding.toml"] {
        fs::write(at(name), "[clear_tool_results]\ntrigger = { tokens = 6000 }\n").unwrap();
    }
    let (from, to) = (root().join("fixtures/sessions/claude_code"), at(".claude/projects/p"));
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    place
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_in_the_documents_does_what_they_say() {
    let (place, mut upstream) = (place(), Upstream::start().await);
    let abridge = Setup::before(&upstream).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(r#"{"model":"gpt-5.4","messages":[{"role":"user","content":"hi"}]}"#)).await;
    let answer = r#"{"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":10}}"#;
    let fields = ["content-type: application/json", "connection: close"];
    upstream.request().await.answer("200 OK", &fields, answer).await;
    assert_eq!(client.reply().await.head.status(), 200);

    let taken = upstream.origin().trim_start_matches("http://").to_owned();
    let (at, free) = (abridge.address().to_string(), ClosedPort::new());
    let free_at = free.url().trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    drop(free);
    let mut used = BTreeSet::new();
    for command in commands() {
        let Some((number, held)) = held(&command) else { panic!("{command}: run it, or say why not") };
        used.insert(number);
        let (output, begins) = match held {
            Elsewhere(reason) => {
                assert!(!reason.is_empty());
                continue;
            }
            // Another program has the address that it looks at.
            Prints(begins) if command.starts_with("abridge doctor") => {
                (shell(&command, place.path(), &taken).output().unwrap(), begins)
            }
            Prints(begins) => (shell(&command, place.path(), &at).output().unwrap(), begins),
            Serves(begins) => (served(shell(&command, place.path(), &free_at), begins), begins),
        };
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(text.lines().any(|line| line.starts_with(begins)), "{command}: {begins:?} is not in\n{text}");
    }
    let unused = (0..COMMANDS.len()).filter(|number| !used.contains(number)).map(|number| COMMANDS[number].0);
    assert_eq!(unused.collect::<Vec<_>>(), [""; 0], "no document has these");
}

/// Runs what serves until it has said a line, or ten seconds, and ends it.
fn served(mut command: Command, begins: &str) -> Output {
    use std::io::{BufRead, BufReader};
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap) {
        said.extend([line.as_bytes(), b"\n"].concat());
        if line.starts_with(begins) || line.contains("abridge: clients: ") {
            break;
        }
    }
    child.kill().unwrap();
    Output { status: child.wait().unwrap(), stdout: said, stderr: Vec::new() }
}

#[test]
fn every_settings_block_in_the_documents_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (file, mut n_blocks) = (folder.path().join("proxy.toml"), 0);
    for (name, text) in documents() {
        for block in text.split("```toml\n").skip(1).map(|block| block.split("```").next().unwrap()) {
            fs::write(&file, block.replace("/etc/abridge/clients", "/dev/null")).unwrap();
            let mut check = Command::new(binary());
            check.args(["check-config", "--config"]).arg(&file).env_clear();
            for variable in block.split("_env = \"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
                let value =
                    if variable.ends_with("_URL") { "postgres://db/abridge".to_owned() } else { "ab".repeat(32) };
                check.env(variable, value);
            }
            let output = check.output().unwrap();
            assert!(output.status.success(), "{name}: {}\n{block}", String::from_utf8_lossy(&output.stderr));
            n_blocks += 1;
        }
    }
    assert!(n_blocks > 10, "{n_blocks}");
}

/// The words of one command in the documents, and where it stands.
fn inline_commands() -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for (name, text) in documents() {
        let codes = text.split('`').skip(1).step_by(2).filter(|code| !code.contains('\n'));
        let commands = codes.filter_map(|code| code.strip_prefix("abridge "));
        for command in commands.filter(|command| command.contains("--")) {
            let own = command.split(" -- ").next().unwrap();
            found.push((name.clone(), own.split_whitespace().map(str::to_owned).collect()));
        }
    }
    found
}

#[test]
fn every_flag_in_the_documents_is_one_of_its_command() {
    let mut helps = BTreeMap::<Vec<String>, String>::new();
    let found = inline_commands();
    assert!(found.len() > 10, "{found:?}");
    for (document, words) in found {
        let is_command =
            |word: &&String| word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-');
        let command: Vec<_> = words.iter().take_while(is_command).cloned().collect();
        let help = helps.entry(command.clone()).or_insert_with(|| {
            let output = Command::new(binary()).args(&command).arg("--help").env_clear().output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        });
        for flag in words.iter().filter(|word| word.starts_with("--") && word.len() > 2) {
            let flag = flag.split(['=', ',', ';', '.', ')']).next().unwrap();
            assert!(help.contains(flag), "{document}: `abridge {}` has no {flag}", command.join(" "));
        }
    }
}
