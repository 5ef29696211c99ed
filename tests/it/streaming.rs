//! Answers that come bit by bit go on bit by bit.

use std::io;
use std::time::Duration;

use tokio::time::timeout;

use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::upstream::head;
use crate::support::wire::framed;
use crate::support::{Scene, Wire, chat, request};

/// Server-sent events as upstreams write them, each in its own chunk, some in pieces and some together.
const EVENTS: [&str; 8] = [
    ": OPENROUTER PROCESSING\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"index\":0}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"con",
    "tent\":\"\u{1f980}\"}}]}\r\n\r\n",
    "event: error\ndata: {\"error\":{}}\n\ndata: x\n\n",
    "\n\n\ndata:no blank\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\n",
    "data: [DONE]\n\n",
];

#[tokio::test]
async fn every_chunk_goes_on_before_the_next_one_exists() {
    for body in [PLAIN, DANGLING] {
        let mut scene = Scene::new().await;
        let mut call = scene.ask(chat(body)).await;
        call.begin_stream().await;
        let reply = timeout(Duration::from_secs(3), scene.client.head()).await.expect("nothing holds the head back");
        assert_eq!(reply.get("content-type"), Some("text/event-stream"));
        assert_eq!(reply.get("transfer-encoding"), Some("chunked"));
        for event in EVENTS {
            call.send_chunk(event).await;
            assert_eq!(scene.client.chunk().await.unwrap(), event);
        }
        call.end_stream().await;
        assert_eq!(scene.client.chunk().await, None);
    }
}

#[tokio::test]
async fn a_character_cut_in_two_goes_on_in_two() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.begin_stream().await;
    scene.client.head().await;
    for byte in "data: \u{1f980}\n\n".as_bytes() {
        call.send_chunk([*byte]).await;
        assert_eq!(scene.client.chunk().await.unwrap(), &[*byte][..]);
    }
}

#[tokio::test]
async fn a_body_of_known_length_goes_on_as_it_comes() {
    let mut scene = Scene::new().await;
    scene.client.send(request("GET", "/v1/files/1/content", &[])).await;
    let mut call = scene.upstream.request().await;
    call.send(head("200 OK", &["content-length: 6"])).await;
    let reply = scene.client.head().await;
    assert_eq!(reply.get("content-length"), Some("6"));
    for piece in ["ab", "cd", "ef"] {
        call.send(piece).await;
        assert_eq!(scene.client.exactly(2).await, piece);
    }
}

#[tokio::test]
async fn streams_side_by_side_do_not_wait_for_each_other() {
    let mut scene = Scene::new().await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut client = scene.abridge.connect().await;
        client.send(chat(PLAIN)).await;
        let mut call = scene.upstream.request().await;
        call.bytes().await;
        call.begin_stream().await;
        client.head().await;
        streams.push((client, call));
    }
    // The last one begins: were one stream to hold up another, it would show.
    for (client, call) in streams.iter_mut().rev() {
        call.send_chunk("data: 1\n\n").await;
        assert_eq!(client.chunk().await.unwrap(), "data: 1\n\n");
    }
}

/// Writes chunks of a mebibyte that no one reads, until a write does not go through; how many did.
async fn flood(wire: &mut Wire) -> u64 {
    // Sooner or later the kernel has no room, long before a gigabyte is written.
    let block = framed(vec![b'x'; 1 << 20]);
    let mut written = 0;
    let stalled = async {
        while written < 1024 {
            wire.try_send(&block).await?;
            written += 1;
        }
        io::Result::Ok(())
    };
    let idle = Duration::from_secs(2);
    assert!(timeout(idle, stalled).await.is_err(), "{written} MiB went through and nobody read them");
    written
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_the_upstream_up_and_fills_no_memory() {
    let mut scene = Scene::new().await;
    scene.client.send(request("GET", "/v1/files/1/content", &[])).await;
    let mut call = scene.upstream.request().await;
    call.send(head("200 OK", &["transfer-encoding: chunked"])).await;
    scene.client.head().await;
    let before = scene.abridge.peak_memory();
    let written = flood(&mut call).await;
    let grown = scene.abridge.peak_memory() - before;
    assert!(grown < 8 << 10, "abridge grew by {grown} KiB while its client did not read");

    // The client reads again, and everything flows.
    let mut read = 0_u64;
    while read < written << 20 {
        read += scene.client.some().await.unwrap().len() as u64;
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_read_holds_the_client_up() {
    let mut scene = Scene::new().await;
    scene.client.send(request("POST", "/v1/files", &["transfer-encoding: chunked"])).await;
    let mut call = scene.upstream.request().await;
    let before = scene.abridge.peak_memory();
    let written = flood(&mut scene.client).await;
    let grown = scene.abridge.peak_memory() - before;
    assert!(grown < 8 << 10, "abridge grew by {grown} KiB while the upstream did not read");

    // The upstream reads again, and everything flows.
    let mut read = 0_u64;
    while read < written << 20 {
        read += call.some().await.unwrap().len() as u64;
    }
}
