//! How much memory abridge takes: with nothing to do, and with many long requests at a time.

use crate::support::bodies::PLAIN;
use crate::support::offloads::{long_text, with_results};
use crate::support::{Scene, chat, within};

/// In KiB.
const MIB: u64 = 1 << 10;

/// More than the pages of a release's program, in KiB: without link-time optimisation it has 26 MB.
const RELEASE: u64 = 30 * MIB;

/// A conversation of some 1 MB, in which there is something to count, to truncate and to clear.
fn conversation() -> String {
    with_results(&(0..7).map(long_text).collect::<Vec<_>>())
}

#[tokio::test]
async fn a_vocabulary_and_all_else_take_50_mb() {
    let mut scene = Scene::new().await;
    let before = scene.abridge.memory();
    let mut call = scene.ask(chat(conversation())).await;
    call.json("{}").await;
    let reply = scene.client.reply().await;
    assert!(reply.head.get("x-abridge-tokens").is_some(), "nothing was counted: {:?}", reply.head);
    // The program that tests run is not optimised, and has more pages than that.
    let idle = scene.abridge.memory() - scene.abridge.program_memory().saturating_sub(RELEASE);
    println!("idle: {before} KiB, with one vocabulary: {idle} KiB, at most {} KiB", scene.abridge.peak_memory());
    assert!(idle <= 50_000_000 / 1024, "{idle} KiB");
}

#[tokio::test]
async fn a_hundred_requests_of_1_mb_take_what_they_may() {
    const BUFFERED: u64 = 128;
    let mut scene = Scene::with(&format!("server.max_buffered = \"{BUFFERED}MiB\"")).await;
    let request = chat(conversation());
    assert!(request.len() > 1_000_000, "{}", request.len());
    // The vocabulary is there, and what is counted and stored once is not again.
    scene.ask(&request).await.json("{}").await;
    scene.client.reply().await;
    let idle = scene.abridge.memory();

    // Each lacks its last byte, until abridge has all the others.
    let (last, most) = request.split_last().unwrap();
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut client = scene.abridge.connect().await;
        client.send(most).await;
        clients.push(client);
    }
    let bodies = 100 * request.len() as u64 / 1024;
    within("the bodies to be in memory", async {
        while scene.abridge.memory() < idle + bodies * 9 / 10 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut held = Vec::new();
    for client in &mut clients {
        client.send([*last]).await;
    }
    for _ in &clients {
        let mut call = scene.upstream.request().await;
        call.bytes().await;
        held.push(call);
    }
    let peak = scene.abridge.peak_memory();
    println!("idle: {idle} KiB; 100 requests, together {bodies} KiB: at most {peak} KiB");
    assert!(peak <= idle + BUFFERED * MIB + 100_000_000 / 1024, "{idle} -> {peak} KiB");

    // All of them are in flight still: each is answered when the upstream says so.
    for mut call in held {
        call.json("{}").await;
    }
    for mut client in clients {
        assert_eq!(client.reply().await.head.status(), 200);
    }
}

#[tokio::test]
async fn an_open_stream_takes_34_kib() {
    const STREAMS: u64 = 300;
    let mut scene = Scene::new().await;
    let request = chat(PLAIN);
    scene.ask(&request).await.json("{}").await;
    scene.client.reply().await;
    let before = scene.abridge.memory();
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        let mut client = scene.abridge.connect().await;
        client.send(&request).await;
        let mut call = scene.upstream.request().await;
        call.bytes().await;
        call.begin_stream().await;
        call.send_chunk("data: {}\n\n").await;
        client.head().await;
        assert_eq!(client.chunk().await.as_deref(), Some(&b"data: {}\n\n"[..]));
        open.push((client, call));
    }
    let each = (scene.abridge.memory() - before) / STREAMS;
    println!("a stream: {each} KiB");
    // That of a release is in BENCHMARKS.md.
    assert!(each <= 34, "{each} KiB");
}
