//! Addresses, sockets, and versions of HTTP on the client's side.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;

use crate::support::bodies::{DANGLING, PLAIN, assert_patched};
use crate::support::{End, OPERATOR, Scene, Setup, Upstream, chat, http2, request, within};

#[tokio::test]
async fn every_address_of_a_list_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("abridge.sock").display());
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).listen(&["127.0.0.1:0", &socket, "127.0.0.1:0"]).start().await;
    assert_eq!(abridge.listeners().len(), 3);
    assert_eq!(abridge.listeners()[1], socket);
    for listener in 0..3 {
        let mut client = abridge.connect_to(listener).await;
        client.send(chat(DANGLING)).await;
        let mut call = upstream.request().await;
        assert_patched(&call.bytes().await);
        call.json("{}").await;
        assert_eq!(client.reply().await.head.status(), 200);
    }
}

#[tokio::test]
async fn a_unix_socket_that_nobody_listens_on_any_more_is_replaced_and_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abridge.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let upstream = Upstream::start().await;
    let address = format!("unix:{}", path.display());
    let abridge = Setup::before(&upstream).listen(&[&address]).start().await;
    let mut client = abridge.connect().await;
    client.send(request("GET", "/abridge/healthz", &[])).await;
    assert_eq!(client.reply().await.head.status(), 200);
    abridge.signal("TERM");
    abridge.exit().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn an_address_in_use_is_reported_in_one_line() {
    let (upstream, other) = (Upstream::start().await, Upstream::start().await);
    let taken = other.address().to_string();
    let failed = Setup::before(&upstream).listen(&[&taken]).fail().await;
    assert_eq!(failed.status.code(), Some(69), "{failed:?}");
    assert!(failed.stderr.contains(&taken) && failed.stderr.lines().count() == 1, "{failed:?}");
}

#[tokio::test]
async fn a_client_may_speak_http2_in_the_clear() {
    let mut scene = Scene::new().await;
    let mut client = http2::client(scene.client.into_socket()).await;
    let uri = format!("http://{}/v1/chat/completions", scene.abridge.address());
    for (body, edits) in [(DANGLING, Some("patch=1")), (PLAIN, None)] {
        let post = Request::post(&uri).header("x-a", "1").body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap();
        let answer = tokio::spawn(client.send_request(post));
        let mut call = scene.upstream.request().await;
        assert_eq!(call.head.start, "POST /v1/chat/completions HTTP/1.1");
        assert_eq!(call.head.get("host"), Some(&*scene.upstream.address().to_string()));
        let got = call.bytes().await;
        if edits.is_some() {
            assert_patched(&got);
        } else {
            assert_eq!(got, body);
        }
        call.answer("200 OK", &["connection: close"], "{ }").await;
        let answer = within("an answer", answer).await.unwrap().unwrap();
        assert_eq!(answer.headers().get("x-abridge-edits").map(|value| value.to_str().unwrap()), edits);
        assert_eq!(http2::whole(answer).await, "{ }");
    }
}

#[tokio::test]
async fn the_version_is_known_however_few_bytes_come_first() {
    use tokio::io::AsyncReadExt as _;

    let mut scene = Scene::new().await;
    for first in ["P", "PO", "POST /v1"] {
        let mut client = scene.abridge.connect().await;
        client.send(first).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let request = chat(PLAIN);
        client.send(&request[first.len()..]).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.bytes().await, PLAIN);
        call.answer("200 OK", &["connection: close"], "{}").await;
        assert_eq!(client.reply().await.head.status(), 200);
    }
    // The preface of HTTP/2 and empty settings, which are answered with the server's settings.
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for first in [1, 4, 24] {
        let mut client = scene.abridge.connect().await;
        client.send(&hello[..first]).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        client.send(&hello[first..]).await;
        let (mut socket, mut head) = (client.into_socket(), [0; 9]);
        within("settings", socket.read_exact(&mut head)).await.unwrap();
        assert_eq!(head[3], 4, "{head:?}");
    }
}

#[tokio::test]
async fn a_stream_over_http2_that_its_client_drops_is_cancelled_and_the_others_go_on() {
    use http_body_util::BodyExt;

    let mut scene = Scene::new().await;
    let mut client = http2::client(scene.client.into_socket()).await;
    let uri = format!("http://{}/v1/chat/completions", scene.abridge.address());
    let mut streams = Vec::new();
    for _ in 0..2 {
        let post = Request::post(&uri).body(Full::new(Bytes::from_static(PLAIN.as_bytes()))).unwrap();
        let answer = tokio::spawn(client.send_request(post));
        let mut call = scene.upstream.request().await;
        call.bytes().await;
        call.begin_stream().await;
        let answer = within("an answer", answer).await.unwrap().unwrap();
        streams.push((answer, call));
    }
    let (goes, mut cancelled) = streams.pop().unwrap();
    drop(goes);
    cancelled.gone().await;

    let (mut stays, mut call) = streams.pop().unwrap();
    call.send_chunk("data: 1\n\n").await;
    let frame = within("a chunk", stays.body_mut().frame()).await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "data: 1\n\n");

    // The upstream breaks off: over HTTP/2 that is a reset of the stream, and no end of it.
    drop(call);
    assert!(within("a reset", stays.body_mut().frame()).await.is_some_and(|frame| frame.is_err()));
}

#[tokio::test]
async fn an_http_1_0_client_gets_an_http_1_0_answer() {
    let mut scene = Scene::new().await;
    scene.client.send("GET /v1/models HTTP/1.0\r\n\r\n").await;
    let mut call = scene.upstream.request().await;
    call.begin_stream().await;
    call.send_chunk("all ").await;
    call.send_chunk("of it").await;
    call.end_stream().await;
    let reply = scene.client.head().await;
    assert_eq!(reply.get("transfer-encoding"), None);
    assert_eq!(scene.client.rest().await, (Bytes::from_static(b"all of it"), End::Closed));
}

#[tokio::test]
async fn paths_below_abridge_are_never_forwarded() {
    let mut scene = Scene::new().await;
    for (page, token, status) in [
        ("/abridge/healthz", &[][..], 200),
        ("/abridge/readyz", &[], 200),
        ("/abridge/none", &[], 401),
        ("/abridge/none", &[OPERATOR], 404),
    ] {
        scene.client.send(request("GET", page, token)).await;
        assert_eq!(scene.client.reply().await.head.status(), status, "{page}");
    }
    scene.upstream.no_more();
}

#[tokio::test]
async fn several_workers_serve_as_one_does() {
    let mut upstream = Upstream::start().await;
    for n_workers in [0, 3] {
        let abridge = Setup::before(&upstream).with(format!("server.workers = {n_workers}")).start().await;
        for _ in 0..8 {
            let mut client = abridge.connect().await;
            client.send(chat(DANGLING)).await;
            let mut call = upstream.request().await;
            assert_patched(&call.bytes().await);
            call.json("{}").await;
            assert_eq!(client.reply().await.head.status(), 200);
        }
    }
}
