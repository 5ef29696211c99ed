//! The handler of `examples/handlers`, as it is.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::*;

/// The program, which is killed when dropped.
struct Program(Child, String);

impl Program {
    fn start(arguments: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/handlers/handler.py");
        let mut command = Command::new("python3");
        command.arg(script).args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 runs the handler");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").expect("the handler says where it listens").to_owned();
        Self(child, url)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Results of tests, of a diff, and of something else.
fn texts_of_all_kinds() -> Vec<String> {
    let mut tests = lines(80, |n| format!("test unit::case_{n} ... ok"));
    tests += "test unit::broken ... FAILED\nassertion `left == right` failed at src/lib.rs:7\ntest result: FAILED. 80 passed; 1 failed\n";
    let mut diff = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,90 +1,90 @@\n".to_owned();
    diff.extend(
        (0..90).map(|n| if n == 40 { "-old\n+new\n".to_owned() } else { format!(" context {n} stays as it was\n") }),
    );
    let other = lines(90, |n| format!("entry {n} of a listing"));
    let last = lines(90, |n| format!("entry {n} of another"));
    vec![tests, diff, other, last, "unread".to_owned()]
}

fn before(upstream: &Summarizer, program: &Program) -> Setup {
    Setup::to(upstream.url())
        .with(format!("handlers.example.url = {:?}", program.1))
        .with("clear_tool_results.handler = \"example\"")
        .with("clear_tool_results.when = \"any\"")
        .with("clear_tool_results.trigger = { tokens = 600 }")
        .with("clear_tool_results.keep = { results = 2 }")
        .with("tokens.ask_upstream = false")
}

#[tokio::test]
async fn the_example_keeps_failures_of_tests_and_changed_lines_of_diffs() {
    let upstream = Summarizer::playing([]).await;
    let program = Program::start(&["--listen", "127.0.0.1:0"]);
    let abridge = before(&upstream, &program).start().await;
    let after = results(&abridge, &upstream, with_results(&texts_of_all_kinds())).await;
    assert!(
        after[0].starts_with("test unit::broken ... FAILED\nassertion `left == right` failed at src/lib.rs:7\n"),
        "{}",
        after[0]
    );
    assert!(after[0].contains("(80 lines of passed tests are left out)\n[Cleared: "), "{}", after[0]);
    assert!(
        after[1].contains("@@ -1,90 +1,90 @@\n-old\n+new\n[Cleared: ") && !after[1].contains("context"),
        "{}",
        after[1]
    );
    assert!(after[2].starts_with("[Cleared: "), "{}", after[2]);
}

#[tokio::test]
async fn the_example_has_a_model_make_digests() {
    let upstream = Summarizer::playing([]).await;
    let model = Summarizer::playing([]).await;
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("example.sock").display());
    let program = Program::start(&["--listen", &socket, "--model-url", model.url(), "--model", "small"]);
    let abridge = before(&upstream, &program).start().await;
    let after = results(&abridge, &upstream, with_results(&texts_of_all_kinds())).await;
    assert!(after[2].starts_with("hello\n[Cleared: "), "what the model said: {}", after[2]);
    let asked = model.chats();
    assert_eq!(asked.len(), 1, "the others need no model");
    assert!(asked[0].text().contains("\"model\": \"small\"") && asked[0].text().contains("entry 89 of a listing"));
}
