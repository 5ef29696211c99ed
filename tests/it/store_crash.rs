//! Killed at the worst time, and started again: what went upstream can be recalled.

use tokio::task::JoinSet;

use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::summarizer::{INSTRUCTION, Play, Summarizer};
use crate::support::{OPERATOR_TOKEN, Scene, Setup, Upstream, binary, chat, request};

mod kills; // two hundred times, with summaries
mod model; // an upstream that outlives them and keeps what it got
mod talk; // sessions that need no memory

#[tokio::test]
async fn payloads_survive_a_kill_as_soon_as_the_upstream_has_the_request() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("store.path = {:?}", folder.path().join("store.redb"));
    let mut sent = Vec::new();
    for round in 0..4 {
        let mut scene = Scene::with(&line).await;
        let texts: Vec<_> = (0..3).map(|n| long_text(round * 3 + n)).collect();
        scene.client.send(chat(with_results(&texts))).await;
        let mut call = scene.upstream.request().await;
        let body = call.bytes().await;
        scene.abridge.signal("KILL");
        scene.abridge.exit().await;
        let handles = recalls(&body);
        assert_eq!(handles.len(), texts.len());
        sent.extend(handles.into_iter().zip(texts));
    }
    check_all(&line, &sent).await;
}

#[tokio::test]
async fn a_backup_that_is_made_while_clients_are_served_has_all_that_was_stored_before() {
    let folder = tempfile::tempdir().unwrap();
    let [path, copy] = ["store.redb", "copy.redb"].map(|name| folder.path().join(name));
    let line = format!("store.path = {path:?}");
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(&line).start().await;
    let mut sent = Vec::new();
    for client in 0..30 {
        let text = long_text(client);
        let mut wire = abridge.connect().await;
        wire.send(chat(with_results(std::slice::from_ref(&text)))).await;
        let mut call = upstream.request().await;
        sent.extend(recalls(&call.bytes().await).into_iter().zip([text]));
        call.json("{}").await;
        wire.reply().await;
    }
    assert_eq!(sent.len(), 30);
    // More comes meanwhile, without a wait for the copy.
    let at = abridge.address();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let more = tokio::spawn(async move {
        let mut n = 30;
        while stopped.try_recv().is_err() {
            let mut wire = crate::support::Wire::connect(at).await;
            wire.send(chat(with_results(&[long_text(n)]))).await;
            let mut call = upstream.request().await;
            call.json("{}").await;
            wire.reply().await;
            n += 1;
        }
        n
    });
    let backup = |to: &std::path::Path| {
        let mut command = std::process::Command::new(binary());
        command.args(["store", "backup"]).arg(to).args(["--at", &format!("http://{at}")]);
        command.env("ABRIDGE_ADMIN_TOKEN", OPERATOR_TOKEN);
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    let made = backup(&copy).await.unwrap();
    assert!(made.status.success() && made.stderr.is_empty(), "{made:?}");
    let again = backup(&copy).await.unwrap();
    assert!(
        again.status.code() == Some(69) && String::from_utf8_lossy(&again.stderr).contains("exists; name"),
        "{again:?}"
    );
    let nowhere = backup(std::path::Path::new("/proc/no/copy.redb")).await.unwrap();
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
    stop.send(()).unwrap();
    assert!(more.await.unwrap() > 30);
    abridge.signal("KILL");
    abridge.exit().await;
    std::fs::remove_file(&path).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    let verified = std::process::Command::new(binary())
        .args(["store", "verify"])
        .env("ABRIDGE__STORE__PATH", &path)
        .output()
        .unwrap();
    assert!(verified.status.success(), "{verified:?}");
    // No process has the file open now, and it is copied without a proxy.
    let offline = std::process::Command::new(binary())
        .args(["store", "backup"])
        .arg(&copy)
        .env("ABRIDGE__STORE__PATH", &path)
        .output()
        .unwrap();
    assert!(offline.status.success() && copy.is_file(), "{offline:?}");
    check_all(&format!("store.path = {copy:?}"), &sent).await;
    assert_eq!(
        std::fs::read_dir(folder.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "part"))
            .count(),
        0
    );
}

#[tokio::test]
async fn payloads_survive_a_kill_while_many_clients_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("store.path = {:?}", folder.path().join("store.redb"));
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(&line).start().await;
    let mut clients = JoinSet::new();
    for client in 0..8 {
        let mut wire = abridge.connect().await;
        clients.spawn(async move {
            let texts: Vec<_> = (0..4).map(|n| long_text(client * 4 + n)).collect();
            // The process may be gone before it has read all of it.
            wire.try_send(chat(with_results(&texts))).await.ok();
            // Kept open to the end of the test.
            wire
        });
    }
    // Three have arrived; the others are anywhere on the way.
    let mut sent = Vec::new();
    for _ in 0..3 {
        let body = upstream.request().await.bytes().await;
        sent.push(body);
    }
    abridge.signal("KILL");
    abridge.exit().await;
    clients.join_all().await;
    let sent: Vec<_> = sent.iter().flat_map(|body| recalls(body)).map(|target| (target, String::new())).collect();
    assert_eq!(sent.len(), 12);
    check_all(&line, &sent).await;
}

#[tokio::test]
async fn a_kill_during_a_summary_call_loses_nothing_that_was_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("store.path = {:?}", folder.path().join("store.redb"));
    let upstream = Summarizer::playing([Play::good().held()]).await;
    let abridge = Setup::to(upstream.url())
        .with(&store)
        .with(format!("summarize.instruction = {INSTRUCTION:?}"))
        .with("summarize.trigger = { tokens = 20000 }")
        .with("tokens.ask_upstream = false")
        .start()
        .await;
    let mut client = abridge.connect().await;
    client.send(chat(with_results(&[long_text(1), long_text(2), long_text(3)]))).await;
    upstream.asked_for(1).await;
    abridge.signal("KILL");
    abridge.exit().await;
    // Nothing else has gone upstream yet: who summarises is the first to read of what was taken out.
    let handles = recalls(&upstream.summaries()[0].body);
    assert!(!handles.is_empty() && upstream.chats().is_empty());
    let sent: Vec<_> = handles.into_iter().zip([long_text(1), long_text(2), long_text(3)]).collect();
    check_all(&store, &sent).await;
}

/// Starts again, and recalls each payload. An empty text means any.
async fn check_all(line: &str, sent: &[(String, String)]) {
    let mut scene = Scene::with(line).await;
    for (target, text) in sent {
        scene.client.send(request("GET", target, &[])).await;
        let reply = scene.client.reply().await;
        assert_eq!(reply.head.status(), 200, "{target}");
        assert!(text.is_empty() && !reply.body.is_empty() || reply.body == text.as_bytes(), "{target}");
    }
}
