//! The conformance tests of damaged rows.

use bytes::Bytes;

use super::{PutAll as _, dense, key, place};
use crate::payload::Payload;
use crate::store::codec::{Name, decode, encode, forged};
use crate::store::{Store, StoreErrorKind};

/// A frame with each of its fields damaged in turn, then the first and the last bit of its body.
const BITS: [usize; 14] = [0, 31, 32, 41, 48, 56, 64, 191, 195, 255, 256, 320, 384, usize::MAX];

/// The row in which a file keeps this secret.
pub fn secret_row(secret: [u8; 32]) -> Vec<u8> {
    encode(&Name::of_secret(), &Bytes::copy_from_slice(&secret).into())
}

/// Runs the cases of damage. `flip` flips this bit of every row in place, the last one where there are fewer.
///
/// # Panics
///
/// Where one does not hold.
pub async fn suite<S: Store>(store: &S, flip: impl AsyncFn(usize)) {
    let payloads = [Bytes::from_static(b"a short text"), Bytes::from("a long text ".repeat(1000))];
    let put = || store.put_all(payloads.iter().map(|payload| (key(payload), payload.clone())).collect());
    let (beginning, summary, id) = (place(1).beginning, dense(1, 100), "req_1");
    for bit in BITS {
        put().await.unwrap();
        assert_eq!(store.offer_summary(place(1), summary.clone()).await.unwrap(), None, "{bit}");
        store.put_inspected(id.to_owned(), dense(2, 100), 9).await.unwrap();
        assert_eq!(store.verify().await.unwrap().damaged, Vec::<String>::new(), "{bit}");

        flip(bit).await;
        for _ in 0..2 {
            for payload in &payloads {
                let error = store.load(key(payload)).await.unwrap_err();
                assert_eq!(error.kind, StoreErrorKind::Damaged, "{bit}: {error}");
                assert!(error.to_string().contains(&key(payload).to_string()), "{bit}: {error}");
            }
            assert_eq!(store.inspected(id.to_owned()).await.unwrap_err().kind, StoreErrorKind::Damaged, "{bit}");
        }
        let damaged = store.verify().await.unwrap().damaged;
        assert!(damaged.len() >= 3, "{bit}: {damaged:?}");
        assert!(payloads.iter().all(|payload| damaged.contains(&format!("payload {}", key(payload)))), "{damaged:?}");
        assert!(!store.is_failing(), "{bit}: it is no failure of the store");

        // The same texts put again are whole again, and so is what is made anew.
        put().await.unwrap();
        for payload in &payloads {
            assert_eq!(store.get(key(payload)).await.unwrap().as_ref(), Some(payload), "{bit}");
        }
        assert_eq!(store.offer_summary(place(1), summary.clone()).await.unwrap(), None, "{bit}");
        assert_eq!(store.summary(beginning).await.unwrap().as_ref(), Some(&summary), "{bit}");
        store.trim_inspected(0).await.unwrap();
        assert_eq!(store.verify().await.unwrap().damaged, Vec::<String>::new(), "{bit}");
        assert_eq!(store.stats().await.unwrap().payloads, 2, "{bit}");

        // A damaged summary counts as none, so that it is made anew.
        flip(bit).await;
        assert_eq!(store.summary(beginning).await.unwrap(), None, "{bit}");
        assert_eq!(store.offer_summary(place(1), summary.clone()).await.unwrap(), None, "{bit}");
        assert_eq!(store.summary(beginning).await.unwrap().as_ref(), Some(&summary), "{bit}");
        flip(bit).await;
        store.summary(beginning).await.unwrap();
        for payload in &payloads {
            store.load(key(payload)).await.ok();
        }
    }
}

/// A row as a later version may write it.
pub fn later_row(row: &[u8]) -> Vec<u8> {
    forged_row(row, 99, None)
}

/// A row as a store writes it for this payload.
pub fn row(payload: &Payload) -> Vec<u8> {
    encode(&Name::of_payload(key(b"")), payload)
}

/// Reads such a row; `None` if it is damaged or of a later version.
pub fn read_row(row: &[u8]) -> Option<Payload> {
    decode(&Name::of_payload(key(b"")), row).ok()
}

/// A row with another encoding or length, whose checksum is right, as whoever can write to an engine can make it.
pub fn forged_row(row: &[u8], encoding: u8, len: Option<u64>) -> Vec<u8> {
    forged(row, encoding, len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::TestClock;
    use super::*;
    use crate::store::Settings;
    use crate::store::tests::memory::MemoryStore;

    #[tokio::test]
    async fn a_damaged_memory_store_conforms() {
        let store = MemoryStore::new(Settings::default(), TestClock::new().clock());
        suite(&store, async |bit| store.flip(bit).await).await;
    }
}
