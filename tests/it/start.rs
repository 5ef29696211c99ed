//! The lines at start, and the question that the upstream is asked then.

use crate::support::bodies::PLAIN;
use crate::support::tls::Certificate;
use crate::support::{Abridge, ClosedPort, Setup, Upstream, chat};

/// Returns what it says of itself, without the log.
fn said(abridge: &Abridge) -> Vec<String> {
    abridge.stderr().into_iter().filter(|line| line.starts_with("abridge: ")).collect()
}

#[tokio::test]
async fn the_startup_output_has_at_most_eight_lines() {
    let mut upstream = Upstream::start().await;
    let setup =
        Setup::before(&upstream).probes().with("store.keep_for = \"3d\"").with("admin.listen = \"127.0.0.1:0\"");
    let setup = setup.with("models = [{ match = \"house-*\", context_window = 16000 }]");
    let abridge = setup.start().await;
    upstream.request().await.json("{\"data\":[]}").await;
    abridge.says("reachable", 0).await;
    let said = said(&abridge);
    assert_eq!(said.len(), 8, "{said:#?}");
    assert_eq!(abridge.stderr().len(), 8, "nothing is said twice: {:#?}", abridge.stderr());
    assert!(!said.concat().contains('\u{1b}'), "no colour where there is no terminal");
    let url = format!("http://{}", abridge.address());
    for (n, line) in [
        (0, format!("abridge: listening on {url}")),
        (2, format!("abridge: upstream: {}/v1/chat/completions", upstream.origin())),
        (6, format!("abridge: clients: export OPENAI_BASE_URL={url}/v1")),
        (7, format!("abridge: reachable: GET {}/v1/models answers 200", upstream.origin())),
    ] {
        assert_eq!(said[n], line);
    }
    for (n, part) in [
        (1, "abridge: operators at http://127.0.0.1:"),
        (
            3,
            "truncate_tool_results over 50,000 bytes; clear_tool_results from 80,000 tokens or 50 % of the window, sooner where a user's turn begins, if that pays; deduplicate_tool_results; summarize from 80 % of the window or 160,000 tokens where the window is unknown, by calls to the upstream with the client's key; request_prompt_cache",
        ),
        (4, "store.redb for 3d after their last use, 4GiB at most"),
        (5, "house-* = 16,000, well-known models by name, others as the upstream's /models says"),
    ] {
        assert!(said[n].contains(part), "{}", said[n]);
    }
}

#[tokio::test]
async fn startup_is_logged_as_events_in_json_and_hidden_by_a_quiet_level() {
    let upstream = Upstream::start().await;
    let json = Setup::before(&upstream).argument("--log-format=json").start().await;
    json.says("\"serving\"", 0).await;
    for line in &json.stderr()[1..] {
        assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    }
    let closed = ClosedPort::new();
    let quiet = Setup::to(closed.url()).probes().with("log.level = \"warn\"").start().await;
    let line = quiet.says("the upstream is not well", 0).await;
    assert!(line.contains("WARN") && line.contains("nothing listens at"), "{line}");
    assert_eq!(quiet.stderr().len(), 2, "{:?}", quiet.stderr());
}

#[tokio::test]
async fn the_startup_output_names_a_dry_run_and_a_disabled_store() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).argument("--dry-run").with("store.enabled = false");
    let abridge = setup.with("policy.edits = [\"patch_tool_calls\"]").start().await;
    abridge.says("edits: none, this is a dry run; it would patch_tool_calls", 0).await;
    abridge.says("originals: not stored", 0).await;
    let none = Setup::before(&upstream).with("policy.edits = []").start().await;
    none.says("edits: none: every request is forwarded unedited", 0).await;
}

// === the upstream ===

#[tokio::test]
async fn requests_pass_while_the_startup_probe_is_unanswered() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).probes().start().await;
    let probe = upstream.request().await;
    assert_eq!(probe.head.start, "GET /v1/models HTTP/1.1");
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    let mut call = upstream.request().await;
    assert_eq!(call.bytes().await, PLAIN);
    call.json("{}").await;
    assert_eq!(client.reply().await.head.status(), 200);
    let line = abridge.says("no answer from", 0).await;
    assert!(line.contains("within 2 s; fix: "), "{line}");
    drop(probe);
}

#[tokio::test]
async fn an_unanswered_probe_does_not_delay_shutdown() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).probes().start().await;
    let mut probe = upstream.request().await;
    abridge.signal("TERM");
    probe.gone().await;
    assert!(abridge.exit().await.success());
    assert!(!said(&abridge).concat().contains("no answer"));
}

#[tokio::test]
async fn the_probe_sends_only_abridges_own_key() {
    let mut upstream = Upstream::start().await;
    let asking = Setup::before(&upstream).probes().start().await;
    let mut probe = upstream.request().await;
    assert!(probe.head.get("authorization").is_none() && probe.head.get("api-key").is_none(), "{:?}", probe.head);
    probe.answer("401 Unauthorized", &[], "").await;
    let line = asking.says("reachable", 0).await;
    assert!(line.ends_with("answers 401: clients bring their key"), "{line}");

    let setup = Setup::before(&upstream).probes().with("upstream.api_key_env = \"HOUSE_KEY\"");
    let abridge = setup.environment("HOUSE_KEY", "sk-house").start().await;
    let mut probe = upstream.request().await;
    assert_eq!(probe.head.get("authorization"), Some("Bearer sk-house"));
    probe.answer("401 Unauthorized", &[], "").await;
    let line = abridge.says("not well", 0).await;
    assert!(line.contains("fix: put a key that it takes into the variable of upstream.api_key_env"), "{line}");
    assert!(!abridge.stderr().concat().contains("sk-house"));
}

#[tokio::test]
async fn without_upstream_probe_no_probe_is_sent() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    let mut call = upstream.request().await;
    call.bytes().await;
    call.json("{}").await;
    client.reply().await;
    upstream.no_more();
    assert!(!said(&abridge).concat().contains("reachable"));
}

#[tokio::test]
async fn each_probe_answer_that_indicates_a_fault_is_reported_with_a_fix() {
    for (status, fields, path, fix) in [
        ("404 Not Found", &[][..], "/api", "fix: the URL probably needs /v1: --upstream http://127.0.0.1:"),
        (
            "404 Not Found",
            &[],
            "/v1/chat/completions",
            "fix: leave out the requests' path: --upstream http://127.0.0.1:",
        ),
        ("404 Not Found", &[], "/x/v1", "fix: look up the path of the server's API"),
        ("503 Service Unavailable", &[], "/v1", "fix: look at the server's own log"),
        (
            "301 Moved Permanently",
            &["location: https://elsewhere.test/v1/models"],
            "/v1",
            "https://elsewhere.test/v1/models",
        ),
    ] {
        let mut upstream = Upstream::start().await;
        let abridge = Setup::to(format!("{}{path}", upstream.origin())).probes().start().await;
        upstream.request().await.answer(status, fields, "").await;
        let line = abridge.says("not well", 0).await;
        assert!(line.contains(fix), "{line}");
    }
}

#[tokio::test]
async fn each_failed_probe_connection_is_reported_with_a_fix() {
    let closed = ClosedPort::new();
    let secure = Upstream::start_tls(Certificate::new().acceptor(&["http/1.1"])).await;
    let port = secure.address().port();
    // Longer than a name can be, so no one need be asked.
    let no_name = "x".repeat(70);
    for (url, seen, fix) in [
        (closed.url(), format!("nothing listens at {}", closed.address()), "fix: start the server there"),
        (
            format!("https://localhost:{port}/v1"),
            "is not trusted: its issuer is unknown".to_owned(),
            "upstream.ca_file",
        ),
        (format!("http://127.0.0.1:{port}/v1"), "cannot be read as HTTP".to_owned(), "fix: check the port"),
        (format!("http://{no_name}/v1"), format!("the name {no_name} is not known"), "fix: correct the host"),
    ] {
        let abridge = Setup::to(&url).probes().start().await;
        let line = abridge.says("not well", 0).await;
        assert!(line.contains(&seen) && line.contains(fix), "{url}: {line}");
    }
}

#[tokio::test]
async fn a_probe_of_an_upstream_without_tls_is_reported_with_a_fix() {
    let mut plain = Upstream::start().await;
    let abridge = Setup::to(format!("https://{}/v1", plain.address())).probes().start().await;
    plain.connection().await.send("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let line = abridge.says("not well", 0).await;
    assert!(line.contains("does not speak TLS; fix: write http:// in upstream.url"), "{line}");
}
