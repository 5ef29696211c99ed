//! Strict upstreams: servers that hold each request to the rules of one vendor, and refuse it in the vendor's words. What
//! abridge learns from a refusal makes the second try right, and every later request the first time.
//!
//! - Each rule refuses its own fixture; a session that a rule has refused lives after one second try, and is right at once from
//!   then on.
//! - Every request of `fixtures/`, of the corpora that `ABRIDGE_CORPUS`, `ABRIDGE_CORPUS_MESSAGES` and
//!   `ABRIDGE_CORPUS_RESPONSES` name, and of generated sessions goes through the real binary to each vendor: none is refused in
//!   its second try, and none at all the second time.
//! - With `ABRIDGE_CLIENTS`, what went to the vendors of Chat Completions is checked by mistral-common, rendered by real chat
//!   templates, and translated for Bedrock by `LiteLLM` (`tests/clients/strict.py`).
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is a test's answer"
)]
#![expect(clippy::disallowed_methods, clippy::print_stderr, reason = "the kit plays the other sides of a connection")]
#![expect(clippy::disallowed_types, reason = "a judge that shares no code with what it judges")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io};

use abridge_proxy::dialect;
use abridge_proxy::replay::find_exchanges;
use bytes::Bytes;
use libtest_mimic::{Arguments, Failed, Trial};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use it::support::{Scene, conversations, post, scripts};
use strict_rules::{Rule, VENDORS, Vendor};

mod strict_rules;
#[expect(dead_code, unused_imports, reason = "it serves the integration tests, too")]
mod it {
    pub(crate) mod support;
}

/// How many sessions are generated for each vendor.
const N_GENERATED: usize = 150;

/// The settings of every scene: the upstream of the tests is asked for nothing but what the client asks for.
const SETTINGS: &str = "tokens.ask_upstream = false\n";

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for vendor in VENDORS {
        for rule in vendor.rules {
            let name = format!("{}/{}", vendor.name, rule.name);
            trials.push(Trial::test(name, move || block_on(lives_after_one_second_try(vendor, rule))));
        }
        trials.push(Trial::test(format!("{}/everything", vendor.name), move || block_on(everything(vendor))));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn block_on(test: impl Future<Output = Result<(), Failed>>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(test)
}

// === one request ===

/// What became of a request.
#[derive(Debug)]
struct Outcome {
    /// The rules for which it was refused, try by try.
    refused: Vec<(&'static str, String)>,
    /// The last body that went upstream, and the status that the client got.
    sent: Bytes,
    status: u16,
}

/// Sends a request through abridge to an upstream that refuses what the vendor would.
async fn ask(scene: &mut Scene, vendor: &Vendor, body: &[u8]) -> Outcome {
    scene.client = scene.abridge.connect().await;
    scene.client.send(post(vendor.path, &["content-type: application/json"], body)).await;
    let mut outcome = Outcome { refused: Vec::new(), sent: Bytes::new(), status: 0 };
    let Scene { upstream, client, .. } = scene;
    let mut reply = pin!(client.reply());
    loop {
        tokio::select! {
            reply = &mut reply => {
                outcome.status = reply.head.status();
                return outcome;
            }
            mut call = upstream.request() => {
                outcome.sent = call.bytes().await;
                let refusal = serde_json::from_slice(&outcome.sent).ok().and_then(|body| vendor.refuses(&body));
                let status = if refusal.is_some() { "400 Bad Request" } else { "200 OK" };
                let text = refusal.as_ref().map_or("{}", |(_, text)| text);
                call.answer(status, &["content-type: application/json", "connection: close"], text).await;
                outcome.refused.extend(refusal);
            }
        }
    }
}

/// Rules that no form mends: the default edits do, before anything is sent.
const MENDED_BEFORE: [&str; 6] = [
    "calls-have-results",
    "results-have-calls",
    "calls-have-outputs",
    "outputs-have-calls",
    "as-many-results-as-calls",
    "as-many-responses-as-calls",
];

async fn lives_after_one_second_try(vendor: &Vendor, rule: &Rule) -> Result<(), Failed> {
    let elements: Value = serde_json::from_str(rule.fixture)?;
    let body = vendor.request(&elements);
    let (broken, refusal) = vendor.refuses(&body).ok_or("the rule accepts its own fixture")?;
    if broken != rule.name || !rule.source.starts_with("https://") {
        return Err(format!("{broken} refuses the fixture: {refusal}").into());
    }
    let mut scene = Scene::with(SETTINGS).await;
    let bytes = body.to_string();
    let first = ask(&mut scene, vendor, bytes.as_bytes()).await;
    let is_right = MENDED_BEFORE.contains(&rule.name) || first.refused.first().is_some_and(|(by, _)| *by == rule.name);
    if first.status != 200 || first.refused.len() > 1 || !is_right {
        return Err(format!("{first:?}").into());
    }
    let second = ask(&mut scene, vendor, bytes.as_bytes()).await;
    if second.status == 200 && second.refused.is_empty() { Ok(()) } else { Err(format!("{second:?}").into()) }
}

// === everything ===

async fn everything(vendor: &'static Vendor) -> Result<(), Failed> {
    let bodies = bodies(vendor)?;
    let mut scene = Scene::with(SETTINGS).await;
    let (mut first, mut wrong) = (BTreeMap::new(), Vec::new());
    for (name, body) in &bodies {
        let outcome = ask(&mut scene, vendor, body).await;
        if let Some((rule, _)) = outcome.refused.first() {
            first.entry(*rule).or_insert_with(Vec::new).push(name.rsplit('/').next().unwrap_or_default());
        }
        if outcome.status != 200 {
            wrong.push(format!("{name}: {:?}\n  {}", outcome.refused, start_of(&outcome.sent)));
        }
    }
    let mut sent = Vec::new();
    for (name, body) in &bodies {
        let outcome = ask(&mut scene, vendor, body).await;
        if !outcome.refused.is_empty() {
            wrong.push(format!("{name}, the second time: {:?}", outcome.refused));
        }
        sent.push((name, outcome.sent));
    }
    say(&format!("{}: {} requests; those refused in the first try: {first:?}", vendor.name, bodies.len()));
    if wrong.is_empty() { judged(vendor, &sent) } else { Err(format!("{}\n{}", wrong.len(), wrong.join("\n")).into()) }
}

fn start_of(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(1500).collect()
}

/// The requests that a vendor gets, each with its name. Those that abridge does not understand go on as they came, so nothing is
/// asked of them.
fn bodies(vendor: &Vendor) -> Result<Vec<(String, Bytes)>, Failed> {
    let dialect = dialect::for_path(vendor.path).ok_or("no dialect")?;
    let mut bodies = Vec::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for folder in find_exchanges(&fixtures)? {
        let meta: Value = serde_json::from_slice(&fs::read(folder.join("meta.json"))?)?;
        let path = meta["path"].as_str().unwrap_or_default();
        if path.split('?').next().and_then(dialect::for_path).is_some_and(|of| of.name() == dialect.name()) {
            bodies.push((folder.display().to_string(), fs::read(folder.join("request.json"))?.into()));
        }
    }
    let (variable, folders) = match vendor.path {
        "/v1/messages" => ("ABRIDGE_CORPUS_MESSAGES", ["requests", "transcripts"]),
        "/v1/responses" => ("ABRIDGE_CORPUS_RESPONSES", ["requests", "transcripts"]),
        _ => ("ABRIDGE_CORPUS", ["chat", "trajectories"]),
    };
    for folder in folders.into_iter().filter_map(|folder| Some(PathBuf::from(env::var_os(variable)?).join(folder))) {
        let mut files: Vec<_> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        files.sort();
        for file in files {
            bodies.push((file.display().to_string(), fs::read(file)?.into()));
        }
    }
    let mut runner = TestRunner::deterministic();
    let mut generated = |n: usize| -> Bytes {
        let script = scripts::with_gaps(1..12).new_tree(&mut runner).unwrap().current();
        if n.is_multiple_of(2) && vendor.elements() == "messages" && vendor.path != "/v1/messages" {
            let messages = conversations::damaged().new_tree(&mut runner).unwrap().current();
            let layout = conversations::layout().new_tree(&mut runner).unwrap().current();
            return conversations::body(&layout, &messages);
        }
        scripts::body(vendor.path, "m", &script.items)
    };
    bodies.extend((0..N_GENERATED).map(|n| (format!("generated {n}"), generated(n))));
    bodies.extend(joined(vendor)?);
    bodies.retain(|(_, body)| dialect.parse(body).is_ok());
    Ok(bodies)
}

/// The fixtures of two rules in one session, for each two.
fn joined(vendor: &Vendor) -> Result<Vec<(String, Bytes)>, Failed> {
    let mut all = Vec::new();
    for one in vendor.rules {
        for other in vendor.rules.iter().filter(|other| other.name != one.name) {
            let [mut elements, more]: [Vec<Value>; 2] =
                [serde_json::from_str(one.fixture)?, serde_json::from_str(other.fixture)?];
            elements.push(json!({"role": "assistant", "content": "So far."}));
            elements.extend(more);
            let body = vendor.request(&elements.into()).to_string();
            all.push((format!("{} and {}", one.name, other.name), body.into()));
        }
    }
    Ok(all)
}

// === judges that are not ours ===

/// Has programs of others look at what went to a vendor of Chat Completions, where they are installed.
fn judged(vendor: &Vendor, sent: &[(&String, Bytes)]) -> Result<(), Failed> {
    let lines: Vec<_> = sent
        .iter()
        .filter_map(|(name, body)| Some(json!({"name": name, "body": serde_json::from_slice::<Value>(body).ok()?})))
        .map(|line| line.to_string())
        .collect();
    let input = tempfile::NamedTempFile::new()?;
    fs::write(input.path(), lines.join("\n"))?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/strict.py");
    let judges: &[&str] = match vendor.name {
        "mistral" => &["strict", "strict-older"],
        "qwen-template" | "openai" => &["strict"],
        "bedrock" => &["litellm"],
        _ => &[],
    };
    for judge in judges {
        let python = env::var_os("ABRIDGE_CLIENTS").map(|folder| PathBuf::from(folder).join(judge).join("bin/python"));
        let Some(python) = python.filter(|python| python.exists()) else {
            say(&format!("{}: NOT RUN: the judge {judge} of tests/clients/install.sh", vendor.name));
            continue;
        };
        let mut command = Command::new(python);
        command.arg(&script).arg(vendor.name).stdin(input.reopen()?).stderr(Stdio::inherit());
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            return Err(text.into());
        }
        say(&format!("{}: {}", vendor.name, text.trim_end()));
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a test binary without a harness of its own tells what it ran")]
fn say(text: &str) {
    println!("{text}");
}
