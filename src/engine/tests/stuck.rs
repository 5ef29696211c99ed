//! A store whose disk does not answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::payload::{ChainKey, Lifetime, Payload, PayloadKey, Place};
use crate::store::tests::memory::MemoryStore;
use crate::store::{
    self, Clock, Note, NoteGroup, Offered, Page, PageQuery, PayloadInfo, Stats, Store, StoreFuture, SweepResult,
    Verified,
};

/// A store whose disk does not answer; of summaries, unless it is told to.
#[derive(Debug)]
pub(super) struct Stuck(pub(super) MemoryStore, pub(super) AtomicBool);

impl Stuck {
    pub(super) fn new() -> Self {
        Self(MemoryStore::new(store::Settings::default(), Clock::system()), AtomicBool::new(false))
    }

    fn answers(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }
}

impl Store for Stuck {
    fn put(&self, _: Vec<(PayloadKey, Payload)>, _: Lifetime) -> StoreFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn load(&self, key: PayloadKey) -> StoreFuture<'_, Option<Payload>> {
        self.0.load(key)
    }

    fn verify(&self) -> StoreFuture<'_, Verified> {
        self.0.verify()
    }

    fn was_swept(&self, key: PayloadKey) -> StoreFuture<'_, bool> {
        self.0.was_swept(key)
    }

    fn touch(&self, keys: Vec<PayloadKey>) -> StoreFuture<'_, ()> {
        self.0.touch(keys)
    }

    fn offer_summary(&self, place: Place, summary: Bytes) -> StoreFuture<'_, Offered> {
        if self.answers() { self.0.offer_summary(place, summary) } else { Box::pin(std::future::pending()) }
    }

    fn summary(&self, beginning: ChainKey) -> StoreFuture<'_, Option<Bytes>> {
        if self.answers() { self.0.summary(beginning) } else { Box::pin(std::future::pending()) }
    }

    fn summaries(&self) -> StoreFuture<'_, Vec<ChainKey>> {
        Box::pin(std::future::pending())
    }

    fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> StoreFuture<'_, ()> {
        self.0.touch_summaries(beginnings)
    }

    fn put_inspected(&self, _: String, _: Bytes, _: usize) -> StoreFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn inspected(&self, id: String) -> StoreFuture<'_, Option<Bytes>> {
        self.0.inspected(id)
    }

    fn trim_inspected(&self, most: usize) -> StoreFuture<'_, ()> {
        self.0.trim_inspected(most)
    }

    fn note(&self, note: Note, keep: Duration) -> StoreFuture<'_, ()> {
        self.0.note(note, keep)
    }

    fn notes(&self, group: NoteGroup) -> StoreFuture<'_, Vec<Note>> {
        self.0.notes(group)
    }

    fn sweep(&self) -> StoreFuture<'_, SweepResult> {
        self.0.sweep()
    }

    fn maintain(&self) -> StoreFuture<'_, ()> {
        self.0.maintain()
    }

    fn compact(&self) -> StoreFuture<'_, ()> {
        self.0.compact()
    }

    fn list(&self, most: usize) -> StoreFuture<'_, Vec<PayloadInfo>> {
        self.0.list(most)
    }

    fn page(&self, query: PageQuery) -> StoreFuture<'_, Page> {
        self.0.page(query)
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        self.0.stats()
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.0.close()
    }
}
