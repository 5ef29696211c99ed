//! How bodies are kept in an engine: compressed, and then encrypted if the settings say so.

use std::sync::Arc;

use bytes::Bytes;

use super::seal::Name;
use super::writer::NewRow;
use super::{Engine, EngineError, Inner, LARGE, closed, count};
use crate::payload::{ChainKey, Lifetime, Payload, PayloadKey};
use crate::store::codec::{Encoded, Encoder, decode, is_later};
use crate::store::shared::Note;
use crate::store::{Op, StoreError};
use crate::tasks::run_blocking;

impl<E: Engine> Inner<E> {
    /// The rows of payloads that together have so many bytes.
    pub(super) async fn encode_all(
        &self,
        payloads: Vec<(PayloadKey, Payload)>,
        lifetime: Lifetime,
        n_bytes: usize,
    ) -> Result<Vec<NewRow>, StoreError> {
        let seal = Arc::clone(&self.seal);
        let mut encoder = Encoder::default();
        let new = move |(key, payload): (PayloadKey, Payload)| {
            let body = seal.seal(&Name::of_payload(key), written(&encoder.encode(&payload)))?;
            Ok(NewRow { key, row: seal.row(key), body, bytes: count(payload.len() as u64), lifetime })
        };
        self.compute(n_bytes, move || payloads.into_iter().map(new).collect()).await
    }

    pub(super) async fn encode(&self, name: Name, bytes: Bytes) -> Result<Vec<u8>, StoreError> {
        let seal = Arc::clone(&self.seal);
        self.compute(bytes.len(), move || seal.seal(&name, written(&Encoded::new(bytes)))).await
    }

    /// A body of the engine; `None` if a later version has stored it in a way that this one does not know.
    pub(super) fn decode(&self, name: &Name, stored: &[u8]) -> Result<Option<Payload>, StoreError> {
        let encoded = self.seal.open(name, stored);
        let decoded = encoded.as_deref().and_then(decode);
        match decoded {
            None if is_later(encoded.as_deref().unwrap_or(stored)) => Ok(None),
            None if self.seal.is_foreign(stored) => Err(unreadable(EngineError::OtherSecret)),
            None => Err(self.engine.links().damaged()),
            decoded => Ok(decoded),
        }
    }

    /// A summary of the engine. One of a later version cannot be read, and is not made anew.
    pub(super) fn decode_summary(&self, beginning: ChainKey, stored: &[u8]) -> Result<Bytes, StoreError> {
        let summary = self.decode(&Name::of_summary(beginning), stored)?;
        Ok(summary.ok_or_else(|| unreadable(EngineError::Later))?.bytes())
    }

    /// A note as the engine keeps it. It is short, so it is not compressed.
    pub(super) fn seal_note(&self, Note { kind, key, value }: Note) -> Result<Note, StoreError> {
        let sealed = self.seal.seal(&Name::of_note(kind, key), value.into());
        let value = sealed.map_err(|error| self.engine.links().fails(Op::Put, error))?.into();
        Ok(Note { kind, key, value })
    }

    /// A note of the engine; `None` if it is not what was stored.
    pub(super) fn open_note(&self, Note { kind, key, value }: Note) -> Option<Note> {
        let value = self.seal.open(&Name::of_note(kind, key), &value)?.into_owned().into();
        Some(Note { kind, key, value })
    }

    /// Does the work here, or on a blocking thread if it is about many bytes.
    async fn compute<T: Send + 'static>(
        &self,
        n_bytes: usize,
        work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let done = if n_bytes <= LARGE { work() } else { run_blocking(work).await.map_err(|_| closed(Op::Put))? };
        done.map_err(|error| self.engine.links().fails(Op::Put, error))
    }
}

/// One body cannot be read, which is no failure of the store.
fn unreadable(why: EngineError) -> StoreError {
    StoreError::new(Op::Get, why.kind(), why)
}

fn written(encoded: &Encoded) -> Vec<u8> {
    let mut body = vec![0; encoded.len()];
    encoded.write(&mut body);
    body
}
