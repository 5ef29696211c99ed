//! The share of one caller in the connections, and in the places and the memory for requests, while several callers send some.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::{Budget, Limits};
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

/// How many shares there are. A hash of the caller chooses one, so two callers may have one together.
const CALLERS: usize = 4096;

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
    in_flight: Arc<Semaphore>,
    /// The part of the budget that the caller may use.
    pub(super) budget: Budget,
}

/// A place among the requests in flight, of all and of one caller.
#[derive(Debug)]
pub struct Permit {
    _of_all: OwnedSemaphorePermit,
    _of_caller: Option<OwnedSemaphorePermit>,
}

/// A request that is let in.
pub(super) struct Admission {
    /// Its place.
    pub(super) permit: Permit,
    /// The limits of its body.
    pub(super) limits: Limits,
}

// === impl Settings ===

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
        let share = self.shares.get(usize::try_from(caller.id() % n).ok()?)?;
        Some(share.get_or_init(|| Share {
            in_flight: Arc::new(Semaphore::new(self.places)),
            budget: self.budget.part(self.bytes),
        }))
    }
}

impl Share {
    /// A place of the caller's.
    pub(super) fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.in_flight).try_acquire_owned().ok()
    }
}

impl Permit {
    /// A place of all, and one of the caller's.
    pub(super) fn new(of_all: OwnedSemaphorePermit, of_caller: Option<OwnedSemaphorePermit>) -> Self {
        Self { _of_all: of_all, _of_caller: of_caller }
    }
}
