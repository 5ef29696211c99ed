//! A budget of bytes that are held in memory, and leases of its parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// The bytes that may be held at a time. That of all clients is for bodies, what is decoded and planned of them, recalled texts,
/// long heads, and answers that a client has not taken yet. Clones share one budget.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
