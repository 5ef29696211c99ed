//! Connects to the upstream: directly, through an HTTP proxy or a SOCKS proxy, then with TLS, all within one timeout.

use std::error::Error as StdError;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use tokio::net::TcpStream;
use tower_service::Service;

use super::HttpVersion;
use crate::gather_writes::GatherWrites;
use crate::roots;
use crate::setup_error::SetupError;

/// The proxies that the environment names, as curl reads them. Their URLs may hold passwords and are not printed.
#[derive(Clone, Default, derive_more::Debug, Eq, PartialEq)]
#[debug("Proxies")]
pub struct Proxies {
    /// `ALL_PROXY`.
    pub all: Option<String>,
    /// `HTTP_PROXY`.
    pub http: Option<String>,
    /// `HTTPS_PROXY`.
    pub https: Option<String>,
    /// `NO_PROXY`.
    pub no: Option<String>,
}

/// A connection, perhaps without its TLS.
type Stream = GatherWrites<TokioIo<TcpStream>>;

/// Why a proxy opens no tunnel.
pub(super) type TunnelError = <Tunnel<HttpConnector> as Service<Uri>>::Error;

/// The connection was not ready in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no connection within {} ms", .0.as_millis())]
pub struct ConnectTimeout(pub Duration);

type BoxError = Box<dyn StdError + Send + Sync>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// Opens connections that are ready for requests.
#[derive(Clone, Debug)]
pub struct Connector {
    https: HttpsConnector<Dialer>,
    base: Uri,
    within: Duration,
}

/// Opens TCP connections to the upstream, or to the proxy before it.
#[derive(Clone, derive_more::Debug)]
#[debug("Dialer")]
struct Dialer(Arc<dyn Fn(Uri) -> BoxFuture<Stream> + Send + Sync>);

// === impl Connector ===

impl Connector {
    /// A connector for one upstream, and the proxy that it uses.
    ///
    /// # Errors
    ///
    /// When the environment names a proxy of an unknown kind, or `ca_file` holds no certificates.
    pub fn new(
        base: &Uri,
        version: HttpVersion,
        within: Duration,
        ca_file: Option<&Path>,
        proxies: &Proxies,
    ) -> Result<(Self, Option<Intercept>), SetupError> {
        let mut dial = HttpConnector::new();
        dial.enforce_http(false);
        dial.set_nodelay(true);
        dial.set_keepalive(Some(Duration::from_mins(1)));
        let intercept = proxies.for_uri(base);
        let dial = match &intercept {
            None => Dialer::new(dial, None, GatherWrites::new),
            Some(proxy) => Dialer::via(proxy, base, dial)?,
        };
        // The system's roots are read only for an https upstream, because that is the longest part of the start.
        let roots = if base.scheme_str() == Some("https") { system_roots() } else { RootCertStore::empty() };
        let builder = HttpsConnectorBuilder::new().with_tls_config(roots::tls_with(roots, ca_file)?).https_or_http();
        let https = match version {
            HttpVersion::Http11 => builder.enable_http1().wrap_connector(dial),
            HttpVersion::Http2 => builder.enable_http2().wrap_connector(dial),
        };
        Ok((Self { https, base: base.clone(), within }, intercept))
    }
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<Stream>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(cx)
    }

    /// Connects to the one upstream, by whatever key the pool knows it.
    fn call(&mut self, _: Uri) -> Self::Future {
        let connecting = self.https.call(self.base.clone());
        let within = self.within;
        Box::pin(async move { tokio::time::timeout(within, connecting).await.map_err(|_| ConnectTimeout(within))? })
    }
}

// === impl Dialer ===

impl Dialer {
    /// Opens connections with `dial`, which is always ready: to `proxy`, or else to what is asked for.
    fn new<D>(dial: D, proxy: Option<Uri>, gather: fn(TokioIo<TcpStream>) -> Stream) -> Self
    where
        D: Service<Uri, Response = TokioIo<TcpStream>> + Clone + Send + Sync + 'static,
        D::Error: Into<BoxError>,
        D::Future: Send + 'static,
    {
        Self(Arc::new(move |uri| {
            let dialling = dial.clone().call(proxy.clone().unwrap_or(uri));
            Box::pin(async move { dialling.await.map(gather).map_err(Into::into) })
        }))
    }

    fn via(proxy: &Intercept, base: &Uri, dial: HttpConnector) -> Result<Self, SetupError> {
        let uri = proxy.uri();
        match (uri.scheme_str(), base.scheme_str()) {
            (Some("socks5" | "socks5h"), _) => {
                let socks = SocksV5::new(uri.clone(), dial).local_dns(uri.scheme_str() == Some("socks5"));
                let socks = match proxy.raw_auth() {
                    Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                    None => socks,
                };
                Ok(Self::new(socks, None, GatherWrites::new))
            }
            // CONNECT, for TLS through an HTTP proxy.
            (Some("http"), Some("https")) => {
                let tunnel = Tunnel::new(uri.clone(), dial);
                let tunnel = match proxy.basic_auth() {
                    Some(auth) => tunnel.with_auth(auth.clone()),
                    None => tunnel,
                };
                Ok(Self::new(tunnel, None, GatherWrites::new))
            }
            // Requests in absolute form, for plain HTTP through an HTTP proxy.
            (Some("http"), _) => Ok(Self::new(dial, Some(uri.clone()), GatherWrites::to_proxy)),
            _ => {
                let what = format!("the proxy {uri} is not supported; allowed are http:// and socks5://");
                Err(SetupError::new(what))
            }
        }
    }
}

impl Service<Uri> for Dialer {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<Stream>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        (self.0)(uri)
    }
}

// === impl Proxies ===

impl Proxies {
    fn for_uri(&self, uri: &Uri) -> Option<Intercept> {
        // The matcher applies `*` to names, but not to addresses.
        if self.no.as_ref().is_some_and(|no| no.split(',').any(|host| host.trim() == "*")) {
            return None;
        }
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let matcher = Matcher::builder()
            .all(text(&self.all))
            .http(text(&self.http))
            .https(text(&self.https))
            .no(text(&self.no))
            .build();
        matcher.intercept(uri)
    }
}

// === TLS ===

/// Variables by which other programs are told of roots. Whoever has set one for an agent need not name the file again.
const OTHERS_ROOTS: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"];

/// The system's roots, and those that variables name.
fn system_roots() -> RootCertStore {
    let mut roots = roots::of_system_or_mozilla();
    for name in OTHERS_ROOTS {
        // Read here, as `rustls_native_certs` reads `SSL_CERT_FILE`.
        let Some(path) = std::env::var_os(name).filter(|path| !path.is_empty()) else { continue };
        let path = Path::new(&path);
        let (file, folder) = if path.is_dir() { (None, Some(path)) } else { (Some(path), None) };
        let (added, _) =
            roots.add_parsable_certificates(rustls_native_certs::load_certs_from_paths(file, folder).certs);
        if added == 0 {
            tracing::warn!(
                variable = name,
                "no certificate could be read from where the variable points; it is ignored"
            );
        }
    }
    roots
}
