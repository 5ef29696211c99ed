//! Tests of discovery, comparison, and which policy applies.

use super::*;
use crate::payload::PayloadKey;
use crate::recording::Meta;

const DANGLING: &str = r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"ls"}}]}]}"#;

fn policy() -> Routes<Planner> {
    Routes::only(planner_from_toml("").unwrap())
}

fn no_edits() -> Routes<Planner> {
    Routes::only(planner_from_toml("policy.edits = []").unwrap())
}

fn put(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (name, text) in files {
        fs::write(dir.join(name), text).unwrap();
    }
}

fn replay(dir: &Path, policy: &ReplayPolicy) -> Replay {
    Replay::run(&[dir.to_owned()], policy)
}

#[test]
fn exchanges_are_found_at_any_depth_in_order_and_unfinished_ones_are_not() {
    let scratch = tempfile::tempdir().unwrap();
    for name in ["b", "a/two", "a/one", ".tmp-c", "a/one/below"] {
        put(&scratch.path().join(name), &[("request.json", "{}")]);
    }
    put(&scratch.path().join("empty"), &[("README.md", "")]);
    let expected: Vec<_> = ["a/one", "a/two", "b"].iter().map(|name| scratch.path().join(name)).collect();
    assert_eq!(find_exchanges(scratch.path()).unwrap(), expected);
}

#[test]
fn each_exchange_is_same_different_or_unreadable() {
    let scratch = tempfile::tempdir().unwrap();
    put(&scratch.path().join("same"), &[("request.json", "not JSON")]);
    put(&scratch.path().join("changed"), &[("request.json", DANGLING)]);
    put(
        &scratch.path().join("elsewhere"),
        &[("request.json", DANGLING), ("meta.json", r#"{"path":"/v1/other?x=/chat/completions"}"#)],
    );
    put(&scratch.path().join("torn"), &[("request.json", DANGLING), ("meta.json", "{")]);
    let found = replay(scratch.path(), &ReplayPolicy::Fallback(policy()));
    assert_eq!(found.totals, Totals { same: 2, different: 1, unreadable: 1 });
    assert!(!found.is_clean());
    let [changed, elsewhere, same, torn] = &found.exchanges[..] else { panic!("{found}") };
    assert_eq!((changed.bytes_in, changed.edits.as_str()), (DANGLING.len(), "patch=1"));
    assert!(changed.bytes_out > DANGLING.len());
    let Comparison::Different(difference) = &changed.comparison else { panic!("{found}") };
    assert_eq!(difference.at, DANGLING.len() - 2);
    assert!(difference.now.contains(r#"}]},{\"role\":\"tool\""#), "{found}");
    assert_eq!((&elsewhere.comparison, &same.comparison), (&Comparison::Same, &Comparison::Same));
    assert!(matches!(&torn.comparison, Comparison::Unreadable { why } if why.starts_with("meta.json: EOF")), "{found}");
}

#[test]
fn the_policy_of_a_folder_applies_unless_the_user_names_one() {
    let scratch = tempfile::tempdir().unwrap();
    put(scratch.path(), &[("request.json", DANGLING), ("policy.toml", "policy.edits = []")]);
    assert!(replay(scratch.path(), &ReplayPolicy::Fallback(policy())).is_clean());
    assert!(!replay(scratch.path(), &ReplayPolicy::Explicit(policy())).is_clean());
    put(scratch.path(), &[("policy.toml", "[patch_tool_calls]\ntemplate = 'x'\norphans = 'keep'")]);
    assert!(!replay(scratch.path(), &ReplayPolicy::Fallback(no_edits())).is_clean());
    assert!(replay(scratch.path(), &ReplayPolicy::Explicit(no_edits())).is_clean());
    put(scratch.path(), &[("policy.toml", "[server]\nlisten = '127.0.0.1:1'")]);
    let refused = replay(scratch.path(), &ReplayPolicy::Fallback(policy()));
    assert!(refused.to_string().contains("unreadable: policy.toml: "), "{refused}");
    assert!(refused.to_string().contains("unknown field `server`"), "{refused}");
}

#[test]
fn a_replay_without_exchanges_is_not_clean() {
    let scratch = tempfile::tempdir().unwrap();
    for dir in [scratch.path().to_owned(), scratch.path().join("missing")] {
        let found = replay(&dir, &ReplayPolicy::Fallback(policy()));
        assert_eq!(found.totals, Totals { same: 0, different: 0, unreadable: 1 });
        assert!(!found.is_clean());
    }
    assert!(!Replay::run(&[], &ReplayPolicy::Fallback(policy())).is_clean());
}

#[test]
fn a_difference_shows_both_sides_around_the_first_byte() {
    let long = "é".repeat(100);
    let difference =
        Difference::between(format!("{long}\nA").as_bytes(), format!("{long}\nB{long}").as_bytes()).unwrap();
    assert_eq!(difference.at, 201);
    assert!(difference.recorded.ends_with("\\xa9\\nA"), "{difference}");
    assert_eq!(difference.recorded.matches("\\x").count(), 39);
    assert_eq!(difference.now.matches("\\x").count(), 39 + 39);
    assert_eq!(Difference::between(b"abc", b"ab").map(|difference| difference.at), Some(2));
    assert_eq!(Difference::between(b"abc", b"abc"), None);
}

#[test]
fn a_replay_prints_as_table_and_as_json() {
    let scratch = tempfile::tempdir().unwrap();
    put(&scratch.path().join("x"), &[("request.json", DANGLING)]);
    put(&scratch.path().join("y"), &[("request.json", "{}")]);
    let mut found = replay(scratch.path(), &ReplayPolicy::Fallback(no_edits()));
    for row in &mut found.exchanges {
        row.name = row.name.replace(scratch.path().to_str().unwrap(), "dir");
    }
    let expected = "exchange    bytes in   bytes out  edits  result\n\
                    dir/x             86          86         same\n\
                    dir/y              2           2         same\n\
                    2 replayed: 2 same, 0 different, 0 unreadable";
    assert_eq!(found.to_string(), expected);
    found.exchanges.pop();
    let json = serde_json::to_string(&found).unwrap();
    let expected = r#"{"exchanges":[{"name":"dir/x","bytes_in":86,"bytes_out":86,"edits":"","result":"same"}],"totals":{"same":2,"different":0,"unreadable":0}}"#;
    assert_eq!(json, expected);
}

// === what a recording knows ===

/// A request whose one result is longer than `POLICY` allows.
const LONG: &str = r#"{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"ls","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"XX"},{"role":"assistant","content":"done"},{"role":"user","content":"go on"}]}"#;
const POLICY: &str = "truncate_tool_results.max_bytes = 100\nrecall.via = \"http\"\ntokens.counter = \"estimate\"";

/// The body that is sent under these settings and these recorded inputs.
fn sent(settings: &str, inputs: PlanInputs) -> String {
    let request = LONG.replace("XX", &"some words ".repeat(100)).into();
    let meta = Meta { inputs: Some(inputs), ..Meta::default() };
    let exchange = Exchange { request, meta, ..Exchange::default() };
    let now = ReplayPolicy::Explicit(Routes::only(planner_from_toml(settings).unwrap())).rewrite(&exchange).unwrap();
    String::from_utf8(now.body.into()).unwrap()
}

#[test]
fn addresses_handles_and_windows_are_those_of_the_recording() {
    let handle =
        |text: &str| text.split_once("/abridge/recall/").and_then(|(_, rest)| rest.get(..26)).map(str::to_owned);
    let known = sent(&format!("recall.public_url = \"http://set:1\"\n{POLICY}"), PlanInputs::default());
    let name: PayloadKey = handle(&known).unwrap().parse().unwrap();
    let recorded = PayloadKey::from_bytes([7; 16]);
    let address = Some("http://bound:2".to_owned());
    let inputs = PlanInputs { address, handles: [(name, recorded)].into(), ..PlanInputs::default() };
    let now = sent(POLICY, inputs.clone());
    assert_eq!(now, known.replace(&name.to_string(), &recorded.to_string()).replace("set:1", "bound:2"));
    // Settings override recorded inputs.
    assert!(sent(&format!("recall.public_url = \"http://set:1\"\n{POLICY}"), inputs).contains("http://set:1/"));

    let part = "clear_tool_results = { when = 'any', trigger = { fraction = 0.02 }, keep = { results = 0 } }\ntokens.counter = \"estimate\"";
    let windows = PlanInputs { windows: [("m".to_owned(), 5000)].into(), ..PlanInputs::default() };
    assert!(sent(part, PlanInputs::default()).contains("some words"));
    assert!(!sent(part, windows.clone()).contains("some words"));
    let larger = format!("models = [{{ match = \"*\", context_window = 50000 }}]\n{part}");
    assert!(sent(&larger, windows).contains("some words"));
}

#[test]
fn the_form_of_a_request_is_that_of_the_recording() {
    let as_it_came = sent("policy.edits = []", PlanInputs::default());
    for inputs in [
        PlanInputs { not_stored: true, ..PlanInputs::default() },
        PlanInputs { form: RequestForm::Unedited, ..PlanInputs::default() },
    ] {
        assert_eq!(sent(POLICY, inputs), as_it_came);
    }
    let shortest = sent(POLICY, PlanInputs { form: RequestForm::Shortest, ..PlanInputs::default() });
    assert!(
        !shortest.contains("some words") && sent(POLICY, PlanInputs::default()).contains("some words"),
        "{shortest}"
    );
}
