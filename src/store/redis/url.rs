//! The URL of a Redis: one server, one that sentinels watch, or a cluster.

use std::borrow::Cow;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use redis::{ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo};

use crate::store::engine_error::UrlError;

/// The target of a connection.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) kind: Kind,
    /// Of servers, the first primary is used; of sentinels and the nodes of a cluster, the first that answers is asked.
    pub(super) hosts: Vec<Host>,
    pub(super) login: RedisConnectionInfo,
    /// What sentinels are asked with.
    pub(super) sentinel_login: RedisConnectionInfo,
    tls: Option<bool>,
}

/// The name and the port of a server.
pub(super) type Host = (String, u16);

/// How servers are found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Servers,
    /// The name that sentinels know the servers by.
    Sentinel(String),
    Cluster,
}

/// The form of a URL.
const URL: &str = "redis://USER:PASSWORD@HOST:PORT/DATABASE, redis+sentinel://USER:PASSWORD@HOST:PORT/SERVICE/DATABASE, redis+cluster://USER:PASSWORD@HOST:PORT";

// === impl Target ===

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, UrlError> {
        let invalid = UrlError(URL);
        let (scheme, rest) = url.split_once("://").ok_or(invalid)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (transport, form) = scheme.split_once('+').unwrap_or((scheme, ""));
        let mut tls = match transport {
            "redis" => None,
            "rediss" => Some(true),
            _ => return Err(invalid),
        };
        let (kind, database) = match form {
            "" => (Kind::Servers, path),
            "sentinel" => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(invalid);
                }
                (Kind::Sentinel(decoded(service).ok_or(invalid)?), database)
            }
            "cluster" => (Kind::Cluster, path),
            _ => return Err(invalid),
        };
        let mut sentinel_login = RedisConnectionInfo::default();
        for (name, value) in query.split('&').filter_map(|part| part.split_once('=')) {
            let value = decoded(value).ok_or(invalid)?;
            match (name, value.as_str()) {
                ("sslmode", "disable") => tls = Some(false),
                ("sslmode", "require") => tls = Some(true),
                ("sentinel_user", user) => sentinel_login = sentinel_login.set_username(user),
                ("sentinel_password", password) => sentinel_login = sentinel_login.set_password(password),
                _ => return Err(invalid),
            }
        }
        let port = if matches!(kind, Kind::Sentinel(_)) { 26379 } else { 6379 };
        let hosts = hosts.split(',').filter(|host| !host.is_empty());
        let found: Option<Vec<_>> = hosts.map(|host| host_and_login(user, host, database, port)).collect();
        let (hosts, logins): (Vec<_>, Vec<_>) = found.ok_or(invalid)?.into_iter().unzip();
        let login = logins.into_iter().next().ok_or(invalid)?;
        Ok(Self { kind, hosts, login, sentinel_login, tls })
    }

    /// Whether TLS may be used: a node of a cluster may be on another machine than the one that names it.
    pub(super) fn may_encrypt(&self) -> bool {
        self.kind != Kind::Servers || self.hosts.iter().any(|(host, _)| self.encrypts(host))
    }

    /// Whether this host is reached with TLS: unless the URL says otherwise, another machine is.
    pub(super) fn encrypts(&self, host: &str) -> bool {
        let is_local = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        self.tls.unwrap_or(!is_local)
    }
}

// === helpers ===

/// A host with its port, and the login for it.
fn host_and_login(user: &str, host: &str, database: &str, port: u16) -> Option<(Host, RedisConnectionInfo)> {
    let url = redis::parse_redis_url(&format!("redis://{user}@{host}/{database}"))?;
    let port = url.port().unwrap_or(port);
    let info = url.into_connection_info().ok()?;
    let ConnectionAddr::Tcp(name, _) = info.addr() else { return None };
    Some(((name.clone(), port), info.redis_settings().clone()))
}

/// A part of a URL without its percent signs.
fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_how_servers_are_found_and_who_asks() {
        let one = Target::parse("redis://me:p%40ss%3A@db:7000/3").unwrap();
        assert_eq!((one.kind, one.hosts), (Kind::Servers, vec![("db".to_owned(), 7000)]));
        assert_eq!((one.login.username(), one.login.password(), one.login.db()), (Some("me"), Some("p@ss:"), 3));
        let watched = Target::parse("rediss+sentinel://:p@a,b:1/main/2?sentinel_password=q").unwrap();
        assert_eq!(watched.kind, Kind::Sentinel("main".to_owned()));
        assert_eq!(watched.hosts, [("a".to_owned(), 26379), ("b".to_owned(), 1)]);
        assert_eq!((watched.login.username(), watched.login.password(), watched.login.db()), (None, Some("p"), 2));
        assert_eq!(watched.sentinel_login.password(), Some("q"));
        let cluster = Target::parse("redis+cluster://[::1]:7,[::2]").unwrap();
        assert_eq!(
            (cluster.kind, cluster.hosts),
            (Kind::Cluster, vec![("::1".to_owned(), 7), ("::2".to_owned(), 6379)])
        );
    }

    #[test]
    fn another_machine_is_reached_with_tls_unless_the_url_says_otherwise() {
        for (url, [here, there]) in [
            ("redis://x", [false, true]),
            ("rediss://x", [true, true]),
            ("redis+cluster://x?sslmode=disable", [false, false]),
            ("redis://x/0?sslmode=require", [true, true]),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!([target.encrypts("127.0.0.1"), target.encrypts("db")], [here, there], "{url}");
            assert_eq!(target.encrypts("localhost"), here);
        }
    }

    #[test]
    fn a_url_that_is_none_is_refused_without_being_shown() {
        let wrong = [
            "postgres://me:secret@db",
            "redis+other://secret@db",
            "redis://me:secret@db/x",
            "redis://me:secret@db:x",
            "redis+sentinel://:secret@db",
            "redis://secret@db?x=1",
            "redis://me:secret@/1",
        ];
        for url in wrong {
            let refused = Target::parse(url).unwrap_err();
            assert_eq!(refused, UrlError(URL), "{url}");
            assert!(!refused.to_string().contains("secret"));
        }
    }
}
