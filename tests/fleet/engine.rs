//! The engines, as Debian packages them, each with its own folder and port; and what is done alike with each.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

use abridge_proxy::store::engine::{OpenError, Options, open};
use abridge_proxy::store::secret::Secrets;
use abridge_proxy::store::{Settings, SharedStore, StoreEngine};

use crate::it::support::tls::Certificate;
use crate::it::support::{Setup, Upstream};

mod postgres;
mod redis;

pub(crate) use postgres::Postgres;
pub(crate) use redis::{Redis, cluster};

/// A server of some engine.
pub(crate) enum Engine {
    Postgres(Postgres),
    Redis(Redis),
}

/// Runs cases, which take an [`Engine`], on each one.
macro_rules! on_each_engine {
    ($($case:ident),* $(,)?) => {
        mod postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    if let Some(engine) = crate::engine::Postgres::start().await {
                        super::$case(crate::engine::Engine::Postgres(engine)).await;
                    }
                }
            )*
        }

        mod redis {
            $(
                #[tokio::test]
                async fn $case() {
                    if let Some(engine) = crate::engine::Redis::start().await {
                        super::$case(crate::engine::Engine::Redis(engine)).await;
                    }
                }
            )*
        }
    };
}
pub(crate) use on_each_engine;

// === impl Engine ===

impl Engine {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "postgres",
            Self::Redis(_) => "redis",
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Postgres(postgres) => postgres.url(),
            Self::Redis(redis) => redis.url(),
        }
    }

    /// The settings of a store here.
    pub(crate) fn settings(&self, namespace: &str) -> Settings {
        let engine = match self {
            Self::Postgres(_) => StoreEngine::Postgres,
            Self::Redis(_) => StoreEngine::Redis,
        };
        let namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
        Settings { engine, namespace, ..Settings::default() }
    }

    /// Makes the tables of this namespace, where there are tables.
    pub(crate) async fn init(&self, namespace: &str) {
        if let Self::Postgres(postgres) = self {
            postgres.init(&self.settings(namespace)).await;
        }
    }

    /// Opens a store here.
    pub(crate) async fn open(&self, secrets: Secrets) -> Result<Box<dyn SharedStore>, OpenError> {
        let (url, settings, clock) = (self.url(), self.settings(""), None);
        open(Options { url, settings, secrets, clock, fresh: None }).await
    }

    /// A process in front of this upstream, with its store here.
    pub(crate) fn replica(&self, upstream: &Upstream) -> Setup {
        self.replica_to(upstream.url())
    }

    /// A process in front of this URL, with its store here.
    pub(crate) fn replica_to(&self, url: String) -> Setup {
        replica_of(self.name(), url, self.url(), "10s")
    }

    /// The same, which waits for its store for five seconds at most.
    pub(crate) fn impatient_replica_to(&self, url: String) -> Setup {
        replica_of(self.name(), url, self.url(), "5s")
    }

    /// Sends a signal to the server and its processes.
    pub(crate) fn signal(&self, name: &str) {
        match self {
            Self::Postgres(postgres) => postgres.signal(name),
            Self::Redis(redis) => redis.signal(name),
        }
    }

    /// Lets no file of the server grow beyond this many bytes, as a full disk does.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        match self {
            Self::Postgres(postgres) => postgres.limit_files(bytes),
            Self::Redis(redis) => redis.limit_files(bytes),
        }
    }

    /// Kills the server.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Postgres(postgres) => postgres.kill(),
            Self::Redis(redis) => redis.kill(),
        }
    }

    /// Starts the server on what it had.
    pub(crate) async fn serve(&mut self) {
        match self {
            Self::Postgres(postgres) => postgres.serve().await,
            Self::Redis(redis) => redis.serve().await,
        }
    }

    /// Starts the server with this certificate, which it takes TLS connections with.
    pub(crate) async fn encrypt(&mut self, certificate: &Certificate) {
        match self {
            Self::Postgres(postgres) => postgres.encrypt(certificate).await,
            Self::Redis(redis) => redis.encrypt(certificate).await,
        }
    }

    /// All that the server holds, in bytes.
    pub(crate) async fn dump(&self) -> Vec<u8> {
        match self {
            Self::Postgres(postgres) => postgres.dump().await,
            Self::Redis(redis) => redis.dump(),
        }
    }

    /// Returns what the rows of payloads are named.
    pub(crate) async fn payload_rows(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Postgres(postgres) => {
                let rows = postgres.client().await.unwrap().query("SELECT key FROM abridge_payloads", &[]).await;
                rows.unwrap().iter().map(|row| row.get(0)).collect()
            }
            Self::Redis(redis) => redis.payload_rows(),
        }
    }

    /// The bodies of texts and summaries, as they are stored.
    pub(crate) async fn bodies(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Postgres(postgres) => {
                let all = "SELECT body FROM abridge_payloads UNION ALL
                    SELECT body FROM abridge_summaries WHERE body IS NOT NULL";
                let rows = postgres.client().await.unwrap().query(all, &[]).await;
                rows.unwrap().iter().map(|row| row.get(0)).collect()
            }
            Self::Redis(redis) => redis.bodies(),
        }
    }

    /// Changes the last byte of each text and summary.
    pub(crate) async fn tamper(&self) {
        let last = "octet_length(body) - 1";
        let sql = format!("set_byte(body, {last}, get_byte(body, {last}) # 1)");
        let lua = "string.sub(body, 1, -2) .. string.char(bit.bxor(string.byte(body, -1), 1))";
        self.rewrite(&sql, lua).await;
    }

    /// Makes each text and summary what `made` makes of it. In Redis, the line before a text stays.
    pub(crate) async fn remake(&self, made: impl Fn(&[u8]) -> Vec<u8>) {
        for body in self.bodies().await {
            let at = if body.starts_with(b"1") { body.iter().position(|byte| *byte == b'\n').unwrap() + 1 } else { 0 };
            let new = [&body[..at], &made(&body[at..])].concat();
            match self {
                Self::Postgres(postgres) => {
                    let client = postgres.client().await.unwrap();
                    for table in ["abridge_payloads", "abridge_summaries"] {
                        let sql = format!("UPDATE {table} SET body = $1 WHERE body = $2");
                        client.execute(&sql, &[&new, &body]).await.unwrap();
                    }
                }
                Self::Redis(redis) => redis.replace(&body, &new),
            }
        }
    }

    /// Flips a bit of each text, summary and request of a namespace; the last one where there are fewer.
    pub(crate) async fn flip(&self, namespace: &str, bit: usize) {
        let bit = bit.min(1 << 30);
        match self {
            Self::Postgres(postgres) => {
                let at = format!("least({bit}, octet_length(body) * 8 - 1)");
                for table in ["payloads", "summaries", "inspected"] {
                    let set = format!("body = set_bit(body, {at}, 1 - get_bit(body, {at}))");
                    postgres.run(&format!("UPDATE abridge_{namespace}_{table} SET {set} WHERE body IS NOT NULL")).await;
                }
            }
            Self::Redis(redis) => redis.flip(namespace, bit),
        }
    }

    /// Adds a note whose name is damaged.
    pub(crate) async fn damage_note(&self, namespace: &str) {
        match self {
            Self::Postgres(postgres) => {
                let note = "(kind, key, value, written, until) VALUES ('window', '\\x01', '', 1, 99999999999)";
                postgres.run(&format!("INSERT INTO abridge_{namespace}_notes {note}")).await;
            }
            Self::Redis(redis) => {
                redis.run(&["HSET", &format!("abridge:{namespace}:{{00}}:notes"), "short", "1 99999999999 x"]);
            }
        }
    }

    /// Makes something else of each text and summary.
    async fn rewrite(&self, sql: &str, lua: &str) {
        match self {
            Self::Postgres(postgres) => {
                for table in ["abridge_payloads", "abridge_summaries"] {
                    postgres.run(&format!("UPDATE {table} SET body = {sql} WHERE body IS NOT NULL")).await;
                }
            }
            Self::Redis(redis) => redis.rewrite(lua),
        }
    }

    /// Removes the payloads, as a backup of before does that is restored.
    pub(crate) async fn lose_payloads(&self) {
        match self {
            Self::Postgres(postgres) => postgres.run("DELETE FROM abridge_payloads").await,
            Self::Redis(redis) => assert_eq!(redis.run(&["FLUSHALL"]), "OK"),
        }
    }
}

/// A process whose store is in the engine at this URL, and that waits for it so long.
pub(crate) fn replica_of(engine: &str, upstream: String, url: String, timeout: &str) -> Setup {
    Setup::to(upstream)
        .with(format!("store.engine = {engine:?}"))
        .with("store.url_env = \"STORE_URL\"")
        .with(format!("store.timeout = {timeout:?}"))
        .with("recall.public_url = \"http://abridge.test\"")
        .with("tokens.ask_upstream = false")
        .environment("STORE_URL", url)
}

// === helpers ===

/// A port below those that the system gives to connections, so that none has it while the server is away. No other run of
/// these tests takes it while this process lives, which holds the UDP port of the same number.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Other runs of the tests begin elsewhere.
    let first = std::process::id() % 100 * 100;
    loop {
        let port = 12_000 + (first + u32::from(NEXT.fetch_add(1, Ordering::Relaxed))) % 20_000;
        let port = u16::try_from(port).unwrap();
        let Ok(held) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) else { continue };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            Box::leak(Box::new(held));
            return port;
        }
    }
}
