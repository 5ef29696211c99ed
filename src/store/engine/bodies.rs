//! How bodies are kept in an engine: compressed, and then encrypted if the settings say so.

use std::sync::Arc;

use bytes::Bytes;

use super::seal::Name;
use super::writer::NewRow;
use super::{Engine, EngineError, Inner, LARGE, closed, count};
use crate::payload::{Lifetime, Payload, PayloadKey};
use crate::store::codec::{Encoded, decode};
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
        let new = move |(key, payload): (PayloadKey, Payload)| {
            let body = seal.seal(&Name::of_payload(key), written(&Encoded::of(&payload)))?;
            Ok(NewRow { key, row: seal.row(key), body, bytes: count(payload.len() as u64), lifetime })
        };
        self.compute(n_bytes, move || payloads.into_iter().map(new).collect()).await
    }

    pub(super) async fn encode(&self, name: Name, bytes: Bytes) -> Result<Vec<u8>, StoreError> {
        let seal = Arc::clone(&self.seal);
        self.compute(bytes.len(), move || seal.seal(&name, written(&Encoded::new(bytes)))).await
    }

    /// A body of the engine.
    pub(super) fn decode(&self, name: &Name, stored: &[u8]) -> Result<Payload, StoreError> {
        let encoded = self.seal.open(name, stored);
        encoded.and_then(|encoded| decode(&encoded)).ok_or_else(|| self.engine.links().damaged())
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

fn written(encoded: &Encoded) -> Vec<u8> {
    let mut body = vec![0; encoded.len()];
    encoded.write(&mut body);
    body
}
