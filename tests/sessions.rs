//! Policies on long recorded sessions. Runs where `ABRIDGE_CORPUS` names a folder with `trajectories/*.json`.
//!
//! Each session is sent as an agent's loop sent it, under the trigger of 40,000 tokens and with three results kept:
//!
//! - what went out once goes out again at the beginning of the next request, byte for byte, unless the trigger held anew,
//!   and then nothing changes but the results that were cleared now;
//! - no request is larger than the trigger and what a pass waits for, unless it is so with what must not be cleared alone;
//! - on each of the ten longest, a sticky frontier moves at most a quarter as often as a sliding one, and costs less than
//!   that and than no edits; where a pass is made however little it frees, it holds no more than its order.
#![expect(clippy::indexing_slicing, reason = "a panic is a test's answer")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use abridge_proxy::conversation::Role;
use abridge_proxy::dialect;
use abridge_proxy::plan::Action;
use abridge_proxy::planner::Planner;
use abridge_proxy::simulate::sent_request::SentRequest;
use abridge_proxy::simulate::{Conditions, PolicyUnderTest, Simulation, Transcript, TranscriptSelection};
use abridge_proxy::span::{joined, splice};
use abridge_proxy::upstream::routes::Routes;
use libtest_mimic::{Arguments, Failed, Trial};

const TRIGGER: usize = 40_000;
const KEEP: usize = 3;
/// A pass that would free less waits.
const AT_LEAST: usize = TRIGGER / 7;

const STICKY: &str =
    "clear_tool_results = { when = 'any', trigger = { tokens = 40000 }, keep = { results = 3 }, keep_reads = 0 }";
const AT_ONCE: &str = "clear_tool_results = { when = 'any', trigger = { tokens = 40000 }, keep = { results = 3 }, keep_reads = 0, clear_at_least = 0 }";
const SLIDING: &str = "clear_tool_results = { trigger = { tokens = 40000 }, keep = { results = 3 }, keep_reads = 0, frontier = \"sliding\" }";
const NONE: &str = "policy.edits = []";
/// The edits of the others: pointers would change the tokens that a trigger is compared with, and are tested elsewhere.
const EDITS: &str = "policy.edits = ['patch_tool_calls', 'truncate_tool_results', 'clear_tool_results', 'summarize']\n";

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let Some(corpus) = env::var_os("ABRIDGE_CORPUS").map(PathBuf::from) else {
        say("0 run: ABRIDGE_CORPUS is not set");
        return ExitCode::SUCCESS;
    };
    let folder = corpus.join("trajectories");
    let Ok(files) = files(&folder) else {
        say(&format!("{} cannot be listed", folder.display()));
        return ExitCode::FAILURE;
    };
    let mut trials = vec![Trial::test("the_ten_longest", move || ten_longest(folder))];
    trials.extend(files.into_iter().map(|file| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Trial::test(format!("stable/{name}"), move || stable(&file))
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}

// === one session ===

/// One request, as it went out.
struct Step {
    sent: SentRequest,
    roles: Vec<Role>,
    tokens: Vec<usize>,
    /// The results that were cleared, and what they had before.
    cleared: BTreeSet<(usize, usize)>,
    /// The repairs, as text.
    patches: BTreeSet<String>,
    /// The tokens of the results that must not be cleared: those that were not read, and the newest others.
    spared: usize,
}

fn stable(file: &Path) -> Result<(), Failed> {
    let transcript = Transcript::read(file, None)?;
    let candidate = candidate("sticky", STICKY)?;
    let mut before: Option<Step> = None;
    for (n, body) in transcript.requests().enumerate() {
        let now = step(&transcript, &candidate, &body, before.as_ref())?;
        let wrong = |what: String| Failed::from(format!("request {n}: {what}"));
        bounded(&now).map_err(wrong)?;
        if let Some(before) = &before {
            grown(before, &now).map_err(wrong)?;
        }
        before = Some(now);
    }
    Ok(())
}

fn step(
    transcript: &Transcript,
    candidate: &PolicyUnderTest,
    body: &bytes::Bytes,
    before: Option<&Step>,
) -> Result<Step, Failed> {
    let dialect = dialect::for_path("/v1/chat/completions").ok_or("no dialect")?;
    let plan = candidate.planners.default().plan(dialect, body)?;
    let changes = &plan.report.changes;
    let cleared = changes.iter().filter_map(|change| match change.action {
        Action::Clear { message } => Some((message, change.tokens.map_or(0, |tokens| tokens.before))),
        _ => None,
    });
    let out = joined(splice(body, &plan.splices));
    let gauge = candidate.planners.default().meter.for_model(transcript.model());
    let conversation = dialect.parse(&out)?;
    let last_read = conversation.last_answer();
    let roles: Vec<_> = conversation.units.iter().map(|message| message.role).collect();
    let sent = SentRequest::new(out.clone(), &gauge, before.map(|before| &before.sent))?;
    let tokens: Vec<_> = sent.message_tokens().collect();
    let results: Vec<_> = (0..roles.len()).filter(|&n| roles[n] == Role::Tool).collect();
    let (unread, read): (Vec<_>, Vec<_>) =
        results.iter().partition(|&&n| last_read.as_ref().is_none_or(|last| n >= last.end.get()));
    let keep = if plan.report.regrets.keep_doubled { 2 * KEEP } else { KEEP };
    let kept = read.iter().rev().take(keep);
    let spared = unread.iter().chain(kept).map(|&&n| tokens[n]).sum();
    let patches = changes.iter().filter(|change| change.edit == "patch").map(ToString::to_string);
    Ok(Step { sent, roles, tokens, cleared: cleared.collect(), patches: patches.collect(), spared })
}

/// Below the trigger and what a pass waits for, or nothing that could go is there: what is left of the other results is
/// placeholders, and results that are no longer than those.
fn bounded(now: &Step) -> Result<(), String> {
    const PLACEHOLDER: usize = 60;
    let n_results = now.roles.iter().filter(|role| **role == Role::Tool).count();
    let results: usize =
        now.roles.iter().zip(&now.tokens).filter(|(role, _)| **role == Role::Tool).map(|(_, n)| n).sum();
    let never = now.sent.tokens() - results;
    let most = never + now.spared + n_results * PLACEHOLDER + AT_LEAST;
    let size = now.sent.tokens();
    if size < TRIGGER + AT_LEAST || size <= most {
        Ok(())
    } else {
        Err(format!("{size} tokens, where {most} cannot be cleared"))
    }
}

/// The beginning is the old one, or the trigger held and only what was cleared now is different.
fn grown(before: &Step, now: &Step) -> Result<(), String> {
    if now.sent.shared_prefix(&before.sent).whole {
        return Ok(());
    }
    if !before.patches.is_subset(&now.patches) {
        // A result that came late took the place of its placeholder.
        return Ok(());
    }
    if !before.cleared.is_subset(&now.cleared) {
        return Err("what was cleared has come back".to_owned());
    }
    let new: BTreeSet<_> = now.cleared.difference(&before.cleared).collect();
    if new.is_empty() {
        return Err("the beginning is another one, and nothing was cleared".to_owned());
    }
    let old = before.sent.tokens();
    let came: usize = now.tokens.iter().skip(before.tokens.len()).sum();
    if old + came < TRIGGER {
        return Err(format!("the trigger did not hold: {old} tokens and {came} new ones"));
    }
    // After a repair, messages stand elsewhere than they came.
    let n_placed = if now.patches.is_empty() { before.tokens.len() } else { 0 };
    for n in 0..n_placed {
        let is_new = new.iter().any(|(message, _)| *message == n);
        if now.sent.message_bytes(n) != before.sent.message_bytes(n) && !is_new {
            return Err(format!("message {n} is another one, and was not cleared now"));
        }
    }
    Ok(())
}

// === the ten longest ===

/// What sticky is for. Where a pass is made however little it frees, it holds no more than its order: once the texts and
/// arguments alone have reached the trigger, each new result causes a pass.
fn ten_longest(folder: PathBuf) -> Result<(), Failed> {
    let candidates = [
        candidate("none", NONE)?,
        candidate("sliding", SLIDING)?,
        candidate("sticky", STICKY)?,
        candidate("at once", AT_ONCE)?,
    ];
    let choice = TranscriptSelection { paths: vec![folder], limit: Some(10), ..TranscriptSelection::default() };
    let simulation = Simulation::run(&choice, &candidates, &Conditions::default());
    let mut wrong = Vec::new();
    let mut totals = [0; 4];
    for played in &simulation.transcripts {
        let [none, sliding, sticky, at_once] = [0, 1, 2, 3].map(|n| played.runs[n].outcome.figures);
        for (total, figures) in totals.iter_mut().zip([none, sliding, sticky, at_once]) {
            *total += figures.cost;
        }
        for (name, figures, times) in [("sticky", sticky, 4), ("at once", at_once, 1)] {
            if figures.frontier_moves * times > sliding.frontier_moves {
                let (moves, sliding) = (figures.frontier_moves, sliding.frontier_moves);
                wrong.push(format!(
                    "{}: the frontier of {name} moves {moves} times, sliding {sliding} times",
                    played.name
                ));
            }
            if figures.cost >= none.cost {
                wrong.push(format!("{}: {name} costs {}, none {}", played.name, figures.cost, none.cost));
            }
        }
        // A segment may end soon after a pass, before the pass has paid for itself.
        let (part, whole) = if played.segments > 1 { (10, 11) } else { (1, 1) };
        if sticky.cost * part >= sliding.cost * whole {
            wrong.push(format!("{}: sticky costs {}, sliding {}", played.name, sticky.cost, sliding.cost));
        }
    }
    let [_, sliding, sticky, at_once] = totals;
    // `keep` doubles at other places in each of them, so those with a pass each time come out close together.
    if at_once * 20 >= sliding * 21 || sticky >= at_once || sticky >= sliding {
        wrong.push(format!("in total sliding costs {sliding}, sticky {sticky}, at once {at_once}"));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{}\n{simulation}", wrong.join("\n")).into()) }
}

fn candidate(name: &str, settings: &str) -> Result<PolicyUnderTest, Failed> {
    let settings = if settings == NONE { settings.to_owned() } else { format!("{EDITS}{settings}") };
    Ok(PolicyUnderTest {
        name: name.to_owned(),
        planners: Routes::only(Planner::new(toml::from_str(&settings)?)),
        judged: None,
        keep_alive: None,
    })
}

fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries: io::Result<Vec<_>> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect();
    let mut files = entries?;
    files.retain(|path| path.extension().is_some_and(|it| it == "json"));
    files.sort();
    Ok(files)
}

#[expect(clippy::print_stdout, reason = "a test binary without a harness of its own tells what it ran")]
fn say(text: &str) {
    println!("{text}");
}
