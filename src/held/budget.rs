//! The memory for bodies: the budget of the bytes that are held for clients, with leases of its parts, and a pool of buffers for
//! long bodies, as the page faults of a fresh megabyte cost more than all work on its bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::held::Held;

/// The bytes that may be held for all clients at a time: bodies, what is decoded and planned of them, recalled texts, long
/// heads, and answers that a client has not taken yet. Clones share one budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: usize,
    used: AtomicUsize,
    // The budget that this one is a part of.
    whole: Option<Budget>,
}

/// A part of a [`Budget`]. It grows before what it is for is allocated, and is returned when it is dropped.
#[derive(Debug, Default)]
pub struct Lease {
    // None as long as nothing was leased.
    budget: Option<Budget>,
    bytes: usize,
}

// === impl Budget ===

impl Budget {
    /// Creates a budget of this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Account { limit: bytes, used: AtomicUsize::new(0), whole: None }))
    }

    /// A part of this budget. Its leases are leases of the whole, and have at most `bytes` together.
    #[must_use]
    pub fn part(&self, bytes: usize) -> Self {
        Self(Arc::new(Account { limit: bytes, used: AtomicUsize::new(0), whole: Some(self.clone()) }))
    }

    /// Whether it is a part, and less is left of it than of the whole.
    pub fn is_narrower(&self) -> bool {
        self.0.whole.as_ref().is_some_and(|whole| self.remaining() < whole.remaining())
    }

    fn take(&self, bytes: usize) -> bool {
        let within = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.0.limit);
        let granted = self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok();
        if granted && self.0.whole.as_ref().is_some_and(|whole| !whole.take(bytes)) {
            self.0.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        granted
    }

    fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.0.whole {
            whole.give_back(bytes);
        }
    }

    /// Extends the lease by `bytes`, or returns `false` at once: waiting for memory while holding some can deadlock.
    #[must_use]
    pub fn extend(&self, lease: &mut Lease, bytes: usize) -> bool {
        let granted = bytes == 0 || self.take(bytes);
        if granted && bytes > 0 {
            lease.budget.get_or_insert_with(|| self.clone());
            lease.bytes += bytes;
        }
        granted
    }

    /// Leases this many bytes, if they are left.
    pub fn lease(&self, bytes: usize) -> Option<Lease> {
        let mut lease = Lease::default();
        self.extend(&mut lease, bytes).then_some(lease)
    }

    /// Extends the lease to `bytes` in all, or returns `false` at once. A longer lease stays as it is.
    #[must_use]
    pub fn extend_to(&self, lease: &mut Lease, bytes: usize) -> bool {
        self.extend(lease, bytes.saturating_sub(lease.bytes))
    }

    /// All bytes that can be leased of the whole.
    pub fn limit(&self) -> usize {
        self.0.whole.as_ref().map_or(self.0.limit, Self::limit)
    }

    /// The bytes that are leased.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Whether half of the budget is free.
    pub fn is_half_free(&self) -> bool {
        self.used() <= self.limit() / 2
    }

    /// The bytes that are left.
    pub(crate) fn remaining(&self) -> usize {
        self.0.limit.saturating_sub(self.used())
    }
}

/// Bytes, and the lease that they are held under.
#[derive(derive_more::AsRef)]
struct Leased<T> {
    #[as_ref(forward)]
    bytes: T,
    _lease: Lease,
}

// === impl Lease ===

impl Lease {
    /// Attaches the lease to these bytes: it is returned when their last slice is dropped.
    pub fn hold(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Leased { bytes, _lease: self })
    }

    /// The bytes that are leased.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns what is leased beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let excess = self.bytes.saturating_sub(bytes);
        if let Some(budget) = self.budget.as_ref().filter(|_| excess > 0) {
            self.bytes -= excess;
            budget.give_back(excess);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Buffers for reuse by long bodies. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Held<Vec<Vec<u8>>>>);

/// A buffer that returns to its pool when it is dropped.
#[derive(derive_more::AsRef, Debug)]
pub struct Buffer {
    #[as_ref([u8])]
    bytes: Vec<u8>,
    pool: Pool,
}

/// The smallest buffer that is kept, in bytes. The allocator keeps smaller ones mapped by itself.
const MIN_KEPT: usize = 64 * 1024;

/// The most bytes that all buffers in a pool hold together: two bodies of 8 MiB.
const MAX_KEPT: usize = 16 << 20;

impl Pool {
    /// An empty buffer: the smallest kept one with a capacity of at least `wanted` bytes, or a new one of `room` if the system has that.
    pub fn take(&self, wanted: usize, room: usize) -> Buffer {
        // A conversation grows from request to request: with spare capacity, the next one fits into this buffer.
        // Pages that are never written cost nothing.
        let kept = self.0.with(|kept| {
            let fitting = kept.iter().enumerate().filter(|(_, bytes)| bytes.capacity() >= wanted);
            let (at, _) = fitting.min_by_key(|(_, bytes)| bytes.capacity())?;
            Some(kept.swap_remove(at))
        });
        let bytes = kept.unwrap_or_else(|| {
            let mut bytes = Vec::new();
            // Without that memory, adding bytes fails.
            let _ = bytes.try_reserve_exact(room.next_power_of_two());
            bytes
        });
        Buffer { bytes, pool: self.clone() }
    }

    fn give_back(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        // A buffer that is not kept is freed outside of the lock.
        let _freed = self.0.with(|kept| {
            let held: usize = kept.iter().map(Vec::capacity).sum();
            if bytes.capacity() < MIN_KEPT || held + bytes.capacity() > MAX_KEPT {
                return Some(bytes);
            }
            kept.push(bytes);
            None
        });
    }
}

impl Buffer {
    /// Appends bytes; `false` if the system has no memory for them. A buffer that is too small grows to `room` bytes or more.
    #[must_use]
    pub fn extend(&mut self, bytes: &[u8], room: usize) -> bool {
        let more = room.next_power_of_two().saturating_sub(self.bytes.len()).max(bytes.len());
        let is_full = self.bytes.capacity() - self.bytes.len() < bytes.len();
        let has_room = !is_full || self.bytes.try_reserve_exact(more).is_ok();
        if has_room {
            self.bytes.extend_from_slice(bytes);
        }
        has_room
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Lease;

    #[test]
    fn a_lease_grows_to_the_limit_shrinks_and_is_returned() {
        let budget = Budget::new(100);
        let mut one = budget.lease(60).unwrap();
        assert!(budget.lease(41).is_none());
        let mut two = budget.lease(40).unwrap();
        assert_eq!((budget.used(), budget.remaining()), (100, 0));
        assert!(!budget.extend(&mut one, 1) && budget.extend(&mut one, 0));
        two.shrink_to(10);
        assert!(budget.extend_to(&mut one, 90) && !budget.extend_to(&mut one, 91) && budget.extend_to(&mut one, 5));
        assert_eq!((one.bytes(), two.bytes(), budget.used()), (90, 10, 100));
        drop(one);
        assert_eq!(budget.used(), 10);
        let held = two.hold(Bytes::from_static(b"0123456789"));
        let part = held.slice(3..5);
        drop(held);
        assert_eq!((&part[..], budget.used()), (&b"34"[..], 10));
        drop(part);
        assert_eq!(budget.used(), 0);
        assert_eq!(budget.limit(), 100);
    }

    #[test]
    fn no_length_overflows() {
        let budget = Budget::new(usize::MAX);
        let mut lease = budget.lease(usize::MAX).unwrap();
        assert!(!budget.extend(&mut lease, 1) && budget.lease(usize::MAX).is_none());
    }

    fn kept(pool: &Pool) -> Vec<usize> {
        pool.0.with(|kept| kept.iter().map(Vec::capacity).collect())
    }

    #[test]
    fn a_long_buffer_is_reused_after_its_last_share_is_dropped() {
        let pool = Pool::default();
        let mut buffer = pool.take(MIN_KEPT, MIN_KEPT);
        assert!(buffer.extend(b"one body", 0));
        let body = Lease::default().hold(buffer);
        let (part, at) = (body.slice(4..), body.as_ptr());
        drop(body);
        assert_eq!((kept(&pool).len(), &part[..]), (0, &b"body"[..]));
        drop(part);
        let again = pool.take(MIN_KEPT - 1, 0);
        assert!(again.bytes.is_empty());
        assert_eq!(again.as_ref().as_ptr(), at);
    }

    #[test]
    fn short_buffers_are_not_kept() {
        let pool = Pool::default();
        drop(pool.take(MIN_KEPT / 2, MIN_KEPT / 2));
        assert!(kept(&pool).is_empty());
    }

    #[test]
    fn kept_buffers_are_bounded() {
        let pool = Pool::default();
        let buffers: Vec<_> = (0..9).map(|_| pool.take(4 << 20, 4 << 20)).collect();
        drop(buffers);
        assert_eq!(kept(&pool), vec![4 << 20; 4]);
        drop(pool.take(MAX_KEPT + 1, MAX_KEPT + 1));
        assert_eq!(kept(&pool).len(), 4);
    }

    #[test]
    fn the_smallest_fitting_buffer_is_taken() {
        let pool = Pool::default();
        let sizes = [8 << 20, 1 << 20, 2 << 20];
        drop(sizes.map(|size| pool.take(size, size)));
        assert_eq!(pool.take((1 << 20) + 1, 0).bytes.capacity(), 2 << 20);
    }
}
