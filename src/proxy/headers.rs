//! Header fields between client and upstream: hop-by-hop fields are removed, all others pass unchanged.

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HeaderName, HeaderValue, TE, UPGRADE};
use http::{HeaderMap, Uri};

use crate::upstream::routes::ANTHROPIC_VERSION;

/// The header by which a client controls abridge for one request.
pub(super) const CONTROL: HeaderName = HeaderName::from_static("x-abridge");

/// The header with the key of Azure's clients.
pub(super) const API_KEY: HeaderName = HeaderName::from_static("api-key");

/// The header by which a known client shows its token beside a key, and in which abridge then notes the client's name.
pub(super) const CLIENT: HeaderName = HeaderName::from_static("x-abridge-client");

/// The value of [`CLIENT`] for an account whose tokens its client renews. Names of clients are UTF-8, which it is not.
const ACCOUNT: &[u8] = b"\xff";

/// How the value of [`CLIENT`] begins that notes the key in a request's query. UTF-8 has no such byte either.
const QUERY_KEY: &[u8] = b"\xfe";

/// How `authorization` begins in a request with AWS Signature Version 4.
const SIGNED: &[u8] = b"AWS4-HMAC-SHA256";

/// The value of the header `x-abridge`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ControlHeader {
    /// No header: the policy applies.
    Policy,
    /// `off`: no edits.
    Off,
    /// `dry-run`: the original is forwarded, and the answer's headers report the edits that were not made.
    DryRun,
    /// Any other value: handled like no header, with a warning.
    Unknown,
}

impl ControlHeader {
    /// Reads the header.
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        let Some(value) = headers.get(CONTROL) else { return Self::Policy };
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

/// The header with the key of Anthropic's clients.
pub(super) const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The header field of the key that Gemini reads.
pub(super) const X_GOOG_API_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");

/// Notes an account whose tokens its client renews.
pub(super) fn set_account(headers: &mut HeaderMap) {
    headers.extend(HeaderValue::from_bytes(ACCOUNT).ok().map(|account| (CLIENT, account)));
}

/// Whether such an account is noted.
pub(super) fn is_account(headers: &HeaderMap) -> bool {
    headers.get(CLIENT).is_some_and(|client| client.as_bytes() == ACCOUNT)
}

/// The value of [`CLIENT`] that notes the key which a request shows in its query, as Gemini reads it: `?key=KEY`.
pub(super) fn query_key(uri: &Uri) -> Option<HeaderValue> {
    let key = uri.query()?.split('&').find_map(|field| field.strip_prefix("key="))?;
    HeaderValue::from_bytes(&[QUERY_KEY, key.as_bytes()].concat()).ok()
}

/// Whether a request shows a key as Google's clients do.
pub(super) fn is_google(headers: &HeaderMap) -> bool {
    let in_query = headers.get(CLIENT).is_some_and(|noted| noted.as_bytes().starts_with(QUERY_KEY));
    in_query || headers.contains_key(X_GOOG_API_KEY)
}

/// The bytes by which the client is known, if any. They are hashed, and neither stored nor logged. For a client that the settings
/// know it is the name, whichever token the client shows, and for an account [`ACCOUNT`].
pub(super) fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    let noted = headers.get(CLIENT).map(HeaderValue::as_bytes);
    noted.map(|noted| noted.strip_prefix(QUERY_KEY).unwrap_or(noted)).or_else(|| shown_credential(headers))
}

/// The credential that the client shows, if any; an empty field is none.
///
/// Clients of Anthropic may send two, of which `x-api-key` is the one that the API documents. Elsewhere `x-api-key` may be
/// a gateway's, which many callers share: `authorization` comes first.
pub(super) fn shown_credential(headers: &HeaderMap) -> Option<&[u8]> {
    static OF_ANTHROPIC: [HeaderName; 4] = [X_API_KEY, AUTHORIZATION, API_KEY, X_GOOG_API_KEY];
    static OF_OTHERS: [HeaderName; 4] = [AUTHORIZATION, API_KEY, X_API_KEY, X_GOOG_API_KEY];
    let order = if headers.contains_key(ANTHROPIC_VERSION) { &OF_ANTHROPIC } else { &OF_OTHERS };
    let mut shown = order.iter().filter_map(|name| headers.get(name)).map(HeaderValue::as_bytes);
    let shown = shown.find(|credential| !credential.is_empty())?;
    // A signature is of one request: the caller is the access key.
    if shown.starts_with(SIGNED) { shown.split(|byte| *byte == b'/').next() } else { Some(shown) }
}

/// Whether a request has a signature of AWS over its address and its body.
pub(super) fn is_signed(headers: &HeaderMap) -> bool {
    headers.get(AUTHORIZATION).is_some_and(|value| value.as_bytes().starts_with(SIGNED))
}

/// Prepares a client's header fields for the upstream.
pub(super) fn to_upstream(headers: &mut HeaderMap) {
    let trailers = lists(headers, TE, b"trailers");
    // hyper answers `expect` as soon as the body is polled.
    let ends_here = |name: &str| matches!(name, "x-abridge" | "x-abridge-client" | "proxy-authorization" | "expect");
    strip(headers, |name| is_hop_by_hop(name) || ends_here(name));
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Joins the `cookie` fields of a request. RFC 9113, section 8.2.3: HTTP/2 may split the field, HTTP/1.1 has one.
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() < 2 {
        return;
    }
    if let Ok(mut joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        joined.set_sensitive(true);
        headers.insert(COOKIE, joined);
    }
}

/// Prepares the upstream's header fields for the client.
pub(super) fn to_client(headers: &mut HeaderMap) {
    strip(headers, is_hop_by_hop);
}

/// The protocol of an upgrade request, as in `connection: upgrade` with `upgrade: websocket`.
pub(super) fn upgrade_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = lists(headers, CONNECTION, b"upgrade");
    // An upgrade to HTTP/2 belongs to one hop. Some clients offer it with each request, and an upstream that accepted it
    // would talk to the client past abridge; so a list that contains it is not forwarded either.
    headers.get(UPGRADE).filter(|_| asked && !lists(headers, UPGRADE, b"h2c")).cloned()
}

/// Sets the fields of an upgrade to `protocol`.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Sets the length of a body in memory.
pub(super) fn set_length(headers: &mut HeaderMap, length: usize) {
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}

/// RFC 9110, section 7.6.1: the fields that belong to one connection by themselves.
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection" | "http2-settings" | "keep-alive" | "proxy-connection" | "te" | "transfer-encoding" | "upgrade"
    )
}

/// Removes the fields for which `is_removed` holds, `connection` among them, and those that `connection` names.
fn strip(headers: &mut HeaderMap, is_removed: impl Fn(&str) -> bool) {
    // Most messages have few fields, and to look through them takes less time than to look up each of the names.
    let listed: Vec<HeaderName> = headers.keys().filter(|name| is_removed(name.as_str())).cloned().collect();
    if listed.is_empty() {
        return;
    }
    let named = headers.get_all(CONNECTION).iter().flat_map(names);
    let named: Vec<HeaderName> = named.filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
    for name in named.into_iter().chain(listed) {
        headers.remove(name);
    }
}

/// The entries of a field that is a list.
pub(super) fn names(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|name| !name.is_empty())
}

/// Whether a field that is a list has this entry.
fn lists(headers: &HeaderMap, field: HeaderName, entry: &[u8]) -> bool {
    headers.get_all(field).iter().flat_map(names).any(|name| name.eq_ignore_ascii_case(entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::framing::has_coding_other_than;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn hop_by_hop_fields_are_removed() {
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
            ("x-abridge-client", "alice"),
            ("authorization", "Bearer k"),
        ]);
        to_upstream(&mut map);
        assert_eq!(map, headers(&[("te", "trailers"), ("authorization", "Bearer k")]));
    }

    #[test]
    fn several_cookie_fields_become_one_in_their_order() {
        let mut map = HeaderMap::new();
        for value in ["a=1", "b=2; c=3", "d=4"] {
            map.append("cookie", HeaderValue::from_static(value));
        }
        join_cookies(&mut map);
        assert_eq!(map.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2; c=3; d=4"]);
        join_cookies(&mut map);
        assert_eq!(map.get_all("cookie").iter().count(), 1);
    }

    #[test]
    fn repeated_fields_keep_the_order_of_their_values() {
        let mut map = HeaderMap::new();
        for value in ["a", "b", "c"] {
            map.append("x-many", HeaderValue::from_static(value));
        }
        to_upstream(&mut map);
        assert_eq!(map.get_all("x-many").iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn an_upgrade_needs_the_connection_field_and_must_not_offer_http2() {
        assert!(
            upgrade_protocol(&headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")])).is_some()
        );
        assert!(upgrade_protocol(&headers(&[("upgrade", "websocket")])).is_none());
        assert!(upgrade_protocol(&headers(&[("connection", "upgrade")])).is_none());
        for offers_http2 in [&["h2c"][..], &["websocket, H2C"], &["websocket", "h2c"]] {
            let mut lines = vec![("connection", "upgrade")];
            lines.extend(offers_http2.iter().map(|protocol| ("upgrade", *protocol)));
            assert!(upgrade_protocol(&headers(&lines)).is_none(), "{offers_http2:?}");
        }
    }

    #[test]
    fn only_one_chunked_coding_is_supported() {
        for (values, coded) in [
            (&[][..], false),
            (&["chunked"], false),
            (&["CHUNKED"], false),
            (&["gzip, chunked"], true),
            (&["chunked", "chunked"], true),
            (&["gzip", "chunked"], true),
        ] {
            let lines: Vec<_> = values.iter().map(|value| ("transfer-encoding", *value)).collect();
            assert_eq!(has_coding_other_than(&headers(&lines), &["chunked"]), coded, "{values:?}");
        }
    }

    #[test]
    fn the_credential_is_the_first_field_that_is_not_empty() {
        assert_eq!(credential(&headers(&[("api-key", "b"), ("authorization", "a")])), Some(&b"a"[..]));
        assert_eq!(credential(&headers(&[("api-key", "b")])), Some(&b"b"[..]));
        assert_eq!(credential(&headers(&[("x-key", "b")])), None);
        assert_eq!(credential(&headers(&[("authorization", ""), ("api-key", "")])), None);
        assert_eq!(credential(&headers(&[("authorization", ""), ("api-key", "b")])), Some(&b"b"[..]));
        assert_eq!(credential(&headers(&[("x-api-key", "c")])), Some(&b"c"[..]));
        assert_eq!(credential(&headers(&[("x-api-key", "c"), ("authorization", "a")])), Some(&b"a"[..]));
        let both = [("authorization", "a"), ("x-api-key", "c"), ("anthropic-version", "2023-06-01")];
        assert_eq!(credential(&headers(&both)), Some(&b"c"[..]));
        let one = [("authorization", "a"), ("x-api-key", ""), ("anthropic-version", "2023-06-01")];
        assert_eq!(credential(&headers(&one)), Some(&b"a"[..]));
    }

    #[test]
    fn the_control_header_is_read_without_regard_to_case() {
        for (value, expected) in [
            ("off", ControlHeader::Off),
            (" OFF ", ControlHeader::Off),
            ("dry-run", ControlHeader::DryRun),
            ("on", ControlHeader::Unknown),
        ] {
            assert_eq!(ControlHeader::from_headers(&headers(&[("x-abridge", value)])), expected, "{value:?}");
        }
        assert_eq!(ControlHeader::from_headers(&HeaderMap::new()), ControlHeader::Policy);
    }
}
