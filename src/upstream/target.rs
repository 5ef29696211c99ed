//! The upstream's base URL, how a client's path is joined to it, and the header fields that the settings add.

use std::str::FromStr;

use bytes::Bytes;
use http::Uri;
use http::header::AUTHORIZATION;
use http::uri::{Authority, PathAndQuery};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smart_default::SmartDefault;

use crate::local_address::is_local_address;

/// The base URL of an upstream: `http://` or `https://`, a host, and perhaps a path; no query and no user.
#[derive(Clone, Debug, derive_more::Display, Eq, PartialEq, SmartDefault)]
pub struct BaseUrl(
    #[default(Uri::from_static("https://api.openai.com/v1"))]
    Uri,
);

/// Why a URL could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "not an upstream URL: write http:// or https://, a host and perhaps a path, without query or user, such as \"https://api.openai.com/v1\""
)]
pub struct BaseUrlError;

/// A header's name in small letters.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String")]
pub struct HeaderName(pub(crate) String);

/// A header's value, which may be a secret: it is never printed.
#[derive(Clone, derive_more::Debug, Eq, PartialEq)]
#[debug("***")]
pub struct HeaderValue(pub(crate) http::HeaderValue);

/// A request target cannot be joined to the upstream's URL.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TargetError {
    /// It has no path.
    #[error("the request target has no path")]
    NoPath,
    /// Its path has `..` that would lead out of the path of the upstream's URL.
    #[error("the path of the request leads out of the upstream's base path by `..`")]
    LeavesBase,
}

// === impl BaseUrl ===

impl BaseUrl {
    /// The URL as it was given.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// The host, without the port.
    pub fn host(&self) -> &str {
        self.0.host().unwrap_or_default()
    }

    /// Whether this machine or its own network serves it: by the address, or by a name that public hosts do not have.
    pub fn is_local(&self) -> bool {
        let host = self.host();
        let ends = || [".local", ".internal"].iter().any(|end| host.ends_with(end));
        is_local_address(host).unwrap_or_else(|| !host.contains('.') || ends())
    }

    /// The value of `host` in requests. A port that is the scheme's own is left out.
    pub(super) fn host_field(&self) -> Option<http::HeaderValue> {
        let own = if self.0.scheme_str() == Some("https") { 443 } else { 80 };
        let host = match self.0.port_u16().filter(|port| *port != own) {
            Some(port) => format!("{}:{port}", self.host()),
            None => self.host().to_owned(),
        };
        host.try_into().ok()
    }

    /// The upstream's URI for a client's request target. The query is kept byte for byte.
    ///
    /// - A base with a path replaces the `/v1` of the client, whether the client writes it or not.
    /// - A base without a path gets the client's path as it is.
    /// - A client's path that begins with the base's path is kept, so that path is not repeated.
    /// - An Azure path, `/openai/deployments/…`, replaces the base's own `/openai` and what follows it.
    ///
    /// # Errors
    ///
    /// When the target is `*` or an authority, and when `..` in its path, however it is written, would lead out of the base's
    /// path: a key of the settings may be for that path alone.
    pub fn join(&self, target: &Uri) -> Result<Uri, TargetError> {
        let path = target.path_and_query().map(PathAndQuery::as_str).unwrap_or_default();
        if !path.starts_with('/') {
            return Err(TargetError::NoPath);
        }
        let base = self.0.path().trim_end_matches('/');
        // What of the base stays in front, and what the client's path adds to it.
        let (front, rest) = match base {
            "" => ("", path),
            _ if is_below(path, base) => (base, path.strip_prefix(base).unwrap_or_default()),
            _ if is_below(path, "/openai/deployments") && base.split('/').any(|part| part == "openai") => {
                (base.find("/openai").and_then(|at| base.get(..at)).unwrap_or_default(), path)
            }
            _ if is_below(path, "/v1") => (base, path.strip_prefix("/v1").unwrap_or_default()),
            _ => (base, path),
        };
        if !front.is_empty() && leads_out(target.path(), path.len() - rest.len()) {
            return Err(TargetError::LeavesBase);
        }
        let mut parts = self.0.clone().into_parts();
        parts.path_and_query = if path.starts_with(front) && path.len() == front.len() + rest.len() {
            target.path_and_query().cloned() // most have the path of the base, which is not written and checked again
        } else {
            let joined = PathAndQuery::from_maybe_shared(Bytes::from([front, rest].concat()));
            Some(joined.map_err(|_| TargetError::NoPath)?)
        };
        Uri::from_parts(parts).map_err(|_| TargetError::NoPath)
    }
}

/// Whether the path, perhaps with a query, is `folder` or below it.
pub(super) fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
}

/// Whether what follows the first `skipped` bytes of a path leads above where it begins, as some server may read it: with
/// `%2e` for a dot, `%2f`, `\\` or `%5c` for a slash, and parameters after a semicolon.
fn leads_out(path: &str, skipped: usize) -> bool {
    let rest = path.get(skipped..).unwrap_or_default();
    if !rest.contains("..") && !rest.contains('%') {
        return false;
    }
    let read = rest.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/").replace('\\', "/");
    let mut depth = 0_usize;
    for segment in read.split('/') {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." if depth == 0 => return true,
            ".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

/// The same target at another host. A target of [`BaseUrl::join`] has all parts, so none is missing.
pub(super) fn with_authority(target: Uri, authority: &Authority) -> Uri {
    let mut parts = target.into_parts();
    parts.authority = Some(authority.clone());
    Uri::from_parts(parts).unwrap_or_default()
}

/// The target without the beginning of its path; none if the path does not begin so.
pub(super) fn without_beginning(target: &Uri, beginning: &str) -> Option<Uri> {
    let path = target.path_and_query()?.as_str();
    let beginning = beginning.trim_end_matches('/');
    let rest = path.strip_prefix(beginning).filter(|_| is_below(path, beginning))?;
    let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
    rest.parse().ok()
}

impl FromStr for BaseUrl {
    type Err = BaseUrlError;

    fn from_str(text: &str) -> Result<Self, BaseUrlError> {
        let uri: Uri = text.parse().map_err(|_| BaseUrlError)?;
        // Without a port, or with one that is a port.
        let is_plain = |host: &Authority| host.as_str() == host.host() || host.port().is_some();
        let plain =
            uri.query().is_none() && uri.authority().is_some_and(|host| !host.as_str().contains('@') && is_plain(host));
        match uri.scheme_str() {
            Some("http" | "https") if plain => Ok(Self(uri)),
            _ => Err(BaseUrlError),
        }
    }
}

impl<'de> Deserialize<'de> for BaseUrl {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|error: BaseUrlError| {
            // A URL with a user may hold a password, so it is not shown.
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

impl TryFrom<String> for HeaderName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let name = http::HeaderName::try_from(&text).map_err(|_| format!("{text:?} is not a header name"))?;
        Ok(Self(name.to_string()))
    }
}

// === impl HeaderValue ===

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

/// The header field that a key is sent in.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyHeader {
    /// `authorization: Bearer KEY`, as OpenAI and most others read it.
    #[default]
    Authorization,
    /// `x-api-key: KEY`, as Anthropic reads it.
    XApiKey,
    /// `api-key: KEY`, as Azure reads it.
    ApiKey,
    /// `x-goog-api-key: KEY`, as Gemini reads it.
    XGoogApiKey,
    /// A signature of AWS (Signature Version 4), as Bedrock reads it. The key is `ACCESS_KEY_ID:SECRET_ACCESS_KEY`, with
    /// `:SESSION_TOKEN` after it if there is one; the region is that of the host, else `us-east-1`. Only requests whose body
    /// abridge reads, or that have none, are signed.
    #[serde(rename = "aws-sigv4")]
    AwsSigV4,
}

impl KeyHeader {
    /// All fields that keys are sent in.
    pub const ALL: [Self; 4] = [Self::Authorization, Self::XApiKey, Self::ApiKey, Self::XGoogApiKey];

    /// The name of the field.
    pub fn name(self) -> http::HeaderName {
        match self {
            Self::Authorization | Self::AwsSigV4 => AUTHORIZATION,
            Self::XApiKey => http::HeaderName::from_static("x-api-key"),
            Self::ApiKey => http::HeaderName::from_static("api-key"),
            Self::XGoogApiKey => http::HeaderName::from_static("x-goog-api-key"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(base: &str, target: &str) -> String {
        base.parse::<BaseUrl>().unwrap().join(&target.parse().unwrap()).unwrap().to_string()
    }

    #[test]
    fn hosts_of_this_machine_and_its_network_are_local() {
        let is_local = |url: &str| url.parse::<BaseUrl>().unwrap().is_local();
        for host in
            ["127.0.0.1:8000", "10.1.2.3", "192.168.0.7:1234", "[::1]:8080", "[fd00::1]", "localhost", "ollama:11434"]
        {
            assert!(is_local(&format!("http://{host}/v1")), "{host}");
        }
        for host in ["host.docker.internal:11434", "mac.local"] {
            assert!(is_local(&format!("http://{host}")), "{host}");
        }
        for host in ["api.openai.com", "8.8.8.8", "[2001:4860::1]", "local.example.com"] {
            assert!(!is_local(&format!("https://{host}/v1")), "{host}");
        }
    }

    #[test]
    fn v1_is_joined_once_whichever_side_has_it() {
        for target in ["/v1/chat/completions", "/chat/completions"] {
            assert_eq!(joined("https://api.openai.com/v1", target), "https://api.openai.com/v1/chat/completions");
            assert_eq!(joined("https://api.openai.com/v1/", target), "https://api.openai.com/v1/chat/completions");
            assert_eq!(joined("https://openrouter.ai/api/v1", target), "https://openrouter.ai/api/v1/chat/completions");
            assert_eq!(joined("http://h/v1beta/openai", target), "http://h/v1beta/openai/chat/completions");
            assert_eq!(joined("http://127.0.0.1:8000", target), format!("http://127.0.0.1:8000{target}"));
        }
    }

    #[test]
    fn the_query_is_kept_byte_for_byte() {
        let query = "?api-version=2024-10-21&q=a%20b+c&&x=%zz;y";
        assert_eq!(joined("http://h/v1", &format!("/v1/models{query}")), format!("http://h/v1/models{query}"));
        assert_eq!(joined("http://h/v1", &format!("/v1{query}")), format!("http://h/v1{query}"));
        assert_eq!(joined("http://h", &format!("/{query}")), format!("http://h/{query}"));
    }

    #[test]
    fn azure_paths_are_joined_once() {
        let target = "/openai/deployments/gpt/chat/completions?api-version=1";
        for base in
            ["https://x.openai.azure.com", "https://x.openai.azure.com/openai", "https://x.openai.azure.com/openai/v1"]
        {
            assert_eq!(joined(base, target), format!("https://x.openai.azure.com{target}"), "{base}");
        }
        assert_eq!(joined("https://gate/azure/openai", target), format!("https://gate/azure{target}"));
    }

    #[test]
    fn a_base_path_that_the_client_sends_is_not_repeated() {
        assert_eq!(joined("https://openrouter.ai/api/v1", "/api/v1/models"), "https://openrouter.ai/api/v1/models");
        assert_eq!(joined("http://h/v1", "/v1"), "http://h/v1");
        assert_eq!(joined("http://h/api", "/apiary"), "http://h/api/apiary");
        assert_eq!(joined("http://h/api", "/v10/x"), "http://h/api/v10/x");
    }

    #[test]
    fn the_beginning_of_a_path_is_taken_off_by_whole_segments() {
        let rest = |target: &str, beginning| without_beginning(&target.parse().unwrap(), beginning);
        for (target, expected) in [("/groq/v1/models?a=%20", "/v1/models?a=%20"), ("/groq", "/"), ("/groq?x", "/?x")] {
            for beginning in ["/groq", "/groq/"] {
                assert_eq!(rest(target, beginning).map(|uri| uri.to_string()).as_deref(), Some(expected));
            }
        }
        assert_eq!(rest("/groqs/v1", "/groq"), None);
        assert_eq!(rest("*", "/groq"), None);
    }

    #[test]
    fn a_target_without_a_path_is_refused() {
        let base = BaseUrl::default();
        assert_eq!(base.join(&"*".parse().unwrap()), Err(TargetError::NoPath));
        assert_eq!(base.join(&"example.com:443".parse().unwrap()), Err(TargetError::NoPath));
    }

    #[test]
    fn dots_never_lead_out_of_the_path_of_the_base() {
        let join = |base: &str, target: &str| base.parse::<BaseUrl>().unwrap().join(&target.parse().unwrap());
        for target in [
            "/v1/../other/models",
            "/../other",
            "/v1/models/../../other",
            "/v1/%2e%2e/other",
            "/v1/.%2E/other",
            "/v1/x/..%2f..%2Fother",
            "/v1/..;a=1/other",
            "/v1/..%5cother",
            "/gate/tenant/v1/../../other",
            "/v1/..",
        ] {
            assert_eq!(join("https://h/gate/tenant/v1", target), Err(TargetError::LeavesBase), "{target}");
        }
        for target in
            ["/v1/models/../files", "/v1/a/./b/..", "/v1/...", "/v1/%2e", "/v1/a..b", "/v1/x?q=../../..", "/v1/%zz"]
        {
            assert!(join("https://h/gate/tenant/v1", target).is_ok(), "{target}");
        }
        assert_eq!(joined("https://h", "/../x"), "https://h/../x", "there is nothing to leave");
        let azure = "/openai/deployments/../../../other";
        assert_eq!(join("https://gate/azure/openai", azure), Err(TargetError::LeavesBase));
    }

    #[test]
    fn invalid_base_urls_are_refused() {
        let hosts = ["http://", "http://h:99999", "http://h:", "http://[::1]:x"];
        let others = ["", "localhost:8000", "ftp://h", "http://h/v1?x=1", "http://user:key@h/v1", "/v1"];
        for text in hosts.into_iter().chain(others) {
            assert_eq!(text.parse::<BaseUrl>(), Err(BaseUrlError), "{text:?}");
        }
        for text in ["http://h:65535", "http://[::1]", "http://[::1]:1/v1"] {
            assert!(text.parse::<BaseUrl>().is_ok(), "{text}");
        }
    }
}
