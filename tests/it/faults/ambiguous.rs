//! Answers that two readers could read in two ways: the client gets one, framed in one way, or a 502; and what follows
//! it is nobody's answer.

use crate::failures::refused;
use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::upstream::head;
use crate::support::{Scene, chat, post, request};

/// What hides after an answer.
const HIDDEN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";

/// Requests of which the answers pass: edited, not edited, and straight through.
fn requests() -> [Vec<u8>; 4] {
    let upload = post("/v1/files", &[], "hello");
    [chat(DANGLING), chat(PLAIN), request("GET", "/v1/models", &[]), upload]
}

/// Another request is answered by its own answer, over another connection.
async fn assert_goes_elsewhere(scene: &mut Scene) {
    let mut call = scene.ask(request("GET", "/v1/next", &[])).await;
    assert_eq!(call.head.target(), "/v1/next");
    call.answer("200 OK", &["connection: close"], "good").await;
    assert_eq!(scene.client.reply().await.body, "good");
}

#[tokio::test]
async fn an_answer_that_could_be_read_in_two_ways_is_a_502_on_every_path() {
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    let fields = [
        (&["content-length: 5", "content-length: 6"][..], "hello"),
        (&["content-length: 5, 6"], "hello"),
        (&["content-length: 5,"], "hello"),
        (&["transfer-encoding: gzip"], "hello"),
        (&["transfer-encoding: gzip, chunked"], chunks),
        (&["transfer-encoding: gzip", "transfer-encoding: chunked"], chunks),
        (&["transfer-encoding: chunked", "transfer-encoding: chunked"], chunks),
        (&["transfer-encoding: chunked, gzip"], chunks),
        (&["transfer-encoding: xchunked", "content-length: 5"], "hello"),
        (&["x-a: 1\r\n content-length: 6", "content-length: 5"], "hello"),
        (&["content-length: 5\r\n\t6"], "hello"),
        (&["content-length : 5"], "hello"),
        (&["content length: 5"], "hello"),
        (&["x-a: 1\rcontent-length: 6", "content-length: 5"], "hello"),
        (&["x-a: 1\0", "content-length: 5"], "hello"),
    ];
    let whole = |(fields, body): &(&[&str], &str)| [head("200 OK", fields), body.as_bytes().to_vec()].concat();
    let mut answers: Vec<Vec<u8>> = fields.iter().map(whole).collect();
    for start in ["HTTP/1.2 200 OK", "HTTP/2.0 200 OK", "HTTP/1.1 20 OK", "HTTP/1.1 2000 OK", "ICY 200 OK", "hello"] {
        answers.push(format!("{start}\r\ncontent-length: 5\r\n\r\nhello").into());
    }
    answers.push(format!("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}").into());
    let mut scene = Scene::new().await;
    for answer in answers {
        for request in requests() {
            let mut call = scene.ask(request).await;
            call.try_send([&answer, HIDDEN.as_bytes()].concat()).await.ok();
            refused(&scene.client.reply().await, 502, "upstream_malformed");
            call.rest().await;
            scene.upstream.no_more();
        }
        assert_goes_elsewhere(&mut scene).await;
    }
}

#[tokio::test]
async fn an_answer_that_is_odd_but_can_be_read_is_framed_once() {
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    let mut scene = Scene::new().await;
    for (fields, body, length) in [
        (&["content-length: 5", "content-length: 5"][..], "hello", Some("5")),
        (&["content-length: 5, 5"], "hello", Some("5")),
        (&["content-length: 5 ,5", "content-length: 5"], "hello", Some("5")),
        (&["content-length: 3", "transfer-encoding: chunked"], chunks, None),
        (&["transfer-encoding: CHUNKED", "content-length: x"], chunks, None),
        (&["transfer-encoding: chunked", "content-length: 5", "content-length: 6"], chunks, None),
        (&["connection: content-length", "content-length: 5"], "hello", Some("5")),
        (&["connection: transfer-encoding", "transfer-encoding: chunked"], chunks, None),
    ] {
        for request in requests() {
            let mut call = scene.ask(request).await;
            call.send([&head("200 OK", fields), body.as_bytes(), HIDDEN.as_bytes()].concat()).await;
            let reply = scene.client.reply().await;
            assert_eq!((reply.head.status(), &reply.body[..]), (200, &b"hello"[..]), "{fields:?}");
            assert_eq!(reply.head.get("content-length"), length, "{fields:?}");
            assert_eq!(reply.head.get("transfer-encoding").is_some(), length.is_none(), "{fields:?}");
            call.rest().await;
        }
        assert_goes_elsewhere(&mut scene).await;
    }
}

#[tokio::test]
async fn an_answer_without_a_body_has_none_whatever_it_says() {
    let mut scene = Scene::new().await;
    for (method, status) in [("GET", "204 No Content"), ("GET", "304 Not Modified"), ("HEAD", "200 OK")] {
        for fields in [&["content-length: 5"][..], &["transfer-encoding: chunked"], &["content-length: 5, 5"]] {
            let mut call = scene.ask(request(method, "/v1/models", &[])).await;
            call.send([&head(status, fields), "hello".as_bytes(), HIDDEN.as_bytes()].concat()).await;
            let reply = scene.client.head().await;
            assert!(status.starts_with(&reply.status().to_string()), "{reply:?}");
            assert!(matches!(reply.get("content-length"), None | Some("5")), "{reply:?}");
            call.rest().await;
            assert_goes_elsewhere(&mut scene).await;
        }
    }
}
