//! `abridge simulate`, through the real binary and two sessions that were written for it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use tempfile::TempDir;

/// What the tests ask of the JSON.
#[derive(Debug, Deserialize)]
struct Simulation {
    transcripts: Vec<Played>,
    totals: Vec<Run>,
}

#[derive(Debug, Deserialize)]
struct Played {
    name: String,
    model: Option<String>,
    runs: Vec<Run>,
}

#[derive(Debug, Deserialize)]
struct Run {
    policy: String,
    window: Option<usize>,
    figures: Figures,
}

#[derive(Debug, Deserialize)]
struct Figures {
    requests: usize,
    tokens_sent: usize,
    largest_request: usize,
    beyond_window: usize,
    window_unknown: usize,
    tokens_cached: usize,
    frontier_moves: usize,
    results_cleared: usize,
    bytes_offloaded: usize,
}

/// A working directory with the sessions and two policies.
fn place() -> TempDir {
    let place = TempDir::new().unwrap();
    let sessions = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/transcripts");
    fs::create_dir(place.path().join("sessions")).unwrap();
    for entry in fs::read_dir(sessions).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), place.path().join("sessions").join(entry.file_name())).unwrap();
    }
    let sticky = "[clear_tool_results]\ntrigger = { tokens = 6000 }\nkeep = { results = 1 }\n";
    fs::write(place.path().join("sticky.toml"), sticky).unwrap();
    fs::write(place.path().join("sliding.toml"), format!("{sticky}frontier = \"sliding\"\n")).unwrap();
    place
}

/// The exit code and the two outputs of `abridge simulate`.
fn simulate(place: &TempDir, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abridge"));
    command.arg("simulate").args(args).current_dir(place.path()).env_clear().stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json(place: &TempDir, args: &[&str]) -> Simulation {
    let (code, out, err) = simulate(place, &[args, &["--json"]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    serde_json::from_str(&out).unwrap()
}

#[test]
fn simulate_compares_policies() {
    let place = place();
    let policies = ["--policy", "none", "--policy", "sticky.toml", "--policy", "sliding.toml"];
    let simulation = json(&place, &[&["sessions"], policies.as_slice()].concat());
    let [coding, booking] = &simulation.transcripts[..] else { panic!("{simulation:?}") };
    assert_eq!((coding.name.as_str(), coding.model.as_deref()), ("sessions/coding.json", Some("gpt-4o")));
    assert_eq!((booking.name.as_str(), booking.model.as_deref()), ("sessions/booking.json", None));

    let [none, sticky, sliding] = &coding.runs[..] else { panic!("{coding:?}") };
    assert_eq!([&none.policy, &sticky.policy, &sliding.policy], ["none", "sticky", "sliding"]);
    assert_eq!((none.window, none.figures.beyond_window), (Some(128_000), 0));
    let figures = [&none.figures, &sticky.figures, &sliding.figures];
    assert!(figures.iter().all(|figures| figures.requests == 12));
    assert_eq!(figures.map(|figures| figures.frontier_moves), [0, 2, 5]);
    assert_eq!(figures.map(|figures| figures.results_cleared), [0, 10, 10]);
    assert!(figures[1].tokens_sent < figures[0].tokens_sent / 2);
    assert!(figures[2].tokens_cached < figures[1].tokens_cached);
    assert!(figures[1].largest_request < 6000);
    assert_eq!(figures[1].bytes_offloaded, figures[2].bytes_offloaded);

    // Nothing is long enough here to be cleared, and nobody knows the window.
    assert!(booking.runs.iter().all(|run| run.figures.frontier_moves == 0 && run.figures.window_unknown == 6));
    assert!(booking.runs.iter().all(|run| run.figures.tokens_sent == booking.runs[0].figures.tokens_sent));
    assert_eq!(simulation.totals[1].figures.requests, 18);
}

#[test]
fn the_same_call_prints_the_same_table() {
    let place = place();
    let args = ["sessions", "--policy", "sticky.toml", "--policy", "none", "--limit", "1"];
    let (code, table, err) = simulate(&place, &args);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(table.contains("sessions/coding.json: 26 messages, model gpt-4o, window 128,000"), "{table}");
    assert!(table.contains("total: 1 transcripts"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
    assert_eq!(simulate(&place, &args).1, table);
}

#[test]
fn the_present_settings_and_none_play_where_no_policy_is_named() {
    let place = place();
    fs::rename(place.path().join("sticky.toml"), place.path().join("proxy.toml")).unwrap();
    let totals = json(&place, &["sessions/coding.json"]).totals;
    let rows: Vec<_> = totals.iter().map(|run| (run.policy.as_str(), run.figures.results_cleared)).collect();
    assert_eq!(rows, [("present", 10), ("none", 0)]);
}

#[test]
fn policies_of_the_settings_play_by_name_and_where_their_upstream_is_meant() {
    let place = place();
    let sticky = fs::read_to_string(place.path().join("sticky.toml")).unwrap();
    let sticky = sticky.replace("[clear", "[policies.long.clear");
    let route = |model| {
        format!(
            "{sticky}[[upstreams]]\nname = \"a\"\nurl = \"http://h\"\npolicy = \"long\"\nwhen = {{ model = \"{model}\" }}\n"
        )
    };
    let args = ["sessions/coding.json", "--policy", "present", "--policy", "long", "--policy", "none"];
    for (model, present) in [("gpt-4*", 10), ("claude-*", 0)] {
        fs::write(place.path().join("proxy.toml"), route(model)).unwrap();
        let totals = json(&place, &args).totals;
        let rows: Vec<_> = totals.iter().map(|run| (run.policy.as_str(), run.figures.results_cleared)).collect();
        assert_eq!(rows, [("present", present), ("long", 10), ("none", 0)], "{model}");
    }
}

#[test]
fn placeholders_are_as_long_as_when_serving() {
    let place = place();
    let sticky = fs::read_to_string(place.path().join("sticky.toml")).unwrap();
    let with = |name: &str, recall: &str| {
        fs::write(place.path().join(name), format!("{sticky}[recall]\nvia = \"http\"\n{recall}")).unwrap();
        json(&place, &["sessions/coding.json", "--policy", name]).totals.remove(0).figures.tokens_sent
    };
    let unnamed = with("unnamed.toml", "");
    assert_eq!(unnamed, with("named.toml", "public_url = \"http://127.0.0.1:8787\""));
    assert_eq!(unnamed, with("bound.toml", "[server]\nlisten = [\"unix:/s\", \"0.0.0.0:8787\"]"));
    assert!(unnamed < with("long.toml", "public_url = \"http://a-much-longer-name.example.com/at/some/path\""));
}

#[test]
fn a_window_and_a_model_may_be_given() {
    let place = place();
    let run = |args: &[&str]| {
        let mut simulation = json(&place, &[&["sessions/booking.json", "--policy", "none"], args].concat());
        let mut played = simulation.transcripts.remove(0);
        (played.model, played.runs.remove(0))
    };
    let (model, run_of_model) = run(&["--model", "gpt-4o"]);
    assert_eq!((model.as_deref(), run_of_model.window), (Some("gpt-4o"), Some(128_000)));
    let (model, small) = run(&["--window", "1000"]);
    assert_eq!((model, small.window), (None, Some(1000)));
    assert_eq!(small.figures.beyond_window, 4);
}

#[test]
fn unreadable_transcripts_are_listed_with_the_reason() {
    let place = place();
    fs::write(place.path().join("odd.json"), "[]").unwrap();
    let (code, out, _) = simulate(&place, &["odd.json", "sessions"]);
    assert_eq!(code, 0);
    assert!(out.contains("not played: odd.json: not a transcript"), "{out}");
    assert_eq!(simulate(&place, &["odd.json"]).0, 66);
    assert_eq!(simulate(&place, &[]).0, 64);
    assert_eq!(simulate(&place, &["sessions", "--cache-read", "-1"]).0, 64);
    let (code, _, err) = simulate(&place, &["sessions", "--policy", "absent.toml"]);
    assert_eq!(code, 78);
    assert!(err.starts_with("absent.toml: "), "{err}");
}
