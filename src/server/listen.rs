//! Addresses to listen on: TCP and Unix sockets.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// One or more addresses, written as a string or a list of strings.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Addresses(pub Vec<Address>);

/// Where to listen.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Address {
    /// `127.0.0.1:8787`, `[::1]:8787`, `localhost:8787`.
    Tcp(SocketAddr),
    /// `unix:/run/abridge.sock`.
    Unix(PathBuf),
}

/// Why an address could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not an address: write \"127.0.0.1:8787\", \"[::1]:8787\", \"localhost:8787\" or \"unix:/path\"")]
pub struct AddressError;

// === impl Addresses ===

impl Default for Addresses {
    fn default() -> Self {
        Self(vec![Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 8787)))])
    }
}

impl<'de> Deserialize<'de> for Addresses {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OneOrMore;

        impl<'de> de::Visitor<'de> for OneOrMore {
            type Value = Addresses;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address such as \"127.0.0.1:8787\" or \"unix:/path\", or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Addresses, E> {
                Ok(Addresses(vec![text.parse().map_err(|error| not_one(text, error))?]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Addresses, A::Error> {
                let mut addresses = Vec::new();
                while let Some(address) = list.next_element()? {
                    addresses.push(address);
                }
                if addresses.is_empty() {
                    return Err(de::Error::invalid_length(0, &"at least one address"));
                }
                Ok(Addresses(addresses))
            }
        }

        from.deserialize_any(OneOrMore)
    }
}

// === impl Address ===

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(AddressError) } else { Ok(Self::Unix(path.into())) };
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            let port = port.parse().map_err(|_| AddressError)?;
            return Ok(Self::Tcp(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        text.parse().map(Self::Tcp).map_err(|_| AddressError)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|error| not_one(&text, error))
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

fn not_one<E: de::Error>(text: &str, error: AddressError) -> E {
    E::custom(format_args!("{text:?} is {error}"))
}
