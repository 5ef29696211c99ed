//! The support of the tests: an upstream that the test plays itself, the real binary, and connections down to the byte.
//!
//! No sleeps: a test waits for an event, and the time-out of [`within`] is only how a failure ends.

use std::net::SocketAddr;
use std::time::Duration;

pub(crate) mod abridge; // the real binary, started and stopped
#[path = "../binary.rs"]
mod binary; // which binary that is
pub(crate) mod bodies; // request bodies that are edited, and that are not
pub(crate) mod conversations; // conversations with everything wrong that can be
pub(crate) mod handler; // a handler of `[handlers]`, good and bad
pub(crate) mod http2; // both sides of HTTP/2
pub(crate) mod offloads; // results that are too long, and their handles
pub(crate) mod openmetrics; // a strict reader of numbers
pub(crate) mod promlint; // what promtool says of them
pub(crate) mod rounds; // answers of models, round by round
pub(crate) mod scripts; // conversations that belong to no wire format
pub(crate) mod signer; // an upstream that signs thinking over what it was made after
pub(crate) mod summarizer; // an upstream that makes summaries, good and bad
pub(crate) mod tls; // certificates made for one test
pub(crate) mod upstream; // the upstream, played by the test
pub(crate) mod validator; // what strict upstreams ask of a message array
pub(crate) mod wire; // one connection, byte by byte

pub(crate) use abridge::{Abridge, Setup};
pub(crate) use binary::{binary, is_static};
pub(crate) use upstream::{ClosedPort, Exchange, Upstream};
pub(crate) use wire::{End, Wire};

/// The token that makes a request one of an operator, unless the test sets another one; and the field that shows it.
pub(crate) const OPERATOR_TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
pub(crate) const OPERATOR: &str =
    "authorization: Bearer 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// What is before a program for which the modes of files count, also where the tests are run by root.
pub(crate) fn minding_modes() -> &'static [&'static str] {
    let is_root = rustix::process::geteuid().is_root();
    if is_root { &["setpriv", "--bounding-set=-dac_override,-dac_read_search"] } else { &[] }
}

/// Far longer than anything here takes, on the slowest machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// An upstream, abridge in front of it, and one connection of a client.
pub(crate) struct Scene {
    pub(crate) upstream: Upstream,
    pub(crate) abridge: Abridge,
    pub(crate) client: Wire,
}

// === impl Scene ===

impl Scene {
    /// Everything at its default.
    pub(crate) async fn new() -> Self {
        Self::with("").await
    }

    /// With these lines in the configuration.
    pub(crate) async fn with(lines: &str) -> Self {
        let upstream = Upstream::start().await;
        let abridge = Setup::before(&upstream).with(lines).start().await;
        let client = abridge.connect().await;
        Self { upstream, abridge, client }
    }

    /// Sends a request, and returns once the upstream has all of it.
    pub(crate) async fn ask(&mut self, request: impl AsRef<[u8]>) -> Exchange {
        self.client.send(request).await;
        let mut call = self.upstream.request().await;
        call.bytes().await;
        call
    }

    /// Begins an upload, which the upstream refuses before it is complete.
    pub(crate) async fn refused_upload(&mut self) -> Exchange {
        self.client.send(request("POST", "/v1/files", &["content-length: 1000"])).await;
        self.client.send("begin").await;
        let mut call = self.upstream.request().await;
        call.answer("401 Unauthorized", &[], "no").await;
        assert_eq!(self.client.reply().await.head.status(), 401);
        call
    }

    /// Sends a request, and returns once the first event of its streamed answer is at the client.
    pub(crate) async fn stream(&mut self, request: impl AsRef<[u8]>) -> Exchange {
        let mut call = self.ask(request).await;
        call.begin_stream().await;
        call.send_chunk("data: 1\n\n").await;
        self.client.head().await;
        assert_eq!(self.client.chunk().await.unwrap(), "data: 1\n\n");
        call
    }
}

// === helpers ===

/// Waits for an event that must come.
pub(crate) async fn within<F: Future>(what: &str, event: F) -> F::Output {
    let Ok(output) = tokio::time::timeout(PATIENCE, event).await else {
        panic!("waited {PATIENCE:?} in vain for {what}");
    };
    output
}

/// A POST with this body and these lines in its head, besides the ones that it needs.
pub(crate) fn post(target: &str, fields: &[&str], body: impl AsRef<[u8]>) -> Vec<u8> {
    let length = format!("content-length: {}", body.as_ref().len());
    let mut request = request("POST", target, &[fields, &[&length]].concat());
    request.extend_from_slice(body.as_ref());
    request
}

/// Sends a conversation as this caller; the body that went upstream.
pub(crate) async fn converse(at: SocketAddr, upstream: &mut Upstream, shown: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let mut client = Wire::connect(at).await;
    client.send(post("/v1/chat/completions", &[shown], body)).await;
    let mut call = upstream.request().await;
    let sent = call.bytes().await.to_vec();
    call.answer("200 OK", &["connection: close"], "{}").await;
    client.reply().await;
    sent
}

/// A chat request with this body.
pub(crate) fn chat(body: impl AsRef<[u8]>) -> Vec<u8> {
    post("/v1/chat/completions", &["content-type: application/json"], body)
}

/// A request head with these lines behind `host`.
pub(crate) fn request(method: &str, target: &str, fields: &[&str]) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n");
    for field in fields {
        head.push_str(field);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    head.into_bytes()
}
