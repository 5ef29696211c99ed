//! TLS to an engine: rustls, with the system's roots and those of `store.ca_file`.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use tokio_rustls::TlsConnector;

use crate::roots::{self, RootsError};

/// Makes TLS connections.
#[derive(Clone)]
pub(in crate::store) struct Tls(pub(in crate::store) TlsConnector);

// === impl Tls ===

impl Tls {
    /// TLS with the system's roots, or Mozilla's where there are none, and those in `ca_file`. If it is not used, the
    /// system's are not read.
    pub(in crate::store) fn new(ca_file: Option<&Path>, is_used: bool) -> Result<Self, RootsError> {
        let roots = if is_used { roots::of_system_or_mozilla() } else { RootCertStore::empty() };
        Ok(Self(TlsConnector::from(Arc::new(roots::tls_with(roots, ca_file)?))))
    }
}
