//! `abridge setup`: the files of clients, before, after, and taken back.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::{binary, minding_modes};

mod upstreams;

/// A user with a home.
struct User(TempDir);

/// A client with settings, and what is to become of them.
struct Case {
    client: &'static str,
    path: &'static str,
    before: &'static str,
    after: &'static str,
}

const CASES: [Case; 12] = [
    Case {
        client: "codex",
        path: ".codex/config.toml",
        before: "# mine\nmodel = \"gpt-5\"   # the best\n\n[tui]\ntheme = 'x'\n",
        after: "openai_base_url = \"http://127.0.0.1:8787/v1\"\n# mine\nmodel = \"gpt-5\"   # the best\n\n[tui]\ntheme = 'x'\n",
    },
    Case {
        client: "claude-code",
        path: ".claude/settings.json",
        before: "{\n  \"model\": \"opus\",\n  \"env\": {\n    \"X\": 1\n  }\n}",
        after: "{\n  \"model\": \"opus\",\n  \"env\": {\n    \"ANTHROPIC_BASE_URL\": \"http://127.0.0.1:8787\",\n    \"X\": 1\n  }\n}",
    },
    Case {
        client: "opencode",
        path: ".config/opencode/opencode.jsonc",
        before: "{\n  // mine\n  \"provider\": { \"openai\": { \"options\": { \"baseURL\": \"https://gate\" } }, },\n}\n",
        after: "{\n  // mine\n  \"provider\": { \"anthropic\": { \"options\": { \"baseURL\": \"http://127.0.0.1:8787/v1\" } }, \
                \"openai\": { \"options\": { \"baseURL\": \"http://127.0.0.1:8787/v1\" } }, },\n}\n",
    },
    Case {
        client: "aider",
        path: ".aider.conf.yml",
        before: "# mine\nmodel: openai/gpt-5\n",
        after: "# mine\nmodel: openai/gpt-5\nopenai-api-base: http://127.0.0.1:8787/v1\n",
    },
    Case {
        client: "goose",
        path: ".config/goose/config.yaml",
        before: "GOOSE_PROVIDER: openai\nOPENAI_HOST: https://gate # old\nextensions:\n  a: {}",
        after: "GOOSE_PROVIDER: openai\nOPENAI_HOST: http://127.0.0.1:8787 # old\nextensions:\n  a: {}\n\
                ANTHROPIC_HOST: http://127.0.0.1:8787\n",
    },
    Case {
        client: "continue",
        path: ".continue/config.yaml",
        before: "models:\n  - name: A\n    provider: openai\n    model: gpt-5\n",
        after: "models:\n  - name: A\n    provider: openai\n    apiBase: http://127.0.0.1:8787/v1\n    model: gpt-5\n",
    },
    Case {
        client: "codex",
        path: ".codex/config.toml",
        before: "\u{feff}model = 'x'\r\n",
        after: "\u{feff}openai_base_url = \"http://127.0.0.1:8787/v1\"\nmodel = 'x'\r\n",
    },
    Case {
        client: "aider",
        path: ".aider.conf.yml",
        before: "\u{feff}openai-api-base: \"https://gate\"\r\na: |\r\n  openai-api-base: x\r\n",
        after: "\u{feff}openai-api-base: http://127.0.0.1:8787/v1\r\na: |\r\n  openai-api-base: x\r\n",
    },
    Case {
        client: "shell",
        path: ".zshrc",
        before: "alias x=y",
        after: "alias x=y\n# abridge: base URLs for clients of the APIs of OpenAI and Anthropic\n\
                export OPENAI_BASE_URL=http://127.0.0.1:8787/v1 OPENAI_API_BASE=http://127.0.0.1:8787/v1 \
                ANTHROPIC_BASE_URL=http://127.0.0.1:8787\n",
    },
    Case {
        client: "claude-code",
        path: ".claude/settings.json",
        before: "{}",
        after: "{\n  \"env\": {\n    \"ANTHROPIC_BASE_URL\": \"http://127.0.0.1:8787\"\n  }\n}",
    },
    Case {
        client: "claude-code",
        path: ".claude/settings.json",
        before: "{\"env\":{\"CLAUDE_CODE_USE_VERTEX\":\"1\"}}",
        after: "{\"env\":{\"ANTHROPIC_VERTEX_BASE_URL\": \"http://127.0.0.1:8787/v1\",\"CLAUDE_CODE_USE_VERTEX\":\"1\"}}",
    },
    Case {
        client: "claude-code",
        path: ".claude/settings.json",
        before: "{\n  \"env\": {\n    \"CLAUDE_CODE_USE_FOUNDRY\": \"1\",\n    \"ANTHROPIC_FOUNDRY_RESOURCE\": \"ours\"\n  }\n}\n",
        after: "{\n  \"env\": {\n    \"ANTHROPIC_FOUNDRY_BASE_URL\": \"http://127.0.0.1:8787/anthropic\",\n    \
                \"CLAUDE_CODE_USE_FOUNDRY\": \"1\",\n    \"ANTHROPIC_FOUNDRY_RESOURCE\": \"\"\n  }\n}\n",
    },
];

// === impl User ===

impl User {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with(case: &Case) -> Self {
        let user = Self::new();
        user.write(case.path, case.before);
        user
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.0.path()).env("SHELL", "/bin/zsh");
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// The exit code, and what was printed.
    fn setup(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.command(binary()).arg("setup").args(arguments).output().unwrap();
        printed(&output)
    }

    /// Answers the question on a terminal.
    fn answer(&self, arguments: &str, answer: &str) -> String {
        let mut script = self.command("script");
        script.args(["-qec", &format!("{} setup {arguments}", binary()), "/dev/null"]).env("SHELL", "/bin/sh");
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut keys = child.stdin.take().unwrap();
        keys.write_all(answer.as_bytes()).unwrap();
        let shown = child.wait_with_output().unwrap().stdout;
        drop(keys);
        String::from_utf8(shown).unwrap()
    }

    /// All files of a folder, by name.
    fn files(&self, folder: &Path) -> Vec<String> {
        let names = fs::read_dir(self.0.path().join(folder)).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn printed(output: &Output) -> (Option<i32>, String) {
    let text = [&*output.stdout, &*output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn each_client_is_shown_a_diff_written_once_and_taken_back_to_the_byte() {
    for case @ Case { client, path, before, after } in &CASES {
        let user = User::with(case);
        let folder = Path::new(path).parent().unwrap();
        let only = user.files(folder);
        let (code, text) = user.setup(&[client]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("\n+ ") && text.contains("--yes writes it"), "{text}");
        assert_eq!((&*user.read(path), user.files(folder)), (*before, only.clone()), "nothing is written unasked");

        let (code, text) = user.setup(&["--yes", client]);
        assert_eq!((code, &*user.read(path)), (Some(0), *after), "{text}");
        assert!(text.contains("abridge serve --upstream"), "{text}");
        assert_eq!(user.read(&format!("{path}.abridge-backup")), *before);
        let (code, text) = user.setup(&["--yes", client]);
        assert_eq!((code, &*user.read(path)), (Some(0), *after), "{text}");
        assert!(text.contains("already leads to http://127.0.0.1:8787"), "{text}");

        assert_eq!(user.setup(&[client, "--undo"]).0, Some(1));
        assert_eq!(user.read(path), *after);
        let (code, text) = user.setup(&[client, "--undo", "--yes"]);
        assert_eq!((code, &*user.read(path), user.files(folder)), (Some(0), *before, only), "{text}");
        let (code, text) = user.setup(&[client, "--undo", "--yes"]);
        assert_eq!((code, &*user.read(path)), (Some(0), *before), "{text}");
    }
}

#[test]
fn a_file_that_was_not_there_is_made_and_removed_again() {
    for Case { client, path, .. } in CASES.iter().filter(|case| case.client != "continue") {
        let user = User::new();
        let path = &*path.replace("jsonc", "json");
        let (code, text) = user.setup(&["--yes", client]);
        assert_eq!(code, Some(0), "{text}");
        assert!(user.read(path).contains("http://127.0.0.1:8787"), "{client}");
        assert_eq!(user.setup(&["--yes", "--undo", client]).0, Some(0));
        assert!(!user.path(path).exists(), "{client}");
    }
}

#[test]
fn what_was_changed_since_stays_and_only_our_change_is_taken_back() {
    let case = &CASES[0];
    let user = User::with(case);
    user.setup(&["codex", "--yes"]);
    user.write(case.path, &format!("{}[new]\n", case.after.replace("the best", "good")));
    assert_eq!(user.setup(&["codex", "--undo", "--yes"]).0, Some(0));
    assert_eq!(user.read(case.path), format!("{}[new]\n", case.before.replace("the best", "good")));

    // Claude Code writes its settings as JavaScript does.
    user.write(CASES[1].path, "{\n  \"model\": \"opus\"\n}\n");
    user.setup(&["claude", "--yes"]);
    user.write(CASES[1].path, &user.read(CASES[1].path).replace("\"opus\"\n}\n", "\"sonnet\",\n  \"x\": []\n}"));
    assert_eq!(user.setup(&["claude", "--undo", "--yes"]).0, Some(0));
    assert_eq!(user.read(CASES[1].path), "{\n  \"model\": \"sonnet\",\n  \"x\": []\n}");

    user.setup(&["codex", "--yes"]);
    user.write(case.path, "model = 'other'\n");
    let (code, text) = user.setup(&["codex", "--undo", "--yes"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("was changed since where abridge had set it; ") && text.contains("abridge-backup"), "{text}");
    assert_eq!(user.read(case.path), "model = 'other'\n");
}

#[test]
fn a_linked_file_stays_a_link_and_the_mode_is_kept() {
    let case = &CASES[1];
    let user = User::new();
    user.write("dotfiles/claude.json", case.before);
    fs::set_permissions(user.path("dotfiles/claude.json"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(user.path(".claude")).unwrap();
    symlink("../dotfiles/claude.json", user.path(case.path)).unwrap();
    user.setup(&["claude", "--yes"]);
    assert_eq!(user.read("dotfiles/claude.json"), case.after);
    assert!(fs::symlink_metadata(user.path(case.path)).unwrap().is_symlink());
    for path in ["dotfiles/claude.json", ".claude/settings.json.abridge-backup"] {
        assert_eq!(fs::metadata(user.path(path)).unwrap().mode() & 0o777, 0o600, "{path}");
    }
    user.setup(&["claude", "--yes", "--undo"]);
    assert_eq!(user.read("dotfiles/claude.json"), case.before);
    assert!(fs::symlink_metadata(user.path(case.path)).unwrap().is_symlink());
    assert_eq!(user.files(Path::new("dotfiles")), ["claude.json"]);

    // A link that leads nowhere yet.
    fs::remove_file(user.path("dotfiles/claude.json")).unwrap();
    user.setup(&["claude", "--yes"]);
    assert!(user.read("dotfiles/claude.json").contains("http://127.0.0.1:8787"));
    user.setup(&["claude", "--yes", "--undo"]);
    assert!(fs::symlink_metadata(user.path(case.path)).unwrap().is_symlink());
    assert_eq!(user.files(Path::new("dotfiles")), [""; 0]);
}

#[test]
fn what_cannot_be_written_is_written_when_it_can_be() {
    let case = &CASES[0];
    let user = User::with(case);
    let setup = || {
        let program = [minding_modes(), &[binary()]].concat();
        printed(&user.command(program[0]).args(&program[1..]).args(["setup", "codex", "--yes"]).output().unwrap())
    };
    fs::set_permissions(user.path(case.path), fs::Permissions::from_mode(0o400)).unwrap();
    let (code, text) = setup();
    assert!(code == Some(1) && text.contains("Permission denied"), "{text}");
    assert_eq!(user.files(Path::new(".codex")), ["config.toml"]);
    fs::set_permissions(user.path(case.path), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!((setup().0, &*user.read(case.path)), (Some(0), case.after));
}

#[test]
fn on_a_terminal_the_answer_decides() {
    let case = &CASES[0];
    let user = User::with(case);
    let shown = user.answer("codex", "n\n");
    assert!(shown.contains("Write this? [y/N]") && shown.contains("not changed"), "{shown}");
    assert_eq!(user.read(case.path), case.before);
    user.answer("codex", "y\n");
    assert_eq!(user.read(case.path), case.after);
    user.answer("codex --undo", "y\n");
    assert_eq!(user.read(case.path), case.before);
}

#[test]
fn all_finds_the_clients_that_are_there() {
    let user = User::new();
    assert_eq!(user.setup(&["--all"]), (Some(0), "no settings of a known client were found\n".to_owned()));
    for case in [&CASES[0], &CASES[4]] {
        user.write(case.path, case.before);
    }
    fs::create_dir_all(user.path(".vscode/extensions/saoudrizwan.claude-dev-3.0.0")).unwrap();
    let (code, text) = user.setup(&["--all", "--yes", "--url", "http://10.0.0.1:1/"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(user.read(CASES[0].path), CASES[0].after.replace("127.0.0.1:8787", "10.0.0.1:1"));
    assert_eq!(user.read(CASES[4].path), CASES[4].after.replace("127.0.0.1:8787", "10.0.0.1:1"));
    assert!(text.contains("cline: its settings are not in a file") && text.contains("http://10.0.0.1:1/v1"), "{text}");
    assert!(!text.contains("aider") && !text.contains("shell:"), "{text}");
    // Another address is set only when the first one was taken back.
    let (code, text) = user.setup(&["codex", "--yes"]);
    assert!(code == Some(1) && text.contains("take that back with --undo first"), "{text}");
    for case in [&CASES[0], &CASES[4]] {
        assert_eq!(user.setup(&["--yes", "--undo", case.client]).0, Some(0), "{}", case.client);
        assert_eq!(user.read(case.path), case.before);
    }
}

#[test]
fn settings_in_an_unknown_form_are_left_and_the_error_says_what_to_do() {
    let user = User::new();
    user.write(".codex/config.toml", "model_provider = 'ollama'\n");
    user.write(".claude/settings.json", "{ broken");
    user.write(".config/goose/config.yaml", "{a: 1}\n");
    let (code, text) = user.setup(&["--yes", "codex", "claude-code", "goose", "continue"]);
    assert_eq!(code, Some(1));
    for line in [
        "abridge: codex: its file has nothing that can be changed safely; set openai_base_url, or base_url of the provider, to",
        "abridge: claude-code: its file has nothing that can be changed safely",
        "abridge: goose: its file has nothing that can be changed safely",
        "abridge: continue: its file has nothing that can be changed safely",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(user.read(".codex/config.toml"), "model_provider = 'ollama'\n");
    assert_eq!(user.setup(&[]).0, Some(64));
}

#[test]
fn a_dry_run_never_writes() {
    let case = &CASES[0];
    let user = User::with(case);
    for arguments in [&["codex", "--yes", "--dry-run"][..], &["--dry-run", "--all", "-y"]] {
        let (code, text) = user.setup(arguments);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("\n+ openai_base_url") && text.contains("not changed, as this is a dry run"), "{text}");
        assert_eq!(
            (&*user.read(case.path), user.files(Path::new(".codex"))),
            (case.before, vec!["config.toml".to_owned()])
        );
    }
    user.setup(&["codex", "--yes"]);
    let (code, text) = user.setup(&["codex", "--undo", "--yes", "--dry-run"]);
    assert_eq!((code, &*user.read(case.path)), (Some(0), case.after), "{text}");
}

#[test]
fn clients_that_are_set_up_by_hand_are_named_with_what_to_do() {
    let user = User::new();
    for folder in [
        ".config/crush",
        ".gemini",
        ".config/zed",
        ".cursor",
        ".vscode/extensions/rooveterinaryinc.roo-cline-3.1.0",
        ".qwen",
    ] {
        fs::create_dir_all(user.path(folder)).unwrap();
    }
    let (code, text) = user.setup(&["--all", "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    for (client, setting) in [
        ("crush", "\"base_url\": \"http://127.0.0.1:8787/v1\""),
        ("gemini-cli", "GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8787"),
        ("gemini-cli", "--upstream google=https://generativelanguage.googleapis.com"),
        ("zed", "\"api_url\": \"http://127.0.0.1:8787/v1\""),
        ("cursor", "Override OpenAI Base URL"),
        ("roo", "API Provider \"OpenAI Compatible\" with Base URL http://127.0.0.1:8787/v1"),
        ("qwen-code", "http://127.0.0.1:8787/v1 below \"openai\""),
    ] {
        let start = text.find(&format!("{client}: ")).unwrap_or_else(|| panic!("{client}: {text}"));
        assert!(text.get(start..).unwrap().contains(setting), "{client}: {text}");
        assert!(user.setup(&[client]).1.contains(setting), "{client}");
        assert!(user.setup(&[client, "--undo"]).1.contains("by hand"), "{client}");
    }
}
