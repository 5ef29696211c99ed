//! Zero edits: each side gets what the other sends.

use crate::support::bodies::PLAIN;
use crate::support::upstream::head;
use crate::support::wire::framed;
use crate::support::{End, Scene, Setup, Upstream, chat, http2, post, request, within};

#[tokio::test]
async fn a_body_with_nothing_to_edit_arrives_byte_by_byte() {
    let mut scene = Scene::new().await;
    scene.client.send(chat(PLAIN)).await;

    let mut call = scene.upstream.request().await;
    assert_eq!(call.head.start, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(call.head.get("content-length"), Some(&*PLAIN.len().to_string()));
    assert_eq!(call.bytes().await, PLAIN);

    call.json("{\"id\" : 1.0}").await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.status(), &*reply.body), (200, &b"{\"id\" : 1.0}"[..]));
}

#[tokio::test]
async fn a_chunked_body_with_nothing_to_edit_arrives_byte_by_byte() {
    let mut scene = Scene::new().await;
    let fields = ["content-type: application/json", "transfer-encoding: chunked"];
    scene.client.send(request("POST", "/v1/chat/completions", &fields)).await;
    for piece in PLAIN.as_bytes().chunks(37) {
        scene.client.send_chunk(piece).await;
    }
    scene.client.send("0\r\n\r\n").await;

    let mut call = scene.upstream.request().await;
    assert_eq!(call.bytes().await, PLAIN);
}

#[tokio::test]
async fn a_megabyte_with_nothing_to_edit_arrives_byte_by_byte() {
    let mut scene = Scene::new().await;
    let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}", "0123456789abcdef".repeat(65536));
    let send = scene.client.send(chat(&body));
    let receive = async {
        let mut call = scene.upstream.request().await;
        (call.bytes().await, call)
    };
    let ((), (bytes, _call)) = tokio::join!(send, receive);
    assert!(bytes == body, "{} bytes became {}", body.len(), bytes.len());
}

#[tokio::test]
async fn path_and_query_are_not_written_anew() {
    let mut scene = Scene::new().await;
    let target = "/v1/files/a%2Fb;c/%7e?b=2&a=%20+%2f&&x=%zz&empty=&a=1";
    scene.client.send(request("GET", target, &[])).await;
    assert_eq!(scene.upstream.request().await.head.target(), target);
}

#[tokio::test]
async fn request_headers_arrive_as_they_were_sent_and_none_is_added() {
    let mut scene = Scene::new().await;
    let fields = [
        "x-first: 1",
        "accept-encoding: gzip, br;q=0.5",
        "X-Many: b",
        "authorization: Bearer sk-1",
        "x-many: a",
        "openai-organization: org",
        "x-many: b",
        "x-empty:",
        "x-blanks: a  b",
        "te: trailers",
        "cookie: a=1",
    ];
    scene.client.send(post("/v1/chat/completions", &fields, PLAIN)).await;
    let call = scene.upstream.request().await;

    let mut expected: Vec<_> = fields.iter().map(|line| line.split_once(':').unwrap()).collect();
    let host = scene.upstream.address().to_string();
    let length = PLAIN.len().to_string();
    expected.extend([("host", host.as_str()), ("content-length", length.as_str()), ("connection", "te")]);
    let mut expected: Vec<_> =
        expected.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    let mut fields = call.head.fields.clone();
    // Names may change places, values of one name may not: the sort is stable.
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(fields, expected);
}

#[tokio::test]
async fn names_keep_their_case_both_ways() {
    let mut scene = Scene::new().await;
    scene.client.send(post("/v1/chat/completions", &["X-Stainless-OS: Linux"], PLAIN)).await;
    let mut call = scene.upstream.request().await;
    assert!(memchr::memmem::find(&call.head.raw, b"\r\nX-Stainless-OS: Linux\r\n").is_some(), "{:?}", call.head.raw);
    call.bytes().await;
    call.answer("200 OK", &["X-Request-ID: a"], "").await;
    let reply = scene.client.reply().await;
    assert!(memchr::memmem::find(&reply.head.raw, b"\r\nX-Request-ID: a\r\n").is_some(), "{:?}", reply.head.raw);
}

#[tokio::test]
async fn values_that_are_not_ascii_pass_both_ways() {
    let mut scene = Scene::new().await;
    scene.client.send(post("/v1/chat/completions", &["x-title: caf\u{e9} \u{1f980}"], PLAIN)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.head.get("x-title"), Some("caf\u{e9} \u{1f980}"));
    call.bytes().await;
    call.answer("200 OK", &["x-said: caf\u{e9} \u{1f980}"], "").await;
    assert_eq!(scene.client.reply().await.head.get("x-said"), Some("caf\u{e9} \u{1f980}"));
}

#[tokio::test]
async fn targets_that_are_not_quite_urls_pass_and_impossible_ones_are_refused() {
    let mut scene = Scene::new().await;
    for target in ["/v1/a|b", "/v1/a\\b", "/v1/caf\u{e9}?x=\u{e9}", "/v1/a//../b^?{c}[1]"] {
        scene.client.send(request("GET", target, &[])).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.head.target(), target);
        call.answer("200 OK", &["connection: close"], "").await;
        scene.client.reply().await;
    }
    for target in ["/v1/a?b=\"c\"", "/v1/a`b"] {
        let mut client = scene.abridge.connect().await;
        client.send(request("GET", target, &[])).await;
        assert_eq!(client.head().await.status(), 400, "{target}");
    }
    scene.upstream.no_more();
}

#[tokio::test]
async fn request_headers_of_one_hop_stay_on_their_hop() {
    let mut scene = Scene::new().await;
    let fields = [
        "connection: keep-alive, x-hop",
        "x-hop: 1",
        "keep-alive: timeout=5",
        "proxy-connection: keep-alive",
        "te: gzip",
        "x-stays: 1",
    ];
    scene.client.send(request("GET", "/v1/models", &fields)).await;
    let call = scene.upstream.request().await;
    let mut names = call.head.names();
    names.sort_unstable();
    assert_eq!(names, ["host", "x-stays"]);
}

#[tokio::test]
async fn an_answer_comes_back_as_it_was_and_nothing_is_added() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(chat(PLAIN)).await;
    let fields = [
        "content-type: application/json; charset=UTF-8",
        "x-request-id: req_1",
        "set-cookie: b=2",
        "Set-Cookie: a=1",
        "x-ratelimit-remaining-tokens: 149984",
        "server: toy",
        "x-blanks: a  b",
    ];
    call.answer("203 Whatever", &fields, "{ }\n").await;

    let reply = scene.client.reply().await;
    assert_eq!(reply.head.status(), 203);
    assert_eq!(reply.body, "{ }\n");
    let expected = fields.iter().chain(&["content-length: 4"]).map(|line| line.split_once(": ").unwrap());
    let mut expected: Vec<_> = expected.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let mut got = reply.head.fields.clone();
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    got.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(got, expected);
}

#[tokio::test]
async fn a_date_of_the_upstream_stays() {
    let mut scene = Scene::new().await;
    scene.client.send(request("GET", "/v1/models", &[])).await;
    let date = "date: Thu, 01 Jan 1970 00:00:00 GMT";
    scene.upstream.request().await.answer("200 OK", &[date], "").await;
    assert_eq!(scene.client.reply().await.head.get("date"), Some("Thu, 01 Jan 1970 00:00:00 GMT"));
}

#[tokio::test]
async fn response_headers_of_one_hop_stay_on_their_hop() {
    let mut scene = Scene::new().await;
    scene.client.send(request("GET", "/v1/models", &[])).await;
    let mut call = scene.upstream.request().await;
    let fields = ["connection: keep-alive, x-hop", "x-hop: 1", "keep-alive: timeout=5", "x-stays: 1"];
    call.answer("200 OK", &fields, "ok").await;
    let reply = scene.client.reply().await;
    let mut names = reply.head.names();
    names.sort_unstable();
    assert_eq!(names, ["content-length", "x-stays"]);
}

#[tokio::test]
async fn an_upload_reaches_the_upstream_before_it_is_complete() {
    let mut scene = Scene::new().await;
    scene.client.send(request("POST", "/v1/files", &["transfer-encoding: chunked"])).await;
    let mut call = scene.upstream.request().await;
    for piece in ["one", "two", "three"] {
        scene.client.send_chunk(piece).await;
        assert_eq!(call.chunk().await.unwrap(), piece);
    }
    scene.client.send("0\r\n\r\n").await;
    assert_eq!(call.chunk().await, None);
}

#[tokio::test]
async fn an_answer_may_come_before_the_upload_is_complete() {
    let mut scene = Scene::new().await;
    scene.refused_upload().await;
}

#[tokio::test]
async fn a_body_arrives_whatever_the_method_and_none_is_made_up() {
    let mut scene = Scene::new().await;
    let bodies = [
        ("transfer-encoding: chunked", "5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", "hello!"),
        ("transfer-encoding: chunked", "0\r\n\r\n", ""),
        ("content-length: 6", "hello!", "hello!"),
        ("x-none: 1", "", ""),
    ];
    for method in ["GET", "HEAD", "DELETE", "OPTIONS", "PUT", "QUERY"] {
        for (field, sent, body) in bodies {
            scene.client.send([request(method, "/v1/files", &[field]), sent.as_bytes().to_vec()].concat()).await;
            let mut call = scene.upstream.request().await;
            assert_eq!(call.bytes().await, body, "{method}, {field}");
            if sent.is_empty() {
                assert_eq!(call.head.get("transfer-encoding"), None, "{method}");
            }
            call.answer("200 OK", &["connection: close"], "").await;
            assert_eq!(scene.client.reply().await.head.status(), 200);
        }
    }
}

#[tokio::test]
async fn the_body_of_a_get_is_no_request_of_its_own() {
    let hidden = "GET /v1/hidden HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for method in ["GET", "HEAD"] {
        // Each with its own proxy: a connection of the one before could still be in the pool while it closes.
        let mut scene = Scene::new().await;
        let head = request(method, "/v1/files", &["transfer-encoding: chunked"]);
        scene.client.send([head, framed(hidden), b"0\r\n\r\n".to_vec()].concat()).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.bytes().await, hidden);
        call.answer("200 OK", &[], "").await;
        scene.client.reply().await;
        scene.client.send(request("GET", "/v1/next", &["connection: close"])).await;
        let mut next = call.next().await;
        assert_eq!(next.head.target(), "/v1/next");
        next.answer("200 OK", &[], "").await;
        scene.client.reply().await;
    }
}

#[tokio::test]
async fn the_body_of_a_get_arrives_over_http2() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with("upstream.http = \"2\"").start().await;
    let mut client = abridge.connect().await;
    let head = request("GET", "/v1/files", &["transfer-encoding: chunked"]);
    client.send([head, framed("hello"), b"0\r\n\r\n".to_vec()].concat()).await;
    let mut seen = http2::serve(upstream.connection().await.into_socket(), "ok");
    let seen = within("a request", seen.recv()).await.unwrap();
    assert_eq!((seen.head.method.as_str(), &seen.body[..]), ("GET", &b"hello"[..]));
    assert_eq!(client.reply().await.body, "ok");
}

#[tokio::test]
async fn trailers_of_a_request_arrive() {
    let mut scene = Scene::new().await;
    let fields = ["transfer-encoding: chunked", "trailer: x-sum", "te: trailers"];
    let mut request = request("POST", "/v1/files", &fields);
    request.extend(framed("data"));
    request.extend(b"0\r\nx-sum: 42\r\n\r\n");
    scene.client.send(request).await;
    let body = scene.upstream.request().await.whole().await;
    assert_eq!(body.bytes, "data");
    assert_eq!(body.trailers, [("x-sum".to_owned(), "42".to_owned())]);
}

#[tokio::test]
async fn te_goes_on_as_a_field_of_the_next_connection() {
    for (fields, raw) in [
        (&["TE: trailers"][..], &["te: trailers", "connection: te"][..]),
        (&["connection: te", "te: gzip, trailers;q=0.5, trailers"], &["te: trailers", "connection: te"]),
        (&["connection: te", "te: gzip"], &[]),
        (
            &["connection: upgrade, te", "upgrade: websocket", "te: trailers"],
            &["te: trailers", "connection: upgrade", "connection: te"],
        ),
    ] {
        let mut scene = Scene::new().await;
        scene.client.send(request("GET", "/v1/models", fields)).await;
        let call = scene.upstream.request().await;
        let head = String::from_utf8(call.head.raw.to_vec()).unwrap().to_ascii_lowercase();
        let mut hop: Vec<_> =
            head.lines().filter(|line| line.starts_with("te:") || line.starts_with("connection:")).collect();
        let mut raw = raw.to_vec();
        hop.sort_unstable();
        raw.sort_unstable();
        assert_eq!(hop, raw, "{fields:?}");
    }
}

#[tokio::test]
async fn te_goes_on_over_http2_by_itself() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with("upstream.http = \"2\"").start().await;
    let mut client = abridge.connect().await;
    client.send(request("GET", "/v1/models", &["te: trailers", "connection: te"])).await;
    let mut seen = http2::serve(upstream.connection().await.into_socket(), "ok");
    let seen = within("a request", seen.recv()).await.unwrap();
    assert_eq!(seen.head.headers.get("te").unwrap(), "trailers");
    assert_eq!(client.reply().await.body, "ok");
}

#[tokio::test]
async fn trailers_of_an_answer_come_back() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(post("/v1/chat/completions", &["te: trailers"], PLAIN)).await;
    call.send(head("200 OK", &["transfer-encoding: chunked", "trailer: x-sum"])).await;
    call.send_chunk("data").await;
    call.send("0\r\nx-sum: 42\r\n\r\n").await;
    let reply = scene.client.reply().await;
    assert_eq!(reply.body, "data");
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "42".to_owned())]);
}

#[tokio::test]
async fn an_answer_to_head_has_a_length_and_no_body() {
    let mut scene = Scene::new().await;
    scene.client.send(request("HEAD", "/v1/files/1", &[])).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.head.start, "HEAD /v1/files/1 HTTP/1.1");
    call.send(head("200 OK", &["content-length: 1234"])).await;
    let reply = scene.client.head().await;
    assert_eq!(reply.get("content-length"), Some("1234"));

    // The connection is in order: another request passes.
    scene.client.send(request("GET", "/v1/models", &[])).await;
    call.next().await.answer("200 OK", &[], "next").await;
    assert_eq!(scene.client.reply().await.body, "next");
}

#[tokio::test]
async fn answers_without_a_body_stay_without_one() {
    let mut scene = Scene::new().await;
    scene.client.send(request("DELETE", "/v1/files/1", &[])).await;
    let mut call = scene.upstream.request().await;
    call.send(head("204 No Content", &["x-a: 1"])).await;
    let reply = scene.client.head().await;
    assert_eq!((reply.status(), reply.names()), (204, vec!["x-a"]));

    scene.client.send(request("GET", "/v1/files/1", &["if-none-match: \"1\""])).await;
    call.next().await.send(head("304 Not Modified", &["etag: \"1\""])).await;
    let reply = scene.client.head().await;
    assert_eq!((reply.status(), reply.names()), (304, vec!["etag"]));
}

#[tokio::test]
async fn an_answer_that_ends_with_its_connection_arrives_whole() {
    let mut scene = Scene::new().await;
    scene.client.send(request("GET", "/v1/files/1/content", &[])).await;
    let mut call = scene.upstream.request().await;
    call.send("HTTP/1.0 200 OK\r\nx-a: 1\r\n\r\nall of it").await;
    drop(call);
    assert_eq!(scene.client.reply().await.body, "all of it");
}

#[tokio::test]
async fn an_encoded_answer_stays_encoded() {
    let mut scene = Scene::new().await;
    let mut call = scene.ask(post("/v1/chat/completions", &["accept-encoding: gzip"], PLAIN)).await;
    let bytes = [0x1f, 0x8b, 0x08, 0x00, 0xff, 0x00, 0x80];
    call.answer("200 OK", &["content-encoding: gzip", "vary: accept-encoding"], bytes).await;
    let reply = scene.client.reply().await;
    assert_eq!(reply.head.get("content-encoding"), Some("gzip"));
    assert_eq!(reply.body, &bytes[..]);
}

#[tokio::test]
async fn a_client_that_waits_for_100_gets_it() {
    for target in ["/v1/chat/completions", "/v1/files"] {
        let mut scene = Scene::new().await;
        let length = format!("content-length: {}", PLAIN.len());
        scene.client.send(request("POST", target, &["expect: 100-continue", &length])).await;
        assert_eq!(scene.client.head().await.status(), 100, "{target}");
        scene.client.send(PLAIN).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.bytes().await, PLAIN, "{target}");
        call.json("{}").await;
        assert_eq!(scene.client.reply().await.body, "{}", "{target}");
    }
}

#[tokio::test]
async fn a_websocket_passes_both_ways_and_ends_when_either_side_ends() {
    let mut scene = Scene::new().await;
    let fields = [
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-version: 13",
        "authorization: Bearer sk-1",
    ];
    scene.client.send(request("GET", "/v1/realtime?model=m", &fields)).await;
    let mut call = scene.upstream.request().await;
    assert_eq!(call.head.target(), "/v1/realtime?model=m");
    assert!(call.head.get("upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket")));
    assert!(call.head.get("connection").is_some_and(|value| value.eq_ignore_ascii_case("upgrade")));
    assert_eq!(call.head.get("sec-websocket-key"), Some("dGhlIHNhbXBsZSBub25jZQ=="));

    let accept = ["connection: Upgrade", "upgrade: websocket", "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="];
    call.send(head("101 Switching Protocols", &accept)).await;
    let reply = scene.client.head().await;
    assert_eq!(reply.status(), 101);
    assert_eq!(reply.get("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert!(reply.get("upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket")));

    scene.client.send(b"\x81\x85\0\0\0\0hello").await;
    assert_eq!(call.exactly(11).await, &b"\x81\x85\0\0\0\0hello"[..]);
    call.send(b"\x81\x05world").await;
    assert_eq!(scene.client.exactly(7).await, &b"\x81\x05world"[..]);

    drop(scene.client);
    call.gone().await;
}

#[tokio::test]
async fn a_refused_upgrade_is_an_answer_like_any_other() {
    let mut scene = Scene::new().await;
    scene.client.send(request("GET", "/v1/realtime", &["connection: Upgrade", "upgrade: websocket"])).await;
    scene.upstream.request().await.answer("426 Upgrade Required", &["x-a: 1"], "no").await;
    let reply = scene.client.reply().await;
    assert_eq!((reply.head.status(), &*reply.body), (426, &b"no"[..]));
}

#[tokio::test]
async fn an_offer_of_http2_by_upgrade_stays_on_its_hop() {
    let offer = ["connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQCAAAAAAIAAAAA"];
    for request in [request("GET", "/v1/models", &offer), post("/v1/chat/completions", &offer, PLAIN)] {
        let mut scene = Scene::new().await;
        scene.client.send(request).await;
        let mut call = scene.upstream.request().await;
        assert!(!call.head.names().iter().any(|name| ["connection", "upgrade", "http2-settings"].contains(name)));
        call.bytes().await;
        call.json("{}").await;
        assert_eq!(scene.client.reply().await.body, "{}");
    }
}

#[tokio::test]
async fn what_stands_right_behind_an_upgrade_is_not_lost() {
    let mut scene = Scene::new().await;
    scene.client.send(request("GET", "/v1/realtime", &["connection: Upgrade", "upgrade: websocket"])).await;
    let mut call = scene.upstream.request().await;
    let mut answer = head("101 Switching Protocols", &["connection: Upgrade", "upgrade: websocket"]);
    answer.extend(b"\x81\x05hello");
    call.send(answer).await;
    assert_eq!(scene.client.head().await.status(), 101);
    assert_eq!(scene.client.exactly(7).await, &b"\x81\x05hello"[..]);
    drop(call);
    scene.client.gone().await;
}

#[tokio::test]
async fn requests_sent_in_one_go_are_answered_in_turn() {
    let mut scene = Scene::new().await;
    let both = [chat(PLAIN), request("GET", "/v1/models", &["connection: close"])].concat();
    scene.client.send(both).await;
    let mut first = scene.upstream.request().await;
    assert_eq!(first.bytes().await, PLAIN);
    first.json("1").await;
    assert_eq!(scene.client.reply().await.body, "1");
    let mut second = first.next().await;
    assert_eq!(second.head.target(), "/v1/models");
    second.json("2").await;
    assert_eq!(scene.client.reply().await.body, "2");
    assert_eq!(scene.client.gone().await, End::Closed);
}

#[tokio::test]
async fn one_connection_to_the_upstream_serves_one_request_behind_the_other() {
    let mut scene = Scene::new().await;
    scene.client.send(request("GET", "/v1/models", &[])).await;
    let mut call = scene.upstream.request().await;
    for n in 0..5 {
        call.json(n.to_string()).await;
        assert_eq!(scene.client.reply().await.body, n.to_string());
        scene.client.send(chat(PLAIN)).await;
        call = call.next().await;
        assert_eq!(call.bytes().await, PLAIN);
    }
    scene.upstream.no_more();
}
