//! `serve --record`, and replaying what it wrote.

use std::fs;
use std::path::Path;
use std::process::Command;

use abridge_proxy::dialect::AnswerEnd;
use abridge_proxy::recording::Exchange;
use abridge_proxy::replay::{Replay, ReplayPolicy, find_exchanges, planner_from_toml};
use abridge_proxy::upstream::routes::Routes;
use tempfile::TempDir;

use crate::support::bodies::{DANGLING, PLAIN, assert_patched};
use crate::support::handler::{Handler, Play as Answered};
use crate::support::offloads::{recalls, with_results};
use crate::support::summarizer::{INSTRUCTION, Summarizer, talk};
use crate::support::{Abridge, Scene, Setup, Upstream, binary, chat, post};

/// A scene whose exchanges are recorded into the folder.
async fn recorded() -> (Scene, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).argument("--record").argument(folder.path()).start().await;
    let client = abridge.connect().await;
    (Scene { upstream, abridge, client }, folder)
}

/// The one exchange that was recorded. Everything that is still to be written is written before the process ends.
async fn only(abridge: Abridge, folder: &Path) -> Exchange {
    abridge.signal("TERM");
    abridge.exit().await;
    let found = find_exchanges(folder).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    Exchange::read(&found[0]).unwrap()
}

#[tokio::test]
async fn an_exchange_is_recorded_without_keys_and_replays_as_it_was() {
    let (mut scene, folder) = recorded().await;
    let fields = ["content-type: application/json", "authorization: Bearer hunter2", "cookie: hunter2"];
    scene.client.send(post("/v1/chat/completions?key=hunter2&api-version=1", &fields, DANGLING)).await;
    let mut call = scene.upstream.request().await;
    let sent = call.bytes().await;
    call.answer("200 OK", &["content-type: text/event-stream", "set-cookie: hunter2"], "data: [DONE]\n\n").await;
    assert_eq!(scene.client.reply().await.body, "data: [DONE]\n\n");
    drop(scene.client);

    let exchange = only(scene.abridge, folder.path()).await;
    assert_eq!(exchange.request, DANGLING);
    assert_eq!(exchange.rewritten.as_ref(), Some(&sent));
    assert_eq!(exchange.response.as_deref(), Some(&b"data: [DONE]\n\n"[..]));
    assert_eq!(exchange.meta.path, "/v1/chat/completions?api-version=1");
    assert_eq!((exchange.meta.status, exchange.meta.ended), (Some(200), AnswerEnd::Complete));
    for file in fs::read_dir(&find_exchanges(folder.path()).unwrap()[0]).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        assert!(memchr::memmem::find(&bytes, b"hunter2").is_none());
    }
    let replay =
        Replay::run(&[folder.path().to_owned()], &ReplayPolicy::Fallback(Routes::only(planner_from_toml("").unwrap())));
    assert!(replay.is_clean(), "{replay}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_recorded_as_far_as_it_came() {
    let (mut scene, folder) = recorded().await;
    let call = scene.stream(chat(PLAIN)).await;
    call.into_wire().reset();
    scene.client.rest().await;

    let exchange = only(scene.abridge, folder.path()).await;
    assert_eq!((exchange.rewritten, exchange.meta.ended), (None, AnswerEnd::Cut));
    assert_eq!(exchange.response.as_deref(), Some(&b"data: 1\n\n"[..]));
}

#[tokio::test]
async fn an_answer_that_nobody_waits_for_is_recorded_as_such() {
    let (mut scene, folder) = recorded().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.begin_stream().await;
    scene.client.head().await;
    drop(scene.client);
    call.gone().await;

    let exchange = only(scene.abridge, folder.path()).await;
    assert_eq!(exchange.meta.ended, AnswerEnd::ClientGone);
}

#[tokio::test]
async fn a_dry_run_is_recorded_with_what_would_have_been_sent() {
    let (mut scene, folder) = recorded().await;
    let fields = ["content-type: application/json", "x-abridge: dry-run"];
    scene.client.send(post("/v1/chat/completions", &fields, DANGLING)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await, DANGLING);
    call.json("{}").await;
    scene.client.reply().await;
    drop(scene.client);

    let exchange = only(scene.abridge, folder.path()).await;
    assert!(exchange.meta.dry_run);
    assert_patched(&exchange.rewritten.unwrap());
}

// === replay with the same settings, and with others ===

/// The exit code of `abridge replay` with the settings of that process and these variables, and what it prints.
pub(crate) fn replayed(folder: &Path, abridge: &Abridge, variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(binary());
    command.arg("replay").arg(folder).arg("--config").arg(abridge.config()).envs(variables.iter().copied());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test]
async fn the_settings_that_recorded_replay_the_same_bytes_with_handles_addresses_and_summaries() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Summarizer::playing([]).await;
    let abridge = Setup::to(upstream.url())
        .with("tokens = { counter = \"estimate\", ask_upstream = false }")
        .with("filter_tool_calls = { max_tool_calls = 3 }")
        .with("truncate_tool_results.max_bytes = 1000")
        .with("clear_tool_results = { when = 'any', trigger = { tokens = 500 }, keep = { results = 1 } }")
        .with(format!("summarize = {{ trigger = {{ tokens = 900 }}, instruction = {INSTRUCTION:?} }}"))
        .argument("--record")
        .argument(folder.path())
        .start()
        .await;
    let results: Vec<_> = (0..5).map(|n| format!("result {n}\n").repeat(500)).collect();
    let results =
        with_results(&results).replacen("],\"tools\"", ",{\"role\":\"user\",\"content\":\"so?\"}],\"tools\"", 1);
    for body in [DANGLING, PLAIN, &results, &talk("a", 3), &talk("a", 4), &talk("a", 9)] {
        let mut client = abridge.connect().await;
        let fields = ["content-type: application/json", "authorization: Bearer hunter2"];
        client.send(post("/v1/chat/completions", &fields, body)).await;
        assert_eq!(client.reply().await.head.status(), 200);
    }
    abridge.signal("TERM");
    abridge.exit().await;
    let chats = upstream.chats();
    assert!(!recalls(&chats[2].body).is_empty() && upstream.summaries().len() == 2);

    let (code, table) = replayed(folder.path(), &abridge, &[]);
    assert_eq!(code, Some(0), "{table}");
    assert!(table.ends_with("6 replayed: 6 same, 0 different, 0 unreadable\n"), "{table}");
    for label in ["patch=", "filter=", "truncate=", "clear=", "summary="] {
        assert!(table.contains(label), "{label}: {table}");
    }
    for other in [
        ("ABRIDGE__TRUNCATE_TOOL_RESULTS__MAX_BYTES", "900"),
        ("ABRIDGE__CLEAR_TOOL_RESULTS__PLACEHOLDER", "gone"),
        ("ABRIDGE__RECALL__PUBLIC_URL", "http://elsewhere:1"),
        ("ABRIDGE__STORE__ENABLED", "false"),
        ("ABRIDGE__POLICY__EDITS", "['patch_tool_calls']"),
    ] {
        let (code, table) = replayed(folder.path(), &abridge, &[other]);
        assert!(code == Some(1) && table.contains("DIFFERENT"), "{other:?}: {table}");
    }
}

#[tokio::test]
async fn answers_of_handlers_are_recorded_and_replayed_without_the_handlers() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Summarizer::playing([]).await;
    let handler = Handler::playing(|question| match question["text"].as_str().unwrap() {
        text if text.starts_with("result 0") => Answered::Action("leave"),
        text => Answered::Replace(format!("{} bytes", text.len())),
    });
    let handler = handler.await;
    let abridge = Setup::to(upstream.url())
        .with("tokens = { counter = \"estimate\", ask_upstream = false }")
        .with(format!("handlers.h.url = {:?}", handler.url()))
        .with("patch_tool_calls.handler = \"h\"")
        .with("truncate_tool_results = { max_bytes = 4000, handler = \"h\" }")
        .with("clear_tool_results = { when = 'any', trigger = { tokens = 500 }, keep = { results = 2 }, handler = \"h\" }")
        .argument("--record")
        .argument(folder.path())
        .start()
        .await;
    let results: Vec<_> = (0..5).map(|n| format!("result {n}\n").repeat(500)).collect();
    for body in [DANGLING, &with_results(&results)] {
        let mut client = abridge.connect().await;
        client.send(chat(body)).await;
        assert_eq!(client.reply().await.head.status(), 200);
    }
    abridge.signal("TERM");
    abridge.exit().await;
    assert!(upstream.chats()[1].text().contains("4500 bytes"));
    drop(handler);
    let (code, table) = replayed(folder.path(), &abridge, &[]);
    assert!(code == Some(0) && table.ends_with("2 replayed: 2 same, 0 different, 0 unreadable\n"), "{table}");
}

#[tokio::test]
async fn a_window_that_the_upstream_has_named_is_recorded_with_what_it_was_used_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream)
        .with("tokens.counter = \"estimate\"")
        .with("clear_tool_results = { when = 'any', trigger = { fraction = 0.5 }, keep = { results = 0 } }")
        .with("policy.edits = [\"clear_tool_results\"]")
        .argument("--record")
        .argument(folder.path())
        .start()
        .await;
    let results: Vec<_> = (0..9).map(|n| format!("result {n}\n").repeat(500)).collect();
    let body = with_results(&results).replacen("gpt-4o", "house-model", 1);
    let mut client = abridge.connect().await;
    for lists in [true, false] {
        client.send(chat(&body)).await;
        let mut call = upstream.request().await;
        call.bytes().await;
        if lists {
            let mut listing = upstream.request().await;
            assert_eq!(listing.head.target(), "/v1/models");
            listing.json(r#"{"data":[{"id":"house-model","max_model_len":16000}]}"#).await;
        }
        call.json("{}").await;
        client.reply().await;
    }
    drop(client);
    abridge.signal("TERM");
    abridge.exit().await;

    let (code, table) = replayed(folder.path(), &abridge, &[]);
    assert_eq!(code, Some(0), "{table}");
    assert_eq!(table.matches("clear=").count(), 1, "{table}");
    let (code, _) =
        replayed(folder.path(), &abridge, &[("ABRIDGE__MODELS", "[{ match = '*', context_window = 4000 }]")]);
    assert_eq!(code, Some(1));
}

#[tokio::test]
async fn a_request_of_a_gateway_is_recorded_with_its_answer_and_replays_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let abridge = Setup::to("http://127.0.0.1:9/v1")
        .with("compress.enabled = true")
        .with("truncate_tool_results.max_bytes = 1000")
        .with("recall = { via = \"http\", auth = \"handle\" }")
        .argument("--record")
        .argument(folder.path())
        .start()
        .await;
    let long = "line of it\\n".repeat(300);
    let row = format!("{{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"{long}\"}}");
    let item = format!("{{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"{long}\"}}");
    let mut answers = Vec::new();
    for (rows, config, n_edits) in [
        (format!("\"messages\":[{row},{row}]"), "{\"mode\":\"ccr\"}", 2),
        (format!("\"messages\":[{row},{row}]"), "{\"mode\":\"ccr\",\"frozen_message_count\":1}", 1),
        (format!("\"input\":[{item}]"), "{}", 2), // `messages` and `input` of the answer
    ] {
        let mut client = abridge.connect().await;
        client
            .send(post("/v1/compress", &["authorization: Bearer hunter2"], format!("{{{rows},\"config\":{config}}}")))
            .await;
        let answer = client.reply().await.body;
        assert_eq!(String::from_utf8_lossy(&answer).matches("bytes left out").count(), n_edits, "{config}");
        answers.push(answer);
    }
    abridge.signal("TERM");
    abridge.exit().await;
    let recorded: Vec<_> =
        find_exchanges(folder.path()).unwrap().iter().map(|one| Exchange::read(one).unwrap()).collect();
    for Exchange { response, meta, .. } in &recorded {
        assert_eq!((meta.path.as_str(), meta.status), ("/v1/compress", Some(200)));
        assert!(answers.iter().any(|answer| Some(answer) == response.as_ref()));
    }
    let (code, table) = replayed(folder.path(), &abridge, &[]);
    assert_eq!(code, Some(0), "{table}");
    assert!(table.ends_with("3 replayed: 3 same, 0 different, 0 unreadable\n"), "{table}");
    let (code, table) = replayed(folder.path(), &abridge, &[("ABRIDGE__TRUNCATE_TOOL_RESULTS__MAX_BYTES", "900")]);
    assert!(code == Some(1) && table.contains("3 different"), "{table}");
}
