//! The ledger: what answers cost as billed, what they would have cost without the edits, and how it is told.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use abridge_proxy::store::{self, Clock, RedbStore, Store as _};
use serde::Deserialize;
use tempfile::TempDir;

use crate::calibration::conversation;
use crate::metrics::scrape;
use crate::support::{Abridge, OPERATOR, OPERATOR_TOKEN, Setup, Upstream, binary, chat, post, request, within};

/// An upstream with a prompt cache, which bills a token for four bytes.
struct Scene {
    upstream: Upstream,
    store: TempDir,
    seen: Vec<Vec<u8>>,
    /// What all answers have cost, in billionths of a dollar.
    cost: u64,
}

/// The list prices of gpt-5.4 in billionths of a dollar: $2.50, $0.25 and $15 for a million tokens.
const PRICES: [usize; 3] = [2500, 250, 15_000];

/// The instruction in calls for summaries.
const SUMMARISE: &str = "SUMMARISE";

/// The tokens of each answer.
const OUTPUT: usize = 100;

impl Scene {
    async fn new() -> Self {
        Self { upstream: Upstream::start().await, store: tempfile::tempdir().unwrap(), seen: Vec::new(), cost: 0 }
    }

    fn store(&self) -> PathBuf {
        self.store.path().join("store.redb")
    }

    fn setup(&self) -> Setup {
        Setup::before(&self.upstream)
            .with("tokens = { counter = \"estimate\", ask_upstream = false }")
            .with("recall.public_url = \"http://abridge.test\"")
            .with("clear_tool_results = { trigger = { tokens = 12000 }, keep = { results = 2 }, keep_reads = 0 }")
            .with(format!("store.path = \"{}\"", self.store().display()))
    }

    /// Has a session of so many requests, each with one result more.
    async fn session(&mut self, abridge: &Abridge, seed: &str, n_requests: usize) {
        for n in 1..=n_requests {
            self.asks(abridge, seed, n).await;
        }
    }

    /// Sends the request of a session with so many results.
    async fn asks(&mut self, abridge: &Abridge, seed: &str, n: usize) {
        self.is_told(abridge, seed, n, true).await;
    }

    async fn is_told(&mut self, abridge: &Abridge, seed: &str, n: usize, reports: bool) {
        let body = conversation(seed, n).replace(r#""model":"m""#, r#""model":"gpt-5.4""#);
        self.answers(abridge, &body, reports).await;
    }

    async fn answers(&mut self, abridge: &Abridge, body: &str, reports: bool) {
        let before = scrape(abridge).await.sum("abridge_requests_total");
        let mut client = abridge.connect().await;
        client.send(chat(body)).await;
        loop {
            let mut call = self.upstream.request().await;
            let sent = call.bytes().await.to_vec();
            let is_summary = memchr::memmem::find(&sent, SUMMARISE.as_bytes()).is_some();
            let common = |other: &Vec<u8>| sent.iter().zip(other).take_while(|(a, b)| a == b).count();
            let cached = self.seen.iter().map(common).max().unwrap_or_default() / 4;
            let (prompt, cached) = (sent.len() / 4, if cached < 1024 { 0 } else { cached });
            self.seen.push(sent);
            let usage = format!(
                r#","usage":{{"prompt_tokens":{prompt},"completion_tokens":{OUTPUT},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
            );
            if reports {
                let [input, read, output] = PRICES;
                self.cost += ((prompt - cached) * input + cached * read + OUTPUT * output) as u64;
            }
            let fields = ["content-type: application/json", "connection: close"];
            let usage = if reports { &*usage } else { "" };
            let said = r#"{"message":{"role":"assistant","content":"A summary."},"finish_reason":"stop"}"#;
            let said = if is_summary { said } else { "" };
            call.answer("200 OK", &fields, format!(r#"{{"choices":[{said}]{usage}}}"#)).await;
            if !is_summary {
                break;
            }
        }
        assert_eq!(client.reply().await.head.status(), 200);
        within("the bill", async { while scrape(abridge).await.sum("abridge_requests_total") == before {} }).await;
    }
}

/// The totals of all lines of `abridge savings --json`.
#[derive(Debug, Default, Deserialize)]
struct Sums {
    requests: u64,
    edited: u64,
    unreported: u64,
    /// In billionths of a dollar.
    edited_cost: u64,
    unedited_cost: u64,
}

/// What `abridge savings --json` prints.
#[derive(Debug, Deserialize)]
struct Report {
    savings: Option<String>,
    lines: Vec<Sums>,
    experiments: Vec<Comparison>,
}

#[derive(Debug, Deserialize)]
struct Comparison {
    policy: String,
    unit: String,
    usual: Arm,
    tried: Arm,
    conclusion: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Arm {
    conversations: usize,
    requests: usize,
    amount: f64,
    per_request: Estimate,
}

#[derive(Debug, Deserialize)]
struct Estimate {
    estimate: f64,
    interval: Option<[f64; 2]>,
}

fn savings_of(abridge: &Abridge, arguments: &[&str]) -> String {
    savings(abridge.config(), &format!("http://{}", abridge.address()), arguments)
}

fn sums(abridge: &Abridge) -> Sums {
    let report: Report = serde_json::from_str(&savings_of(abridge, &["--json", "--by", "model"])).unwrap();
    report.lines.into_iter().fold(Sums::default(), |sums, line| Sums {
        requests: sums.requests + line.requests,
        edited: sums.edited + line.edited,
        unreported: sums.unreported + line.unreported,
        edited_cost: sums.edited_cost + line.edited_cost,
        unedited_cost: sums.unedited_cost + line.unedited_cost,
    })
}

fn savings(config: &Path, at: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.arg("savings").arg("--config").arg(config).args(["--at", at]).args(arguments);
    let output = command.env("ABRIDGE_ADMIN_TOKEN", OPERATOR_TOKEN).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn is_near(a: u64, b: u64, per_cent: u64) -> bool {
    100 * a.abs_diff(b) <= per_cent * b
}

#[tokio::test]
async fn the_cost_is_that_of_the_answers_and_the_estimate_is_what_the_session_costs_without_edits() {
    let mut edited = Scene::new().await;
    let abridge = edited.setup().start().await;
    edited.session(&abridge, "one", 40).await;
    edited.session(&abridge, "two", 25).await;
    let Sums { edited: n_edited, edited_cost: cost, unedited_cost: without, .. } = sums(&abridge);
    assert_eq!(cost, edited.cost);
    assert!(n_edited > 20, "{n_edited}");

    // The same sessions, where nothing is edited.
    let mut plain = Scene::new().await;
    let untouched = plain.setup().with("policy.edits = []").start().await;
    plain.session(&untouched, "one", 40).await;
    plain.session(&untouched, "two", 25).await;
    assert!(is_near(without, plain.cost, 2), "estimated {without}, billed {}; with edits {cost}", plain.cost);
    let said = savings_of(&untouched, &[]);
    assert!(said.starts_with("last 30 days: nothing edited in 65 requests, which cost $0."), "{said}");

    // A dry run tells the same the other way round.
    let mut shadow = Scene::new().await;
    let dry = shadow.setup().argument("--dry-run").start().await;
    shadow.session(&dry, "one", 40).await;
    shadow.session(&dry, "two", 25).await;
    let Sums { unedited_cost: cost, edited_cost: with, .. } = sums(&dry);
    assert_eq!(cost, plain.cost);
    assert!(is_near(with, edited.cost, 2), "estimated {with}, billed {}", edited.cost);
    let said = savings_of(&dry, &[]);
    assert!(said.starts_with("last 30 days: would have saved $0."), "{said}");
}

/// How a session goes on: its name, and how many results its next request has, whose answer may have no usage; or abridge is
/// restarted.
enum Step {
    Ask(&'static str, usize),
    Untold(&'static str, usize),
    Restart,
}

/// Sequences in which what a cache has of a conversation is harder to tell.
fn sequences() -> Vec<(&'static str, Vec<Step>)> {
    let grows = |seed: &'static str, from: usize, to: usize| (from..=to).map(move |n| Step::Ask(seed, n));
    let interleaved = (1..=30).flat_map(|n| [Step::Ask("one", n), Step::Ask("two", n + 3)]).collect();
    let jump = grows("one", 1, 3).chain(grows("one", 30, 45)).collect();
    let resumed = grows("one", 1, 25).chain([Step::Restart]).chain(grows("one", 26, 40)).collect();
    let repeated = grows("one", 1, 30).flat_map(|step| match step {
        Step::Ask(seed, n) => vec![Step::Ask(seed, n), Step::Ask(seed, n)],
        Step::Untold(..) | Step::Restart => vec![],
    });
    let untold = (1..=40).map(|n| if n % 4 == 0 { Step::Untold("one", n) } else { Step::Ask("one", n) });
    vec![
        ("answers without usage among others", untold.collect()),
        ("two sessions by turns", interleaved),
        ("a session that grows at once", jump),
        ("a session that outlives the process", resumed),
        ("requests that are sent twice", repeated.collect()),
    ]
}

/// What all requests of a sequence have cost, with these settings, and the sums that the ledger has.
async fn played(steps: &[Step], policy: &str, argument: Option<&str>) -> (u64, Sums) {
    let mut scene = Scene::new().await;
    let start = async |scene: &Scene| {
        let setup = scene.setup().with(policy);
        argument.into_iter().fold(setup, Setup::argument).start().await
    };
    let mut abridge = start(&scene).await;
    for step in steps {
        match *step {
            Step::Ask(seed, n) => scene.asks(&abridge, seed, n).await,
            Step::Untold(seed, n) => scene.is_told(&abridge, seed, n, false).await,
            Step::Restart => {
                abridge.signal("TERM");
                abridge.exit().await;
                abridge = start(&scene).await;
            }
        }
    }
    (scene.cost, sums(&abridge))
}

#[tokio::test]
async fn the_estimates_hold_for_sequences_of_all_kinds() {
    for (name, steps) in sequences() {
        let (edited, told) = played(&steps, "", None).await;
        let (unedited, _) = played(&steps, "policy.edits = []", None).await;
        let (_, of_dry_run) = played(&steps, "", Some("--dry-run")).await;
        assert_eq!((told.edited_cost, of_dry_run.unedited_cost), (edited, unedited), "{name}");
        let estimates = [(told.unedited_cost, unedited), (of_dry_run.edited_cost, edited)];
        assert!(estimates.into_iter().all(|(estimate, billed)| is_near(estimate, billed, 2)), "{name}: {estimates:?}");
    }
}

#[tokio::test]
async fn the_estimates_hold_for_requests_that_are_too_short_to_have_their_tokens_counted() {
    let steps: Vec<_> = (1..=20).map(|n| Step::Ask("one", n)).collect();
    let (unedited, _) = played(&steps, "policy.edits = []", None).await;
    let summaries = format!(
        "policy.edits = ['summarize']\nsummarize = {{ trigger = {{ tokens = 6000 }}, keep = {{ rounds = 0 }}, instruction = '{SUMMARISE}' }}"
    );
    let truncates = "policy.edits = ['truncate_tool_results']\ntruncate_tool_results.max_bytes = 1500";
    for policy in [truncates, &summaries] {
        let (edited, told) = played(&steps, policy, None).await;
        assert!(told.edited_cost == edited && told.edited > 10, "{told:?}");
        assert!(is_near(told.unedited_cost, unedited, 3), "{policy}: {told:?}, and {unedited}");
    }
}

#[tokio::test]
async fn a_conversation_is_in_one_arm_of_an_experiment_for_life() {
    const SESSIONS: usize = 16;
    const REQUESTS: usize = 19;
    // By then those that are edited have been cleared.
    const RESTARTED: usize = 16;
    let mut scene = Scene::new().await;
    // The secret decides which conversations are chosen, and which of them are counted as one: with this one, none.
    let store = RedbStore::create(&scene.store(), store::Settings::default(), Clock::system(), [1; 32]).unwrap();
    store.close().await.unwrap();
    let start = async |scene: &Scene| scene.setup().with("experiment.share = 0.5").start().await;
    let mut abridge = start(&scene).await;
    for n in 1..=REQUESTS {
        for session in 0..SESSIONS {
            scene.asks(&abridge, &format!("session {session}"), n).await;
        }
        if n == RESTARTED {
            abridge.signal("TERM");
            abridge.exit().await;
            abridge = start(&scene).await;
        }
    }
    // A session without edits grows by a result each time; all others are cleared, and stay so.
    let is_edited = |session: usize, n: usize| {
        let sent = scene.seen[(n - 1) * SESSIONS + session].len();
        sent < conversation(&format!("session {session}"), n).len()
    };
    let edited: Vec<_> = (0..SESSIONS).filter(|session| is_edited(*session, REQUESTS)).collect();
    assert!((1..SESSIONS).contains(&edited.len()), "{edited:?}");
    for session in 0..SESSIONS {
        let first = (1..=REQUESTS).find(|n| is_edited(session, *n)).unwrap_or(REQUESTS + 1);
        assert_eq!(first <= RESTARTED, edited.contains(&session), "session {session}");
        assert!((first..=REQUESTS).all(|n| is_edited(session, n)), "session {session} from {first} on");
    }

    let told = savings_of(&abridge, &["--by", "policy"]);
    let (_, arms) = told.split_once("experiment with the policy none").unwrap();
    let arm = |name: &str, n: usize| {
        let line = arms.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().rev();
        let [_, _, requests, conversations] = line.take(4).collect::<Vec<_>>()[..] else { panic!("{told}") };
        assert_eq!((conversations, requests), (&*n.to_string(), &*(n * REQUESTS).to_string()), "{told}");
    };
    arm("as usual", edited.len());
    arm("none ", SESSIONS - edited.len());
    assert!(told.contains("nothing can be concluded yet: "), "{told}");
    check_arms(&abridge, [edited.len(), SESSIONS - edited.len()], REQUESTS, scene.cost).await;
    assert_eq!(sums(&abridge).edited_cost, scene.cost);
    let metrics = scrape(&abridge).await;
    assert_eq!(metrics.sum("abridge_experiment_requests_total"), (SESSIONS * (REQUESTS - RESTARTED)) as u64);
    assert!(metrics.sum("abridge_experiment_cost_microdollars_total") > 0);

    // A request without its beginning is in no arm.
    let later = r#"{"model":"gpt-5.4","previous_response_id":"resp_1","input":[{"role":"user","content":"go"}]}"#;
    let mut client = abridge.connect().await;
    client.send(post("/v1/responses", &[], later)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await, later.as_bytes());
    call.answer("200 OK", &["content-type: application/json"], "{}").await;
    assert_eq!(client.reply().await.head.status(), 200);
    assert_eq!(
        scrape(&abridge).await.sum("abridge_experiment_requests_total"),
        (SESSIONS * (REQUESTS - RESTARTED)) as u64
    );
}

/// JSON and the path for the page have both arms, of so many conversations of so many requests.
#[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
async fn check_arms(abridge: &Abridge, conversations: [usize; 2], n_requests: usize, cost: u64) {
    let mut client = abridge.connect().await;
    client.send(request("GET", "/abridge/ledger?days=3&by=policy", &[OPERATOR])).await;
    let reply = client.reply().await;
    let told = savings_of(abridge, &["--json", "--by", "policy"]);
    let compact = |text: &str| text.split_whitespace().collect::<String>();
    let served = String::from_utf8_lossy(&reply.body);
    assert_eq!(compact(&served), compact(&told), "the page and the command have the same");
    let Report { savings, experiments, .. } = serde_json::from_str(&told).unwrap();
    assert!(savings.unwrap().starts_with("saved "), "{told}");
    let [Comparison { policy, unit, usual, tried, conclusion }] = &experiments[..] else { panic!("{told}") };
    assert_eq!((&**policy, &**unit), ("none", "dollars"));
    assert!(conclusion[0].starts_with("nothing can be concluded yet: "), "{told}");
    for (arm, n) in [usual, tried].into_iter().zip(conversations) {
        assert_eq!((arm.conversations, arm.requests), (n, n * n_requests), "{told}");
        assert!((arm.per_request.estimate - arm.amount / arm.requests as f64).abs() < 1e-9, "{told}");
        assert!(arm.per_request.interval.is_none(), "too few conversations: {told}");
    }
    assert!((usual.amount + tried.amount - cost as f64 / 1e9).abs() < 1e-9, "{told}");
}

#[tokio::test]
async fn the_ledger_outlives_the_process_and_is_read_without_one() {
    let mut scene = Scene::new().await;
    let abridge = scene.setup().start().await;
    scene.session(&abridge, "one", 12).await;
    let told = savings_of(&abridge, &[]);
    assert!(told.starts_with("last 30 days: saved $") || told.starts_with("last 30 days: nothing edited"), "{told}");
    abridge.signal("TERM");
    abridge.says("since the start: ", 0).await;
    abridge.exit().await;

    let later = scene.setup().start().await;
    scene.session(&later, "two", 3).await;
    scene.answers(&later, &conversation("three", 1).replace(r#""m""#, r#""nobody-knows""#), false).await;
    let Sums { requests, unreported, edited_cost: cost, .. } = sums(&later);
    assert_eq!((requests, unreported, cost), (16, 1, scene.cost));
    let (config, at) = (later.config().to_owned(), format!("http://{}", later.address()));
    let kept = tempfile::tempdir().unwrap();
    let copy = kept.path().join("proxy.toml");
    std::fs::copy(&config, &copy).unwrap();
    later.signal("KILL");
    later.exit().await;

    // A kill loses the counts of the last seconds; these were stored, because they were asked for.
    let stored = savings(&copy, &at, &["--csv", "--by", "client"]);
    assert!(stored.starts_with("name,dry_run,requests,"), "{stored}");
    assert!(stored.contains("\"unknown\",false,16,"), "{stored}");
}

#[test]
fn without_a_proxy_and_a_store_the_reason_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.env("XDG_STATE_HOME", folder.path()).args(["savings", "--at", "http://127.0.0.1:1"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("abridge: nothing listens on http://127.0.0.1:1; start a proxy"), "{said}");
    assert!(said.ends_with("; and the store of these settings cannot be read\n"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

/// An upstream that caches only what is marked: without the mark of abridge, all of it would be new.
#[tokio::test]
async fn a_request_that_was_marked_for_the_cache_would_have_cost_all_of_its_tokens() {
    let mut scene = Scene::new().await;
    let abridge = scene.setup().with("request_prompt_cache.hosts = [\"127.0.0.1\"]").start().await;
    let tools = r#""tools":[{"name":"t","input_schema":{"type":"object"}}]"#;
    let body = |mark: &str| {
        let long = "word ".repeat(1000);
        format!(
            r#"{{{mark}"model":"claude-sonnet-4-5","max_tokens":9,{tools},"messages":[{{"role":"user","content":"{long}"}}]}}"#
        )
    };
    let mut client = abridge.connect().await;
    client.send(post("/v1/messages", &[], body(""))).await;
    let mut call = scene.upstream.request().await;
    let mark = r#""cache_control":{"type":"ephemeral"},"#;
    assert_eq!(call.bytes().await, body(mark).as_bytes());
    let usage =
        r#"{"input_tokens":100,"cache_read_input_tokens":3000,"cache_creation_input_tokens":900,"output_tokens":10}"#;
    let answer =
        format!(r#"{{"type":"message","role":"assistant","content":[],"stop_reason":"end_turn","usage":{usage}}}"#);
    call.answer("200 OK", &["content-type: application/json", "connection: close"], answer).await;
    let reply = client.reply().await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-edits")), (200, Some("cache=1")));
    within("the bill", async { while scrape(&abridge).await.sum("abridge_requests_total") == 0 {} }).await;
    // $3 a million input tokens, a tenth of it to read and five quarters to write, and $15 a million of the answer.
    let [cost, unedited] = [100 * 3000 + 3000 * 300 + 900 * 3750 + 10 * 15_000, 4000 * 3000 + 10 * 15_000];
    let sums = sums(&abridge);
    assert_eq!((sums.edited, sums.edited_cost, sums.unedited_cost), (1, cost, unedited));
}

/// As Anthropic's servers send them to clients that accept it. <https://github.com/github/gh-aw-firewall/pull/1550>
#[tokio::test]
async fn a_compressed_answer_passes_unchanged_and_is_billed() {
    let mut scene = Scene::new().await;
    let abridge = scene.setup().start().await;
    let usage = r#""usage":{"input_tokens":100,"cache_read_input_tokens":3000,"output_tokens":10}"#;
    let whole = format!(r#"{{"type":"message","role":"assistant","content":[],"stop_reason":"end_turn",{usage}}}"#);
    let start = format!(r#"{{"type":"message_start","message":{{"role":"assistant","content":[],{usage}}}}}"#);
    let end = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":10}}"#;
    let events = format!("event: message_start\ndata: {start}\n\nevent: message_delta\ndata: {end}\n\n");
    let gzip = |plain: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(plain.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let answers = [
        ("gzip", "text/event-stream", gzip(&events)),
        ("gzip", "application/json", gzip(&whole)),
        ("zstd", "text/event-stream", zstd::encode_all(events.as_bytes(), 1).unwrap()),
    ];
    for (n, (coding, kind, coded)) in (1..).zip(answers) {
        let mut client = abridge.connect().await;
        let body = r#"{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"Hello."}]}"#;
        client.send(post("/v1/messages", &[&format!("accept-encoding: {coding}")], body)).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.head.get("accept-encoding"), Some(coding));
        let fields =
            [format!("content-encoding: {coding}"), format!("content-type: {kind}"), "connection: close".to_owned()];
        call.answer("200 OK", &fields.each_ref().map(|field| &**field), &coded).await;
        let reply = client.reply().await;
        assert_eq!((reply.head.get("content-encoding"), &reply.body[..]), (Some(coding), &coded[..]));
        within("the bill", async { while scrape(&abridge).await.sum("abridge_requests_total") < n {} }).await;
        let sums = sums(&abridge);
        let cost = 100 * 3000 + 3000 * 300 + 10 * 15_000;
        assert_eq!((sums.requests, sums.unreported, sums.edited_cost), (n, 0, n * cost), "{coding} {kind}");
    }
}
