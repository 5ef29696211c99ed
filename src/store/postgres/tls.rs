//! TLS as tokio-postgres takes it.

use std::future::Future;
use std::io;
use std::pin::Pin;

use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

use crate::store::engine::tls::Tls;

/// A TLS connection to one host.
pub(in crate::store) struct ToHost {
    tls: Tls,
    name: ServerName<'static>,
}

/// What tokio-postgres asks of a stream.
pub(in crate::store) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

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
        Box::pin(async move { Ok(Box::new(self.tls.0.connect(self.name, socket).await?) as Self::Stream) })
    }
}

impl TlsStream for Box<dyn Io> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
