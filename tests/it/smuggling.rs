//! Requests that two readers could read in two ways: refused, or sent on in one way only. Nothing that hides in one gets to
//! the upstream as its own request, on the connections of its client or on those of others.

use crate::failures::refused;
use crate::support::summarizer::{Asked, Summarizer};
use crate::support::{Abridge, Scene, Setup, Wire, chat, post, request};

/// A request that is edited, and one that is not.
const TARGETS: [&str; 2] = ["/v1/chat/completions", "/v1/files"];

/// What hides.
const HIDDEN: &str = "GET /v1/hidden HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// What becomes of a request, and of the one after it on its connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Expected<'a> {
    /// It gets this status from us, and the upstream sees nothing of it.
    Refused(u16),
    /// Its body breaks off: the upstream never gets all of it.
    Broken,
    /// It passes with this body, and the next one does, too.
    Passes(&'a str),
    /// It passes with this body, and its connection ends.
    PassesAlone(&'a str),
}

use Expected::{Broken, Passes, PassesAlone, Refused};

/// An upstream that answers everything, and abridge in front of it.
struct Proxied {
    upstream: Summarizer,
    abridge: Abridge,
}

impl Proxied {
    async fn new() -> Self {
        let upstream = Summarizer::playing([]).await;
        let abridge = Setup::to(upstream.url()).with("tokens.ask_upstream = false").start().await;
        Self { upstream, abridge }
    }

    /// Sends a request, another one after it, and one on another connection; what the upstream got of the first.
    async fn check(&self, bytes: &[u8], expected_outcome: Expected<'_>) -> Option<Asked> {
        let shown = String::from_utf8_lossy(bytes).into_owned();
        let before = self.upstream.chats().len();
        let mut client = self.abridge.connect().await;
        let behind = request("GET", "/v1/behind", &["connection: close"]);
        client.send([bytes, &behind].concat()).await;
        let statuses = statuses(&mut client).await;
        let mut other = self.abridge.connect().await;
        other.send(request("GET", "/v1/other", &[])).await;
        assert_eq!(other.reply().await.head.status(), 200, "{shown}");

        let got = self.upstream.chats().split_off(before);
        let lines: Vec<_> = got.iter().map(|asked| asked.head.start.as_str()).collect();
        let (n_passed, expected) = match expected_outcome {
            Refused(status) => (0, vec![status]),
            Broken => (0, statuses.iter().copied().filter(|status| *status >= 400).collect()),
            PassesAlone(_) => (1, vec![200]),
            Passes(_) => (2, vec![200, 200]),
        };
        assert_eq!(statuses, expected, "{shown}");
        let (passed, rest) = lines.split_at(n_passed.min(lines.len()));
        assert_eq!(rest, ["GET /v1/other HTTP/1.1"], "{lines:?} for {shown}");
        let (Passes(body) | PassesAlone(body)) = expected_outcome else { return None };
        assert_eq!(passed.get(1).copied().unwrap_or("GET /v1/behind HTTP/1.1"), "GET /v1/behind HTTP/1.1", "{shown}");
        let first = got.into_iter().next().unwrap();
        let n_framings = first.head.all("content-length").len() + first.head.all("transfer-encoding").len();
        assert!(n_framings == 1 || n_framings == 0 && body.is_empty(), "{:?} for {shown}", first.head);
        assert_eq!(first.body, body, "{shown}");
        Some(first)
    }

    /// The same for a POST with these lines and what is after them, at each target.
    async fn check_posts(&self, cases: &[(&str, &str, Expected<'_>)]) {
        for target in TARGETS {
            for (lines, behind, expected_outcome) in cases {
                let head = request("POST", target, &[lines]);
                self.check(&[head, behind.as_bytes().to_vec()].concat(), *expected_outcome).await;
            }
        }
    }
}

/// The statuses of all answers, up to the end of the connection.
async fn statuses(client: &mut Wire) -> Vec<u16> {
    let (bytes, _) = client.rest().await;
    let text = String::from_utf8_lossy(&bytes);
    text.split("HTTP/1.1 ").skip(1).map(|answer| answer.get(..3).unwrap().parse().unwrap()).collect()
}

// === lengths and codings ===

#[tokio::test]
async fn a_length_is_one_number() {
    let proxied = Proxied::new().await;
    let hidden = format!("hello{HIDDEN}");
    let mut cases = vec![("content-length: 5\r\nContent-Length: 5", "hello", Passes("hello"))];
    for lines in [
        "content-length: 5\r\ncontent-length: 6",
        "content-length: 0\r\ncontent-length: 5",
        "content-length: 5, 6",
        "content-length: 5, 5",
        "content-length: +5",
        "content-length: -5",
        "content-length: 0x5",
        "content-length: 5 5",
        "content-length: 5;",
        "content-length:",
        "content-length: five",
        "content-length: 18446744073709551616",
    ] {
        cases.push((lines, &hidden, Refused(400)));
    }
    proxied.check_posts(&cases).await;
}

#[tokio::test]
async fn of_a_length_and_chunks_the_chunks_count_and_the_connection_ends() {
    let proxied = Proxied::new().await;
    let chunks = format!("5\r\nhello\r\n0\r\n\r\n{HIDDEN}");
    let cases = [
        ("content-length: 4\r\ntransfer-encoding: chunked", &*chunks, PassesAlone("hello")),
        ("transfer-encoding: chunked\r\ncontent-length: 4", &*chunks, PassesAlone("hello")),
        ("transfer-encoding: chunked\r\ncontent-length: x", &*chunks, PassesAlone("hello")),
    ];
    proxied.check_posts(&cases).await;
}

#[tokio::test]
async fn a_coding_is_chunked_and_nothing_else() {
    let proxied = Proxied::new().await;
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    let hidden = format!("0\r\n\r\n{HIDDEN}");
    let mut cases = vec![
        ("transfer-encoding: chunked", chunks, Passes("hello")),
        ("Transfer-Encoding: \tCHUNKED ", chunks, Passes("hello")),
        ("transfer-encoding: chunked\r\nconnection: transfer-encoding, content-length", chunks, Passes("hello")),
    ];
    for lines in [
        "transfer-encoding: chunked, identity",
        "transfer-encoding: identity, chunked",
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: chunked, chunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity",
        "transfer-encoding: identity\r\ntransfer-encoding: chunked",
        "transfer-encoding: , chunked",
        "transfer-encoding: chunked,",
        "transfer-encoding: xchunked",
        "transfer-encoding: chunkedx",
        "transfer-encoding: \"chunked\"",
        "transfer-encoding: chunked;a=b",
        "transfer-encoding: identity",
        "transfer-encoding: gzip",
        "transfer-encoding:",
        "transfer-encoding : chunked",
        "transfer-encoding\t: chunked",
        "transfer-encoding:\u{b}chunked",
        "transfer-encoding:\r\n chunked",
        "content-length: 5\r\ntransfer-encoding : chunked",
    ] {
        cases.push((lines, &hidden, Refused(400)));
    }
    proxied.check_posts(&cases).await;

    // HTTP/1.0 has no chunks.
    for target in TARGETS {
        let old = format!("POST {target} HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n{hidden}");
        proxied.check(old.as_bytes(), Refused(400)).await;
    }
}

#[tokio::test]
async fn a_chunk_is_as_long_as_it_says() {
    let proxied = Proxied::new().await;
    let good = [
        ("5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("0005;a=b;c\r\nhello\r\n000\r\n\r\n", "hello"),
        // What follows the last chunk frames nothing.
        ("5\r\nhello\r\n0\r\ncontent-length: 50\r\ntransfer-encoding: gzip\r\n\r\n", "hello"),
    ];
    let bad = [
        "0x5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "-1\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 5\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "5\nhello\n0\n\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloxx0\r\n\r\n",
        "5\r\nhello!\r\n0\r\n\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
    ];
    for target in TARGETS {
        let fields = ["transfer-encoding: chunked", "trailer: content-length, transfer-encoding", "te: trailers"];
        let head = request("POST", target, &fields);
        for (chunks, body) in good {
            proxied.check(&[&head, chunks.as_bytes()].concat(), Passes(body)).await;
        }
        for chunks in bad {
            proxied.check(&[&head, chunks.as_bytes(), HIDDEN.as_bytes()].concat(), Broken).await;
        }
    }
}

// === heads ===

#[tokio::test]
async fn a_head_with_an_odd_line_is_refused() {
    let proxied = Proxied::new().await;
    let mut cases = Vec::new();
    for lines in [
        "x-a: 1\r\n\tcontent-length: 5",
        "x-a: 1\r\n content-length: 5",
        "content length: 5",
        "content-length\u{b}: 5",
        ": 5",
        "x(a): 5",
        "x-\u{e9}: 5",
        "x-a",
        "x-a: 1\rcontent-length: 5",
        "x-a: 1\0content-length: 5",
        "x-a: \u{1b}[31m",
        "x-a\r: 1",
    ] {
        cases.push((lines, HIDDEN, Refused(400)));
    }
    proxied.check_posts(&cases).await;
    for start in [
        "GET  /v1/models HTTP/1.1",
        "GET /v1/mod els HTTP/1.1",
        "GET /v1/models HTTP/1.1 x",
        "GET /v1/models\tHTTP/1.1",
        "GET /v1/models\r HTTP/1.1",
        "GET /v1/models HTTP/1.2",
        "GET /v1/models HTTP/2.0",
        "GET /v1/models",
        "G(T /v1/models HTTP/1.1",
        " GET /v1/models HTTP/1.1",
        "GET /v1/models HTTP/1.1\r\n host: localhost",
    ] {
        proxied.check(format!("{start}\r\nhost: localhost\r\n\r\n").as_bytes(), Refused(400)).await;
    }
}

#[tokio::test]
async fn lines_that_end_in_lf_alone_are_lines() {
    let proxied = Proxied::new().await;
    for target in TARGETS {
        let head = format!("POST {target} HTTP/1.1\nhost: localhost\nx-a: 1\nx-b: 2\ncontent-length: 5\n\n");
        let asked = proxied.check(format!("{head}hello").as_bytes(), Passes("hello")).await.unwrap();
        assert_eq!((asked.head.get("x-a"), asked.head.get("x-b")), (Some("1"), Some("2")));
        let raw = std::str::from_utf8(&asked.head.raw).unwrap();
        assert!(!raw.replace("\r\n", "").contains(['\r', '\n']), "{raw:?}");
    }
}

#[tokio::test]
async fn a_client_cannot_take_away_what_frames_its_request() {
    let proxied = Proxied::new().await;
    for target in TARGETS {
        let fields = ["connection: content-length, host, transfer-encoding", "x-a: 1"];
        let asked = proxied.check(&post(target, &fields, "hello"), Passes("hello")).await.unwrap();
        assert_eq!(asked.head.all("host").len(), 1);
        assert_eq!(asked.head.get("x-a"), Some("1"));
    }
}

#[tokio::test]
async fn an_upgrade_to_h2c_is_not_forwarded() {
    let proxied = Proxied::new().await;
    for protocol in ["h2c", "H2C", "websocket, h2c", "h2c,websocket", "websocket\r\nupgrade: h2c"] {
        for connection in ["upgrade, http2-settings", "upgrade"] {
            let upgrade = format!("upgrade: {protocol}");
            let connection = format!("connection: {connection}");
            let fields = [&*upgrade, &*connection, "http2-settings: AAMAAABkAAQCAAAAAAIAAAAA"];
            let asked = proxied.check(&request("GET", "/v1/models", &fields), Passes("")).await.unwrap();
            assert_eq!(asked.head.names(), ["host"], "{protocol}");
        }
    }
}

#[tokio::test]
async fn http2_requests_that_http1_would_frame_differently_are_refused() {
    let proxied = Proxied::new().await;
    let usual = [(":method", "GET"), (":path", "/v1/models"), (":scheme", "http"), (":authority", "localhost")];
    assert!(is_served(&proxied.abridge, &usual).await);
    assert_eq!(proxied.upstream.chats().len(), 1);
    let with = |field| [&usual[..], &[field]].concat();
    let instead =
        |name: &str, value| usual.map(|(usual, is)| if usual == name { (usual, value) } else { (usual, is) }).to_vec();
    for fields in [
        with(("transfer-encoding", "chunked")),
        with(("connection", "close")),
        with(("content-length", "5")),
        with(("content-length", "x")),
        with(("x-a", "1\r\nx-b: 2")),
        with(("x-a", "1\nx-b: 2")),
        with(("x-a", "1\0")),
        with(("x-a\r\nx-b", "2")),
        with(("x-a: 1\r\nx-b", "2")),
        with(("x a", "2")),
        with(("X-A", "2")),
        with((":path", "/v1/hidden")),
        instead(":method", "GET /v1/hidden HTTP/1.1\r\nx: "),
        instead(":path", "/v1/models HTTP/1.1\r\nx: "),
        instead(":path", "/v1/models\n"),
        instead(":path", ""),
        instead(":authority", "localhost\r\nx: 1"),
    ] {
        assert!(!is_served(&proxied.abridge, &fields).await, "{fields:?}");
    }
    assert_eq!(proxied.upstream.chats().len(), 1);
}

/// Asks over HTTP/2 with these fields, as they are; whether the answer is not a refusal.
async fn is_served(abridge: &Abridge, fields: &[(&str, &str)]) -> bool {
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const GO_AWAY: u8 = 7;
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let mut block = Vec::new();
    for text in fields {
        // A literal that no table has and none keeps.
        block.push(0);
        for text in [text.0, text.1] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    let mut client = abridge.connect().await;
    let settings = frame(4, 0, 0, &[]);
    // Whole, and without a body.
    let headers = frame(HEADERS, 0x5, 1, &block);
    client.send([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), settings, headers].concat()).await;
    loop {
        let head = client.exactly(9).await;
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        let payload = client.exactly(length).await;
        match head[3] {
            RESET | GO_AWAY => return false,
            // In the static table: 8 is 200, 12 is 400.
            HEADERS => return payload[0] == 0x88,
            _ => {}
        }
    }
}

// === targets ===

#[tokio::test]
async fn targets_without_a_path_are_refused_and_absolute_ones_go_to_the_upstream() {
    let proxied = Proxied::new().await;
    for (method, target) in [
        ("OPTIONS", "*"),
        ("GET", "*"),
        ("GET", "localhost:80"),
        ("CONNECT", "localhost:80"),
        ("CONNECT", "/v1/models"),
        ("CONNECT", "http://localhost/v1/models"),
    ] {
        let mut client = proxied.abridge.connect().await;
        client.send(request(method, target, &[])).await;
        refused(&client.reply().await, 400, "bad_target");
        proxied.check(&request(method, target, &["connection: close"]), Refused(400)).await;
    }
    for target in ["v1/models", "http://", "http:///v1/models", "http://a b/v1/models", "/v1/\u{7f}", "?a=1"] {
        proxied.check(&request("GET", target, &["connection: close"]), Refused(400)).await;
    }
    // The name of another host is not where it goes.
    for target in ["http://elsewhere.test/v1/chat/completions", "https://k@elsewhere.test:1/v1/chat/completions"] {
        let asked = proxied.check(&post(target, &[], "hello"), Passes("hello")).await.unwrap();
        assert_eq!(asked.head.start, "POST /v1/chat/completions HTTP/1.1");
        assert!(proxied.upstream.url().contains(asked.head.get("host").unwrap()));
    }
}

#[tokio::test]
async fn a_path_is_ours_or_the_upstreams_as_it_is_written() {
    let proxied = Proxied::new().await;
    for (target, status) in [
        ("/abridge/../v1/models", 401),
        ("/abridge/%2e%2e/v1/models", 401),
        ("/abridge//status", 401),
        ("/abridge/recall/../status", 404),
        ("/abridge/recall/..%2fstatus", 404),
        ("/abridge/summarize/../v1/models", 404),
        // Out of the path of the upstream's URL.
        ("/%2e%2e/abridge/status", 400),
        ("/v1/../abridge/status", 400),
        ("/v1/x/..%2f../abridge/status", 400),
        ("http://elsewhere.test/abridge/status", 403),
        ("http://localhost@elsewhere.test/abridge/status", 403),
    ] {
        proxied.check(&request("GET", target, &["connection: close"]), Refused(status)).await;
    }
    for (target, got) in [
        ("/abridge%2fstatus", "/v1/abridge%2fstatus"),
        ("/%61bridge/status", "/v1/%61bridge/status"),
        ("/ABRIDGE/status", "/v1/ABRIDGE/status"),
        ("/abridge;/status", "/v1/abridge;/status"),
        ("//abridge/status", "/v1//abridge/status"),
        ("/./abridge/status", "/v1/./abridge/status"),
        ("//elsewhere.test/v1/models", "/v1//elsewhere.test/v1/models"),
        ("//v1/chat/completions", "/v1//v1/chat/completions"),
        ("/v1/chat/completions/../models", "/v1/chat/completions/../models"),
        ("/v1%2fchat%2fcompletions", "/v1/v1%2fchat%2fcompletions"),
        ("/v1/%0d%0ax-a:%201/%00", "/v1/%0d%0ax-a:%201/%00"),
        ("/v1/models?/abridge/status", "/v1/models?/abridge/status"),
    ] {
        let asked = proxied.check(&post(target, &[], "hello"), Passes("hello")).await.unwrap();
        assert_eq!(asked.head.start, format!("POST {got} HTTP/1.1"));
    }
}

// === bodies that no one reads to their end ===

#[tokio::test]
async fn the_rest_of_a_refused_body_is_not_read_as_a_request() {
    let upstream = Summarizer::playing([]).await;
    let abridge = Setup::to(upstream.url()).with("server.max_body = \"1KiB\"").start().await;
    let proxied = Proxied { upstream, abridge };
    let body = HIDDEN.repeat(100);
    let chunked = request("POST", TARGETS[0], &["transfer-encoding: chunked"]);
    let chunks = [chunked, crate::support::wire::framed(&body), b"0\r\n\r\n".to_vec()].concat();
    for request in [chat(&body), chunks] {
        let mut client = proxied.abridge.connect().await;
        client.send(&request).await;
        refused(&client.reply().await, 413, "body_too_large");
        // Everything that is after it is answered, or the connection ends; everything that is in it is never asked.
        client.try_send(crate::support::request("GET", "/v1/behind", &["connection: close"])).await.ok();
        client.rest().await;
    }
    let lines: Vec<_> = proxied.upstream.chats().into_iter().map(|asked| asked.head.start).collect();
    assert!(lines.iter().all(|line| line == "GET /v1/behind HTTP/1.1"), "{lines:?}");
}

#[tokio::test]
async fn an_upload_that_breaks_off_takes_its_connection_along() {
    let mut scene = Scene::new().await;
    let mut call = scene.refused_upload().await;
    // Who answered is asked nothing more on that connection: it would be read as the rest of the upload.
    let mut other = scene.abridge.connect().await;
    other.send(request("GET", "/v1/models", &[])).await;
    let mut next = scene.upstream.request().await;
    assert_eq!(next.head.target(), "/v1/models");
    next.json("{}").await;
    assert_eq!(other.reply().await.body, "{}");
    drop(scene.client);
    let (bytes, _) = call.rest().await;
    assert_eq!(bytes, "begin");
}

// === settings ===

#[tokio::test]
async fn a_header_of_the_settings_is_one_line() {
    for lines in [
        "upstream.headers = { x-a = \"secret\\r\\nx-b: 2\" }",
        "upstream.headers = { x-a = \"secret\\nx-b: 2\" }",
        "upstream.headers = { x-a = \"secret\\rx-b: 2\" }",
        "upstream.headers = { x-a = \"secret\\u0000\" }",
        "upstream.headers = { \"x-a: 1\\r\\nx-b\" = \"secret\" }",
        "upstream.headers = { \"x a\" = \"secret\" }",
        "upstream.headers = { content-length = \"5\" }",
        "upstream.headers = { transfer-encoding = \"chunked\" }",
        "upstream.api_key_env = \"KEY\"",
    ] {
        let setup = Setup::to("http://localhost:1/v1").with(lines).environment("KEY", "secret\r\nx-b: 2");
        let failed = setup.fail().await;
        assert_eq!(failed.status.code(), Some(78), "{lines}: {failed:?}");
        assert!(!failed.stderr.contains("secret"), "{lines}: {failed:?}");
    }
}

#[tokio::test]
async fn data_behind_connection_close_is_not_read() {
    // Everything that comes behind `connection: close` is read by no one.
    let proxied = Proxied::new().await;
    let mut client = proxied.abridge.connect().await;
    client.send([request("GET", "/v1/last", &["connection: close"]), HIDDEN.as_bytes().to_vec()].concat()).await;
    assert_eq!(client.reply().await.head.status(), 200);
    assert_eq!(client.rest().await.0, "");
    let lines: Vec<_> = proxied.upstream.chats().into_iter().map(|asked| asked.head.start).collect();
    assert_eq!(lines, ["GET /v1/last HTTP/1.1"]);
}
