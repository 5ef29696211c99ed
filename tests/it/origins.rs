//! Pages in a browser on this machine, and what is the upstream's: under a foreign name they get nothing, and from a foreign
//! origin nothing that abridge's own key would pay for. Who is not a browser is not asked.

use crate::failures::refused;
use crate::support::bodies::{DANGLING, PLAIN};
use crate::support::{Abridge, Setup, Upstream};

const FOREIGN: &str = "host: evil.example:8787";
const LOCAL: &str = "host: localhost:8787";

/// Asks with these lines; the status, and what was said if it was refused.
async fn asked(abridge: &Abridge, upstream: &mut Upstream, start: &str, fields: &[&str], body: &str) -> (u16, String) {
    let mut client = abridge.connect().await;
    let head = format!("{start} HTTP/1.1\r\n{}\r\ncontent-length: {}\r\n\r\n{body}", fields.join("\r\n"), body.len());
    client.send(head).await;
    let reply = tokio::select! {
        mut call = upstream.request() => {
            call.bytes().await;
            call.answer("200 OK", &["connection: close"], "{}").await;
            client.reply().await
        }
        head = client.head() => {
            upstream.no_more();
            let body = client.body(&head).await;
            crate::support::wire::Reply { head, body: body.bytes, trailers: Vec::new() }
        }
    };
    let status = reply.head.status();
    (status, if status == 200 { String::new() } else { refused(&reply, status, "foreign_page") })
}

/// A request that is edited, one that is not, and what a browser sends before it asks.
const REQUESTS: [(&str, &str); 5] = [
    ("POST /v1/chat/completions", DANGLING),
    ("POST /v1/chat/completions", PLAIN),
    ("POST /v1/files", "hello"),
    ("GET /v1/models", ""),
    ("OPTIONS /v1/chat/completions", ""),
];

#[tokio::test]
async fn a_request_with_a_foreign_host_is_refused_for_browsers_only() {
    let mut upstream = Upstream::start().await;
    for key in ["", "upstream.api_key_env = \"KEY\""] {
        let abridge = Setup::before(&upstream).with(key).environment("KEY", "sk-own").start().await;
        for (start, body) in REQUESTS {
            for mark in ["origin: http://evil.example:8787", "sec-fetch-site: same-origin", "origin: null"] {
                let (status, said) = asked(&abridge, &mut upstream, start, &[FOREIGN, mark], body).await;
                assert_eq!(status, 403, "{start}, {mark}");
                assert!(said.contains("admin.hosts") && said.contains("loopback"), "{said}");
            }
            for agent in ["user-agent: agent", "sec-fetch-mode: cors", "referer: http://evil.example/"] {
                let (status, _) = asked(&abridge, &mut upstream, start, &[FOREIGN, agent], body).await;
                assert_eq!(status, 200, "{start}, {agent}");
            }
        }
    }
}

#[tokio::test]
async fn requests_of_foreign_origins_are_refused_if_abridge_has_its_own_key() {
    let mut upstream = Upstream::start().await;
    let none = Setup::before(&upstream).start().await;
    let own = "upstream.api_key_env = \"KEY\"";
    let header = "upstream.headers = { api-key = \"sk-own\" }";
    let [team, cookie] = ["x-team", "cookie"].map(|name| format!("upstream.headers = {{ {name} = \"a\" }}"));
    let model = "summarize.model = { base_url = \"http://localhost:1/v1\", model = \"m\", api_key_env = \"KEY\" }";
    let mut keyed = Vec::new();
    for line in [own, header, model, &team, &cookie] {
        keyed.push(Setup::before(&upstream).with(line).environment("KEY", "sk-own").start().await);
    }
    for (start, body) in REQUESTS {
        for page in [&["origin: https://evil.example", "sec-fetch-site: cross-site"][..], &["origin: null"]] {
            let fields = [&[LOCAL, "content-type: text/plain"], page].concat();
            for abridge in &keyed {
                let (status, said) = asked(abridge, &mut upstream, start, &fields, body).await;
                assert_eq!(status, 403, "{start}, {page:?}");
                assert!(said.contains("admin.origins") && said.contains("key"), "{said}");
            }
            assert_eq!(asked(&none, &mut upstream, start, &fields, body).await.0, 200, "it has to bring a key");
        }
        // What people run on their own machine goes on.
        for page in [
            &["origin: http://localhost:3000", "sec-fetch-site: same-site"][..],
            &["origin: http://127.0.0.1:5173", "sec-fetch-site: cross-site"],
            &["origin: vscode-webview://1a2b"],
        ] {
            let fields = [&[LOCAL], page].concat();
            assert_eq!(asked(&keyed[0], &mut upstream, start, &fields, body).await.0, 200, "{start}, {page:?}");
        }
    }
}

#[tokio::test]
async fn hosts_and_origins_can_be_configured_and_reloaded() {
    let mut upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).with("upstream.api_key_env = \"KEY\"").environment("KEY", "sk-own");
    let abridge = setup.start().await;
    let by_name = ["host: box.lan:8787", "origin: http://box.lan:3000"];
    let by_origin = [LOCAL, "origin: https://chat.example"];
    for fields in [by_name, by_origin] {
        assert_eq!(asked(&abridge, &mut upstream, "POST /v1/chat/completions", &fields, PLAIN).await.0, 403);
    }
    abridge.reload_with("admin.hosts = [\"box.lan\"]\nadmin.origins = [\"https://chat.example\"]");
    abridge.says("settings reloaded", 0).await;
    for fields in [by_name, by_origin] {
        assert_eq!(asked(&abridge, &mut upstream, "POST /v1/chat/completions", &fields, PLAIN).await.0, 200);
    }
}

#[tokio::test]
async fn unix_sockets_and_network_addresses_spend_no_key_for_a_page_either() {
    let mut upstream = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("socket").display());
    for listen in [&*socket, "0.0.0.0:0"] {
        for key in ["", "upstream.api_key_env = \"KEY\"\nadmin.hosts = [\"box.lan\"]"] {
            let setup = Setup::before(&upstream).with(key).environment("KEY", "sk-own").listen(&[listen]);
            let abridge = setup.start().await;
            let refused = if key.is_empty() { 200 } else { 403 };
            let mut ask = async |fields: &[&str]| asked(&abridge, &mut upstream, "POST /v1/files", fields, "x").await.0;
            assert_eq!(ask(&["host: abridge.example", "origin: https://evil.example"]).await, refused, "{listen}");
            // A proxy in front has written another host.
            assert_eq!(ask(&["host: 127.0.0.1:8787", "origin: https://evil.example"]).await, refused, "{listen}");
            assert_eq!(ask(&["host: box.lan", "origin: http://box.lan"]).await, 200, "{listen}");
            assert_eq!(ask(&["host: any.example"]).await, 200, "no browser: {listen}");
        }
    }
}

#[tokio::test]
async fn an_abridge_that_spends_its_key_for_anybody_says_so_at_start_and_in_doctor() {
    let upstream = Upstream::start().await;
    let key = "upstream.api_key_env = \"KEY\"";
    let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"; // of test
    let clients = format!("clients.tokens = {{ ann = \"{hash}\" }}");
    for (listen, lines, is_open) in [
        ("0.0.0.0:0", vec![key], true),
        ("0.0.0.0:0", vec!["upstream.headers = { cookie = \"a\" }"], true),
        ("0.0.0.0:0", vec![key, &clients], false),
        ("0.0.0.0:0", vec![], false),
        ("127.0.0.1:0", vec![key], false),
    ] {
        let setup = lines.iter().fold(Setup::before(&upstream), Setup::with);
        let abridge = setup.environment("KEY", "sk-own").listen(&[listen]).start().await;
        abridge.says("abridge: page: ", 0).await;
        let said = abridge.stderr().iter().any(|line| line.contains("every client may use it"));
        assert_eq!(said, is_open, "{listen} {lines:?}");
        let mut doctor = std::process::Command::new(crate::support::binary());
        doctor.args(["doctor", "--config"]).arg(abridge.config()).env("KEY", "sk-own");
        let found = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
        assert_eq!(found.contains("fault clients     abridge is an open relay"), is_open, "{found}");
    }
}

#[tokio::test]
async fn admin_origins_must_be_valid_origins() {
    for wrong in ["chat.example", "https://chat.example/", "https://", "ftp://chat.example", "*", "https://a\\r\\nb"] {
        let failed = Setup::to("http://localhost:1/v1").with(format!("admin.origins = [\"{wrong}\"]")).fail().await;
        assert_eq!(failed.status.code(), Some(78), "{wrong}: {failed:?}");
        assert!(failed.stderr.contains("admin.origins") && failed.stderr.contains("allowed:"), "{failed:?}");
    }
}
