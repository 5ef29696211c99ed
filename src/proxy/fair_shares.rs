//! The share of one caller in the connections, and in the places and the memory for requests, while several callers send some;
//! and the open connections of clients, each of which counts for the caller of its last request.

use std::collections::hash_map::Entry;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::{Budget, KeptOpen, Limits, Requests};
use crate::held::Held;
use crate::payload::Caller;
use crate::units::Fraction;

/// `[limits]` of `proxy.toml`: the share of one caller in the limits of `[server]`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The largest part of `server.max_in_flight` that the requests of one caller may take, of `server.max_buffered` that
    /// their bodies may take, and of `server.max_connections` that they may come on, while several callers send requests; then
    /// the caller gets 429 with `retry-after`. One caller alone may take all. 1 for no such limit. Allowed: more than 0, at
    /// most 1.
    #[default(Fraction::new(0.5).unwrap_or(Fraction::ONE))]
    pub caller_share: Fraction,
}

/// How many shares there are.
const CALLERS: usize = 4096;

/// How many places a caller looks at for its share, from one that a hash of it names. Where others have them all, it has the
/// first together with the caller there.
const PROBES: usize = 64;

/// The shares of the callers, each made at the first request of its caller.
#[derive(Debug)]
pub(super) struct FairShares {
    // None where one caller may take all.
    shares: Box<[OnceLock<Share>]>,
    places: usize,
    budget: Budget,
    bytes: usize,
    connections: usize,
}

/// The share of one caller.
#[derive(Debug)]
pub(super) struct Share {
    caller: Caller,
    pub(super) in_flight: Arc<Semaphore>,
    /// The part of the budget that the caller may use.
    pub(super) budget: Budget,
}

/// A place among the requests in flight, of all and of one caller.
#[derive(Debug)]
pub struct Permit {
    pub(super) _of_all: OwnedSemaphorePermit,
    pub(super) _of_caller: Option<OwnedSemaphorePermit>,
}

/// A request that is let in.
pub(super) struct Admission {
    /// Its place.
    pub(super) permit: Permit,
    /// The limits of its body.
    pub(super) limits: Limits,
}

// === impl FairShares ===

impl FairShares {
    /// Creates shares in these totals.
    pub(super) fn new(settings: &Settings, [max_in_flight, max_connections]: [usize; 2], budget: &Budget) -> Self {
        let part = settings.caller_share;
        let n = if part == Fraction::ONE { 0 } else { CALLERS };
        Self {
            shares: (0..n).map(|_| OnceLock::new()).collect(),
            places: part.of(max_in_flight).clamp(1, Semaphore::MAX_PERMITS),
            budget: budget.clone(),
            bytes: part.of(budget.limit()),
            connections: part.of(max_connections).max(1),
        }
    }

    /// The connections that one caller may have; `None` where it may have all.
    pub(super) fn connections(&self) -> Option<usize> {
        (!self.shares.is_empty()).then_some(self.connections)
    }

    /// The share of a caller.
    pub(super) fn of(&self, caller: Caller) -> Option<&Share> {
        let n = u64::try_from(self.shares.len()).ok().filter(|n| *n > 0)?;
        let first = usize::try_from(caller.id() % n).ok()?;
        let (before, from) = self.shares.split_at_checked(first)?;
        let new =
            || Share { caller, in_flight: Arc::new(Semaphore::new(self.places)), budget: self.budget.part(self.bytes) };
        let mut probed = from.iter().chain(before).take(PROBES).map(|share| share.get_or_init(new));
        probed.find(|share| share.caller == caller).or_else(|| from.first()?.get())
    }
}

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
    fn callers_have_shares_of_their_own_until_all_are_taken() {
        let keys = Keys::new([7; 32]);
        let all = FairShares::new(&Settings::default(), [8, 8], &Budget::new(100));
        let callers: Vec<_> = (0..u32::try_from(CALLERS).unwrap()).map(|n| keys.caller(&n.to_le_bytes())).collect();
        let few = &callers[..CALLERS / 2];
        assert!(few.iter().all(|caller| all.of(*caller).is_some_and(|share| share.caller == *caller)));
        // Each keeps it, and one that comes too late has that of another.
        assert!(callers.iter().all(|caller| all.of(*caller).is_some()));
        assert!(few.iter().all(|caller| all.of(*caller).is_some_and(|share| share.caller == *caller)));
        let late = keys.caller(b"late");
        let mut more = (0..u32::MAX).map(|n| keys.caller(&[&b"more"[..], &n.to_le_bytes()].concat()));
        while all.shares.iter().any(|share| share.get().is_none()) {
            assert!(all.of(more.next().unwrap()).is_some());
        }
        assert!(all.of(late).is_some_and(|share| share.caller != late));
        let one = FairShares::new(&Settings { caller_share: Fraction::ONE }, [8, 8], &Budget::new(100));
        assert!(one.of(late).is_none());
    }

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
