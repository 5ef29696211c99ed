//! The names of payloads: a keyed hash of what was taken out of a conversation and of whose conversation it was.
//!
//! One payload has one handle in every request of one caller, so it is stored once, and a text that names it never
//! changes. Without the store's secret nobody can tell a handle from a content, and what one caller sends never meets
//! what another one sends.

use std::{fmt, str::FromStr};

/// How many bytes of a hash are kept. 128 bits collide by accident never, and on purpose only for who has the secret.
const KEPT: usize = 16;

/// The digits of a handle: Crockford's base 32, in which no two digits look alike.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// How many digits a handle has.
const N_DIGITS: usize = 26;

/// The secret of a store, which all hashes are keyed with.
#[derive(Clone)]
pub struct Keys([u8; 32]);

/// Whose conversation it is: the hash of what a client shows to the upstream.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Caller([u8; KEPT]);

/// The name of a payload. It prints as its handle.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PayloadKey([u8; KEPT]);

/// The text is no handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a handle: one has {N_DIGITS} digits and lower-case letters")]
pub struct NotAHandle;

// === impl Keys ===

impl Keys {
    /// The keys that a secret makes.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// The caller who shows `credential`. The credential cannot be found out from it.
    pub fn caller(&self, credential: &[u8]) -> Caller {
        Caller(self.hash(b"caller", &[], credential))
    }

    /// The name of what was taken out of a conversation of `caller`.
    pub fn payload(&self, caller: Caller, payload: &[u8]) -> PayloadKey {
        PayloadKey(self.hash(b"payload", &caller.0, payload))
    }

    /// A prefix that has one length for each use keeps the uses apart.
    fn hash(&self, usage: &'static [u8], namespace: &[u8], content: &[u8]) -> [u8; KEPT] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(usage).update(namespace).update(content);
        let mut kept = [0; KEPT];
        hasher.finalize_xof().fill(&mut kept);
        kept
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(***)")
    }
}

// === impl PayloadKey ===

impl PayloadKey {
    /// The key as a store keeps it.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The key that a store has kept.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for PayloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = u128::from_be_bytes(self.0);
        let mut handle = [b'0'; N_DIGITS];
        for (n, digit) in handle.iter_mut().rev().enumerate() {
            let value = usize::try_from((number >> (5 * n)) & 31).unwrap_or_default();
            *digit = DIGITS.get(value).copied().unwrap_or_default();
        }
        f.write_str(str::from_utf8(&handle).unwrap_or_default())
    }
}

impl fmt::Debug for PayloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for PayloadKey {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl FromStr for PayloadKey {
    type Err = NotAHandle;

    /// Reads what [`Display`](fmt::Display) writes and nothing else: a handle has one spelling.
    fn from_str(handle: &str) -> Result<Self, NotAHandle> {
        if handle.len() != N_DIGITS || handle.as_bytes().first().is_none_or(|first| !(b'0'..=b'7').contains(first)) {
            return Err(NotAHandle); // 26 digits are 130 bits, so the first one has two bits less
        }
        let mut number = 0_u128;
        for digit in handle.bytes() {
            let value = DIGITS.iter().position(|known| *known == digit).ok_or(NotAHandle)?;
            number = (number << 5) | u128::try_from(value).map_err(|_| NotAHandle)?;
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
            assert_eq!(text.parse::<PayloadKey>(), Err(NotAHandle), "{text}");
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
    fn the_secret_does_not_print() {
        assert_eq!(format!("{:?}", keys()), "Keys(***)");
    }
}
