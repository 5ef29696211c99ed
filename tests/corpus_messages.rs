//! Recorded traffic of programs that speak Anthropic Messages. Runs where `ABRIDGE_CORPUS_MESSAGES` names a folder with
//! `requests/NAME.json` (request bodies), `sse/NAME.sse` and `responses/NAME.json` (answers) and `transcripts/*.json`
//! (`{model, messages, system?}`, long sessions of agents).
//!
//! - A request whose tool calls are sound goes on as the very same bytes; another one comes out sound.
//! - A session is sent as its agent sent it: once before each answer of the model, with the mark for the prompt cache on its
//!   last block. Each request comes out sound under each policy, begins by value with what went out the time before unless a
//!   pass was made, and each text that was taken out is among the offloads to the byte.
//! - The usage and the stop reason of each recorded answer are read as the file has them.
#![expect(clippy::disallowed_types, reason = "recorded traffic is looked at here, and nothing of it is sent on")]
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "a panic is a test's answer")]

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, io};

use abridge_proxy::dialect::{self, Answer, Dialect};
use abridge_proxy::plan::{Action, Plan};
use abridge_proxy::planner::Planner;
use abridge_proxy::replay::planner_from_toml;
use abridge_proxy::span::{joined, splice};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

mod messages_validator;

/// What ran, to be told at the end.
#[derive(Debug, Default)]
struct Ran {
    identical: AtomicUsize,
    patched: AtomicUsize,
    sessions: AtomicUsize,
    cuts: AtomicUsize,
    passes: AtomicUsize,
    prefixes: AtomicUsize,
    payloads: AtomicUsize,
    streams: AtomicUsize,
    answers: AtomicUsize,
}

/// What one file has to stand.
type Check = fn(&Path, &Ran) -> Result<(), Failed>;

const PATCH: &str = "policy.edits = [\"patch_tool_calls\"]";
const CLEAR: &str = r#"
policy.edits = ["patch_tool_calls", "truncate_tool_results", "clear_tool_results"]
truncate_tool_results = { max_bytes = 5000 }
clear_tool_results = { when = 'any', trigger = { tokens = 20000 }, keep = { results = 3 }, clear_tool_inputs = true }
"#;
const FILTER: &str = r#"
policy.edits = ["patch_tool_calls", "filter_tool_calls", "truncate_tool_results", "clear_tool_results"]
filter_tool_calls = { max_tool_calls = 20 }
truncate_tool_results = { max_bytes = 5000 }
clear_tool_results = { when = 'any', trigger = { tokens = 20000 }, keep = { results = 3 } }
"#;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let Some(corpus) = env::var_os("ABRIDGE_CORPUS_MESSAGES").map(PathBuf::from) else {
        say("0 run: ABRIDGE_CORPUS_MESSAGES is not set");
        return ExitCode::SUCCESS;
    };
    let ran = Arc::new(Ran::default());
    let trials = match trials(&corpus, &ran) {
        Ok(trials) => trials,
        Err(error) => {
            say(&format!("the corpus cannot be listed: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    say(&ran.summary());
    conclusion.exit_code()
}

fn trials(corpus: &Path, ran: &Arc<Ran>) -> io::Result<Vec<Trial>> {
    let kinds: [(&str, Check); 4] =
        [("transcripts", session), ("requests", request), ("sse", stream), ("responses", answer)];
    let mut trials = Vec::new();
    for (kind, check) in kinds {
        let entries: io::Result<Vec<_>> = fs::read_dir(corpus.join(kind))?.map(|entry| Ok(entry?.path())).collect();
        let mut files = entries?;
        files.sort();
        for file in files {
            let (name, ran) = (file.file_stem().unwrap_or_default().to_string_lossy().into_owned(), Arc::clone(ran));
            trials.push(Trial::test(format!("{kind}/{name}"), move || check(&file, &ran)));
        }
    }
    Ok(trials)
}

impl Ran {
    fn summary(&self) -> String {
        let n = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        format!(
            "{} requests identical, {} patched\n\
             {} sessions played, {} requests of theirs under 3 policies each; {} passes, {} equal beginnings, {} payloads\n\
             {} streams and {} other answers read",
            n(&self.identical),
            n(&self.patched),
            n(&self.sessions),
            n(&self.cuts),
            n(&self.passes),
            n(&self.prefixes),
            n(&self.payloads),
            n(&self.streams),
            n(&self.answers),
        )
    }
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn messages() -> &'static dyn Dialect {
    dialect::for_path("/v1/messages").expect("the dialect is known")
}

fn planned(planner: &Planner, body: &Bytes) -> Result<(Plan, Bytes), Failed> {
    let plan = planner.plan(messages(), body)?;
    let out = joined(splice(body, &plan.splices));
    Ok((plan, out))
}

// === requests ===

fn request(file: &Path, ran: &Ran) -> Result<(), Failed> {
    let body = Bytes::from(fs::read(file)?);
    let (plan, out) = planned(&planner_from_toml(PATCH)?, &body)?;
    let came: Value = serde_json::from_slice(&body)?;
    let same = plan.is_empty() && out.as_ptr() == body.as_ptr();
    match messages_validator::check(&came) {
        Ok(()) if same => count(&ran.identical),
        Ok(()) => return Err(format!("the body should have stayed as it came:\n{plan}").into()),
        Err(before) => {
            messages_validator::check(&serde_json::from_slice(&out)?)
                .map_err(|error| format!("{before}; then {error}\n{plan}"))?;
            let (again, _) = planned(&planner_from_toml(PATCH)?, &out)?;
            if !again.is_empty() {
                return Err("it is patched again".into());
            }
            count(&ran.patched);
        }
    }
    Ok(())
}

// === sessions ===

fn session(file: &Path, ran: &Ran) -> Result<(), Failed> {
    let transcript: Value = serde_json::from_slice(&fs::read(file)?)?;
    let requests = requests(&transcript);
    for policy in [PATCH, CLEAR, FILTER] {
        let planner = planner_from_toml(policy)?;
        let mut before = Step::default();
        for (n, body) in &requests {
            let now = Step::of(&planner, *n, body, ran);
            let now =
                now.map_err(|error| format!("{n} messages under {policy}: {}", error.message().unwrap_or_default()))?;
            if policy == PATCH
                && messages_validator::check(&serde_json::from_slice(body)?).is_ok()
                && !now.changes.is_empty()
            {
                return Err(format!("{n} messages: a sound request was edited").into());
            }
            now.grown(&before, ran).map_err(|error| format!("{n} messages under {policy}: {error}"))?;
            before = now;
        }
    }
    ran.cuts.fetch_add(requests.len(), Ordering::Relaxed);
    count(&ran.sessions);
    Ok(())
}

/// The requests of a session: the number of messages, and the body with the mark of a client on its last block.
fn requests(transcript: &Value) -> Vec<(usize, Bytes)> {
    let messages = transcript["messages"].as_array().expect("messages");
    let ends = (1..=messages.len()).filter(|&n| messages.get(n).is_none_or(|next| next["role"] == "assistant"));
    let written: Vec<_> = messages.iter().map(Value::to_string).collect();
    let mut requests = Vec::new();
    for n in ends {
        let last = marked(&messages[n - 1]);
        let head = format!(r#"{{"model":{},"max_tokens":32000,"#, transcript["model"]);
        let system = transcript.get("system").map_or(String::new(), |system| format!("\"system\":{system},"));
        let before = written[..n - 1].iter().map(String::as_str).chain([""]).collect::<Vec<_>>().join(",");
        requests.push((n, Bytes::from(format!("{head}{system}\"messages\":[{before}{last}]}}"))));
    }
    requests
}

/// A message with a mark for the prompt cache on its last block.
fn marked(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(text) = message["content"].as_str() {
        message["content"] = serde_json::json!([{ "type": "text", "text": text }]);
    }
    if let Some(last) = message["content"].as_array_mut().and_then(|blocks| blocks.last_mut()) {
        last["cache_control"] = serde_json::json!({ "type": "ephemeral" });
    }
    message
}

/// One request, as it went out.
#[derive(Default)]
struct Step {
    n_messages: usize,
    /// Each block with its role, by value and without marks for the prompt cache.
    blocks: Vec<String>,
    /// What a pass has done: the kind, the message, the call.
    changes: BTreeSet<(&'static str, usize, String)>,
}

impl Step {
    fn of(planner: &Planner, n_messages: usize, body: &Bytes, ran: &Ran) -> Result<Self, Failed> {
        let (plan, out) = planned(planner, body)?;
        let out: Value = serde_json::from_slice(&out)?;
        messages_validator::check(&out)?;
        recalled(&plan, body, ran)?;
        let changes = plan.report.changes.iter().map(|change| {
            let message = match change.action {
                Action::Insert { behind } | Action::InsertText { behind } => behind,
                Action::Move { message, .. }
                | Action::Drop { message }
                | Action::DropCall { message }
                | Action::Strip { message }
                | Action::Truncate { message }
                | Action::Deduplicate { message }
                | Action::Clear { message }
                | Action::ClearInput { message }
                | Action::Mend { message } => message,
                Action::Summarize { from, .. } => from,
            };
            (change.action.label(), message, change.call_id.clone())
        });
        Ok(Self { n_messages, blocks: messages_validator::blocks(&out), changes: changes.collect() })
    }

    /// Begins with what went out the time before, or a pass was made, which has taken nothing back.
    fn grown(&self, before: &Self, ran: &Ran) -> Result<(), String> {
        let passing = |change: &&(&'static str, usize, String)| {
            !matches!(change.0, "insert" | "insert_text" | "move" | "truncate")
        };
        let dropped: BTreeSet<_> =
            self.changes.iter().filter(|change| change.0 == "drop").map(|change| &change.2).collect();
        let stands =
            |change: &&(&'static str, usize, String)| self.changes.contains(change) || dropped.contains(&change.2);
        if let Some(back) = before.changes.iter().filter(passing).find(|change| !stands(change)) {
            return Err(format!("{back:?} has come back"));
        }
        let new = self.changes.difference(&before.changes).filter(passing);
        if new.into_iter().any(|(_, message, _)| *message < before.n_messages) {
            count(&ran.passes);
            return Ok(());
        }
        if let Some(n) = (0..before.blocks.len()).find(|&n| self.blocks.get(n) != before.blocks.get(n)) {
            let of = |step: &Self| step.blocks.get(n).map(|block| block.chars().take(300).collect::<String>());
            return Err(format!("block {n} is another one without a pass: {:?} was {:?}", of(self), of(before)));
        }
        count(&ran.prefixes);
        Ok(())
    }
}

/// Each text that a handle names is in the offloads as the client sent it.
fn recalled(plan: &Plan, body: &Bytes, ran: &Ran) -> Result<(), Failed> {
    if plan.offloads.is_empty() {
        return Ok(());
    }
    let offloads: HashMap<_, _> = plan.offloads.iter().map(|offload| (offload.key, offload.payload.bytes())).collect();
    let came: Value = serde_json::from_slice(body)?;
    let texts = messages_validator::texts_of_results(&came);
    for change in plan.report.changes.iter().filter(|change| !change.handles.is_empty()) {
        let texts = texts.get(&*change.call_id).map(Vec::as_slice).unwrap_or_default();
        for handle in &change.handles {
            let payload = offloads.get(handle).ok_or_else(|| format!("{handle} is not stored"))?;
            let is_input = change.action.label() == "clear_input";
            let base64 = STANDARD.encode(payload);
            if !is_input && !texts.iter().any(|text| text.as_bytes() == payload || text.ends_with(&base64)) {
                return Err(format!("{handle} of {} is another text", change.call_id).into());
            }
            count(&ran.payloads);
        }
    }
    Ok(())
}

// === answers ===

fn stream(file: &Path, ran: &Ran) -> Result<(), Failed> {
    let text = fs::read_to_string(file)?;
    let data: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data:")).collect();
    let (mut tapped, mut whole) = (Answer::default(), Answer::with_text());
    let mut expected = Expected::default();
    for data in data {
        if messages().reports(data.as_bytes()) {
            messages().read_answer(data.as_bytes(), &mut tapped)?;
        }
        messages().read_answer(data.as_bytes(), &mut whole)?;
        expected.event(&serde_json::from_str(data)?);
    }
    expected.check(&tapped)?;
    expected.check(&whole)?;
    if whole.text.as_deref() != Some(&*expected.text) || !whole.is_complete {
        return Err("the text is another one, or the end was missed".into());
    }
    count(&ran.streams);
    Ok(())
}

fn answer(file: &Path, ran: &Ran) -> Result<(), Failed> {
    let body = fs::read(file)?;
    let Ok(json) = serde_json::from_slice::<Value>(&body) else { return Ok(()) };
    let mut answer = Answer::with_text();
    messages().read_answer(&body, &mut answer)?;
    let mut expected = Expected::default();
    expected.message(&json);
    expected.check(&answer)?;
    if answer.is_error != (json["type"] == "error") || answer.text.as_deref() != Some(&*expected.text) {
        return Err("it is read as something else".into());
    }
    count(&ran.answers);
    Ok(())
}

/// What the file says.
#[derive(Default)]
struct Expected {
    usage: HashMap<String, u64>,
    stop_reason: Option<String>,
    text: String,
}

impl Expected {
    fn event(&mut self, event: &Value) {
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.message(&event["message"]),
            "message_delta" => {
                self.bill(&event["usage"]);
                self.stop(&event["delta"]["stop_reason"]);
            }
            "content_block_start" => self.text += event["content_block"]["text"].as_str().unwrap_or_default(),
            "content_block_delta" => self.text += event["delta"]["text"].as_str().unwrap_or_default(),
            _ => {}
        }
    }

    fn message(&mut self, message: &Value) {
        self.bill(&message["usage"]);
        self.stop(&message["stop_reason"]);
        for block in message["content"].as_array().into_iter().flatten().filter(|block| block["type"] == "text") {
            self.text += block["text"].as_str().unwrap_or_default();
        }
    }

    fn bill(&mut self, usage: &Value) {
        for (key, value) in usage.as_object().into_iter().flatten() {
            self.usage.extend(value.as_u64().map(|value| (key.clone(), value)));
        }
    }

    fn stop(&mut self, reason: &Value) {
        self.stop_reason = reason.as_str().map(str::to_owned).or(self.stop_reason.take());
    }

    fn check(&self, answer: &Answer) -> Result<(), Failed> {
        let of = |key: &str| self.usage.get(key).copied().unwrap_or_default();
        let (read, written) = (of("cache_read_input_tokens"), of("cache_creation_input_tokens"));
        let expected = (of("input_tokens") + read + written, read, of("output_tokens"));
        let usage = answer.usage.unwrap_or_default();
        if (usage.input, usage.cached, usage.output) != expected || answer.stop_reason != self.stop_reason {
            return Err(format!("{answer:?}, where the file says {expected:?} and {:?}", self.stop_reason).into());
        }
        Ok(())
    }
}

#[expect(clippy::print_stdout, reason = "a test binary without a harness of its own tells what it ran")]
fn say(text: &str) {
    println!("{text}");
}
