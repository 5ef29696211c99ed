//! Recorded traffic of other people's programs, through the core and through the real binary, with `patch_tool_calls` as the
//! only edit; what the others do to long sessions is in `sessions.rs`. Runs where `ABRIDGE_CORPUS`
//! names a folder with `chat/NAME.json` (request bodies), `sse/NAME.sse` and `resp/NAME.json` (the answers to them),
//! `index.jsonl` (their statuses) and `trajectories/*.json` (`{model, messages, tools?}`, long sessions of agents).
//!
//! - A request whose tool calls are sound goes on as the very same bytes; another one comes out sound.
//! - A trajectory is sent as an agent's loop sent it: once before each answer of the model, each time from its beginning. Each
//!   time it comes out sound, with every message that stays byte for byte, and begins with what went out the time before.
//! - Through the binary, the upstream gets the same as from the core, and every answer comes back whole, in whatever pieces it
//!   was sent.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is a test's answer"
)]
#![expect(clippy::disallowed_methods, clippy::print_stderr, reason = "the kit plays the other sides of a connection")]

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, io};

use abridge_proxy::dialect;
use abridge_proxy::engine::{EditedBody, edit_body};
use abridge_proxy::planner::Planner;
use abridge_proxy::replay::planner_from_toml;
use bytes::Bytes;
use libtest_mimic::{Arguments, Failed, Trial};
use serde::Deserialize;
use serde_json::value::RawValue;

use accounted::{accounted, elements};
use crossing::{Crossing, Framing};
use it::support::{Scene, validator};

mod accounted;
mod crossing;
#[expect(dead_code, unused_imports, reason = "it serves the integration tests, too")]
mod it {
    pub(crate) mod support;
}

/// What ran, to be told at the end.
#[derive(Debug, Default)]
struct Ran {
    identical: AtomicUsize,
    patched: AtomicUsize,
    not_understood: AtomicUsize,
    trajectories: AtomicUsize,
    cuts: AtomicUsize,
    cuts_patched: AtomicUsize,
    cuts_restated: AtomicUsize,
    crossed: AtomicUsize,
    answers: AtomicUsize,
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let Some(corpus) = env::var_os("ABRIDGE_CORPUS").map(PathBuf::from) else {
        say("0 run: ABRIDGE_CORPUS is not set");
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

/// The checks that one file has to pass.
type Check = fn(&Path, &Ran) -> Result<(), Failed>;

fn trials(corpus: &Path, ran: &Arc<Ran>) -> io::Result<Vec<Trial>> {
    let trial = |name: String, path: PathBuf, check: Check| {
        let ran = Arc::clone(ran);
        Trial::test(name, move || check(&path, &ran))
    };
    // The long ones go first.
    let mut trials = vec![
        trial("wire/exchanges".to_owned(), corpus.to_owned(), cross_exchanges),
        trial("wire/trajectories".to_owned(), corpus.join("trajectories"), cross_trajectories),
    ];
    let kinds: [(&str, Check); 2] = [("trajectories", trajectory), ("chat", chat)];
    for (kind, check) in kinds {
        let files = files(&corpus.join(kind), "json")?;
        trials.extend(files.into_iter().map(|file| trial(format!("{kind}/{}", stem(&file)), file, check)));
    }
    Ok(trials)
}

impl Ran {
    fn summary(&self) -> String {
        let n = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        format!(
            "{} requests identical, {} patched, {} not understood and identical\n\
             {} trajectories cut {} times; {} cuts patched, {} of them begin otherwise than the cut before\n\
             {} requests sent through the binary, {} recorded answers brought back, each in several ways",
            n(&self.identical),
            n(&self.patched),
            n(&self.not_understood),
            n(&self.trajectories),
            n(&self.cuts),
            n(&self.cuts_patched),
            n(&self.cuts_restated),
            n(&self.crossed),
            n(&self.answers),
        )
    }
}

// === requests ===

fn chat(file: &Path, ran: &Ran) -> Result<(), Failed> {
    let body = Bytes::from(fs::read(file)?);
    let edited = edit(&planner()?, &body)?;
    let sound = validator::check(&body).is_ok();
    let same = is_same(&edited, &body);
    match (&edited.report, sound) {
        (None, _) if same => count(&ran.not_understood),
        (Some(_), true) if same => count(&ran.identical),
        (None, _) | (Some(_), true) => return Err("the body should have stayed as it came".into()),
        (Some(report), false) => {
            let out = edited.body.concat();
            validator::check(&out).map_err(|error| format!("not sound behind the patch: {error}"))?;
            accounted(&elements(&body), &elements(&out), report, is_ours)?;
            count(&ran.patched);
        }
    }
    Ok(())
}

// === trajectories ===

/// One trajectory, its values where they are in the file.
#[derive(Deserialize)]
struct Trajectory<'a> {
    #[serde(borrow)]
    model: &'a RawValue,
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct TurnUnit {
    role: String,
}

fn trajectory(file: &Path, ran: &Ran) -> Result<(), Failed> {
    let text = fs::read_to_string(file)?;
    let Trajectory { model, messages, tools } = serde_json::from_str(&text)?;
    let head = format!("{{\"model\":{model},\"messages\":[");
    let tail = tools.map_or_else(|| "]}".to_owned(), |tools| format!("],\"tools\":{tools}}}"));
    let planner = planner()?;
    let mut before = Vec::new();
    for n in cuts(&messages)? {
        let body = Bytes::from([head.as_bytes(), first(&text, &messages, n), tail.as_bytes()].concat());
        let edited = edit(&planner, &body)?;
        let report = edited.report.as_ref().ok_or("not understood")?;
        if report.changes.is_empty() && !is_same(&edited, &body) {
            return Err(format!("the first {n} messages should have stayed as they came").into());
        }
        let out = edited.body.concat();
        let inner = out.strip_prefix(head.as_bytes()).and_then(|out| out.strip_suffix(tail.as_bytes()));
        let inner = inner.ok_or("something around the messages has changed")?;
        step(&before, inner, ran).map_err(|error| format!("the first {n} messages: {error}"))?;
        if n == messages.len() {
            validator::check(&out)?;
            let came: Vec<_> = messages.iter().map(|message| message.get()).collect();
            accounted(&came, &elements(&out), report, is_ours)?;
        }
        count(&ran.cuts);
        ran.cuts_patched.fetch_add(usize::from(!report.changes.is_empty()), Ordering::Relaxed);
        inner.clone_into(&mut before);
    }
    count(&ran.trajectories);
    Ok(())
}

/// How many messages each request of the loop had: all before an answer; and at last everything there is.
fn cuts(messages: &[&RawValue]) -> Result<Vec<usize>, Failed> {
    let mut cuts = Vec::new();
    for (n, message) in messages.iter().enumerate().skip(1) {
        if serde_json::from_str::<TurnUnit>(message.get())?.role == "assistant" {
            cuts.push(n);
        }
    }
    cuts.push(messages.len());
    Ok(cuts)
}

/// The first `n` messages as the file has them, with everything between them.
fn first<'a>(text: &'a str, messages: &[&'a RawValue], n: usize) -> &'a [u8] {
    let offset = |message: &RawValue| message.get().as_ptr().addr() - text.as_ptr().addr();
    let last = messages[n - 1];
    &text.as_bytes()[offset(messages[0])..offset(last) + last.get().len()]
}

/// One request behind another. What they have in common has been looked at already; what is new begins with an answer
/// of the model and ends with its results, so it is to be sound alone. Only a result that came late may change what went
/// out before: it replaces its placeholder. Then everything is looked at.
fn step(before: &[u8], now: &[u8], ran: &Ran) -> Result<(), String> {
    let new = now.strip_prefix(before).unwrap_or_else(|| {
        count(&ran.cuts_restated);
        now
    });
    let new = new.strip_prefix(b",").unwrap_or(new);
    validator::check(&[br#"{"messages":["#, new, b"]}"].concat())
}

// === through the binary ===

/// A line of `index.jsonl`.
#[derive(Default, Deserialize)]
struct Indexed {
    name: String,
    status: Option<u16>,
    response_content_type: Option<String>,
}

/// Every request and every answer, in turn through one process.
fn cross_exchanges(corpus: &Path, ran: &Ran) -> Result<(), Failed> {
    let lines = fs::read_to_string(corpus.join("index.jsonl"))?;
    let indexed: Result<Vec<Indexed>, _> = lines.lines().map(serde_json::from_str).collect();
    let indexed: HashMap<_, _> = indexed?.into_iter().map(|line| (line.name.clone(), line)).collect();
    let requests = files(&corpus.join("chat"), "json")?;
    let streams = files(&corpus.join("sse"), "sse")?;
    let names: BTreeSet<_> = requests.iter().chain(&streams).map(|file| stem(file)).collect();
    crossing::block_on(async {
        let mut scene = Scene::with(&format!("{SETTINGS}{ALONE}")).await;
        for (seed, name) in (0..).zip(&names) {
            let crossing = recorded(corpus, name, indexed.get(name), ran)?;
            for framing in Framing::ALL {
                let crossed = crossing.run(&mut scene, framing, seed).await;
                crossed.map_err(|error| format!("{name}, {framing:?}: {error}"))?;
            }
            count(&ran.crossed);
        }
        Ok(())
    })
}

/// One exchange as the corpus has it; where the request or the answer was not recorded, a plain one replaces it.
fn recorded(corpus: &Path, name: &str, indexed: Option<&Indexed>, ran: &Ran) -> Result<Crossing, Failed> {
    let request = found(&corpus.join(format!("chat/{name}.json")))?;
    let request = request.unwrap_or_else(|| r#"{"model":"m","messages":[{"role":"user","content":"Hi."}]}"#.into());
    let stream = found(&corpus.join(format!("sse/{name}.sse")))?;
    let kind = if stream.is_some() { "text/event-stream" } else { "application/json" };
    let response = match stream {
        None => found(&corpus.join(format!("resp/{name}.json")))?,
        some => some,
    };
    ran.answers.fetch_add(usize::from(response.is_some()), Ordering::Relaxed);
    let kind = indexed.and_then(|it| it.response_content_type.clone()).unwrap_or_else(|| kind.to_owned());
    Ok(Crossing {
        target: "/v1/chat/completions".to_owned(),
        forwarded: edit(&planner()?, &request)?.body.concat().into(),
        request,
        status: indexed.and_then(|it| it.status).unwrap_or(200),
        content_type: kind,
        response: response.unwrap_or_else(|| r#"{"choices":[]}"#.into()),
    })
}

/// Every trajectory, whole.
fn cross_trajectories(dir: &Path, ran: &Ran) -> Result<(), Failed> {
    crossing::block_on(async {
        let mut scene = Scene::with(&format!("{SETTINGS}{ALONE}")).await;
        for (seed, file) in (0..).zip(files(dir, "json")?) {
            let request = Bytes::from(fs::read(&file)?);
            let crossing = Crossing {
                target: "/v1/chat/completions".to_owned(),
                forwarded: edit(&planner()?, &request)?.body.concat().into(),
                request,
                status: 200,
                content_type: "application/json".to_owned(),
                response: r#"{"choices":[]}"#.into(),
            };
            let crossed = crossing.run(&mut scene, Framing::Length, seed).await;
            crossed.map_err(|error| format!("{}: {error}", stem(&file)))?;
            count(&ran.crossed);
        }
        Ok(())
    })
}

// === what all ask ===

/// The same for the core and for the binary.
const SETTINGS: &str = "policy.edits = [\"patch_tool_calls\"]\n";

/// The upstream of the tests is asked for nothing but what the client asks for.
const ALONE: &str = "tokens.ask_upstream = false\n";

fn planner() -> Result<Planner, Failed> {
    Ok(planner_from_toml(SETTINGS)?)
}

fn edit(planner: &Planner, body: &Bytes) -> Result<EditedBody, Failed> {
    let dialect = dialect::for_path("/v1/chat/completions").ok_or("no dialect")?;
    Ok(edit_body(planner, dialect, body.clone()))
}

/// Whether the body goes on as it came, without having been copied.
fn is_same(edited: &EditedBody, body: &Bytes) -> bool {
    matches!(&edited.body[..], [whole] if whole.as_ptr() == body.as_ptr() && whole.len() == body.len())
}

/// The texts of the user between two messages of the model, and at the end.
const TEXTS: [&str; 2] = ["[Tool calls were removed here.]", "[A tool result was moved or removed here.]"];

/// Whether a message is a result that abridge has put in, or such a text.
fn is_ours(message: &str) -> bool {
    message.starts_with(r#"{"role":"tool","#) || TEXTS.iter().any(|text| message.contains(text))
}

fn files(dir: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let entries: io::Result<Vec<_>> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect();
    let mut files = entries?;
    files.retain(|path| path.extension().is_some_and(|it| it == extension));
    files.sort();
    if files.is_empty() { Err(io::Error::other(format!("no .{extension} in {}", dir.display()))) } else { Ok(files) }
}

fn found(file: &Path) -> io::Result<Option<Bytes>> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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
