//! `abridge rewrite` prints what `abridge serve` sends, and reports the same, under any policy.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use abridge_proxy::dialect;
use abridge_proxy::payload::PayloadKey;
use abridge_proxy::replay::find_exchanges;
use abridge_proxy::store::tests::conformance::damage::secret_row;
use abridge_proxy::store::{self, Clock, RedbStore, Store};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::metrics::after;
use crate::support::bodies::DANGLING;
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::summarizer::Summarizer;
use crate::support::{Abridge, OPERATOR, Setup, binary, post, request};

/// Settings, and the edits that change something under them.
const POLICIES: [(&str, &[&str]); 11] = [
    // By default nothing is cleared before it has paid for that.
    ("", &["patch", "truncate", "deduplicate"]),
    ("clear_tool_results.when = 'any'", &["patch", "truncate", "clear", "deduplicate"]),
    ("preset = \"eino\"", &["patch", "truncate", "clear"]),
    ("preset = \"langchain\"\ntokens.counter = \"estimate\"", &["patch", "clear"]),
    ("preset = \"agno\"\ntokens.counter = \"estimate\"\nfilter_tool_calls.max_tool_calls = 1", &["patch", "filter"]),
    (
        "models = [{ match = \"*\", context_window = 5000 }]\ntokens.counter = \"estimate\"\n\
         clear_tool_results = { when = 'any', trigger = { fraction = 0.02 }, keep = { results = 0 }, clear_tool_inputs = true }",
        &["patch", "truncate", "clear", "deduplicate"],
    ),
    (
        "tokens.counter = \"estimate\"\nclear_tool_results = { when = 'any', trigger = { tokens = 100 }, keep = { results = 1 } }",
        &["patch", "truncate", "clear", "deduplicate"],
    ),
    (
        "store.enabled = false\ntokens.counter = \"estimate\"\ntruncate_tool_results.max_bytes = 250\n\
         clear_tool_results = { when = 'any', trigger = { tokens = 100 }, keep = { results = 0 } }",
        &["patch"],
    ),
    (
        "recall = { via = \"http\", public_url = \"https://abridge.example:1/\" }\ntruncate_tool_results.max_bytes = 250",
        &["patch", "truncate"],
    ),
    (
        "language = \"zh\"\ntokens.counter = \"estimate\"\ntruncate_tool_results.max_bytes = 250\n\
         clear_tool_results = { when = 'any', trigger = { tokens = 200 }, keep = { results = 0 } }",
        &["patch", "truncate", "clear"],
    ),
    (
        "recall.via = \"http\"\ntokens.counter = \"estimate\"\nfilter_tool_calls = { max_tool_calls = 1 }\ntruncate_tool_results.max_bytes = 250",
        &["patch", "filter", "truncate"],
    ),
];

/// A report as both commands give it: what of it they have in common.
#[derive(Debug, Default, Eq, PartialEq)]
struct Report {
    model: Option<String>,
    messages: usize,
    bytes: (usize, usize),
    tokens: (Option<usize>, Option<usize>),
    changes: Vec<Change>,
    left_out: Vec<LeftOut>,
}

#[derive(Debug, Eq, PartialEq)]
struct Change {
    edit: String,
    action: String,
    message: usize,
    call_id: String,
    tool: Option<String>,
    bytes: Sizes,
    handles: Vec<PayloadKey>,
}

#[derive(Debug, Deserialize, Eq, PartialEq)]
struct Sizes {
    before: usize,
    after: usize,
}

#[derive(Debug, Deserialize, Eq, PartialEq)]
struct LeftOut {
    #[serde(alias = "label")]
    edit: String,
    message: Option<usize>,
    call_id: String,
    #[serde(alias = "tool_name")]
    tool: Option<String>,
    why: String,
}

/// What came of a body.
#[derive(Debug, Eq, PartialEq)]
struct Rewritten {
    body: Bytes,
    report: Option<Report>,
}

#[tokio::test]
async fn rewrite_prints_and_reports_what_serve_sends_under_any_policy() {
    let fixtures = fixtures();
    for (policy, edits) in POLICIES {
        let mut bodies = fixtures.clone();
        if !policy.contains("max_bytes") {
            // Beyond the limits of defaults and presets.
            let texts: Vec<_> = (0..4).map(long_text).collect();
            bodies.push(with_results(&texts).into());
        }
        let (sent, printed) = both(policy, &bodies).await;
        for (n, (sent, printed)) in sent.iter().zip(&printed).enumerate() {
            assert_eq!(sent, printed, "{policy}\n{}", String::from_utf8_lossy(&bodies[n]));
        }
        let changes = printed.iter().filter_map(|printed| printed.report.as_ref()).flat_map(|report| &report.changes);
        let made: BTreeSet<_> = changes.map(|change| change.edit.as_str()).collect();
        assert_eq!(made, edits.iter().copied().collect(), "{policy}");
    }
}

/// Two policies beside that of the top level, chosen by model and by dialect.
const ROUTED: &str = r#"
policy.edits = ["patch_tool_calls"]
[policies.bare]
policy.edits = []
[policies.short]
truncate_tool_results.max_bytes = 250
policy.edits = ["patch_tool_calls", "truncate_tool_results"]
[[upstreams]]
name = "house"
url = "UPSTREAM"
when = { model = "house-*" }
policy = "bare"
[[upstreams]]
name = "messages"
url = "UPSTREAM"
policy = "short"
"#;

/// Bodies for the top level, for the policy `bare`, and for `short`.
fn routed() -> [Bytes; 3] {
    let block = format!(r#"{{"type":"tool_result","tool_use_id":"a","content":{:?}}}"#, "long ".repeat(200));
    let call = r#"{"type":"tool_use","id":"a","name":"f","input":{}}"#;
    let messages = format!(
        r#"{{"model":"claude-opus-5","max_tokens":9,"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","content":[{call}]}},{{"role":"user","content":[{block}]}}]}}"#
    );
    [DANGLING.into(), DANGLING.replace("\"m\"", "\"house-1\"").into(), messages.into()]
}

#[tokio::test]
async fn rewrite_prints_what_serve_sends_under_the_policies_of_upstreams() {
    let bodies = routed();
    let (sent, printed) = both(ROUTED, &bodies).await;
    assert_eq!(sent, printed);
    let edits = |n: usize| -> Vec<_> {
        printed[n].report.iter().flat_map(|report| &report.changes).map(|change| change.edit.as_str()).collect()
    };
    assert_eq!([edits(0), edits(1), edits(2)], [vec!["patch"], vec![], vec!["truncate"]]);
}

#[test]
fn rewrite_and_replay_take_the_policy_that_a_flag_names() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("proxy.toml"), ROUTED.replace("UPSTREAM", "http://127.0.0.1:1")).unwrap();
    let [patched, bare, _] = routed();
    for (name, body) in [("patched", patched), ("bare", bare)] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("request.json"), body).unwrap();
    }
    let run = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.args(args).current_dir(folder.path()).env_clear().output().unwrap()
    };
    let is_edited = |args: &[&str]| {
        let output = run(&[&["rewrite"], args].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout != fs::read(folder.path().join(args[0])).unwrap()
    };
    assert!(is_edited(&["patched/request.json"]) && !is_edited(&["bare/request.json"]));
    assert!(!is_edited(&["patched/request.json", "--policy", "bare"]));
    assert!(is_edited(&["bare/request.json", "--policy", "short"]));

    // Everything that was recorded is that nothing is edited.
    let replayed = |args: &[&str]| run(&[&["replay"], args].concat()).status.code();
    assert_eq!((replayed(&["patched"]), replayed(&["bare"])), (Some(1), Some(0)));
    assert_eq!(replayed(&["patched", "bare", "--policy", "bare"]), Some(0));
    assert_eq!(replayed(&["bare", "--policy", "short"]), Some(1));

    for command in [&["rewrite", "bare/request.json"][..], &["replay", "bare"]] {
        let output = run(&[command, &["--policy", "other"]].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(error, "--policy: there is no policies.other; allowed: bare, short\n");
        assert_eq!(output.status.code(), Some(64));
    }
}

#[tokio::test]
async fn rewrite_names_the_address_that_serve_listens_on() {
    let body = Bytes::from(with_results(&[long_text(0)]));
    let (sent, printed) = both("", &[body]).await;
    assert_eq!(recalls(&printed[0].body).len(), 1);
    assert_eq!(sent, printed);
}

/// Each request of the fixtures once.
fn fixtures() -> Vec<Bytes> {
    let fixtures = find_exchanges(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")).unwrap();
    let bodies: BTreeSet<_> = fixtures.iter().map(|dir| fs::read(dir.join("request.json")).unwrap()).collect();
    bodies.into_iter().map(Bytes::from).collect()
}

/// Returns what the proxy makes of the bodies, and then the command.
async fn both(policy: &str, bodies: &[Bytes]) -> (Vec<Rewritten>, Vec<Rewritten>) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store.redb");
    know_the_secret(&store).await;
    let upstream = Summarizer::playing([]).await;
    let abridge = Setup::to(upstream.url())
        .with("tokens.ask_upstream = false")
        .with(format!("store.path = '{}'", store.display()))
        .with(policy.replace("UPSTREAM", upstream.url()))
        .start()
        .await;
    let mut client = abridge.connect().await;
    for body in bodies {
        let path = dialect::of_body(body).path();
        client.send(post(path, &["content-type: application/json"], body)).await;
        assert_eq!(client.reply().await.head.status(), 200);
    }
    drop(client);
    after(&abridge, bodies.len() as u64).await;
    let reports = reports(&abridge).await;
    let chats = upstream.chats();
    assert_eq!((chats.len(), reports.len()), (bodies.len(), bodies.len()));
    let sent = chats.into_iter().zip(reports).map(|(chat, report)| Rewritten { body: chat.body, report }).collect();

    let files: Vec<_> = (0..bodies.len()).map(|n| folder.path().join(format!("{n}.json"))).collect();
    for (file, body) in files.iter().zip(bodies) {
        fs::write(file, body).unwrap();
    }
    let half = files.split_at(files.len() / 2);
    let printed = thread::scope(|scope| {
        let threads = [half.0, half.1].map(|files| {
            let (config, address) = (abridge.config(), abridge.address());
            scope.spawn(move || files.iter().map(|file| rewrite(file, config, address)).collect::<Vec<_>>())
        });
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    (sent, printed)
}

/// Makes a store whose secret is the one that `rewrite` names payloads with, so that handles are the same in both.
async fn know_the_secret(path: &Path) {
    let store = RedbStore::open(path, store::Settings::default(), Clock::system()).unwrap();
    Store::close(&store).await.unwrap();
    drop(store);
    let transaction = redb::Database::open(path).unwrap().begin_write().unwrap();
    let table = redb::TableDefinition::<&str, &[u8]>::new("meta_v1");
    transaction.open_table(table).unwrap().insert("secret", secret_row([0; 32]).as_slice()).unwrap();
    transaction.commit().unwrap();
}

// === what serve reports ===

#[derive(Deserialize)]
struct Listing {
    requests: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    model: Option<String>,
    outcome: String,
    messages: usize,
    bytes_before: usize,
    bytes_after: usize,
    tokens_before: Option<usize>,
    tokens_after: Option<usize>,
}

#[derive(Deserialize)]
struct Detail {
    changes: Vec<Changed>,
    left_out: Vec<LeftOut>,
}

#[derive(Deserialize)]
struct Changed {
    action: String,
    message: usize,
    label: String,
    tool: Option<String>,
    call_id: String,
    bytes_before: usize,
    bytes_after: usize,
    handle: Option<PayloadKey>,
    #[serde(default)]
    more_handles: Vec<PayloadKey>,
}

/// What the proxy says of its requests, in the order in which they were sent; nothing of those that it has not understood.
async fn reports(abridge: &Abridge) -> Vec<Option<Report>> {
    let listing: Listing = get(abridge, "/abridge/requests").await;
    let mut reports = Vec::new();
    for entry in listing.requests {
        if entry.outcome == "not_understood" {
            reports.push(None);
            continue;
        }
        let detail: Detail = get(abridge, &format!("/abridge/requests/{}", entry.id)).await;
        let changes = detail.changes.into_iter().map(|change| Change {
            edit: change.label,
            action: change.action,
            message: change.message,
            call_id: change.call_id,
            tool: change.tool,
            bytes: Sizes { before: change.bytes_before, after: change.bytes_after },
            handles: change.handle.into_iter().chain(change.more_handles).collect(),
        });
        reports.push(Some(Report {
            model: entry.model,
            messages: entry.messages,
            bytes: (entry.bytes_before, entry.bytes_after),
            tokens: (entry.tokens_before, entry.tokens_after),
            changes: changes.collect(),
            left_out: detail.left_out,
        }));
    }
    reports
}

async fn get<T: DeserializeOwned>(abridge: &Abridge, path: &str) -> T {
    let mut client = abridge.connect().await;
    client.send(request("GET", path, &[OPERATOR])).await;
    serde_json::from_slice(&client.reply().await.body).unwrap()
}

// === what rewrite reports ===

#[derive(Deserialize)]
struct Printed {
    model: Option<String>,
    messages_before: usize,
    bytes_before: usize,
    bytes_after: usize,
    tokens_before: Option<usize>,
    tokens_after: Option<usize>,
    changes: Vec<PrintedChange>,
    left_out: Vec<LeftOut>,
}

#[derive(Deserialize)]
struct PrintedChange {
    edit: String,
    action: BTreeMap<String, BTreeMap<String, usize>>,
    call_id: String,
    tool_name: Option<String>,
    bytes: Sizes,
    handles: Vec<PayloadKey>,
}

/// Returns what the command prints.
fn rewrite(file: &Path, config: &Path, address: SocketAddr) -> Rewritten {
    let mut command = Command::new(binary());
    command
        .arg("rewrite")
        .arg(file)
        .arg("--report")
        .arg("--config")
        .arg(config)
        .args(["--listen", &address.to_string()]);
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success());
    let report = serde_json::from_slice(&stderr).ok().map(|printed: Printed| {
        let changes = printed.changes.into_iter().map(|change| {
            let (action, places) = change.action.into_iter().next().unwrap();
            Change {
                edit: change.edit,
                action,
                message: *places.get("message").unwrap_or_else(|| &places["behind"]),
                call_id: change.call_id,
                tool: change.tool_name,
                bytes: change.bytes,
                handles: change.handles,
            }
        });
        Report {
            model: printed.model,
            messages: printed.messages_before,
            bytes: (printed.bytes_before, printed.bytes_after),
            tokens: (printed.tokens_before, printed.tokens_after),
            changes: changes.collect(),
            left_out: printed.left_out,
        }
    });
    Rewritten { body: stdout.into(), report }
}
