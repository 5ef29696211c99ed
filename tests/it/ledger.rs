//! The ledger: what answers cost as billed, what they would have cost without the edits, and how it is told.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::calibration::conversation;
use crate::metrics::scrape;
use crate::support::{Abridge, OPERATOR_TOKEN, Setup, Upstream, binary, chat, within};

/// An upstream with a prompt cache, which bills a token for four bytes.
struct Scene {
    upstream: Upstream,
    store: TempDir,
    seen: Vec<Vec<u8>>,
    /// What all answers have cost, in dollars.
    cost: f64,
}

/// The list prices of gpt-5.4: input, cached input and output, for a million tokens.
const PRICES: [f64; 3] = [2.5, 0.25, 15.0];

/// The tokens of each answer.
const OUTPUT: usize = 100;

impl Scene {
    async fn new() -> Self {
        Self { upstream: Upstream::start().await, store: tempfile::tempdir().unwrap(), seen: Vec::new(), cost: 0.0 }
    }

    fn setup(&self) -> Setup {
        let path = self.store.path().join("store.redb");
        Setup::before(&self.upstream)
            .with("tokens = { counter = \"estimate\", ask_upstream = false }")
            .with("recall.public_url = \"http://abridge.test\"")
            .with("clear_tool_results = { trigger = { tokens = 12000 }, keep = { results = 2 }, keep_reads = 0 }")
            .with(format!("store.path = \"{}\"", path.display()))
    }

    /// Has a session of so many requests, each with one result more.
    async fn session(&mut self, abridge: &Abridge, seed: &str, n_requests: usize) {
        for n in 1..=n_requests {
            let body = conversation(seed, n).replace(r#""model":"m""#, r#""model":"gpt-5.4""#);
            self.answers(abridge, &body, true).await;
        }
    }

    async fn answers(&mut self, abridge: &Abridge, body: &str, reports: bool) {
        let before = scrape(abridge).await.sum("abridge_requests_total");
        let mut client = abridge.connect().await;
        client.send(chat(body)).await;
        let mut call = self.upstream.request().await;
        let sent = call.bytes().await.to_vec();
        let common = |other: &Vec<u8>| sent.iter().zip(other).take_while(|(a, b)| a == b).count();
        let cached = self.seen.iter().map(common).max().unwrap_or_default() / 4;
        let (prompt, cached) = (sent.len() / 4, if cached < 1024 { 0 } else { cached });
        self.seen.push(sent);
        let usage = format!(
            r#","usage":{{"prompt_tokens":{prompt},"completion_tokens":{OUTPUT},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
        );
        if reports {
            let [input, read, output] = PRICES;
            let tokens = [prompt - cached, cached, OUTPUT].map(|n| n as f64);
            self.cost += (tokens[0] * input + tokens[1] * read + tokens[2] * output) / 1e6;
        }
        let fields = ["content-type: application/json", "connection: close"];
        let usage = if reports { &*usage } else { "" };
        call.answer("200 OK", &fields, format!(r#"{{"choices":[]{usage}}}"#)).await;
        assert_eq!(client.reply().await.head.status(), 200);
        within("the bill", async { while scrape(abridge).await.sum("abridge_requests_total") == before {} }).await;
    }

    /// The lines of `abridge savings`, from the proxy if there is one, or else from the store.
    fn savings(&self, abridge: &Abridge, arguments: &[&str]) -> String {
        savings(abridge.config(), &format!("http://{}", abridge.address()), arguments)
    }
}

fn savings(config: &Path, at: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.arg("savings").arg("--config").arg(config).args(["--at", at]).args(arguments);
    let output = command.env("ABRIDGE_ADMIN_TOKEN", OPERATOR_TOKEN).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The sum of a member over all lines.
fn sum(lines: &str, member: &str) -> f64 {
    let lines: Vec<Value> = serde_json::from_str(lines).unwrap();
    lines.iter().map(|line| line[member].as_f64().unwrap()).sum()
}

fn near(a: f64, b: f64, within: f64) -> bool {
    (a - b).abs() <= within * b.abs()
}

#[tokio::test]
async fn the_cost_is_that_of_the_answers_and_the_estimate_is_what_the_session_costs_without_edits() {
    let mut edited = Scene::new().await;
    let abridge = edited.setup().start().await;
    edited.session(&abridge, "one", 40).await;
    edited.session(&abridge, "two", 25).await;
    let lines = edited.savings(&abridge, &["--json"]);
    let (cost, without) = (sum(&lines, "cost") / 1e9, sum(&lines, "other_cost") / 1e9);
    assert!((cost - edited.cost).abs() < 1e-6, "{cost} {}", edited.cost);
    assert!(sum(&lines, "edited") > 20.0, "{lines}");

    // The same sessions, where nothing is edited.
    let mut plain = Scene::new().await;
    let untouched = plain.setup().with("policy.edits = []").start().await;
    plain.session(&untouched, "one", 40).await;
    plain.session(&untouched, "two", 25).await;
    assert!(near(without, plain.cost, 0.02), "estimated {without}, billed {}; with edits {cost}", plain.cost);

    // A dry run tells the same the other way round.
    let mut shadow = Scene::new().await;
    let dry = shadow.setup().argument("--dry-run").start().await;
    shadow.session(&dry, "one", 40).await;
    shadow.session(&dry, "two", 25).await;
    let lines = shadow.savings(&dry, &["--json"]);
    let (unedited, with) = (sum(&lines, "cost") / 1e9, sum(&lines, "other_cost") / 1e9);
    assert!((unedited - plain.cost).abs() < 1e-6, "{unedited} {}", plain.cost);
    assert!(near(with, edited.cost, 0.02), "estimated {with}, billed {}", edited.cost);
    assert!(shadow.savings(&dry, &[]).contains("would have saved $"), "{}", shadow.savings(&dry, &[]));
}

#[tokio::test]
async fn the_ledger_outlives_the_process_and_is_read_without_one() {
    let mut scene = Scene::new().await;
    let abridge = scene.setup().start().await;
    scene.session(&abridge, "one", 12).await;
    let told = scene.savings(&abridge, &[]);
    assert!(told.starts_with("last 30 days: saved $") || told.starts_with("last 30 days: nothing edited"), "{told}");
    abridge.signal("TERM");
    abridge.says("since the start: ", 0).await;
    abridge.exit().await;

    let later = scene.setup().start().await;
    scene.session(&later, "two", 3).await;
    scene.answers(&later, &conversation("three", 1).replace(r#""m""#, r#""nobody-knows""#), false).await;
    let lines = scene.savings(&later, &["--json", "--by", "model"]);
    assert_eq!(sum(&lines, "requests"), 16.0, "{lines}");
    assert_eq!(sum(&lines, "unreported"), 1.0, "{lines}");
    assert!((sum(&lines, "cost") / 1e9 - scene.cost).abs() < 1e-6, "{lines}");
    let (config, at) = (later.config().to_owned(), format!("http://{}", later.address()));
    let kept = tempfile::tempdir().unwrap();
    let copy = kept.path().join("proxy.toml");
    std::fs::copy(&config, &copy).unwrap();
    later.signal("KILL");
    later.exit().await;

    // What was counted in the last seconds is lost with a kill; it was stored here, because it was asked for.
    let stored = savings(&copy, &at, &["--csv", "--by", "client"]);
    assert!(stored.starts_with("name,dry_run,requests,"), "{stored}");
    assert!(stored.contains("\"unknown\",false,16,"), "{stored}");
}
