//! A day of traffic through two processes on one engine: the ledger has what all answers have cost, and about as many tokens and
//! costs without edits as `simulate` finds in the same recording.
#![expect(clippy::disallowed_types, reason = "what clients send, made here")]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use abridge_proxy::simulate::sent_request::SentRequest;
use abridge_proxy::tokens::{self, Meter};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};

use crate::engine::{Engine, on_each_engine};
use crate::it::support::rounds::{Act, Api, TOOL};
use crate::it::support::summarizer::INSTRUCTION;
use crate::it::support::upstream::{head, whole};
use crate::it::support::wire::Wire;
use crate::it::support::{Abridge, Setup, Upstream, binary, post, within};

/// List prices in billionths of a dollar for an input token, one that is read from the cache, and an output token.
const PRICES: [(&str, [usize; 3]); 2] = [("gpt-5.4", [2500, 250, 15_000]), ("claude-sonnet-4-5", [3000, 300, 15_000])];

/// The tokens of each answer.
const OUTPUT: usize = 100;

/// The bill of one model, in billionths of a dollar and in answers of each kind.
#[derive(Clone, Debug, Default)]
struct Bill {
    cost: u64,
    answers: u64,
    rounds: u64,
    summaries: u64,
}

/// An upstream that counts tokens as its models do, and has a prompt cache.
struct Bank {
    meter: Meter,
    seen: BTreeMap<&'static str, Vec<SentRequest>>,
    bills: BTreeMap<&'static str, Bill>,
}

fn model(api: Api) -> &'static str {
    PRICES[usize::from(api == Api::Messages)].0
}

impl Bank {
    /// The usage of a request, as JSON of the wire format has it.
    fn bill(&mut self, api: Api, body: Bytes) -> [usize; 2] {
        let sent = SentRequest::new(body, &self.meter.for_model(Some(model(api))), None).unwrap();
        let seen = self.seen.entry(model(api)).or_default();
        let cached = seen.iter().map(|before| sent.shared_prefix(before).tokens).max().unwrap_or_default() / 128 * 128;
        let (input, cached) = (sent.tokens(), if cached < 1024 { 0 } else { cached });
        seen.push(sent);
        let [price, read, output] = PRICES[usize::from(api == Api::Messages)].1;
        let bill = self.bills.entry(model(api)).or_default();
        bill.cost += ((input - cached) * price + cached * read + OUTPUT * output) as u64;
        [input, cached]
    }

    /// An answer that reports this usage.
    fn answer(api: Api, [input, cached]: [usize; 2], act: Act, stream: bool) -> String {
        let text = api.answer(1, &[act], stream);
        let details = |name: &str| format!(r#""{name}":{{"cached_tokens":{cached}}},"input_tokens":{input}"#);
        let input = match api {
            Api::Chat => format!(r#""prompt_tokens":{input}"#),
            Api::Messages => format!(r#""cache_read_input_tokens":{cached},"input_tokens":{}"#, input - cached),
            Api::Responses => details("input_tokens_details"),
        };
        text.replace(r#""prompt_tokens":100"#, &input)
            .replace(r#""input_tokens":100"#, &input)
            .replace(r#""cached_tokens":10}"#, &format!(r#""cached_tokens":{cached}}}"#))
            .replace(r#"_tokens":1}"#, &format!(r#"_tokens":{OUTPUT}}}"#))
            .replace(r#""completion_tokens":1,"#, &format!(r#""completion_tokens":{OUTPUT},"#))
            .replace(r#""output_tokens":1,"#, &format!(r#""output_tokens":{OUTPUT},"#))
    }
}

/// Answers what comes on one connection, except what ends with `Wait.`: its answer begins and does not end. After every third answer, the model reads again what was cleared.
async fn serve(bank: &Mutex<Bank>, gone: &watch::Sender<u64>, mut wire: Wire) {
    while let Some(request) = wire.next_head().await {
        let body = wire.body(&request).await.bytes;
        let api = [Api::Chat, Api::Messages, Api::Responses].into_iter().find(|api| request.target() == api.path());
        let (api, text) = (api.unwrap(), String::from_utf8(body.to_vec()).unwrap());
        let stream = text.contains(r#""stream":true"#);
        let kind = if stream { "content-type: text/event-stream" } else { "content-type: application/json" };
        if text.rsplit_once("Wait.").is_some_and(|(_, rest)| rest.len() < 30) {
            // Of Messages the beginning of a stream has the usage.
            let answer = if api == Api::Messages {
                let usage = bank.lock().await.bill(api, body);
                Bank::answer(api, usage, Act::Say("So."), true)
            } else {
                api.answer(1, &[Act::Say("So.")], true)
            };
            let begun: String = answer.split_inclusive("\n\n").take(3).collect();
            wire.send([head("200 OK", &[kind, "connection: close"]), begun.into()].concat()).await;
            wire.gone().await;
            gone.send_modify(|n| *n += 1);
            return;
        }
        let mut bank = bank.lock().await;
        let usage = bank.bill(api, body);
        let bill = bank.bills.entry(model(api)).or_default();
        let notice = format!("Read it with {TOOL} (handle=");
        let handle = text.split_once(&notice).and_then(|(_, rest)| rest.get(..26));
        let act = match handle {
            _ if text.contains(INSTRUCTION) => {
                bill.summaries += 1;
                Act::Say("<summary>They talked.</summary>")
            }
            Some(handle) if bill.answers % 3 == 0 && !text.contains("own1") => {
                bill.rounds += 1;
                Act::Call("own1", TOOL, json!({"handle": handle, "grep": "line 7 "}))
            }
            _ => {
                bill.answers += 1;
                Act::Say("So it is.")
            }
        };
        drop(bank);
        wire.send(whole("200 OK", &[kind], Bank::answer(api, usage, act, stream))).await;
    }
}

async fn serve_all(mut upstream: Upstream, bank: Arc<Mutex<Bank>>, gone: watch::Sender<u64>) {
    while let Some(wire) = upstream.accept().await {
        let (bank, gone) = (Arc::clone(&bank), gone.clone());
        tokio::spawn(async move { serve(&bank, &gone, wire).await });
    }
}

/// A session: results of tools, or long words of the model.
struct Session {
    api: Api,
    stream: bool,
    seed: &'static str,
    elements: Vec<Value>,
}

impl Session {
    fn user(&mut self, text: &str) {
        self.elements.push(json!({"role": "user", "content": text}));
    }

    fn says(&mut self, text: &str) {
        self.elements.push(match self.api {
            Api::Responses => {
                json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
            }
            _ => json!({"role": "assistant", "content": text}),
        });
    }

    /// Adds the messages that are new in request `n`.
    fn grow(&mut self, n: usize) {
        let seed = self.seed;
        let line = |what: &str, line: usize| format!("{seed} {n}: {what} line {line} of many\n");
        let text = |what: &str| (0..90).map(|n| line(what, n)).collect::<Vec<_>>().concat();
        if n == 0 {
            self.user(&format!("The task of {seed}."));
        } else if seed == "talk" {
            self.says(&text("answer"));
            self.user(&format!("question {n}"));
        } else {
            let (id, text) = (format!("c{n}"), text("result"));
            self.elements.extend(match self.api {
                Api::Chat => [
                    json!({"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": {"name": "query", "arguments": "{}"}}]}),
                    json!({"role": "tool", "tool_call_id": id, "content": text}),
                ],
                Api::Messages => [
                    json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "query", "input": {}}]}),
                    json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]}),
                ],
                Api::Responses => [
                    json!({"type": "function_call", "call_id": id, "name": "query", "arguments": "{}"}),
                    json!({"type": "function_call_output", "call_id": id, "output": text}),
                ],
            });
        }
    }

    fn request(&self) -> Vec<u8> {
        let schema = json!({"type": "object", "properties": {}});
        let tool = match self.api {
            Api::Chat => json!({"type": "function", "function": {"name": "query", "parameters": schema}}),
            Api::Messages => json!({"name": "query", "input_schema": schema}),
            Api::Responses => json!({"type": "function", "name": "query", "parameters": schema}),
        };
        // As long as those of agents, so that the cache of a session that goes on serves at least these.
        let instructions =
            (0..150).map(|n| format!("Rule {n} of the agent is to be kept. ")).collect::<Vec<_>>().concat();
        let system = json!({"role": "system", "content": instructions});
        let system = (self.api == Api::Chat).then_some(&system);
        let elements: Vec<_> = system.into_iter().chain(&self.elements).map(Value::to_string).collect();
        let field = match self.api {
            Api::Chat => String::new(),
            Api::Messages => format!(r#""system":"{instructions}","#),
            Api::Responses => format!(r#""instructions":"{instructions}","#),
        };
        let (model, stream, array) = (model(self.api), self.stream, self.api.elements());
        let options = if self.api == Api::Chat && stream { r#""stream_options":{"include_usage":true},"# } else { "" };
        let limit = if self.api == Api::Responses { "max_output_tokens" } else { "max_tokens" };
        let body = format!(
            r#"{{"model":"{model}","{limit}":100,"stream":{stream},{options}{field}"tools":[{tool}],"{array}":[{}]}}"#,
            elements.join(",")
        );
        post(self.api.path(), &["content-type: application/json", &format!("user-agent: {}", self.seed)], body)
    }

    async fn ask(&self, abridge: &Abridge) {
        let mut client = abridge.connect().await;
        client.send(self.request()).await;
        let reply = client.reply().await;
        assert_eq!(reply.head.status(), 200, "{}", String::from_utf8_lossy(&reply.body));
    }

    /// Asks, and goes when the answer has begun.
    async fn cancel(&mut self, abridge: &Abridge, gone: &mut watch::Receiver<u64>) {
        self.user("Wait.");
        let n = *gone.borrow() + 1;
        let mut client = abridge.connect().await;
        client.send(self.request()).await;
        client.some().await.unwrap();
        client.reset();
        within("the upstream to see that", gone.wait_for(|gone| *gone == n)).await.unwrap();
        self.says("So.");
        self.user("Go on.");
    }
}

#[derive(Debug, Default, Deserialize)]
struct Line {
    name: String,
    requests: u64,
    edited: u64,
    unreported: u64,
    summaries: u64,
    edited_cost: u64,
    unedited_cost: u64,
    unedited_input: u64,
}

#[derive(Deserialize)]
struct Report {
    lines: Vec<Line>,
}

#[derive(Deserialize)]
struct Simulated {
    transcripts: Vec<Played>,
}

#[derive(Deserialize)]
struct Played {
    model: String,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    figures: Figures,
}

#[derive(Deserialize)]
struct Figures {
    requests: u64,
    tokens_sent: u64,
    tokens_cached: u64,
}

async fn the_ledger_has_what_a_day_has_cost_and_its_tokens_without_edits(engine: Engine) {
    const REQUESTS: usize = 36;
    engine.init("").await;
    let upstream = Upstream::start().await;
    let url = upstream.url();
    let meter = Meter::new(&tokens::Settings::default(), &[]);
    let bank = Arc::new(Mutex::new(Bank { meter, seen: BTreeMap::new(), bills: BTreeMap::new() }));
    let (sees, mut gone) = watch::channel(0);
    tokio::spawn(serve_all(upstream, Arc::clone(&bank), sees));
    let folder = tempfile::tempdir().unwrap();
    let start = async |name: &str| {
        let setup: Setup = engine.replica_to(url.clone());
        let setup = setup.with("recall.via = \"tool\"").with(format!("summarize.instruction = {INSTRUCTION:?}"));
        let setup = setup.with("summarize.trigger = { tokens = 16000 }").with(
            "clear_tool_results = { trigger = { tokens = 12000 }, when = \"any\", keep = { results = 2 }, keep_reads = 0 }",
        );
        setup.argument("--record").argument(folder.path().join(name)).start().await
    };
    let mut replicas = [start("one").await, start("two").await];
    let session = |api, stream, seed| Session { api, stream, seed, elements: Vec::new() };
    let mut sessions = [
        session(Api::Chat, true, "stream"),
        session(Api::Chat, false, "whole"),
        session(Api::Messages, true, "messages"),
        session(Api::Responses, true, "items"),
        session(Api::Chat, true, "talk"),
    ];
    for n in 0..REQUESTS {
        for (which, name) in [(0, "one"), (1, "two")] {
            if n == REQUESTS / 3 * (which + 1) {
                replicas[which].signal("TERM");
                replicas[which].exit().await;
                replicas[which] = start(name).await;
            }
        }
        for (which, session) in sessions.iter_mut().enumerate() {
            session.grow(n);
            let abridge = &replicas[(n + which) % 2];
            // One is cancelled before its usage is known, and one after that.
            if (session.seed, n) == ("stream", 1) || (session.seed, n) == ("messages", REQUESTS / 2) {
                session.cancel(abridge, &mut gone).await;
            }
            session.ask(abridge).await;
        }
    }
    let (config, at) = (folder.path().join("proxy.toml"), format!("http://{}", replicas[0].address()));
    std::fs::copy(replicas[0].config(), &config).unwrap();
    for abridge in &replicas {
        abridge.signal("TERM");
        abridge.exit().await;
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(arguments).arg("--config").arg(&config).env("STORE_URL", engine.url());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let Report { lines } = serde_json::from_slice(&run(&["savings", "--by", "model", "--json", "--at", &at])).unwrap();
    let recorded = folder.path().to_str().unwrap();
    let simulated: Simulated =
        serde_json::from_slice(&run(&["simulate", recorded, "--json", "--policy", "none"])).unwrap();
    let bills = &bank.lock().await.bills;
    for (model, [price, read, output]) in PRICES {
        let told = lines.iter().find(|line| line.name == model).unwrap();
        let bill = &bills[model];
        assert_eq!((told.edited_cost, told.summaries), (bill.cost, bill.summaries), "{told:?} {bill:?}");
        assert!(told.edited > 10 && bill.rounds > 0, "{told:?} {bill:?}");
        let played = || simulated.transcripts.iter().filter(|played| played.model == model);
        let n_played: u64 = played().map(|played| played.runs[0].figures.requests).sum();
        assert_eq!((told.requests, n_played), (n_played, told.requests), "{told:?}");
        let without: u64 = played().map(|played| played.runs[0].figures.tokens_sent).sum();
        let cached: u64 = played().map(|played| played.runs[0].figures.tokens_cached).sum();
        let cost = (without - cached) * price as u64 + cached * read as u64 + n_played * (OUTPUT * output) as u64;
        assert!(50 * told.unedited_input.abs_diff(without) <= without, "{told:?}: simulate says {without}");
        let found = told.unedited_cost;
        assert!(50 * found.abs_diff(cost) <= cost, "{model}: {found} without edits, {cost} by simulate");
    }
    assert_eq!(lines.iter().map(|line| line.unreported).sum::<u64>(), 1);
    assert!(bills["gpt-5.4"].summaries > 0);
}

on_each_engine!(the_ledger_has_what_a_day_has_cost_and_its_tokens_without_edits);
