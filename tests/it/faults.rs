//! Faults, one by one: of an upstream at each stage of an answer, of its framing, of HTTP/2, of the disk, and of the kernel.
//!
//! [`failures`](crate::failures) has the plain ones. Here is the rest of what a network and a machine can do.

use crate::failures::refused;
use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::upstream::head;
use crate::support::wire::framed;
use crate::support::{Exchange, Scene, chat, post, request};

mod ambiguous;
mod disk;
mod framing;
mod http2;
mod machine;

/// An answer that has got this far has no head yet.
const HEADLESS: [&str; 5] = [
    "",
    "HTTP/1.1 2",
    "HTTP/1.1 200 OK\r\ncontent-type: appl",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n",
];

/// An answer that has got this far has a head, and is not whole.
const HEADED: [(&str, &str); 6] = [
    ("content-length: 10", ""),
    ("content-length: 10", "abc"),
    ("transfer-encoding: chunked", ""),
    ("transfer-encoding: chunked", "5"),
    ("transfer-encoding: chunked", "5\r\nab"),
    ("transfer-encoding: chunked", "2\r\nab\r\n0\r\nx-sum: 1"),
];

/// Sends a conversation, and returns what went upstream of it.
async fn upstream_got(scene: &mut Scene, body: &str) -> Vec<u8> {
    scene.client.send(chat(body)).await;
    let mut call = scene.upstream.request().await;
    let got = call.bytes().await;
    call.answer("200 OK", &["connection: close"], "{}").await;
    assert_eq!(scene.client.reply().await.head.status(), 200);
    got.to_vec()
}

/// More than all the buffers on the way hold. That it is not a conversation shows at its first byte, so it is not read further.
fn long_body() -> Vec<u8> {
    vec![b'x'; 32 << 20]
}

/// What may be at the client of an answer that is not whole: no end of chunks, and fewer bytes than were announced.
fn assert_unfinished(body: &[u8], stage: (&str, &str)) {
    assert!(!body.ends_with(b"0\r\n\r\n") && body.len() < 10, "an end was faked: {stage:?}, {body:?}");
}

/// Sends a request whose answer has no end; the head of it is at the client.
async fn half_answered(scene: &mut Scene, (field, body): (&str, &str)) -> Exchange {
    let mut call = scene.ask(chat(PLAIN)).await;
    call.send(head("200 OK", &[field])).await;
    assert_eq!(scene.client.head().await.status(), 200);
    call.send(body).await;
    call
}

// === resets and stalls, at each stage ===

#[tokio::test]
async fn a_reset_before_the_head_is_whole_is_a_502_and_the_upstream_is_asked_once() {
    for sent in HEADLESS {
        for body in [PLAIN, DANGLING] {
            let mut scene = Scene::new().await;
            let mut call = scene.ask(chat(body)).await;
            call.send(sent).await;
            call.into_wire().reset();
            refused(&scene.client.reply().await, 502, "upstream_closed");
            scene.upstream.no_more();
        }
    }
}

#[tokio::test]
async fn a_stall_before_the_head_is_whole_is_a_504_and_the_upstream_is_let_go() {
    let mut scene = Scene::with("upstream.first_byte_timeout = \"200ms\"").await;
    for sent in HEADLESS {
        let mut call = scene.ask(chat(PLAIN)).await;
        call.send(sent).await;
        refused(&scene.client.reply().await, 504, "upstream_timeout");
        call.rest().await;
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn interim_answers_without_end_do_not_put_the_end_off() {
    let mut scene = Scene::with("upstream.first_byte_timeout = \"500ms\"").await;
    let mut call = scene.ask(chat(PLAIN)).await;
    // More than enough, were they all taken.
    for _ in 0..2000 {
        if call.try_send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n").await.is_err() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    refused(&scene.client.reply().await, 504, "upstream_timeout");
}

#[tokio::test]
async fn a_reset_behind_the_head_breaks_off_at_the_client() {
    for stage in HEADED {
        let mut scene = Scene::new().await;
        let call = half_answered(&mut scene, stage).await;
        call.into_wire().reset();
        assert_unfinished(&scene.client.rest().await.0, stage);
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn a_close_behind_the_head_breaks_off_at_the_client() {
    for stage in HEADED {
        let mut scene = Scene::new().await;
        drop(half_answered(&mut scene, stage).await);
        assert_unfinished(&scene.client.rest().await.0, stage);
    }
}

#[tokio::test]
async fn a_stall_behind_the_head_is_cut_on_both_sides() {
    for stage in HEADED {
        let mut scene = Scene::with("upstream.idle_timeout = \"200ms\"").await;
        let mut call = half_answered(&mut scene, stage).await;
        assert_unfinished(&scene.client.rest().await.0, stage);
        call.rest().await;
    }
}

#[tokio::test]
async fn a_close_delimited_answer_that_ends_with_a_reset_is_incomplete() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    call.send(head("200 OK", &[])).await;
    call.send("all of it?").await;
    let reply = scene.client.head().await;
    assert!(reply.is("transfer-encoding", "chunked"), "{reply:?}");
    assert_eq!(scene.client.chunk().await.unwrap(), "all of it?");
    call.into_wire().reset();
    assert_eq!(scene.client.rest().await.0, "", "no last chunk is faked");
}

#[tokio::test]
async fn an_upstream_that_stops_taking_a_body_is_a_504() {
    let mut scene = Scene::with("upstream.first_byte_timeout = \"500ms\"").await;
    scene.client.send(post("/v1/chat/completions", &[], long_body())).await;
    let call = scene.upstream.request().await;
    refused(&scene.client.reply().await, 504, "upstream_timeout");
    scene.upstream.no_more();
    drop(call);
}

// === interim answers ===

#[tokio::test]
async fn any_interim_answers_may_come_before_the_final_one() {
    for body in [PLAIN, DANGLING] {
        let mut scene = Scene::new().await;
        let mut call = scene.ask(chat(body)).await;
        for _ in 0..3 {
            call.send(head("100 Continue", &[])).await;
            call.send(head("102 Processing", &[])).await;
            call.send(head("103 Early Hints", &["link: </a>"])).await;
        }
        call.answer("201 Created", &["x-a: 1"], "made").await;
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), reply.head.get("x-a"), &reply.body[..]), (201, Some("1"), &b"made"[..]));
        assert_eq!(reply.head.get("link"), None);

        // The connection is in order.
        scene.client.send(chat(body)).await;
        let mut call = call.next().await;
        call.bytes().await;
        call.json("next").await;
        assert_eq!(scene.client.reply().await.body, "next");
    }
}

#[tokio::test]
async fn an_upstream_that_changes_the_protocol_unasked_is_a_502() {
    for request in [chat(PLAIN), request("GET", "/v1/models", &[])] {
        let mut scene = Scene::new().await;
        let mut call = scene.ask(request).await;
        call.send(head("101 Switching Protocols", &["connection: upgrade", "upgrade: websocket"])).await;
        refused(&scene.client.reply().await, 502, "upstream_closed");
        call.gone().await;
    }
}

// === answers before the request has ended ===

#[tokio::test]
async fn a_refusal_that_comes_while_the_body_is_still_being_sent_comes_back() {
    for fields in [&[][..], &["connection: close"]] {
        let mut scene = Scene::new().await;
        scene.client.send(post("/v1/chat/completions", &[], long_body())).await;
        let mut call = scene.upstream.request().await;
        call.answer("413 Content Too Large", fields, "too long").await;
        let reply = scene.client.reply().await;
        assert_eq!((reply.head.status(), &reply.body[..]), (413, &b"too long"[..]));
        assert_eq!(reply.head.get("x-abridge-error"), None);

        // Everything that is left of that request never precedes another one.
        scene.client.send(request("GET", "/v1/models", &[])).await;
        let mut next = scene.upstream.request().await;
        assert_eq!(next.head.target(), "/v1/models");
        next.json("{}").await;
        assert_eq!(scene.client.reply().await.head.status(), 200);
    }
}

#[tokio::test]
async fn an_upstream_that_refuses_and_hangs_up_in_the_middle_of_a_body_is_heard_or_is_a_502() {
    for _ in 0..8 {
        let mut scene = Scene::new().await;
        scene.client.send(post("/v1/chat/completions", &[], long_body())).await;
        let mut call = scene.upstream.request().await;
        call.answer("413 Content Too Large", &["connection: close"], "too long").await;
        // Closed with bytes that no one has read: the kernel sends a reset after the answer, or before it is read.
        call.into_wire().reset();
        let reply = scene.client.reply().await;
        if reply.head.status() != 413 {
            refused(&reply, 502, "upstream_closed");
        }
        scene.upstream.no_more();
    }
}

#[tokio::test]
async fn an_answer_may_stream_while_the_request_still_does() {
    let mut scene = Scene::new().await;
    scene.client.send(request("POST", "/v1/audio/live", &["transfer-encoding: chunked"])).await;
    let mut call = scene.upstream.request().await;
    call.begin_stream().await;
    assert_eq!(scene.client.head().await.status(), 200);
    for piece in ["one", "two", "three"] {
        scene.client.send_chunk(piece).await;
        assert_eq!(call.chunk().await.unwrap(), piece);
        call.send_chunk(piece).await;
        assert_eq!(scene.client.chunk().await.unwrap(), piece);
    }
    scene.client.send("0\r\n\r\n").await;
    assert_eq!(call.chunk().await, None);
    call.end_stream().await;
    assert_eq!(scene.client.chunk().await, None);
}

// === the pool ===

#[tokio::test]
async fn a_request_that_meets_the_end_of_a_pooled_connection_is_sent_once() {
    let mut scene = Scene::new().await;
    let mut call = None;
    for round in 0..100 {
        let mut old = match call.take() {
            Some(call) => call,
            None => scene.ask(chat(PLAIN)).await,
        };
        old.json("1").await;
        scene.client.reply().await;
        let mut old = old.into_wire();
        if round % 2 == 0 {
            old.close().await;
            scene.client.send(chat(PLAIN)).await;
        } else {
            scene.client.send(chat(PLAIN)).await;
            old.close().await;
        }
        let fresh = tokio::select! {
            fresh = scene.upstream.request() => Some(fresh),
            head = scene.client.next_head() => {
                let head = head.expect("an answer");
                assert_eq!((head.status(), head.get("x-abridge-error")), (502, Some("upstream_closed")));
                scene.client.body(&head).await;
                None
            }
        };
        let (late, _) = old.rest().await;
        assert_eq!(fresh.is_some(), late.is_empty(), "round {round}: sent on one connection, and on one only");
        scene.upstream.no_more();
        if let Some(mut fresh) = fresh {
            assert_eq!(fresh.bytes().await, PLAIN);
            call = Some(fresh);
        }
    }
}

#[tokio::test]
async fn an_unsolicited_response_of_the_upstream_answers_no_request() {
    let surplus = [
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 4\r\n\r\nslow",
        "and so on",
    ];
    for unasked in surplus {
        let mut scene = Scene::new().await;
        // Right after an answer, in one piece with it: its length says where it ends.
        let mut call = scene.ask(chat(PLAIN)).await;
        call.send([&head("200 OK", &["content-length: 2"])[..], b"{}", unasked.as_bytes()].concat()).await;
        assert_eq!(scene.client.reply().await.body, "{}");
        // And on a connection that is in the pool.
        let mut other = scene.ask(chat(PLAIN)).await;
        other.json("{}").await;
        assert_eq!(scene.client.reply().await.body, "{}");
        other.send(unasked).await;
        other.gone().await;

        let mut call = scene.ask(chat(PLAIN)).await;
        call.send([head("200 OK", &["transfer-encoding: chunked"]), framed("good"), b"0\r\n\r\n".to_vec()].concat())
            .await;
        assert_eq!(scene.client.reply().await.body, "good");
    }
}
