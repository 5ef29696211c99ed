//! An upstream that speaks HTTP/2, and goes away in its ways. Frames are written by hand, as `RFC 9113` draws them.

use bytes::Bytes;

use crate::failures::refused;
use crate::support::bodies::PLAIN;
use crate::support::{Abridge, Setup, Upstream, Wire, chat, http2, request, within};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_HEADERS: u8 = 4;

/// `:status: 200`, which has its own number.
const OK: &[u8] = &[0x88];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The upstream goes, has seen all streams up to `last`, and says why.
fn goaway(last: u32, why: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), why.to_be_bytes()].concat())
}

fn reset(stream: u32, why: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &why.to_be_bytes())
}

async fn start() -> (Upstream, Abridge, Wire) {
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with("upstream.http = \"2\"").start().await;
    let client = abridge.connect().await;
    (upstream, abridge, client)
}

/// Greets on a new connection.
async fn greet(upstream: &mut Upstream) -> Wire {
    let mut wire = upstream.connection().await;
    assert_eq!(wire.exactly(24).await, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    wire.send(frame(SETTINGS, 0, 0, &[])).await;
    wire
}

/// Reads frames until a request comes; its stream.
async fn stream(wire: &mut Wire) -> u32 {
    loop {
        let head = wire.exactly(9).await;
        let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
        wire.exactly(number(&head[..3]) as usize).await;
        if head[3] == HEADERS {
            return number(&head[5..]);
        }
    }
}

/// Another request goes over another connection, and is answered.
async fn assert_goes_elsewhere(upstream: &mut Upstream, client: &mut Wire) {
    client.send(chat(PLAIN)).await;
    let mut seen = http2::serve(upstream.connection().await.into_socket(), "again");
    assert_eq!(within("a request", seen.recv()).await.unwrap().body, PLAIN);
    assert_eq!(client.reply().await.body, "again");
}

#[tokio::test]
async fn an_upstream_that_announces_its_leave_finishes_what_it_has_and_gets_no_more() {
    let (mut upstream, _abridge, mut client) = start().await;
    client.send(chat(PLAIN)).await;
    let mut wire = greet(&mut upstream).await;
    let id = stream(&mut wire).await;
    wire.send([goaway(id, 0), frame(HEADERS, END_HEADERS, id, OK), frame(DATA, 0, id, b"hello")].concat()).await;
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.chunk().await.unwrap(), "hello");
    wire.send(frame(DATA, 1, id, b"!")).await;
    assert_eq!(client.chunk().await.unwrap(), "!");
    assert_eq!(client.chunk().await, None);
    client.trailers().await;
    assert_goes_elsewhere(&mut upstream, &mut client).await;
}

#[tokio::test]
async fn an_upstream_that_leaves_before_its_answer_is_a_502_and_is_not_asked_twice() {
    // It may have begun the work; an error is one, whatever it says.
    for (last, why) in [(1, 2), (1, 11), (0, 0)] {
        let (mut upstream, _abridge, mut client) = start().await;
        client.send(chat(PLAIN)).await;
        let mut wire = greet(&mut upstream).await;
        stream(&mut wire).await;
        wire.send(goaway(last, why)).await;
        wire.close().await;
        refused(&client.reply().await, 502, "upstream_closed");
        upstream.no_more();
        assert_goes_elsewhere(&mut upstream, &mut client).await;
    }
}

#[tokio::test]
async fn an_upstream_that_leaves_in_the_middle_of_an_answer_breaks_off_at_the_client() {
    let (mut upstream, abridge, mut client) = start().await;
    client.send(chat(PLAIN)).await;
    let mut wire = greet(&mut upstream).await;
    let id = stream(&mut wire).await;
    wire.send([frame(HEADERS, END_HEADERS, id, OK), frame(DATA, 0, id, b"hello")].concat()).await;
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.chunk().await.unwrap(), "hello");
    wire.send(goaway(id, 2)).await;
    wire.close().await;
    assert_eq!(client.rest().await.0, "", "no last chunk is faked");
    assert_goes_elsewhere(&mut upstream, &mut abridge.connect().await).await;
}

#[tokio::test]
async fn a_reset_stream_fails_one_request_and_not_its_connection() {
    let (mut upstream, abridge, mut client) = start().await;
    client.send(chat(PLAIN)).await;
    let mut wire = greet(&mut upstream).await;
    let id = stream(&mut wire).await;
    wire.send(reset(id, 2)).await;
    refused(&client.reply().await, 502, "upstream_closed");

    client.send(chat(PLAIN)).await;
    let id = stream(&mut wire).await;
    wire.send([frame(HEADERS, END_HEADERS, id, OK), frame(DATA, 0, id, b"hello")].concat()).await;
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.chunk().await.unwrap(), "hello");
    wire.send(reset(id, 8)).await;
    assert_eq!(client.rest().await.0, "", "no last chunk is faked");

    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    let id = stream(&mut wire).await;
    wire.send([frame(HEADERS, END_HEADERS, id, OK), frame(DATA, 1, id, b"well")].concat()).await;
    assert_eq!(client.reply().await.body, Bytes::from_static(b"well"));
    upstream.no_more();
}

// === framing ===

/// A field as it is written where no table is used.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0];
    for text in [name, value] {
        field.push(u8::try_from(text.len()).unwrap());
        field.extend_from_slice(text.as_bytes());
    }
    field
}

/// An answer with these fields, and with `hello`.
fn hello(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    let fields: Vec<_> = fields.iter().map(|(name, value)| literal(name, value)).collect();
    let head = [OK, &fields.concat()].concat();
    [frame(HEADERS, END_HEADERS, stream, &head), frame(DATA, 1, stream, b"hello")].concat()
}

#[tokio::test]
async fn an_answer_over_http2_that_could_be_read_in_two_ways_is_a_502() {
    for fields in [
        &[("content-length", "5"), ("content-length", "6")][..],
        &[("content-length", "5, 6")],
        &[("content-length", "5, 5")],
        &[("content-length", "x")],
        &[("transfer-encoding", "chunked")],
        &[("connection", "close")],
        &[("Content-Length", "5")],
        &[("x-a", "1\r\ncontent-length: 6")],
        &[("x-a", "1\0")],
        &[("x a", "1")],
        &[("x-a: 1\r\nx-b", "1")],
        &[("x-a", "1"), (":status", "201")],
    ] {
        for request in [chat(PLAIN), request("GET", "/v1/models", &[])] {
            let (mut upstream, _abridge, mut client) = start().await;
            client.send(request).await;
            let mut wire = greet(&mut upstream).await;
            let id = stream(&mut wire).await;
            wire.send(hello(id, fields)).await;
            let reply = client.reply().await;
            let code =
                reply.head.get("x-abridge-error").unwrap_or_else(|| panic!("{reply:?} for {fields:?}")).to_owned();
            assert!(matches!(&*code, "upstream_closed" | "upstream_malformed"), "{code}");
            refused(&reply, 502, &code);
            upstream.no_more();
        }
    }
}

#[tokio::test]
async fn an_answer_over_http2_has_the_length_that_it_says_once() {
    for (fields, length) in [(&[("content-length", "5"), ("content-length", "5")][..], Some("5")), (&[], None)] {
        let (mut upstream, _abridge, mut client) = start().await;
        client.send(chat(PLAIN)).await;
        let mut wire = greet(&mut upstream).await;
        let id = stream(&mut wire).await;
        wire.send(hello(id, fields)).await;
        let head = client.head().await;
        assert_eq!((head.status(), head.get("content-length")), (200, length), "{fields:?}");
        assert_eq!(client.body(&head).await.bytes, "hello");
    }
    for length in ["4", "6"] {
        let (mut upstream, _abridge, mut client) = start().await;
        client.send(chat(PLAIN)).await;
        let mut wire = greet(&mut upstream).await;
        let id = stream(&mut wire).await;
        wire.send(hello(id, &[("content-length", length)])).await;
        let (bytes, _) = client.rest().await;
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.ends_with("hello") || length == "6", "{text}");
        assert!(text.starts_with("HTTP/1.1 502") || !text.ends_with("0\r\n\r\n"), "{text}");
    }
}

#[tokio::test]
async fn an_answer_over_http2_may_have_a_long_head() {
    let names: Vec<_> = (0..600).map(|n| format!("x-{n:03}")).collect();
    let fields: Vec<_> = names.iter().map(|name| (&**name, "sixteen letters!")).collect();
    let (mut upstream, _abridge, mut client) = start().await;
    client.send(chat(PLAIN)).await;
    let mut wire = greet(&mut upstream).await;
    let id = stream(&mut wire).await;
    wire.send(hello(id, &fields)).await;
    let reply = client.reply().await;
    assert_eq!((reply.head.status(), &reply.body[..]), (200, &b"hello"[..]), "{reply:?}");
    assert_eq!(reply.head.names().iter().filter(|name| name.starts_with("x-")).count(), 600);
}
