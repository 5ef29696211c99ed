//! Settings and the commands that need no upstream: what is printed, where, and with which exit code.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::support::{Setup, binary};

/// Its own working directory, and an environment with nothing in it.
struct WorkFolder(TempDir);

impl WorkFolder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn with(name: &str, text: impl AsRef<[u8]>) -> Self {
        let work_folder = Self::new();
        fs::write(work_folder.path().join(name), text).unwrap();
        work_folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn abridge(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args).current_dir(self.path()).env_clear().env("HOME", self.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        CommandOutput::of(&mut self.abridge(args))
    }
}

/// What a finished process left behind.
#[derive(Debug)]
struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

impl CommandOutput {
    fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = command.output().unwrap();
        Self { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

const DANGLING: &str = r#"{ "model":"m", "messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}] }"#;

#[test]
fn check_config_prints_the_defaults_without_settings() {
    let ran = WorkFolder::new().run(&["check-config"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.starts_with("preset = \"default\"\nlanguage = \"en\"\n"), "{}", ran.out);
    assert!(ran.out.contains("\nlisten = [\"127.0.0.1:8787\"]\n"), "{}", ran.out);
    assert!(ran.out.contains("goal = \"balanced\"\n") && ran.out.contains("keep_reads = 8\n"), "{}", ran.out);
}

#[test]
fn the_output_of_check_config_is_an_equivalent_file() {
    let work_folder =
        WorkFolder::with("proxy.toml", "[upstream]\nurl = \"http://up:1/v1\"\nheaders = { x-key = \"sk-secret\" }\n");
    let first = work_folder.run(&["check-config"]);
    assert!(!first.out.contains("sk-secret") && first.out.contains("x-key = \"***\""), "{}", first.out);
    let second = WorkFolder::with("proxy.toml", &first.out).run(&["check-config"]);
    assert_eq!((second.code, second.out), (0, first.out));
}

#[test]
fn default_file_environment_and_flags_override_each_other_in_order() {
    let work_folder = WorkFolder::with(
        "proxy.toml",
        "[upstream]\nurl = \"http://file\"\n[log]\nlevel = \"debug\"\nformat = \"json\"\n",
    );
    let url = |command: &mut Command| {
        let ran = CommandOutput::of(command);
        let line = ran.out.lines().find(|line| line.starts_with("url")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{ran:?}"))
    };
    let variable = ("ABRIDGE__UPSTREAM__URL", "http://variable");
    assert_eq!(url(&mut work_folder.abridge(&["check-config"])), "url = \"http://file/\"");
    assert_eq!(url(work_folder.abridge(&["check-config"]).env(variable.0, variable.1)), "url = \"http://variable/\"");
    for args in [["--upstream", "http://flag", "check-config"], ["check-config", "--upstream", "http://flag"]] {
        assert_eq!(url(work_folder.abridge(&args).env(variable.0, variable.1)), "url = \"http://flag/\"");
    }
    let ran = work_folder.run(&[
        "check-config",
        "--log-format",
        "text",
        "--listen",
        "[::1]:1",
        "--listen",
        "unix:s",
        "--dry-run",
    ]);
    for line in ["level = \"debug\"", "format = \"text\"", "    \"[::1]:1\",", "    \"unix:s\",", "dry_run = true"] {
        assert!(ran.out.lines().any(|printed| printed == line), "{line}: {}", ran.out);
    }
}

#[test]
fn errors_in_settings_are_one_line_and_exit_78() {
    let work_folder = WorkFolder::with("other.toml", "\n[server]\nworkers = 1025\n");
    let line = "other.toml:3:11: server.workers: 1025 is out of range; allowed: 0 to 1024\n";
    for args in [
        vec!["--config", "other.toml"],
        vec!["serve", "--config", "other.toml"],
        vec!["check-config", "--config", "other.toml"],
        vec!["rewrite", "-", "--config", "other.toml"],
        vec!["health", "--config", "other.toml"],
    ] {
        let ran = work_folder.run(&args);
        assert_eq!((ran.code, ran.err.as_str(), ran.out.as_str()), (78, line, ""), "{args:?}");
    }
    let ran = work_folder.run(&["check-config", "--config", "absent.toml"]);
    assert_eq!(ran.code, 78);
    assert!(ran.err.starts_with("absent.toml: not found; ") && ran.err.lines().count() == 1, "{}", ran.err);
}

#[test]
fn errors_in_the_environment_name_the_variable() {
    let work_folder = WorkFolder::with("proxy.toml", "[upstream]\napi_key_env = \"GATEWAY_KEY\"\n");
    let ran = work_folder.run(&["check-config"]);
    let line = "GATEWAY_KEY: not set; upstream.api_key_env names it for the upstream's key\n";
    assert_eq!((ran.code, ran.err.as_str()), (78, line));
    let ran = CommandOutput::of(work_folder.abridge(&["check-config"]).env("GATEWAY_KEY", "sk-secret"));
    assert_eq!(ran.code, 0);
    assert!(!ran.out.contains("sk-secret"));
    let ran = CommandOutput::of(work_folder.abridge(&["check-config"]).env("ABRIDGE__DRY_RUN", "perhaps"));
    assert_eq!(
        (ran.code, ran.err.as_str()),
        (78, "ABRIDGE__DRY_RUN: dry_run must be true or false, and is a string\n")
    );
}

#[test]
fn errors_on_the_command_line_exit_64() {
    let work_folder = WorkFolder::new();
    for args in [
        vec!["--lisen", "x"],
        vec!["serv"],
        vec!["rewrite"],
        vec!["--log-format", "xml"],
        vec!["--listen", "nowhere", "check-config"],
        vec!["check-config", "--upstream", "nowhere"],
        vec!["--record", "folder", "check-config"],
    ] {
        let ran = work_folder.run(&args);
        assert_eq!((ran.code, ran.out.as_str()), (64, ""), "{args:?}: {}", ran.err);
    }
    let ran = work_folder.run(&["check-config", "--listen", "nowhere"]);
    assert!(ran.err.starts_with("--listen: \"nowhere\" is not an address: "), "{}", ran.err);
}

#[test]
fn help_and_version_go_to_standard_output() {
    let work_folder = WorkFolder::new();
    for args in [vec!["--help"], vec!["--version"], vec!["serve", "--help"], vec!["rewrite", "-h"]] {
        let ran = work_folder.run(&args);
        assert_eq!((ran.code, ran.err.as_str(), ran.out.is_empty()), (0, "", false), "{args:?}");
    }
}

#[test]
fn rewrite_prints_the_body_and_nothing_else() {
    let whole = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
    let work_folder = WorkFolder::with("whole.json", whole);
    let ran = work_folder.run(&["rewrite", "whole.json"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, whole, ""));

    fs::write(work_folder.path().join("dangling.json"), DANGLING).unwrap();
    let ran = work_folder.run(&["rewrite", "dangling.json", "--report"]);
    let (kept, _) = DANGLING.split_at(DANGLING.len() - "] }".len());
    assert_eq!(ran.code, 0);
    assert!(
        ran.out.starts_with(kept) && ran.out.ends_with("] }") && ran.out.contains("\"tool_call_id\":\"c1\""),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("\"messages_after\": 3"), "{}", ran.err);
}

#[test]
fn rewrite_reads_standard_input_and_applies_the_settings() {
    let work_folder = WorkFolder::with("proxy.toml", "[patch_tool_calls]\ntemplate = \"nothing from {tool_name}\"\n");
    let mut child =
        work_folder.abridge(&["rewrite", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(DANGLING.as_bytes()).unwrap();
    let out = text(child.wait_with_output().unwrap().stdout);
    assert!(out.contains("nothing from f"), "{out}");

    fs::write(work_folder.path().join("dangling.json"), DANGLING).unwrap();
    let ran = CommandOutput::of(work_folder.abridge(&["rewrite", "dangling.json"]).env("ABRIDGE__POLICY__EDITS", "[]"));
    assert_eq!((ran.code, ran.out.as_str()), (0, DANGLING));
}

#[test]
fn rewrite_prints_an_invalid_body_unchanged_with_the_reason() {
    for body in ["not JSON\n", "{\"messages\":1}", ""] {
        let ran = WorkFolder::with("body", body).run(&["rewrite", "body"]);
        assert_eq!((ran.code, ran.out.as_str()), (0, body));
        assert!(ran.err.starts_with("abridge: printed unchanged: ") && ran.err.lines().count() == 1, "{}", ran.err);
    }
    let ran = WorkFolder::new().run(&["rewrite", "absent.json"]);
    assert_eq!((ran.code, ran.out.as_str()), (66, ""));
    assert!(ran.err.starts_with("abridge: absent.json cannot be read: "), "{}", ran.err);
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let work_folder = WorkFolder::with("long.json", vec![b' '; 4 << 20]);
    let mut child =
        work_folder.abridge(&["rewrite", "long.json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let err = text(output.stderr);
    assert!(!err.contains("roken pipe") && !err.contains("panic"), "{err}");
}

/// Answers one connection with these bytes, and gives back what was asked.
fn answer(mut stream: impl Read + Write, with: &str) -> String {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        asked.push(byte[0]);
    }
    stream.write_all(with.as_bytes()).unwrap();
    text(asked)
}

#[test]
fn health_asks_the_first_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let work_folder =
        WorkFolder::with("proxy.toml", format!("[server]\nlisten = [\"0.0.0.0:{port}\", \"127.0.0.1:1\"]\n"));
    for (status, code) in [("200 OK", 0), ("503 Service Unavailable", 1), ("2000 x", 1)] {
        let listener = listener.try_clone().unwrap();
        let server = thread::spawn(move || {
            answer(listener.accept().unwrap().0, &format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))
        });
        assert_eq!(work_folder.run(&["health"]).code, code, "{status}");
        assert!(server.join().unwrap().starts_with("GET /abridge/healthz HTTP/1.1\r\n"));
    }
    drop(listener);
    let ran = work_folder.run(&["health"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.starts_with(&format!("abridge: nothing listens on 127.0.0.1:{port}; ")), "{}", ran.err);
}

#[test]
fn health_asks_unix_sockets_and_urls() {
    let work_folder = WorkFolder::new();
    let listener = UnixListener::bind(work_folder.path().join("abridge.sock")).unwrap();
    let server = thread::spawn(move || answer(listener.accept().unwrap().0, "HTTP/1.1 200 OK\r\n\r\n"));
    assert_eq!(work_folder.run(&["health", "--listen", "unix:abridge.sock"]).code, 0);
    server.join().unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || answer(listener.accept().unwrap().0, "HTTP/1.1 200 OK\r\n\r\n"));
    assert_eq!(work_folder.run(&["health", "--at", &url]).code, 0);
    server.join().unwrap();

    for (args, why) in [
        (
            ["--at", "https://x"],
            "abridge: \"https://x\" is not the address of a proxy; write http://host:port or unix:/path\n",
        ),
        (
            ["--listen", "127.0.0.1:0"],
            "abridge: the port in server.listen is 0, so the system chooses it; name the real one with --at\n",
        ),
    ] {
        let ran = work_folder.run(&[&["health"], args.as_slice()].concat());
        assert_eq!((ran.code, ran.err.as_str()), (1, why));
    }
}

#[test]
fn replay_exits_0_only_if_all_exchanges_are_the_same() {
    let work_folder = WorkFolder::with("proxy.toml", "");
    let folder = work_folder.path().join("exchanges/1");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("request.json"), DANGLING).unwrap();
    fs::write(folder.join("rewritten.json"), work_folder.run(&["rewrite", "exchanges/1/request.json"]).out).unwrap();
    fs::write(folder.join("meta.json"), r#"{"path":"/v1/chat/completions","status":200}"#).unwrap();

    let ran = work_folder.run(&["replay", "exchanges"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    assert!(ran.out.contains("1 same, 0 different"), "{}", ran.out);
    let ran = CommandOutput::of(work_folder.abridge(&["replay", "exchanges", "--json"]).env("ABRIDGE__LANGUAGE", "zh"));
    assert_eq!(ran.code, 1);
    assert!(ran.out.contains("\"different\": 1"), "{}", ran.out);

    fs::write(folder.join("policy.toml"), "").unwrap();
    fs::write(work_folder.path().join("zh.toml"), "language = \"zh\"").unwrap();
    let variable = ("ABRIDGE__LANGUAGE", "zh");
    assert_eq!(CommandOutput::of(work_folder.abridge(&["replay", "exchanges"]).env(variable.0, variable.1)).code, 0);
    assert_eq!(work_folder.run(&["replay", "exchanges", "--config", "zh.toml"]).code, 1);
    assert_eq!(work_folder.run(&["replay"]).code, 64);
}

#[test]
fn unavailable_resources_exit_69_and_unusable_files_in_settings_78() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = WorkFolder::new().run(&["--listen", &address]);
    assert_eq!(ran.code, 69, "{}", ran.err);
    assert!(ran.err.starts_with(&format!("abridge: cannot listen on {address}; ")), "{}", ran.err);

    for text in ["[tls]\ncert = \"absent\"\nkey = \"absent\"\n", "[upstream]\nca_file = \"absent\"\n"] {
        let ran = WorkFolder::with("proxy.toml", format!("{text}[server]\nlisten = \"127.0.0.1:0\"\n")).run(&["serve"]);
        assert_eq!((ran.code, ran.err.lines().count()), (78, 1), "{}", ran.err);
    }
    let ran = CommandOutput::of(WorkFolder::new().abridge(&["check-config"]).env("HTTPS_PROXY", "ftp://proxy"));
    assert_eq!(ran.code, 78, "{}", ran.err);
}

#[test]
fn what_cannot_hold_in_a_fleet_is_refused() {
    let fleet = "[store]\nengine = \"postgres\"\nurl_env = \"URL\"\n";
    let check = |text: &str| {
        let work_folder = WorkFolder::with("proxy.toml", text);
        CommandOutput::of(
            work_folder.abridge(&["check-config"]).env("URL", "postgres://db/x").env("KEY", "0a".repeat(32)),
        )
    };
    let redis = fleet.replace("postgres", "redis");
    let confirmed = check(&format!("recall.public_url = \"http://a\"\n{redis}replicas_acknowledge = 8"));
    assert_eq!(confirmed.code, 0, "{}", confirmed.err);
    let good = check(&format!("recall.public_url = \"http://a\"\n{fleet}secret_env = \"KEY\"\nseal = true"));
    assert_eq!(good.code, 0, "{}", good.err);
    assert!(!good.out.contains("0a0a0a0a") && !good.out.contains("postgres://"), "{}", good.out);
    for (text, said) in [
        (fleet.to_owned(), "recall.public_url"),
        ("recall.public_url = \"http://a\"\n[store]\nengine = \"postgres\"".to_owned(), "url_env"),
        (format!("recall = {{ public_url = \"http://a\", via = \"file\" }}\n{fleet}"), "recall.via"),
        (format!("recall = {{ public_url = \"http://a\", export_dir = \"/x\" }}\n{fleet}"), "recall.export_dir"),
        (format!("recall.public_url = \"http://a\"\n{fleet}namespace = \"A;\""), "store.namespace"),
        (format!("recall.public_url = \"http://a\"\n{fleet}old_secrets_env = \"KEY\""), "store.old_secrets_env"),
        (format!("recall.public_url = \"http://a\"\n{fleet}seal = true"), "store.secret_env"),
        ("store.seal = true".to_owned(), "store.engine is \"file\""),
        (format!("recall.public_url = \"http://a\"\n{fleet}secret_env = \"URL\""), "URL"),
        (format!("recall.public_url = \"http://a\"\n{fleet}replicas_acknowledge = 1"), "store.replicas_acknowledge"),
        (format!("recall.public_url = \"http://a\"\n{redis}replicas_acknowledge = 9"), "store.replicas_acknowledge"),
        (redis.clone(), "recall.public_url"),
        ("[store]\nurl_env = \"URL\"".to_owned(), "store.url_env"),
        ("[store]\nengine = \"sqlite\"".to_owned(), "postgres"),
    ] {
        let refused = check(&text);
        assert_eq!(refused.code, 78, "{text}");
        assert!(refused.err.contains(said) && refused.err.lines().count() == 1, "{text}: {}", refused.err);
        assert!(!refused.err.contains("postgres://db"), "{}", refused.err);
    }
}

#[test]
fn a_limit_below_the_longest_notice_is_refused_with_the_least_one() {
    let en = "\n[2147483648 of 2147483648 bytes left out here.]\n".len();
    let zh = "\n[此处省略 2147483648 字节，共 2147483648 字节。]\n".len();
    let way =
        " Read it with GET http://127.0.0.1:8787/abridge/recall/ (?lines=1-200, ?grep=TEXT, ?offset=0&limit=8000).";
    let http = en + way.len() + 26;
    let file = en + " Read it with read_file from /x/.txt.".len() + 26;
    let key = "truncate_tool_results.max_bytes";
    for (settings, key, least) in [
        ("", "tools.bash.truncate.max_bytes", http),
        ("recall.via = 'none'\n", key, en),
        ("recall.via = 'none'\nlanguage = 'zh'\n", key, zh),
        ("truncate_tool_results.notice = '{tool_name}'\n", key, 64),
        ("server.listen = '127.0.0.1:0'\n", key, http + 1),
        ("recall = { via = 'file', export_dir = '/x' }\n", key, file),
    ] {
        let with = |n: usize| WorkFolder::with("proxy.toml", format!("{settings}{key} = {n}"));
        assert_eq!(with(least).run(&["check-config"]).code, 0, "{settings}");
        let location = format!("proxy.toml:{}:{}: {key}", settings.lines().count() + 1, key.len() + 4);
        let allowed =
            format!("{} is out of range; allowed: {least} or more; the length of the longest notice", least - 1);
        for command in ["check-config", "serve"] {
            let ran = with(least - 1).run(&[command]);
            assert_eq!(ran.code, 78, "{settings}");
            assert!(ran.err.starts_with(&format!("{location}: {allowed}")), "{}", ran.err);
        }
    }
}

#[tokio::test]
async fn a_variable_that_looks_like_a_setting_is_named_with_the_right_spelling() {
    const SENTENCE: &str = "ABRIDGE_DRY_RUN is not a setting, and has no effect; did you mean ABRIDGE__DRY_RUN?";
    let work_folder = WorkFolder::with("proxy.toml", "upstream.api_key_env = \"ABRIDGE_STORE_PATH\"\n");
    let mut command = work_folder.abridge(&["check-config"]);
    command.env("ABRIDGE_DRY_RUN", "true").env("ABRIDGE_STORE_PATH", "key").env("ABRIDGE_CORPUS", "x");
    let ran = CommandOutput::of(&mut command);
    assert_eq!((ran.code, ran.err), (0, format!("abridge: warning: {SENTENCE}\n")));
    assert!(ran.out.contains("\ndry_run = false\n"), "{}", ran.out);
    let mut command = work_folder.abridge(&["run", "--quiet", "--", "true"]);
    let ran = CommandOutput::of(command.env("ABRIDGE_DRY_RUN", "true").env("ABRIDGE_STORE_PATH", "key"));
    assert_eq!((ran.code, ran.err), (0, format!("abridge: warning: {SENTENCE}\n")));
    let setup = Setup::to("http://127.0.0.1:9/v1").environment("ABRIDGE_DRY_RUN", "true");
    let abridge = setup.environment("ABRIDGE_ADMIN_TOKEN", "x").start().await;
    let line = abridge.says(SENTENCE, 0).await;
    assert!(line.contains(" WARN "), "{line}");
}

#[test]
fn help_has_examples_first_and_names_flags_only_where_they_act() {
    let work_folder = WorkFolder::new();
    for (command, named, unnamed) in [
        (&["demo"][..], "--keep", "--config"),
        (&["show"], "--listen", "--upstream"),
        (&["store", "ls"], "--config", "--dry-run"),
        (&["check-config"], "--dry-run", "--record"),
    ] {
        let help = work_folder.run(&[command, &["--help"]].concat()).out;
        assert!(help.contains(named) && !help.contains(unnamed), "{help}");
        let (examples, options) = (help.find("Examples:"), help.find("Options:"));
        assert!(options.is_some() && (examples < options), "{help}");
    }
    // They are accepted all the same.
    let ran = work_folder.run(&["store", "ls", "--upstream", "http://127.0.0.1:9/v1"]);
    assert_ne!(ran.code, 64, "{}", ran.err);
}

#[test]
fn help_of_a_command_is_printed_by_help_too() {
    let work_folder = WorkFolder::new();
    for command in [&["serve"][..], &["diff"], &["store", "ls"]] {
        let ran = work_folder.run(&[&["help"], command].concat());
        assert_eq!((ran.code, &*ran.err), (0, ""));
        assert_eq!(ran.out, work_folder.run(&[command, &["--help"]].concat()).out);
    }
    assert!(work_folder.run(&["help"]).out.contains("Commands:"));
}

#[test]
fn a_command_that_changes_the_store_takes_no_dry_run() {
    for arguments in [["--dry-run", "store", "sweep"], ["store", "compact", "--dry-run"]] {
        let ran = WorkFolder::new().run(&arguments);
        assert_eq!((ran.code, &*ran.out), (64, ""));
        assert!(ran.err.contains("--dry-run is about requests"), "{}", ran.err);
    }
}

#[test]
fn settings_are_explained_and_shells_complete() {
    let run = |args: &[&str]| {
        let output = Command::new(binary()).args(args).output().unwrap();
        (output.status.code(), [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()))
    };
    let (code, [said, _]) = run(&["explain", "server.max_body"]);
    assert!(code == Some(0) && said.starts_with("[server]\n# ") && said.contains("max_body = \"64MiB\""), "{said}");
    let (code, [_, said]) = run(&["explain", "sever.max_body"]);
    assert_eq!(
        (code, &*said),
        (Some(64), "abridge: no setting is called \"sever.max_body\"; abridge explain prints all names\n")
    );
    let (_, [schema, _]) = run(&["explain", "--schema"]);
    assert!(schema.starts_with("{\n  \"$schema\"") && schema.contains("\"max_body\""));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, [script, _]) = run(&["completions", shell]);
        assert!(code == Some(0) && script.contains("simulate") && script.contains("dry-run"), "{shell}");
    }
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    assert_eq!(run(&["man", made.to_str().unwrap()]).0, Some(0));
    let page = fs::read_to_string(made.join("abridge-run.1")).unwrap();
    assert!(page.contains(".TH abridge-run 1") && page.contains("command"), "{page}");
}
