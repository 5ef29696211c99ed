//! Both sides of HTTP/2, which is framed too finely to be written by hand.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;

use super::wire::Socket;
use super::within;

/// A request as the upstream saw it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) head: http::request::Parts,
    pub(crate) body: Bytes,
}

/// What becomes of a request that is held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Held {
    Came,
    Cancelled,
}

/// Dropped with the request.
struct Cancelled(mpsc::Sender<Held>);

impl Drop for Cancelled {
    fn drop(&mut self) {
        self.0.try_send(Held::Cancelled).ok();
    }
}

/// Speaks HTTP/2 with prior knowledge as a client.
pub(crate) async fn client(socket: impl Socket + 'static) -> SendRequest<Full<Bytes>> {
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket));
    let (sender, connection) = within("an HTTP/2 handshake", handshake).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Answers every request on one HTTP/2 connection with `answer`, and passes on what it saw.
pub(crate) fn serve(socket: impl Socket + 'static, answer: &'static str) -> mpsc::Receiver<Seen> {
    let (sender, seen) = mpsc::channel(64);
    let service = service_fn(move |request: Request<Incoming>| {
        let sender = sender.clone();
        async move {
            let (head, incoming) = request.into_parts();
            let body = incoming.collect().await?.to_bytes();
            sender.send(Seen { head, body }).await.ok();
            Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from_static(answer.as_bytes()))))
        }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    tokio::spawn(async move { server.serve_connection(TokioIo::new(socket), service).await });
    seen
}

/// Takes requests on one HTTP/2 connection and never answers; tells when each has come, and when it has been cancelled.
pub(crate) fn hold(socket: impl Socket + 'static) -> mpsc::Receiver<Held> {
    let (sender, notices) = mpsc::channel(64);
    let service = service_fn(move |_: Request<Incoming>| {
        let cancelled = Cancelled(sender.clone());
        async move {
            cancelled.0.send(Held::Came).await.ok();
            std::future::pending::<Result<Response<Full<Bytes>>, hyper::Error>>().await
        }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    tokio::spawn(async move { server.serve_connection(TokioIo::new(socket), service).await });
    notices
}

/// A response's whole body.
pub(crate) async fn whole(response: Response<Incoming>) -> Bytes {
    within("a body", response.into_body().collect()).await.unwrap().to_bytes()
}
