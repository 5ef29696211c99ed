//! Access control for the paths below `/abridge/`, and for web pages that send requests to the upstream.
//!
//! Each path has a class; a path that is not in the table is for operators.
//!
//! | class | on `server.listen` | on `admin.listen` |
//! |---|---|---|
//! | open | allowed | allowed |
//! | callers | allowed | operators |
//! | paid | allowed | refused: the token would go to the upstream |
//! | shell | on a loopback address or a Unix socket | allowed |
//! | numbers | on a loopback address or a Unix socket, unless a proxy forwarded the request | the same; on other addresses operators |
//! | operators | operators, on a loopback address or a Unix socket | operators |
//!
//! There are two roles. A *caller* shows the credential of a conversation and reads what was taken out of conversations with
//! that credential: `proxy/authorization.rs`. An *operator* shows the token, which the settings name or abridge makes.
//!
//! A web page in a browser can send requests to any address that its machine reaches. So a request by a page of another
//! origin is refused on every path, by `Origin` and `Sec-Fetch-Site`. The requested host must be a name of this machine,
//! because any other name can be made to resolve to it (DNS rebinding): for all requests on a loopback address, and
//! elsewhere for requests that a browser marks as sent by a page. Elsewhere an IP address is a name of this machine, too.
//!
//! Requests for the upstream pass without these checks, unless a browser marks them as sent by a page: then, on a loopback
//! address or if abridge adds its own key or header, the same rule holds for the host; and if abridge adds one, the
//! origin must be of this machine or in `admin.origins`.

use std::net::{IpAddr, SocketAddr};

use blake3::Hash;
use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, Entry, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue,
    ORIGIN, REFERRER_POLICY, VIA, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::uri::Authority;
use http::{Request, Response, StatusCode};
use http_body_util::Full;

use super::clients::Sha256;
use super::text;

/// The listener that accepted a connection: whom it serves, and who can reach it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListenerRole {
    /// One of `server.listen`.
    Clients(Exposure),
    /// One of `admin.listen`.
    Operators(Exposure),
}

/// Who can reach an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exposure {
    /// A Unix socket: processes with access to its file.
    Unix,
    /// A loopback address: every process on this machine, and so every page in its browsers.
    Loopback,
    /// Any other address: other machines.
    Network,
}

/// The connection of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectionInfo {
    /// The address that it comes from; `None` for a Unix socket.
    pub peer: Option<IpAddr>,
    /// The listener that accepted it.
    pub listener_role: ListenerRole,
    /// The hash of the certificate that the client has shown and the listener has verified.
    pub certificate: Option<Sha256>,
    /// A number that no other connection of this process has.
    pub id: u64,
}

/// Whom a path serves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PathClass {
    /// Every request; the answer reveals nothing.
    Open,
    /// Callers, each with access to its own data only.
    Callers,
    /// Callers; the upstream is called with the caller's key.
    Paid,
    /// Operators; it holds no data, and a browser needs it before it can send a token.
    Shell,
    /// Operators and programs of this machine; it holds numbers and no content.
    Numbers,
    /// Operators.
    Operators,
}

/// Each path and its class. `*` at the end matches one or more characters. Other paths are for operators.
const PATHS: [(&str, PathClass); 11] = [
    ("/abridge/healthz", PathClass::Open),
    ("/abridge/readyz", PathClass::Open),
    ("/abridge/events", PathClass::Callers),
    ("/abridge/recall/*", PathClass::Callers),
    ("/abridge/mcp", PathClass::Callers),
    ("/abridge/summarize", PathClass::Paid),
    ("/abridge/summarize/*", PathClass::Paid),
    ("/abridge", PathClass::Shell),
    ("/abridge/", PathClass::Shell),
    ("/abridge/openapi.json", PathClass::Shell),
    ("/abridge/metrics", PathClass::Numbers),
];

/// The rules of access.
#[derive(Clone, Debug, Default)]
pub struct Access {
    // Compared by its hash, in constant time. Without a token there are no operators.
    token: Option<Hash>,
    // Names of this machine besides loopback ones, in lower case, without ports.
    hosts: Vec<String>,
    // The origins besides this machine whose pages may send requests to the upstream, where abridge adds its own key or
    // header to requests. Elsewhere, pages of all origins may, because each request needs its own key.
    origins: Option<Vec<String>>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AccessError {
    /// The requested host is not a name of this machine.
    #[error(
        "the host of this request is not a known name of this machine, and a page in a browser may use any other, also on a loopback address; if this name is yours, add it to admin.hosts"
    )]
    Host,
    /// A page of another origin sent the request.
    #[error("a page of another origin sent this request; only pages of abridge itself may")]
    Origin,
    /// A page of another machine would use abridge's own key.
    #[error(
        "a page of another machine sent this request, and abridge would add a key or a header of its own; if the page is yours, add its origin to admin.origins"
    )]
    Page,
    /// The path is for operators, and other machines can reach the address.
    #[error(
        "this path is for operators, and other machines can reach this address; use a loopback address or a Unix socket of server.listen, or the address in `[admin] listen`"
    )]
    Address,
    /// Other machines can reach the address, and no clients are known.
    #[error(
        "other machines can reach this address, and gateways there are served only if they are known; give them a token in [clients], or use a loopback address or a Unix socket of server.listen"
    )]
    Gateway,
    /// A proxy forwarded the request, so it may come from another machine.
    #[error(
        "a proxy forwarded this request, so it may come from another machine; send the operators' token, as `authorization: Bearer TOKEN`"
    )]
    Forwarded,
    /// The token is missing or wrong.
    #[error(
        "this path is for operators; send `authorization: Bearer TOKEN` with the token that admin.token_env names, or else the one in the file operator-token of the state folder, whose path `abridge doctor` prints"
    )]
    Token,
    /// Too many requests with a wrong token wait for their answer.
    #[error("too many wrong tokens were shown; try again in a minute")]
    TooManyTokens,
    /// The operators' address serves only paths below `/abridge/`.
    #[error(
        "this address is for operators and serves only paths below /abridge/; send requests for models to server.listen"
    )]
    NotAdminPath,
    /// The path needs a client's key in the header of the token.
    #[error("send requests for summaries to server.listen, with the key of a client")]
    Paid,
}

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The fields that proxies add. As names, since each request is asked for them.
static FORWARDING: [HeaderName; 4] =
    [FORWARDED, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip"), VIA];

// === impl Access ===

impl Access {
    /// Creates the rules with the operators' token, if any, and names of this machine besides loopback ones, with or
    /// without ports. Pages of this machine and of `origins` may send requests to the upstream; without these, all pages.
    pub fn new<'h>(
        token: Option<&str>,
        hosts: impl IntoIterator<Item = &'h str>,
        origins: Option<Vec<String>>,
    ) -> Self {
        Self {
            token: token.map(|token| blake3::hash(token.as_bytes())),
            hosts: hosts.into_iter().map(|host| host_name(host).to_ascii_lowercase()).collect(),
            origins,
        }
    }

    /// Checks a request for abridge itself.
    pub fn check<B>(&self, request: &Request<B>, connection: ConnectionInfo) -> Result<(), AccessError> {
        let (headers, path) = (request.headers(), request.uri().path());
        let for_operators = matches!(connection.listener_role, ListenerRole::Operators(_));
        if for_operators && !super::is_admin_path(path) {
            return Err(AccessError::NotAdminPath);
        }
        self.check_sender(request, connection)?;
        let is_near = connection.listener_role.exposure() != Exposure::Network;
        match path_class(path) {
            PathClass::Paid if for_operators => Err(AccessError::Paid),
            PathClass::Open | PathClass::Paid => Ok(()),
            PathClass::Callers if !for_operators => Ok(()),
            _ if connection.listener_role == ListenerRole::Clients(Exposure::Network) => Err(AccessError::Address),
            PathClass::Shell => Ok(()),
            _ if self.is_operator(headers) => Ok(()),
            PathClass::Numbers if is_near && is_forwarded(headers) => Err(AccessError::Forwarded),
            PathClass::Numbers if is_near => Ok(()),
            PathClass::Callers | PathClass::Numbers | PathClass::Operators => Err(AccessError::Token),
        }
    }

    /// Checks a gateway's request, which `[compress]` serves. Other machines are served if their clients are known.
    pub fn check_gateway<B>(
        &self,
        request: &Request<B>,
        connection: ConnectionInfo,
        knows_clients: bool,
    ) -> Result<(), AccessError> {
        if matches!(connection.listener_role, ListenerRole::Operators(_)) {
            return Err(AccessError::NotAdminPath);
        }
        self.check_sender(request, connection)?;
        let is_served = knows_clients || connection.listener_role.exposure() != Exposure::Network;
        if is_served { Ok(()) } else { Err(AccessError::Gateway) }
    }

    fn check_sender<B>(&self, request: &Request<B>, connection: ConnectionInfo) -> Result<(), AccessError> {
        if !self.has_allowed_host(request, connection) {
            return Err(AccessError::Host);
        }
        if is_same_origin(request) { Ok(()) } else { Err(AccessError::Origin) }
    }

    /// Checks a [page's request](is_page_request) for the upstream. On an address that others can reach, it matters only
    /// where abridge adds something to it.
    pub fn check_page_request<B>(&self, request: &Request<B>, connection: ConnectionInfo) -> Result<(), AccessError> {
        if self.origins.is_none() && connection.listener_role.exposure() != Exposure::Loopback {
            return Ok(());
        }
        if !self.has_allowed_host(request, connection) {
            return Err(AccessError::Host);
        }
        match &self.origins {
            Some(origins) if !self.has_allowed_origin(request.headers(), origins) => Err(AccessError::Page),
            _ => Ok(()),
        }
    }

    /// Whether the page that sent a request is of this machine, or of one of the origins.
    fn has_allowed_origin(&self, headers: &HeaderMap, origins: &[String]) -> bool {
        let mut shown = headers.get_all(ORIGIN).iter().peekable();
        if shown.peek().is_none() {
            // A link or an image has no origin, only the fetch site.
            return headers.get_all(FETCH_SITE).iter().all(|site| site != "cross-site");
        }
        shown.all(|origin| {
            let origin = origin.to_str().unwrap_or_default();
            match origin.split_once("://") {
                Some(("http" | "https", host)) => {
                    is_loopback(host)
                        || self.is_configured_host(host)
                        || origins.iter().any(|known| known.eq_ignore_ascii_case(origin))
                }
                // An extension or an application; no web page can have such an origin.
                Some(_) => true,
                // Any page can obtain the origin `null`.
                None => false,
            }
        })
    }

    /// Whether a token is set and the request has it.
    pub fn is_operator(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then(|| blake3::hash(token.trim_ascii()))
        });
        self.token.is_some() && self.token == shown
    }

    /// Whether each requested host is a name of this machine, as far as that matters on this connection.
    fn has_allowed_host<B>(&self, request: &Request<B>, connection: ConnectionInfo) -> bool {
        let on_loopback = match connection.listener_role.exposure() {
            Exposure::Loopback => true,
            Exposure::Network if is_page_request(request) => false,
            Exposure::Unix | Exposure::Network => return true,
        };
        let is_own = |host: &str| {
            is_loopback(host) || self.is_configured_host(host) || (!on_loopback && address(host_name(host)).is_some())
        };
        // A browser always sends a host; a request without one is a program's, such as a health check in HTTP/1.0.
        requested_hosts(request).all(|host| host.is_some_and(is_own))
    }

    fn is_configured_host(&self, host: &str) -> bool {
        let name = host_name(host);
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Whether a browser marks the request as sent by a page.
pub fn is_page_request<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE)
}

/// The class of a path.
fn path_class(path: &str) -> PathClass {
    let is = |known: &str| match known.strip_suffix('*') {
        Some(folder) => path.strip_prefix(folder).is_some_and(|name| !name.is_empty()),
        None => path == known,
    };
    PATHS.iter().find(|(known, _)| is(known)).map_or(PathClass::Operators, |(_, path_class)| *path_class)
}

/// Sets headers that keep an answer from being cached, sniffed, or embedded in another page.
pub fn set_security_headers<B>(response: &mut Response<B>) {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // The page has its own policy.
    if let Entry::Vacant(none) = headers.entry(CONTENT_SECURITY_POLICY) {
        none.insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox"));
    }
}

// === request properties ===

/// The hosts in target and `host`; `None` for one that is not text.
fn requested_hosts<B>(request: &Request<B>) -> impl Iterator<Item = Option<&str>> {
    let target = request.uri().authority().map(|authority| Some(Authority::as_str(authority)));
    target.into_iter().chain(request.headers().get_all(HOST).iter().map(|host| host.to_str().ok()))
}

/// Whether no page sent the request, or a page that abridge itself serves.
fn is_same_origin<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let by_site = headers.get_all(FETCH_SITE).iter().all(|site| site == "same-origin" || site == "none");
    let mut origins = headers.get_all(ORIGIN).iter();
    let by_origin = origins.all(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        host.is_some_and(|host| {
            requested_hosts(request).all(|own| own.is_some_and(|own| own.eq_ignore_ascii_case(host)))
                && requested_hosts(request).next().is_some()
        })
    });
    by_site && by_origin
}

/// Whether a proxy has forwarded the request, as far as header fields show it.
pub fn is_forwarded(headers: &HeaderMap) -> bool {
    FORWARDING.iter().any(|name| headers.contains_key(name))
}

/// Whether a host, perhaps with a port, is a loopback name or address.
fn is_loopback(host: &str) -> bool {
    let name = host_name(host);
    name.eq_ignore_ascii_case("localhost") || address(name).is_some_and(|address| address.to_canonical().is_loopback())
}

fn address(name: &str) -> Option<IpAddr> {
    name.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// A host without its port and without a final dot.
fn host_name(host: &str) -> &str {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    name.strip_suffix('.').unwrap_or(name)
}

// === impl Exposure, ListenerRole ===

impl Exposure {
    /// The exposure of a TCP address.
    pub fn of(address: SocketAddr) -> Self {
        if address.ip().to_canonical().is_loopback() { Self::Loopback } else { Self::Network }
    }
}

impl ListenerRole {
    /// The exposure of the listener.
    pub fn exposure(self) -> Exposure {
        match self {
            Self::Clients(exposure) | Self::Operators(exposure) => exposure,
        }
    }
}

// === impl AccessError ===

impl AccessError {
    /// The response for this error.
    pub fn to_response(self) -> Response<Full<Bytes>> {
        let status = match self {
            Self::Host | Self::Origin | Self::Page | Self::Address | Self::Forwarded => StatusCode::FORBIDDEN,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::TooManyTokens => StatusCode::TOO_MANY_REQUESTS,
            Self::NotAdminPath | Self::Paid | Self::Gateway => StatusCode::NOT_FOUND,
        };
        let mut response = text(status, format!("{self}\n"));
        if self == Self::Token {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        set_security_headers(&mut response);
        response
    }
}

#[cfg(test)]
mod tests;
