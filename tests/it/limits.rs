//! Every limit, at the limit: everything that is over it gets a clear answer, and what is under it is served.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;

use crate::failures::refused;
use crate::support::bodies::PLAIN;
use crate::support::openmetrics::Scrape;
use crate::support::wire::framed;
use crate::support::{End, Scene, chat, http2, post, request, within};

const CHAT: &str = "/v1/chat/completions";

/// A body that is not understood, and of this size.
fn spaces(n: usize) -> Vec<u8> {
    vec![b' '; n]
}

#[tokio::test]
async fn a_body_of_the_limit_passes_and_one_byte_more_does_not() {
    let mut scene = Scene::with("server.max_body = \"4KiB\"").await;
    scene.client.send(post(CHAT, &[], spaces(4096))).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await.len(), 4096);
    call.answer("200 OK", &["connection: close"], "").await;
    scene.client.reply().await;

    let mut client = scene.abridge.connect().await;
    client.send(post(CHAT, &[], spaces(4097))).await;
    refused(&client.reply().await, 413, "body_too_large");
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_body_announced_too_long_is_refused_before_it_is_sent_and_told_why() {
    let mut scene = Scene::with("server.max_body = \"4KiB\"").await;
    scene.client.send(request("POST", CHAT, &["content-length: 5000000"])).await;
    let message = refused(&scene.client.reply().await, 413, "body_too_large");
    for part in ["4KiB", "5000000", "max_body"] {
        assert!(message.contains(part), "{part} is missing: {message}");
    }
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_client_that_waits_for_100_is_refused_instead() {
    let mut scene = Scene::with("server.max_body = \"4KiB\"").await;
    scene.client.send(request("POST", CHAT, &["expect: 100-continue", "content-length: 5000000"])).await;
    refused(&scene.client.reply().await, 413, "body_too_large");
}

#[tokio::test]
async fn a_gigabyte_of_spaces_ends_at_the_limit() {
    let mut scene = Scene::with("server.max_body = \"1MiB\"").await;
    let before = scene.abridge.peak_memory();
    scene.client.send(request("POST", CHAT, &["transfer-encoding: chunked"])).await;
    let block = framed(spaces(64 << 10));
    let sent = scene.client.send_until_answered(&block, 1 << 30).await;
    refused(&scene.client.reply().await, 413, "body_too_large");
    assert!(sent < 1 << 30, "all of it was taken");
    let grown = scene.abridge.peak_memory() - before;
    assert!(grown < 16 << 10, "abridge grew by {grown} KiB");
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_client_that_reads_only_when_it_has_sent_everything_sees_the_refusal() {
    let mut scene = Scene::with("server.max_body = \"1MiB\"\nserver.max_in_flight = 1").await;
    scene.client.send(post(CHAT, &[], spaces(16 << 20))).await;
    refused(&scene.client.reply().await, 413, "body_too_large");

    let mut chunked = scene.abridge.connect().await;
    chunked.send(request("POST", CHAT, &["transfer-encoding: chunked"])).await;
    for _ in 0..256 {
        chunked.send_chunk(spaces(64 << 10)).await;
    }
    chunked.send("0\r\n\r\n").await;
    refused(&chunked.reply().await, 413, "body_too_large");

    let mut holds = scene.abridge.connect().await;
    holds.send(request("GET", "/v1/models", &[])).await;
    let _held = scene.upstream.request().await;
    let mut shed = scene.abridge.connect().await;
    shed.send(post(CHAT, &[], spaces(16 << 20))).await;
    refused(&shed.reply().await, 503, "overloaded");
}

#[tokio::test]
async fn the_limit_is_for_bodies_that_are_edited_alone() {
    let mut scene = Scene::with("server.max_body = \"4KiB\"").await;
    scene.client.send(post("/v1/files", &[], spaces(100_000))).await;
    assert_eq!(scene.upstream.request().await.bytes().await.len(), 100_000);
}

#[tokio::test]
async fn a_request_over_the_number_in_flight_is_shed_and_the_next_one_is_not() {
    let mut scene = Scene::with("server.max_in_flight = 1").await;
    scene.client.send(chat(PLAIN)).await;
    let mut held = scene.upstream.request().await;
    held.bytes().await;
    held.begin_stream().await;
    scene.client.head().await;

    let mut other = scene.abridge.connect().await;
    for request in [chat(PLAIN), request("GET", "/v1/models", &[])] {
        other.send(request).await;
        let reply = other.reply().await;
        refused(&reply, 503, "overloaded");
        let seconds: u32 = reply.head.get("retry-after").unwrap().parse().unwrap();
        assert!(seconds >= 1);
    }
    scene.upstream.no_more();

    held.end_stream().await;
    assert_eq!(scene.client.chunk().await, None);
    scene.client.trailers().await;
    scene.client.send(chat(PLAIN)).await;
    let mut call = held.next().await;
    call.bytes().await;
    call.json("{}").await;
    assert_eq!(scene.client.reply().await.head.status(), 200);
}

#[tokio::test]
async fn a_client_that_went_away_frees_its_place() {
    let mut scene = Scene::with("server.max_in_flight = 1").await;
    scene.client.send(chat(PLAIN)).await;
    let mut held = scene.upstream.request().await;
    held.bytes().await;
    drop(scene.client);
    held.gone().await;

    let mut other = scene.abridge.connect().await;
    other.send(chat(PLAIN)).await;
    scene.upstream.request().await.json("{}").await;
    assert_eq!(other.reply().await.head.status(), 200);
}

#[tokio::test]
async fn its_own_pages_answer_when_everything_is_full() {
    let mut scene = Scene::with("server.max_in_flight = 1").await;
    scene.client.send(chat(PLAIN)).await;
    let _held = scene.upstream.request().await;
    let mut other = scene.abridge.connect().await;
    for page in ["/abridge/healthz", "/abridge/readyz"] {
        other.send(request("GET", page, &[])).await;
        assert_eq!(other.reply().await.head.status(), 200, "{page}");
    }
}

/// Waits until so many bytes are held for clients.
async fn buffered(scene: &Scene, n_bytes: u64) {
    let mut client = scene.abridge.connect().await;
    within("the bytes to be there", async {
        loop {
            client.send(request("GET", "/abridge/metrics", &["accept: application/openmetrics-text"])).await;
            let reply = client.reply().await;
            let metrics = Scrape::read(std::str::from_utf8(&reply.body).unwrap());
            if metrics.get("abridge_buffered_bytes") >= n_bytes {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn bodies_over_the_memory_for_all_of_them_are_shed() {
    let mut scene = Scene::with("server.max_body = \"48KiB\"\nserver.max_buffered = \"64KiB\"").await;
    let whole = post(CHAT, &[], spaces(40_000));
    let (first, last) = whole.split_at(whole.len() - 1);
    scene.client.send(first).await;
    buffered(&scene, 39_000).await;

    let mut other = scene.abridge.connect().await;
    other.send(post(CHAT, &[], spaces(40_000))).await;
    let reply = other.reply().await;
    refused(&reply, 503, "overloaded");
    assert!(reply.head.get("retry-after").is_some());

    scene.client.send(last).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await.len(), 40_000);
    call.answer("200 OK", &["connection: close"], "").await;
    scene.client.reply().await;

    let mut third = scene.abridge.connect().await;
    third.send(post(CHAT, &[], spaces(40_000))).await;
    assert_eq!(scene.upstream.request().await.bytes().await.len(), 40_000);
}

#[tokio::test]
async fn bodies_that_are_announced_and_do_not_come_take_no_memory_from_others() {
    let mut scene = Scene::new().await;
    let mut announced = Vec::new();
    for _ in 0..9 {
        let mut client = scene.abridge.connect().await;
        client.send(request("POST", CHAT, &["content-length: 67108864"])).await;
        client.send(spaces(100)).await;
        announced.push(client);
    }
    buffered(&scene, 900).await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.json("{}").await;
    assert_eq!(scene.client.reply().await.head.status(), 200);
}

#[tokio::test]
async fn a_body_that_is_over_the_memory_by_itself_when_it_is_decoded_is_too_large() {
    let scene = Scene::with("server.max_body = \"1MiB\"\nserver.max_buffered = \"1MiB\"").await;
    let body = zstd::encode_all(&spaces(1 << 20)[..], 1).unwrap();
    let mut client = scene.abridge.connect().await;
    client.send(post(CHAT, &["content-encoding: zstd"], body)).await;
    let message = refused(&client.reply().await, 413, "body_too_large");
    assert!(message.contains("server.max_buffered"), "{message}");
}

#[tokio::test]
async fn a_connection_too_many_waits_for_a_place() {
    let mut scene = Scene::with("server.max_connections = 1").await;
    scene.client.send(request("GET", "/v1/first", &[])).await;
    let mut call = scene.upstream.request().await;
    let mut waiting = scene.abridge.connect().await;
    waiting.send(request("GET", "/v1/waiting", &[])).await;

    for _ in 0..3 {
        call.json("{}").await;
        scene.client.reply().await;
        scene.client.send(request("GET", "/v1/first", &[])).await;
        call = call.next().await;
        assert_eq!(call.head.target(), "/v1/first");
    }
    scene.upstream.no_more();

    drop(scene.client);
    call.gone().await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.head.target(), "/v1/waiting");
    call.json("{}").await;
    assert_eq!(waiting.reply().await.head.status(), 200);
}

#[tokio::test]
async fn a_head_that_takes_too_long_ends_the_connection() {
    let mut scene = Scene::with("server.header_timeout = \"2s\"").await;
    scene.client.send("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-slow: 1").await;
    scene.client.rest().await;
    scene.upstream.no_more();

    // One that says nothing at all, and one whose second request never comes, end as well.
    scene.abridge.connect().await.rest().await;
    // As does one of which it is not known yet what it speaks.
    let mut client = scene.abridge.connect().await;
    client.send("P").await;
    client.rest().await;
    let mut client = scene.abridge.connect().await;
    client.send(request("GET", "/abridge/healthz", &[])).await;
    client.reply().await;
    client.send("GET /abr").await;
    client.rest().await;

    // As does one that keeps a connection after its request and never sends another.
    let mut client = scene.abridge.connect().await;
    client.send(request("GET", "/abridge/healthz", &[])).await;
    client.reply().await;
    assert!(within("the connection to end", client.next_head()).await.is_none());
}

#[tokio::test]
async fn a_body_that_pauses_too_long_is_a_408() {
    let mut scene = Scene::with("server.body_timeout = \"200ms\"").await;
    let begun = [request("POST", CHAT, &["content-length: 100"]), b"{\"messages\"".to_vec()].concat();
    scene.client.send(begun).await;
    refused(&scene.client.reply().await, 408, "body_timeout");
    scene.upstream.no_more();
}

#[tokio::test]
async fn a_body_that_comes_slowly_but_steadily_is_read() {
    let mut scene = Scene::with("server.body_timeout = \"4s\"").await;
    let whole = chat(PLAIN);
    let (head, body) = whole.split_at(whole.len() - PLAIN.len());
    scene.client.send(head).await;
    for piece in body.chunks(body.len() / 12) {
        // The client is slow. This is the time that passes, not a wait for something.
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
        scene.client.send(piece).await;
    }
    assert_eq!(scene.upstream.request().await.bytes().await, PLAIN);
}

#[tokio::test]
async fn a_body_that_is_passed_on_and_pauses_too_long_is_a_408() {
    let mut scene = Scene::with("server.body_timeout = \"200ms\"").await;
    scene.client.send(request("POST", "/v1/files", &["content-length: 100"])).await;
    scene.client.send("begin").await;
    let mut call = scene.upstream.request().await;
    refused(&scene.client.reply().await, 408, "body_timeout");
    assert_eq!(call.rest().await.0, "begin");
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_on_average_is_a_408_and_a_quicker_one_is_not() {
    let lines = "server.min_body_rate = \"1KiB\"\nserver.min_body_rate_after = \"500ms\"";
    for target in [CHAT, "/v1/files"] {
        let (mut slow, mut quick) = (Scene::with(lines).await, Scene::with(lines).await);
        for scene in [&mut slow, &mut quick] {
            scene.client.send(request("POST", target, &["transfer-encoding: chunked"])).await;
        }
        for _ in 0..20 {
            // The clients are slow. This is the time that passes, not a wait for something.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            slow.client.try_send(framed(spaces(10))).await.ok();
            quick.client.send(framed(spaces(2000))).await;
        }
        refused(&slow.client.reply().await, 408, "body_timeout");
        quick.client.send("0\r\n\r\n").await;
        assert_eq!(quick.upstream.request().await.bytes().await.len(), 40_000);
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_and_a_silent_upstream_is_not() {
    let short = ["header_timeout", "body_timeout", "write_timeout"].map(|name| format!("server.{name} = \"300ms\""));
    let mut scene = Scene::with(&short.join("\n")).await;
    let mut waits = scene.abridge.connect().await;
    waits.send(chat(PLAIN)).await;
    let mut silent = scene.upstream.request().await;
    silent.bytes().await;

    scene.client.send(request("GET", "/v1/files/1/content", &[])).await;
    let mut call = scene.upstream.request().await;
    call.begin_stream().await;
    let block = framed(spaces(1 << 20));
    within("the client to be cut off", async { while call.try_send(&block).await.is_ok() {} }).await;

    // So is one over HTTP/2, whose connection it reads.
    let mut client = http2::client(scene.abridge.connect().await.into_socket()).await;
    let uri = format!("http://{}/v1/files/1/content", scene.abridge.address());
    let answer = tokio::spawn(client.send_request(Request::get(&uri).body(Full::default()).unwrap()));
    let mut call = scene.upstream.request().await;
    call.begin_stream().await;
    let _unread = within("an answer", answer).await.unwrap().unwrap();
    within("the stream to be cut off", async { while call.try_send(&block).await.is_ok() {} }).await;

    // The other has waited for longer than all time-outs of clients.
    silent.begin_stream().await;
    assert_eq!(waits.head().await.status(), 200);
    for _ in 0..3 {
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
        silent.send_chunk("data: 1\n\n").await;
        assert_eq!(waits.chunk().await.unwrap(), "data: 1\n\n");
    }
}

#[tokio::test]
async fn a_connection_of_http2_ends_when_it_is_idle_and_not_while_it_waits_for_an_answer() {
    let mut scene = Scene::with("server.header_timeout = \"200ms\"").await;
    let mut client = http2::client(scene.client.into_socket()).await;
    let uri = format!("http://{}{CHAT}", scene.abridge.address());
    let body = Full::new(Bytes::from_static(PLAIN.as_bytes()));
    let answer = tokio::spawn(client.send_request(Request::post(&uri).body(body).unwrap()));
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    // The upstream is slow. This is the time that passes, not a wait for something.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    call.json("{}").await;
    let answer = within("an answer", answer).await.unwrap().unwrap();
    assert_eq!(http2::whole(answer).await, "{}");
    within("the connection to end", async {
        while client.ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_head_of_60_kib_is_served_and_one_of_256_kib_is_refused() {
    let mut scene = Scene::new().await;
    for (n_bytes, is_served) in [(60 << 10, true), (256 << 10, false), (1 << 20, false)] {
        let long = format!("x-long: {}", "a".repeat(n_bytes));
        let mut client = scene.abridge.connect().await;
        client.try_send(request("GET", "/v1/models", &[&long])).await.ok();
        if is_served {
            let mut call = scene.upstream.request().await;
            assert_eq!(call.head.get("x-long").map(str::len), Some(n_bytes));
            call.answer("200 OK", &["connection: close"], "").await;
        }
        assert_eq!(client.head().await.status(), if is_served { 200 } else { 431 });
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_head_has_so_many_fields_and_not_one_more() {
    let scene = Scene::new().await;
    let mut upstream = scene.upstream;
    for (method, target, body) in [("GET", "/v1/models", ""), ("POST", CHAT, PLAIN)] {
        let head = |n: usize| {
            // The helper adds `host`.
            let mut fields: Vec<_> = (2..n).map(|n| format!("x-{n}: {n}")).collect();
            fields.push(format!("content-length: {}", body.len()));
            let fields: Vec<_> = fields.iter().map(String::as_str).collect();
            [request(method, target, &fields), body.as_bytes().to_vec()].concat()
        };
        for n in [99, 100] {
            let mut client = scene.abridge.connect().await;
            client.send(head(n)).await;
            let mut call = upstream.request().await;
            assert_eq!(call.bytes().await, body);
            let expected: Vec<_> = (2..n).map(|n| (format!("x-{n}"), n.to_string())).collect();
            let got: Vec<_> = call.head.fields.iter().filter(|(name, _)| name.starts_with("x-")).cloned().collect();
            assert_eq!(got, expected);
            call.answer("200 OK", &["connection: close"], "").await;
            assert_eq!(client.reply().await.head.status(), 200);
        }
        let mut client = scene.abridge.connect().await;
        client.try_send(head(101)).await.ok();
        assert_eq!(client.head().await.status(), 431);
        upstream.no_more();
    }
}

#[tokio::test]
async fn an_unused_connection_ends_cleanly() {
    let scene = Scene::with("server.header_timeout = \"200ms\"").await;
    let mut client = scene.client;
    assert_eq!(client.rest().await.1, End::Closed);
}
