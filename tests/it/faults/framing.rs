//! Answers whose framing is too much, or wrong: nothing of it is passed on as if it were right.

use crate::failures::refused;
use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::upstream::head;
use crate::support::{Exchange, Scene, chat, request};

/// As much as any upstream is let send that no one needs.
const MUCH: usize = 10 << 20;

/// Sends `line` until no one takes it any more, or there is too much of it.
async fn send_much(call: &mut Exchange, line: &str) {
    let block = line.repeat(8192 / line.len() + 1);
    let mut sent = 0;
    while sent < MUCH && call.try_send(&block).await.is_ok() {
        sent += block.len();
    }
}

#[tokio::test]
async fn ten_megabytes_of_headers_are_a_502_and_are_not_held() {
    let lines = ["x-a: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", "aaaaaaaaaaaaaaaaaaaaaaaaa"];
    for line in lines {
        let mut scene = Scene::new().await;
        let mut call = scene.ask(chat(PLAIN)).await;
        let before = scene.abridge.peak_memory();
        call.send("HTTP/1.1 200 OK\r\nx-b: ").await;
        send_much(&mut call, line).await;
        let told = refused(&scene.client.reply().await, 502, "upstream_malformed");
        assert!(told.contains("more than 100 fields, or more than 64 KiB"), "{told}");
        let grown = scene.abridge.peak_memory() - before;
        assert!(grown < 4 << 10, "abridge grew by {grown} KiB");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn an_answer_has_so_many_fields_and_not_one_more() {
    let mut scene = Scene::new().await;
    for request in [chat(PLAIN), chat(DANGLING), request("GET", "/v1/models", &[])] {
        for n in [99, 100, 101] {
            // The helper adds a length.
            let fields: Vec<_> = (1..n).map(|n| format!("x-{n}: {n}")).collect();
            let mut call = scene.ask(&request).await;
            call.answer("200 OK", &fields.iter().map(String::as_str).collect::<Vec<_>>(), "hello").await;
            let reply = scene.client.reply().await;
            if n <= 100 {
                assert_eq!((reply.head.status(), &reply.body[..]), (200, &b"hello"[..]));
                let got: Vec<_> = reply.head.fields.iter().filter(|(name, _)| name.starts_with("x-")).collect();
                let got: Vec<_> = got.iter().filter(|(name, _)| !name.starts_with("x-abridge")).collect();
                assert_eq!(got.len(), n - 1, "{:?}", reply.head);
                drop(call);
            } else {
                let told = refused(&reply, 502, "upstream_malformed");
                assert!(told.contains("more than 100 fields") && told.contains("fewer"), "{told}");
                call.gone().await;
                scene.upstream.no_more();
            }
        }
    }
}

#[tokio::test]
async fn trailers_without_end_break_off_at_the_client_and_are_not_held() {
    let mut scene = Scene::new().await;
    let mut call = scene.stream(chat(PLAIN)).await;
    let before = scene.abridge.peak_memory();
    call.send("0\r\n").await;
    send_much(&mut call, "x-a: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n").await;
    assert_eq!(scene.client.rest().await.0, "", "no last chunk is faked");
    let grown = scene.abridge.peak_memory() - before;
    assert!(grown < 4 << 10, "abridge grew by {grown} KiB");
}

#[tokio::test]
async fn lengths_that_are_none_are_a_502() {
    let heads = [
        &["content-length: 5", "content-length: 6"][..],
        &["content-length: -1"],
        &["content-length: +5"],
        &["content-length: 0x10"],
        &["content-length: 5 5"],
        &["content-length: 99999999999999999999"],
        &["content-length:"],
    ];
    for fields in heads {
        let mut scene = Scene::new().await;
        let mut call = scene.ask(chat(PLAIN)).await;
        call.send(head("200 OK", fields)).await;
        call.send("hello").await;
        refused(&scene.client.reply().await, 502, "upstream_malformed");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn an_answer_with_chunks_and_a_length_has_chunks_alone() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.send(head("200 OK", &["content-length: 3", "transfer-encoding: chunked"])).await;
    call.send_chunk("hello").await;
    call.end_stream().await;
    let reply = scene.client.reply().await;
    assert_eq!(reply.body, "hello");
    assert_eq!((reply.head.get("content-length"), reply.head.get("transfer-encoding")), (None, Some("chunked")));
}

#[tokio::test]
async fn an_answer_longer_than_announced_ends_where_it_was_announced_to() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.send(head("200 OK", &["content-length: 5"])).await;
    call.send("hello, and more").await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.get("content-length"), &reply.body[..]), (Some("5"), &b"hello"[..]));
    // The connection to the client is in order, and the one to the upstream is not used again.
    scene.client.send(chat(PLAIN)).await;
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    call.json("next").await;
    assert_eq!(scene.client.reply().await.body, "next");
}

#[tokio::test]
async fn chunk_extensions_stay_on_their_hop() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.send(head("200 OK", &["transfer-encoding: chunked"])).await;
    call.send("5;sum=42\r\nhello\r\n1;a=\"b c\";d\r\n \r\n005\r\nworld\r\n0;last=1\r\n\r\n").await;
    assert_eq!(scene.client.reply().await.body, "hello world");
    // The connection is in order.
    scene.client.send(chat(PLAIN)).await;
    call.next().await.json("next").await;
    assert_eq!(scene.client.reply().await.body, "next");
}

#[tokio::test]
async fn chunks_of_which_no_size_is_right_break_off_at_the_client() {
    let wrong = [
        "xyz\r\nhello\r\n",
        "-5\r\nhello\r\n",
        "+5\r\nhello\r\n",
        "0x5\r\nhello\r\n",
        "\r\nhello\r\n",
        "5 5\r\nhello\r\n",
        "fffffffffffffffff\r\nhello\r\n",
        "5\r\nhello!\r\n",
        "5\r\nhelloworld\r\n",
    ];
    for chunk in wrong {
        let mut scene = Scene::new().await;
        let mut call = scene.stream(chat(PLAIN)).await;
        call.send(chunk).await;
        call.send("0\r\n\r\n").await;
        let (rest, _) = scene.client.rest().await;
        assert!(rest.is_empty() || rest.as_ref() == b"5\r\nhello\r\n", "{chunk:?}: {rest:?}");
    }
}

#[tokio::test]
async fn a_chunk_extension_without_end_breaks_off_at_the_client_and_is_not_held() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.begin_stream().await;
    scene.client.head().await;
    let before = scene.abridge.peak_memory();
    call.send("5;").await;
    send_much(&mut call, "extension").await;
    assert_eq!(scene.client.rest().await.0, "");
    let grown = scene.abridge.peak_memory() - before;
    assert!(grown < 4 << 10, "abridge grew by {grown} KiB");
}
