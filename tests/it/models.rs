//! `abridge models`: context windows and encodings, and their sources.

use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use serde::Deserialize;

use crate::support::{ClosedPort, Upstream, binary};

#[derive(Debug, Deserialize)]
struct Listing {
    models: Vec<Entry>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Entry {
    pattern: String,
    window: Option<usize>,
    encoding: Option<String>,
    factor: Option<f64>,
    alias_of: Option<String>,
    source: String,
}

const SETTINGS: &str = r#"
[[models]]
match = "house-*"
context_window = 16000
[[models]]
match = "gpt-5.5"
encoding = "cl100k_base"
[[models]]
match = "our-*"
alias_of = "gpt-5.5"
"#;

/// Runs the command beside the test, which plays the upstream.
fn models(url: &str, lines: &str, args: &[&str]) -> JoinHandle<String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("proxy.toml"), format!("upstream.url = {url:?}\n{lines}")).unwrap();
    let mut command = Command::new(binary());
    command.arg("models").args(args).current_dir(folder.path()).env_clear().stdin(Stdio::null());
    thread::spawn(move || {
        let _folder = folder;
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    })
}

/// The same, where the upstream lists these models.
async fn listed(upstream: &mut Upstream, args: &[&str]) -> String {
    let printed = models(&upstream.url(), SETTINGS, args);
    let mut call = upstream.request().await;
    assert_eq!(call.head.start, "GET /v1/models HTTP/1.1");
    assert_eq!(call.head.get("authorization"), None);
    call.json(
        r#"{"data":[{"id":"their\u001bs","context_length":32000},{"id":"house-1","context_length":9},{"id":"gpt-4o","max_model_len":64000}]}"#,
    )
    .await;
    printed.join().unwrap()
}

fn row(text: &str, name: &str) -> Vec<String> {
    let row =
        text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{name}: {text}"));
    row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_table_has_settings_upstream_and_built_in_models_with_their_source() {
    let mut upstream = Upstream::start().await;
    let text = listed(&mut upstream, &[]).await;
    assert_eq!(row(&text, "model"), ["model", "window", "encoding", "factor", "source"]);
    assert_eq!(row(&text, "house-*"), ["house-*", "16,000", "settings"]);
    assert_eq!(row(&text, r"their\u{1b}s"), [r"their\u{1b}s", "32,000", "upstream"]);
    assert_eq!(row(&text, "our-*"), ["our-*", "settings, alias of gpt-5.5"]);
    assert_eq!(row(&text, "claude-opus-4.8"), ["claude-opus-4.8", "1,000,000", "1.55", "built in"]);
    assert_eq!(row(&text, "o3-mini"), ["o3-mini", "200,000", "o200k_base", "built in"]);
    assert!(text.ends_with("answers 200, with 3 windows\n"), "{text}");

    let Listing { models } = serde_json::from_str(&listed(&mut upstream, &["--json"]).await).unwrap();
    for (pattern, window, encoding, factor, alias_of, source) in [
        ("house-*", Some(16000), None, None, None, "settings"),
        ("our-*", None, None, None, Some("gpt-5.5"), "settings"),
        ("house-1", Some(9), None, None, None, "upstream"),
        ("gpt-4o*", Some(128_000), Some("o200k_base"), None, None, "built in"),
        ("gpt-4o-realtime*", None, Some("o200k_base"), None, None, "built in"),
        ("claude-opus-4.8", Some(1_000_000), None, Some(1.55), None, "built in"),
    ] {
        let entry = Entry {
            pattern: pattern.to_owned(),
            window,
            encoding: encoding.map(str::to_owned),
            factor,
            alias_of: alias_of.map(str::to_owned),
            source: source.to_owned(),
        };
        assert!(models.contains(&entry), "{entry:?} {models:?}");
    }
}

#[tokio::test]
async fn without_an_upstream_there_are_settings_and_built_in_models_and_the_reason() {
    let closed = ClosedPort::new();
    for (lines, reason) in
        [("", "nothing listens at"), ("tokens.ask_upstream = false\n", "not asked, as tokens.ask_upstream is false")]
    {
        let text = models(&closed.url(), &format!("{lines}{SETTINGS}"), &[]).join().unwrap();
        assert_eq!(row(&text, "house-*"), ["house-*", "16,000", "settings"]);
        assert_eq!(row(&text, "o3-mini"), ["o3-mini", "200,000", "o200k_base", "built in"]);
        assert!(!text.contains("  upstream\n"), "{text}");
        let (_, said) = text.split_once("\nupstream: ").unwrap();
        assert!(said.contains(reason), "{said}");
    }
}
