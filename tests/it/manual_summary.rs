//! Summaries that someone asks for: `POST /abridge/summarize`, and `abridge summarize`.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};

use crate::failures::refused;
use crate::support::summarizer::messages;
use crate::support::upstream::Exchange;
use crate::support::wire::Reply;
use crate::support::{ClosedPort, Scene, Setup, Upstream, Wire, binary, post, request, within};

const PATH: &str = "/abridge/summarize";
const KEY: &str = "authorization: Bearer k";

/// A conversation of so many turns, and a question at its end: far below every trigger.
fn talk(n_turns: usize) -> String {
    let turn = |n: usize| {
        let answer = format!("answer {n}. ").repeat(60);
        format!(r#"{{"role":"user","content":"question {n}"}}, {{"role":"assistant","content":"{answer}"}}, "#)
    };
    let turns: String = (0..n_turns).map(turn).collect();
    format!(
        r#"{{"model":"some-model","messages":[{{"role":"system","content":"be brief"}}, {turns}{{"role":"user","content":"the last"}}],"temperature":0.5}}"#
    )
}

/// Answers a request for a summary.
async fn summarise(call: &mut Exchange) {
    let asked = call.bytes().await;
    assert!(messages(&asked).len() > 2, "{asked:?}");
    let answer = concat!(
        r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"<summary>They talked.</summary>"},"finish_reason":"stop"}],"#,
        r#""usage":{"prompt_tokens":900,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":800}}}"#
    );
    call.answer("200 OK", &["content-type: application/json", "connection: close"], answer).await;
}

/// Asks for a summary, and has it made.
async fn summarised(scene: &mut Scene, body: &str) -> Reply {
    let mut client = scene.abridge.connect().await;
    client.send(post(PATH, &[KEY], body)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.head.start, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(call.head.get("authorization"), Some("Bearer k"));
    summarise(&mut call).await;
    client.reply().await
}

async fn asked(client: &mut Wire, target: &str, body: &str) -> Reply {
    client.send(post(target, &[KEY], body)).await;
    client.reply().await
}

// === over HTTP ===

#[tokio::test]
async fn a_body_is_summarised_whatever_the_trigger() {
    let mut scene = Scene::new().await;
    let body = talk(6);
    let reply = summarised(&mut scene, &body).await;
    assert_eq!((reply.head.status(), reply.head.get("content-type")), (200, Some("application/json")));
    assert_eq!(reply.head.get("x-abridge-summary"), Some("made"));
    assert_eq!(reply.head.get("x-abridge-edits"), Some("summary=1"));
    assert!(reply.head.get("x-abridge-tokens").is_some() && reply.head.get("x-abridge-request-id").is_some());
    let (before, after) = (messages(body.as_bytes()), messages(&reply.body));
    assert!(after.len() < before.len() && reply.body.len() < body.len(), "{after:?}");
    assert_eq!((after.first(), after.last()), (before.first(), before.last()));
    assert!(after[1].starts_with(r#"{"role":"user""#) && after[1].contains("They talked."), "{}", after[1]);
    assert!(reply.body.ends_with(b"],\"temperature\":0.5}"));

    // It is kept: the same body needs no call, and neither does the conversation itself.
    let again = asked(&mut scene.client, PATH, &body).await;
    assert_eq!((again.head.get("x-abridge-summary"), &again.body), (Some("made"), &reply.body));
    scene.client.send(post("/v1/chat/completions", &[KEY], &body)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await, reply.body);
    call.json("{}").await;
    scene.client.reply().await;
    scene.upstream.no_more();
}

#[tokio::test]
async fn where_there_is_nothing_to_summarise_the_body_comes_back_as_it_came() {
    let mut scene = Scene::new().await;
    for body in [talk(0), "{ \"messages\" : [ ] }".to_owned()] {
        let reply = asked(&mut scene.client, PATH, &body).await;
        assert_eq!((reply.head.status(), reply.head.get("x-abridge-summary")), (200, Some("none")));
        assert_eq!(reply.body, body.as_bytes());
        assert_eq!(reply.head.get("x-abridge-edits"), None);
    }
    scene.upstream.no_more();
}

#[tokio::test]
async fn what_is_no_conversation_is_refused() {
    let mut scene = Scene::new().await;
    for body in ["", "hello", "{\"messages\":3}", "[]"] {
        refused(&asked(&mut scene.client, PATH, body).await, 400, "not_understood");
    }
    scene.client.send(post(PATH, &["content-encoding: gzip"], talk(3))).await;
    refused(&scene.client.reply().await, 400, "bad_encoding");
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_summary_that_cannot_be_made_is_refused_with_the_reason() {
    let mut scene = Scene::with("summarize.cooldown = \"1h\"").await;
    let mut client = scene.abridge.connect().await;
    client.send(post(PATH, &[KEY], talk(6))).await;
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    call.answer("401 Unauthorized", &["connection: close"], "{}").await;
    let message = refused(&client.reply().await, 502, "not_summarized");
    assert!(message.contains("401"), "{message}");
    // It has its cooldown, as any.
    let message = refused(&asked(&mut scene.client, PATH, &talk(6)).await, 502, "not_summarized");
    assert!(message.contains("summarize.cooldown"), "{message}");
    scene.upstream.no_more();
}

#[tokio::test]
async fn what_the_settings_do_not_allow_is_refused() {
    for (line, what) in
        [("policy.edits = [\"patch_tool_calls\"]", "policy.edits"), ("store.enabled = false", "summarize.transcript")]
    {
        let mut scene = Scene::with(line).await;
        let message = refused(&asked(&mut scene.client, PATH, &talk(6)).await, 400, "summarize_off");
        assert!(message.contains(what), "{message}");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn the_path_behind_summarize_is_the_path_of_the_summary_call() {
    let upstream = Upstream::start().await;
    let abridge = Setup::to(upstream.origin()).start().await;
    let client = abridge.connect().await;
    let mut scene = Scene { upstream, abridge, client };
    let target = "/openai/deployments/d/chat/completions?api-version=1";
    scene.client.send(post(&format!("{PATH}{target}"), &["api-key: k"], talk(6))).await;
    let mut call = scene.upstream.request().await;
    assert_eq!((call.head.target(), call.head.get("api-key")), (target, Some("k")));
    summarise(&mut call).await;
    assert_eq!(scene.client.reply().await.head.get("x-abridge-summary"), Some("made"));

    for (target, status) in [("/v1/embeddings", 404), ("d", 401), ("/", 401)] {
        let reply = asked(&mut scene.client, &format!("{PATH}{target}"), &talk(6)).await;
        assert_eq!(reply.head.status(), status, "{target}");
    }
    scene.client.send(request("GET", PATH, &[])).await;
    let got = scene.client.reply().await;
    assert_eq!((got.head.status(), got.head.get("allow")), (405, Some("POST")));
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_manual_summary_counts_as_a_request_and_obeys_its_limits() {
    let mut scene = Scene::with("server.max_in_flight = 1\nserver.max_body = \"64KiB\"").await;
    refused(&asked(&mut scene.client, PATH, &" ".repeat(70_000)).await, 413, "body_too_large");
    let mut first = scene.abridge.connect().await;
    first.send(post(PATH, &[KEY], talk(6))).await;
    let mut call = scene.upstream.request().await;
    let mut second = scene.abridge.connect().await;
    refused(&asked(&mut second, PATH, &talk(6)).await, 503, "overloaded");
    summarise(&mut call).await;
    assert_eq!(first.reply().await.head.status(), 200);
    // The place is given back.
    let mut third = scene.abridge.connect().await;
    assert_eq!(asked(&mut third, PATH, &talk(6)).await.head.status(), 200);
}

#[tokio::test]
async fn manual_summaries_have_events_for_their_caller_without_content() {
    for content in [false, true] {
        let mut scene = Scene::with(&format!("events.content = {content}")).await;
        let listen = |fields: &str| format!("GET /abridge/events HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n\r\n");
        let mut ears = scene.abridge.connect().await;
        ears.send(listen(KEY)).await;
        let mut other = scene.abridge.connect().await;
        other.send(listen("authorization: Bearer other")).await;
        for wire in [&mut ears, &mut other] {
            wire.head().await;
            wire.chunk().await.unwrap();
        }
        let reply = summarised(&mut scene, &talk(6)).await;
        let id = reply.head.get("x-abridge-request-id").unwrap();
        for kind in ["summary.before", "summary.attempt", "summary.after"] {
            let chunk = ears.chunk().await.unwrap();
            let text = std::str::from_utf8(&chunk).unwrap();
            assert!(text.contains(&format!("event: {kind}\n")) && text.contains(id), "{text}");
            assert!(!text.contains("question 1") || content && kind == "summary.after", "{text}");
            assert_eq!(text.contains("They talked."), content && kind == "summary.after", "{text}");
        }
        scene.abridge.signal("TERM");
        assert_eq!(other.chunk().await, None, "who is another caller hears nothing");
    }
}

// === on the command line ===

/// Runs `abridge summarize` on standard input, beside this thread.
fn run(lines: &str, arguments: &[&str], body: String) -> JoinHandle<Output> {
    let (lines, arguments) = (lines.to_owned(), arguments.iter().map(ToString::to_string).collect::<Vec<_>>());
    thread::spawn(move || {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("proxy.toml");
        std::fs::write(&config, lines).unwrap();
        let mut command = Command::new(binary());
        command.arg("--config").arg(&config).args(["summarize", "-"]).args(arguments);
        command.env("XDG_STATE_HOME", folder.path()).env("KEY_OF_TEST", "sk-test");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    })
}

async fn output(running: JoinHandle<Output>) -> (i32, String, String) {
    let joined = tokio::task::spawn_blocking(|| running.join().unwrap());
    let output = within("the command to end", joined).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn the_command_prints_the_body_with_a_summary() {
    let mut upstream = Upstream::start().await;
    let lines = format!("upstream.url = {:?}\nupstream.api_key_env = \"KEY_OF_TEST\"", upstream.url());
    let running = run(&lines, &["--report"], talk(6));
    let mut call = upstream.request().await;
    assert_eq!(call.head.start, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(call.head.get("authorization"), Some("Bearer sk-test"));
    summarise(&mut call).await;
    let (code, out, err) = output(running).await;
    assert_eq!(code, 0, "{err}");
    let after = messages(out.as_bytes());
    assert!(after[1].contains("They talked."), "{out}");
    assert!(err.contains("\"summarize\": {") && err.contains("\"tokens_after\""), "{err}");
    assert!(!err.contains("sk-test"));
}

#[tokio::test]
async fn the_command_prints_nothing_where_no_summary_can_be_made() {
    let closed = ClosedPort::new();
    let lines = format!("upstream.url = {:?}\nsummarize.retry = {{ max_retries = 0 }}", closed.url());
    let (code, out, err) = output(run(&lines, &[], talk(6))).await;
    assert_eq!((code, &*out), (69, ""), "{err}");
    assert!(err.starts_with("abridge: the summary was not made") && err.lines().count() == 1, "{err}");

    let (code, out, err) = output(run("policy.edits = []", &[], talk(6))).await;
    assert_eq!((code, &*out), (78, ""), "{err}");
}

#[tokio::test]
async fn the_command_prints_what_needs_no_summary_as_it_came() {
    for (body, why) in [(talk(0), "nothing to summarise"), ("hello".to_owned(), "printed unchanged")] {
        let (code, out, err) = output(run("", &[], body.clone())).await;
        assert_eq!((code, out), (0, body), "{err}");
        assert!(err.contains(why), "{err}");
    }
}

// === in simulations ===

/// Runs `abridge simulate --upstream` on one session under two policies that are the same.
fn simulated(url: &str) -> JoinHandle<Output> {
    let url = url.to_owned();
    thread::spawn(move || {
        let folder = tempfile::tempdir().unwrap();
        let policy = "policy.edits = [\"summarize\"]\nsummarize.retry = { max_retries = 0 }\n\
                      summarize.trigger = { tokens = 2200 }\nsummarize.keep = { rounds = 1 }\n";
        std::fs::write(folder.path().join("proxy.toml"), policy).unwrap();
        std::fs::write(folder.path().join("session.json"), talk(12)).unwrap();
        let mut command = Command::new(binary());
        command.args(["--config", "proxy.toml", "simulate", "session.json", "--upstream", &url]);
        command.args(["--policy", "present", "--policy", "proxy.toml"]).current_dir(folder.path());
        command.env("XDG_STATE_HOME", folder.path()).stdin(Stdio::null()).output().unwrap()
    })
}

#[tokio::test]
async fn a_simulation_has_each_summary_made_once_by_the_upstream_that_is_named() {
    let mut upstream = Upstream::start().await;
    let running = simulated(&upstream.url());
    summarise(&mut upstream.request().await).await;
    let (code, out, err) = output(running).await;
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(out.contains("\nsummaries: made by the upstream\n"), "{out}");
    let made = |policy: &str| out.lines().filter(|line| line.starts_with(policy) && line.ends_with(" 1")).count();
    assert_eq!([made("present"), made("proxy")], [2, 2], "the session and the total: {out}");
    upstream.no_more();
}

#[tokio::test]
async fn a_simulation_goes_on_without_a_summary_that_cannot_be_made_and_says_why() {
    let (code, out, err) = output(simulated(&ClosedPort::new().url())).await;
    assert_eq!(code, 0, "{err}");
    assert!(err.starts_with("abridge: warning: a summary was not made: "), "{err}");
    assert!(!out.contains("stands in"), "{out}");
}
