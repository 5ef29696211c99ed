//! A pool of buffers for long bodies, as the page faults of a fresh megabyte cost more than all work on its bytes.

use std::sync::Arc;

use crate::held::Held;

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
