//! `abridge simulate`, through the real binary and two sessions that were written for it.
#![expect(clippy::disallowed_types, reason = "a transcript is written here, and not sent on")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use tempfile::TempDir;

use crate::judge::Sightings;
use crate::support::{binary, minding_modes};

mod usage;

/// What the tests ask of the JSON.
#[derive(Debug, Deserialize)]
pub(crate) struct Simulation {
    transcripts: Vec<Played>,
    pub(crate) totals: Vec<Run>,
}

#[derive(Debug, Deserialize)]
struct Played {
    name: String,
    model: Option<String>,
    segments: usize,
    runs: Vec<Run>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Run {
    policy: String,
    window: Option<usize>,
    pub(crate) figures: Figures,
    pub(crate) regret: Regret,
    pub(crate) sightings: Option<Sightings>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Regret {
    pub(crate) answers: usize,
    pub(crate) faults: usize,
    pub(crate) hard: usize,
    pub(crate) cost_unedited: u64,
    pub(crate) cost_with_recalls: u64,
    placebo: Option<usize>,
    #[serde(default)]
    list: Vec<Fault>,
}

#[derive(Debug, Deserialize)]
struct Fault {
    request: usize,
    from: Place,
    hard: bool,
    n_missed: usize,
    missed: Vec<Missed>,
}

#[derive(Debug, Deserialize)]
struct Place {
    kind: String,
    message: usize,
    call_id: Option<String>,
    tool: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Missed {
    kind: String,
    text: String,
    line: usize,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Figures {
    pub(crate) requests: usize,
    pub(crate) tokens_sent: usize,
    pub(crate) largest_request: usize,
    beyond_window: usize,
    window_unknown: usize,
    pub(crate) tokens_cached: usize,
    pub(crate) frontier_moves: usize,
    pub(crate) results_cleared: usize,
    bytes_offloaded: usize,
}

/// A working directory with the sessions and two policies.
pub(crate) fn place() -> TempDir {
    let place = TempDir::new().unwrap();
    let sessions = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/transcripts");
    fs::create_dir(place.path().join("sessions")).unwrap();
    for entry in fs::read_dir(sessions).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), place.path().join("sessions").join(entry.file_name())).unwrap();
    }
    let sticky =
        "[clear_tool_results]\nwhen = 'any'\nkeep_reads = 0\ntrigger = { tokens = 6000 }\nkeep = { results = 1 }\n";
    fs::write(place.path().join("sticky.toml"), sticky).unwrap();
    fs::write(place.path().join("sliding.toml"), format!("{sticky}frontier = \"sliding\"\n")).unwrap();
    place
}

/// The exit code and the two outputs of `abridge simulate`.
pub(crate) fn simulate(place: &TempDir, args: &[&str]) -> (i32, String, String) {
    let program = [minding_modes(), &[binary()]].concat();
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg("simulate").args(args).current_dir(place.path()).env_clear().stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

pub(crate) fn json(place: &TempDir, args: &[&str]) -> Simulation {
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

    // Nothing is long enough here to be cleared, and the window is unknown.
    assert!(booking.runs.iter().all(|run| run.figures.frontier_moves == 0 && run.figures.window_unknown == 6));
    assert!(booking.runs.iter().all(|run| run.figures.tokens_sent == booking.runs[0].figures.tokens_sent));
    assert_eq!(simulation.totals[1].figures.requests, 18);
}

#[test]
fn a_folder_that_cannot_be_read_is_named_and_the_others_are_played() {
    let place = place();
    for folder in ["sessions/aaa", "sessions/zzz"] {
        fs::create_dir(place.path().join(folder)).unwrap();
        fs::set_permissions(place.path().join(folder), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let (code, table, err) = simulate(&place, &["sessions"]);
    assert!(table.contains("total: 2 transcripts"), "{code} {err} {table}");
    assert!(["aaa", "zzz"].iter().all(|name| table.contains(&format!("not played: sessions/{name}: "))), "{table}");
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
    let (code, out, _) = simulate(&place, &["/dev/null"]);
    assert!(code == 66 && out.contains("not played: /dev/null: cannot be read: neither a file nor a folder"), "{out}");
    let (code, out, err) = simulate(&place, &[]);
    assert_eq!((code, out.as_str()), (66, ""));
    assert!(err.contains("found no sessions"), "{err}");
    assert_eq!(simulate(&place, &["sessions", "--cache-read", "-1"]).0, 64);
    let (code, _, err) = simulate(&place, &["sessions", "--policy", "absent.toml"]);
    assert_eq!(code, 78);
    assert!(err.starts_with("absent.toml: "), "{err}");
}

/// A session in which a file is read three times, and then an edit of the first one is made.
pub(crate) fn write_session(place: &TempDir, name: &str, line: &str) {
    let call = |id: &str, name: &str, arguments: &str| {
        let function = serde_json::json!({ "name": name, "arguments": arguments });
        serde_json::json!({ "role": "assistant", "content": null,
            "tool_calls": [{ "id": id, "type": "function", "function": function }] })
    };
    let result = |id: &str, line: &str| {
        let text = format!("first\n{line}\n{}", "filler ".repeat(200));
        serde_json::json!({ "role": "tool", "tool_call_id": id, "content": text })
    };
    let edit = serde_json::json!({ "path": "a", "old_string": line }).to_string();
    let messages = serde_json::json!([
        { "role": "user", "content": "Do it." },
        call("a", "read", "{}"), result("a", line),
        call("b", "read", "{}"), result("b", "b"),
        call("c", "read", "{}"), result("c", "c"),
        call("d", "edit", &edit), result("d", "ok"),
        { "role": "assistant", "content": "Done." },
    ]);
    let body = serde_json::json!({ "model": "gpt-4o", "messages": messages });
    fs::write(place.path().join(name), body.to_string()).unwrap();
}

pub(crate) const LINE: &str = "let <total> = items.sum_of_all();";
pub(crate) const EAGER: &str =
    "[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 1 }\nkeep = { results = 0 }\nclear_at_least = 0\n";

/// A place with one session and a policy that clears whatever the model has read.
fn place_with_fault() -> TempDir {
    let place = TempDir::new().unwrap();
    write_session(&place, "session.json", LINE);
    fs::write(place.path().join("eager.toml"), EAGER).unwrap();
    place
}

const EAGER_AND_NONE: [&str; 4] = ["--policy", "eager.toml", "--policy", "none"];

#[test]
fn json_lists_each_fault_with_what_was_missed_and_where_it_had_stood() {
    let place = place_with_fault();
    let simulation = json(&place, &[&["session.json"], EAGER_AND_NONE.as_slice()].concat());
    let [eager, none] = &simulation.transcripts[0].runs[..] else { panic!("{simulation:?}") };
    let regret = &eager.regret;
    assert_eq!((regret.answers, regret.faults, regret.hard, regret.placebo), (5, 1, 1, None));
    let [fault] = &regret.list[..] else { panic!("{regret:?}") };
    assert_eq!((fault.request, fault.hard, fault.n_missed), (4, true, 2));
    assert_eq!((fault.from.kind.as_str(), fault.from.message), ("result", 2));
    assert_eq!((fault.from.call_id.as_deref(), fault.from.tool.as_deref()), (Some("a"), Some("read")));
    let missed: Vec<_> = fault.missed.iter().map(|it| (it.kind.as_str(), it.text.as_str(), it.line)).collect();
    assert_eq!(missed, [("line", LINE, 2), ("name", "sum_of_all", 2)]);
    assert!(regret.cost_with_recalls > eager.figures.tokens_sent as u64 / 10 + 300, "{regret:?}");

    let cost = (none.regret.cost_unedited, none.regret.cost_with_recalls);
    assert_eq!((none.regret.faults, cost.0, regret.cost_unedited), (0, cost.1, cost.0));
    let total = &simulation.totals[0].regret;
    assert_eq!((total.faults, total.list.len()), (1, 0));
}

#[test]
fn the_table_has_faults_and_the_cost_with_recalls() {
    let place = place_with_fault();
    let args = [&["session.json", "--placebo"], EAGER_AND_NONE.as_slice()].concat();
    let (code, table, err) = simulate(&place, &args);
    assert_eq!((code, err.as_str()), (0, ""), "there is no progress bar on a pipe");
    let (_, regret) = table.split_once("\nregret, of 5 requests whose answer is recorded\n").unwrap();
    let rows: Vec<Vec<&str>> = regret.lines().take(3).map(|line| line.split_whitespace().collect()).collect();
    // One fault in five answers, and no other session whose results could replace these.
    assert_eq!(rows[1][..5], ["eager", "20.00", "20.00", "-", "1"], "{table}");
    assert_eq!(rows[2], ["none", "0.00", "0.00", "-", "0", "100.0", "%", "100.0", "%"], "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
}

#[test]
fn a_placebo_counts_the_faults_that_another_session_would_have_had() {
    let place = place_with_fault();
    let noise = |line: &str| {
        write_session(&place, "other.json", line);
        let args = [&["session.json", "other.json", "--placebo"], EAGER_AND_NONE.as_slice()].concat();
        let simulation = json(&place, &args);
        let of = |name: &str| simulation.transcripts.iter().find(|it| it.name == name).unwrap().runs[0].regret.placebo;
        (of("session.json"), simulation.totals[0].regret.placebo)
    };
    assert_eq!(noise("something quite different stands here"), (Some(0), Some(0)));
    assert_eq!(noise(LINE), (Some(1), Some(2)));
}

#[test]
fn a_page_is_written_that_needs_nothing_else_and_has_no_markup_of_transcripts() {
    let place = place_with_fault();
    let args = [&["session.json", "--html", "page.html"], EAGER_AND_NONE.as_slice()].concat();
    assert_eq!(simulate(&place, &args).0, 0);
    let page = fs::read_to_string(place.path().join("page.html")).unwrap();
    assert!(page.contains("let &lt;total&gt; = items.sum_of_all();"), "{page}");
    assert!(page.contains("default-src 'none'"), "{page}");
    for absent in ["<total>", "http:", "https:", "<script", "src=", "@import", "url("] {
        assert!(!page.contains(absent), "{absent}");
    }
    let (code, _, err) = simulate(&place, &["session.json", "--html", "absent/page.html"]);
    assert!(code != 0 && err.contains("cannot write absent/page.html"), "{code} {err}");
}

#[test]
fn a_transcript_is_played_in_the_segments_that_the_agent_made_of_it() {
    let place = place_with_fault();
    let session = fs::read_to_string(place.path().join("session.json")).unwrap();
    let mut session: serde_json::Value = serde_json::from_str(&session).unwrap();
    let summary = "This session is being continued from a previous conversation that ran out of context.";
    let messages = session["messages"].as_array_mut().unwrap();
    messages.insert(0, serde_json::json!({ "role": "system", "content": "Obey." }));
    // The edit is in the second segment, before which the model has seen a summary and the last result alone.
    messages.insert(6, serde_json::json!({ "role": "user", "content": summary }));
    let edit = messages.len() - 3;
    assert_eq!(messages[edit]["tool_calls"][0]["function"]["name"], "edit");
    fs::write(place.path().join("session.json"), session.to_string()).unwrap();
    let simulation = json(&place, &[&["session.json"], EAGER_AND_NONE.as_slice()].concat());
    let played = &simulation.transcripts[0];
    let none = &played.runs[1].figures;
    assert_eq!((played.segments, played.runs[0].regret.faults, none.requests), (2, 0, 7));
    assert_eq!(none.frontier_moves, 0, "each segment begins with an empty cache");
}

#[test]
fn a_recording_is_played_with_the_window_that_was_recorded_with_it() {
    let place = TempDir::new().unwrap();
    let recording = place.path().join("exchanges/req_1");
    fs::create_dir_all(&recording).unwrap();
    let text = "some words ".repeat(2000);
    let call = r#"{"role":"assistant","tool_calls":[{"id":"ID","type":"function","function":{"name":"bash","arguments":"{}"}}]}"#;
    let turn =
        |id: &str| format!(r#",{},{{"role":"tool","tool_call_id":"{id}","content":"{text}"}}"#, call.replace("ID", id));
    let turns: String = ["a", "b", "c", "d", "e", "f"].map(turn).concat();
    let body = format!(r#"{{"model":"local-7b","messages":[{{"role":"user","content":"go"}}{turns}]}}"#);
    fs::write(recording.join("request.json"), body).unwrap();
    fs::write(recording.join("meta.json"), r#"{"path":"/v1/chat/completions","inputs":{"windows":{"local-7b":8192}}}"#)
        .unwrap();
    let windows = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["simulate", "exchanges", "--json"]).args(arguments).current_dir(place.path()).env_clear();
        let output = command.env("HOME", place.path()).stdin(Stdio::null()).output().unwrap();
        let simulation: Simulation = serde_json::from_slice(&output.stdout).unwrap();
        let runs = &simulation.transcripts[0].runs;
        runs.iter().map(|run| (run.window, run.figures.window_unknown)).collect::<Vec<_>>()
    };
    assert_eq!(windows(&[]), [(Some(8192), 0); 2]);
    assert_eq!(windows(&["--window", "9000"]), [(Some(9000), 0); 2], "settings override it");
}

#[test]
fn the_sessions_of_a_user_are_found_and_what_was_paid_comes_first() {
    let (place, fixtures) = (TempDir::new().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/sessions"));
    let mut copied = Vec::new();
    let claude = "claude_code/-home-me-work";
    for (from, to) in [
        (format!("{claude}/11111111.jsonl"), ".claude/projects/-home-me-work/11111111.jsonl"),
        (format!("{claude}/22222222.jsonl"), ".claude/projects/-home-me-work/22222222.jsonl"),
        ("codex/2026/05/01/rollout-2026-05-01T12-00-00-abc.jsonl".to_owned(), "codex/sessions/2026/rollout-abc.jsonl"),
    ] {
        let to = place.path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(fixtures.join(from), &to).unwrap();
        copied.push((fs::read(&to).unwrap(), to));
    }
    let simulate = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("simulate").args(args).current_dir(place.path()).env_clear().stdin(Stdio::null());
        command
            .env("HOME", place.path())
            .env("USERPROFILE", place.path())
            .env("CODEX_HOME", place.path().join("codex"));
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = simulate(&["--html", "page.html"]);
    // The file that continues the other one has its own request.
    let first = "3 sessions (2 of Claude Code, 1 of Codex) on 3 days: 11 requests\npaid, at list prices:";
    assert!(table.starts_with(first) && table.contains("Nothing of them has left this machine."), "{table}");
    assert!(table.contains("not understood, and skipped: 3 lines"), "{table}");
    assert!(fs::read_to_string(place.path().join("page.html")).unwrap().contains("<pre id=\"verdict\">3 sessions (2 "));

    // Opus 4.5 is $5 a million, 6.25 and 10 for writing, 0.5 for reading, 25 for output; Haiku 4.5 a fifth; GPT-5.4 $2.5, 0.25
    // and 15. In millionths of a cent: input, read, written, written for an hour, output.
    let opus = |plain: u64, read: u64, written: u64, hour: u64, output: u64| {
        plain * 5000 + read * 500 + written * 6250 + hour * 10_000 + output * 25_000
    };
    let paid_claude: u64 =
        opus(3 + 1 + 2 + 2 + 3 + 3, 12_003 + 12_404 + 9000, 12_000 + 400 + 30 + 11_000 + 12_500, 3450, 259)
            + opus(3, 0, 3000, 0, 24) / 5;
    let (input, cached, output): (u64, u64, u64) =
        (9000 + 9100 + 9200 + 8000, 2000 + 8960 + 9088 + 2000, 50 + 10 + 300 + 12);
    let paid_codex: u64 = (input - cached) * 2500 + cached * 250 + output * 15_000;
    let json: serde_json::Value = serde_json::from_str(&simulate(&["--json"])).unwrap();
    let verdict = &json["verdict"];
    assert_eq!(verdict["paid"]["dollars"], paid_claude + paid_codex, "{verdict}");
    assert_eq!((&verdict["saved"], &verdict["policy"]), (&0.into(), &"present".into()));
    for total in json["totals"].as_array().unwrap() {
        assert_eq!(total["dollars"], paid_claude + paid_codex, "without an edit, what was paid: {total}");
    }
    for (before, path) in copied {
        assert_eq!(fs::read(path).unwrap(), before);
    }
}
