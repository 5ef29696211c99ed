//! Recorded traffic in OpenAI Responses through the core. Runs where `ABRIDGE_CORPUS_RESPONSES` names a folder with
//! `requests/NAME.json` (bodies), `sse/NAME.sse` and `responses/NAME.json` (answers), `transcripts/NAME.json`
//! (`{model, input, instructions?}`, long sessions) and `MANIFEST.jsonl` (`cuts`: where the model was called).
//!
//! - A request in which nothing is wrong goes on as the very same bytes under `patch_tool_calls`.
//! - A session is sent as an agent's loop sent it. Each time it comes out sound, and begins with what went out the time
//!   before, unless a pass was made or a late result took its place; what was taken out returns from the store to the
//!   byte.
//! - Usage is read from every answer, streamed or not, as a reader without a line of ours reads it.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_types,
    reason = "a panic is a test's answer, and the judge shares no code with what it judges"
)]

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, io};

use abridge_proxy::body::Budget;
use abridge_proxy::dialect::{self, Dialect, Usage};
use abridge_proxy::engine::edit_body;
use abridge_proxy::plan::{Action, Need, Plan};
use abridge_proxy::planner::Planner;
use abridge_proxy::relay::tap::Tap;
use abridge_proxy::replay::planner_from_toml;
use abridge_proxy::span::{joined, splice};
use abridge_proxy::summary::{Summary, SummaryState};
use abridge_proxy::tokens::Countable;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

use responses_validator::{check, reasoning_is_followed};

mod responses_validator;

const PATCH: &str = "policy.edits = [\"patch_tool_calls\"]\n";

/// Each edit on its own, and all of them.
const EDITS: [(&str, &str); 3] = [
    ("patch", PATCH),
    (
        "reduce",
        "clear_tool_results = { when = 'any', trigger = { tokens = 20000 }, keep = { results = 3 }, clear_tool_inputs = true }
         filter_tool_calls.max_tool_calls = 20
         truncate_tool_results.max_bytes = 2000
         policy.edits = [\"patch_tool_calls\", \"filter_tool_calls\", \"truncate_tool_results\", \"clear_tool_results\"]",
    ),
    (
        "all",
        "clear_tool_results = { when = 'any', trigger = { tokens = 20000 }, keep = { results = 3 } }
         filter_tool_calls.max_tool_calls = 40
         truncate_tool_results.max_bytes = 4000
         summarize = { trigger = { tokens = 20000 } }",
    ),
];

/// What ran, to be told at the end.
#[derive(Debug, Default)]
struct Ran {
    identical: AtomicUsize,
    identical_elsewhere: AtomicUsize,
    patched: AtomicUsize,
    streams: AtomicUsize,
    answers: AtomicUsize,
    with_usage: AtomicUsize,
    cuts: AtomicUsize,
    edited: AtomicUsize,
    passes: AtomicUsize,
    summaries: AtomicUsize,
    handles: AtomicUsize,
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let Some(corpus) = env::var_os("ABRIDGE_CORPUS_RESPONSES").map(PathBuf::from) else {
        say("0 run: ABRIDGE_CORPUS_RESPONSES is not set");
        return ExitCode::SUCCESS;
    };
    let ran = Arc::new(Ran::default());
    let trials = trials(&corpus, &ran).expect("the corpus can be listed");
    let conclusion = libtest_mimic::run(&arguments, trials);
    say(&format!("{ran:#?}"));
    conclusion.exit_code()
}

/// The checks that one file has to pass.
type Check = fn(&Path, &Ran) -> Result<(), Failed>;

fn trials(corpus: &Path, ran: &Arc<Ran>) -> io::Result<Vec<Trial>> {
    let manifest = fs::read_to_string(corpus.join("MANIFEST.jsonl"))?;
    let manifest: Vec<Value> = manifest.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    let mut trials = Vec::new();
    for line in manifest.iter().filter(|line| line["kind"] == "transcripts") {
        let path = corpus.join(line["file"].as_str().unwrap_or_default());
        let cuts = line["cuts"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        let cuts: Vec<usize> = cuts.filter_map(|cut| usize::try_from(cut).ok()).collect();
        for (name, settings) in EDITS {
            let (ran, path, cuts) = (Arc::clone(ran), path.clone(), cuts.clone());
            trials.push(Trial::test(format!("{name}/{}", stem(&path)), move || session(&path, &cuts, settings, &ran)));
        }
        trials.push(Trial::test(format!("reasoning/{}", stem(&path)), move || encrypted(&path, &cuts)));
    }
    let kinds: [(&str, &str, Check); 3] =
        [("requests", "json", request), ("sse", "sse", stream), ("responses", "json", answer)];
    for (kind, extension, check) in kinds {
        for file in files(&corpus.join(kind), extension)? {
            let ran = Arc::clone(ran);
            trials.push(Trial::test(format!("{kind}/{}", stem(&file)), move || check(&file, &ran)));
        }
    }
    Ok(trials)
}

fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1/responses").expect("it is spoken")
}

// === requests ===

fn request(file: &Path, ran: &Ran) -> Result<(), Failed> {
    let body = Bytes::from(fs::read(file)?);
    let edited = edit_body(&planner_from_toml(PATCH)?, dialect(), body.clone());
    let report = edited.report.as_ref().ok_or("not understood")?;
    let same = matches!(&edited.body[..], [whole] if whole.as_ptr() == body.as_ptr() && whole.len() == body.len());
    let (came, went): (Value, Value) = (serde_json::from_slice(&body)?, serde_json::from_slice(&edited.body.concat())?);
    match (check(&came), same) {
        (Ok(()), true) => {
            let elsewhere = came["previous_response_id"].is_string() || !came["conversation"].is_null();
            count(if elsewhere { &ran.identical_elsewhere } else { &ran.identical });
        }
        (Ok(()), false) => return Err(format!("should have stayed: {:?}", report.changes).into()),
        (Err(_), _) => {
            check(&went).map_err(|error| format!("not sound behind the patch: {error}"))?;
            count(&ran.patched);
        }
    }
    Ok(())
}

// === sessions ===

/// A request as it went out.
struct Step {
    items: Vec<Value>,
    /// The changes that were made, as text.
    changes: BTreeSet<String>,
    /// How many items the client sent.
    came: usize,
}

fn session(file: &Path, cuts: &[usize], settings: &str, ran: &Ran) -> Result<(), Failed> {
    let mut body: Value = serde_json::from_slice(&fs::read(file)?)?;
    let items = body["input"].as_array().ok_or("no items")?.clone();
    let planner = planner_from_toml(settings)?;
    let (mut summaries, mut before) = (HashMap::new(), None);
    for &n in cuts.iter().chain([&items.len()]) {
        body["input"] = Value::Array(items[..n].to_vec());
        let sent = Bytes::from(serde_json::to_vec(&body)?);
        let wrong = |what: String| Failed::from(format!("the first {n} items: {what}"));
        let plan = planned(&planner, &sent, &mut summaries, ran)?;
        let out = joined(splice(&sent, &plan.splices));
        let went: Value = serde_json::from_slice(&out)?;
        check(&went).map_err(wrong)?;
        let step = Step {
            items: went["input"].as_array().cloned().unwrap_or_default(),
            changes: plan.report.changes.iter().map(ToString::to_string).collect(),
            came: n,
        };
        reasoning_is_followed(&items[..n], &step.items).map_err(wrong)?;
        recalled(&plan, &items, ran).map_err(wrong)?;
        if let Some(before) = &before {
            grown(before, &step, ran).map_err(wrong)?;
        }
        // Sent on once more, it stays as it is.
        let again = edit_body(&planner_from_toml(PATCH)?, dialect(), out.clone());
        if again.body.concat() != out {
            return Err(wrong("another patch changes it".to_owned()));
        }
        count(&ran.cuts);
        ran.edited.fetch_add(usize::from(!plan.report.changes.is_empty()), Ordering::Relaxed);
        before = Some(step);
    }
    Ok(())
}

/// The plan of one request, with each summary that it asks for made of nothing much.
fn planned(
    planner: &Planner,
    body: &Bytes,
    summaries: &mut HashMap<abridge_proxy::payload::ChainKey, SummaryState>,
    ran: &Ran,
) -> Result<Plan, Failed> {
    loop {
        let context = planner.anonymous(&*summaries);
        let mut plan = planner.policy.plan(dialect(), body, &context)?;
        let Some(Need::Make(job)) = plan.needs.take() else { return Ok(plan) };
        let prompt = abridge_proxy::summary::Prompt {
            input: abridge_proxy::summary::PromptMode::Cached,
            system: "",
            instruction: "Sum up.",
            max_tokens: 1000,
            model: None,
        };
        let asked = dialect().summary_request(&job.source, &prompt).ok_or("no request for a summary")?;
        let asked: Value = serde_json::from_slice(&asked)?;
        check(&asked).map_err(|error| format!("the request for a summary: {error}"))?;
        if asked["store"] != false || asked["stream"] != true {
            return Err("the request for a summary is stored, or not streamed".into());
        }
        let summary = Summary {
            text: job.frame.around("It went well."),
            tokens_replaced: job.tokens_replaced,
            made_at: job.n_elements,
            transcript: job.transcript.as_ref().map(|job| job.key),
        };
        summaries.insert(job.key, SummaryState::Summary(Arc::new(summary)));
        count(&ran.summaries);
    }
}

/// The beginning is the old one, unless something was changed now in what was sent before.
fn grown(before: &Step, now: &Step, ran: &Ran) -> Result<(), String> {
    if now.items.starts_with(&before.items) {
        return Ok(());
    }
    let old = |change: &&String| index(change).is_none_or(|index| index < before.came);
    if now.changes.iter().filter(old).eq(before.changes.iter().filter(old)) {
        let at = now.items.iter().zip(&before.items).take_while(|(a, b)| a == b).count();
        let item = |step: &Step| step.items.get(at).map_or("-".to_owned(), ToString::to_string);
        return Err(format!("item {at} is another without a pass: {} / {}", item(before), item(now)));
    }
    count(&ran.passes);
    Ok(())
}

/// The item that a change is about, out of what it says: the first number in it.
fn index(change: &str) -> Option<usize> {
    let digits = change.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty())?;
    digits.parse().ok()
}

/// Returns what each handle names is what a text of that item said, to the byte.
fn recalled(plan: &Plan, items: &[Value], ran: &Ran) -> Result<(), String> {
    for change in &plan.report.changes {
        let (Action::Truncate { message: item }
        | Action::Clear { message: item }
        | Action::ClearInput { message: item }) = change.action
        else {
            continue;
        };
        let mut texts = Vec::new();
        strings(&items[item], &mut texts);
        for handle in &change.handles {
            let offload = plan.offloads.iter().find(|offload| offload.key == *handle);
            let stored = offload.ok_or_else(|| format!("{handle} is not stored: {change}"))?.payload.bytes();
            let base64 = STANDARD.encode(&stored);
            if !texts.iter().any(|text| text.as_bytes() == stored || text.ends_with(&base64)) {
                return Err(format!("{handle} is none of the texts of item {item}"));
            }
            count(&ran.handles);
        }
    }
    Ok(())
}

fn strings<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(values) => values.iter().for_each(|value| strings(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| strings(value, found)),
        _ => {}
    }
}

// === encrypted reasoning ===

/// Tells how many of a session's tokens are encrypted reasoning, and how many of them leave at a pass of a model that binds
/// it to its prefix. The pass is made at half of the session's tokens.
fn encrypted(file: &Path, cuts: &[usize]) -> Result<(), Failed> {
    let mut body: Value = serde_json::from_slice(&fs::read(file)?)?;
    let items = body["input"].as_array().ok_or("no items")?.clone();
    let is_encrypted = |item: &&Value| item["type"] == "reasoning" && item["encrypted_content"].is_string();
    if !items.iter().any(|item| is_encrypted(&item)) {
        return Ok(());
    }
    let gauge = planner_from_toml("")?.meter.for_model(body["model"].as_str());
    let tokens = |item: &Value| dialect().count(&gauge, Countable::Element, &item.to_string());
    let all: usize = items.iter().map(tokens).sum();
    let planner = planner_from_toml(&format!(
        "reasoning.models = ['*']\npolicy.edits = ['patch_tool_calls', 'clear_tool_results']
         clear_tool_results = {{ when = 'any', trigger = {{ tokens = {} }}, keep = {{ results = 3 }}, clear_at_least = 0 }}",
        all / 2
    ))?;
    let (mut sent, mut reasoning, mut left) = (0, 0, 0);
    for &n in cuts.iter().chain([&items.len()]) {
        body["input"] = Value::Array(items[..n].to_vec());
        let request = Bytes::from(serde_json::to_vec(&body)?);
        let plan =
            planner.policy.plan(dialect(), &request, &planner.anonymous(&abridge_proxy::summary::NoSummaries))?;
        let went: Value = serde_json::from_slice(&joined(splice(&request, &plan.splices)))?;
        let bound = |items: &[Value]| items.iter().filter(is_encrypted).map(tokens).sum::<usize>();
        let there = bound(&items[..n]);
        sent += items[..n].iter().map(tokens).sum::<usize>();
        reasoning += there;
        left += there - bound(went["input"].as_array().ok_or("no items")?);
    }
    let own: usize = items.iter().filter(is_encrypted).map(tokens).sum();
    say(&format!(
        "{}: {own} of {all} tokens are encrypted reasoning; over all requests {reasoning} of {sent}, of which {left} leave",
        stem(file)
    ));
    Ok(())
}

// === answers ===

fn tapped(kind: &'static str, body: &[u8], piece: usize) -> Option<Usage> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, kind.parse().expect("a type"));
    let mut tap = Tap::new(dialect(), &headers, &Budget::new(0));
    body.chunks(piece).for_each(|chunk| tap.watch(&Bytes::copy_from_slice(chunk)));
    tap.finish().usage
}

fn usage_of(response: &Value) -> Option<Usage> {
    let usage = response.get("usage").filter(|usage| usage.is_object())?;
    let tokens = |value: &Value| value.as_u64().unwrap_or_default();
    Some(Usage {
        input: tokens(&usage["input_tokens"]),
        cached: tokens(&usage["input_tokens_details"]["cached_tokens"]),
        written: tokens(&usage["input_tokens_details"]["cache_write_tokens"]),
        written_hour: 0,
        output: tokens(&usage["output_tokens"]),
    })
}

fn stream(file: &Path, ran: &Ran) -> Result<(), Failed> {
    let text = fs::read(file)?;
    let lines = String::from_utf8_lossy(&text);
    let events = lines.lines().filter_map(|line| line.strip_prefix("data:"));
    let events = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let expected = events.filter_map(|event| usage_of(&event["response"])).next_back();
    for piece in [1 << 20, 1000, 7] {
        let found = tapped("text/event-stream", &text, piece);
        if found != expected {
            return Err(format!("{found:?} and not {expected:?}").into());
        }
    }
    count(&ran.streams);
    ran.with_usage.fetch_add(usize::from(expected.is_some()), Ordering::Relaxed);
    Ok(())
}

fn answer(file: &Path, ran: &Ran) -> Result<(), Failed> {
    let text = fs::read(file)?;
    let Ok(value) = serde_json::from_slice::<Value>(&text) else { return Ok(()) };
    let expected = usage_of(&value).filter(|_| value["object"].as_str().is_some_and(|object| object == "response"));
    let found = tapped("application/json", &text, 1000);
    if found != expected && value["object"] == "response" {
        return Err(format!("{found:?} and not {expected:?}").into());
    }
    count(&ran.answers);
    ran.with_usage.fetch_add(usize::from(expected.is_some()), Ordering::Relaxed);
    Ok(())
}

// === what all ask ===

fn files(dir: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let entries: io::Result<Vec<_>> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect();
    let mut files = entries?;
    files.retain(|path| path.extension().is_some_and(|it| it == extension));
    files.sort();
    if files.is_empty() { Err(io::Error::other(format!("no .{extension} in {}", dir.display()))) } else { Ok(files) }
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[expect(clippy::print_stdout, reason = "a test binary without a harness of its own tells what it ran")]
fn say(text: &str) {
    println!("{text}");
}
