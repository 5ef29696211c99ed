//! A proxy between abridge and the upstream, as the environment names it.

use tokio::net::TcpStream;

use crate::failures::refused;
use crate::support::bodies::{DANGLING, PLAIN, assert_patched};
use crate::support::tls::Certificate;
use crate::support::{ClosedPort, Setup, Upstream, chat, post};

/// Takes a CONNECT off the wire, answers it, and becomes a tunnel.
async fn tunnel_one(proxy: &mut Upstream, upstream: &Upstream) -> Vec<(String, String)> {
    let call = proxy.request().await;
    assert_eq!(call.head.start, format!("CONNECT {} HTTP/1.1", upstream.address()));
    let fields = call.head.fields.clone();
    let mut wire = call.into_wire();
    wire.send("HTTP/1.1 200 Connection established\r\n\r\n").await;
    tokio::spawn(wire.tunnel(TcpStream::connect(upstream.address()).await.unwrap()));
    fields
}

#[tokio::test]
async fn https_goes_through_a_tunnel() {
    for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        let certificate = Certificate::new();
        let mut upstream = Upstream::start_tls(certificate.acceptor(&["http/1.1"])).await;
        let mut proxy = Upstream::start().await;
        let setup = Setup::before(&upstream).with(format!("upstream.ca_file = {:?}", certificate.cert));
        let abridge = setup.environment(name, proxy.origin()).start().await;
        let mut client = abridge.connect().await;
        client.send(post("/v1/chat/completions", &["authorization: Bearer sk-1"], DANGLING)).await;
        let fields = tunnel_one(&mut proxy, &upstream).await;
        assert!(fields.iter().all(|(_, value)| !value.contains("sk-1")), "{fields:?}");
        let mut call = upstream.request().await;
        assert_eq!(call.head.target(), "/v1/chat/completions");
        assert_patched(&call.bytes().await);
        call.json("{}").await;
        assert_eq!(client.reply().await.head.status(), 200);
    }
}

#[tokio::test]
async fn a_proxy_with_a_password_gets_it_and_the_log_does_not() {
    let certificate = Certificate::new();
    let mut upstream = Upstream::start_tls(certificate.acceptor(&["http/1.1"])).await;
    let mut proxy = Upstream::start().await;
    let setup = Setup::before(&upstream).with(format!("upstream.ca_file = {:?}", certificate.cert));
    let url = format!("http://user:canary-secret@{}", proxy.address());
    let abridge = setup.with("log.level = \"trace\"").environment("HTTPS_PROXY", url).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    let fields = tunnel_one(&mut proxy, &upstream).await;
    // "user:canary-secret" in Base64.
    let expected = ("proxy-authorization".to_owned(), "Basic dXNlcjpjYW5hcnktc2VjcmV0".to_owned());
    assert!(fields.contains(&expected), "{fields:?}");
    upstream.request().await.json("{}").await;
    client.reply().await;
    abridge.signal("TERM");
    abridge.exit().await;
    let log = abridge.stderr().join("\n");
    assert!(!log.contains("canary-secret") && !log.contains("dXNlcjpjYW5hcnktc2VjcmV0"));
}

#[tokio::test]
async fn hosts_that_no_proxy_names_are_reached_directly() {
    for (name, value) in [("NO_PROXY", "localhost,127.0.0.1"), ("no_proxy", "127.0.0.0/8"), ("NO_PROXY", "*")] {
        let mut upstream = Upstream::start().await;
        let mut proxy = Upstream::start().await;
        let setup = Setup::before(&upstream).environment("HTTP_PROXY", proxy.origin()).environment(name, value);
        let abridge = setup.start().await;
        let mut client = abridge.connect().await;
        client.send(chat(PLAIN)).await;
        let mut call = upstream.request().await;
        assert_eq!(call.head.target(), "/v1/chat/completions", "{name}={value}");
        assert_eq!(call.bytes().await, PLAIN);
        proxy.no_more();
    }
}

#[tokio::test]
async fn http_goes_to_the_proxy_with_the_whole_url() {
    let upstream = Upstream::start().await;
    let mut proxy = Upstream::start().await;
    let url = format!("http://user:pass@{}", proxy.address());
    let abridge = Setup::before(&upstream).environment("http_proxy", url).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    let mut call = proxy.request().await;
    assert_eq!(call.head.target(), format!("http://{}/v1/chat/completions", upstream.address()));
    assert_eq!(call.head.get("host"), Some(&*upstream.address().to_string()));
    assert_eq!(call.head.get("proxy-authorization"), Some("Basic dXNlcjpwYXNz"));
    assert_eq!(call.bytes().await, PLAIN);
    call.json("{}").await;
    assert_eq!(client.reply().await.head.status(), 200);
}

#[tokio::test]
async fn a_tunnel_that_the_proxy_refuses_is_a_502() {
    let upstream = Upstream::start().await;
    let mut proxy = Upstream::start().await;
    let setup = Setup::to(format!("https://{}/v1", upstream.address()));
    let abridge = setup.environment("HTTPS_PROXY", proxy.origin()).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    proxy.request().await.answer("403 Forbidden", &[], "no").await;
    refused(&client.reply().await, 502, "upstream_connect");
}

#[tokio::test]
async fn a_proxy_that_wants_a_password_is_a_502_that_says_so() {
    let upstream = Upstream::start().await;
    for (scheme, name) in [("https", "HTTPS_PROXY"), ("http", "HTTP_PROXY")] {
        let mut proxy = Upstream::start().await;
        let url = format!("http://user:canary-secret@{}", proxy.address());
        for url in [proxy.origin(), url] {
            let setup = Setup::to(format!("{scheme}://{}/v1", upstream.address()));
            let abridge = setup.environment(name, url).start().await;
            let mut client = abridge.connect().await;
            client.send(chat(PLAIN)).await;
            let refusal = ["proxy-authenticate: Basic", "connection: close"];
            proxy.request().await.answer("407 Proxy Authentication Required", &refusal, "no").await;
            let message = refused(&client.reply().await, 502, "proxy_auth");
            assert!(
                message.contains("407") && message.contains(name) && message.contains("user:password@"),
                "{message}"
            );
            assert!(!message.contains("canary-secret"), "{message}");
        }
    }
}

#[tokio::test]
async fn a_407_of_the_upstream_itself_goes_back_as_it_came() {
    let mut upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    upstream.request().await.answer("407 Proxy Authentication Required", &[], "no").await;
    let reply = client.reply().await;
    assert_eq!((reply.head.status(), &*reply.body, reply.head.get("x-abridge-error")), (407, &b"no"[..], None));
}

#[tokio::test]
async fn a_proxy_that_is_not_there_is_a_502() {
    let upstream = Upstream::start().await;
    let proxy = ClosedPort::new();
    let setup = Setup::before(&upstream).environment("HTTP_PROXY", format!("http://{}", proxy.address()));
    let abridge = setup.start().await;
    let mut client = abridge.connect().await;
    client.send(chat(PLAIN)).await;
    refused(&client.reply().await, 502, "upstream_connect");
}
