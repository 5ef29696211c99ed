//! Names of beginnings of conversations: each message makes the next name out of the one before.
//!
//! So whoever has the same messages in the same order has the same names, and one that differs shares only those of what comes
//! before it. What a message is known by is the dialect's business: see [`crate::dialect::Dialect::fields`].

use super::{Caller, Fingerprint, HASH_LEN, Keys, OWNER_LEN};

/// Names the beginnings of one conversation, message by message.
#[derive(Clone, Debug)]
pub struct Chain {
    keys: Keys,
    caller: Caller,
    at: ChainKey,
}

/// The name of a beginning.
#[derive(Clone, Copy, derive_more::Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[debug("ChainKey({:032x})", u128::from_be_bytes(*_0))]
pub struct ChainKey([u8; HASH_LEN]);

/// Where the summary of a beginning is found by all who send the conversation.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Place {
    /// The name after the conversation's second message: the model's first answer makes it the conversation's own.
    pub root: ChainKey,
    /// The name of the beginning.
    pub beginning: ChainKey,
}

impl Keys {
    /// The names of what this caller says under `scope`, which is all that sets two uses of the same messages apart.
    pub fn chain(&self, caller: Caller, scope: &[u8]) -> Chain {
        let at = ChainKey::of(caller, self.hash(b"chain", &caller.0, [scope]));
        Chain { keys: self.clone(), caller, at }
    }
}

impl Chain {
    /// The name of all that was said so far.
    pub fn at(&self) -> ChainKey {
        self.at
    }

    /// The name of all that was said so far and of this message, which is known by what is written, and has this canonical form.
    pub fn push<'t>(&mut self, written: Fingerprint, canonical: impl FnOnce() -> Vec<&'t [u8]>) -> ChainKey {
        let message = self.keys.message(self.caller, written, canonical);
        self.at = ChainKey::of(self.caller, self.keys.hash(b"link", &self.at.0, [message.as_bytes().as_slice()]));
        self.at
    }
}

impl ChainKey {
    /// A key that ends with the last two bytes of its caller. A handle does not have these, so without the secret it does not show
    /// which keys are of its caller.
    pub(super) fn of(Caller([.., a, b]): Caller, mut name: [u8; HASH_LEN]) -> Self {
        let [.., first, second] = &mut name;
        (*first, *second) = (a, b);
        Self(name)
    }

    /// The caller's part of the key. One in 65,536 callers has the same.
    pub fn owner(self) -> [u8; OWNER_LEN] {
        let [.., first, second] = self.0;
        [first, second]
    }

    /// The key as it is stored.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A key that was stored.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl serde::Serialize for ChainKey {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

impl<'de> serde::Deserialize<'de> for ChainKey {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let digits = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        u128::from_str_radix(&digits, 16).map(|key| Self(key.to_be_bytes())).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(keys: &Keys, caller: &[u8], scope: &[u8], messages: &[&str]) -> Vec<ChainKey> {
        let mut chain = keys.chain(keys.caller(caller), scope);
        let messages = messages.iter().map(|message| message.as_bytes());
        messages.map(|message| chain.push(Fingerprint::of(message), || vec![message])).collect()
    }

    #[test]
    fn a_beginning_has_its_name_whatever_comes_behind() {
        let keys = Keys::new([7; 32]);
        let names = |messages: &[&str]| names(&keys, b"me", b"", messages);
        let (short, long) = (names(&["{1}", "{2}"]), names(&["{1}", "{2}", "{3}"]));
        assert_eq!(short, long[..2]);
        let other = names(&["{1}", "{4}", "{3}"]);
        assert_eq!(other[0], long[0]);
        assert!(other[1] != long[1] && other[2] != long[2]);
        assert_ne!(names(&["{1}{2}"])[0], long[1]);
    }

    #[test]
    fn callers_scopes_and_secrets_keep_names_apart() {
        let (one, other) = (Keys::new([7; 32]), Keys::new([8; 32]));
        let name = |keys: &Keys, caller: &[u8], scope: &[u8]| names(keys, caller, scope, &["{}"])[0];
        let mine = name(&one, b"me", b"gpt");
        assert_eq!(mine, name(&one, b"me", b"gpt"));
        for another in [name(&one, b"you", b"gpt"), name(&one, b"me", b"gpt-5"), name(&other, b"me", b"gpt")] {
            assert_ne!(mine, another);
        }
    }

    #[test]
    fn a_name_that_was_stored_is_the_same() {
        let name = names(&Keys::new([7; 32]), b"me", b"", &["{}"])[0];
        assert_eq!(ChainKey::from_bytes(*name.as_bytes()), name);
    }

    #[test]
    fn the_canonical_form_makes_the_name_whichever_spelling_was_seen_first() {
        let name = |keys: &Keys, written: &[u8]| {
            keys.chain(keys.caller(b""), b"").push(Fingerprint::of(written), || vec![b"the ", b"same"])
        };
        let (one, other) = (Keys::new([7; 32]), Keys::new([7; 32]));
        let names = [name(&one, b"a"), name(&one, b"b"), name(&one, b"a"), name(&other, b"b"), name(&other, b"a")];
        assert!(names.iter().all(|name| *name == names[0]));
    }
}
