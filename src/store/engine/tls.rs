//! TLS to an engine: rustls, with the system's roots and those of `store.ca_file`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::TlsError;

/// Makes TLS connections.
#[derive(Clone)]
pub(in crate::store) struct Tls(TlsConnector);

// === impl Tls ===

impl Tls {
    /// TLS with the system's roots, or Mozilla's where there are none, and those in `ca_file`. If it is not used, the
    /// system's are not read.
    pub(in crate::store) fn new(ca_file: Option<&Path>, is_used: bool) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        if is_used {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        if let Some(path) = ca_file {
            let unread = |source| TlsError::Roots { path: path.to_owned(), source };
            let before = roots.len();
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unread(Some(error)))? {
                roots.add(certificate.map_err(|error| unread(Some(error)))?)?;
            }
            if roots.len() == before {
                return Err(unread(None));
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Encrypts a connection to the host of this name.
    pub(in crate::store) async fn encrypt<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        name: ServerName<'static>,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        self.0.connect(name, stream).await
    }
}
