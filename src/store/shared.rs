//! What a store that several processes use at once does besides [`Store`]: summaries are looked up for each request,
//! one process makes each of them, and what one process has learned reaches the others.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::engine_error::EngineResult;
use super::{NamedPayloads, Store, StoreResult};
use crate::payload::{ChainKey, Lifetime, Place};

/// A store that several processes use at once. All times are those of the engine's clock.
#[async_trait]
pub trait SharedStore: Store {
    /// Stores payloads as [`Store::put`] does. Another process has likely stored them, so the engine is asked for those that
    /// this process does not know, and only what is missing is sent.
    async fn put_again(&self, payloads: NamedPayloads, lifetime: Lifetime) -> StoreResult<()>;

    /// The known summaries of one conversation: the last used, [`MAX_SEEN`] at most.
    async fn look(&self, root: ChainKey) -> StoreResult<Vec<Seen>>;

    /// Claims the making of a summary for [`Claimant::lease`]. The same claimant may claim again, to renew its lease. Returns why
    /// the claim is not given; `None` if it is.
    async fn claim(&self, place: Place, claimant: Claimant) -> StoreResult<Option<SeenState>>;

    /// Gives a claim back. With `not_before`, it is not given until that time has passed. A claim that another claimant
    /// has by now is left alone.
    async fn release(&self, place: Place, claimant: Claimant, not_before: Option<Duration>) -> StoreResult<()>;

    /// How often the engine was connected to.
    fn epoch(&self) -> u64;

    /// The name of the engine.
    fn engine(&self) -> &'static str;

    /// The secret that names are made with.
    fn secret(&self) -> Option<[u8; 32]>;

    /// What the engine promises of what it has confirmed, in words.
    async fn promise(&self) -> String;

    /// Why the connection is missing, if there is none.
    fn state(&self) -> EngineResult<()>;
}

/// The facts about one beginning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seen {
    /// The beginning.
    pub beginning: ChainKey,
    /// What is known.
    pub state: SeenState,
}

/// The state of a beginning in a shared store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SeenState {
    /// There is a summary.
    Stored,
    /// A summary is being made; the lease ends after this time.
    UnderWay(Duration),
    /// A summary could not be made, and is not to be tried again for this time.
    NotNow(Duration),
}

/// Who claims, and for how long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Claimant {
    /// A random number that no other claimant has.
    pub token: i64,
    /// How long the claim holds unless it is renewed.
    pub lease: Duration,
}

/// Something that one process tells the others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Note {
    /// Its subject.
    pub kind: NoteKind,
    /// Its key.
    pub key: ChainKey,
    /// Its content.
    pub value: Bytes,
}

/// The subject of a note.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum NoteKind {
    /// The context window of a model.
    Window,
    /// A conversation that is forwarded unedited.
    Unedited,
    /// The settings of a process.
    Settings,
    /// The forms that an upstream asks for.
    Forms,
    /// What one process has counted on one day.
    Ledger,
}

/// Notes that are read together.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum NoteGroup {
    /// What the processes of a fleet tell each other.
    #[strum(serialize = "notes")]
    Fleet,
    /// The ledger.
    Ledger,
}

/// How many summaries of one conversation are looked up.
pub const MAX_SEEN: usize = 64;

// === impl NoteKind ===

impl NoteKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Window, Self::Unedited, Self::Settings, Self::Forms, Self::Ledger];

    /// What it is read with.
    pub fn group(self) -> NoteGroup {
        if self == Self::Ledger { NoteGroup::Ledger } else { NoteGroup::Fleet }
    }

    /// The name of the note of this kind and key.
    pub(super) fn name_of(self, key: ChainKey) -> Vec<u8> {
        [key.as_bytes(), <&str>::from(self).as_bytes()].concat()
    }

    /// The kind and the key of a note of this name; no kind if it is that of a later version, nothing if the name is damaged.
    pub(super) fn named(name: &[u8]) -> Option<(Option<Self>, ChainKey)> {
        let (key, kind) = name.split_first_chunk()?;
        Some((str::from_utf8(kind).ok().and_then(|kind| kind.parse().ok()), ChainKey::from_bytes(*key)))
    }

    /// The kinds of a group.
    pub(super) fn of(group: NoteGroup) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |kind| kind.group() == group)
    }
}

// === impl NoteGroup ===

impl NoteGroup {
    /// All groups.
    pub(super) const ALL: [Self; 2] = [Self::Fleet, Self::Ledger];

    /// How many notes are read, the last written ones.
    pub(super) fn most(self) -> usize {
        match self {
            Self::Fleet => 4096,
            Self::Ledger => 32_768,
        }
    }
}
