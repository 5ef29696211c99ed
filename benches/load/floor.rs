//! The least that a proxy with hyper takes: both ways streamed, or the request's body collected first, as one that may be
//! edited is, and nothing else done. What abridge takes beyond that is its own.
#![expect(clippy::disallowed_methods, reason = "it has no limits and no shutdown, as nothing else is to be measured")]

use std::convert::Infallible;
use std::io::{Write as _, stderr};
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context as _, Result};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;

use super::target::Route;

/// Where a floor forwards to, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    upstream: SocketAddr,
    collects: bool,
}

type Body = BoxBody<Bytes, hyper::Error>;

impl Floor {
    /// What a floor takes from the command line to be the same.
    pub(crate) fn argument(route: Route, upstream: SocketAddr) -> String {
        format!("{}={upstream}", if route == Route::Collected { "collect" } else { "stream" })
    }

    /// Serves until it is killed, on one thread, and says where.
    pub(crate) fn serve(self) -> Result<()> {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(self.accept())
    }

    async fn accept(self) -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        writeln!(stderr(), "listening on http://{} ", listener.local_addr()?)?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client: Client<_, Body> =
            Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let client = client.clone();
            let service = service_fn(move |request| self.forward(client.clone(), request));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    }

    async fn forward(
        self,
        client: Client<HttpConnector, Body>,
        request: Request<Incoming>,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        if let Ok(uri) = Uri::from_str(&format!("http://{}{path}", self.upstream)) {
            head.uri = uri;
        }
        let body = if self.collects {
            let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            Full::new(bytes).map_err(|never: Infallible| match never {}).boxed()
        } else {
            body.boxed()
        };
        client.request(Request::from_parts(head, body)).await
    }
}

impl FromStr for Floor {
    type Err = anyhow::Error;

    fn from_str(argument: &str) -> Result<Self> {
        let (how, upstream) = argument.split_once('=').context("stream=ADDRESS or collect=ADDRESS")?;
        Ok(Self { upstream: upstream.parse()?, collects: how == "collect" })
    }
}
