//! A store in memory: the reference implementation, and the store of tests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Mutex;

use crate::payload::{ChainKey, Lifetime, Payload, PayloadKey, Place};
use crate::store::codec::{Name, Unreadable, check, decode, encode};
use crate::store::shares::fairest_first;
use crate::store::time::{cutoff, sweep_interval};
use crate::store::{
    Clock, Counts, IN_USE, MAX_SUMMARIES, Note, NoteGroup, Op, Page, PageQuery, PayloadInfo, Settings, SharedStore,
    Stats, Store, StoreError, StoreErrorKind, StoreFuture, SweepResult, Time, Verified,
};

mod exchange;

use exchange::Exchange;

/// Payloads in memory.
#[derive(Debug)]
pub struct MemoryStore {
    settings: Settings,
    clock: Clock,
    inner: Arc<Mutex<Inner>>,
    counts: Counts,
    closed: AtomicBool,
    is_shared: bool,
}

#[derive(Debug)]
struct Inner {
    last_sweep: Option<Time>,
    rows: HashMap<PayloadKey, Row>,
    swept: HashMap<PayloadKey, Time>,
    // These are frames, as in other stores.
    summaries: HashMap<ChainKey, (Bytes, Time)>,
    inspected: Vec<(String, Bytes, Time)>,
    stats: Stats,
    exchange: Exchange,
}

#[derive(Debug)]
struct Row {
    frame: Bytes,
    bytes: u64,
    created: Time,
    used: Time,
    lifetime: Lifetime,
}

/// The store was closed.
#[derive(Debug, thiserror::Error)]
#[error("closed")]
struct Closed;

// === impl Memory ===

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(settings: Settings, clock: Clock) -> Self {
        let inner = Inner {
            last_sweep: None,
            rows: HashMap::new(),
            swept: HashMap::new(),
            summaries: HashMap::new(),
            inspected: Vec::new(),
            stats: Stats::default(),
            exchange: Exchange::default(),
        };
        let inner = Arc::new(Mutex::new(inner));
        let counts = Counts::default();
        Self { settings, clock, inner, counts, closed: AtomicBool::new(false), is_shared: false }
    }

    /// Flips a bit of everything that is stored.
    #[cfg(test)]
    pub(super) async fn flip(&self, bit: usize) {
        let mut inner = self.inner.lock().await;
        let Inner { rows, summaries, inspected, .. } = &mut *inner;
        let frames = rows.values_mut().map(|row| &mut row.frame);
        let frames = frames.chain(summaries.values_mut().map(|(frame, _)| frame));
        for frame in frames.chain(inspected.iter_mut().map(|(_, frame, _)| frame)) {
            let mut bytes = frame.to_vec();
            let bit = bit.min(8 * bytes.len() - 1);
            bytes[bit / 8] ^= 1 << (bit % 8);
            *frame = bytes.into();
        }
    }

    /// Two stores that share what they hold.
    pub fn pair(settings: Settings, clock: Clock) -> [Self; 2] {
        let one = Self { is_shared: true, ..Self::new(settings, clock) };
        let (settings, clock, inner) = (one.settings.clone(), one.clock.clone(), Arc::clone(&one.inner));
        let (counts, closed) = (Counts::default(), AtomicBool::new(false));
        let other = Self { settings, clock, inner, counts, closed, is_shared: true };
        [one, other]
    }

    fn with_lock<'a, T: Send + 'a>(
        &'a self,
        op: Op,
        run: impl FnOnce(&mut Inner, Time) -> T + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let mut inner = self.inner.lock().await;
            if self.closed.load(Ordering::Relaxed) {
                return Err(StoreError::new(op, StoreErrorKind::Unavailable, Closed));
            }
            Ok(run(&mut inner, self.clock.now()))
        })
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn counts(&self) -> &Counts {
        &self.counts
    }

    async fn put(&self, payloads: Vec<(PayloadKey, Payload)>, lifetime: Lifetime) -> Result<(), StoreError> {
        self.with_lock(Op::Write, move |inner, now| {
            for (key, payload) in payloads {
                inner.swept.remove(&key);
                let name = Name::of_payload(key);
                let is_whole = |row: &&mut Row| check(&name, &row.frame) != Err(Unreadable::Damaged);
                if let Some(row) = inner.rows.get_mut(&key).filter(is_whole) {
                    (row.used, row.lifetime) = (now, row.lifetime.max(lifetime));
                    inner.stats.known += 1;
                } else {
                    let (bytes, frame) = (payload.len() as u64, encode(&name, &payload).into());
                    inner.rows.insert(key, Row { frame, bytes, created: now, used: now, lifetime });
                    inner.stats.written += 1;
                }
            }
            inner.stats.commits += 1;
        })
        .await
    }

    async fn load(&self, key: PayloadKey) -> Result<Option<Payload>, StoreError> {
        let name = Name::of_payload(key);
        let read = |inner: &mut Inner, now| {
            let row = inner.rows.get_mut(&key)?;
            row.used = now;
            inner.stats.recalled += 1;
            Some(decode(&name, &row.frame))
        };
        let read = self.with_lock(Op::Read, read).await?;
        read.map_or(Ok(None), |read| self.counts.payload(name, read))
    }

    async fn was_swept(&self, key: PayloadKey) -> Result<bool, StoreError> {
        self.with_lock(Op::Read, move |inner, _| inner.swept.contains_key(&key)).await
    }

    async fn touch(&self, keys: Vec<PayloadKey>) -> Result<(), StoreError> {
        self.with_lock(Op::Read, |inner, now| {
            for key in keys {
                if let Some(row) = inner.rows.get_mut(&key) {
                    row.used = now;
                }
            }
        })
        .await
    }

    async fn offer_summary(&self, place: Place, summary: Bytes) -> Result<Option<Bytes>, StoreError> {
        self.with_lock(Op::Write, move |inner, now| {
            let name = Name::of_summary(place.beginning);
            if let Some((theirs, _)) = inner.summaries.get(&place.beginning)
                && let Ok(theirs) = decode(&name, theirs)
            {
                return Some(theirs.bytes());
            }
            inner.summaries.insert(place.beginning, (encode(&name, &summary.into()).into(), now));
            inner.exchange.claims.remove(&place.beginning);
            inner.exchange.roots.insert(place.beginning, place.root);
            inner.stats.commits += 1;
            None
        })
        .await
    }

    async fn summary(&self, beginning: ChainKey) -> Result<Option<Bytes>, StoreError> {
        let name = Name::of_summary(beginning);
        let read = |inner: &mut Inner, now| {
            let (summary, used) = inner.summaries.get_mut(&beginning)?;
            *used = now;
            Some(decode(&name, summary))
        };
        let read = self.with_lock(Op::Read, read).await?;
        match read.map(|read| self.counts.value(name, read)).transpose() {
            Err(error) if error.is_damage() => Ok(None),
            read => read,
        }
    }

    async fn summaries(&self) -> Result<Vec<ChainKey>, StoreError> {
        self.with_lock(Op::Read, |inner, _| inner.summaries.keys().copied().collect()).await
    }

    async fn touch_summaries(&self, beginnings: Vec<ChainKey>) -> Result<(), StoreError> {
        self.with_lock(Op::Write, move |inner, now| {
            for beginning in beginnings {
                if let Some((_, used)) = inner.summaries.get_mut(&beginning) {
                    *used = now;
                }
            }
        })
        .await
    }

    async fn put_inspected(&self, id: String, seen: Bytes, most: usize) -> Result<(), StoreError> {
        self.with_lock(Op::Write, move |inner, now| {
            let frame = encode(&Name::of_inspected(&id), &seen.into()).into();
            inner.inspected.push((id, frame, now));
            inner.trim_inspected(&self.settings, now, most);
            inner.stats.commits += 1;
        })
        .await
    }

    async fn inspected(&self, id: String) -> Result<Option<Bytes>, StoreError> {
        let name = Name::of_inspected(&id);
        let read = |inner: &mut Inner, _| {
            let (_, seen, _) = inner.inspected.iter().rev().find(|(of, ..)| *of == id)?;
            Some(decode(&name, seen))
        };
        let read = self.with_lock(Op::Read, read).await?;
        read.map(|read| self.counts.value(name, read)).transpose()
    }

    async fn trim_inspected(&self, most: usize) -> Result<(), StoreError> {
        self.with_lock(Op::Write, move |inner, now| inner.trim_inspected(&self.settings, now, most)).await
    }

    async fn note(&self, note: Note, keep: Duration) -> Result<(), StoreError> {
        self.with_lock(Op::Write, move |inner, now| {
            let notes = &mut inner.exchange.notes;
            notes.retain(|(other, until)| *until > now && (other.kind, other.key) != (note.kind, note.key));
            notes.push((note, now.later(keep)));
        })
        .await
    }

    async fn notes(&self, group: NoteGroup) -> Result<Vec<Note>, StoreError> {
        self.with_lock(Op::Read, move |inner, now| {
            let notes =
                inner.exchange.notes.iter().rev().filter(|(note, until)| *until > now && note.kind.group() == group);
            notes.take(group.most()).map(|(note, _)| note.clone()).collect()
        })
        .await
    }

    async fn sweep(&self) -> Result<SweepResult, StoreError> {
        self.with_lock(Op::Write, |inner, now| {
            inner.last_sweep = Some(now);
            inner.sweep(&self.settings, now)
        })
        .await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.with_lock(Op::Write, |inner, now| {
            let pause = sweep_interval(self.settings.keep_for.0);
            if inner.last_sweep.is_none_or(|swept| now < swept || now.since(swept) >= pause) {
                inner.sweep(&self.settings, now);
            }
        })
        .await
    }

    async fn compact(&self) -> Result<(), StoreError> {
        self.with_lock(Op::Write, |inner, _| inner.rows.shrink_to_fit()).await
    }

    async fn list(&self, most: usize) -> Result<Vec<PayloadInfo>, StoreError> {
        self.with_lock(Op::Read, move |inner, _| {
            let mut entries: Vec<_> = inner.rows.iter().map(|(key, row)| row.entry(*key)).collect();
            entries.sort_by_key(|entry| (std::cmp::Reverse(entry.used), entry.key));
            entries.truncate(most);
            entries
        })
        .await
    }

    async fn page(&self, query: PageQuery) -> Result<Page, StoreError> {
        self.with_lock(Op::Read, move |inner, _| {
            let mut scan = query.scan();
            inner.rows.iter().for_each(|(key, row)| _ = scan.visit(*key, row.entry(*key)));
            let read = |key| {
                let row = inner.rows.get(&key);
                let payload = row.and_then(|row| decode(&Name::of_payload(key), &row.frame).ok());
                Ok::<_, std::convert::Infallible>(payload.map(|payload| payload.bytes()))
            };
            scan.finish(read).unwrap_or_else(|never| match never {})
        })
        .await
    }

    async fn verify(&self) -> Result<Verified, StoreError> {
        self.with_lock(Op::Read, |inner, _| {
            let mut verified = Verified::default();
            for (key, row) in &inner.rows {
                let name = Name::of_payload(*key);
                verified.count(name, decode(&name, &row.frame).err());
            }
            for (beginning, (frame, _)) in &inner.summaries {
                let name = Name::of_summary(*beginning);
                verified.count(name, decode(&name, frame).err());
            }
            for (id, frame, _) in &inner.inspected {
                let name = Name::of_inspected(id);
                verified.count(name, decode(&name, frame).err());
            }
            verified
        })
        .await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.with_lock(Op::Read, |inner, _| Stats {
            payloads: inner.rows.len() as u64,
            bytes: inner.rows.values().map(|row| row.bytes).sum(),
            stored_bytes: inner.bytes(),
            summaries: inner.summaries.len() as u64,
            summary_bytes: inner.summaries.values().map(|(summary, _)| summary.len() as u64).sum(),
            inspected: inner.inspected.len() as u64,
            inspected_bytes: inner.inspected.iter().map(|(_, seen, _)| seen.len() as u64).sum(),
            file_bytes: 0,
            tombstones: inner.swept.len() as u64,
            ..inner.stats
        })
        .await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.closed.store(true, Ordering::Relaxed);
        async { Ok(()) }.await
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        if self.is_shared { Some(self) } else { None }
    }
}

impl Inner {
    fn bytes(&self) -> u64 {
        self.rows.values().map(|row| row.frame.len() as u64).sum()
    }

    /// The bytes of summaries and inspected requests.
    fn other_bytes(&self) -> u64 {
        let summaries = self.summaries.values().map(|(summary, _)| summary.len() as u64);
        summaries.chain(self.inspected.iter().map(|(_, seen, _)| seen.len() as u64)).sum()
    }

    fn sweep(&mut self, settings: &Settings, now: Time) -> SweepResult {
        self.clamp_times(now);
        let mut swept = SweepResult { summaries: self.sweep_summaries(settings, now), ..SweepResult::default() };
        self.trim_inspected(settings, now, usize::MAX);
        let due = |row: &Row| row.used.later(settings.extra_time(row.lifetime));
        let mut rows: Vec<_> = self.rows.iter().map(|(key, row)| (due(row), row.entry(*key))).collect();
        rows.sort_by_key(|(due, entry)| (*due, entry.key));
        let mut bytes = self.bytes() + self.other_bytes();
        let oldest = self.oldest(settings, now);
        for (due, entry) in rows {
            if due < oldest {
                swept.aged += 1;
            } else if bytes > settings.max_bytes.0 && now.since(entry.used) >= IN_USE {
                swept.crowded_out += 1;
            } else {
                continue;
            }
            bytes -= entry.stored_bytes;
            swept.stored_bytes += entry.stored_bytes;
            self.rows.remove(&entry.key);
            self.swept.insert(entry.key, now);
        }
        self.last_sweep = Some(now);
        swept
    }

    /// Sets times that are later than `now` to `now`, after the clock was set back.
    fn clamp_times(&mut self, now: Time) {
        let rows = self.rows.values_mut().flat_map(|row| [&mut row.created, &mut row.used]);
        let summaries = self.summaries.values_mut().map(|(_, used)| used);
        let inspected = self.inspected.iter_mut().map(|(_, _, kept)| kept);
        for time in rows.chain(summaries).chain(inspected).chain(self.swept.values_mut()) {
            *time = now.min(*time);
        }
    }

    fn oldest(&self, settings: &Settings, now: Time) -> Time {
        cutoff(now, self.last_sweep, settings.keep_for.0)
    }

    fn trim_inspected(&mut self, settings: &Settings, now: Time, most: usize) {
        let (mut n, mut bytes) = (0, 0);
        let oldest = self.oldest(settings, now);
        let stays = |(_, seen, kept): &&(String, Bytes, Time)| {
            (n, bytes) = (n + 1, bytes + seen.len() as u64);
            n <= most && bytes <= settings.max_inspected_bytes() && *kept >= oldest
        };
        let n_stay = self.inspected.iter().rev().take_while(stays).count();
        self.inspected.drain(..self.inspected.len() - n_stay);
    }

    fn sweep_summaries(&mut self, settings: &Settings, now: Time) -> u64 {
        let before = self.summaries.len();
        let mut rows: Vec<_> = self.summaries.iter().map(|(beginning, (_, used))| (*used, *beginning)).collect();
        rows.sort_unstable_by(|one, other| other.cmp(one));
        let (mut bytes, oldest) = (0, self.oldest(settings, now));
        rows.retain(|(used, beginning)| *used >= oldest || self.summaries.remove(beginning).is_none());
        let length = |beginning| self.summaries.get(&beginning).map_or(0, |(summary, _)| summary.len() as u64);
        let rows = fairest_first(rows, |(_, beginning)| (beginning.owner(), length(*beginning)));
        for (n, (_, beginning)) in rows.into_iter().enumerate() {
            bytes += self.summaries.get(&beginning).map_or(0, |(summary, _)| summary.len() as u64);
            if n >= MAX_SUMMARIES || bytes > settings.max_summary_bytes() {
                self.summaries.remove(&beginning);
            }
        }
        (before - self.summaries.len()) as u64
    }
}

impl Row {
    fn entry(&self, key: PayloadKey) -> PayloadInfo {
        let stored_bytes = self.frame.len() as u64;
        PayloadInfo { key, bytes: self.bytes, stored_bytes, created: self.created, used: self.used }
    }
}
