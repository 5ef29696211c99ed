//! Sockets: the address of a listener that has ended, and Unix sockets.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net;
use std::path::Path;

use tokio::net::TcpSocket;
pub use tokio::net::{UnixListener, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// Lets a listener have the address of one that has just ended.
pub fn reuse_address(socket: &TcpSocket) -> io::Result<()> {
    socket.set_reuseaddr(true)
}

/// Listens at a path. The file of a process that was killed is removed before.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path)?;
    UnixListener::bind(path)
}

/// Accepts the next connection.
pub async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    listener.accept().await.map(|(stream, _)| stream)
}

/// Connects to the listener at a path.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}

/// The name of a host of PostgreSQL. Where it is a Unix socket it has none, and its path is set in `to`.
pub fn host_name<'a>(host: &'a Host, to: &mut Config) -> Option<&'a str> {
    match host {
        Host::Tcp(name) => Some(name),
        Host::Unix(path) => {
            to.host_path(path);
            None
        }
    }
}

/// Removes the socket file of a process that was killed, if no process listens on it. No other file is removed.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => {}
        _ => return Ok(()),
    }
    match net::UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_postgresql_is_a_name_or_a_path() {
        let hosts: Config = "host=db,/run/postgresql".parse().unwrap();
        let mut set = Config::new();
        let names: Vec<_> = hosts.get_hosts().iter().map(|host| host_name(host, &mut set)).collect();
        assert_eq!(names, [Some("db"), None]);
        assert_eq!(set.get_hosts(), [Host::Unix("/run/postgresql".into())]);
    }
}
