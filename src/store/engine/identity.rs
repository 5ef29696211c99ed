//! Whose data it is: the secret that all names are made with.

use std::sync::OnceLock;

use zeroize::Zeroizing;

use super::error::EngineError;
use crate::store::secret::{Secrets, Texts, check_value};

/// The identity that the engine is to have, and the secret once it is known.
pub(in crate::store) struct Identity {
    secrets: Secrets,
    texts: Texts,
    /// A secret that the engine gets if it has none.
    fresh: Zeroizing<[u8; 32]>,
    found: OnceLock<Zeroizing<[u8; 32]>>,
}

/// A connection that reads and writes what an engine keeps about the fleet itself.
pub(in crate::store) trait Meta: Sync {
    fn value(&self, name: &str) -> impl Future<Output = Result<Option<Vec<u8>>, EngineError>> + Send;

    fn put_if_absent(&self, name: &str, value: &[u8]) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Replaces a value, if it is still `old`.
    fn replace(&self, name: &str, old: &[u8], value: &[u8]) -> impl Future<Output = Result<(), EngineError>> + Send;
}

// === impl Identity ===

impl Identity {
    pub(super) fn new(secrets: Secrets, texts: Texts, fresh: [u8; 32]) -> Self {
        Self { secrets, texts, fresh: Zeroizing::new(fresh), found: OnceLock::new() }
    }

    /// The secret: that of the settings, or the engine's own once it was read.
    pub(super) fn secret(&self) -> Option<[u8; 32]> {
        self.secrets.current().or_else(|| self.found.get().map(|secret| **secret))
    }

    /// Whether the settings give the secret.
    pub(super) fn is_given(&self) -> bool {
        self.secrets.current().is_some()
    }

    /// Checks what is after a new connection. An engine that has no secret gets one.
    pub(in crate::store) async fn check(&self, engine: &impl Meta) -> Result<(), EngineError> {
        match self.secrets.current() {
            Some(secret) => self.check_secret(engine, &secret).await,
            None => self.read_secret(engine).await,
        }
    }

    /// The engine holds a hash of the secret, so that a process with another one finds out.
    async fn check_secret(&self, engine: &impl Meta, secret: &[u8; 32]) -> Result<(), EngineError> {
        if engine.value("secret").await?.is_some() {
            return Err(EngineError::OwnSecret);
        }
        let value = check_value(secret, self.texts);
        engine.put_if_absent("secret_check", &value).await?;
        let stored = engine.value("secret_check").await?.unwrap_or_default();
        if stored == value {
            return Ok(());
        }
        let is_of = |texts| self.secrets.old().chain([secret]).any(|secret| stored == check_value(secret, texts));
        if is_of(self.texts) {
            return engine.replace("secret_check", &stored, &value).await;
        }
        Err(match self.texts {
            Texts::Plain if is_of(Texts::Sealed) => EngineError::Sealed,
            Texts::Sealed if is_of(Texts::Plain) => EngineError::NotSealed,
            _ => EngineError::OtherSecret,
        })
    }

    /// Of several processes that start at once, one makes the secret.
    async fn read_secret(&self, engine: &impl Meta) -> Result<(), EngineError> {
        if engine.value("secret_check").await?.is_some() {
            return Err(EngineError::OtherSecret);
        }
        // An engine that has lost everything gets the secret that this process names everything with.
        let secret = self.found.get().unwrap_or(&self.fresh);
        engine.put_if_absent("secret", secret.as_slice()).await?;
        let stored = engine.value("secret").await?.and_then(|secret| secret.try_into().ok());
        let stored: [u8; 32] = stored.ok_or(EngineError::Damaged)?;
        // A database that was replaced by another one names nothing that this process has named.
        if **self.found.get_or_init(|| Zeroizing::new(stored)) == stored {
            Ok(())
        } else {
            Err(EngineError::OtherSecret)
        }
    }
}
