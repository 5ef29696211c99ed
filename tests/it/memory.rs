//! How much memory abridge takes: with nothing to do, and with many long requests at a time.

use std::fmt::Write as _;
use std::process::Command;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::offloads::{long_text, with_results};
use crate::support::upstream::head;
use crate::support::wire::framed;
use crate::support::{Scene, Setup, binary, chat, post, request, within};

/// In KiB.
const MIB: u64 = 1 << 10;

/// More than the pages of a release's program, in KiB: without link-time optimisation it has 26 MB.
const RELEASE: u64 = 30 * MIB;

/// A conversation of some 1 MB, in which there is something to count, to truncate and to clear.
fn conversation() -> String {
    with_results(&(0..7).map(long_text).collect::<Vec<_>>())
}

#[test]
fn the_allocator_is_mimalloc() {
    let output = Command::new(binary()).arg("--version").env("MIMALLOC_VERBOSE", "1").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("mimalloc: "), "{output:?}");
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

/// Sends a request over each of so many connections at a time; how often each status came, 200 and others.
async fn answered(scene: &mut Scene, n: usize, request: &[u8]) -> (usize, usize) {
    let mut clients = Vec::new();
    for _ in 0..n {
        clients.push(scene.abridge.connect().await);
    }
    let sending = clients.into_iter().map(|mut client| {
        let request = request.to_vec();
        tokio::spawn(async move {
            client.send(request).await;
            client.reply().await.head.status()
        })
    });
    let sending: Vec<_> = sending.collect();
    let mut statuses = Vec::new();
    within("all answers", async {
        let answering = async {
            loop {
                let mut call = scene.upstream.request().await;
                call.bytes().await;
                call.answer("200 OK", &["connection: close"], "{}").await;
            }
        };
        let ending = async {
            for one in sending {
                statuses.push(one.await.unwrap());
            }
        };
        tokio::select! {
            () = ending => {}
            () = answering => {}
        }
    })
    .await;
    assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    let n_served = statuses.iter().filter(|status| **status == 200).count();
    (n_served, n - n_served)
}

#[tokio::test]
async fn short_bodies_that_decode_to_long_ones_take_what_they_may() {
    const BUFFERED: u64 = 64;
    // The allocator gives memory back a tenth of a second after it was freed: on a busy machine 125 MiB of it were seen.
    const FREED: u64 = 160;
    // Threads reserve some of them. At most 546 MiB were seen, and 1,016 while C code had another allocator.
    const ADDRESSES: u64 = 700 * MIB;
    let lines = format!("server.workers = 2\nserver.max_buffered = \"{BUFFERED}MiB\"\nserver.max_body = \"16MiB\"");
    let mut scene = Scene::with("").await;
    scene.abridge = Setup::before(&scene.upstream).with(lines).in_address_space(1 << 30).start().await;
    let idle = scene.abridge.memory();
    // 16 MiB of spaces; brotli makes 14 bytes of them.
    let zstandard = zstd::encode_all(&vec![b' '; 16 << 20][..], 1).unwrap();
    let brotli = STANDARD.decode("n////wAkQOKxQHLv/wE=").unwrap();
    for (encoding, body) in [("content-encoding: zstd", zstandard), ("content-encoding: br", brotli)] {
        let request = post("/v1/chat/completions", &[encoding], body);
        let (served, refused) = answered(&mut scene, 32, &request).await;
        let peak = scene.abridge.peak_memory();
        println!("{encoding}, idle: {idle} KiB; {served} served, {refused} refused: at most {peak} KiB");
        let most = idle + (BUFFERED + FREED) * MIB + 100_000_000 / 1024;
        assert!(served > 0 && peak <= most, "{encoding}: {idle} -> {peak} KiB");
    }
    let addresses = scene.abridge.peak_addresses();
    assert!(addresses <= ADDRESSES, "{addresses} KiB of addresses");
}

#[tokio::test]
async fn conversations_that_cannot_be_planned_within_the_memory_are_forwarded_as_they_came() {
    const BUFFERED: u64 = 32;
    let mut scene = Scene::with(&format!("server.max_buffered = \"{BUFFERED}MiB\"\nserver.max_body = \"8MiB\"")).await;
    let mut calls = String::new();
    for n in 0..20_000 {
        let comma = if n > 0 { "," } else { "" };
        write!(calls, r#"{comma}{{"id":"c{n}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}"#)
            .unwrap();
    }
    let unanswered =
        format!(r#"{{"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","tool_calls":[{calls}]}}]}}"#);
    let idle = scene.abridge.memory();
    let mut call = scene.ask(chat(&unanswered)).await;
    call.answer("200 OK", &["connection: close"], "{}").await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-edits")), (200, None));
    let log = scene.abridge.says("NoMemory", 0).await;
    assert!(log.contains("server.max_buffered"), "{log}");
    let (served, refused) = answered(&mut scene, 30, &chat(&unanswered)).await;
    let peak = scene.abridge.peak_memory();
    println!("idle: {idle} KiB; {served} served, {refused} refused: at most {peak} KiB");
    assert!(served > 0 && peak <= idle + BUFFERED * MIB + 100_000_000 / 1024, "{idle} -> {peak} KiB");
    // A shorter one is edited.
    let mut client = scene.abridge.connect().await;
    client.send(chat(DANGLING)).await;
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    call.json("{}").await;
    assert_eq!(client.reply().await.head.get("x-abridge-edits"), Some("patch=1"));
}

#[tokio::test]
async fn heads_that_never_end_take_a_share_of_the_memory() {
    const HEADS: u64 = 1500;
    let scene = Scene::with("server.max_buffered = \"16MiB\"\nserver.max_body = \"1MiB\"").await;
    let idle = scene.abridge.memory();
    let half = [b"GET /v1/models HTTP/1.1\r\nx-long: ".to_vec(), vec![b'a'; 60 << 10]].concat();
    let mut open = Vec::new();
    for _ in 0..HEADS {
        let mut client = scene.abridge.connect().await;
        client.try_send(&half).await.ok();
        open.push(client);
    }
    let mut last = open.pop().unwrap();
    assert_eq!(within("an answer", last.head()).await.status(), 503);
    let peak = scene.abridge.peak_memory();
    println!("idle: {idle} KiB; {HEADS} heads: at most {peak} KiB");
    // A share of the budget, and for each connection its task and the buffer that it has anyway.
    assert!(peak <= idle + MIB + HEADS * 36, "{idle} -> {peak} KiB");
}

#[tokio::test]
async fn clients_that_do_not_read_hold_little_of_their_answers() {
    const READERS: u64 = 100;
    let mut scene = Scene::new().await;
    let idle = scene.abridge.memory();
    let block = framed(vec![b'x'; 1 << 20]);
    let mut open = Vec::new();
    for _ in 0..READERS {
        let mut client = scene.abridge.connect().await;
        client.send(request("GET", "/v1/files/1/content", &[])).await;
        let mut call = scene.upstream.request().await;
        call.send(head("200 OK", &["transfer-encoding: chunked"])).await;
        let block = block.clone();
        let flooding = tokio::spawn(async move {
            let flooding = async { while call.try_send(&block).await.is_ok() {} };
            tokio::time::timeout(std::time::Duration::from_secs(5), flooding).await.is_err()
        });
        open.push((client, flooding));
    }
    for (_client, flooding) in open {
        assert!(flooding.await.unwrap(), "an upstream was not held up");
    }
    let each = (scene.abridge.peak_memory() - idle) / READERS;
    println!("a reader: {each} KiB");
    assert!(each <= 300, "{each} KiB");
}
