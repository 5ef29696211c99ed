//! How bodies are kept in an engine: compressed, and then encrypted if the settings say so.

use std::sync::Arc;

use bytes::Bytes;

use super::writer::NewRow;
use super::{Engine, EngineError, Inner, closed, count};
use crate::payload::{Lifetime, Payload, PayloadKey};
use crate::store::codec::{Encoded, LARGE, Name, Unreadable, decode};
use crate::store::shared::Note;
use crate::store::{NamedPayloads, Op, StoreResult};
use crate::tasks::run_blocking_from;

impl<E: Engine> Inner<E> {
    /// The rows of payloads that together have so many bytes.
    pub(super) async fn encode_all(
        &self,
        payloads: NamedPayloads,
        lifetime: Lifetime,
        n_bytes: usize,
    ) -> StoreResult<Vec<NewRow>> {
        let seal = Arc::clone(&self.seal);
        let new = move |(key, payload): (PayloadKey, Payload)| {
            let name = Name::of_payload(key);
            let body = seal.seal(&name, Encoded::of(&name, &payload).to_vec())?;
            let (row, owner) = (seal.row(key), seal.owner(key));
            Ok(NewRow { key, row, body, bytes: count(payload.len() as u64), lifetime, owner })
        };
        self.encode_sized(n_bytes, move || payloads.into_iter().map(new).collect()).await
    }

    pub(super) async fn encode(&self, name: Name, bytes: Bytes) -> StoreResult<Vec<u8>> {
        let seal = Arc::clone(&self.seal);
        self.encode_sized(bytes.len(), move || seal.seal(&name, Encoded::new(&name, bytes).to_vec())).await
    }

    /// A payload of the engine; `None` if a later version has stored it in a way that this one does not know.
    pub(super) fn decode_payload(&self, key: PayloadKey, stored: &[u8]) -> StoreResult<Option<Payload>> {
        let name = Name::of_payload(key);
        self.counts().payload(name, self.open(name, stored))
    }

    /// Anything else of the engine. A summary of a later version cannot be read, and is not made anew.
    pub(super) fn decode_value(&self, name: Name, stored: &[u8]) -> StoreResult<Bytes> {
        self.counts().value(name, self.open(name, stored))
    }

    /// Decrypts and decodes what is stored under a name.
    pub(super) fn open(&self, name: Name, stored: &[u8]) -> Result<Payload, Unreadable> {
        match self.seal.open(&name, stored) {
            Some(frame) => decode(&name, &frame),
            None if self.seal.is_foreign(&name, stored) => Err(Unreadable::Foreign),
            None => Err(Unreadable::Damaged),
        }
    }

    /// A note as the engine keeps it.
    pub(super) fn seal_note(&self, Note { kind, key, value }: Note) -> StoreResult<Note> {
        let name = Name::of_note(kind, key);
        let sealed = self.seal.seal(&name, Encoded::new(&name, value).to_vec());
        let value = sealed.map_err(|error| self.engine.links().fails(Op::Put, error))?.into();
        Ok(Note { kind, key, value })
    }

    /// A note of the engine; `None` if it is not what was stored.
    pub(super) fn open_note(&self, Note { kind, key, value }: Note) -> Option<Note> {
        let name = Name::of_note(kind, key);
        let value = self.decode_value(name, &value).ok()?;
        Some(Note { kind, key, value })
    }

    /// Encodes values of so many bytes together.
    async fn encode_sized<T: Send + 'static>(
        &self,
        n_bytes: usize,
        work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
    ) -> StoreResult<T> {
        let done = run_blocking_from(LARGE + 1, n_bytes, work).await.map_err(|_| closed(Op::Put))?;
        done.map_err(|error| self.engine.links().fails(Op::Put, error))
    }
}
