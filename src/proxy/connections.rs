//! The open connections of clients, and the caller that each counts for: that of its last request.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::body::in_flight::{KeptOpen, Requests};
use crate::held::Held;
use crate::payload::Caller;

/// The open connections of clients. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections(Arc<Held<Open>>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    clients: FxHashMap<u64, Client>,
    // Callers are keyed hashes, which clients cannot choose.
    counts: FxHashMap<Caller, usize>,
}

#[derive(Debug)]
struct Client {
    caller: Option<Caller>,
    requests: Arc<Requests>,
}

/// A client's connection, until this is dropped.
pub(crate) struct OpenConnection {
    of: Connections,
    pub(crate) id: u64,
}

// === impl Connections ===

impl Connections {
    /// Notes a connection with its requests.
    pub(crate) fn open(&self, requests: &Arc<Requests>) -> OpenConnection {
        let id = self.0.with(|open| {
            open.next += 1;
            open.clients.insert(open.next, Client { caller: None, requests: Arc::clone(requests) });
            open.next
        });
        OpenConnection { of: self.clone(), id }
    }

    /// Whether a connection is open.
    pub(super) fn has(&self, connection: u64) -> bool {
        self.0.with(|open| open.clients.contains_key(&connection))
    }

    /// Keeps a connection open, if its client does.
    pub(super) fn keep_open(&self, connection: u64) -> Option<KeptOpen> {
        self.0.with(|open| open.clients.get(&connection).map(|client| client.requests.keep_open()))
    }

    /// Counts a connection for a caller, and no longer for the caller of its request before. If `most` others count for the
    /// caller, it counts for no one, and this returns false.
    pub(super) fn count(&self, connection: u64, caller: Caller, most: usize) -> bool {
        self.0.with(|open| {
            let is_as_before = open.clients.get(&connection).is_some_and(|client| client.caller == Some(caller));
            if is_as_before && open.counts.get(&caller).is_some_and(|n| *n <= most) {
                return true;
            }
            open.discount(connection);
            let n = open.counts.get(&caller).copied().unwrap_or_default();
            let Some(client) = open.clients.get_mut(&connection).filter(|_| n < most) else { return n < most };
            client.caller = Some(caller);
            open.counts.insert(caller, n + 1);
            true
        })
    }
}

impl Open {
    fn discount(&mut self, connection: u64) {
        let Some(caller) = self.clients.get_mut(&connection).and_then(|client| client.caller.take()) else { return };
        if let Entry::Occupied(mut n) = self.counts.entry(caller) {
            *n.get_mut() -= 1;
            if *n.get() == 0 {
                n.remove();
            }
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.of.0.with(|open| {
            open.discount(self.id);
            open.clients.remove(&self.id);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Keys;

    #[test]
    fn a_connection_counts_for_the_caller_of_its_last_request_until_it_is_closed() {
        let (all, keys) = (Connections::default(), Keys::new([7; 32]));
        let [ann, bob] = [b"ann", b"bob"].map(|name| keys.caller(name));
        let open = [(); 3].map(|()| all.open(&Arc::default()));
        let [one, two, three] = [&open[0], &open[1], &open[2]].map(|open| open.id);
        assert!(all.count(one, ann, 2) && all.count(one, ann, 2) && all.count(two, ann, 2));
        assert!(!all.count(three, ann, 2) && all.count(three, bob, 1));
        // A request of another caller gives a place back.
        assert!(all.count(two, bob, 2) && all.count(three, ann, 2));
        assert!(!all.count(two, ann, 2) && all.count(two, ann, 3));
        drop(open);
        assert_eq!([one, two, three].map(|id| all.has(id)), [false; 3]);
        assert!(all.0.with(|open| open.clients.is_empty() && open.counts.is_empty()));
    }
}
