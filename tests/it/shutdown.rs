//! The end: running answers may finish, nothing new is taken, and a second signal does not wait.

use tokio::net::TcpStream;

use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::tls::Certificate;
use crate::support::{End, Scene, Setup, Upstream, Wire, chat, request, within};

/// Returns once connections are refused. Each try is a round trip through the kernel.
async fn refuses(scene: &Scene) {
    let address = scene.abridge.address();
    within("connections to be refused", async { while TcpStream::connect(address).await.is_ok() {} }).await;
}

#[tokio::test]
async fn a_running_stream_is_finished_and_nothing_new_is_taken() {
    for signal in ["TERM", "INT"] {
        let mut scene = Scene::new().await;
        let mut call = scene.stream(chat(DANGLING)).await;
        scene.abridge.signal(signal);
        refuses(&scene).await;
        for event in ["data: 2\n\n", "data: [DONE]\n\n"] {
            call.send_chunk(event).await;
            assert_eq!(scene.client.chunk().await.unwrap(), event);
        }
        call.end_stream().await;
        assert_eq!(scene.client.chunk().await, None);
        scene.client.trailers().await;
        assert_eq!(scene.client.gone().await, End::Closed);
        assert!(scene.abridge.exit().await.success());
    }
}

#[tokio::test]
async fn an_answer_that_has_not_begun_is_waited_for() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    scene.abridge.signal("TERM");
    refuses(&scene).await;
    call.json("{}").await;
    assert_eq!(scene.client.reply().await.body, "{}");
    assert!(scene.abridge.exit().await.success());
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_the_end() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.json("{}").await;
    scene.client.reply().await;
    let mut silent = scene.abridge.connect().await;
    scene.abridge.signal("TERM");
    assert!(scene.abridge.exit().await.success());
    scene.client.rest().await;
    silent.rest().await;
}

#[tokio::test]
async fn handshakes_that_do_not_come_do_not_hold_up_the_end() {
    let certificate = Certificate::new();
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(certificate.lines()).start().await;
    let mut silent = abridge.connect().await;
    // Connections are taken in turn, so the silent one has been, too.
    let mut client = Wire::new(certificate.connect(abridge.address(), &["http/1.1"]).await.unwrap());
    client.send(request("GET", "/abridge/healthz", &["connection: close"])).await;
    assert_eq!(client.reply().await.head.status(), 200);
    abridge.signal("TERM");
    assert!(abridge.exit().await.success());
    silent.rest().await;
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let mut scene = Scene::new().await;
    let mut call = scene.stream(chat(DANGLING)).await;
    scene.abridge.signal("TERM");
    refuses(&scene).await;
    scene.abridge.signal("TERM");
    assert_eq!(scene.abridge.exit().await.code(), Some(1), "an answer was cut");
    assert_eq!(scene.client.rest().await.0, "", "no end is faked");
    call.gone().await;
}

#[tokio::test]
async fn the_grace_is_the_longest_that_the_end_waits() {
    let mut scene = Scene::with("server.grace = \"200ms\"").await;
    let mut call = scene.stream(chat(DANGLING)).await;
    scene.abridge.signal("TERM");
    assert_eq!(scene.abridge.exit().await.code(), Some(1), "an answer was cut");
    assert_eq!(scene.client.rest().await.0, "", "no end is faked");
    call.gone().await;
}

#[tokio::test]
async fn readiness_ends_before_the_connections_do() {
    let mut scene = Scene::new().await;
    let mut call = scene.stream(chat(DANGLING)).await;
    // Half a request, so that this connection is not an idle one when the signal comes. A page that is answered on a
    // connection made later says that this one has been taken in.
    let mut asking = scene.abridge.connect().await;
    asking.send("GET /abridge/readyz HTTP/1.1\r\nhost: localhost\r\n").await;
    let mut alive = scene.abridge.connect().await;
    alive.send("GET /abridge/healthz HTTP/1.1\r\nhost: localhost\r\n").await;
    for _ in 0..2 {
        let mut other = scene.abridge.connect().await;
        other.send(request("GET", "/abridge/readyz", &[])).await;
        assert_eq!(other.reply().await.head.status(), 200);
    }
    scene.abridge.signal("TERM");
    refuses(&scene).await;
    asking.send("\r\n").await;
    assert_eq!(asking.reply().await.head.status(), 503);
    alive.send("\r\n").await;
    assert_eq!(alive.reply().await.head.status(), 200);
    call.end_stream().await;
    assert!(scene.abridge.exit().await.success());
}

#[tokio::test]
async fn a_websocket_does_not_hold_up_the_end_for_ever() {
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with("server.grace = \"200ms\"").start().await;
    let client = abridge.connect().await;
    let mut scene = Scene { upstream, abridge, client };
    scene.client.send(request("GET", "/v1/realtime", &["connection: Upgrade", "upgrade: websocket"])).await;
    let mut call = scene.upstream.request().await;
    call.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
    assert_eq!(scene.client.head().await.status(), 101);
    scene.abridge.signal("TERM");
    scene.abridge.exit().await;
    scene.client.rest().await;
}
