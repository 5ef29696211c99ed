//! `serve --record`, and replaying what it wrote.

use std::fs;
use std::path::Path;

use abridge_proxy::recording::{Ended, Exchange};
use abridge_proxy::replay::{Chosen, Replay, folders, own_planner};
use tempfile::TempDir;

use crate::support::bodies::{DANGLING, PLAIN, assert_patched};
use crate::support::{Abridge, Scene, Setup, Upstream, chat, post};

/// A scene whose exchanges are recorded into the folder.
async fn recorded() -> (Scene, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).argument("--record").argument(folder.path()).start().await;
    let client = abridge.connect().await;
    (Scene { upstream, abridge, client }, folder)
}

/// The one exchange that was recorded. What is still to be written is written before the process ends.
async fn only(abridge: Abridge, folder: &Path) -> Exchange {
    abridge.signal("TERM");
    abridge.exit().await;
    let found = folders(folder).unwrap();
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
    assert_eq!((exchange.meta.status, exchange.meta.ended), (Some(200), Ended::Complete));
    for file in fs::read_dir(&folders(folder.path()).unwrap()[0]).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        assert!(memchr::memmem::find(&bytes, b"hunter2").is_none());
    }
    let replay = Replay::run(&[folder.path().to_owned()], &Chosen::ByDefault(own_planner("").unwrap()));
    assert!(replay.is_clean(), "{replay}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_recorded_as_far_as_it_came() {
    let (mut scene, folder) = recorded().await;
    let call = scene.stream(chat(PLAIN)).await;
    call.into_wire().reset();
    scene.client.rest().await;

    let exchange = only(scene.abridge, folder.path()).await;
    assert_eq!((exchange.rewritten, exchange.meta.ended), (None, Ended::UpstreamCut));
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
    assert_eq!(exchange.meta.ended, Ended::ClientGone);
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
