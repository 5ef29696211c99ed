//! A store whose disk does not answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::payload::{ChainKey, Lifetime, Payload, PayloadKey, Place};
use crate::store::tests::memory::MemoryStore;
use crate::store::{
    self, Clock, Counts, Note, NoteGroup, Page, PageQuery, PayloadInfo, Stats, Store, StoreError, SweepResult, Verified,
};

/// A store whose disk does not answer; of summaries, unless it is told to, and then after this time.
#[derive(Debug)]
pub(super) struct Stuck(pub(super) MemoryStore, pub(super) AtomicBool, pub(super) Duration);

impl Stuck {
    pub(super) fn new() -> Self {
        Self(MemoryStore::new(store::Settings::default(), Clock::system()), AtomicBool::new(false), Duration::ZERO)
    }

    async fn answers(&self) {
        if !self.1.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(self.2).await;
    }
}

#[async_trait]
impl Store for Stuck {
    async fn put(&self, _: Vec<(PayloadKey, Payload)>, _: Lifetime) -> Result<(), StoreError> {
        std::future::pending().await
    }

    fn counts(&self) -> &Counts {
        self.0.counts()
    }

    async fn load(&self, key: PayloadKey) -> Result<Option<Payload>, StoreError> {
        self.0.load(key).await
    }

    async fn verify(&self) -> Result<Verified, StoreError> {
        self.0.verify().await
    }

    async fn was_swept(&self, key: PayloadKey) -> Result<bool, StoreError> {
        self.0.was_swept(key).await
    }

    async fn touch(&self, keys: Vec<PayloadKey>) -> Result<(), StoreError> {
        self.0.touch(keys).await
    }

    async fn offer_summary(&self, place: Place, summary: Bytes) -> Result<Option<Bytes>, StoreError> {
        self.answers().await;
        self.0.offer_summary(place, summary).await
    }

    async fn summary(&self, beginning: ChainKey) -> Result<Option<Bytes>, StoreError> {
        self.answers().await;
        self.0.summary(beginning).await
    }

    async fn summaries(&self) -> Result<Vec<ChainKey>, StoreError> {
        std::future::pending().await
    }

    async fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> Result<(), StoreError> {
        self.0.touch_summaries(beginnings).await
    }

    async fn put_inspected(&self, _: String, _: Bytes, _: usize) -> Result<(), StoreError> {
        std::future::pending().await
    }

    async fn inspected(&self, id: String) -> Result<Option<Bytes>, StoreError> {
        self.0.inspected(id).await
    }

    async fn trim_inspected(&self, most: usize) -> Result<(), StoreError> {
        self.0.trim_inspected(most).await
    }

    async fn note(&self, note: Note, keep: Duration) -> Result<(), StoreError> {
        self.0.note(note, keep).await
    }

    async fn notes(&self, group: NoteGroup) -> Result<Vec<Note>, StoreError> {
        self.0.notes(group).await
    }

    async fn sweep(&self) -> Result<SweepResult, StoreError> {
        self.0.sweep().await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.0.maintain().await
    }

    async fn compact(&self) -> Result<(), StoreError> {
        self.0.compact().await
    }

    async fn list(&self, most: usize) -> Result<Vec<PayloadInfo>, StoreError> {
        self.0.list(most).await
    }

    async fn page(&self, query: PageQuery) -> Result<Page, StoreError> {
        self.0.page(query).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.0.stats().await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.0.close().await
    }
}
