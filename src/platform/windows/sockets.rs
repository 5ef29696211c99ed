//! Sockets. Windows has Unix sockets, and neither the standard library nor tokio offers them there.

use std::io::{self, ErrorKind};
use std::path::Path;

use tokio::net::TcpSocket;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// A listener that no one can make.
#[derive(Debug)]
pub enum UnixListener {}

/// The type of the connections that are never made.
pub type UnixStream = tokio::net::TcpStream;

/// Does nothing: the address is free at once, and the option would let two listeners have it.
pub fn reuse_address(_socket: &TcpSocket) -> io::Result<()> {
    Ok(())
}

/// Fails.
pub fn listen(_path: &Path) -> io::Result<UnixListener> {
    Err(unsupported())
}

/// Is never called: no listener exists.
pub async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    match *listener {}
}

/// Fails.
pub async fn connect(_path: &Path) -> io::Result<UnixStream> {
    Err(unsupported())
}

/// The name of a host of PostgreSQL.
pub fn host_name<'a>(host: &'a Host, _to: &mut Config) -> Option<&'a str> {
    let Host::Tcp(name) = host;
    Some(name)
}

fn unsupported() -> io::Error {
    let why = "abridge has no Unix sockets on this system; allowed: a TCP address such as 127.0.0.1:8787";
    io::Error::new(ErrorKind::Unsupported, why)
}
