//! The page at `/abridge/` in a real browser, in front of real processes: `tests/page/page.mjs` does what a person does.
//! The page of `abridge simulate --html`, too: `tests/page/simulate.mjs`.
//!
//! With `ABRIDGE_SCREENS`, pictures of it go into that folder, too.
//!
//! Needs node and what `tests/page/install.sh` puts into a folder; `ABRIDGE_BROWSER` names that folder. Without it no browser runs.
#![expect(clippy::disallowed_methods, reason = "tests spawn the other sides of a connection")]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is a test's answer"
)]
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "what the browser saw is shown")]
#![expect(dead_code, unused_imports, reason = "other tests use what this one does not of what they share")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[path = "it"]
mod it {
    pub(crate) mod support; // what the integration tests share
}

use it::support::{Abridge, Setup, Upstream, Wire, upstream};

/// A line that would be markup.
const EVIL: &str = r#"<img src=x onerror="globalThis.hacked=1"></code><script>globalThis.hacked = 2 && 'x'</script>"#;
/// Clears all but the newest result, so that there is something to save.
const CLEARING: &str = "clear_tool_results = { when = 'any', trigger = { tokens = 1000 }, keep = { results = 1 } }";
const TOKEN: &str = "a-token-of-operators-0123456789";

fn main() -> ExitCode {
    let Some(folder) = std::env::var_os("ABRIDGE_BROWSER").and_then(|folder| std::path::absolute(folder).ok()) else {
        println!("page: ABRIDGE_BROWSER is not set, so no browser ran; tests/page/install.sh makes such a folder");
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let passed = runtime.block_on(async {
        let mut upstream = Upstream::start().await;
        let simulated = tempfile::TempDir::new().unwrap();
        let inspected = Setup::before(&upstream).with("inspect.keep = 50").start().await;
        let bare = Setup::before(&upstream).start().await;
        let shown = Setup::before(&upstream).with("inspect.keep = 50").start().await;
        let guarded = Setup::before(&upstream).with("admin.token_env = \"OPERATORS\"").environment("OPERATORS", TOKEN);
        let guarded = guarded.start().await;
        let clearing = |upstream: &Upstream| Setup::before(upstream).with(CLEARING);
        let worded = clearing(&upstream).with("inspect.keep = 50").start().await;
        let dry = clearing(&upstream).argument("--dry-run").start().await;
        let compared = clearing(&upstream).with("experiment.share = 0.5").start().await;
        let origin = |abridge: &Abridge| format!("http://{}", abridge.address());
        let scene = serde_json::json!({
            "inspected": origin(&inspected),
            "bare": origin(&bare),
            "shown": origin(&shown),
            "guarded": origin(&guarded),
            "worded": origin(&worded),
            "dry": origin(&dry),
            "compared": origin(&compared),
            "token": TOKEN,
            "operator": it::support::OPERATOR_TOKEN,
            "elsewhere": upstream.origin(),
            "simulated": simulate(simulated.path()),
            "evil": EVIL,
        });
        tokio::spawn(async move {
            while let Some(wire) = upstream.accept().await {
                tokio::spawn(converse(wire));
            }
        });
        println!("the page in a browser");
        let drive = async |script: &str| {
            let mut browser = Command::new("node");
            browser.arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/page").join(script));
            browser.env("ABRIDGE_BROWSER", &folder).env("ABRIDGE_PAGE", scene.to_string());
            browser.env("NO_PROXY", "*").env("no_proxy", "*");
            let status = tokio::task::spawn_blocking(move || browser.status()).await.unwrap();
            status.is_ok_and(|status| status.success())
        };
        let mut passed = drive("page.mjs").await;
        passed &= drive("conversations.mjs").await;
        passed &= drive("simulate.mjs").await;
        if std::env::var_os("ABRIDGE_SCREENS").is_some() {
            passed &= drive("screens.mjs").await;
        }
        if !passed {
            eprintln!("abridge wrote:\n{}", inspected.stderr().join("\n"));
        }
        passed
    });
    runtime.shutdown_background();
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes the page of a simulation in which an edit needs a text that was cleared, and returns its path.
fn simulate(folder: &Path) -> PathBuf {
    let call = |id: &str, name: &str, arguments: &str| {
        let function = serde_json::json!({ "name": name, "arguments": arguments });
        serde_json::json!({ "role": "assistant", "content": null,
            "tool_calls": [{ "id": id, "type": "function", "function": function }] })
    };
    let result = |id: &str, text: &str| {
        let text = format!("{text}\n{}", "filler ".repeat(200));
        serde_json::json!({ "role": "tool", "tool_call_id": id, "content": text })
    };
    let read = |id: &str| call(id, "read", "{}");
    let edit = serde_json::json!({ "old_string": EVIL }).to_string();
    let messages = serde_json::json!([
        { "role": "user", "content": "Do it." },
        read("a"), result("a", EVIL), read("b"), result("b", ""), read("c"), result("c", ""),
        call("d", "edit", &edit), result("d", "ok"),
    ]);
    let write = |name: &str, text: String| fs::write(folder.join(name), text).unwrap();
    write("session.json", serde_json::json!({ "model": "gpt-4o", "messages": messages }).to_string());
    write(
        "policy.toml",
        "[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 1 }\nkeep = { results = 0 }\n".to_owned(),
    );
    let mut abridge = Command::new(it::support::binary());
    abridge.args([
        "simulate",
        "session.json",
        "--policy",
        "policy.toml",
        "--policy",
        "none",
        "--html",
        "compared.html",
    ]);
    assert!(abridge.current_dir(folder).env_clear().output().unwrap().status.success());
    folder.join("compared.html")
}

/// Answers the requests of one connection: conversations, and pages of an origin that is not abridge's.
async fn converse(mut wire: Wire) {
    while let Some(head) = wire.next_head().await {
        let body = wire.body(&head).await.bytes;
        if head.start.starts_with("POST /v1/chat/completions ") {
            answer(&mut wire, "application/json", &completion(body.len() / 4)).await;
        } else {
            answer(&mut wire, "text/html", "<!doctype html><title>elsewhere</title><link rel=icon href=data:,>").await;
        }
    }
}

/// An answer that bills so many tokens, three fourths of them as cached.
fn completion(prompt: usize) -> String {
    format!(
        "{{\"id\":\"c\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\
         \"choices\":[{{\"index\":0,\"finish_reason\":\"stop\",\"message\":{{\"role\":\"assistant\",\"content\":\"Done.\"}}}}],\
         \"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":20,\"total_tokens\":{},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{}}}}}}}",
        prompt + 20,
        prompt * 3 / 4
    )
}

async fn answer(wire: &mut Wire, kind: &str, body: &str) {
    wire.send(upstream::whole("200 OK", &[&format!("content-type: {kind}")], body)).await;
}
