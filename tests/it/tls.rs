//! Certificates on both sides.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;

use crate::failures::refused;
use crate::support::bodies::{DANGLING, PLAIN, assert_patched};
use crate::support::tls::Certificate;
use crate::support::{Setup, Upstream, Wire, chat, http2, request, within};

const CLEAR_HTTP1: &[&str] = &["http/1.1"];
const HTTP2: &[&str] = &["h2"];

#[tokio::test]
async fn clients_are_served_over_tls() {
    let certificate = Certificate::new();
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(certificate.lines()).start().await;
    assert!(abridge.listeners()[0].starts_with("https://"));
    let mut client = Wire::new(certificate.connect(abridge.address(), CLEAR_HTTP1).await.unwrap());
    client.send(chat(DANGLING)).await;
    let mut call = upstream.request().await;
    assert_patched(&call.bytes().await);
    call.begin_stream().await;
    client.head().await;
    call.send_chunk("data: 1\n\n").await;
    assert_eq!(client.chunk().await.unwrap(), "data: 1\n\n");
    drop(client);
    call.gone().await;
}

#[tokio::test]
async fn clients_may_choose_http2_over_tls() {
    let certificate = Certificate::new();
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(certificate.lines()).start().await;
    let socket = certificate.connect(abridge.address(), &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(socket.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut client = http2::client(socket).await;
    let uri = format!("https://localhost:{}/v1/chat/completions", abridge.address().port());
    let post = Request::post(uri).body(Full::new(Bytes::from_static(DANGLING.as_bytes()))).unwrap();
    let answer = tokio::spawn(client.send_request(post));
    let mut call = upstream.request().await;
    assert_patched(&call.bytes().await);
    call.json("{}").await;
    assert_eq!(within("an answer", answer).await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_new_certificate_comes_into_force_at_sighup_and_a_bad_one_does_not() {
    let (old, new) = (Certificate::new(), Certificate::new());
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(old.lines()).start().await;
    let mut running = Wire::new(old.connect(abridge.address(), CLEAR_HTTP1).await.unwrap());
    old.replace_files(&new);
    assert!(old.connect(abridge.address(), CLEAR_HTTP1).await.is_ok(), "not before the signal");
    let from = abridge.stderr().len();
    abridge.signal("HUP");
    abridge.says("settings reloaded", from).await;
    assert!(old.connect(abridge.address(), CLEAR_HTTP1).await.is_err());
    assert!(new.connect(abridge.address(), CLEAR_HTTP1).await.is_ok());

    let from = abridge.stderr().len();
    std::fs::write(&old.cert, "no certificate").unwrap();
    abridge.signal("HUP");
    abridge.says("not reloaded", from).await;
    assert!(new.connect(abridge.address(), CLEAR_HTTP1).await.is_ok());

    // The connection from before lives on.
    running.send(request("GET", "/v1/models", &[])).await;
    upstream.request().await.json("{}").await;
    assert_eq!(running.reply().await.head.status(), 200);
}

#[tokio::test]
async fn a_client_without_tls_does_not_affect_others() {
    let certificate = Certificate::new();
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).with(certificate.lines()).start().await;
    let mut plain = abridge.connect().await;
    plain.send(request("GET", "/abridge/healthz", &[])).await;
    plain.rest().await;
    let mut client = Wire::new(certificate.connect(abridge.address(), CLEAR_HTTP1).await.unwrap());
    client.send(request("GET", "/abridge/healthz", &[])).await;
    assert_eq!(client.reply().await.head.status(), 200);
}

#[tokio::test]
async fn an_upstream_with_a_certificate_of_ones_own_is_trusted_by_its_file() {
    let certificate = Certificate::new();
    let mut upstream = Upstream::start_tls(certificate.acceptor(CLEAR_HTTP1)).await;
    let trust = format!("upstream.ca_file = {:?}", certificate.cert);
    let abridge = Setup::before(&upstream).with(trust).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(DANGLING)).await;
    let mut call = upstream.request().await;
    assert_patched(&call.bytes().await);
    call.begin_stream().await;
    client.head().await;
    call.send_chunk("data: 1\n\n").await;
    assert_eq!(client.chunk().await.unwrap(), "data: 1\n\n");

    // Broken off without a word of TLS: that is not a clean end either.
    drop(call);
    assert_eq!(client.rest().await.0, "");
}

#[tokio::test]
async fn an_upstream_whose_certificate_nobody_vouches_for_is_a_502() {
    let certificate = Certificate::new();
    let mut upstream = Upstream::start_tls(certificate.acceptor(CLEAR_HTTP1)).await;
    let abridge = Setup::before(&upstream).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    refused(&client.reply().await, 502, "upstream_tls");
    upstream.no_more();
}

#[tokio::test]
async fn an_upstream_that_does_not_speak_tls_is_a_502() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::to(format!("https://{}/v1", upstream.address())).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    upstream.connection().await.send("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    refused(&client.reply().await, 502, "upstream_tls");
}

#[tokio::test]
async fn http2_to_the_upstream_is_a_setting() {
    let certificate = Certificate::new();
    let mut secure = Upstream::start_tls(certificate.acceptor(HTTP2)).await;
    let mut clear = Upstream::start().await;
    let trust = format!("upstream.ca_file = {:?}", certificate.cert);
    for upstream in [&mut secure, &mut clear] {
        let setup = Setup::before(upstream).with(&trust).with("upstream.http = \"2\"");
        let abridge = setup.start().await;
        let mut client = abridge.connect().await;
        client.send(chat(DANGLING)).await;
        let mut seen = http2::serve(upstream.connection().await.into_socket(), "{ }");
        let request = within("a request", seen.recv()).await.unwrap();
        assert_patched(&request.body);
        assert_eq!(request.head.version, http::Version::HTTP_2);
        assert_eq!(request.head.uri.authority().unwrap().as_str(), upstream.address().to_string());
        assert_eq!(request.head.uri.path(), "/v1/chat/completions");
        assert_eq!(client.reply().await.body, "{ }");

        client.send(request_with_hop()).await;
        let request = within("a request", seen.recv()).await.unwrap();
        assert_eq!(request.head.uri.path(), "/v1/models");
        assert_eq!(request.head.headers.get("te").map(|value| value.to_str().unwrap()), Some("trailers"));
        assert_eq!(client.reply().await.head.status(), 200);
    }
}

fn request_with_hop() -> Vec<u8> {
    request("GET", "/v1/models", &["connection: keep-alive, x-hop", "x-hop: 1", "te: trailers"])
}

#[tokio::test]
async fn roots_that_other_programs_are_told_of_are_trusted() {
    for name in ["NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"] {
        let certificate = Certificate::new();
        let mut upstream = Upstream::start_tls(certificate.acceptor(CLEAR_HTTP1)).await;
        let cert = certificate.cert.to_str().unwrap().to_owned();
        let abridge = Setup::before(&upstream).environment(name, cert).start().await;
        let mut client = abridge.connect().await;
        client.send(chat(PLAIN)).await;
        upstream.request().await.json("{}").await;
        assert_eq!(client.reply().await.head.status(), 200, "{name}");

        let abridge = Setup::before(&upstream).environment(name, "/none/such.pem").start().await;
        abridge.says("no certificate could be read", 0).await;
        let mut client = abridge.connect().await;
        client.send(chat(PLAIN)).await;
        refused(&client.reply().await, 502, "upstream_tls");
    }
}
