//! Listening addresses and sockets: TCP and Unix.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smart_default::SmartDefault;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::admin::access::Exposure;
use crate::platform::sockets::{self, UnixListener, UnixStream};
use crate::units::one_or_more;

/// `"127.0.0.1:8787"`, `"[::1]:8787"`, `"localhost:8787"` or `"unix:/path"`; one, or a list of them.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(transparent)]
pub struct Addresses(#[default(vec![Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 8787)))])] pub Vec<Address>);

/// A listening address.
#[derive(Clone, Debug, derive_more::Display, Eq, PartialEq)]
pub enum Address {
    /// `127.0.0.1:8787`, `[::1]:8787`, `localhost:8787`.
    Tcp(SocketAddr),
    /// `unix:/run/abridge.sock`.
    #[display("unix:{}", _0.display())]
    Unix(PathBuf),
}

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// A TCP listener.
    Tcp(TcpListener),
    /// A Unix listener, and its file, which is removed when the listener is dropped.
    Unix(UnixListener, PathBuf),
}

/// An accepted connection.
#[derive(Debug)]
pub enum Socket {
    /// A TCP connection, with Nagle's algorithm off, which would delay each streamed event.
    Tcp(TcpStream),
    /// A connection on a Unix socket.
    Unix(UnixStream),
}

/// Why an address could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not an address: write \"127.0.0.1:8787\", \"[::1]:8787\", \"localhost:8787\" or \"unix:/path\"")]
pub struct AddressError;

/// The URL of abridge for tools on this machine, from the first TCP address. `recall.public_url` overrides it.
pub fn local_url(addresses: &[Address], tls: bool) -> Option<String> {
    let address = addresses.iter().find_map(|address| match address {
        Address::Tcp(address) => Some(loopback_if_unspecified(*address)),
        Address::Unix(_) => None,
    })?;
    Some(format!("{}://{address}", if tls { "https" } else { "http" }))
}

/// The loopback address in place of an unspecified one, such as `0.0.0.0`.
pub fn loopback_if_unspecified(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    address
}

// === impl Addresses ===

impl<'de> Deserialize<'de> for Addresses {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let addresses =
            one_or_more(from, "an address such as \"127.0.0.1:8787\" or \"unix:/path\", or a list of them")?;
        if addresses.is_empty() {
            return Err(de::Error::invalid_length(0, &"at least one address"));
        }
        Ok(Self(addresses))
    }
}

// === impl Address ===

impl Address {
    /// Who can reach it.
    pub fn exposure(&self) -> Exposure {
        match self {
            Self::Tcp(address) => Exposure::of(*address),
            Self::Unix(_) => Exposure::Unix,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(AddressError) } else { Ok(Self::Unix(path.into())) };
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            let port = port.parse().map_err(|_| AddressError)?;
            return Ok(Self::Tcp(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        text.parse().map(Self::Tcp).map_err(|_| AddressError)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|error: AddressError| de::Error::custom(format_args!("{text:?} is {error}")))
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

// === impl Listener ===

/// The length of the kernel's accept queue; the kernel has its own limit, often 4096.
const BACKLOG: u32 = 4096;

impl Listener {
    /// Binds an address. Must be called in the runtime.
    ///
    /// # Errors
    ///
    /// When the address is taken, or may not be used.
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                sockets::reuse_address(&socket)?;
                socket.bind(*address)?;
                Ok(Self::Tcp(socket.listen(BACKLOG)?))
            }
            Address::Unix(path) => Ok(Self::Unix(sockets::listen(path)?, path.clone())),
        }
    }

    /// The bound address, with the port that the system chose for port 0.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(_, file) => Ok(Address::Unix(file.clone())),
        }
    }

    /// The hosts that can reach the listener.
    pub fn exposure(&self) -> Exposure {
        // An unknown address counts as reachable from the network.
        self.address().map_or(Exposure::Network, |address| address.exposure())
    }

    /// Accepts the next connection.
    pub async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (tcp, _) = listener.accept().await?;
                tcp.set_nodelay(true)?;
                Ok(Socket::Tcp(tcp))
            }
            Self::Unix(listener, _) => sockets::accept(listener).await.map(Socket::Unix),
        }
    }
}

impl Socket {
    /// The address that the connection comes from; `None` for a Unix socket.
    pub fn peer(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(tcp) => Some(tcp.peer_addr().ok()?.ip().to_canonical()),
            Self::Unix(_) => None,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, file) = self {
            // The file may already have been removed.
            let _ = std::fs::remove_file(file);
        }
    }
}
