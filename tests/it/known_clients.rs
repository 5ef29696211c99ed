//! `[clients]`: known clients alone may use abridge, each under its name, and no token of theirs goes to the upstream.

use crate::support::bodies::DANGLING;
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::tls::Certificate;
use crate::support::{Abridge, OPERATOR, Setup, Upstream, Wire, converse, post, request};

/// The hashes of `token-of-ann` and `token-of-bob`.
const ANN_HASH: &str = "a3656c50c59b9dd17e7b7539929effb20169a63d77b0453e14162984b611c5f8";
const BOB_HASH: &str = "800480042268218663feef3ea54d81ed3f976c98c38d5fd7afbe22810ec16334";

const ANN: &str = "authorization: Bearer token-of-ann";
const BOB: &str = "x-api-key: token-of-bob";
/// Beside a key for the upstream.
const ANN_BESIDE: &str = "x-abridge-client: token-of-ann\r\nauthorization: Bearer sk-of-the-upstream";

fn setup(upstream: &Upstream) -> Setup {
    let tokens = format!("clients.tokens = {{ ann = \"{ANN_HASH}\", bob = \"{BOB_HASH}\" }}");
    Setup::before(upstream).with(tokens).with("log.level = \"debug\"")
}

async fn metric(abridge: &Abridge, sample: &str) -> bool {
    let mut client = abridge.connect().await;
    client.send(request("GET", "/abridge/metrics", &["connection: close"])).await;
    let text = String::from_utf8(client.reply().await.body.to_vec()).unwrap();
    text.lines().any(|line| line == sample)
}

#[tokio::test]
async fn unknown_clients_are_refused_on_every_path_to_the_upstream() {
    let mut upstream = Upstream::start().await;
    let abridge = setup(&upstream).start().await;
    for target in [
        "/v1/chat/completions",
        "/v1/messages/count_tokens",
        "/v1/responses/compact",
        "/v1/files",
        "/abridge/summarize",
    ] {
        for shown in [
            "x-none: 1",
            "authorization: Bearer sk-1",
            "x-abridge-client: ann",
            "x-abridge-client: token-of-cid",
            OPERATOR,
        ] {
            let mut client = abridge.connect().await;
            client.send(post(target, &[shown], DANGLING)).await;
            let reply = client.reply().await;
            let said = String::from_utf8_lossy(&reply.body).into_owned();
            assert_eq!(
                (reply.head.status(), reply.head.get("x-abridge-error")),
                (401, Some("unknown_client")),
                "{said}"
            );
            assert!(said.contains("[clients]"), "{said}");
            assert_eq!(reply.head.get("www-authenticate"), Some("Bearer"), "{target}");
        }
    }
    upstream.no_more();
}

#[tokio::test]
async fn a_known_client_has_a_name_in_log_and_metrics_and_its_token_stays_here() {
    let mut upstream = Upstream::start().await;
    let abridge = setup(&upstream).start().await;
    for (shown, name, passes) in
        [(ANN, "ann", None), (BOB, "bob", None), (ANN_BESIDE, "ann", Some("Bearer sk-of-the-upstream"))]
    {
        let from = abridge.stderr().len();
        let mut client = abridge.connect().await;
        client.send(post("/v1/chat/completions", &[shown], DANGLING)).await;
        let mut call = upstream.request().await;
        call.bytes().await;
        let head = String::from_utf8_lossy(&call.head.raw).to_lowercase();
        assert!(!head.contains("token-of") && !head.contains("x-abridge"), "{head}");
        assert_eq!(call.head.get("authorization"), passes);
        call.json("{}").await;
        assert_eq!(client.reply().await.head.status(), 200);
        let line = abridge.says("patched 1", from).await;
        assert!(line.contains(&format!("client=\"{name}\"")), "{line}");
    }
    assert!(metric(&abridge, "abridge_client_requests_total{client=\"ann\"} 2").await);
    assert!(metric(&abridge, "abridge_client_requests_total{client=\"bob\"} 1").await);
    assert!(!abridge.stderr().iter().any(|line| line.contains("token-of")));
}

#[tokio::test]
async fn a_client_is_one_caller_whichever_token_and_key_it_shows_and_reads_its_own_texts_alone() {
    let mut upstream = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clients");
    std::fs::write(&file, format!("# one client\nann {ANN_HASH}\n")).unwrap();
    let with_file = format!("clients.file = \"{}\"", file.display());
    let abridge = Setup::before(&upstream).with(with_file).start().await;
    let (at, body) = (abridge.address(), with_results(&[long_text(1)]));
    let handles = recalls(&converse(at, &mut upstream, ANN, &body).await);
    assert_eq!(recalls(&converse(at, &mut upstream, ANN_BESIDE, &body).await), handles);
    // The file names a second client, and a new token for the first one.
    let new = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"; // of test
    std::fs::write(&file, format!("ann {new}\nbob {BOB_HASH}\n")).unwrap();
    let from = abridge.stderr().len();
    abridge.signal("HUP");
    abridge.says("settings reloaded", from).await;
    let get = async |shown: &str| {
        let mut client = Wire::connect(at).await;
        client.send(request("GET", &handles[0], &[shown])).await;
        client.reply().await.head.status()
    };
    let renewed = "authorization: Bearer test";
    assert_eq!([get(renewed).await, get(BOB).await, get(ANN).await, get("x-none: 1").await], [200, 404, 404, 401]);
}

#[tokio::test]
async fn a_certificate_is_a_client_too() {
    let (server, ann, stranger) = (Certificate::new(), Certificate::new(), Certificate::new());
    let mut upstream = Upstream::start().await;
    let lines = format!("{}\ntls.client_ca = \"{}\"", server.lines(), ann.cert.display());
    let tokens = format!("clients.tokens = {{ ann = \"{}\" }}", ann.fingerprint());
    let abridge = Setup::before(&upstream).with(lines).with(tokens).start().await;
    let ask = async |client: Option<&Certificate>| {
        let socket = server.connect_as(abridge.address(), &["http/1.1"], client).await.ok()?;
        let mut wire = Wire::new(socket);
        wire.try_send(post("/v1/chat/completions", &["connection: close"], DANGLING)).await.ok()?;
        Some(wire)
    };
    let mut client = ask(Some(&ann)).await.unwrap();
    let mut call = upstream.request().await;
    call.bytes().await;
    call.json("{}").await;
    assert_eq!(client.reply().await.head.status(), 200);
    let line = abridge.says("patched 1", 0).await;
    assert!(line.contains("client=\"ann\""), "{line}");
    // In TLS 1.3 a client learns that it is refused when it reads.
    for stranger in [None, Some(&stranger)] {
        if let Some(mut client) = ask(stranger).await {
            assert_eq!(client.rest().await.0, "");
        }
    }
    upstream.no_more();
}

#[tokio::test]
async fn what_is_no_client_stops_the_start_and_is_not_shown() {
    for (lines, why) in [
        ("clients.tokens = { ann = \"secret-token\" }", "the hash of client \"ann\""),
        ("clients.tokens = { \"a b\" = \"\" }", "\"a b\" is not the name of a client"),
        ("clients.file = \"/nowhere/clients\"", "/nowhere/clients cannot be read"),
        ("clients.tokens = { ann = \"\" }", "clients.tokens: the hash of client \"ann\""),
    ] {
        let failed = Setup::to("http://localhost:1/v1").with(lines).fail().await;
        assert_eq!(failed.status.code(), Some(78), "{lines}: {failed:?}");
        assert!(failed.stderr.contains(why) && !failed.stderr.contains("secret-token"), "{failed:?}");
    }
}
