//! The names of payloads as gateways write them: the part of a handle that is of the content, in hexadecimal digits.
//!
//! The other part of a handle follows from the content and the caller, so a hash needs no row in a store.

use super::{CONTENT_LEN, Caller, HASH_LEN, Keys, PayloadKey};

/// The word before a hash in a text.
pub const HASH_MARK: &str = "hash=";

/// The hashes in a text, in order: its words of 24 lower-case hexadecimal digits after [`HASH_MARK`].
pub fn hashes_in(text: &str) -> impl Iterator<Item = &str> {
    text.split(HASH_MARK).skip(1).filter_map(|after| {
        let end = after.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(after.len());
        after.get(..end).filter(|word| content_of(word).is_some())
    })
}

/// The part of a name that a hash writes.
fn content_of(hash: &str) -> Option<[u8; CONTENT_LEN]> {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if hash.len() != 2 * CONTENT_LEN || !hash.bytes().all(is_digit) {
        return None;
    }
    let number = u128::from_str_radix(hash, 16).ok()?;
    number.to_be_bytes().last_chunk().copied()
}

impl Keys {
    /// The name of a payload of `caller` by its hash; none if the text is not one. It asks no store: the rest of a name
    /// follows from its content and the caller.
    pub fn of_hash(&self, caller: Caller, hash: &str) -> Option<PayloadKey> {
        let mut name = [0; HASH_LEN];
        name.first_chunk_mut().map(|content: &mut [u8; CONTENT_LEN]| content_of(hash).map(|of| *content = of))??;
        Some(self.marked(caller, name))
    }
}

impl PayloadKey {
    /// The 24 hexadecimal digits by which gateways ask for the payload: the part of the name that is of the content.
    pub fn hash(&self) -> String {
        let number = u128::from_be_bytes(self.0) >> (8 * (HASH_LEN - CONTENT_LEN));
        format!("{number:0digits$x}", digits = 2 * CONTENT_LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_names_the_payload_of_one_caller_alone() {
        let keys = Keys::new([7; 32]);
        let (ann, bob) = (keys.caller(b"ann"), keys.caller(b"bob"));
        let key = keys.payload(ann, b"x");
        let hash = key.hash();
        assert_eq!(keys.of_hash(ann, &hash), Some(key));
        assert_ne!(keys.of_hash(bob, &hash), Some(key));
        assert_ne!(keys.of_hash(bob, &hash), Some(keys.payload(bob, b"x")));
        for wrong in [
            "",
            hash.get(1..).unwrap(),
            &hash.to_uppercase().replace(|c: char| c.is_ascii_digit(), "A"),
            &format!("{hash}0"),
        ] {
            assert_eq!(keys.of_hash(ann, wrong), None, "{wrong}");
        }
        let text = format!("a hash={hash}). hash={hash}0 {hash} hash=é hash={hash}");
        assert_eq!(hashes_in(&text).collect::<Vec<_>>(), [hash.as_str(), &hash]);
    }
}
