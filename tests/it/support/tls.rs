//! Certificates made for one test, and both sides of TLS with them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::within;

/// A self-signed certificate for `localhost` and `127.0.0.1`, and its files.
pub(crate) struct Certificate {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    der: CertificateDer<'static>,
    secret: Vec<u8>,
    folder: TempDir,
}

// === impl Certificate ===

impl Certificate {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        Self { cert, key, der: made.cert.der().clone(), secret: made.signing_key.serialize_der(), folder }
    }

    /// The lines of the configuration that make abridge listen with it.
    pub(crate) fn lines(&self) -> String {
        format!("tls.cert = \"{}\"\ntls.key = \"{}\"", self.cert.display(), self.key.display())
    }

    /// Puts the files of another certificate in place of these.
    pub(crate) fn replace_files(&self, other: &Self) {
        assert!(self.folder.path().exists());
        std::fs::copy(&other.cert, &self.cert).unwrap();
        std::fs::copy(&other.key, &self.key).unwrap();
    }

    /// The server's side, which offers these protocols.
    pub(crate) fn acceptor(&self, protocols: &[&str]) -> TlsAcceptor {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.secret.clone()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_no_client_auth().with_single_cert(vec![self.der.clone()], key).unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    /// The SHA-256 of the certificate, in hexadecimal digits.
    pub(crate) fn fingerprint(&self) -> String {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.der);
        digest.as_ref().iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"))
    }

    /// Connects as a client that trusts this certificate alone and offers these protocols.
    pub(crate) async fn connect(&self, to: SocketAddr, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_as(to, protocols, None).await
    }

    /// The same, with the certificate of the client.
    pub(crate) async fn connect_as(
        &self,
        to: SocketAddr,
        protocols: &[&str],
        client: Option<&Self>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots);
        let mut config = match client {
            None => config.with_no_client_auth(),
            Some(client) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(client.secret.clone()));
                config.with_client_auth_cert(vec![client.der.clone()], key).unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let socket = within("connect", TcpStream::connect(to)).await?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").unwrap();
        within("a TLS handshake", TlsConnector::from(Arc::new(config)).connect(name, socket)).await
    }
}
