//! The conversations that go as they come, by the names of their beginnings, for a time and in bounded memory.

use std::collections::HashMap;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use crate::payload::ChainKey;

/// Which conversations go as they come.
#[derive(Debug, Default)]
pub(super) struct Unedited {
    // Until when what begins so does. Read with each request, and hardly ever written.
    until: ArcSwap<HashMap<ChainKey, Instant>>,
}

/// The most that are remembered.
const MOST: usize = 1024;

/// How long they are. Then an edit is tried again.
const LONG: Duration = Duration::from_hours(1);

// === impl Unedited ===

impl Unedited {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.until.load().is_empty()
    }

    /// Whether a conversation with these beginnings goes as it comes.
    pub(super) fn has(&self, names: &[ChainKey]) -> bool {
        let (until, now) = (self.until.load(), Instant::now());
        names.iter().any(|name| until.get(name).is_some_and(|until| *until > now))
    }

    /// What begins so goes as it comes from now on. The oldest such note makes room.
    pub(super) fn note(&self, name: ChainKey) {
        let now = Instant::now();
        self.until.rcu(|until| {
            let mut notes: HashMap<_, _> =
                until.iter().filter(|(_, until)| **until > now).map(|(name, until)| (*name, *until)).collect();
            if notes.len() >= MOST
                && let Some(oldest) = notes.iter().min_by_key(|(_, until)| **until).map(|(name, _)| *name)
            {
                notes.remove(&oldest);
            }
            notes.insert(name, now + LONG);
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
    async fn notes_are_bounded_and_forgotten() {
        pause();
        let unedited = Unedited::default();
        assert!(unedited.is_empty() && !unedited.has(&[name(0)]));
        for n in 0..=MOST {
            unedited.note(name(n));
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(unedited.until.load().len(), MOST);
        assert!(!unedited.has(&[name(0)]), "the oldest has made room");
        assert!(unedited.has(&[name(MOST + 1), name(1)]));
        advance(LONG).await;
        assert!(!unedited.has(&[name(1), name(MOST)]));
        unedited.note(name(7));
        assert_eq!(unedited.until.load().len(), 1);
    }
}
