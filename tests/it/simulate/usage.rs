//! Usage without texts, as `abridge simulate` plays it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{place, simulate};
use crate::support::binary;

/// What `simulate` says of a file or folder with usage, as JSON.
fn simulated_usage(path: &Path, args: &[&str]) -> serde_json::Value {
    let output = Command::new(binary()).arg("simulate").arg(path).args(args).arg("--json").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn usage_without_texts_is_played() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/usage/example.jsonl");
    let billed = simulated_usage(&file, &[]);
    let verdict = &billed["verdict"];
    assert_eq!(verdict["sessions"], serde_json::json!({"Claude Code": 1, "Codex": 1}));
    assert_eq!(verdict["paid"]["requests"], 8);
    // Opus 4.5 is $5 a million, 10 for writing for an hour, 6.25 for five minutes, 0.5 for reading, 25 for output; GPT-5.4
    // $2.5, 0.25 and 15. In billionths of a dollar.
    let codex = (8000 + 2400) * 2500 + (2048 + 10_000) * 250 + (90 + 60) * 15_000;
    let agent = 4 * 5000 + 3000 * 6250 + 700 * 25_000;
    let main = |cached: u64, hour: u64, short: u64| {
        39 * 5000 + cached * 500 + hour * 10_000 + short * 6250 + 700 * 25_000 + codex + agent
    };
    assert_eq!(verdict["paid"]["dollars"], main(129_600, 41_490, 0));
    // After twenty minutes, no more is cached than the 9,000 tokens of each request.
    let short = simulated_usage(&file, &["--five-minute-caches"]);
    assert_eq!(short["verdict"]["paid"]["dollars"], main(129_600 - 41_350, 0, 41_490 + 41_350));
    // The file is read a second time: a pointer to its lines is shorter.
    assert!(verdict["saved"].as_i64().unwrap() > 0, "{verdict}");
}

#[test]
fn usage_with_blanks_is_played_and_what_is_damaged_is_named() {
    let (place, line) = (place(), include_str!("../../../fixtures/usage/example.jsonl").lines().next().unwrap());
    let played = |text: &str| {
        fs::write(place.path().join("u.jsonl"), text).unwrap();
        simulate(&place, &["u.jsonl"])
    };
    assert_eq!(played(&line.replace(':', ": ").replace(',', ", ")), played(line));
    let long = ["[\"t\",1000000000000000,", "[\"k\",8,\"18000000000000000000\""];
    let nothing = "{\"timestamp\":\"2026-01-01T00:00:00Z\",\"type\":\"session_meta\",\"payload\":{\"id\":\"x\"}}";
    let [text, signature] =
        [("[\"t\",100,", long[0]), ("[\"k\",800,\"400\"", long[1])].map(|(a, b)| line.replacen(a, b, 1));
    let damaged = line.replacen("9000,0,1000", "-9000,0,1000", 1);
    for (text, why) in
        [(&*damaged, "invalid value"), (&text, "longer than"), (&signature, "longer than"), (nothing, "no messages")]
    {
        let (code, out, _) = played(text);
        assert!(code == 66 && out.contains("not played: u.jsonl") && out.contains(why), "{out}");
    }
}

#[test]
fn recorded_usage_costs_what_a_study_says() {
    let Some(folder) = std::env::var_os("ABRIDGE_USAGE").map(PathBuf::from) else { return };
    let paid = simulated_usage(&folder.join("develop.jsonl"), &["--policy", "none"]);
    let dollars = paid["totals"][0]["dollars"].as_f64().unwrap() / 1e9;
    assert!((dollars / (1482.24 + 120.14) - 1.0).abs() < 0.003, "{dollars}");
}

#[test]
fn calls_that_keep_caches_while_tools_run_are_in_the_bill_and_named() {
    let (place, line) = (place(), include_str!("../../../fixtures/usage/example.jsonl").lines().next().unwrap());
    // A tool runs for ten minutes before the third request, which found 9,000 of 30,000 tokens.
    let line = line.replace("[20,2,30000,0,250", "[608,2,9000,0,21250").replace("[30,2", "[630,2");
    fs::write(place.path().join("u.jsonl"), line).unwrap();
    fs::write(place.path().join("keep.toml"), "policy.edits = []\nkeep_alive.enabled = true\n").unwrap();
    let args = ["u.jsonl", "--policy", "none", "--policy", "keep.toml", "--five-minute-caches"];
    let (_, out, _) = simulate(&place, &args);
    // Two calls read 30,000 tokens for $0.5 a million; 21,000 of them would be written for 6.25. The last pause is the user's.
    assert!(out.contains("caches kept by keep while tools run: 2 calls for $0.0301, which save $0.12\n"), "{out}");
    assert!(!out.contains("kept by none") && out.contains("would be saved by keep:"), "{out}");
}

#[test]
fn keeping_caches_while_tools_run_saves_what_was_computed_by_hand() {
    let Some(folder) = std::env::var_os("ABRIDGE_USAGE").map(PathBuf::from) else { return };
    let place = place();
    let keep = place.path().join("keep.toml");
    fs::write(&keep, "policy.edits = []\nkeep_alive.enabled = true\n").unwrap();
    let args = ["--policy", "none", "--policy", keep.to_str().unwrap(), "--five-minute-caches"];
    let totals = &simulated_usage(&folder.join("develop.jsonl"), &args)["totals"];
    let [none, kept] = [0, 1].map(|n| totals[n]["dollars"].as_f64().unwrap());
    // 417 calls for $34.15 that save $121.44 of $1,730, by the pauses and the cached tokens of the file alone.
    let percent = (none - kept) / none * 100.0;
    assert!((percent - 5.05).abs() < 0.5, "{percent}");
    assert!(totals[1]["keep_alive"]["calls"].as_u64().unwrap().abs_diff(417) < 10, "{}", totals[1]);
}
