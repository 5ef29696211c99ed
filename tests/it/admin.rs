//! Who may ask what below `/abridge/`: by address, token, name, origin.

use std::net::SocketAddr;

use crate::events::{EventListener, edited};
use crate::support::bodies::DANGLING;
use crate::support::wire::Reply;
use crate::support::{Abridge, OPERATOR, Scene, Setup, Upstream, Wire, request};

const TOKEN: &str = "a-token-of-operators";
const RIGHT: &str = "authorization: Bearer a-token-of-operators";
const UNKNOWN: &str = "/abridge/recall/00000000000000000000000000";

/// Paths that are for operators, whether there is something yet or not.
const OPERATORS: [&str; 6] = [
    "/abridge/status",
    "/abridge/requests?after=0",
    "/abridge/requests/req_1",
    "/abridge/payloads?limit=1",
    "/abridge/of-tomorrow",
    "/abridge/recall/",
];

/// Asks with these lines and no others, not even `host`.
async fn ask(at: SocketAddr, start: &str, fields: &[&str]) -> Reply {
    let mut client = Wire::connect(at).await;
    client.send(format!("{start} HTTP/1.1\r\n{}\r\n\r\n", fields.join("\r\n"))).await;
    let reply = client.reply().await;
    for (name, value) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(reply.head.get(name), Some(value), "{start}");
    }
    assert!(reply.head.get("content-security-policy").is_some_and(|policy| policy.contains("frame-ancestors 'none'")));
    assert!(!reply.head.names().iter().any(|name| name.starts_with("access-control-")), "{start}");
    reply
}

/// Asks for a path under the right name, with one more line.
async fn get(at: SocketAddr, path: &str, field: &str) -> Reply {
    ask(at, &format!("GET {path}"), &[&format!("host: {at}"), field]).await
}

fn is_let_in(reply: &Reply) -> bool {
    !matches!(reply.head.status(), 401 | 403)
}

fn check_refused(reply: &Reply, status: u16, why: &str) {
    let said = std::str::from_utf8(&reply.body).unwrap();
    assert_eq!(reply.head.status(), status, "{said}");
    assert!(said.contains(why) && said.lines().count() == 1, "{said}");
}

#[tokio::test]
async fn a_browser_that_asks_for_the_root_gets_the_page_and_others_the_upstream() {
    let mut scene = Scene::new().await;
    let at = scene.abridge.address();
    let browser = get(at, "/", "accept: text/html,application/xhtml+xml,*/*;q=0.8").await;
    assert_eq!((browser.head.status(), browser.head.get("location")), (302, Some("/abridge/")));
    for (method, accept) in [("GET", "accept: */*"), ("HEAD", "accept: text/html"), ("POST", "accept: text/html")] {
        scene.client.send(request(method, "/", &[accept, "content-length: 0"])).await;
        let mut call = scene.upstream.request().await;
        assert_eq!(call.head.start, format!("{method} /v1/ HTTP/1.1"));
        call.answer("200 OK", &["connection: close"], if method == "HEAD" { "" } else { "it runs" }).await;
        scene.client = scene.abridge.connect().await;
    }
}

/// Where operators are served, as the process says.
async fn operators_of(abridge: &Abridge) -> SocketAddr {
    let line = abridge.says("abridge: operators at ", 0).await;
    let address = line.split_once("http://").unwrap().1.split_once("/abridge/").unwrap().0;
    let mut address: SocketAddr = address.parse().unwrap();
    if address.ip().is_unspecified() {
        address.set_ip([127, 0, 0, 1].into());
    }
    address
}

fn with_token(setup: Setup) -> Setup {
    setup.with("admin.token_env = \"OPERATORS\"").environment("OPERATORS", TOKEN)
}

// === addresses ===

#[tokio::test]
async fn operators_show_a_token_on_a_loopback_address_too() {
    let upstream = Upstream::start().await;
    let open = Setup::before(&upstream).start().await;
    let closed = with_token(Setup::before(&upstream)).start().await;
    for path in OPERATORS {
        for (abridge, right) in [(&open, OPERATOR), (&closed, RIGHT)] {
            assert!(is_let_in(&get(abridge.address(), path, right).await), "{path}");
            let reply = get(abridge.address(), path, "x-none: 1").await;
            check_refused(&reply, 401, "admin.token_env");
            assert_eq!(reply.head.get("www-authenticate"), Some("Bearer"));
        }
    }
    let host = format!("host: {}", closed.address());
    for wrong in ["authorization: Bearer a-token-of-operator", "authorization: Basic YTpi", OPERATOR] {
        check_refused(&get(closed.address(), OPERATORS[0], wrong).await, 401, "admin.token_env");
    }
    for path in ["/abridge/", "/abridge/metrics"] {
        assert!(is_let_in(&get(closed.address(), path, "x-none: 1").await), "{path}");
    }
    for proxied in ["x-forwarded-for: 10.0.0.1", "forwarded: for=10.0.0.1", "via: 1.1 a", "x-real-ip: 10.0.0.1"] {
        check_refused(&get(closed.address(), "/abridge/metrics", proxied).await, 403, "operators' token");
        let shown = [&*host, proxied, RIGHT];
        assert!(is_let_in(&ask(closed.address(), "GET /abridge/metrics", &shown).await), "{proxied}");
    }
}

#[tokio::test]
async fn the_token_is_made_at_the_first_start_kept_for_its_user_and_in_the_url_of_the_page() {
    let upstream = Upstream::start().await;
    let state = tempfile::tempdir().unwrap();
    let start = || Setup::before(&upstream).environment("XDG_STATE_HOME", state.path().display().to_string()).start();
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let abridge = start().await;
        let line = abridge.says("abridge: page: ", 0).await;
        let (page, token) = line.split_once("#token=").unwrap();
        assert!(page.ends_with(&format!("http://{}/abridge/", abridge.address())), "{page}");
        let shown = format!("authorization: Bearer {token}");
        assert!(is_let_in(&get(abridge.address(), "/abridge/status", &shown).await));
        // Commands of this user find it.
        let status = |state: &std::path::Path| {
            let mut command = std::process::Command::new(crate::support::binary());
            command.args(["status", "--at", &format!("http://{}", abridge.address())]).env("XDG_STATE_HOME", state);
            command.env_remove("ABRIDGE_ADMIN_TOKEN").current_dir("/").output().unwrap()
        };
        assert!(status(state.path()).status.success());
        let other = status(&state.path().join("of-another-user"));
        let said = String::from_utf8(other.stderr).unwrap();
        assert!(other.status.code() == Some(1) && said.contains("401") && said.contains("operator-token"), "{said}");
        tokens.push(token.to_owned());
        abridge.signal("TERM");
        assert!(abridge.exit().await.success());
    }
    assert_eq!(tokens[0], tokens[1]);
    let file = state.path().join("abridge/operator-token");
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), tokens[0]);
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&file.metadata().unwrap()) & 0o777, 0o600);
}

#[tokio::test]
async fn wrong_tokens_are_slowed_down_and_logged_once() {
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).start().await;
    let (at, before) = (abridge.address(), std::time::Instant::now());
    let wrong = "authorization: Bearer guess-of-a-stranger";
    let (first, second) = tokio::join!(get(at, "/abridge/status", wrong), get(at, "/abridge/requests", wrong));
    check_refused(&first, 401, "operators");
    check_refused(&second, 401, "operators");
    assert!(before.elapsed() >= std::time::Duration::from_secs(2), "one after the other");
    let said = abridge.stderr();
    let lines: Vec<_> = said.iter().filter(|line| line.contains("a wrong token was shown")).collect();
    assert!(lines.len() == 1 && lines[0].contains("127.0.0.1") && !lines[0].contains("guess"), "{lines:?}");
    // The right one does not wait behind wrong ones, of which only so many wait.
    let mut waiting = Vec::new();
    for _ in 0..17 {
        let mut client = abridge.connect().await;
        client.send(request("GET", "/abridge/status", &[wrong])).await;
        waiting.push(client);
    }
    let mut refused = Vec::new();
    for client in &mut waiting {
        refused.push(client.reply());
    }
    let at_once =
        crate::support::within("429", futures_util::future::select_all(refused.into_iter().map(Box::pin))).await;
    assert_eq!(at_once.0.head.status(), 429);
    assert!(is_let_in(&get(at, "/abridge/status", OPERATOR).await));
}

#[tokio::test]
async fn an_address_that_others_reach_serves_clients_and_sends_operators_elsewhere() {
    let upstream = Upstream::start().await;
    let abridge = with_token(Setup::before(&upstream)).listen(&["0.0.0.0:0"]).start().await;
    let at = SocketAddr::from(([127, 0, 0, 1], abridge.address().port()));
    for path in OPERATORS.into_iter().chain(["/abridge", "/abridge/"]) {
        for field in ["x-none: 1", RIGHT] {
            check_refused(&get(at, path, field).await, 403, "[admin] listen");
        }
    }
    assert_eq!(get(at, "/abridge/healthz", "x-none: 1").await.head.status(), 200);
    assert_eq!(get(at, "/abridge/readyz", "x-none: 1").await.head.status(), 200);
    assert_eq!(get(at, UNKNOWN, "authorization: Bearer sk-ann").await.head.status(), 404);
    // No name proves anything there.
    assert_eq!(ask(at, "GET /abridge/healthz", &["host: proxy.internal"]).await.head.status(), 200);
}

#[tokio::test]
async fn the_address_of_operators_serves_nothing_else_and_nothing_without_the_token() {
    let mut upstream = Upstream::start().await;
    let setup = with_token(Setup::before(&upstream)).listen(&["0.0.0.0:0"]);
    let abridge = setup.with("admin.listen = \"0.0.0.0:0\"").start().await;
    let at = operators_of(&abridge).await;
    for path in OPERATORS.into_iter().chain([UNKNOWN]) {
        assert!(is_let_in(&get(at, path, RIGHT).await), "{path}");
        for wrong in ["x-none: 1", "authorization: Bearer", "authorization: Bearer a-token-of-operators2"] {
            check_refused(&get(at, path, wrong).await, 401, "admin.token_env");
        }
    }
    // A browser opens the page before it has a token, and a probe has none at all.
    for path in ["/abridge/", "/abridge/healthz", "/abridge/readyz"] {
        assert!(is_let_in(&get(at, path, "x-none: 1").await), "{path}");
    }
    for path in ["/", "/v1/models", "/v1/chat/completions", "/abridged"] {
        check_refused(&get(at, path, RIGHT).await, 404, "server.listen");
    }
    // The token must not go to the upstream in the place of a key.
    let post = [&format!("host: {at}"), RIGHT, "content-length: 0"];
    check_refused(&ask(at, "POST /abridge/summarize", &post).await, 404, "server.listen");
    check_refused(&ask(at, "POST /v1/chat/completions", &post).await, 404, "server.listen");
    upstream.no_more();
}

#[tokio::test]
async fn operators_need_the_token_on_a_loopback_address_of_their_own() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).listen(&["0.0.0.0:0"]).with("admin.listen = \"127.0.0.1:0\"");
    let abridge = setup.start().await;
    let at = operators_of(&abridge).await;
    assert!(is_let_in(&get(at, "/abridge/status", OPERATOR).await));
    check_refused(&get(at, "/abridge/status", "x-none: 1").await, 401, "operators");
    check_refused(&ask(at, "GET /abridge/status", &["host: evil.example"]).await, 403, "admin.hosts");
}

#[tokio::test]
async fn operators_are_served_over_ipv6_and_sockets() {
    let upstream = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("abridge.sock").display());
    let abridge = Setup::before(&upstream).listen(&["[::1]:0", &socket]).start().await;
    assert!(is_let_in(&get(abridge.address(), "/abridge/status", OPERATOR).await));
    check_refused(&ask(abridge.address(), "GET /abridge/status", &["host: [::2]", OPERATOR]).await, 403, "admin.hosts");
    let mut client = abridge.connect_to(1).await;
    for (field, status) in [(OPERATOR, 200), ("x-none: 1", 401)] {
        client.send(format!("GET /abridge/status HTTP/1.1\r\nhost: whatever\r\n{field}\r\n\r\n")).await;
        assert_eq!(client.reply().await.head.status(), status);
    }
}

#[tokio::test]
async fn operator_paths_on_a_network_address_without_a_token_stop_the_start() {
    let open = Setup::to("http://h/v1").with("admin.listen = \"0.0.0.0:0\"").fail().await;
    assert_eq!(open.status.code(), Some(78), "{open:?}");
    assert!(open.stderr.contains("proxy.toml:4") && open.stderr.contains("admin.token_env = "), "{open:?}");
    let short = Setup::to("http://h/v1").with("admin.token_env = \"T\"").environment("T", "short").fail().await;
    assert_eq!(short.status.code(), Some(78), "{short:?}");
    assert!(short.stderr.contains("T: shorter than 16") && !short.stderr.contains("\"short\""), "{short:?}");
    let unset = Setup::to("http://h/v1").with("admin.token_env = \"T\"").fail().await;
    assert!(unset.stderr.contains("T: not set; admin.token_env names it"), "{unset:?}");
}

// === names and origins ===

#[tokio::test]
async fn foreign_names_and_origins_are_refused_on_every_path() {
    let mut upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).with("recall.public_url = \"http://Docker.Internal:1/x\"");
    let abridge = setup.with("admin.hosts = [\"box.lan\"]").start().await;
    let (at, port) = (abridge.address(), abridge.address().port());
    let body = format!("content-length: {}\r\n\r\n{DANGLING}", DANGLING.len());
    let asked = OPERATORS.into_iter().chain(["/abridge/", "/abridge/healthz", "/abridge/events", UNKNOWN]);
    for start in asked.map(|path| format!("GET {path}")).chain(["POST /abridge/summarize".to_owned()]) {
        let behind = if start.starts_with("POST") { body.as_str() } else { "x-none: 1" };
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.1", "0.0.0.0", ""] {
            let host = format!("host: {host}:{port}");
            check_refused(&ask(at, &start, &[&host, behind]).await, 403, "admin.hosts");
        }
        let own = format!("host: localhost:{port}");
        for page in [
            "origin: http://evil.example",
            "origin: null",
            "origin: http://localhost:1",
            "sec-fetch-site: cross-site",
            "sec-fetch-site: same-site",
        ] {
            check_refused(&ask(at, &start, &[&own, page, behind]).await, 403, "another origin");
        }
    }
    for host in ["LOCALHOST", "localhost.", "127.0.0.1", "127.0.0.2", "[::1]", "box.lan", "Box.LAN.", "docker.internal"]
    {
        for with_port in [host.to_owned(), format!("{host}:{port}")] {
            let reply = ask(at, "GET /abridge/healthz", &[&format!("host: {with_port}")]).await;
            assert_eq!(reply.head.status(), 200, "{with_port}");
        }
    }
    let page = [
        format!("host: localhost:{port}"),
        format!("origin: http://localhost:{port}"),
        "sec-fetch-site: same-origin".to_owned(),
    ];
    let page: Vec<_> = page.iter().map(String::as_str).collect();
    assert_eq!(ask(at, "GET /abridge/healthz", &page).await.head.status(), 200);
    // Another site may ask what CORS would allow it: nothing.
    let preflight = ask(
        at,
        "OPTIONS /abridge/status",
        &[&format!("host: localhost:{port}"), "origin: http://evil.example", "access-control-request-method: GET"],
    )
    .await;
    assert_eq!(preflight.head.status(), 403);
    upstream.no_more();
}

#[tokio::test]
async fn own_paths_are_read_only_and_unknown_ones_are_not_found() {
    let mut upstream = Upstream::start().await;
    let abridge = with_token(Setup::before(&upstream)).start().await;
    let fields = [&format!("host: {}", abridge.address()), RIGHT, "content-length: 0"];
    for (start, status) in [
        ("GET /abridge/", 200),
        ("GET /abridge", 308),
        ("GET /abridge/else", 404),
        ("POST /abridge/else", 404),
        ("POST /abridge/healthz", 405),
        ("POST /abridge/status", 405),
        ("GET /abridge/backup", 405),
    ] {
        assert_eq!(ask(abridge.address(), start, &fields).await.head.status(), status, "{start}");
    }
    upstream.no_more();
}

#[tokio::test]
async fn unknown_and_foreign_handles_get_the_same_answer() {
    let upstream = Upstream::start().await;
    let abridge = Abridge::before(&upstream).await;
    let unknown = get(abridge.address(), UNKNOWN, "x-none: 1").await;
    assert_eq!(unknown.head.status(), 404);
    // Of another store, not a handle, in the wrong case, too long, and the path of a file.
    for handle in
        ["01j8z4k0v6m2n9x7q3r5t1w8ye", "x", "01J8Z4K0V6M2N9X7Q3R5T1W8YE", &"0".repeat(200), "../../etc/passwd"]
    {
        let reply = get(abridge.address(), &format!("/abridge/recall/{handle}"), "x-none: 1").await;
        assert_eq!((&reply.head.raw, &reply.body), (&unknown.head.raw, &unknown.body), "{handle}");
    }
}

#[tokio::test]
async fn the_token_opens_all_events_and_without_it_a_loopback_address_gets_none() {
    let upstream = Upstream::start().await;
    let abridge = with_token(Setup::before(&upstream)).start().await;
    let host = format!("host: {}", abridge.address());
    check_refused(&ask(abridge.address(), "GET /abridge/events", &[&host]).await, 401, "operators' token");
    let client = abridge.connect().await;
    let mut scene = Scene { upstream, abridge, client };
    let mut listener = EventListener::with(&scene.abridge, &[RIGHT]).await;
    for caller in ["authorization: Bearer sk-one", "api-key: another"] {
        let reply = edited(&mut scene, &[caller]).await;
        for _ in 0..2 {
            let event = listener.next().await.expect("an event");
            assert!(event.json.contains(reply.head.get("x-abridge-request-id").unwrap()), "{}", event.json);
        }
    }
}
