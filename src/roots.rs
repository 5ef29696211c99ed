//! The certificates that the other end of a connection is checked with.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// A file with roots could not be read, or holds none.
    #[error("no certificate could be read from {}", path.display())]
    File {
        /// The file.
        path: Box<Path>,
        /// The cause; `None` if the file holds no certificate.
        source: Option<pem::Error>,
    },
    /// A certificate is not valid.
    #[error("a certificate in {} is not valid", path.display())]
    Invalid {
        /// The file.
        path: Box<Path>,
        /// The cause.
        source: rustls::Error,
    },
    /// The TLS library rejected its default configuration.
    #[error("TLS could not be set up")]
    Tls(#[source] rustls::Error),
}

/// The system's roots, which may be none.
pub fn of_system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// The system's roots, or Mozilla's where the system has none, as in a bare container.
pub fn of_system_or_mozilla() -> RootCertStore {
    let mut roots = of_system();
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

/// TLS with these roots and those of a file.
pub fn tls_with(mut roots: RootCertStore, ca_file: Option<&Path>) -> Result<ClientConfig, RootsError> {
    if let Some(path) = ca_file {
        let unreadable = |source| RootsError::File { path: path.into(), source };
        let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|source| unreadable(Some(source)))?;
        if certificates.is_empty() {
            return Err(unreadable(None));
        }
        for certificate in certificates {
            roots.add(certificate).map_err(|source| RootsError::Invalid { path: path.into(), source })?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(RootsError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
