//! TLS to an engine: rustls, with the system's roots and those of `store.ca_file`.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::roots;
use crate::setup_error::SetupError;

/// Makes TLS connections.
#[derive(Clone)]
pub(in crate::store) struct Tls(TlsConnector);

/// A TLS connection to one host, as tokio-postgres takes it.
pub(in crate::store) struct ToHost {
    tls: Tls,
    name: ServerName<'static>,
}

/// What engines' clients ask of a stream.
pub(in crate::store) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

// === impl Tls ===

impl Tls {
    /// TLS with the system's roots, or Mozilla's where there are none, and those in `ca_file`. If it is not used, the
    /// system's are not read.
    pub(in crate::store) fn new(ca_file: Option<&Path>, is_used: bool) -> Result<Self, SetupError> {
        let roots = if is_used { roots::of_system_or_mozilla() } else { RootCertStore::empty() };
        Ok(Self(TlsConnector::from(Arc::new(roots::tls_with(roots, ca_file)?))))
    }

    /// TLS to the host of this name over a stream.
    pub(in crate::store) async fn connect(
        &self,
        name: ServerName<'static>,
        stream: impl Io + 'static,
    ) -> io::Result<Box<dyn Io>> {
        Ok(Box::new(self.0.connect(name, stream).await?))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Box<dyn Io>;
    type TlsConnect = ToHost;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<ToHost, InvalidDnsNameError> {
        Ok(ToHost { tls: self.clone(), name: ServerName::try_from(host.to_owned())? })
    }
}

impl TlsConnect<Socket> for ToHost {
    type Stream = Box<dyn Io>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { self.tls.connect(self.name, socket).await })
    }
}

impl TlsStream for Box<dyn Io> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
