//! The names of payloads: a keyed hash of what was taken out of a conversation and of whose conversation it was.
//!
//! One payload has one handle in every request of one caller, so it is stored once, and a text that names it never
//! changes. Without the store's secret no one can tell a handle from a content, and what one caller sends never meets
//! what another one sends.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use zeroize::Zeroizing;

use cache::Cache;

pub(crate) mod cache;
mod chain;
mod fingerprint;
mod hash;
pub mod media;
mod value;

pub use chain::{Chain, ChainKey, Place};
pub use fingerprint::{Fingerprint, Fingerprinter};
pub use hash::{HASH_MARK, hashes_in};
pub use media::MediaType;
pub use value::{OffloadedPayload, Payload};

/// How many bytes of a hash are kept. 128 bits collide by accident never, nor do the 96 of a payload's content; on purpose only
/// for who has the secret.
const HASH_LEN: usize = 16;

/// The digits of a handle: Crockford's base 32, in which no two digits look alike.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// How many bytes of a name are of the content, and how many after them are the caller's, the same in all of its names. The
/// rest is of both.
const CONTENT_LEN: usize = 12;
const OWNER_LEN: usize = 2;

/// How many digits a handle has.
pub const HANDLE_LEN: usize = 26;

/// The slots for names that are remembered. One takes some 100 bytes with its share of the tables around it.
const NAME_SLOTS: usize = 32_768;

/// The same of a secret that was replaced, which names nothing new.
const OLD_NAME_SLOTS: usize = 16;

/// The secret of a store, which all hashes are keyed with. Clones share the names that they remember.
#[derive(Clone, derive_more::Debug)]
#[debug("Keys(***)")]
pub struct Keys {
    secret: Zeroizing<[u8; 32]>,
    names: Arc<NameCache>,
    recorded: Arc<Handles>,
    replaced: Arc<[Keys]>,
}

/// The handles that payloads have in a recording, each after the one that [`Keys::well_known`] give it.
pub type Handles = BTreeMap<PayloadKey, PayloadKey>;

/// Names by caller and the fingerprint of the JSON: a text that comes again is neither unescaped nor hashed again.
///
/// The hash of what is written is a quick one. The caller is part of the key as it is: whatever hashes do, no caller is
/// ever given a name out of a conversation of another one.
type NameCache = Cache<(Caller, Fingerprint), PayloadName>;

/// The name of a payload, with its lengths.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PayloadName {
    /// The name.
    pub key: PayloadKey,
    /// The bytes of the text, or of what base64 encodes.
    pub len: usize,
    /// The bytes that are stored: the same, or those of the value as it is written.
    pub stored_len: usize,
    /// The type, where what base64 encodes is stored.
    pub media: Option<MediaType>,
}

/// The content of a JSON value.
#[derive(Clone, Copy, Debug)]
pub struct DecodedValue<'t> {
    /// The bytes of its text, or of what its base64 encodes.
    pub len: usize,
    /// The stored bytes of it.
    pub stored: &'t [u8],
    /// The type of what its base64 encodes.
    pub media: Option<MediaType>,
}

/// How long a payload is kept after its last use. Stores keep its name.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Lifetime {
    /// As long as most.
    #[default]
    Usual,
    /// Longer: the upstream keeps what names it, and the client does not send that again.
    Chained,
}

/// Whose conversation it is: the hash of what a client shows to the upstream.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Caller([u8; HASH_LEN]);

/// The name of a payload. It prints as its handle.
#[derive(Clone, Copy, derive_more::Debug, Eq, Hash, Ord, PartialOrd)]
#[expect(clippy::derived_hash_with_manual_eq, reason = "equal keys have equal bytes")]
#[debug("{self}")]
pub struct PayloadKey([u8; HASH_LEN]);

/// The text is not a handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a handle: one has {HANDLE_LEN} digits and lower-case letters")]
pub struct InvalidHandle;

/// The handles in a text, in order: its words that are one.
pub fn handles_in(text: &str) -> impl DoubleEndedIterator<Item = PayloadKey> {
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter_map(|word| word.parse().ok())
}

// === impl Caller ===

impl Caller {
    /// A short name, within one process.
    pub fn id(self) -> u64 {
        let (id, _) = self.0.split_first_chunk().unwrap_or((&[0; 8], &[]));
        u64::from_le_bytes(*id)
    }
}

// === impl Keys ===

impl Keys {
    /// The keys that a secret makes.
    pub fn new(secret: [u8; 32]) -> Self {
        Self::remembering(secret, NAME_SLOTS)
    }

    fn remembering(secret: [u8; 32], slots: usize) -> Self {
        let names = Arc::new(cache::with_slots(slots));
        Self { secret: Zeroizing::new(secret), names, recorded: Arc::default(), replaced: Arc::default() }
    }

    /// The same keys, with those of the secrets that this one has replaced.
    #[must_use]
    pub fn replacing<'s>(self, old: impl Iterator<Item = &'s [u8; 32]>) -> Self {
        Self { replaced: old.map(|secret| Self::remembering(*secret, OLD_NAME_SLOTS)).collect(), ..self }
    }

    /// These keys, and those that they have replaced.
    pub fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&*self.replaced)
    }

    /// The keys of a secret that is none: handles are the same everywhere. For plans without a store.
    pub fn well_known() -> Self {
        Self::new([0; 32])
    }

    /// The keys that give payloads the handles that they have in a recording, and the well-known ones to all others.
    pub fn recorded(handles: Handles) -> Self {
        Self { recorded: Arc::new(handles), ..Self::well_known() }
    }

    /// The caller who shows no credential.
    pub fn anonymous(&self) -> Caller {
        self.caller(&[])
    }

    /// The caller who shows `credential`. The credential cannot be found out from it.
    pub fn caller(&self, credential: &[u8]) -> Caller {
        Caller(self.hash(b"caller", &[], [credential]))
    }

    /// The name of what was taken out of a conversation of `caller`.
    pub fn payload(&self, caller: Caller, payload: &[u8]) -> PayloadKey {
        let key = self.marked(caller, self.hash(b"payload", &caller.0, [payload]));
        self.recorded.get(&key).copied().unwrap_or(key)
    }

    /// Whether the name may be one of `caller`'s; one in four thousand millions of other names may, too. It takes one time for
    /// all names, and asks no store.
    pub fn may_be_of(&self, caller: Caller, key: PayloadKey) -> bool {
        self.marked(caller, key.0) == key
    }

    /// A name that ends in what says whose it is.
    fn marked(&self, caller: Caller, mut name: [u8; HASH_LEN]) -> PayloadKey {
        let (content, mark) = name.split_at_mut(CONTENT_LEN);
        let of_both = self.hash(b"owner", &caller.0, [&*content]);
        for (byte, of_caller) in mark.iter_mut().zip(caller.0.into_iter().take(OWNER_LEN).chain(of_both)) {
            *byte = of_caller;
        }
        PayloadKey(name)
    }

    /// The name of what a JSON value says, which is known by what is written: out of memory, or else made of what `read`
    /// gives. None if that is nothing.
    pub fn name<'t>(
        &self,
        caller: Caller,
        written: Fingerprint,
        read: impl FnOnce() -> Option<DecodedValue<'t>>,
    ) -> Option<PayloadName> {
        let remembered = (caller, written);
        if let Some(name) = self.names.get(&remembered) {
            return Some(name);
        }
        let DecodedValue { len, stored, media } = read()?;
        let name = PayloadName { key: self.payload(caller, stored), len, stored_len: stored.len(), media };
        self.names.insert(remembered, name);
        Some(name)
    }

    /// What a message of `caller` is known by wherever the secret is known: the hash of what its model reads of it. That is
    /// remembered by what is written, and made of the pieces of the canonical form, whichever spelling was seen first.
    pub fn message<'t>(
        &self,
        caller: Caller,
        written: Fingerprint,
        canonical: impl FnOnce() -> Vec<&'t [u8]>,
    ) -> PayloadKey {
        let remembered = (caller, written);
        if let Some(name) = self.names.get(&remembered) {
            return name.key;
        }
        let key = PayloadKey(self.hash(b"message", &caller.0, canonical()));
        self.names.insert(remembered, PayloadName { key, len: 0, stored_len: 0, media: None });
        key
    }

    /// The name of what a handler answers `caller` to these parts of a question.
    pub fn answer(&self, caller: Caller, parts: &[&[u8]]) -> ChainKey {
        let lengths: Vec<_> = parts.iter().map(|part| (part.len() as u64).to_le_bytes()).collect();
        let parts = lengths.iter().zip(parts).flat_map(|(length, part)| [length.as_slice(), part]);
        ChainKey::of(caller, self.hash(b"answer", &caller.0, parts))
    }

    /// A prefix that has one length for each use keeps the uses apart.
    fn hash<'t>(
        &self,
        usage: &'static [u8],
        namespace: &[u8],
        content: impl IntoIterator<Item = &'t [u8]>,
    ) -> [u8; HASH_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(usage).update(namespace);
        for piece in content {
            hasher.update(piece);
        }
        hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
    }
}

impl<'t> From<&'t str> for DecodedValue<'t> {
    fn from(text: &'t str) -> Self {
        Self { len: text.len(), stored: text.as_bytes(), media: None }
    }
}

// === impl PayloadKey ===

impl PayloadKey {
    /// The caller's part of the name. One in 65,536 callers has the same.
    pub fn owner(&self) -> [u8; OWNER_LEN] {
        let [.., first, second, _, _] = self.0;
        [first, second]
    }

    /// The key as a store keeps it.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The key that a store has kept.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// A guess takes the same time, however much of it is right.
impl PartialEq for PayloadKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differs, (own, other)| differs | (own ^ other)) == 0
    }
}

impl fmt::Display for PayloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = u128::from_be_bytes(self.0);
        let mut handle = [b'0'; HANDLE_LEN];
        for (n, digit) in handle.iter_mut().rev().enumerate() {
            let value = usize::try_from((number >> (5 * n)) & 31).unwrap_or_default();
            *digit = DIGITS.get(value).copied().unwrap_or_default();
        }
        f.write_str(str::from_utf8(&handle).unwrap_or_default())
    }
}

impl serde::Serialize for PayloadKey {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for PayloadKey {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for PayloadKey {
    type Err = InvalidHandle;

    /// Reads what [`Display`](fmt::Display) writes and nothing else: a handle has one spelling.
    fn from_str(handle: &str) -> Result<Self, InvalidHandle> {
        if handle.len() != HANDLE_LEN || handle.as_bytes().first().is_none_or(|first| !(b'0'..=b'7').contains(first)) {
            return Err(InvalidHandle); // 26 digits are 130 bits, so the first one has two bits less
        }
        let mut number = 0_u128;
        for digit in handle.bytes() {
            let value = DIGITS.iter().position(|known| *known == digit).ok_or(InvalidHandle)?;
            number = (number << 5) | u128::try_from(value).map_err(|_| InvalidHandle)?;
        }
        Ok(Self(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new([7; 32])
    }

    #[test]
    fn a_handle_reads_back() {
        for bytes in [[0; 16], [255; 16], [0xA5; 16], *keys().payload(keys().caller(b"a"), b"x").as_bytes()] {
            let key = PayloadKey::from_bytes(bytes);
            let handle = key.to_string();
            assert_eq!(handle.len(), 26);
            assert_eq!(handle.parse(), Ok(key));
        }
        assert_eq!(PayloadKey::from_bytes([0; 16]).to_string(), "0".repeat(26));
        assert_eq!(PayloadKey::from_bytes([255; 16]).to_string(), format!("7{}", "z".repeat(25)));
    }

    #[test]
    fn only_the_one_spelling_is_read() {
        let handle = keys().payload(keys().caller(b""), b"").to_string();
        let long = format!("{handle}0");
        let wrong = ["", handle.get(1..).unwrap(), &long, &handle.to_uppercase(), "8zzzzzzzzzzzzzzzzzzzzzzzzz"];
        for text in wrong.into_iter().chain([
            "0000000000000000000000000l",
            "../../../../../etc/passwd0",
            " 000000000000000000000000 ",
        ]) {
            assert_eq!(text.parse::<PayloadKey>(), Err(InvalidHandle), "{text}");
        }
    }

    #[test]
    fn keys_and_callers_keep_payloads_apart() {
        let (one, other) = (keys(), Keys::new([8; 32]));
        let (ann, bob) = (one.caller(b"ann"), one.caller(b"bob"));
        assert_eq!(one.payload(ann, b"x"), one.payload(ann, b"x"));
        assert_ne!(one.payload(ann, b"x"), one.payload(bob, b"x"));
        assert_ne!(one.payload(ann, b"x"), one.payload(ann, b"y"));
        assert_ne!(one.payload(ann, b"x"), other.payload(ann, b"x"));
        assert_ne!(one.caller(b"ann"), other.caller(b"ann"));
    }

    #[test]
    fn a_name_says_whose_it_is_to_who_has_the_secret() {
        let (one, other) = (keys(), Keys::new([8; 32]));
        let (ann, bob) = (one.caller(b"ann"), one.caller(b"bob"));
        for text in [&b""[..], b"x", b"y"] {
            let key = one.payload(ann, text);
            assert!(one.may_be_of(ann, key));
            assert!(!one.may_be_of(bob, key) && !other.may_be_of(other.caller(b"ann"), key));
            for n in 0..HASH_LEN {
                let mut wrong = *key.as_bytes();
                wrong[n] ^= 1;
                assert!(!one.may_be_of(ann, PayloadKey::from_bytes(wrong)), "{n}");
            }
        }
        // Two names of one caller do not show that they are.
        let [x, y] = [b"x", b"y"].map(|text| *one.payload(ann, text).as_bytes());
        assert_ne!(x[CONTENT_LEN..], y[CONTENT_LEN..]);
    }

    #[test]
    fn a_name_is_made_once_and_for_one_caller() {
        let keys = keys();
        let (ann, bob) = (keys.caller(b"ann"), keys.caller(b"bob"));
        let name = |caller, raw: &'static str, text: Option<&'static str>| {
            keys.name(caller, Fingerprint::of(raw.as_bytes()), || text.map(DecodedValue::from)).map(|name| name.key)
        };
        assert_eq!(name(ann, r#""\u0061""#, None), None);
        assert_eq!(name(ann, r#""\u0061""#, Some("a")), Some(keys.payload(ann, b"a")));
        assert_eq!(name(ann, r#""\u0061""#, None), Some(keys.payload(ann, b"a")));
        assert_eq!(name(ann, r#""a""#, Some("a")), Some(keys.payload(ann, b"a")));
        assert_eq!(name(bob, r#""a""#, None), None);
        assert_eq!(name(bob, r#""a""#, Some("a")), Some(keys.payload(bob, b"a")));
        assert_eq!(keys.clone().name(bob, Fingerprint::of(br#""a""#), || None).map(|name| name.len), Some(1));
    }

    #[test]
    fn no_more_names_are_remembered_than_may_be() {
        let keys = Keys::remembering([7; 32], 100);
        let caller = keys.caller(b"");
        for n in 0..10_000 {
            keys.name(caller, Fingerprint::of_numbers(n, 0), || Some(DecodedValue::from("x")));
        }
        assert!((1..=100).contains(&keys.names.len()));
    }

    #[test]
    fn names_are_the_same_only_if_each_byte_is() {
        let key = *keys().payload(keys().caller(b"ann"), b"x").as_bytes();
        // Two differences may look alike, so they must not take each other away.
        for (one, other) in (0..HASH_LEN).flat_map(|one| (0..HASH_LEN).map(move |other| (one, other))) {
            let mut wrong = key;
            wrong[one] ^= 1;
            wrong[other] ^= if one == other { 2 } else { 1 };
            assert_ne!(PayloadKey::from_bytes(wrong), PayloadKey::from_bytes(key), "{one} {other}");
        }
    }

    #[test]
    fn names_hash_apart_and_print_as_handles() {
        use std::hash::{BuildHasher, RandomState};
        let [one, other] = [b"x", b"y"].map(|text| keys().payload(keys().caller(b"ann"), text));
        let hasher = RandomState::new();
        assert_eq!(hasher.hash_one(one), hasher.hash_one(PayloadKey::from_bytes(*one.as_bytes())));
        assert_ne!(hasher.hash_one(one), hasher.hash_one(other));
        assert_eq!(format!("{one:?}"), one.to_string());
    }

    #[test]
    fn recorded_handles_stand_for_their_payloads_and_no_others() {
        let (keys, known) = (keys(), Keys::well_known());
        let [handle, name] = [&keys, &known].map(|keys| keys.payload(keys.anonymous(), b"x"));
        assert_ne!(handle, name);
        let recorded = Keys::recorded([(name, handle)].into());
        assert_eq!(recorded.payload(recorded.anonymous(), b"x"), handle);
        assert_eq!(recorded.payload(recorded.anonymous(), b"y"), known.payload(known.anonymous(), b"y"));
    }

    #[test]
    fn the_secret_does_not_print() {
        assert_eq!(format!("{:?}", keys()), "Keys(***)");
    }
}
