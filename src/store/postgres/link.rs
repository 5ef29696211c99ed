//! One connection to the engine, which a task opens again whenever it is lost.
//!
//! A call never connects: while there is no connection it fails at once. A call that takes too long gives the connection
//! up, since an engine that hangs answers no later call either. So an engine that hangs is waited for once.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row};
use tokio_util::sync::CancellationToken;

use super::error::{PostgresError, UrlError};
use super::identity::Identity;
use super::tls::Tls;
use crate::tasks::Tasks;

/// A connection.
pub(super) struct Link {
    hosts: Vec<Config>,
    tls: Tls,
    identity: Arc<Identity>,
    timeout: Duration,
    open: ArcSwapOption<Open>,
    // The outcome of the last attempt to connect; `None` before the first.
    outcome: watch::Sender<Option<Result<(), PostgresError>>>,
    connected: AtomicU64,
    stop: CancellationToken,
}

/// The parameters of a statement.
pub(super) type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(500);

/// After this time without traffic, TCP asks whether the engine is still there.
const KEEPALIVE: Duration = Duration::from_secs(10);

// === impl Link ===

impl Link {
    /// Starts to connect, in a task.
    pub(super) fn start(
        hosts: Vec<Config>,
        tls: Tls,
        identity: Arc<Identity>,
        timeout: Duration,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let link = Arc::new(Self {
            hosts,
            tls,
            identity,
            timeout,
            open: ArcSwapOption::empty(),
            outcome: watch::channel(None).0,
            connected: AtomicU64::new(0),
            stop: CancellationToken::new(),
        });
        let keeper = Arc::clone(&link);
        tasks.spawn(async move {
            let stop = keeper.stop.clone();
            stop.run_until_cancelled(keeper.keep()).await;
            keeper.open.store(None);
        });
        link
    }

    /// Waits until the first attempt to connect has ended.
    pub(super) async fn first_attempt(&self) -> Result<(), PostgresError> {
        let mut outcome = self.outcome.subscribe();
        let first = outcome.wait_for(Option::is_some).await;
        first.ok().and_then(|first| first.clone()).unwrap_or(Err(PostgresError::Closed))
    }

    /// Waits until there is a connection, for `store.timeout` at the longest.
    pub(super) async fn connected(&self) {
        let mut outcome = self.outcome.subscribe();
        // The sender lives as long as `self`.
        let _connected = timeout(self.timeout, outcome.wait_for(|outcome| matches!(outcome, Some(Ok(()))))).await;
    }

    /// Why there is no connection; `Ok` if there is one.
    pub(super) fn state(&self) -> Result<(), PostgresError> {
        if self.open.load().is_some() {
            return Ok(());
        }
        match &*self.outcome.borrow() {
            Some(Err(error)) => Err(error.clone()),
            _ => Err(PostgresError::Closed),
        }
    }

    /// How often it was connected.
    pub(super) fn epoch(&self) -> u64 {
        self.connected.load(Ordering::Relaxed)
    }

    /// Runs a statement that returns rows. Statements are not prepared under a name, so that a pooler may be between.
    pub(super) async fn query(&self, statement: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, PostgresError> {
        let open = self.open()?;
        self.within(&open, open.client.query_typed(statement, parameters)).await
    }

    /// Runs a statement, and returns how many rows it has changed.
    pub(super) async fn execute(&self, statement: &str, parameters: Parameters<'_>) -> Result<u64, PostgresError> {
        let open = self.open()?;
        self.within(&open, open.client.execute_typed(statement, parameters)).await
    }

    fn open(&self) -> Result<Arc<Open>, PostgresError> {
        self.open.load_full().ok_or_else(|| self.state().err().unwrap_or(PostgresError::Closed))
    }

    /// Waits for a call for `store.timeout` at the longest.
    async fn within<T>(
        &self,
        open: &Arc<Open>,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, PostgresError> {
        let error = match timeout(self.timeout, call).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => PostgresError::from(error),
            Err(_) => PostgresError::TimedOut(self.timeout),
        };
        if open.client.is_closed() || error.ends_connection() {
            self.give_up(open, &error);
        }
        Err(error)
    }

    /// Closes the connection, and connects no more.
    pub(super) fn close(&self) {
        self.stop.cancel();
        self.open.store(None);
        self.outcome.send_replace(Some(Err(PostgresError::Closed)));
    }

    /// Gives a connection up.
    fn give_up(&self, open: &Arc<Open>, error: &PostgresError) {
        // Of several calls that fail together, one gives it up.
        if open.given_up.is_cancelled() || self.stop.is_cancelled() {
            return;
        }
        open.given_up.cancel();
        self.outcome.send_replace(Some(Err(error.clone())));
        self.open.store(None);
    }

    /// Connects, and connects again whenever the connection is lost.
    async fn keep(&self) {
        loop {
            match self.connect_to_one().await {
                Ok(Connection { open, ended }) => {
                    tokio::select! {
                        () = ended => self.give_up(&open, &PostgresError::Lost),
                        () = open.given_up.cancelled() => {}
                    }
                }
                Err(error) => _ = self.outcome.send_replace(Some(Err(error))),
            }
            sleep(PAUSE).await;
        }
    }

    /// Connects to the first host that will do.
    async fn connect_to_one(&self) -> Result<Connection, PostgresError> {
        let mut last = PostgresError::Closed;
        for host in &self.hosts {
            match timeout(self.timeout, self.connect(host)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => last = error,
                Err(_) => last = PostgresError::TimedOut(self.timeout),
            }
        }
        Err(last)
    }

    /// Connects to one host, and checks that its tables are this fleet's.
    async fn connect(&self, host: &Config) -> Result<Connection, PostgresError> {
        let (client, connection) = host.connect(self.tls.clone()).await?;
        let mut ended: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let _reason = connection.await;
        });
        tokio::select! {
            checked = self.identity.check(&client) => checked?,
            () = &mut ended => return Err(PostgresError::Lost),
        }
        let open = Arc::new(Open { client, given_up: CancellationToken::new() });
        self.connected.fetch_add(1, Ordering::Relaxed);
        self.open.store(Some(Arc::clone(&open)));
        self.outcome.send_replace(Some(Ok(())));
        Ok(Connection { open, ended })
    }
}

/// What calls need of an open connection.
struct Open {
    client: Client,
    /// Cancelled when a call has given the connection up.
    given_up: CancellationToken,
}

/// An open connection.
struct Connection {
    open: Arc<Open>,
    /// Drives the connection until it ends.
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
}

// === hosts ===

/// The hosts of a URL, each with settings of its own: one that hangs does not hide the next.
pub(super) fn hosts(url: &str, timeout: Duration) -> Result<Vec<Config>, UrlError> {
    let all: Config = url.parse().map_err(|_| UrlError::Invalid)?;
    if all.get_hosts().is_empty() {
        return Err(UrlError::NoHost);
    }
    let ports = all.get_ports();
    let one = |(n, host): (usize, &Host)| {
        let mut one = Config::new();
        let is_local = match host {
            Host::Tcp(name) => {
                one.host(name);
                name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
            }
            Host::Unix(path) => {
                one.host_path(path);
                true
            }
        };
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

impl PostgresError {
    /// Whether the engine will answer no other call on this connection either: it has become a standby, or stops.
    fn ends_connection(&self) -> bool {
        let ending = [
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
        ];
        match self {
            Self::TimedOut(_) => true,
            Self::Engine { code, .. } => ending.contains(code),
            _ => false,
        }
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
        for (url, error) in [("https://me:secret@db", UrlError::Invalid), ("postgres:///x", UrlError::NoHost)] {
            let refused = super::hosts(url, Duration::from_secs(2)).unwrap_err();
            assert_eq!(refused, error);
            assert!(!refused.to_string().contains("secret"));
        }
    }
}
