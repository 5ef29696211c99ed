//! TLS for accepted connections: certificate, key, and their reload.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::setup_error::SetupError;

/// `[tls]` of `proxy.toml`: both files, or no TLS. The two may come from different sources, the file and the environment,
/// so `Config::load` checks that neither is missing.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// PEM file with the certificate chain, the server's own certificate first.
    ///
    /// Example: `"cert.pem"`
    pub cert: PathBuf,
    /// PEM file with the private key.
    ///
    /// Example: `"key.pem"`
    pub key: PathBuf,
    /// PEM file with the certificates that clients' certificates are signed with. A client without such a certificate gets no
    /// connection. `[clients]` gives them names.
    ///
    /// Not set: clients show no certificate.
    ///
    /// Example: `"clients-ca.pem"`
    pub client_ca: Option<PathBuf>,
}

/// Accepts TLS with the current certificate. Clones share it, so that one reload reaches every listener.
#[derive(Clone, Debug)]
pub struct Acceptor(Arc<ArcSwap<ServerConfig>>);

// === impl Acceptor ===

impl Acceptor {
    /// Reads certificate and key.
    pub fn new(settings: &Settings) -> Result<Self, SetupError> {
        server_config(settings).map(|config| Self(Arc::new(ArcSwap::from_pointee(config))))
    }

    /// Reads them again. If that fails, the old ones stay in use.
    pub fn reload(&self, settings: &Settings) -> Result<(), SetupError> {
        server_config(settings).map(|config| self.0.store(Arc::new(config)))
    }

    /// Performs the TLS handshake.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.0.load_full()).accept(tcp).await
    }
}

fn server_config(settings: &Settings) -> Result<ServerConfig, SetupError> {
    let unreadable = |path: &Path| {
        let what = format!("{} could not be read", path.display());
        move |error: pem::Error| SetupError::because(what, error)
    };
    let unusable = |path: &Path| {
        let what = format!("the certificate in {} cannot be used with this key", path.display());
        move |error: rustls::Error| SetupError::because(what, error)
    };
    let empty = |path: &Path| SetupError::new(format!("{} holds no certificate", path.display()));
    let chain: Vec<_> = CertificateDer::pem_file_iter(&settings.cert)
        .and_then(Iterator::collect)
        .map_err(unreadable(&settings.cert))?;
    if chain.is_empty() {
        return Err(empty(&settings.cert));
    }
    let key = PrivateKeyDer::from_pem_file(&settings.key).map_err(unreadable(&settings.key))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unusable(&settings.cert))?;
    let builder = match &settings.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in CertificateDer::pem_file_iter(path).map_err(unreadable(path))? {
                roots.add(root.map_err(unreadable(path))?).map_err(unusable(path))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|_| empty(path))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(unusable(&settings.cert))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
