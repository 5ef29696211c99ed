//! The clients that the settings name: each shows a token or a TLS certificate, of which the settings have the hash.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::setup_error::SetupError;

/// `[clients]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The clients that may use abridge: a name, and the SHA-256 in hexadecimal digits of the token that the client sends
    /// (`printf %s TOKEN | sha256sum`) or of its TLS certificate (`openssl x509 -in FILE -outform der | sha256sum`, with
    /// `tls.client_ca`). A client sends its token in place of a key (`authorization`, `x-api-key`, `api-key`), or, if it has a
    /// key for the upstream, as `x-abridge-client: TOKEN`. Other requests get 401. The names are in log lines and metrics. If
    /// this table is empty and `file` is not set, every client may use abridge.
    ///
    /// Example: `alice = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"`
    pub tokens: BTreeMap<String, String>,
    /// A file with further clients: a line has a name, a blank and such a hash. Lines that begin with `#` are comments. A
    /// reload reads it again.
    ///
    /// Not set: there are no others.
    ///
    /// Example: `"/etc/abridge/clients"`
    pub file: Option<PathBuf>,
}

/// The known clients. Without any, every client may use abridge.
#[derive(Debug, Default)]
pub struct Clients(BTreeMap<Sha256, Arc<Client>>);

/// A known client.
#[derive(Debug)]
pub struct Client {
    /// Its name.
    pub name: String,
    requests: AtomicU64,
}

/// A hash of a token or of a certificate.
pub type Sha256 = [u8; 32];

// === impl Clients ===

impl Clients {
    /// The clients of the settings; `file` is the text of [`Settings::file`].
    pub fn new(settings: &Settings, file: &str) -> Result<Self, SetupError> {
        let mut clients = Self::default();
        for (name, hash) in &settings.tokens {
            clients.add(name, hash)?;
        }
        let path = settings.file.as_deref().unwrap_or(Path::new(""));
        for (n, line) in file.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
        {
            let mut words = line.split_whitespace();
            let (Some(name), Some(hash), None) = (words.next(), words.next(), words.next()) else {
                let (path, line) = (path.display(), n + 1);
                return Err(SetupError::new(format!("{path}:{line}: a line has a name, a blank and a SHA-256")));
            };
            clients.add(name, hash)?;
        }
        Ok(clients)
    }

    fn add(&mut self, name: &str, hash: &str) -> Result<(), SetupError> {
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
        if name.is_empty() || name.len() > 64 || !name.bytes().all(is_name_byte) {
            let allowed = "up to 64 letters, digits, `-`, `_`, `.` and `@`";
            return Err(SetupError::new(format!("{name:?} is not the name of a client; allowed: {allowed}")));
        }
        // It has the form of a hash of blake3, which reads hexadecimal digits.
        let digest = blake3::Hash::from_hex(hash).map_err(|_| {
            // The user may have written the token itself.
            let allowed = "64 hexadecimal digits, as `printf %s TOKEN | sha256sum` prints";
            SetupError::new(format!("the hash of client {name:?} is not a SHA-256; allowed: {allowed}"))
        })?;
        let client = Arc::new(Client { name: name.to_owned(), requests: AtomicU64::new(0) });
        match self.0.insert(*digest.as_bytes(), client).as_deref() {
            Some(Client { name: other, .. }) => {
                let allowed = "a token of its own for each client";
                let what = format!("clients {other:?} and {name:?} have the same hash; allowed: {allowed}");
                Err(SetupError::new(what))
            }
            None => Ok(()),
        }
    }

    /// Whether only known clients may use abridge.
    pub fn are_required(&self) -> bool {
        !self.0.is_empty()
    }

    /// The client with this token.
    pub fn with_token(&self, token: &[u8]) -> Option<&Arc<Client>> {
        self.with_digest(&sha256(token))
    }

    /// The client whose token or certificate has this hash. The hash of what a stranger sends says nothing about hashes in
    /// the settings, so it may be looked up in a time that depends on it.
    pub fn with_digest(&self, digest: &Sha256) -> Option<&Arc<Client>> {
        self.0.get(digest)
    }

    /// Each client's name, and how many requests it has sent.
    pub fn counts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.values().map(|client| (client.name.as_str(), client.requests.load(Ordering::Relaxed)))
    }
}

impl Client {
    /// Counts a request.
    pub fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

/// The hash of a token or of a certificate.
pub fn sha256(bytes: &[u8]) -> Sha256 {
    digest(&SHA256, bytes).as_ref().try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `password` and `abc`.
    const PASSWORD: &str = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn settings(tokens: &[(&str, &str)]) -> Settings {
        let tokens = tokens.iter().map(|(name, hash)| ((*name).to_owned(), (*hash).to_owned())).collect();
        Settings { tokens, file: Some("clients".into()) }
    }

    #[test]
    fn clients_are_known_by_their_tokens_from_the_settings_and_the_file() {
        let file = format!("# the second\n\n bob\t{}  \n", ABC.to_ascii_uppercase());
        let clients = Clients::new(&settings(&[("alice", PASSWORD)]), &file).unwrap();
        let name = |token: &str| clients.with_token(token.as_bytes()).map(|client| client.name.as_str());
        assert_eq!([name("password"), name("abc"), name("abcd"), name("")], [Some("alice"), Some("bob"), None, None]);
        assert!(clients.are_required() && !Clients::default().are_required());
        clients.with_token(b"abc").unwrap().count();
        assert_eq!(clients.counts().find(|(_, n)| *n > 0), Some(("bob", 1)));
    }

    #[test]
    fn what_is_no_client_is_an_error_that_does_not_show_it() {
        let error = |settings: &Settings, file: &str| Clients::new(settings, file).unwrap_err().to_string();
        let long = "x".repeat(65);
        for name in ["", "a b", "a\u{1b}", "é", &long] {
            let error = error(&settings(&[(name, ABC)]), "");
            assert!(error.starts_with(&format!("{name:?} is not the name of a client; ")), "{error}");
        }
        for hash in ["", "abc", ABC.split_at(1).1, &format!("{ABC}0"), &ABC.replace('b', "x")] {
            let error = error(&settings(&[("alice", hash)]), "");
            assert!(error.starts_with("the hash of client \"alice\" is not a SHA-256; "), "{error}");
            assert!(hash.is_empty() || !error.contains(hash));
        }
        assert!(error(&settings(&[]), "a b c").contains(":1: a line has a name"));
        assert!(error(&settings(&[]), "#\nalice").contains(":2: a line has a name"));
        let twice = error(&settings(&[("alice", ABC)]), &format!("bob {ABC}"));
        assert!(twice.starts_with("clients \"alice\" and \"bob\" have the same hash; "), "{twice}");
    }
}
