//! `abridge service`: the definition, and the commands that the system gets.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::binary;

/// A user whose `systemctl` notes how it was called, and ends with the code in the file `code`.
struct User(TempDir);

const UNIT: &str = ".config/systemd/user/abridge.service";

impl User {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let systemctl = folder.path().join("systemctl");
        let script = "#!/bin/sh\necho \"$*\" >>\"$HOME/calls\"\necho \"state: $*\"\nexit $(cat \"$HOME/code\")\n";
        fs::write(&systemctl, script).unwrap();
        fs::set_permissions(systemctl, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path().join("code"), "0").unwrap();
        Self(folder)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    /// The exit code, and what was printed.
    fn service(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .env("HOME", self.0.path())
            .env("PATH", format!("{}:/usr/bin:/bin", self.0.path().display()));
        command.current_dir(self.0.path()).stdin(Stdio::null()).arg("service").args(arguments);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8([&*output.stdout, &*output.stderr].concat()).unwrap())
    }

    /// The calls since the last time.
    fn calls(&self) -> Vec<String> {
        let calls = self.read("calls").lines().map(str::to_owned).collect();
        fs::remove_file(self.path("calls")).ok();
        calls
    }
}

#[test]
fn a_user_unit_is_written_started_and_removed_without_a_rest() {
    let user = User::new();
    fs::write(user.path("my proxy.toml"), "policy.edits = []\n").unwrap();
    let (code, text) = user.service(&["install", "--config", "my proxy.toml", "--listen", "127.0.0.1:9999"]);
    assert_eq!(code, Some(0), "{text}");
    let calls = ["--user daemon-reload", "--user enable abridge.service", "--user restart abridge.service"];
    assert_eq!(user.calls(), calls);
    let config = fs::canonicalize(user.path("my proxy.toml")).unwrap();
    let expected = format!(
        "ExecStart=\"{}\" \"serve\" \"--config\" \"{}\" \"--listen\" \"127.0.0.1:9999\" \"--upstream\" \
         \"anthropic=https://api.anthropic.com\" \"--upstream\" \"chatgpt=https://chatgpt.com/backend-api/codex\"\n",
        binary(),
        config.display()
    );
    assert!(user.read(UNIT).contains(&expected), "{}", user.read(UNIT));

    assert_eq!(user.service(&["status"]), (Some(0), "state: --user --no-pager status abridge.service\n".to_owned()));
    fs::write(user.path("code"), "3").unwrap();
    assert_eq!(user.service(&["status"]).0, Some(1));
    user.calls();
    // It is removed even if it cannot be stopped.
    let (code, text) = user.service(&["uninstall"]);
    assert!(code == Some(0) && text.contains("disable --now abridge.service ended with"), "{text}");
    assert_eq!(user.calls(), ["--user disable --now abridge.service"]);
    assert!(!user.path(UNIT).exists());
    assert_eq!(user.service(&["uninstall"]).0, Some(0));
    assert_eq!(user.calls(), [""; 0]);
}

#[test]
fn a_service_that_does_not_start_is_an_error_that_says_what_is_left() {
    let user = User::new();
    fs::write(user.path("code"), "1").unwrap();
    let (code, text) = user.service(&["install", "--upstream", "http://127.0.0.1:1/v1"]);
    assert_eq!(code, Some(69));
    assert!(
        text.contains("abridge service uninstall removes its definition: systemctl --user daemon-reload ended"),
        "{text}"
    );
    assert!(user.read(UNIT).ends_with("WantedBy=default.target\n"));
    assert!(user.read(UNIT).contains("\"serve\" \"--upstream\" \"http://127.0.0.1:1/v1\"\n"), "{}", user.read(UNIT));
}

#[test]
fn the_unit_is_printed_without_being_written() {
    let user = User::new();
    let (code, text) = user.service(&["install", "--print"]);
    assert!(code == Some(0) && text.starts_with("# Written") && text.contains("chatgpt="), "{text}");
    assert_eq!((user.calls(), user.path(".config").exists()), (Vec::new(), false));
}

#[test]
fn systemd_finds_no_fault_in_the_unit() {
    let user = User::new();
    user.service(&["install"]);
    let mut verify = Command::new("systemd-analyze");
    verify
        .args(["--user", "verify"])
        .arg(user.path(UNIT))
        .env("XDG_RUNTIME_DIR", user.0.path())
        .env("HOME", user.0.path());
    match verify.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && !text.contains(UNIT), "{text}");
        }
        Err(error) => eprintln!("NOT RUN: systemd-analyze: {error}"),
    }
}
