//! The URL that events are posted to.

use std::str::FromStr;

use http::Uri;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An `http://` or `https://` URL with a host, and perhaps a path and a query, but without user information. Path and
/// query may hold a secret, so only the host is ever printed.
#[derive(Clone, derive_more::Debug, derive_more::Display, Eq, PartialEq)]
#[debug("WebhookUrl({self})")]
#[display("{}{}", self.origin(), if _0.path_and_query().is_none_or(|path| path == "/") { "/" } else { "/***" })]
pub struct WebhookUrl(Uri);

/// A URL that cannot be read. The URL is not part of the message, as it may hold a secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "not a webhook's URL: write http:// or https:// and a host, without user, such as \"https://hooks.example/abridge\""
)]
pub struct WebhookUrlError;

impl WebhookUrl {
    /// The whole URL.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> String {
        let host = self.0.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        format!("{}://{host}", self.0.scheme_str().unwrap_or_default())
    }
}

impl FromStr for WebhookUrl {
    type Err = WebhookUrlError;

    fn from_str(text: &str) -> Result<Self, WebhookUrlError> {
        let uri: Uri = text.parse().map_err(|_| WebhookUrlError)?;
        let plain = uri.authority().is_some_and(|host| !host.as_str().contains('@'));
        match uri.scheme_str() {
            Some("http" | "https") if plain => Ok(Self(uri)),
            _ => Err(WebhookUrlError),
        }
    }
}

impl<'de> Deserialize<'de> for WebhookUrl {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for WebhookUrl {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_host_is_printed() {
        let url: WebhookUrl = "https://hooks.example:8443/services/T0/secret?key=secret".parse().unwrap();
        assert_eq!(url.to_string(), "https://hooks.example:8443/***");
        assert_eq!(format!("{url:?}"), "WebhookUrl(https://hooks.example:8443/***)");
        assert_eq!("http://h".parse::<WebhookUrl>().unwrap().to_string(), "http://h/");
        for wrong in ["hooks.example/x", "ftp://h/x", "/x", "https://user:secret@h/x", ""] {
            assert_eq!(wrong.parse::<WebhookUrl>(), Err(WebhookUrlError), "{wrong:?}");
        }
    }
}
