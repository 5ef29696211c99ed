//! The tests' own upstream, against a client that no one here wrote.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;

use crate::support::{Upstream, within};

#[tokio::test]
async fn the_test_upstream_speaks_http_to_an_independent_client() {
    let mut upstream = Upstream::start().await;
    let socket = tokio::net::TcpStream::connect(upstream.address()).await.unwrap();
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);

    let body = Full::new(Bytes::from_static(b"ping"));
    let request = hyper::Request::post("/v1/echo?a=%20").header("X-Two", "1").header("x-two", "2").body(body);
    let answer = tokio::spawn(client.send_request(request.unwrap()));
    let mut call = upstream.request().await;
    assert_eq!(call.head.start, "POST /v1/echo?a=%20 HTTP/1.1");
    assert_eq!(call.head.all("x-two"), ["1", "2"]);
    assert_eq!(call.bytes().await, "ping");

    call.begin_stream().await;
    call.send_chunk("data: 1\n\n").await;
    let mut answer = within("an answer", answer).await.unwrap().unwrap();
    let first = within("a chunk", answer.body_mut().frame()).await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "data: 1\n\n");
    call.end_stream().await;
    assert!(within("the end", answer.body_mut().frame()).await.is_none());

    drop((client, answer));
    call.gone().await;
}
