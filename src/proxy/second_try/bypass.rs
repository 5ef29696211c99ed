//! The list of conversations that are forwarded unedited, by the keys of their beginnings, for a time and in bounded memory.

use std::collections::HashMap;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use crate::payload::ChainKey;

/// Conversations that are forwarded unedited.
#[derive(Debug, Default)]
pub(super) struct BypassList {
    // When each entry expires. Read with each request, and rarely written.
    expires: ArcSwap<HashMap<ChainKey, Instant>>,
}

/// The most entries.
const MAX_ENTRIES: usize = 1024;

/// The lifetime of an entry. After it, the conversation is edited again.
pub(super) const LIFETIME: Duration = Duration::from_hours(1);

// === impl BypassList ===

impl BypassList {
    /// Whether the list is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.expires.load().is_empty()
    }

    /// Whether one of the keys is listed and has not expired.
    pub(super) fn contains_any(&self, keys: &[ChainKey]) -> bool {
        let (until, now) = (self.expires.load(), Instant::now());
        keys.iter().any(|name| until.get(name).is_some_and(|until| *until > now))
    }

    /// The keys that have not expired.
    pub(super) fn keys(&self) -> Vec<ChainKey> {
        let now = Instant::now();
        self.expires.load().iter().filter(|(_, until)| **until > now).map(|(key, _)| *key).collect()
    }

    /// Adds a key. A full list drops its oldest entry.
    pub(super) fn insert(&self, key: ChainKey) {
        let now = Instant::now();
        self.expires.rcu(|until| {
            let mut notes: HashMap<_, _> =
                until.iter().filter(|(_, until)| **until > now).map(|(name, until)| (*name, *until)).collect();
            if notes.len() >= MAX_ENTRIES
                && let Some(oldest) = notes.iter().min_by_key(|(_, until)| **until).map(|(name, _)| *name)
            {
                notes.remove(&oldest);
            }
            notes.insert(key, now + LIFETIME);
            notes
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, pause};

    use super::*;

    fn name(n: usize) -> ChainKey {
        ChainKey::from_bytes((n as u128).to_be_bytes())
    }

    #[tokio::test]
    async fn entries_are_bounded_and_expire() {
        pause();
        let list = BypassList::default();
        assert!(list.is_empty() && !list.contains_any(&[name(0)]));
        for n in 0..=MAX_ENTRIES {
            list.insert(name(n));
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(list.expires.load().len(), MAX_ENTRIES);
        assert!(!list.contains_any(&[name(0)]), "the oldest has made room");
        assert!(list.contains_any(&[name(MAX_ENTRIES + 1), name(1)]));
        advance(LIFETIME).await;
        assert!(!list.contains_any(&[name(1), name(MAX_ENTRIES)]));
        list.insert(name(7));
        assert_eq!(list.expires.load().len(), 1);
    }
}
