//! Who may ask what below `/abridge/`.
//!
//! Each path has a class; one that is not in the table is for operators.
//!
//! | class | on `server.listen` | on `admin.listen` |
//! |---|---|---|
//! | open | anybody | anybody |
//! | clients | anybody | operators |
//! | paid | anybody | nobody: the token would go to the upstream |
//! | shell | operators, but no token is asked for | no token is asked for |
//! | operators | where that is a loopback address or a Unix socket | operators |
//!
//! Who shows the token is an operator. Where no token is set, so is everybody who reaches a loopback address or a Unix socket
//! without a proxy between.
//!
//! A page in a browser on this machine reaches loopback addresses, too, and must pass for nobody. So whoever it is for, a request
//! that a page of another origin makes is refused, by `Origin` and `Sec-Fetch-Site`; and on a loopback address the name by
//! which abridge was reached must be one of this machine's, because any other can be made to lead here (DNS rebinding).
//!
//! What is for the upstream is nobody's here, and passes; but where a browser says that a page asks for it, the same holds of
//! the name, and of the origin where a key of abridge's own would be spent: there it must be of this machine, or a known one.

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

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Peer {
    /// A Unix socket.
    Unix,
    /// A loopback address.
    Loopback,
    /// Any other address.
    Remote,
}

/// The address that a connection came to: whom it is for, and who can reach it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Door {
    /// One of `server.listen`.
    Clients(Reach),
    /// One of `admin.listen`.
    Operators(Reach),
}

/// Who can reach an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reach {
    /// A Unix socket: whom the file system lets.
    Unix,
    /// A loopback address: whoever is on this machine, pages in its browsers among them.
    Loopback,
    /// Any other address.
    Network,
}

/// How a request came here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Way {
    /// From where.
    pub peer: Peer,
    /// Through which address of ours.
    pub door: Door,
}

/// Whom a path is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Class {
    /// Whoever asks: it tells nothing.
    Open,
    /// Clients, who get nothing but their own.
    Clients,
    /// Clients, with whose key the upstream is called.
    Paid,
    /// Operators; it holds no data, and browsers have no token to show before they have it.
    Shell,
    /// Operators.
    Operators,
}

/// Every path and its class. `*` at the end is one name or more. What is not here is for operators.
const PATHS: [(&str, Class); 15] = [
    ("/abridge/healthz", Class::Open),
    ("/abridge/readyz", Class::Open),
    ("/abridge/events", Class::Clients),
    ("/abridge/recall/*", Class::Clients),
    ("/abridge/summarize", Class::Paid),
    ("/abridge/summarize/*", Class::Paid),
    ("/abridge", Class::Shell),
    ("/abridge/", Class::Shell),
    ("/abridge/page.css", Class::Shell),
    ("/abridge/page.js", Class::Shell),
    ("/abridge/status", Class::Operators),
    ("/abridge/requests", Class::Operators),
    ("/abridge/requests/*", Class::Operators),
    ("/abridge/payloads", Class::Operators),
    ("/abridge/metrics", Class::Operators),
];

/// Who is let in.
#[derive(Clone, Debug, Default)]
pub struct Access {
    // Compared by its hash, which takes the same time wherever a guess goes wrong.
    token: Option<Hash>,
    // Names of this machine besides the usual, in lower case, without ports.
    hosts: Vec<String>,
    pages: Pages,
}

/// Which pages may ask the upstream.
#[derive(Clone, Debug, Default)]
pub enum Pages {
    /// All, because they have to bring a key.
    #[default]
    Any,
    /// Those of this machine, and of these origins: a key of abridge's own goes with each request.
    Known(Vec<String>),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The name by which abridge was reached is not one of this machine's.
    #[error(
        "on a loopback address this is answered only under a name of this machine, because a page in a browser may be behind any other; if this name is yours, put it into admin.hosts"
    )]
    Host,
    /// A page of another origin makes the request.
    #[error("a page of another origin has made this request; only pages that abridge itself has served may")]
    Origin,
    /// A page from elsewhere would spend a key that is abridge's own.
    #[error(
        "a page from elsewhere has made this request, and a key of abridge's own would go with it; if the page is yours, put its origin into admin.origins"
    )]
    Page,
    /// The path is for operators, and the address is not.
    #[error(
        "this is for operators, and this address can be reached from other machines; ask a loopback address or a Unix socket of server.listen, or the address in `[admin] listen`"
    )]
    Address,
    /// It may come from another machine.
    #[error(
        "this is for operators, and a proxy has brought the request, so it may come from another machine; set admin.token_env and show the token"
    )]
    Forwarded,
    /// The token is missing or wrong.
    #[error("this is for operators; show the token that admin.token_env names, as `authorization: Bearer TOKEN`")]
    Token,
    /// The address has no such path.
    #[error("this address is for operators, and has only paths below /abridge/; models are asked at server.listen")]
    Elsewhere,
    /// The request would need the client's key where the token is.
    #[error("summaries are asked for at server.listen, with the key of a client")]
    Paid,
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

// === impl Access ===

impl Access {
    /// Operators show this token, if there is one. This machine has these names besides the usual, ports or not.
    pub fn new<'h>(token: Option<&str>, hosts: impl IntoIterator<Item = &'h str>) -> Self {
        Self {
            token: token.map(|token| blake3::hash(token.as_bytes())),
            hosts: hosts.into_iter().map(|host| name_of(host).to_ascii_lowercase()).collect(),
            pages: Pages::default(),
        }
    }

    /// The same, with these pages at the upstream.
    #[must_use]
    pub fn with_pages(self, pages: Pages) -> Self {
        Self { pages, ..self }
    }

    /// Whether the request may be answered.
    pub fn check<B>(&self, request: &Request<B>, way: Way) -> Result<(), Refused> {
        let (headers, path) = (request.headers(), request.uri().path());
        let operators_door = matches!(way.door, Door::Operators(_));
        if operators_door && !super::owns(path) {
            return Err(Refused::Elsewhere);
        }
        if way.door.reach() == Reach::Loopback && !self.is_ours(request) {
            return Err(Refused::Host);
        }
        if !is_same_origin(request) {
            return Err(Refused::Origin);
        }
        match class(path) {
            Class::Paid if operators_door => Err(Refused::Paid),
            Class::Open | Class::Paid => Ok(()),
            Class::Clients if !operators_door => Ok(()),
            _ if way.door == Door::Clients(Reach::Network) => Err(Refused::Address),
            Class::Shell => Ok(()),
            Class::Clients | Class::Operators => self.check_operator(headers, way.door.reach()),
        }
    }

    /// Whether a request that [is of a page](is_of_page) may go to the upstream.
    pub fn check_page<B>(&self, request: &Request<B>) -> Result<(), Refused> {
        if !self.is_ours(request) {
            return Err(Refused::Host);
        }
        match &self.pages {
            Pages::Known(origins) if !self.is_known(request.headers(), origins) => Err(Refused::Page),
            _ => Ok(()),
        }
    }

    /// Whether the page that makes a request is of this machine, or of one of these origins.
    fn is_known(&self, headers: &HeaderMap, origins: &[String]) -> bool {
        let mut shown = headers.get_all(ORIGIN).iter().peekable();
        if shown.peek().is_none() {
            // A link or a picture: the browser says from how far.
            return headers.get_all(FETCH_SITE).iter().all(|site| site != "cross-site");
        }
        shown.all(|origin| {
            let origin = origin.to_str().unwrap_or_default();
            match origin.split_once("://") {
                Some(("http" | "https", host)) => {
                    is_loopback(host)
                        || self.has(host)
                        || origins.iter().any(|known| known.eq_ignore_ascii_case(origin))
                }
                // An extension or an application, which no page can pass for.
                Some(_) => true,
                // `null` is what any page can make of itself.
                None => false,
            }
        })
    }

    fn check_operator(&self, headers: &HeaderMap, reach: Reach) -> Result<(), Refused> {
        match self.token {
            Some(_) if self.is_operator(headers) => Ok(()),
            // Settings have a token where an address of operators can be reached from elsewhere.
            None if reach != Reach::Network && !came_through_proxy(headers) => Ok(()),
            None if reach != Reach::Network => Err(Refused::Forwarded),
            _ => Err(Refused::Token),
        }
    }

    /// Whether the token is shown, and there is one.
    pub fn is_operator(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then(|| blake3::hash(token.trim_ascii()))
        });
        self.token.is_some() && self.token == shown
    }

    /// Whether who shows nothing may hear of all callers: no token is set, and the request comes from this machine.
    pub fn trusts<B>(&self, request: &Request<B>, peer: Peer) -> bool {
        self.token.is_none() && is_of_this_machine(peer, request)
    }

    /// Whether each name by which the request says that it has reached us is one of this machine's.
    fn is_ours<B>(&self, request: &Request<B>) -> bool {
        // A browser always says one; who says none is a program, such as a health check in HTTP/1.0.
        hosts(request).all(|host| host.is_some_and(|host| is_loopback(host) || self.has(host)))
    }

    fn has(&self, host: &str) -> bool {
        let name = name_of(host);
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Whether a browser says that a page makes the request, at an address where only this machine's are.
pub fn is_of_page<B>(request: &Request<B>, way: Way) -> bool {
    let headers = request.headers();
    way.door.reach() == Reach::Loopback && (headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE))
}

/// The class of a path.
fn class(path: &str) -> Class {
    let is = |known: &str| match known.strip_suffix('*') {
        Some(folder) => path.strip_prefix(folder).is_some_and(|name| !name.is_empty()),
        None => path == known,
    };
    PATHS.iter().find(|(known, _)| is(known)).map_or(Class::Operators, |(_, class)| *class)
}

/// Makes an answer of ours safe in a browser: it is kept by nobody, is what it says, and is in no other page.
pub fn seal<B>(response: &mut Response<B>) {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // A page has its own.
    if let Entry::Vacant(none) = headers.entry(CONTENT_SECURITY_POLICY) {
        none.insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox"));
    }
}

// === what a request says of itself ===

/// The names by which the request has reached us; `None` for one that cannot be read.
fn hosts<B>(request: &Request<B>) -> impl Iterator<Item = Option<&str>> {
    let target = request.uri().authority().map(|authority| Some(Authority::as_str(authority)));
    target.into_iter().chain(request.headers().get_all(HOST).iter().map(|host| host.to_str().ok()))
}

/// Whether no page has made the request, or one that abridge itself has served.
fn is_same_origin<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let by_site = headers.get_all(FETCH_SITE).iter().all(|site| site == "same-origin" || site == "none");
    let mut origins = headers.get_all(ORIGIN).iter();
    let by_origin = origins.all(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        host.is_some_and(|host| {
            hosts(request).all(|own| own.is_some_and(|own| own.eq_ignore_ascii_case(host)))
                && hosts(request).next().is_some()
        })
    });
    by_site && by_origin
}

/// Whether the request comes from this machine, by the connection and by the name under which it has reached us, which must be
/// one that no other host can take; and no proxy is known to be between.
fn is_of_this_machine<B>(peer: Peer, request: &Request<B>) -> bool {
    let local = match peer {
        Peer::Unix => true,
        Peer::Loopback => hosts(request).next().flatten().is_some_and(is_loopback),
        Peer::Remote => false,
    };
    local && !came_through_proxy(request.headers())
}

fn came_through_proxy(headers: &HeaderMap) -> bool {
    [FORWARDED, FORWARDED_FOR, REAL_IP, VIA].iter().any(|name| headers.contains_key(name))
}

/// Whether a host, perhaps with its port, is the machine itself by name.
fn is_loopback(host: &str) -> bool {
    let name = name_of(host);
    let address: Result<IpAddr, _> = name.trim_start_matches('[').trim_end_matches(']').parse();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// A host without its port, and without the dot that a full name may end in.
fn name_of(host: &str) -> &str {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    name.strip_suffix('.').unwrap_or(name)
}

// === impl Peer, Reach, Door ===

impl Peer {
    /// Where a TCP connection comes from. What is not known is not of this machine.
    pub fn of(address: Option<SocketAddr>) -> Self {
        if address.is_some_and(is_local) { Self::Loopback } else { Self::Remote }
    }
}

impl Reach {
    /// Who can reach an address of TCP.
    pub fn of(address: SocketAddr) -> Self {
        if is_local(address) { Self::Loopback } else { Self::Network }
    }
}

impl Door {
    /// Who can reach it.
    pub fn reach(self) -> Reach {
        match self {
            Self::Clients(reach) | Self::Operators(reach) => reach,
        }
    }
}

fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

// === impl Refused ===

impl Refused {
    /// The answer that says so.
    pub fn to_response(self) -> Response<Full<Bytes>> {
        let status = match self {
            Self::Host | Self::Origin | Self::Page | Self::Address | Self::Forwarded => StatusCode::FORBIDDEN,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Elsewhere | Self::Paid => StatusCode::NOT_FOUND,
        };
        let mut response = text(status, format!("{self}\n"));
        if self == Self::Token {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        seal(&mut response);
        response
    }
}

#[cfg(test)]
mod tests;
