//! The secret of a store that several processes use, as the settings give it, and whose data it is in an engine: that of the
//! secret that all names are made with.

use std::io;
use std::sync::OnceLock;

use zeroize::Zeroizing;

use super::engine_error::{EngineError, EngineResult};

/// The secrets of the settings.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("Secrets(***)")]
pub struct Secrets {
    current: Option<Zeroizing<[u8; 32]>>,
    old: Vec<Zeroizing<[u8; 32]>>,
}

/// The text is not a secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not 64 hexadecimal digits; `openssl rand -hex 32` prints a secret")]
pub struct NotASecret;

// === impl Secrets ===

impl Secrets {
    /// The secret in force, and those that it has replaced, separated by commas.
    pub fn parse(current: Option<&str>, old: Option<&str>) -> Result<Self, NotASecret> {
        let old = old.into_iter().flat_map(|old| old.split(',')).map(str::trim).filter(|old| !old.is_empty());
        Ok(Self { current: current.map(parse).transpose()?, old: old.map(parse).collect::<Result<_, _>>()? })
    }

    /// The secret in force; `None` if the store has its own.
    pub fn current(&self) -> Option<[u8; 32]> {
        self.current.as_deref().copied()
    }

    /// The secrets that were replaced.
    pub fn old(&self) -> impl Iterator<Item = &[u8; 32]> {
        self.old.iter().map(|secret| &**secret)
    }
}

/// A hash that a store keeps of a secret that it is not told, so that another one is noticed, and that texts are encrypted or
/// are not any more.
fn check_value(secret: &[u8; 32], is_sealed: bool) -> [u8; 16] {
    let usage: &[u8] = if is_sealed { b"the secret of a sealed store" } else { b"the secret of a store" };
    blake3::keyed_hash(secret, usage).as_bytes().first_chunk().copied().unwrap_or_default()
}

/// Random bytes of the system.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::getrandom(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn parse(text: &str) -> Result<Zeroizing<[u8; 32]>, NotASecret> {
    let digits = blake3::Hash::from_hex(text.trim()).map_err(|_| NotASecret)?;
    Ok(Zeroizing::new(digits.into()))
}

// === identity ===

/// The identity that the engine is to have, and the secret once it is known.
pub(super) struct Identity {
    secrets: Secrets,
    /// Whether texts are encrypted.
    is_sealed: bool,
    /// A secret that the engine gets if it has none.
    fresh: Zeroizing<[u8; 32]>,
    found: OnceLock<Zeroizing<[u8; 32]>>,
}

/// A connection that reads and writes what an engine keeps about the fleet itself.
pub(super) trait Meta: Sync {
    fn value(&self, name: &str) -> impl Future<Output = EngineResult<Option<Vec<u8>>>> + Send;

    fn put_if_absent(&self, name: &str, value: &[u8]) -> impl Future<Output = EngineResult<()>> + Send;

    /// Replaces a value, if it is still `old`.
    fn replace(&self, name: &str, old: &[u8], value: &[u8]) -> impl Future<Output = EngineResult<()>> + Send;
}

// === impl Identity ===

impl Identity {
    pub(super) fn new(secrets: Secrets, is_sealed: bool, fresh: [u8; 32]) -> Self {
        Self { secrets, is_sealed, fresh: Zeroizing::new(fresh), found: OnceLock::new() }
    }

    /// The secret: that of the settings, or the engine's own once it was read.
    pub(super) fn secret(&self) -> Option<[u8; 32]> {
        self.secrets.current().or_else(|| self.found.get().map(|secret| **secret))
    }

    /// Checks the engine of a new connection. One that has no secret gets one.
    pub(super) async fn check(&self, engine: &impl Meta) -> EngineResult<()> {
        match self.secrets.current() {
            Some(secret) => self.check_secret(engine, &secret).await,
            None => self.read_secret(engine).await,
        }
    }

    /// The engine holds a hash of the secret, so that a process with another one finds out.
    async fn check_secret(&self, engine: &impl Meta, secret: &[u8; 32]) -> EngineResult<()> {
        if engine.value("secret").await?.is_some() {
            return Err(EngineError::OwnSecret);
        }
        let value = check_value(secret, self.is_sealed);
        let stored = found_or_put(engine, "secret_check", &value).await?;
        if stored == value {
            return Ok(());
        }
        let is_of = |sealed| self.secrets.old().chain([secret]).any(|secret| stored == check_value(secret, sealed));
        if is_of(self.is_sealed) {
            return engine.replace("secret_check", &stored, &value).await;
        }
        let otherwise_kept = if self.is_sealed { EngineError::NotSealed } else { EngineError::Sealed };
        Err(if is_of(!self.is_sealed) { otherwise_kept } else { EngineError::OtherSecret })
    }

    /// Of several processes that start at once, one makes the secret.
    async fn read_secret(&self, engine: &impl Meta) -> EngineResult<()> {
        if engine.value("secret_check").await?.is_some() {
            return Err(EngineError::OtherSecret);
        }
        // An engine that has lost everything gets the secret that this process names everything with.
        let secret = self.found.get().unwrap_or(&self.fresh);
        let stored = found_or_put(engine, "secret", secret.as_slice()).await?;
        let stored: [u8; 32] = stored.try_into().map_err(|_| EngineError::Damaged)?;
        // A database that was replaced by another one names nothing that this process has named.
        if **self.found.get_or_init(|| Zeroizing::new(stored)) == stored {
            Ok(())
        } else {
            Err(EngineError::OtherSecret)
        }
    }
}

/// The value of this name, which is `value` if there was none. An engine that is read-only has one, and can take none.
async fn found_or_put(engine: &impl Meta, name: &str, value: &[u8]) -> EngineResult<Vec<u8>> {
    if let Some(found) = engine.value(name).await? {
        return Ok(found);
    }
    engine.put_if_absent(name, value).await?;
    Ok(engine.value(name).await?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_64_hexadecimal_digits() {
        let (one, other) = ("0f".repeat(32), "A1".repeat(32));
        let secrets = Secrets::parse(Some(&one), Some(&format!("{other}, {one} ,"))).unwrap();
        assert_eq!(secrets.current(), Some([0x0F; 32]));
        assert_eq!(secrets.old().copied().collect::<Vec<_>>(), [[0xA1; 32], [0x0F; 32]]);
        assert_eq!(format!("{secrets:?}"), "Secrets(***)");
        for wrong in ["", "0f", &"0g".repeat(32), &"0f".repeat(33), &"é".repeat(32)] {
            assert_eq!(Secrets::parse(Some(wrong), None).err(), Some(NotASecret), "{wrong}");
        }
        assert!(Secrets::parse(None, None).unwrap().current().is_none());
    }

    #[test]
    fn a_check_value_tells_secrets_and_sealed_stores_apart() {
        let value = check_value(&[1; 32], false);
        assert_eq!(value, check_value(&[1; 32], false));
        assert_ne!(value, check_value(&[2; 32], false));
        assert_ne!(value, check_value(&[1; 32], true));
    }
}
