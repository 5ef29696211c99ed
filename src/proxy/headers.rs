//! Header fields between the two sides: what belongs to one hop stays there, all else goes on as it came.

use http::HeaderMap;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HeaderName, HeaderValue, PROXY_AUTHORIZATION,
    TE, TRANSFER_ENCODING, UPGRADE,
};

use crate::upstream::framing;

/// What a client may ask of abridge for one request.
pub(super) const WISH: HeaderName = HeaderName::from_static("x-abridge");

/// Where Azure's clients put their key.
pub(super) const API_KEY: HeaderName = HeaderName::from_static("api-key");

const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What belongs to one connection by itself.
const HOP: [HeaderName; 7] = [CONNECTION, HTTP2_SETTINGS, KEEP_ALIVE, PROXY_CONNECTION, TE, TRANSFER_ENCODING, UPGRADE];

/// What the client wishes for this request, by the header `x-abridge`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wish {
    /// Nothing said: the policy holds.
    Policy,
    /// `off`: no edits.
    Off,
    /// `dry-run`: the original goes on, and the answer's headers tell what would have been done.
    DryRun,
    /// Something we do not know: as if nothing were said, with a warning.
    Unknown,
}

impl Wish {
    /// Reads the header.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let Some(value) = headers.get(WISH) else { return Self::Policy };
        let value = value.as_bytes().trim_ascii();
        if value.eq_ignore_ascii_case(b"off") {
            Self::Off
        } else if value.eq_ignore_ascii_case(b"dry-run") {
            Self::DryRun
        } else {
            Self::Unknown
        }
    }
}

/// What the client shows of itself, if anything: an empty field is nothing. It is hashed, and neither kept nor logged.
pub(super) fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    let shown = [AUTHORIZATION, API_KEY].map(|name| headers.get(name).map(HeaderValue::as_bytes));
    shown.into_iter().flatten().find(|credential| !credential.is_empty())
}

/// Makes a client's header fields fit for the upstream.
pub(super) fn to_upstream(headers: &mut HeaderMap) {
    let trailers = headers.get_all(TE).iter().any(wants_trailers);
    strip_hop(headers);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    headers.remove(WISH);
    headers.remove(PROXY_AUTHORIZATION);
    // We answer it ourselves, as soon as the body is asked for.
    headers.remove(EXPECT);
}

/// Makes the upstream's header fields fit for the client.
pub(super) fn to_client(headers: &mut HeaderMap) {
    strip_hop(headers);
}

/// The protocol that the headers ask to change to, as in `connection: upgrade` with `upgrade: websocket`.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers.get_all(CONNECTION).iter().flat_map(names).any(|name| name.eq_ignore_ascii_case(b"upgrade"));
    // HTTP/2 by upgrade is a matter of one hop. Some clients offer it with each request, and an upstream that took it would be
    // spoken to past us; so a list that has it in it is not handed on either.
    let offers_http2 = || headers.get_all(UPGRADE).iter().flat_map(names).any(|name| name.eq_ignore_ascii_case(b"h2c"));
    headers.get(UPGRADE).filter(|_| asked && !offers_http2()).cloned()
}

/// Whether a body comes in another coding than in chunks, or in chunks twice. The field goes no further than here, so the
/// upstream would not know of the other coding.
pub(super) fn is_coded(headers: &HeaderMap) -> bool {
    framing::is_coded(headers, &["chunked"])
}

/// Says that the connection changes to another protocol.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Says how long a body in memory is.
pub(super) fn set_length(headers: &mut HeaderMap, length: usize) {
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}

/// How a body is coded, for the record.
pub(super) fn content_encoding(headers: &HeaderMap) -> Option<String> {
    headers.get(CONTENT_ENCODING).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// RFC 9110, section 7.6.1: the fields that `connection` names, and those that belong to one connection by themselves.
fn strip_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(names)
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .collect();
    for name in named.iter().chain(&HOP) {
        headers.remove(name);
    }
}

fn names(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|name| !name.is_empty())
}

fn wants_trailers(value: &HeaderValue) -> bool {
    names(value).any(|name| name.eq_ignore_ascii_case(b"trailers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn strips_what_belongs_to_one_hop() {
        let mut map = headers(&[
            ("connection", "close, X-Foo"),
            ("x-foo", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("x-abridge", "off"),
            ("authorization", "Bearer k"),
        ]);
        to_upstream(&mut map);
        assert_eq!(map, headers(&[("te", "trailers"), ("authorization", "Bearer k")]));
    }

    #[test]
    fn keeps_the_order_of_values() {
        let mut map = HeaderMap::new();
        for value in ["a", "b", "c"] {
            map.append("x-many", HeaderValue::from_static(value));
        }
        to_upstream(&mut map);
        assert_eq!(map.get_all("x-many").iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn sees_an_upgrade_only_if_connection_says_so() {
        assert!(upgrade(&headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")])).is_some());
        assert!(upgrade(&headers(&[("upgrade", "websocket")])).is_none());
        assert!(upgrade(&headers(&[("connection", "upgrade")])).is_none());
        for offers_http2 in [&["h2c"][..], &["websocket, H2C"], &["websocket", "h2c"]] {
            let mut lines = vec![("connection", "upgrade")];
            lines.extend(offers_http2.iter().map(|protocol| ("upgrade", *protocol)));
            assert!(upgrade(&headers(&lines)).is_none(), "{offers_http2:?}");
        }
    }

    #[test]
    fn knows_chunks_from_other_codings() {
        for (values, coded) in [
            (&[][..], false),
            (&["chunked"], false),
            (&["CHUNKED"], false),
            (&["gzip, chunked"], true),
            (&["chunked", "chunked"], true),
            (&["gzip", "chunked"], true),
        ] {
            let lines: Vec<_> = values.iter().map(|value| ("transfer-encoding", *value)).collect();
            assert_eq!(is_coded(&headers(&lines)), coded, "{values:?}");
        }
    }

    #[test]
    fn knows_a_client_by_what_it_shows() {
        assert_eq!(credential(&headers(&[("api-key", "b"), ("authorization", "a")])), Some(&b"a"[..]));
        assert_eq!(credential(&headers(&[("api-key", "b")])), Some(&b"b"[..]));
        assert_eq!(credential(&headers(&[("x-key", "b")])), None);
        assert_eq!(credential(&headers(&[("authorization", ""), ("api-key", "")])), None);
        assert_eq!(credential(&headers(&[("authorization", ""), ("api-key", "b")])), Some(&b"b"[..]));
    }

    #[test]
    fn reads_the_wish() {
        for (value, wish) in
            [("off", Wish::Off), (" OFF ", Wish::Off), ("dry-run", Wish::DryRun), ("on", Wish::Unknown)]
        {
            assert_eq!(Wish::of(&headers(&[("x-abridge", value)])), wish, "{value:?}");
        }
        assert_eq!(Wish::of(&HeaderMap::new()), Wish::Policy);
    }
}
