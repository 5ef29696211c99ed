//! The certificates that the other end of a connection is checked with.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::setup_error::SetupError;

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
pub fn tls_with(mut roots: RootCertStore, ca_file: Option<&Path>) -> Result<ClientConfig, SetupError> {
    if let Some(path) = ca_file {
        let path_shown = path.display();
        let unreadable = format!("no certificate could be read from {path_shown}");
        let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = certificates.map_err(|error| SetupError::because(&*unreadable, error))?;
        if certificates.is_empty() {
            return Err(SetupError::new(unreadable));
        }
        for certificate in certificates {
            let invalid = |error| SetupError::because(format!("a certificate in {path_shown} is not valid"), error);
            roots.add(certificate).map_err(invalid)?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| SetupError::because("TLS could not be set up", error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
