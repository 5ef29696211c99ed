//! An HTTP client for a running proxy, used by `abridge health`, `status`, `show` and `diff`.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::ToSocketAddrs;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::{Builder, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::either::Either;

use super::runtime;
use crate::admin::access::Exposure;
use crate::config::{Config, Secret, Sources, operator_token};
use crate::dialect;
use crate::platform::sockets::{self, UnixStream};
use crate::server::listen::{Address, loopback_if_unspecified};
use crate::upstream::target::KeyHeader;

/// The environment variable with the token of `[admin]`.
pub(super) const TOKEN: &str = "ABRIDGE_ADMIN_TOKEN";

/// The timeout of connecting, and of an answer.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// The host that a request over a Unix socket names.
const LOCALHOST: &str = "localhost";

/// The longest body of a response that is read, in bytes; a proxy sends shorter ones.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// The address of a running proxy, and the token for it.
pub(super) struct RunningProxy {
    address: Address,
    /// The value of the field `host`.
    host: String,
    /// The address as messages show it.
    pub(super) name: String,
    /// Whether the listener needs TLS, which this client does not support.
    pub(super) tls: bool,
    /// The header field with a key.
    pub(super) credential: Option<(HeaderName, HeaderValue)>,
    /// How long an answer may take.
    pub(super) patience: Duration,
}

/// A complete response.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why a request to the proxy failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens at the address.
    #[error(
        "nothing listens on {0}; start a proxy with `abridge`, or name its address with --at, if it has other settings"
    )]
    NotListening(String),
    /// The connection failed or broke.
    #[error("no answer from {0}")]
    Io(String, #[source] io::Error),
    /// The response is not that of an abridge proxy.
    #[error("{0} did not answer as an abridge proxy that has this command: {1}")]
    UnexpectedResponse(String, String),
    /// The address cannot be asked.
    #[error("{0}")]
    Unusable(String),
}

type BoxError = Box<dyn Error + Send + Sync>;

/// Arguments that name the proxy.
#[derive(clap::Args, Debug, Default)]
pub struct ProxyArgs {
    /// The proxy's address.
    #[arg(long, value_name = "URL")]
    #[arg(
        help = "The proxy's address: http://host:port or unix:/path [default: the first of admin.listen or server.listen]"
    )]
    at: Option<String>,
}

impl ProxyArgs {
    /// Whether the command line names no address.
    pub(super) fn is_default(&self) -> bool {
        self.at.is_none()
    }

    /// The proxy to ask as an operator, with the token from the environment, or else from the file of this user.
    pub(super) fn proxy(&self, sources: &Sources, config: &Config) -> anyhow::Result<RunningProxy> {
        let mut proxy = self.proxy_for_callers(sources, config)?;
        let named = config.admin.token_env.as_deref();
        if let (None, Some(named)) = (&proxy.credential, named) {
            proxy.credential = field(KeyHeader::Authorization, sources.variables.secret(named)?);
        }
        // It is for proxies of this user.
        if proxy.credential.is_none() && proxy.address.exposure() != Exposure::Network {
            let token = operator_token::read(sources.variables.state_folder().as_deref());
            proxy.credential = field(KeyHeader::Authorization, token.context("the operators' token cannot be read")?);
        }
        Ok(proxy)
    }

    /// The proxy to ask as a caller, who shows a token only if the environment has one for this program.
    pub(super) fn proxy_for_callers(&self, sources: &Sources, config: &Config) -> anyhow::Result<RunningProxy> {
        let operators = config.admin.listen.as_ref().and_then(|listen| listen.0.first());
        let address = operators.or(config.server.listen.0.first());
        let proxy = RunningProxy::of(self.at.as_deref(), address, config)?;
        Ok(RunningProxy { credential: field(KeyHeader::Authorization, sources.variables.secret(TOKEN)?), ..proxy })
    }
}

/// The header field with a key, if there is one. Each character of a key may be in a header field.
pub(super) fn field(field: KeyHeader, key: Option<Secret>) -> Option<(HeaderName, HeaderValue)> {
    Some((field.name(), key?.header(field).ok()?))
}

// === impl RunningProxy ===

impl RunningProxy {
    /// The proxy at `url`, or else at `address`.
    pub(super) fn of(url: Option<&str>, address: Option<&Address>, config: &Config) -> Result<Self, ClientError> {
        let (address, host) = match (url, address) {
            (Some(url), _) => resolve(url)?,
            (None, Some(Address::Tcp(address))) if address.port() != 0 => {
                let address = loopback_if_unspecified(*address);
                (Address::Tcp(address), address.to_string())
            }
            (None, Some(unix @ Address::Unix(_))) => (unix.clone(), LOCALHOST.to_owned()),
            (None, _) => {
                let why = "the port in server.listen is 0, so the system chooses it; name the real one with --at";
                return Err(ClientError::Unusable(why.to_owned()));
            }
        };
        let name = url.map_or_else(|| address.to_string(), str::to_owned);
        let tls = url.is_none() && matches!(address, Address::Tcp(_)) && config.tls.is_some();
        Ok(Self { address, host, name, tls, credential: None, patience: STEP_TIMEOUT })
    }

    /// Sends a GET request and reads the response.
    pub(super) fn get(&self, target: &str) -> Result<Response, ClientError> {
        self.wait(self.send(Request::get(target), b""))
    }

    /// Waits for an answer in a new runtime.
    pub(super) fn wait<T>(&self, answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
        runtime().map_err(|error| self.broken(error))?.block_on(answer)
    }

    /// The error for an answer that is not what was asked for.
    pub(super) fn refused(&self, answer: &Response) -> anyhow::Error {
        anyhow!("{} answers {}: {}", self.name, answer.status, answer.first_line())
    }

    /// Posts the body of a request, below this path, which names this model if paths of its dialect do.
    pub(super) fn ask(&self, base: &str, model: Option<&str>, key: &str, body: &[u8]) -> Result<Response, ClientError> {
        let dialect = dialect::of_body(body);
        let path = model.map_or_else(|| dialect.path().into(), |model| dialect.path_of(model));
        let fields = [(dialect.facts().key_field, key), (CONTENT_TYPE.as_str(), "application/json")];
        let fields = fields.into_iter().chain(dialect.facts().version_field);
        let request = Request::post(format!("{base}{path}"));
        self.wait(self.send(fields.fold(request, |request, (name, value)| request.header(name, value)), body))
    }

    /// Sends a request and reads the response.
    #[expect(clippy::disallowed_methods, reason = "a response of a limited length")]
    pub(super) async fn send(&self, request: Builder, body: &[u8]) -> Result<Response, ClientError> {
        let request = request.header(HOST, &self.host).body(Full::new(Bytes::copy_from_slice(body)));
        let mut request = request.map_err(|error| self.broken(error))?;
        request.headers_mut().extend(self.credential.clone());
        if self.tls {
            let without = format!("name a listener without it, or ask {} with curl", request.uri());
            return Err(ClientError::Unusable(format!(
                "{} speaks TLS, which this command does not; {without}",
                self.name
            )));
        }
        let stream = TokioIo::new(self.connect().await?);
        let exchange = async {
            let (mut sender, connection) = http1::handshake(stream).await?;
            // The connection ends when the sender is dropped.
            let asking = async move {
                let (head, body) = sender.send_request(request).await?.into_parts();
                let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?.to_bytes();
                Ok(Response { status: head.status.as_u16(), headers: head.headers, body })
            };
            tokio::join!(asking, connection).0
        };
        let answered = timeout(self.patience, exchange).await.unwrap_or_else(|late| Err(late.into()));
        answered.map_err(|error: BoxError| match error.downcast_ref::<hyper::Error>() {
            Some(foreign) if foreign.is_parse() => {
                ClientError::UnexpectedResponse(self.name.clone(), foreign.to_string())
            }
            _ => self.broken(error),
        })
    }

    pub(super) async fn connect(&self) -> Result<Either<TcpStream, UnixStream>, ClientError> {
        let connected = timeout(STEP_TIMEOUT, async {
            Ok(match &self.address {
                Address::Tcp(address) => Either::Left(TcpStream::connect(address).await?),
                Address::Unix(path) => Either::Right(sockets::connect(path).await?),
            })
        });
        connected.await.unwrap_or_else(|late| Err(late.into())).map_err(|error: io::Error| match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => ClientError::NotListening(self.name.clone()),
            _ => self.broken(error),
        })
    }

    fn broken(&self, error: impl Into<BoxError>) -> ClientError {
        ClientError::Io(self.name.clone(), io::Error::other(error))
    }
}

/// The address of a proxy, and the value of its field `host`.
fn resolve(url: &str) -> Result<(Address, String), ClientError> {
    if let Some(path) = url.strip_prefix("unix:") {
        return Ok((Address::Unix(path.into()), LOCALHOST.to_owned()));
    }
    let uri = url.parse::<http::Uri>().ok().filter(|uri| uri.scheme_str() == Some("http"));
    let allowed = "write http://host:port or unix:/path";
    let wrong = || ClientError::Unusable(format!("{url:?} is not the address of a proxy; {allowed}"));
    let authority = uri.as_ref().and_then(http::Uri::authority).ok_or_else(wrong)?;
    let (host, port) = (authority.host(), authority.port_u16().unwrap_or(80));
    let addresses = (host.trim_matches(['[', ']']), port).to_socket_addrs();
    let address = addresses.map_err(|error| ClientError::Io(url.to_owned(), error))?.next().ok_or_else(wrong)?;
    Ok((Address::Tcp(address), authority.to_string()))
}

// === impl Response ===

impl Response {
    /// The value of a header field.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The first line of the body, escaped, or `no reason given`.
    pub(super) fn first_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let line = text.lines().next().unwrap_or_default().trim();
        super::escape::to_single_line(if line.is_empty() { "no reason given" } else { line }, 500)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Returns the answer of a server that sends it in these pieces, with a pause before each.
    fn answer(pieces: Vec<&'static str>, patience: Duration) -> Result<Response, ClientError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _read = client.read(&mut [0; 1024]).unwrap();
            // The client may be gone.
            pieces.iter().try_for_each(|piece| {
                thread::sleep(Duration::from_millis(5));
                client.write_all(piece.as_bytes())
            })
        });
        let proxy = RunningProxy::of(Some(&url), None, &Config::default()).unwrap();
        RunningProxy { patience, ..proxy }.get("/")
    }

    #[test]
    fn a_response_is_cut_at_its_content_length_and_a_short_or_foreign_one_is_an_error() {
        let read = |text| answer(vec![text], STEP_TIMEOUT);
        let found = read("HTTP/1.1 404 Not Found\r\nX-A: b\r\ncontent-length: 3\r\n\r\nno\nmore").unwrap();
        assert_eq!((found.status, &*found.body, found.header("x-a")), (404, &b"no\n"[..], Some("b")));
        assert_eq!(found.first_line(), "no");
        for wrong in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort"] {
            assert!(matches!(read(wrong), Err(ClientError::Io(..))), "{wrong:?}");
        }
        for foreign in ["SSH-2.0-x\r\n", "HTTP/1.1 2000 x\r\n\r\n"] {
            assert!(matches!(read(foreign), Err(ClientError::UnexpectedResponse(..))), "{foreign:?}");
        }
    }

    #[test]
    fn an_address_is_an_http_url_or_a_unix_path() {
        assert!(matches!(resolve("unix:/a/b"), Ok((Address::Unix(path), _)) if path == std::path::Path::new("/a/b")));
        assert!(
            matches!(resolve("http://127.0.0.1:1"), Ok((Address::Tcp(address), host)) if address.port() == 1 && host == "127.0.0.1:1")
        );
        assert!(matches!(resolve("http://[::1]:1/"), Ok((Address::Tcp(address), _)) if address.is_ipv6()));
        for wrong in ["", "127.0.0.1:1", "https://127.0.0.1:1", "http://"] {
            assert!(matches!(resolve(wrong), Err(ClientError::Unusable(_))), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_that_drips_has_a_limit() {
        let began = Instant::now();
        let dripping = [vec!["HTTP/1.1 200 OK\r\n\r\n"], vec!["x"; 1000]].concat();
        let error = anyhow!(answer(dripping, Duration::from_millis(300)).unwrap_err());
        assert!(format!("{error:#}").ends_with("deadline has elapsed"), "{error:#}");
        assert!(began.elapsed() < Duration::from_secs(3));
    }
}
