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
use crate::store::secret::StoreSecret;

/// Encrypts and names what an engine holds. The default one leaves all as it is.
#[derive(Default)]
pub(super) struct Seal(Option<Ring>);

/// The keys that a secret makes.
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
    pub(super) fn new(secret: &StoreSecret) -> Self {
        Self(Some(Ring::new(secret.expose())))
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The name of a payload's row.
    pub(super) fn row(&self, key: PayloadKey) -> PayloadKey {
        self.0.as_ref().map_or(key, |ring| ring.row(key))
    }

    /// The handle of a row's payload.
    pub(super) fn handle(&self, row: PayloadKey) -> PayloadKey {
        self.0.as_ref().map_or(row, |ring| ring.handle(row))
    }

    /// Whose payload it is: who runs the engine learns which rows are one caller's, and not whose.
    pub(super) fn owner(&self, key: PayloadKey) -> u16 {
        let owner = u16::from_be_bytes(key.owner());
        self.0.as_ref().map_or(owner, |ring| ring.owner(owner))
    }

    /// Encrypts a body.
    pub(super) fn seal(&self, name: &Name, body: Vec<u8>) -> EngineResult<Vec<u8>> {
        match &self.0 {
            None => Ok(body),
            Some(ring) => ring.seal(name, body).map_err(|Unspecified| EngineError::TooLong),
        }
    }

    /// Decrypts a body, if it is what was stored under this name.
    pub(super) fn open<'t>(&self, name: &Name, stored: &'t [u8]) -> Result<Cow<'t, [u8]>, Unreadable> {
        match &self.0 {
            None => Ok(Cow::Borrowed(stored)),
            Some(ring) => ring.open(name, stored).map(Cow::Owned).ok_or(Unreadable::Damaged),
        }
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

    fn open(&self, name: &Name, stored: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = stored.strip_prefix(&[SEALED])?.strip_prefix(&self.id)?.split_first_chunk()?;
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

    fn seal(secret: [u8; 32]) -> Seal {
        Seal(Some(Ring::new(&secret)))
    }

    fn key(n: u8) -> PayloadKey {
        PayloadKey::from_bytes([n; 16])
    }

    fn name() -> Name {
        Name::of_payload(key(1))
    }

    #[test]
    fn a_body_opens_under_its_name_and_secret_alone() {
        let (own, other) = (seal(FIRST), seal(SECOND));
        let mut names = vec![name(), Name::of_payload(key(2)), Name::of_summary(ChainKey::from_bytes([1; 16]))];
        names.extend([Name::of_inspected("req_1"), Name::of_note(NoteKind::Window, ChainKey::from_bytes([1; 16]))]);
        for (n, name) in names.iter().enumerate() {
            for body in [&b""[..], b"text", &[7; 10_000]] {
                let sealed = own.seal(name, body.to_vec()).unwrap();
                assert_eq!(sealed.len(), body.len() + 1 + ID_LEN + NONCE_LEN + 16);
                assert_eq!(own.open(name, &sealed).as_deref(), Ok(body));
                assert_eq!(other.open(name, &sealed), Err(Unreadable::Damaged));
                let opened_by = names.iter().filter(|name| own.open(name, &sealed).is_ok()).count();
                assert_eq!(opened_by, 1, "{n}");
            }
        }
    }

    #[test]
    fn a_body_that_was_changed_anywhere_does_not_open() {
        let (seal, name) = (seal(FIRST), name());
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
        let (seal, name) = (seal(FIRST), name());
        let sealed = |body: &[u8]| seal.seal(&name, body.to_vec()).unwrap();
        let nonce = |body: &[u8]| sealed(body)[1 + ID_LEN..][..NONCE_LEN].to_vec();
        assert_eq!(sealed(b"text"), sealed(b"text"));
        assert_ne!(nonce(b"text"), nonce(b"texts"));
    }

    #[test]
    fn a_row_is_named_by_who_has_the_secret() {
        let (own, other) = (seal(FIRST), seal(SECOND));
        let mut rows = std::collections::BTreeSet::new();
        for n in 0..=255 {
            let row = own.row(key(n));
            assert_eq!(own.handle(row), key(n));
            assert_ne!(row, key(n));
            assert_ne!(other.row(key(n)), row);
            assert_ne!(other.handle(row), key(n));
            rows.insert(row);
        }
        assert_eq!(rows.len(), 256);
    }

    #[test]
    fn without_secrets_all_stays_as_it_is() {
        let (off, name) = (Seal::default(), name());
        assert_eq!(off.seal(&name, b"text".to_vec()).unwrap(), b"text");
        assert_eq!(off.open(&name, b"text").as_deref(), Ok(&b"text"[..]));
        assert_eq!((off.row(key(1)), off.handle(key(1)), off.is_on()), (key(1), key(1), false));
    }
}
