//! `abridge health`: asks a running proxy whether it is alive; made for the health check of a container.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::cli::Exit;
use crate::config::Config;
use crate::server::listen::Address;

/// How long each step may take: to connect, to send, to be answered.
const PATIENCE: Duration = Duration::from_secs(3);

const PATH: &str = "/abridge/healthz";

/// Whom to ask.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The proxy's address.
    #[arg(long, help = "The proxy's address: http://host:port or unix:/path [default: the first of server.listen]")]
    url: Option<String>,
}

/// Why the proxy does not count as healthy.
#[derive(Debug, thiserror::Error)]
enum Ill {
    #[error("no answer from {0}")]
    NoAnswer(String, #[source] io::Error),
    #[error("{0} answers {1:?}")]
    WrongAnswer(String, String),
    #[error("{0:?} is no address to ask; write http://host:port or unix:/path")]
    Address(String),
    #[error("server.listen leaves the port to the system; say with --url which one it is")]
    FreePort,
}

/// Says on standard error why not, if the proxy is not healthy.
pub fn run(args: &Args, config: &Config) -> Exit {
    match ask(args.url.as_deref(), config) {
        Ok(()) => Exit::Ok,
        Err(ill) => {
            crate::cli::complain(&ill.into());
            Exit::No
        }
    }
}

/// Whether an abridge answers at this address; whether anything does, if it speaks TLS.
pub(super) fn answers(address: &Address, tls: bool) -> bool {
    match address {
        Address::Unix(path) => ask_socket(path).is_ok(),
        Address::Tcp(address) => reachable(*address).is_ok_and(|address| ask_port(address, tls).is_ok()),
    }
}

fn ask(url: Option<&str>, config: &Config) -> Result<(), Ill> {
    if let Some(url) = url {
        if let Some(path) = url.strip_prefix("unix:") {
            return ask_socket(Path::new(path));
        }
        let uri = url.parse::<http::Uri>().ok().filter(|uri| uri.scheme_str() == Some("http"));
        let host = uri.as_ref().and_then(http::Uri::host).ok_or_else(|| Ill::Address(url.to_owned()))?;
        let port = uri.as_ref().and_then(http::Uri::port_u16).unwrap_or(80);
        let ill = |error| Ill::NoAnswer(url.to_owned(), error);
        let mut addresses = (host.trim_matches(['[', ']']), port).to_socket_addrs().map_err(ill)?;
        let address = addresses.next().ok_or_else(|| Ill::Address(url.to_owned()))?;
        return ask_port(address, false);
    }
    match config.server.listen.0.first() {
        Some(Address::Unix(path)) => ask_socket(path),
        Some(Address::Tcp(address)) => ask_port(reachable(*address)?, config.tls.is_some()),
        None => Err(Ill::FreePort),
    }
}

/// An address that stands for every one of the machine is asked at the machine itself.
fn reachable(address: SocketAddr) -> Result<SocketAddr, Ill> {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    if address.port() == 0 { Err(Ill::FreePort) } else { Ok(SocketAddr::new(ip, address.port())) }
}

fn ask_port(address: SocketAddr, tls: bool) -> Result<(), Ill> {
    let ill = |error| Ill::NoAnswer(address.to_string(), error);
    let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(ill)?;
    if tls {
        return Ok(());
    }
    stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE))).map_err(ill)?;
    exchange(stream, &address.to_string())
}

fn ask_socket(path: &Path) -> Result<(), Ill> {
    let name = path.display().to_string();
    let ill = |error| Ill::NoAnswer(name.clone(), error);
    let stream = UnixStream::connect(path).map_err(ill)?;
    stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE))).map_err(ill)?;
    exchange(stream, &name)
}

/// One request, and the first line of its answer. The answer's length is bounded, whoever it comes from.
fn exchange(mut stream: impl Read + Write, name: &str) -> Result<(), Ill> {
    let ill = |error| Ill::NoAnswer(name.to_owned(), error);
    write!(stream, "GET {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").map_err(ill)?;
    let mut answer = [0; "HTTP/1.1 200 ".len()];
    stream.read_exact(&mut answer).map_err(ill)?;
    if &answer == b"HTTP/1.1 200 " {
        return Ok(());
    }
    Err(Ill::WrongAnswer(name.to_owned(), String::from_utf8_lossy(&answer).trim_end().to_owned()))
}
