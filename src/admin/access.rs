//! Access control for the paths below `/abridge/`, and for web pages that send requests to the upstream.
//!
//! Each path has a class; a path that is not in the table is for operators.
//!
//! | class | on `server.listen` | on `admin.listen` |
//! |---|---|---|
//! | open | allowed | allowed |
//! | clients | allowed | operators |
//! | paid | allowed | refused: the token would go to the upstream |
//! | shell | as operators, but without a token | allowed |
//! | operators | operators, on a loopback address or a Unix socket | operators |
//!
//! A request with the token is an operator's. If no token is set, so is every request to a loopback address or a Unix socket
//! that no proxy has forwarded.
//!
//! A web page in a browser on this machine can send requests to loopback addresses, too. So a request by a page of another
//! origin is refused on every path, by `Origin` and `Sec-Fetch-Site`; and on a loopback address the requested host must be a
//! name of this machine, because any other name can be made to resolve to it (DNS rebinding).
//!
//! Requests for the upstream pass without these checks, unless a browser marks them as sent by a page: then the same rule
//! holds for the host, and, if abridge adds a key of its own, the origin must be of this machine or in `admin.origins`.

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

use super::text;

/// The origin of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Peer {
    /// A Unix socket.
    Unix,
    /// A loopback address.
    Loopback,
    /// Any other address.
    Remote,
}

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
    /// Where it comes from.
    pub peer: Peer,
    /// The listener that accepted it.
    pub listener_role: ListenerRole,
}

/// Whom a path serves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PathClass {
    /// Every request; the answer reveals nothing.
    Open,
    /// Clients, each with access to its own data only.
    Clients,
    /// Clients; the upstream is called with the client's key.
    Paid,
    /// Operators; it holds no data, and a browser needs it before it can send a token.
    Shell,
    /// Operators.
    Operators,
}

/// Each path and its class. `*` at the end stands for one or more characters. Other paths are for operators.
const PATHS: [(&str, PathClass); 16] = [
    ("/abridge/healthz", PathClass::Open),
    ("/abridge/readyz", PathClass::Open),
    ("/abridge/events", PathClass::Clients),
    ("/abridge/recall/*", PathClass::Clients),
    ("/abridge/mcp", PathClass::Clients),
    ("/abridge/summarize", PathClass::Paid),
    ("/abridge/summarize/*", PathClass::Paid),
    ("/abridge", PathClass::Shell),
    ("/abridge/", PathClass::Shell),
    ("/abridge/page.css", PathClass::Shell),
    ("/abridge/page.js", PathClass::Shell),
    ("/abridge/status", PathClass::Operators),
    ("/abridge/requests", PathClass::Operators),
    ("/abridge/requests/*", PathClass::Operators),
    ("/abridge/payloads", PathClass::Operators),
    ("/abridge/metrics", PathClass::Operators),
];

/// The rules of access.
#[derive(Clone, Debug, Default)]
pub struct Access {
    // Compared by its hash, in constant time.
    token: Option<Hash>,
    // Names of this machine besides loopback ones, in lower case, without ports.
    hosts: Vec<String>,
    allowed_origins: AllowedOrigins,
}

/// The origins whose pages may send requests to the upstream.
#[derive(Clone, Debug, Default)]
pub enum AllowedOrigins {
    /// All, because each request needs a key of its own.
    #[default]
    Any,
    /// This machine and these origins, because abridge adds its own key to each request.
    Known(Vec<String>),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AccessError {
    /// The requested host is not a name of this machine.
    #[error(
        "on a loopback address, the host of a request must be a name of this machine, because a page in a browser may use any other; if this name is yours, add it to admin.hosts"
    )]
    Host,
    /// A page of another origin sent the request.
    #[error("a page of another origin sent this request; only pages of abridge itself may")]
    Origin,
    /// A page of another machine would use abridge's own key.
    #[error(
        "a page of another machine sent this request, and abridge would add its own key; if the page is yours, add its origin to admin.origins"
    )]
    Page,
    /// The path is for operators, and other machines can reach the address.
    #[error(
        "this path is for operators, and other machines can reach this address; use a loopback address or a Unix socket of server.listen, or the address in `[admin] listen`"
    )]
    Address,
    /// A proxy forwarded the request, so it may come from another machine.
    #[error(
        "this path is for operators, and a proxy forwarded the request, so it may come from another machine; set admin.token_env and send the token"
    )]
    Forwarded,
    /// The token is missing or wrong.
    #[error("this path is for operators; send the token that admin.token_env names, as `authorization: Bearer TOKEN`")]
    Token,
    /// The operators' address serves only paths below `/abridge/`.
    #[error(
        "this address is for operators and serves only paths below /abridge/; send requests for models to server.listen"
    )]
    NotAdminPath,
    /// The path needs a client's key in the header of the token.
    #[error("send requests for summaries to server.listen, with the key of a client")]
    Paid,
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

// === impl Access ===

impl Access {
    /// Creates the rules with the operators' token, if any, and names of this machine besides loopback ones, with or
    /// without ports.
    pub fn new<'h>(token: Option<&str>, hosts: impl IntoIterator<Item = &'h str>) -> Self {
        Self {
            token: token.map(|token| blake3::hash(token.as_bytes())),
            hosts: hosts.into_iter().map(|host| host_name(host).to_ascii_lowercase()).collect(),
            allowed_origins: AllowedOrigins::default(),
        }
    }

    /// Sets the origins whose pages may send requests to the upstream.
    #[must_use]
    pub fn with_allowed_origins(self, allowed_origins: AllowedOrigins) -> Self {
        Self { allowed_origins, ..self }
    }

    /// Checks a request for abridge itself.
    pub fn check<B>(&self, request: &Request<B>, connection: ConnectionInfo) -> Result<(), AccessError> {
        let (headers, path) = (request.headers(), request.uri().path());
        let for_operators = matches!(connection.listener_role, ListenerRole::Operators(_));
        if for_operators && !super::is_admin_path(path) {
            return Err(AccessError::NotAdminPath);
        }
        if connection.listener_role.exposure() == Exposure::Loopback && !self.has_allowed_host(request) {
            return Err(AccessError::Host);
        }
        if !is_same_origin(request) {
            return Err(AccessError::Origin);
        }
        match path_class(path) {
            PathClass::Paid if for_operators => Err(AccessError::Paid),
            PathClass::Open | PathClass::Paid => Ok(()),
            PathClass::Clients if !for_operators => Ok(()),
            _ if connection.listener_role == ListenerRole::Clients(Exposure::Network) => Err(AccessError::Address),
            PathClass::Shell => Ok(()),
            PathClass::Clients | PathClass::Operators => {
                self.check_operator(headers, connection.listener_role.exposure())
            }
        }
    }

    /// Checks a [page's request](is_page_request) for the upstream.
    pub fn check_page_request<B>(&self, request: &Request<B>) -> Result<(), AccessError> {
        if !self.has_allowed_host(request) {
            return Err(AccessError::Host);
        }
        match &self.allowed_origins {
            AllowedOrigins::Known(origins) if !self.has_allowed_origin(request.headers(), origins) => {
                Err(AccessError::Page)
            }
            _ => Ok(()),
        }
    }

    /// Whether the page that sent a request is of this machine, or of one of these origins.
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

    fn check_operator(&self, headers: &HeaderMap, exposure: Exposure) -> Result<(), AccessError> {
        match self.token {
            Some(_) if self.is_operator(headers) => Ok(()),
            // The configuration requires a token where other machines can reach an operators' address.
            None if exposure != Exposure::Network && !is_forwarded(headers) => Ok(()),
            None if exposure != Exposure::Network => Err(AccessError::Forwarded),
            _ => Err(AccessError::Token),
        }
    }

    /// Whether a token is set and the request has it.
    pub fn is_operator(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then(|| blake3::hash(token.trim_ascii()))
        });
        self.token.is_some() && self.token == shown
    }

    /// Whether a request without a credential may see the events of all callers: no token is set, and the request comes
    /// from this machine.
    pub fn is_trusted_without_credential<B>(&self, request: &Request<B>, peer: Peer) -> bool {
        self.token.is_none() && is_local_request(peer, request)
    }

    /// Whether each requested host is a name of this machine.
    fn has_allowed_host<B>(&self, request: &Request<B>) -> bool {
        // A browser always sends a host; a request without one is a program's, such as a health check in HTTP/1.0.
        requested_hosts(request).all(|host| host.is_some_and(|host| is_loopback(host) || self.is_configured_host(host)))
    }

    fn is_configured_host(&self, host: &str) -> bool {
        let name = host_name(host);
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Whether a browser marks the request as sent by a page, on a loopback address.
pub fn is_page_request<B>(request: &Request<B>, connection: ConnectionInfo) -> bool {
    let headers = request.headers();
    connection.listener_role.exposure() == Exposure::Loopback
        && (headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE))
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
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
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

/// Whether the request comes from this machine: by its connection, by a loopback host, which no other machine can have, and
/// without signs of a proxy.
fn is_local_request<B>(peer: Peer, request: &Request<B>) -> bool {
    let local = match peer {
        Peer::Unix => true,
        Peer::Loopback => requested_hosts(request).next().flatten().is_some_and(is_loopback),
        Peer::Remote => false,
    };
    local && !is_forwarded(request.headers())
}

fn is_forwarded(headers: &HeaderMap) -> bool {
    [FORWARDED, FORWARDED_FOR, REAL_IP, VIA].iter().any(|name| headers.contains_key(name))
}

/// Whether a host, perhaps with a port, is a loopback name or address.
fn is_loopback(host: &str) -> bool {
    let name = host_name(host);
    let address: Result<IpAddr, _> = name.trim_start_matches('[').trim_end_matches(']').parse();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// A host without its port and without a final dot.
fn host_name(host: &str) -> &str {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    name.strip_suffix('.').unwrap_or(name)
}

// === impl Peer, Exposure, ListenerRole ===

impl Peer {
    /// The peer of a TCP connection. An unknown address counts as remote.
    pub fn of(address: Option<SocketAddr>) -> Self {
        if address.is_some_and(is_loopback_address) { Self::Loopback } else { Self::Remote }
    }
}

impl Exposure {
    /// The exposure of a TCP address.
    pub fn of(address: SocketAddr) -> Self {
        if is_loopback_address(address) { Self::Loopback } else { Self::Network }
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

fn is_loopback_address(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

// === impl AccessError ===

impl AccessError {
    /// The response for this error.
    pub fn to_response(self) -> Response<Full<Bytes>> {
        let status = match self {
            Self::Host | Self::Origin | Self::Page | Self::Address | Self::Forwarded => StatusCode::FORBIDDEN,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::NotAdminPath | Self::Paid => StatusCode::NOT_FOUND,
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
