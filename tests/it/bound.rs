//! Thinking that is signed over all that it was made after, in generated sessions: abridge sends none after anything else.
//!
//! `ABRIDGE_BOUND_SECONDS` has the property run for so long, `ABRIDGE_BOUND_SEED` from another seed.
#![expect(clippy::disallowed_types, reason = "requests are made here")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::handler::{Handler, Play};
use crate::support::signer::{SESSION, Seen, Signer, WINDOW, sign};
use crate::support::summarizer::INSTRUCTION;
use crate::support::{Abridge, Setup, Wire, post};

mod cases;

/// Numbers that look random and are the same in each run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).unwrap()
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// A client and its conversation.
#[derive(Clone, Debug)]
struct Session {
    name: String,
    model: &'static str,
    tools: Value,
    thinking: Value,
    messages: Vec<Value>,
    /// Calls whose results come later.
    late: Vec<String>,
    n_calls: usize,
    window: Option<usize>,
    max_tokens: usize,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Outcome {
    Answered,
    Refused,
    NoAnswer,
}

impl Session {
    fn new(name: String) -> Self {
        let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object", "properties": {}}});
        let tools = json!([tool("query"), tool("bash")]);
        let messages = vec![user(&[text("Begin.")])];
        let thinking = json!({"type": "adaptive"});
        Self {
            name,
            model: "claude-opus-5-5",
            tools,
            thinking,
            messages,
            late: Vec::new(),
            n_calls: 0,
            window: None,
            max_tokens: 1000,
        }
    }

    /// Leaves no tool that could read what was taken out, so that abridge adds one.
    fn without_shell(&mut self) {
        if let Some(tools) = self.tools.as_array_mut() {
            tools.retain(|tool| tool["name"] != "bash");
        }
    }

    fn body(&self) -> Value {
        json!({"model": self.model, "max_tokens": self.max_tokens, "system": "Be brief.", "tools": self.tools,
               "thinking": self.thinking, "messages": self.messages})
    }

    /// Sends the conversation, and returns the signature of the model's thinking.
    async fn ask(&self, abridge: Option<&Abridge>, fails: bool) -> (Outcome, String) {
        let Some(abridge) = abridge else { return (Outcome::Answered, sign(&self.body())) };
        let mut wire = Wire::connect(abridge.address()).await;
        let session = format!("{SESSION}: {}", self.name);
        let window = self.window.map(|window| format!("{WINDOW}: {window}"));
        let fields: Vec<&str> = ["content-type: application/json", &session]
            .into_iter()
            .chain(window.as_deref())
            .chain(fails.then_some(FAILING))
            .collect();
        wire.send(post("/v1/messages", &fields, self.body().to_string())).await;
        let reply = wire.reply().await;
        let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        let signature = answer["content"][0]["signature"].as_str().unwrap_or_default().to_owned();
        let outcome = match reply.head.status() {
            200 => Outcome::Answered,
            400 | 413 => Outcome::Refused,
            _ => Outcome::NoAnswer,
        };
        (outcome, signature)
    }

    fn think(&mut self, dice: &mut Dice, signature: &str, calls: bool) {
        let mut blocks = Vec::new();
        if !dice.one_in(4) {
            blocks.push(json!({"type": "thinking", "thinking": "", "signature": signature}));
        }
        if dice.one_in(2) || !calls {
            blocks.push(text("I go on."));
        }
        let mut results = Vec::new();
        for _ in 0..if calls { 1 + dice.below(2) } else { 0 } {
            self.n_calls += 1;
            let id = format!("{}_{}", self.name, self.n_calls);
            let name = *dice.pick(&["query", "bash"]);
            blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": {"n": self.n_calls}}));
            if dice.one_in(12) {
                self.late.push(id);
            } else {
                results.push(result(&id, *dice.pick(&[5, 40, 90, 200])));
            }
        }
        self.messages.push(json!({"role": "assistant", "content": blocks}));
        if calls && results.is_empty() {
            results.push(text("Never mind that."));
        }
        if calls {
            self.messages.push(user(&results));
        }
    }

    /// Whether the model is to be asked now.
    fn awaits_model(&self) -> bool {
        self.messages.last().is_some_and(|last| last["role"] != "assistant")
    }

    fn late_result(&mut self, dice: &mut Dice) {
        if self.late.is_empty() {
            return;
        }
        let id = self.late.remove(0);
        if dice.one_in(3) && self.messages.last().is_some_and(|last| last["role"] == "user") {
            self.messages.push(json!({"role": "system", "content": "A note of the program."}));
        }
        self.messages.push(user(&[result(&id, 60)]));
        if dice.one_in(3) {
            self.messages.push(json!({"role": "system", "content": "A note of the program."}));
        }
    }
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn user(blocks: &[Value]) -> Value {
    json!({"role": "user", "content": blocks})
}

fn result(id: &str, lines: usize) -> Value {
    let content = format!("<{id}> {}", "some line of the output of it\n".repeat(lines));
    json!({"type": "tool_result", "tool_use_id": id, "content": content})
}

/// Settings of one process.
fn policy(dice: &mut Dice) -> String {
    let mut lines = Vec::new();
    let edits = ["patch_tool_calls", "truncate_tool_results", "clear_tool_results"];
    let mut edits = edits.to_vec();
    if dice.one_in(3) {
        edits.insert(1, "filter_tool_calls");
        lines.push(format!("filter_tool_calls = {{ max_tool_calls = {} }}", 2 + dice.below(6)));
    }
    if dice.one_in(4) {
        edits.push("summarize");
        lines.push(format!(
            "summarize = {{ trigger = {{ tokens = {} }}, keep = {{ rounds = 2 }}, instruction = \"{INSTRUCTION}\" }}",
            3000 + 1000 * dice.below(4)
        ));
    }
    if dice.one_in(2) {
        lines.push(format!("policy.goal = \"{}\"", dice.pick(&["careful", "balanced", "thrifty"])));
    }
    lines.push(format!("policy.edits = {edits:?}"));
    let trigger = 1500 + 500 * dice.below(6);
    let (frontier, when) = *dice.pick(&[("sticky", "turn"), ("sticky", "any"), ("sliding", "any")]);
    let keep = 1 + dice.below(4);
    let handler = if dice.one_in(2) { "handler = \"h\", " } else { "" };
    for edit in ["patch_tool_calls", "truncate_tool_results"] {
        lines.extend((!handler.is_empty() && !dice.one_in(3)).then(|| format!("{edit}.handler = \"h\"")));
    }
    lines.push(format!(
        "clear_tool_results = {{ {handler}trigger = {{ tokens = {trigger} }}, keep = {{ results = {keep} }}, keep_reads = 0, frontier = \"{frontier}\", when = \"{when}\" }}"
    ));
    lines.push(format!("truncate_tool_results.max_bytes = {}", dice.pick(&[1500, 2500, 4000, 20000])));
    lines.push(format!("reasoning.bound = \"{}\"", dice.pick(&["strip", "strip", "strip", "withhold"])));
    match dice.below(3) {
        0 => lines.push(format!("recall = {{ via = \"tool\", controls = {} }}", dice.one_in(2))),
        _ => lines.push("recall.public_url = \"http://abridge.test\"".to_owned()),
    }
    lines.join("\n")
}

/// The answer of a handler, which is never the same twice.
fn handled(question: &Value) -> Play {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let n = ASKED.fetch_add(1, Ordering::Relaxed);
    let text = question["text"].as_str().unwrap_or_default();
    let most = usize::try_from(question["max_bytes"].as_u64().unwrap_or_default()).unwrap();
    match (n * 7 + text.len() as u64) % 12 {
        0 => Play::Action("default"),
        1 => Play::Action("failed"),
        2 => Play::Reset,
        3 if n.is_multiple_of(7) => Play::Hang,
        4 => Play::Body("500 Internal Server Error", Vec::new()),
        5 | 6 => Play::Action("leave"),
        7 => Play::Replace("longer than it may be ".repeat(most / 20 + 1)),
        8 => Play::Replace(format!("{n} {}", "x ".repeat(most / 2)).chars().take(most).collect()),
        _ => Play::Replace(format!("Answer {n}.")),
    }
}

/// Has the upstream fail.
const FAILING: &str = "x-fails: 1";

const COMMON: &str = "tokens = { counter = \"estimate\", ask_upstream = false, calibrate = false }\nprices = [{ read = 0.1, write = 1.0 }]";

async fn start(signer: &Signer, store: &Path, policy: &str) -> Abridge {
    let path = store.join("store.redb");
    let store = format!("store.path = \"{}\"", path.display());
    Setup::to(signer.url()).with(COMMON).with(store).with(policy).start().await
}

/// Kills a process, and waits until its store is free.
async fn end(abridge: Abridge) {
    abridge.signal("KILL");
    abridge.exit().await;
}

/// Runs one process, and those after it on the same store, with some sessions; the number of sessions.
async fn run(signer: &Signer, dice: &mut Dice, run: usize, until: Instant) -> usize {
    let store = TempDir::new().unwrap();
    let rescue = dice.one_in(4);
    let handler = Handler::playing(handled).await;
    let settings = |dice: &mut Dice| {
        let rescue = if rescue { "\nsecond_try.enabled = true" } else { "" };
        format!("{}\nhandlers.h = {{ url = {:?}, timeout = \"200ms\" }}{rescue}", policy(dice), handler.url())
    };
    let mut policy = settings(dice);
    let mut abridge = start(signer, store.path(), &policy).await;
    let n_sessions = 4;
    for n in 0..n_sessions {
        if Instant::now() > until {
            return n;
        }
        let mut session = Session::new(format!("r{run}s{n}"));
        if rescue {
            session.window = Some(9000 + 3000 * dice.below(3));
        }
        if dice.one_in(3) {
            session.without_shell();
        }
        let mut forks = Vec::new();
        let n_direct = if dice.one_in(3) { 2 + dice.below(14) } else { 0 };
        let mut n_steps = 0;
        while n_steps < n_direct + 14 + dice.below(10) {
            n_steps += 1;
            let is_direct = n_steps <= n_direct;
            if dice.one_in(12) {
                session.late_result(dice);
            }
            if !session.awaits_model() {
                session.messages.push(user(&[text("And the next thing?")]));
            }
            if !is_direct {
                if dice.one_in(14) {
                    policy = if dice.one_in(2) { settings(dice) } else { policy };
                    end(abridge).await;
                    abridge = start(signer, store.path(), &policy).await;
                } else if dice.one_in(20) {
                    policy = settings(dice);
                    let n = abridge.stderr().len();
                    std::fs::write(abridge.config(), config(signer, store.path(), &policy)).unwrap();
                    abridge.signal("HUP");
                    abridge.says("reload", n).await;
                }
                if dice.one_in(15) {
                    session.ask(Some(&abridge), true).await;
                    match dice.below(3) {
                        0 => session.late_result(dice),
                        1 => session.messages.push(user(&[text("Are you there?")])),
                        _ => {}
                    }
                }
            }
            let (outcome, signature) = session.ask((!is_direct).then_some(&abridge), false).await;
            if outcome != Outcome::Answered {
                break;
            }
            let calls = !dice.one_in(4);
            session.think(dice, &signature, calls);
            if dice.one_in(10) {
                forks.push(session.clone());
            }
            if dice.one_in(12) && !forks.is_empty() {
                let at = dice.below(forks.len());
                session = forks.swap_remove(at);
                session.name += "f";
                session.messages.push(user(&[text("Another way.")]));
            }
        }
    }
    n_sessions
}

fn config(signer: &Signer, store: &Path, policy: &str) -> String {
    let store = store.join("store.redb");
    let (url, store) = (signer.url(), store.display());
    format!(
        "upstream.url = {url:?}\nupstream.probe = false\nserver.listen = [\"127.0.0.1:0\"]\n{COMMON}\nstore.path = \"{store}\"\n{policy}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_is_never_sent_after_what_it_was_not_made_after() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let patience = Duration::from_secs(number("ABRIDGE_BOUND_SECONDS").unwrap_or(20));
    let first = number("ABRIDGE_BOUND_SEED").unwrap_or(1);
    let (began, signer) = (Instant::now(), Signer::start().await);
    let (mut n_sessions, mut n_runs) = (0, 0);
    let most = number("ABRIDGE_BOUND_RUNS").unwrap_or(5);
    while began.elapsed() < patience && n_runs < most {
        let seed = first + n_runs;
        n_runs += 1;
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        n_sessions += run(&signer, &mut dice, usize::try_from(seed).unwrap(), began + patience).await;
        let Seen { wrong, invalid, n_requests, .. } = signer.seen();
        if std::env::var("ABRIDGE_BOUND_COUNT").is_err() {
            assert!(wrong.is_empty() && invalid.is_empty(), "seed {seed}: {wrong:#?} {invalid:#?} of {n_requests}");
        }
    }
    let Seen { wrong, invalid, n_requests, .. } = signer.seen();
    eprintln!(
        "{n_sessions} sessions, {n_requests} requests: {} wrong, {} invalid\n{wrong:#?}\n{invalid:#?}",
        wrong.len(),
        invalid.len()
    );
}
