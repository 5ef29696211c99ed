//! Encrypts what an engine holds under the secret of the settings, so that who runs the engine reads neither texts nor
//! handles.
//!
//! A body has its own key, which is derived from the secret and from what the body is stored under; the handle of a
//! payload is made of its caller, so no two callers have a key in common. The nonce is a keyed hash of the body: equal bodies
//! under one name stay equal, and no two bodies have a nonce in common.

use std::borrow::Cow;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;
use zeroize::Zeroizing;

use crate::payload::PayloadKey;
use crate::store::codec::{Name, Unreadable};
use crate::store::engine_error::{EngineError, EngineResult};
use crate::store::secret::Secrets;

/// Encrypts and names what an engine holds. The default one leaves all as it is.
#[derive(Default)]
pub(super) struct Seal {
    /// Of the secret in force, and of the former ones.
    rings: Vec<Ring>,
}

/// The keys that one secret makes.
struct Ring {
    /// Tells which secret a body was encrypted under.
    id: [u8; ID_LEN],
    rows: Zeroizing<[u8; 32]>,
    bodies: Zeroizing<[u8; 32]>,
}

/// The first byte of an encrypted body.
const SEALED: u8 = 4;

/// Behind [`SEALED`], an encrypted body has so many bytes that tell the secret, and then the nonce.
const ID_LEN: usize = 4;

/// How many rounds permute a name. Four are enough in theory.
const ROUNDS: u8 = 6;

/// The lower half of a name.
const HALF: u128 = (1 << 64) - 1;

// === impl Seal ===

impl Seal {
    /// Encrypts under the secret in force; `None` if there is none.
    pub(super) fn new(secrets: &Secrets) -> Option<Self> {
        let current = secrets.current()?;
        Some(Self { rings: std::iter::once(&current).chain(secrets.old()).map(Ring::new).collect() })
    }

    pub(super) fn is_on(&self) -> bool {
        !self.rings.is_empty()
    }

    /// The name of a payload's row.
    pub(super) fn row(&self, key: PayloadKey) -> PayloadKey {
        self.rings.first().map_or(key, |ring| ring.row(key))
    }

    /// Whose payload it is: who runs the engine learns which rows are one caller's, and not whose.
    pub(super) fn owner(&self, key: PayloadKey) -> u16 {
        let owner = u16::from_be_bytes(key.owner());
        self.rings.first().map_or(owner, |ring| ring.owner(owner))
    }

    /// The names that a payload's row may have: under the secret in force, and under those that it has replaced.
    pub(super) fn rows(&self, key: PayloadKey) -> Vec<PayloadKey> {
        if self.is_on() { self.rings.iter().map(|ring| ring.row(key)).collect() } else { vec![key] }
    }

    /// The handle of a row's payload; `None` if only the row's body tells it.
    pub(super) fn handle(&self, row: PayloadKey) -> Option<PayloadKey> {
        match self.rings.as_slice() {
            [] => Some(row),
            [ring] => Some(ring.handle(row)),
            _ => None,
        }
    }

    /// The handle of the payload of a row with this body; `None` if the body is of none of the secrets.
    pub(super) fn handle_by_body(&self, row: PayloadKey, stored: &[u8]) -> Option<PayloadKey> {
        Some(self.ring_of(stored)?.0.handle(row))
    }

    /// Encrypts a body.
    pub(super) fn seal(&self, name: &Name, body: Vec<u8>) -> EngineResult<Vec<u8>> {
        match self.rings.first() {
            None => Ok(body),
            Some(ring) => ring.seal(name, body).map_err(|Unspecified| EngineError::TooLong),
        }
    }

    /// Decrypts a body, if it is what was stored under this name.
    pub(super) fn open<'t>(&self, name: &Name, stored: &'t [u8]) -> Result<Cow<'t, [u8]>, Unreadable> {
        if !self.is_on() {
            return Ok(Cow::Borrowed(stored));
        }
        if let Some((ring, rest)) = self.ring_of(stored) {
            return ring.open(name, rest).map(Cow::Owned).ok_or(Unreadable::Damaged);
        }
        let sealed = stored.strip_prefix(&[SEALED]).and_then(|sealed| sealed.split_first_chunk::<ID_LEN>());
        // If a known secret opens it, only its id is damaged.
        let is_foreign = sealed.is_some_and(|(_, rest)| !self.rings.iter().any(|ring| ring.open(name, rest).is_some()));
        Err(if is_foreign { Unreadable::Foreign } else { Unreadable::Damaged })
    }

    /// The keys that a body was encrypted with, and what is after their id.
    fn ring_of<'t>(&self, stored: &'t [u8]) -> Option<(&Ring, &'t [u8])> {
        let (id, rest) = stored.strip_prefix(&[SEALED])?.split_first_chunk()?;
        Some((self.rings.iter().find(|ring| ring.id == *id)?, rest))
    }
}

// === impl Ring ===

impl Ring {
    fn new(secret: &[u8; 32]) -> Self {
        let derived = |usage| Zeroizing::new(blake3::derive_key(usage, secret));
        let id = derived("abridge 2026 sealed store: which secret it is").first_chunk().copied().unwrap_or_default();
        let rows = derived("abridge 2026 sealed store: names of rows");
        Self { id, rows, bodies: derived("abridge 2026 sealed store: bodies") }
    }

    /// A permutation of all names, a Feistel network: lists name their rows without reading bodies.
    fn row(&self, handle: PayloadKey) -> PayloadKey {
        let handle = u128::from_be_bytes(*handle.as_bytes());
        let start = (handle >> 64, handle & HALF);
        let (left, right) = (0..ROUNDS).fold(start, |(left, right), round| (right, left ^ self.mask(round, right)));
        PayloadKey::from_bytes((left << 64 | right).to_be_bytes())
    }

    /// The inverse of [`Self::row`].
    fn handle(&self, row: PayloadKey) -> PayloadKey {
        let row = u128::from_be_bytes(*row.as_bytes());
        let start = (row >> 64, row & HALF);
        let (left, right) =
            (0..ROUNDS).rev().fold(start, |(left, right), round| (right ^ self.mask(round, left), left));
        PayloadKey::from_bytes((left << 64 | right).to_be_bytes())
    }

    fn owner(&self, owner: u16) -> u16 {
        u16::try_from(self.mask(ROUNDS, owner.into()) >> 48).unwrap_or_default()
    }

    fn mask(&self, round: u8, half: u128) -> u128 {
        let mut hasher = blake3::Hasher::new_keyed(&self.rows);
        let mask = hasher.update(&[round]).update(&half.to_be_bytes()).finalize();
        u64::from_be_bytes(mask.as_bytes().first_chunk().copied().unwrap_or_default()).into()
    }

    fn seal(&self, name: &Name, mut body: Vec<u8>) -> Result<Vec<u8>, Unspecified> {
        let (cipher, nonces) = self.keys(name)?;
        let nonce: [u8; NONCE_LEN] =
            blake3::keyed_hash(&nonces, &body).as_bytes().first_chunk().copied().unwrap_or_default();
        cipher.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut body)?;
        Ok([&[SEALED][..], &self.id, &nonce, &body].concat())
    }

    /// Decrypts what comes after the id.
    fn open(&self, name: &Name, rest: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = rest.split_first_chunk()?;
        let mut body = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let n_bytes = self.keys(name).ok()?.0.open_in_place(nonce, Aad::empty(), &mut body).ok()?.len();
        body.truncate(n_bytes);
        Some(body)
    }

    /// The keys of one body: the cipher's, and that of its nonces.
    fn keys(&self, name: &Name) -> Result<(LessSafeKey, Zeroizing<[u8; 32]>), Unspecified> {
        let (mut cipher, mut nonces) = (Zeroizing::new([0; 32]), Zeroizing::new([0; 32]));
        let mut hash = blake3::Hasher::new_keyed(&self.bodies).update(&name.as_bytes()).finalize_xof();
        hash.fill(&mut *cipher);
        hash.fill(&mut *nonces);
        let cipher = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &*cipher)?);
        Ok((cipher, nonces))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::ChainKey;
    use crate::store::shared::NoteKind;

    const FIRST: [u8; 32] = [1; 32];
    const SECOND: [u8; 32] = [2; 32];

    fn seal(secrets: &[[u8; 32]]) -> Seal {
        Seal { rings: secrets.iter().map(Ring::new).collect() }
    }

    fn key(n: u8) -> PayloadKey {
        PayloadKey::from_bytes([n; 16])
    }

    fn name() -> Name {
        Name::of_payload(key(1))
    }

    #[test]
    fn a_body_opens_under_its_name_and_secret_alone() {
        let (own, other) = (seal(&[FIRST]), seal(&[SECOND]));
        let mut names = vec![name(), Name::of_payload(key(2)), Name::of_summary(ChainKey::from_bytes([1; 16]))];
        names.extend([Name::of_inspected("req_1"), Name::of_note(NoteKind::Window, ChainKey::from_bytes([1; 16]))]);
        for (n, name) in names.iter().enumerate() {
            for body in [&b""[..], b"text", &[7; 10_000]] {
                let sealed = own.seal(name, body.to_vec()).unwrap();
                assert_eq!(sealed.len(), body.len() + 1 + ID_LEN + NONCE_LEN + 16);
                assert_eq!(own.open(name, &sealed).as_deref(), Ok(body));
                assert_eq!(other.open(name, &sealed), Err(Unreadable::Foreign));
                let opened_by = names.iter().filter(|name| own.open(name, &sealed).is_ok()).count();
                assert_eq!(opened_by, 1, "{n}");
            }
        }
    }

    #[test]
    fn a_body_that_was_changed_anywhere_does_not_open() {
        let (seal, name) = (seal(&[FIRST]), name());
        let sealed = seal.seal(&name, b"text".to_vec()).unwrap();
        for n in 0..sealed.len() {
            let mut wrong = sealed.clone();
            wrong[n] ^= 1;
            assert_eq!(seal.open(&name, &wrong), Err(Unreadable::Damaged), "{n}");
            assert!(seal.open(&name, &sealed[..n]).is_err(), "{n}");
        }
        assert_eq!(seal.open(&name, b"\0text"), Err(Unreadable::Damaged), "it is not encrypted");
    }

    #[test]
    fn equal_bodies_stay_equal_and_others_have_another_nonce() {
        let (seal, name) = (seal(&[FIRST]), name());
        let sealed = |body: &[u8]| seal.seal(&name, body.to_vec()).unwrap();
        let nonce = |body: &[u8]| sealed(body)[1 + ID_LEN..][..NONCE_LEN].to_vec();
        assert_eq!(sealed(b"text"), sealed(b"text"));
        assert_ne!(nonce(b"text"), nonce(b"texts"));
    }

    #[test]
    fn a_row_is_named_by_who_has_the_secret() {
        let (own, other) = (seal(&[FIRST]), seal(&[SECOND]));
        let mut rows = std::collections::BTreeSet::new();
        for n in 0..=255 {
            let row = own.row(key(n));
            assert_eq!((own.handle(row), own.rows(key(n))), (Some(key(n)), vec![row]));
            assert_ne!(row, key(n));
            assert_ne!(other.row(key(n)), row);
            assert_ne!(other.handle(row), Some(key(n)));
            rows.insert(row);
        }
        assert_eq!(rows.len(), 256);
    }

    #[test]
    fn what_a_former_secret_has_sealed_opens_and_is_named() {
        let (before, after) = (seal(&[FIRST]), seal(&[SECOND, FIRST]));
        let (row, name) = (before.row(key(1)), name());
        let sealed = before.seal(&name, b"text".to_vec()).unwrap();
        assert_eq!(after.open(&name, &sealed).as_deref(), Ok(&b"text"[..]));
        assert_eq!(after.rows(key(1)), [seal(&[SECOND]).row(key(1)), row]);
        assert_eq!((after.handle(row), after.handle_by_body(row, &sealed)), (None, Some(key(1))));
        let again = after.seal(&name, b"text".to_vec()).unwrap();
        assert_eq!(
            (after.handle_by_body(after.row(key(1)), &again), before.open(&name, &again)),
            (Some(key(1)), Err(Unreadable::Foreign))
        );
    }

    #[test]
    fn without_secrets_all_stays_as_it_is() {
        let (off, name) = (Seal::default(), name());
        assert_eq!(off.seal(&name, b"text".to_vec()).unwrap(), b"text");
        assert_eq!(off.open(&name, b"text").as_deref(), Ok(&b"text"[..]));
        assert_eq!((off.row(key(1)), off.handle(key(1)), off.rows(key(1))), (key(1), Some(key(1)), vec![key(1)]));
        assert!(!off.is_on() && Seal::new(&Secrets::default()).is_none());
    }
}
