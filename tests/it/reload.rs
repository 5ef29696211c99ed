//! SIGHUP: the new settings come into force as a whole, or the old ones stay.

use crate::support::bodies::{DANGLING, PLAIN, assert_patched};
use crate::support::offloads::with_results;
use crate::support::{OPERATOR, Scene, chat, request};

const RELOADED: &str = "settings reloaded";
const REFUSED: &str = "not reloaded";

/// What the upstream gets of a conversation that the default policy edits.
async fn passes_on(scene: &mut Scene) -> bytes::Bytes {
    scene.client.send(chat(DANGLING)).await;
    let mut call = scene.upstream.request().await;
    let body = call.bytes().await;
    call.answer("200 OK", &["connection: close"], "{}").await;
    scene.client.reply().await;
    body
}

#[tokio::test]
async fn a_new_policy_comes_into_force_without_a_restart() {
    let mut scene = Scene::new().await;
    assert_patched(&passes_on(&mut scene).await);
    let from = scene.abridge.stderr().len();
    scene.abridge.reload_with("policy.edits = []");
    scene.abridge.says(RELOADED, from).await;
    assert_eq!(passes_on(&mut scene).await, DANGLING);
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_says_where_it_is_wrong() {
    let bad = [
        "policy.edits = 3",
        "polcy.edits = []",
        "policy.edits = [\"patch_tool_cals\"]",
        "[[[",
        "upstream.idle_timeout = \"3 parsecs\"",
    ];
    let mut scene = Scene::new().await;
    for lines in bad {
        let from = scene.abridge.stderr().len();
        scene.abridge.reload_with(&format!("dry_run = true\n{lines}"));
        let line = scene.abridge.says(REFUSED, from).await;
        let file = scene.abridge.config().display().to_string();
        assert!(line.contains(&file), "{file} is missing: {line}");
        assert_patched(&passes_on(&mut scene).await);
    }
}

#[tokio::test]
async fn a_file_that_is_gone_changes_nothing() {
    let mut scene = Scene::new().await;
    let from = scene.abridge.stderr().len();
    std::fs::remove_file(scene.abridge.config()).unwrap();
    scene.abridge.signal("HUP");
    scene.abridge.says(REFUSED, from).await;
    assert_patched(&passes_on(&mut scene).await);
}

#[tokio::test]
async fn settings_that_need_a_restart_are_reported_at_every_reload() {
    let scene = Scene::new().await;
    let reload = async |lines: &str| {
        let from = scene.abridge.stderr().len();
        scene.abridge.reload_with(lines);
        scene.abridge.says(RELOADED, from).await;
        let said = scene.abridge.stderr().split_off(from);
        said.into_iter().filter(|line| line.contains("only with a restart")).collect::<Vec<_>>()
    };
    for (lines, what) in [
        ("server.grace = \"1s\"", "[server]"),
        ("admin.listen = \"127.0.0.1:0\"", "admin.listen"),
        ("store.keep_for = \"1d\"", "[store]"),
        ("events.queue = 1", "[events]"),
        ("otel.endpoint = \"http://127.0.0.1:1\"", "[otel]"),
        ("log.format = \"json\"", "log.format"),
    ] {
        // The second time, too: it is in force no more than before.
        for _ in 0..2 {
            let said = reload(lines).await;
            assert!(matches!(&said[..], [line] if line.contains(&format!("a change of {what} "))), "{lines}: {said:?}");
        }
    }
    let said = reload("policy.edits = []").await;
    assert!(said.is_empty(), "all is as it was at the start: {said:?}");
}

#[tokio::test]
async fn requests_under_way_are_not_disturbed() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.begin_stream().await;
    scene.client.head().await;

    let from = scene.abridge.stderr().len();
    scene.abridge.reload_with("policy.edits = []\nupstream.headers = { x-new = \"1\" }");
    scene.abridge.says(RELOADED, from).await;
    call.send_chunk("data: 1\n\n").await;
    assert_eq!(scene.client.chunk().await.unwrap(), "data: 1\n\n");
    call.end_stream().await;
    assert_eq!(scene.client.chunk().await, None);
    scene.client.trailers().await;

    // The same connection sees the new settings with its next request.
    scene.client.send(request("GET", "/v1/models", &[])).await;
    assert_eq!(scene.upstream.request().await.head.get("x-new"), Some("1"));
}

#[tokio::test]
async fn what_was_learned_of_models_is_kept_unless_it_may_be_wrong_now() {
    const MODELS: &str = "GET /v1/models HTTP/1.1";
    let mut scene = Scene::with("clear_tool_results = { when = 'any', keep = { results = 1 } }").await;
    let texts: Vec<_> = (0..12).map(|n| format!("{n} ").repeat(2000)).collect();
    let body = with_results(&texts).replace("gpt-4o", "house-model");
    let listing = r#"{"data":[{"id":"house-model","max_model_len":16000}]}"#;

    // Sends the request; whether it was cleared, and whether the upstream was asked for its models.
    let ask = async |scene: &mut Scene| {
        let mut client = scene.abridge.connect().await;
        client.send(chat(&body)).await;
        let (mut cleared, mut asked) = (None, false);
        while cleared.is_none() {
            let mut call = scene.upstream.request().await;
            if call.head.start == MODELS {
                call.answer("200 OK", &["connection: close"], listing).await;
                asked = true;
            } else {
                cleared = Some(call.bytes().await.len() < body.len());
                call.answer("200 OK", &["connection: close"], "{}").await;
                client.reply().await;
            }
        }
        (cleared == Some(true), asked)
    };
    let learn = async |scene: &mut Scene| {
        let mut asked = false;
        for _ in 0..1000 {
            let (cleared, asks) = ask(scene).await;
            asked |= asks;
            if cleared {
                return asked;
            }
        }
        panic!("the window should have been learned");
    };
    assert!(learn(&mut scene).await);

    for (lines, asks_again) in [("inspect.keep = 1", false), ("tokens.calibrate = false", true), ("", true)] {
        let from = scene.abridge.stderr().len();
        scene.abridge.reload_with(lines);
        scene.abridge.says(RELOADED, from).await;
        if asks_again {
            assert!(learn(&mut scene).await, "{lines:?}");
        } else {
            assert_eq!(ask(&mut scene).await, (true, false), "{lines:?}");
        }
    }
}

#[tokio::test]
async fn a_post_of_an_operator_reloads_and_is_answered_with_the_outcome() {
    let mut scene = Scene::new().await;
    let config = scene.abridge.config().to_owned();
    let written = std::fs::read_to_string(&config).unwrap();
    let write = |lines: &str| std::fs::write(&config, format!("{written}{lines}\n")).unwrap();
    let mut operator = scene.abridge.connect().await;
    let mut ask = async |method: &str, fields: &[&str]| {
        operator.send(request(method, "/abridge/reload", &[fields, &[OPERATOR, "content-length: 0"]].concat())).await;
        let reply = operator.reply().await;
        (reply.head.status(), String::from_utf8(reply.body.to_vec()).unwrap())
    };
    write("policy.edits = []");
    assert_eq!(ask("GET", &[]).await.0, 405);
    assert_eq!(ask("POST", &["origin: https://page.example"]).await.0, 403);
    assert_patched(&passes_on(&mut scene).await);
    assert_eq!(ask("POST", &[]).await, (200, "settings reloaded\n".to_owned()));
    assert_eq!(passes_on(&mut scene).await, DANGLING);
    write("policy.edits = 3");
    let (status, text) = ask("POST", &[]).await;
    let file = config.display().to_string();
    assert!(status == 422 && text.starts_with("settings not reloaded; the old ones stay in force: "), "{text}");
    assert!(text.contains(&file), "{file} is missing: {text}");
    assert_eq!(passes_on(&mut scene).await, DANGLING);
}
