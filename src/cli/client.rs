//! A blocking HTTP client for a running proxy, used by `abridge health`, `status`, `show` and `diff`.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use crate::config::{Config, Secret, Sources, operator_token};
use crate::dialect;
use crate::platform::sockets;
use crate::server::listen::{Address, loopback_if_unspecified};

/// The environment variable with the token of `[admin]`.
pub(super) const TOKEN: &str = "ABRIDGE_ADMIN_TOKEN";

/// The timeout of each step: connecting, sending, receiving.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// The host that a request over a Unix socket names.
const LOCALHOST: &str = "localhost";

/// The longest response that is read, in bytes; a proxy sends shorter ones.
const MAX_RESPONSE_BYTES: u64 = 64 << 20;
const MAX_HEAD_BYTES: usize = 64 << 10;

/// The address of a running proxy, and the token for it.
pub(super) struct RunningProxy {
    address: Address,
    /// The value of the field `host`.
    host: String,
    /// The address as messages show it.
    pub(super) name: String,
    /// Whether the listener needs TLS, which this client does not support.
    pub(super) tls: bool,
    /// The beginning of a header field up to a key, and the key.
    pub(super) credential: Option<(&'static str, Secret)>,
    /// The flag that names another address, for error messages.
    flag: &'static str,
    /// How long an answer may take.
    pub(super) patience: Duration,
}

/// A complete response.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Response {
    pub(super) status: u16,
    head: String,
    pub(super) body: Vec<u8>,
}

/// Why a request to the proxy failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens at the address.
    #[error(
        "nothing listens on {0}; start a proxy with `abridge`, or name its address with --{1}, if it has other settings"
    )]
    NotListening(String, &'static str),
    /// The connection failed or broke.
    #[error("no answer from {0}")]
    Io(String, #[source] io::Error),
    /// The response is not that of an abridge proxy.
    #[error("{0} did not answer as an abridge proxy that has this command: {1}")]
    UnexpectedResponse(String, String),
    /// The command line has an invalid address.
    #[error("{0:?} is not the address of a proxy; write http://host:port or unix:/path")]
    InvalidAddress(String),
    /// The settings have port 0, so the port is unknown.
    #[error("the port in server.listen is 0, so the system chooses it; name the real one with --{0}")]
    EphemeralPort(&'static str),
    /// The listener needs TLS, which this client does not support.
    #[error("{0} speaks TLS, which this command does not; name a listener without it, or ask {1} with curl")]
    TlsUnsupported(String, String),
}

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
            proxy.credential = bearer(sources.variables.secret(named)?);
        }
        // It is for proxies of this user.
        if proxy.credential.is_none() && proxy.is_on_this_machine() {
            let token = operator_token::read(sources.variables.state_folder().as_deref());
            proxy.credential = bearer(token.context("the operators' token cannot be read")?);
        }
        Ok(proxy)
    }

    /// The proxy to ask as a caller, who shows a token only if the environment has one for this program.
    pub(super) fn proxy_for_callers(&self, sources: &Sources, config: &Config) -> anyhow::Result<RunningProxy> {
        let operators = config.admin.listen.as_ref().and_then(|listen| listen.0.first());
        let address = operators.or(config.server.listen.0.first());
        let proxy = RunningProxy::of(self.at.as_deref(), address, config, "at")?;
        Ok(RunningProxy { credential: bearer(sources.variables.secret(TOKEN)?), ..proxy })
    }
}

fn bearer(token: Option<Secret>) -> Option<(&'static str, Secret)> {
    token.map(|token| ("authorization: Bearer ", token))
}

// === impl RunningProxy ===

impl RunningProxy {
    /// The proxy at `url`, or else at `address`. `flag` is the flag that names another one, for error messages.
    pub(super) fn of(
        url: Option<&str>,
        address: Option<&Address>,
        config: &Config,
        flag: &'static str,
    ) -> Result<Self, ClientError> {
        let (address, host) = match (url, address) {
            (Some(url), _) => resolve(url)?,
            (None, Some(Address::Tcp(address))) if address.port() != 0 => {
                let address = loopback_if_unspecified(*address);
                (Address::Tcp(address), address.to_string())
            }
            (None, Some(unix @ Address::Unix(_))) => (unix.clone(), LOCALHOST.to_owned()),
            (None, _) => return Err(ClientError::EphemeralPort(flag)),
        };
        let name = url.map_or_else(|| address.to_string(), str::to_owned);
        let tls = url.is_none() && matches!(address, Address::Tcp(_)) && config.tls.is_some();
        Ok(Self { address, host, name, tls, credential: None, flag, patience: STEP_TIMEOUT })
    }

    fn is_on_this_machine(&self) -> bool {
        match &self.address {
            Address::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Address::Unix(_) => true,
        }
    }

    /// Sends a GET request and reads the response.
    pub(super) fn get(&self, target: &str) -> Result<Response, ClientError> {
        self.send("GET", target, &[], b"")
    }

    /// Sends a POST request and reads the response.
    pub(super) fn post(&self, target: &str, fields: &[String], body: &[u8]) -> Result<Response, ClientError> {
        let length = format!("content-length: {}", body.len());
        self.send("POST", target, &[fields, &[length]].concat(), body)
    }

    /// The error for an answer that is not what was asked for.
    pub(super) fn refused(&self, answer: &Response) -> anyhow::Error {
        anyhow!("{} answers {}: {}", self.name, answer.status, answer.first_line())
    }

    /// Posts the body of a request, below a prefix of its path, which names this model if paths of its dialect do.
    pub(super) fn ask(
        &self,
        prefix: &str,
        model: Option<&str>,
        key: &str,
        body: &[u8],
    ) -> Result<Response, ClientError> {
        let dialect = dialect::of_body(body);
        let key = format!("{}: {key}", dialect.facts().key_field);
        let version = dialect.facts().version_field.map(|(name, value)| format!("{name}: {value}"));
        let fields: Vec<_> = [key, "content-type: application/json".to_owned()].into_iter().chain(version).collect();
        let path = model.map_or_else(|| dialect.path().into(), |model| dialect.path_of(model));
        self.post(&format!("{prefix}{path}"), &fields, body)
    }

    fn send(&self, method: &str, target: &str, fields: &[String], body: &[u8]) -> Result<Response, ClientError> {
        if self.tls {
            return Err(ClientError::TlsUnsupported(self.name.clone(), target.to_owned()));
        }
        let broken = |error| ClientError::Io(self.name.clone(), error);
        let (mut stream, host) = (self.connect()?, &self.host);
        let shown = self.credential.as_ref().map(|(field, key)| format!("{field}{}\r\n", key.expose()));
        let shown = shown.unwrap_or_default();
        let fields = fields.iter().fold(String::new(), |fields, field| fields + field + "\r\n");
        let head = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n{shown}{fields}connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).map_err(broken)?;
        let (bytes, read) = read_answer(&mut stream, self.patience);
        Response::read(bytes).map_err(|what| match read {
            Err(error) => broken(error),
            Ok(()) => ClientError::UnexpectedResponse(self.name.clone(), what),
        })
    }

    pub(super) fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        let connect = || -> io::Result<Box<dyn Stream>> {
            let address = match &self.address {
                Address::Tcp(address) => address,
                Address::Unix(path) => return Ok(Box::new(sockets::connect_blocking(path, self.patience)?)),
            };
            let stream = TcpStream::connect_timeout(address, STEP_TIMEOUT)?;
            stream.set_read_timeout(Some(self.patience))?;
            stream.set_write_timeout(Some(STEP_TIMEOUT))?;
            Ok(Box::new(stream))
        };
        connect().map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
                ClientError::NotListening(self.name.clone(), self.flag)
            }
            _ => ClientError::Io(self.name.clone(), error),
        })
    }
}

pub(super) trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// Reads an answer up to the end of the connection. All of it may take as long as `patience`, and a read that begins then once more.
fn read_answer(stream: &mut dyn Stream, patience: Duration) -> (Vec<u8>, io::Result<()>) {
    let (mut bytes, mut chunk, began) = (Vec::new(), [0; 16 << 10], Instant::now());
    let mut read = Ok(usize::MAX);
    while (bytes.len() as u64) < MAX_RESPONSE_BYTES && matches!(read, Ok(1..)) {
        read = if began.elapsed() < patience { stream.read(&mut chunk) } else { Err(ErrorKind::TimedOut.into()) };
        bytes.extend_from_slice(chunk.get(..*read.as_ref().unwrap_or(&0)).unwrap_or_default());
    }
    (bytes, read.map(drop))
}

/// The address of a proxy, and the value of its field `host`.
fn resolve(url: &str) -> Result<(Address, String), ClientError> {
    if let Some(path) = url.strip_prefix("unix:") {
        return Ok((Address::Unix(path.into()), LOCALHOST.to_owned()));
    }
    let uri = url.parse::<http::Uri>().ok().filter(|uri| uri.scheme_str() == Some("http"));
    let wrong = || ClientError::InvalidAddress(url.to_owned());
    let authority = uri.as_ref().and_then(http::Uri::authority).ok_or_else(wrong)?;
    let (host, port) = (authority.host(), authority.port_u16().unwrap_or(80));
    let addresses = (host.trim_matches(['[', ']']), port).to_socket_addrs();
    let address = addresses.map_err(|error| ClientError::Io(url.to_owned(), error))?.next().ok_or_else(wrong)?;
    let host = authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, host)| host);
    Ok((Address::Tcp(address), host.to_owned()))
}

// === impl Response ===

impl Response {
    /// Parses a response, cut at its `content-length`. The error describes what was received instead.
    fn read(mut bytes: Vec<u8>) -> Result<Self, String> {
        let shown = |bytes: &[u8]| {
            let line = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
            format!("{:?}", String::from_utf8_lossy(line.get(..80).unwrap_or(line)))
        };
        let end = memchr::memmem::find(bytes.get(..MAX_HEAD_BYTES).unwrap_or(&bytes), b"\r\n\r\n");
        let Some(end) = end else { return Err(shown(&bytes)) };
        let body = bytes.split_off(end + 4);
        let head = String::from_utf8_lossy(&bytes).into_owned();
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.split([' ', '\r']).next());
        let status = status.filter(|status| status.len() == 3).and_then(|status| status.parse().ok());
        let Some(status) = status else { return Err(shown(&bytes)) };
        let mut answer = Self { status, head, body };
        let length: Option<usize> = answer.header("content-length").and_then(|length| length.parse().ok());
        match length {
            Some(length) if length > answer.body.len() => return Err("an answer that breaks off".to_owned()),
            Some(length) => answer.body.truncate(length),
            None => {}
        }
        Ok(answer)
    }

    /// The value of a header field.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
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
    use super::*;

    #[test]
    fn a_response_is_cut_at_its_content_length_and_a_short_or_foreign_one_is_an_error() {
        let read = |text: &str| Response::read(text.as_bytes().to_vec());
        let answer = read("HTTP/1.1 404 Not Found\r\nX-A: b\r\ncontent-length: 3\r\n\r\nno\nmore").unwrap();
        assert_eq!((answer.status, &*answer.body, answer.header("x-a")), (404, &b"no\n"[..], Some("b")));
        assert_eq!(answer.first_line(), "no");
        for wrong in [
            "",
            "SSH-2.0-x\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 2000 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(read("SSH-2.0-\u{1b}x\r\n").unwrap_err(), r#""SSH-2.0-\u{1b}x""#);
    }

    #[test]
    fn an_address_is_an_http_url_or_a_unix_path() {
        assert!(matches!(resolve("unix:/a/b"), Ok((Address::Unix(path), _)) if path == std::path::Path::new("/a/b")));
        assert!(
            matches!(resolve("http://127.0.0.1:1"), Ok((Address::Tcp(address), host)) if address.port() == 1 && host == "127.0.0.1:1")
        );
        assert!(matches!(resolve("http://[::1]:1/"), Ok((Address::Tcp(address), _)) if address.is_ipv6()));
        for wrong in ["", "127.0.0.1:1", "https://127.0.0.1:1", "http://"] {
            assert!(matches!(resolve(wrong), Err(ClientError::InvalidAddress(_))), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_that_drips_has_a_limit() {
        /// A server that closes no connection, and sends a byte again and again.
        struct Dripping;
        impl Read for Dripping {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                std::thread::sleep(Duration::from_millis(5));
                buffer[0] = b'x';
                Ok(1)
            }
        }
        impl Write for Dripping {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                unreachable!("it is only read")
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (bytes, read) = read_answer(&mut Dripping, Duration::from_millis(300));
        assert_eq!(read.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
        assert!((1..=60).contains(&bytes.len()), "{}", bytes.len());
    }
}
