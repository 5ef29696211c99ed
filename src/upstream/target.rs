//! The upstream's base URL, and how a client's path is joined to it.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An `http` or `https` URL with a host and perhaps a path; no query, no user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BaseUrl(Uri);

/// Why a URL could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "not an upstream URL: write http:// or https://, a host and perhaps a path, without query or user, such as \"https://api.openai.com/v1\""
)]
pub struct BaseUrlError;

/// A header's name, as `proxy.toml` gives it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct HeaderName(String);

/// A header's value, which may be a secret: it is never printed.
#[derive(Clone, Eq, PartialEq)]
pub struct HeaderValue(http::HeaderValue);

// === impl BaseUrl ===

impl Default for BaseUrl {
    fn default() -> Self {
        Self(Uri::from_static("https://api.openai.com/v1"))
    }
}

impl FromStr for BaseUrl {
    type Err = BaseUrlError;

    fn from_str(text: &str) -> Result<Self, BaseUrlError> {
        let uri: Uri = text.parse().map_err(|_| BaseUrlError)?;
        let plain = uri.query().is_none() && uri.authority().is_some_and(|host| !host.as_str().contains('@'));
        match uri.scheme_str() {
            Some("http" | "https") if plain => Ok(Self(uri)),
            _ => Err(BaseUrlError),
        }
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for BaseUrl {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|error: BaseUrlError| {
            // A user stands before a password, which is not shown.
            let shown = if text.contains('@') { "the URL".to_owned() } else { format!("{text:?}") };
            de::Error::custom(format_args!("{shown} is {error}"))
        })
    }
}

impl Serialize for BaseUrl {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

// === impl HeaderName ===

impl HeaderName {
    /// The name as HTTP writes it, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for HeaderName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let name: http::HeaderName =
            text.parse().map_err(|_| de::Error::custom(format_args!("{text:?} is not a header name")))?;
        Ok(Self(name.as_str().to_owned()))
    }
}

impl Serialize for HeaderName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

// === impl HeaderValue ===

impl HeaderValue {
    /// The value, marked sensitive.
    pub fn to_http(&self) -> http::HeaderValue {
        self.0.clone()
    }
}

impl fmt::Debug for HeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<'de> Deserialize<'de> for HeaderValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let mut value: http::HeaderValue = text
            .parse()
            .map_err(|_| de::Error::custom("a header value holds visible ASCII and blanks alone, no line breaks"))?;
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

impl Serialize for HeaderValue {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str("***")
    }
}
