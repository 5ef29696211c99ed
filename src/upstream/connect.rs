//! Connects to the upstream: directly, through an HTTP proxy or a SOCKS proxy, then with TLS, all within one timeout.

use std::error::Error as StdError;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use tokio::net::TcpStream;
use tower_service::Service;

use super::HttpVersion;
use crate::gather_writes::GatherWrites;
use crate::roots::{self, RootsError};

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

/// Why no connector could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// The scheme of the proxy is not supported.
    #[error("the proxy {0} is not supported; allowed are http:// and socks5://")]
    Proxy(Uri),
    /// TLS could not be set up.
    #[error(transparent)]
    Roots(#[from] RootsError),
    /// The key cannot sign requests.
    #[error(transparent)]
    Key(#[from] super::sigv4::InvalidAwsKey),
}

/// The proxy before the upstream wants to know who asks, and was not told, or not what it accepts: it answers 407.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the proxy answers 407")]
pub struct ProxyRefusal;

/// A connection, perhaps without its TLS.
type Stream = GatherWrites<TokioIo<TcpStream>>;

/// A connection that is ready for requests, as hyper takes it.
pub trait Io: Read + Write + Connection + Send + Unpin {}

impl<T: Read + Write + Connection + Send + Unpin> Io for T {}

impl Connection for Box<dyn Io> {
    fn connected(&self) -> Connected {
        (**self).connected()
    }
}

type TunnelError = <Tunnel<HttpConnector> as Service<Uri>>::Error;

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
#[derive(Clone, Debug)]
enum Dialer {
    Direct(HttpConnector),
    /// CONNECT, for TLS through an HTTP proxy.
    Tunnel(Tunnel<HttpConnector>),
    /// Requests in absolute form, for plain HTTP through an HTTP proxy.
    Forward {
        proxy: Uri,
        dial: HttpConnector,
    },
    Socks(SocksV5<HttpConnector>),
}

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
    ) -> Result<(Self, Option<Intercept>), ConnectorError> {
        let mut dial = HttpConnector::new();
        dial.enforce_http(false);
        dial.set_nodelay(true);
        dial.set_keepalive(Some(Duration::from_mins(1)));
        let intercept = proxies.for_uri(base);
        let dial = match &intercept {
            None => Dialer::Direct(dial),
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
    type Response = Box<dyn Io>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(cx)
    }

    /// Connects to the one upstream, by whatever key the pool knows it.
    fn call(&mut self, _: Uri) -> Self::Future {
        let connecting = self.https.call(self.base.clone());
        let within = self.within;
        Box::pin(async move {
            let connected = tokio::time::timeout(within, connecting).await.map_err(|_| ConnectTimeout(within))?;
            // A plain connection does not reserve the kilobyte that the state of TLS takes.
            connected.map(|stream| match stream {
                MaybeHttpsStream::Http(stream) => Box::new(stream) as Box<dyn Io>,
                with_tls @ MaybeHttpsStream::Https(_) => Box::new(with_tls),
            })
        })
    }
}

// === impl Dialer ===

impl Dialer {
    fn via(proxy: &Intercept, base: &Uri, dial: HttpConnector) -> Result<Self, ConnectorError> {
        let uri = proxy.uri();
        match (uri.scheme_str(), base.scheme_str()) {
            (Some("socks5" | "socks5h"), _) => {
                let socks = SocksV5::new(uri.clone(), dial).local_dns(uri.scheme_str() == Some("socks5"));
                Ok(Self::Socks(match proxy.raw_auth() {
                    Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                    None => socks,
                }))
            }
            (Some("http"), Some("https")) => {
                let tunnel = Tunnel::new(uri.clone(), dial);
                Ok(Self::Tunnel(match proxy.basic_auth() {
                    Some(auth) => tunnel.with_auth(auth.clone()),
                    None => tunnel,
                }))
            }
            (Some("http"), _) => Ok(Self::Forward { proxy: uri.clone(), dial }),
            _ => Err(ConnectorError::Proxy(uri.clone())),
        }
    }
}

impl Service<Uri> for Dialer {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<Stream>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(dial) | Self::Forward { dial, .. } => dial.poll_ready(cx).map_err(Into::into),
            Self::Tunnel(dial) => dial.poll_ready(cx).map_err(Into::into),
            Self::Socks(dial) => dial.poll_ready(cx).map_err(Into::into),
        }
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        fn stream<E: Into<BoxError>>(
            dialling: impl Future<Output = Result<TokioIo<TcpStream>, E>> + Send + 'static,
            gather: fn(TokioIo<TcpStream>) -> Stream,
        ) -> BoxFuture<Stream> {
            Box::pin(async move { dialling.await.map(gather).map_err(Into::into) })
        }
        match self {
            Self::Direct(dial) => stream(dial.call(uri), GatherWrites::new),
            Self::Forward { proxy, dial } => stream(dial.call(proxy.clone()), GatherWrites::to_proxy),
            Self::Tunnel(dial) => {
                let dialling = dial.call(uri);
                stream(async move { dialling.await.map_err(tunnel_error) }, GatherWrites::new)
            }
            Self::Socks(dial) => stream(dial.call(uri), GatherWrites::new),
        }
    }
}

fn tunnel_error(error: TunnelError) -> BoxError {
    match error {
        TunnelError::ProxyAuthRequired => ProxyRefusal.into(),
        error => error.into(),
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
