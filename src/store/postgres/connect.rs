//! Connects to PostgreSQL: to the first host that will do, whose tables are this fleet's.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, Row};

use super::calls::{VERSION, statement, statements};
use crate::platform::sockets;
use crate::store::Settings;
use crate::store::engine::link::{Connect, Driver, first_of};
use crate::store::engine::tls::Tls;
use crate::store::engine::{EngineError, EngineResult, OpenError};
use crate::store::engine_error::UrlError;
use crate::store::secret::{Identity, Meta};

/// The parameters of a connection.
#[derive(Clone)]
pub(in crate::store) struct Connector {
    pub(super) hosts: Vec<Config>,
    pub(super) tls: Tls,
    pub(super) identity: Arc<Identity>,
    pub(super) prefix: String,
    pub(super) timeout: Duration,
    /// The name of the statement that succeeds if the connection can be used.
    pub(super) probe: &'static str,
}

/// The tables after a connection.
struct Tables<'a> {
    client: &'a Client,
    prefix: &'a str,
}

/// The form of a URL.
const URL: &str = "postgres://USER:PASSWORD@HOST:PORT/DATABASE";

/// After this time without traffic, TCP asks whether the engine is still there.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// How long the tables may take to be made.
const CREATE_TIMEOUT: Duration = Duration::from_mins(1);

// === impl Connector ===

impl Connect for Connector {
    type Client = Client;

    async fn connect(&self) -> EngineResult<(Client, Driver)> {
        first_of(self.timeout, self.hosts.iter().map(|host| self.connect_to(host))).await
    }
}

impl Connector {
    /// Connects to one host, and checks that its tables are this fleet's.
    async fn connect_to(&self, host: &Config) -> EngineResult<(Client, Driver)> {
        let (client, connection) = host.connect(self.tls.clone()).await?;
        let mut ended: Driver = Box::pin(async move {
            let _reason = connection.await;
        });
        tokio::select! {
            checked = self.check(&client) => checked?,
            () = &mut ended => return Err(EngineError::Lost),
        }
        Ok((client, ended))
    }

    async fn check(&self, client: &Client) -> EngineResult<()> {
        let tables = Tables { client, prefix: &self.prefix };
        let version = tables.meta("version").await?.map(|row| row.try_get(1)).transpose()?.flatten();
        let version: i64 = version.ok_or(EngineError::NotInitialised)?;
        if version != VERSION {
            return Err(EngineError::Version(version));
        }
        // A table may be locked, and the server read-only. No attempt leaves a statement there that waits.
        let (limit, probe) = (self.timeout.as_millis(), statement(self.probe, &self.prefix));
        client.batch_execute(&format!("SET LOCAL statement_timeout = {limit}; {probe}")).await?;
        self.identity.check(&tables).await
    }
}

impl Tables<'_> {
    async fn meta(&self, name: &str) -> EngineResult<Option<Row>> {
        let meta = statement("meta", self.prefix);
        Ok(self.client.query_typed_opt(&meta, &[(&name, Type::TEXT)]).await?)
    }
}

impl Meta for Tables<'_> {
    async fn value(&self, name: &str) -> EngineResult<Option<Vec<u8>>> {
        Ok(self.meta(name).await?.map(|row| row.try_get(0)).transpose()?.flatten())
    }

    async fn put_if_absent(&self, name: &str, value: &[u8]) -> EngineResult<()> {
        let put = statement("put_meta", self.prefix);
        self.client.execute_typed(&put, &[(&name, Type::TEXT), (&value, Type::BYTEA)]).await?;
        Ok(())
    }

    async fn replace(&self, name: &str, old: &[u8], value: &[u8]) -> EngineResult<()> {
        let replace = statement("replace_meta", self.prefix);
        let parameters: &[_] = &[(&name as _, Type::TEXT), (&value as _, Type::BYTEA), (&old as _, Type::BYTEA)];
        self.client.execute_typed(&replace, parameters).await?;
        Ok(())
    }
}

// === hosts ===

/// The hosts of a URL, each with its own settings: one that hangs does not hide the next.
pub(super) fn hosts(url: &str, timeout: Duration) -> Result<Vec<Config>, UrlError> {
    let all: Config = url.parse().map_err(|_| UrlError(URL))?;
    if all.get_hosts().is_empty() {
        return Err(UrlError(URL));
    }
    let ports = all.get_ports();
    let one = |(n, host): (usize, &Host)| {
        let mut one = Config::new();
        let is_local = sockets::host_name(host, &mut one).is_none_or(|name| {
            one.host(name);
            name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        });
        one.port(ports.get(n).or(ports.first()).copied().unwrap_or(5432));
        all.get_user().map(|user| one.user(user));
        all.get_password().map(|password| one.password(password));
        all.get_dbname().map(|name| one.dbname(name));
        all.get_options().map(|options| one.options(options));
        one.application_name(all.get_application_name().unwrap_or("abridge"));
        let mode = match all.get_ssl_mode() {
            SslMode::Prefer if is_local => SslMode::Disable,
            SslMode::Prefer => SslMode::Require,
            mode => mode,
        };
        one.ssl_mode(mode);
        let is_choice = all.get_hosts().len() > 1 && all.get_target_session_attrs() == TargetSessionAttrs::Any;
        let wanted = if is_choice { TargetSessionAttrs::ReadWrite } else { all.get_target_session_attrs() };
        one.target_session_attrs(wanted);
        one.connect_timeout(timeout).tcp_user_timeout(timeout);
        one.keepalives(true).keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE);
        one
    };
    Ok(all.get_hosts().iter().enumerate().map(one).collect())
}

/// Whether TLS is used for one of them.
pub(super) fn encrypts(hosts: &[Config]) -> bool {
    hosts.iter().any(|host| host.get_ssl_mode() != SslMode::Disable)
}

// === init ===

/// Makes the tables that do not exist, for `abridge store init`: the proxy's own role needs no right to do so.
pub async fn init(url: &str, settings: &Settings) -> Result<(), OpenError> {
    let hosts = hosts(url, settings.timeout.0)?;
    let tls = Tls::new(settings.ca_file.as_deref(), encrypts(&hosts))?;
    let prefix = settings.table_prefix();
    Ok(first_of(CREATE_TIMEOUT, hosts.iter().map(|host| create(host, tls.clone(), &prefix))).await?)
}

async fn create(host: &Config, tls: Tls, prefix: &str) -> EngineResult<()> {
    let (client, connection) = host.connect(tls).await?;
    let creating = async {
        for create in statements("create", prefix) {
            client.batch_execute(&create).await?;
        }
        // It saves the engine work, and is not a standard.
        let _plain = client.batch_execute(&statement("store_plain", prefix)).await;
        Ok(())
    };
    tokio::select! {
        created = creating => created,
        _ended = connection => Err(EngineError::Lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(url: &str) -> Vec<(Host, u16, SslMode, TargetSessionAttrs)> {
        let all = super::hosts(url, Duration::from_secs(2)).unwrap();
        let of = |one: &Config| {
            (one.get_hosts()[0].clone(), one.get_ports()[0], one.get_ssl_mode(), one.get_target_session_attrs())
        };
        all.iter().map(of).collect()
    }

    fn tcp(name: &str) -> Host {
        Host::Tcp(name.to_owned())
    }

    #[test]
    fn another_machine_is_reached_with_tls_unless_the_url_says_otherwise() {
        let any = TargetSessionAttrs::Any;
        assert_eq!(hosts("postgres://u:p@db/x"), [(tcp("db"), 5432, SslMode::Require, any)]);
        assert_eq!(hosts("postgres://db:1/x?sslmode=disable"), [(tcp("db"), 1, SslMode::Disable, any)]);
        for local in ["127.0.0.1", "localhost"] {
            assert_eq!(hosts(&format!("postgres://{local}/x")), [(tcp(local), 5432, SslMode::Disable, any)]);
            let required = hosts(&format!("postgres://{local}/x?sslmode=require"));
            assert_eq!(required, [(tcp(local), 5432, SslMode::Require, any)]);
        }
    }

    #[test]
    fn of_several_hosts_the_one_that_accepts_writes_is_wanted() {
        let (tls, wanted) = (SslMode::Require, TargetSessionAttrs::ReadWrite);
        let both = [(tcp("a"), 1, tls, wanted), (tcp("b"), 2, tls, wanted)];
        assert_eq!(hosts("postgres://u@a:1,b:2/x"), both);
    }

    #[test]
    fn a_url_that_is_none_is_refused_without_being_shown() {
        for url in ["https://me:secret@db", "postgres:///x"] {
            let refused = super::hosts(url, Duration::from_secs(2)).unwrap_err();
            assert!(!refused.to_string().contains("secret"));
        }
    }
}
