//! The upstream breaks, and the client gets to know: no clean end is faked, no failure is hidden, nothing is sent twice.

use serde::Deserialize;
use tokio::net::TcpSocket;

use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::upstream::head;
use crate::support::wire::Reply;
use crate::support::{ClosedPort, Scene, Setup, Upstream, chat, request};

#[derive(Debug, Deserialize)]
struct Refusal {
    error: ErrorObject,
}

#[derive(Debug, Deserialize)]
struct ErrorObject {
    message: String,
    #[serde(rename = "type")]
    kind: String,
    code: String,
}

/// Sees to it that an answer is ours, with this status and code, in OpenAI's shape; gives its message.
pub(crate) fn refused(reply: &Reply, status: u16, code: &str) -> String {
    assert_eq!((reply.head.status(), reply.head.get("x-abridge-error")), (status, Some(code)), "{reply:?}");
    assert!(reply.head.get("content-type").is_some_and(|kind| kind.starts_with("application/json")));
    let refusal: Refusal = serde_json::from_slice(&reply.body).unwrap_or_else(|e| panic!("{e}: {:?}", reply.body));
    assert_eq!(refusal.error.code, code);
    assert!(!refusal.error.kind.is_empty());
    refusal.error.message
}

#[tokio::test]
async fn a_refused_connection_is_a_502_in_openais_shape() {
    let port = ClosedPort::new();
    let abridge = Setup::to(port.url()).start().await;
    let mut client = abridge.connect().await;
    for request in [chat(PLAIN), chat(DANGLING), request("GET", "/v1/models", &[])] {
        client.send(request).await;
        refused(&client.reply().await, 502, "upstream_connect");
    }
}

#[tokio::test]
async fn a_host_that_does_not_exist_is_a_502() {
    let abridge = Setup::to("http://nowhere.invalid/v1").start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    refused(&client.reply().await, 502, "upstream_connect");
}

#[tokio::test]
async fn a_connection_that_does_not_come_about_in_time_is_a_504() {
    // A full queue of connections: everything that comes then is left without an answer by the kernel.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let _first = tokio::net::TcpStream::connect(address).await.unwrap();
    let _second = tokio::net::TcpStream::connect(address).await.unwrap();

    let setup = Setup::to(format!("http://{address}/v1")).with("upstream.connect_timeout = \"200ms\"");
    let abridge = setup.start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    refused(&client.reply().await, 504, "upstream_timeout");
}

#[tokio::test]
async fn a_tls_handshake_that_is_not_answered_in_time_is_a_504() {
    let mut upstream = Upstream::start().await;
    let setup = Setup::to(format!("https://{}/v1", upstream.address()));
    let abridge = setup.with("upstream.connect_timeout = \"200ms\"").start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    let mut silent = upstream.connection().await;
    refused(&client.reply().await, 504, "upstream_timeout");
    silent.rest().await;
}

#[tokio::test]
async fn an_answer_that_does_not_begin_in_time_is_a_504_and_the_upstream_is_let_go() {
    let mut scene = Scene::with("upstream.first_byte_timeout = \"200ms\"").await;
    for request in [chat(PLAIN), request("GET", "/v1/models", &[])] {
        let mut call = scene.ask(request).await;
        refused(&scene.client.reply().await, 504, "upstream_timeout");
        call.gone().await;
    }
}

#[tokio::test]
async fn an_upload_may_last_longer_than_the_wait_for_an_answer() {
    let mut scene = Scene::with("upstream.first_byte_timeout = \"3s\"").await;
    scene.client.send(request("POST", "/v1/files", &["transfer-encoding: chunked"])).await;
    let mut call = scene.upstream.request().await;
    for _ in 0..8 {
        // The client is slow. This is the time that passes, not a wait for something.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        scene.client.send_chunk("piece").await;
        assert_eq!(call.chunk().await.unwrap(), "piece");
    }
    scene.client.send("0\r\n\r\n").await;
    assert_eq!(call.chunk().await, None);
    call.trailers().await;
    call.json("{}").await;
    assert_eq!(scene.client.reply().await.head.status(), 200);
}

#[tokio::test]
async fn a_stream_that_pauses_too_long_is_cut_on_both_sides() {
    let mut scene = Scene::with("upstream.idle_timeout = \"2s\"").await;
    let mut call = scene.stream(chat(PLAIN)).await;
    let (rest, _) = scene.client.rest().await;
    assert_eq!(rest, "", "neither more data nor a last chunk");
    call.gone().await;
}

#[tokio::test]
async fn a_chunked_answer_that_breaks_off_breaks_off_at_the_client() {
    for body in [PLAIN, DANGLING] {
        let mut scene = Scene::new().await;
        let call = scene.stream(chat(body)).await;
        drop(call);
        let (rest, _) = scene.client.rest().await;
        assert_eq!(rest, "", "no last chunk is faked");
    }
}

#[tokio::test]
async fn a_chunk_that_breaks_off_in_its_middle_breaks_off_at_the_client() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.begin_stream().await;
    call.send("64\r\ndata: ").await;
    scene.client.head().await;
    call.close().await;
    let (rest, _) = scene.client.rest().await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "no last chunk is faked: {rest:?}");
}

#[tokio::test]
async fn an_answer_shorter_than_announced_is_short_at_the_client() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.send(head("200 OK", &["content-length: 100"])).await;
    call.send("{\"choices\"").await;
    assert_eq!(scene.client.head().await.get("content-length"), Some("100"));
    drop(call);
    assert_eq!(scene.client.rest().await.0, "{\"choices\"");
}

#[tokio::test]
async fn a_reset_in_mid_stream_breaks_off_at_the_client() {
    let mut scene = Scene::new().await;
    let call = scene.stream(chat(PLAIN)).await;
    call.into_wire().reset();
    assert_eq!(scene.client.rest().await.0, "");
}

#[tokio::test]
async fn an_upstream_that_closes_without_an_answer_is_a_502_and_is_asked_once() {
    for request in [chat(PLAIN), chat(DANGLING), request("GET", "/v1/models", &[])] {
        let mut scene = Scene::new().await;
        let call = scene.ask(request).await;
        drop(call);
        refused(&scene.client.reply().await, 502, "upstream_closed");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_speak_http_is_a_502() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.send("220 smtp.example.com ready\r\n\r\n").await;
    let reply = scene.client.reply().await;
    assert_eq!(reply.head.status(), 502);
    assert!(reply.head.get("x-abridge-error").is_some_and(|code| code.starts_with("upstream_")));
}

#[tokio::test]
async fn a_connection_closed_in_the_pool_is_replaced() {
    for (first, second) in [(PLAIN, PLAIN), (PLAIN, DANGLING)] {
        let mut scene = Scene::new().await;
        let mut call = scene.ask(chat(first)).await;
        call.json("1").await;
        scene.client.reply().await;
        drop(call);

        // Whether abridge has seen the close yet or not: the request goes through, and goes once.
        scene.client.send(chat(second)).await;
        let mut call = scene.upstream.request().await;
        let body = call.bytes().await;
        assert!(!body.is_empty());
        call.json("2").await;
        assert_eq!(scene.client.reply().await.body, "2");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_request_that_was_sent_on_a_pooled_connection_is_not_sent_again() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.json("1").await;
    scene.client.reply().await;

    scene.client.send(chat(PLAIN)).await;
    let mut again = call.next().await;
    assert_eq!(again.bytes().await, PLAIN);
    drop(again);
    refused(&scene.client.reply().await, 502, "upstream_closed");
    scene.upstream.no_more();
}

#[tokio::test]
async fn refusals_of_the_upstream_come_back_once_and_as_they_were() {
    let refusals = [
        ("429 Too Many Requests", "retry-after: 7"),
        ("429 Too Many Requests", "retry-after-ms: 1500"),
        ("500 Internal Server Error", "x-a: 1"),
        ("502 Bad Gateway", "x-a: 1"),
        ("503 Service Unavailable", "retry-after: Fri, 31 Dec 1999 23:59:59 GMT"),
        ("529 Overloaded", "x-should-retry: true"),
        ("401 Unauthorized", "www-authenticate: Bearer"),
        ("404 Not Found", "x-a: 1"),
    ];
    let mut scene = Scene::new().await;
    for (status, field) in refusals {
        let mut call = scene.ask(chat(PLAIN)).await;
        call.answer(status, &[field, "connection: close"], "{\"error\": {\"message\":\"no\" } }\n").await;
        let reply = scene.client.reply().await;
        let (name, value) = field.split_once(": ").unwrap();
        assert!(status.starts_with(&reply.head.status().to_string()), "{status}: {reply:?}");
        assert_eq!(reply.head.get(name), Some(value));
        assert_eq!(reply.head.get("x-abridge-error"), None);
        assert_eq!(reply.body, "{\"error\": {\"message\":\"no\" } }\n");
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn an_upstream_that_comes_back_is_used_again() {
    let port = ClosedPort::new();
    let abridge = Setup::to(port.url()).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    refused(&client.reply().await, 502, "upstream_connect");

    let mut upstream = port.open();
    client.send(chat(PLAIN)).await;
    upstream.request().await.json("back").await;
    assert_eq!(client.reply().await.body, "back");
}
