//! Asks a running proxy over HTTP: `abridge health`, `status`, `show` and `diff`.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Config, Secret, Sources};
use crate::server::listen::Address;

/// The variable with the token of `[admin]`.
pub(super) const TOKEN: &str = "ABRIDGE_ADMIN_TOKEN";

/// How long each step may take: to connect, to send, to be answered.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer that is read, in bytes. Those of a proxy are shorter.
const LONGEST: u64 = 64 << 20;
const LONGEST_HEAD: usize = 64 << 10;

/// Where a proxy is.
#[derive(Debug)]
pub(super) struct Proxy {
    place: Place,
    /// As messages have it.
    name: String,
    tls: bool,
    token: Option<Secret>,
}

#[derive(Debug)]
enum Place {
    Tcp(SocketAddr, String),
    Unix(PathBuf),
}

/// An answer that was read whole.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Answer {
    pub(super) status: u16,
    head: String,
    pub(super) body: Vec<u8>,
}

/// Why there is no answer, or none that helps.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Nobody is there.
    #[error(
        "nothing listens on {0}; start a proxy with `abridge`, or say with --{1} where it is, if it has other settings"
    )]
    Nobody(String, &'static str),
    /// There is no connection, or it broke.
    #[error("no answer from {0}")]
    Broken(String, #[source] io::Error),
    /// What came is no answer of ours.
    #[error("what answers on {0} is no abridge that knows this command: {1}")]
    NotOurs(String, String),
    /// The command line names no place.
    #[error("{0:?} is no address to ask; write http://host:port or unix:/path")]
    Address(String),
    /// The settings name no port.
    #[error("server.listen leaves the port to the system; say with --{0} which one it is")]
    FreePort(&'static str),
    /// TLS is not spoken here.
    #[error("{0} speaks TLS, which this command does not; name a listener without it, or ask {1} with curl")]
    Tls(String, String),
}

/// Where and as whom to ask, said on the command line.
#[derive(clap::Args, Debug)]
pub struct At {
    /// The proxy's address.
    #[arg(long, value_name = "URL")]
    #[arg(
        help = "The proxy's address: http://host:port or unix:/path [default: the first of admin.listen or server.listen]"
    )]
    at: Option<String>,
}

impl At {
    /// The proxy, with the token that the environment has.
    pub(super) fn proxy(&self, sources: &Sources, config: &Config) -> anyhow::Result<Proxy> {
        let named = config.admin.token_env.as_deref();
        let mut token = sources.variables.secret(TOKEN)?;
        if let (None, Some(named)) = (&token, named) {
            token = sources.variables.secret(named)?;
        }
        let operators = config.admin.listen.as_ref().and_then(|listen| listen.0.first());
        let address = operators.or(config.server.listen.0.first());
        Ok(Proxy { token, ..Proxy::of(self.at.as_deref(), address, config, "at")? })
    }
}

// === impl Proxy ===

impl Proxy {
    /// The proxy at a URL, or else at an address of these settings. `flag` is the one that would name another.
    pub(super) fn of(
        url: Option<&str>,
        address: Option<&Address>,
        config: &Config,
        flag: &'static str,
    ) -> Result<Self, Unanswered> {
        let (place, name, tls) = match (url, address) {
            (Some(url), _) => (place(url)?, url.to_owned(), false),
            (None, Some(Address::Unix(path))) => (Place::Unix(path.clone()), format!("unix:{}", path.display()), false),
            (None, Some(Address::Tcp(address))) if address.port() != 0 => {
                let address = reachable(*address);
                (Place::Tcp(address, address.to_string()), address.to_string(), config.tls.is_some())
            }
            (None, _) => return Err(Unanswered::FreePort(flag)),
        };
        Ok(Self { place, name, tls, token: None })
    }

    /// Whether it speaks TLS, so that it cannot be asked anything here.
    pub(super) fn speaks_tls(&self) -> bool {
        self.tls
    }

    /// Where it is, for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Connects, and no more.
    pub(super) fn knock(&self, flag: &'static str) -> Result<(), Unanswered> {
        self.connect(flag).map(drop)
    }

    /// One request, and its answer.
    pub(super) fn get(&self, target: &str, flag: &'static str) -> Result<Answer, Unanswered> {
        if self.tls {
            return Err(Unanswered::Tls(self.name.clone(), target.to_owned()));
        }
        let broken = |error| Unanswered::Broken(self.name.clone(), error);
        let mut stream = self.connect(flag)?;
        let host = match &self.place {
            Place::Tcp(_, host) => host,
            Place::Unix(_) => "localhost",
        };
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {}\r\n", token.expose()));
        let token = token.unwrap_or_default();
        let head = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n{token}connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).map_err(broken)?;
        let mut bytes = Vec::new();
        let read = stream.take(LONGEST).read_to_end(&mut bytes);
        Answer::read(bytes).map_err(|what| match read {
            Err(error) => broken(error),
            Ok(_) => Unanswered::NotOurs(self.name.clone(), what),
        })
    }

    fn connect(&self, flag: &'static str) -> Result<Box<dyn Stream>, Unanswered> {
        let connected: io::Result<Box<dyn Stream>> = match &self.place {
            Place::Tcp(address, _) => TcpStream::connect_timeout(address, PATIENCE).and_then(|stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
            Place::Unix(path) => UnixStream::connect(path).and_then(|stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
        };
        connected.map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => Unanswered::Nobody(self.name.clone(), flag),
            _ => Unanswered::Broken(self.name.clone(), error),
        })
    }
}

trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

fn place(url: &str) -> Result<Place, Unanswered> {
    if let Some(path) = url.strip_prefix("unix:") {
        return Ok(Place::Unix(path.into()));
    }
    let uri = url.parse::<http::Uri>().ok().filter(|uri| uri.scheme_str() == Some("http"));
    let wrong = || Unanswered::Address(url.to_owned());
    let authority = uri.as_ref().and_then(http::Uri::authority).ok_or_else(wrong)?;
    let (host, port) = (authority.host(), authority.port_u16().unwrap_or(80));
    let mut addresses = (host.trim_matches(['[', ']']), port)
        .to_socket_addrs()
        .map_err(|error| Unanswered::Broken(url.to_owned(), error))?;
    let address = addresses.next().ok_or_else(wrong)?;
    let host = authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, host)| host);
    Ok(Place::Tcp(address, host.to_owned()))
}

/// An address that stands for every one of the machine is asked at the machine itself.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

// === impl Answer ===

impl Answer {
    /// Reads an answer of known length; the error says what came instead.
    fn read(mut bytes: Vec<u8>) -> Result<Self, String> {
        let shown = |bytes: &[u8]| {
            let line = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
            format!("{:?}", String::from_utf8_lossy(line.get(..80).unwrap_or(line)))
        };
        let end = memchr::memmem::find(bytes.get(..LONGEST_HEAD).unwrap_or(&bytes), b"\r\n\r\n");
        let Some(end) = end else { return Err(shown(&bytes)) };
        let body = bytes.split_off(end + 4);
        let head = String::from_utf8_lossy(&bytes).into_owned();
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.split([' ', '\r']).next());
        let status = status.filter(|status| status.len() == 3).and_then(|status| status.parse().ok());
        let Some(status) = status else { return Err(shown(&bytes)) };
        let mut answer = Self { status, head, body };
        let length: Option<usize> = answer.field("content-length").and_then(|length| length.parse().ok());
        match length {
            Some(length) if length > answer.body.len() => return Err("an answer that breaks off".to_owned()),
            Some(length) => answer.body.truncate(length),
            None => {}
        }
        Ok(answer)
    }

    /// A field of its head.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// What it says, on one line.
    pub(super) fn sentence(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let line = text.lines().next().unwrap_or_default().trim();
        super::escape::line(if line.is_empty() { "no reason given" } else { line }, 500)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_its_length() {
        let read = |text: &str| Answer::read(text.as_bytes().to_vec());
        let answer = read("HTTP/1.1 404 Not Found\r\nX-A: b\r\ncontent-length: 3\r\n\r\nno\nmore").unwrap();
        assert_eq!((answer.status, &*answer.body, answer.field("x-a")), (404, &b"no\n"[..], Some("b")));
        assert_eq!(answer.sentence(), "no");
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
    fn an_address_is_one_of_two_forms() {
        assert!(matches!(place("unix:/a/b"), Ok(Place::Unix(path)) if path == std::path::Path::new("/a/b")));
        assert!(
            matches!(place("http://127.0.0.1:1"), Ok(Place::Tcp(address, host)) if address.port() == 1 && host == "127.0.0.1:1")
        );
        assert!(matches!(place("http://[::1]:1/"), Ok(Place::Tcp(address, _)) if address.is_ipv6()));
        for wrong in ["", "127.0.0.1:1", "https://127.0.0.1:1", "http://"] {
            assert!(matches!(place(wrong), Err(Unanswered::Address(_))), "{wrong:?}");
        }
    }
}
