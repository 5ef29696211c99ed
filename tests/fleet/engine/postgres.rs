//! PostgreSQL as Debian packages it, with its own folder and port.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use abridge_proxy::store::Settings;
use abridge_proxy::store::postgres::init;
use tempfile::TempDir;
use tokio::time::sleep;

use super::free_port;
use crate::it::support::tls::Certificate;
use crate::it::support::within;

/// A database server.
pub(crate) struct Postgres {
    bin: PathBuf,
    folder: TempDir,
    user: Option<User>,
    port: u16,
    settings: Vec<String>,
    server: Option<Child>,
}

/// PgBouncer in front of a server, in transaction mode.
pub(crate) struct Pooler {
    port: u16,
    process: Child,
    _folder: TempDir,
}

/// A user who is not root: the server refuses to run as root.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

// === impl Postgres ===

impl Postgres {
    /// Starts a server with an empty database; `None`, with a line that says so, if it is not installed.
    pub(crate) async fn start() -> Option<Self> {
        let Some(bin) = bin() else {
            eprintln!("NOT RUN: PostgreSQL is not installed (apt-get install postgresql)");
            return None;
        };
        let mut postgres = Self::new(bin, Vec::new());
        let data = postgres.data();
        let made = postgres
            .command("initdb")
            .args(["-A", "trust", "-U", "abridge", "--no-sync", "-E", "UTF8", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status();
        assert!(made.unwrap().success(), "initdb should have made a database");
        postgres.serve().await;
        Some(postgres)
    }

    /// Without data, and not started.
    fn new(bin: PathBuf, settings: Vec<String>) -> Self {
        let user = rustix::process::geteuid().is_root().then(user);
        Self { bin, folder: folder_of(user), user, port: free_port(), settings, server: None }
    }

    /// A server that has what this one has, and confirms what it commits from now on.
    pub(crate) async fn standby(&self) -> Self {
        let from = format!("host=127.0.0.1 port={} user=abridge application_name=s1", self.port);
        let mut standby = Self::new(self.bin.clone(), vec![format!("primary_conninfo={from}")]);
        let data = standby.data();
        let mut backup = standby.command("pg_basebackup");
        let made = backup.args(["-R", "-X", "stream", "--no-sync", "-c", "fast", "-d", &from, "-D"]).arg(data).status();
        assert!(made.unwrap().success(), "pg_basebackup should have made a standby");
        standby.serve().await;
        self.run("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (s1)'").await;
        self.run("SELECT pg_reload_conf()").await;
        let in_step = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'";
        within("the standby to be in step", async {
            while self.number(in_step).await == 0 {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        standby
    }

    /// Starts a pooler; `None`, with a line that says so, if it is not installed.
    pub(crate) async fn pooler(&self) -> Option<Pooler> {
        if !Path::new("/usr/sbin/pgbouncer").exists() {
            eprintln!("NOT RUN: PgBouncer is not installed (apt-get install pgbouncer)");
            return None;
        }
        let (folder, port) = (folder_of(self.user), free_port());
        let (users, settings) = (folder.path().join("users"), folder.path().join("pgbouncer.ini"));
        std::fs::write(&users, "\"abridge\" \"\"\n").unwrap();
        let lines = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 3\n",
            self.port,
            users.display()
        );
        std::fs::write(&settings, lines).unwrap();
        let mut command = Command::new("/usr/sbin/pgbouncer");
        if let Some(User { uid, gid }) = self.user {
            command.uid(uid).gid(gid);
        }
        let pooler = command.arg("-q").arg(settings).current_dir("/").stderr(Stdio::null()).spawn().unwrap();
        let pooler = Pooler { port, process: pooler, _folder: folder };
        within("the pooler to answer", async {
            while tokio_postgres::connect(&pooler.url(), tokio_postgres::NoTls).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        Some(pooler)
    }

    /// Starts the server with this certificate, which it takes TLS connections with.
    pub(crate) async fn encrypt(&mut self, certificate: &Certificate) {
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| self.folder.path().join(name));
        for (from, to) in [(&certificate.cert, &cert), (&certificate.key, &key)] {
            std::fs::copy(from, to).unwrap();
            std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o600)).unwrap();
            if let Some(User { uid, gid }) = self.user {
                std::os::unix::fs::chown(to, Some(uid), Some(gid)).unwrap();
            }
        }
        self.settings.push("ssl=on".to_owned());
        self.settings.push(format!("ssl_cert_file={}", cert.display()));
        self.settings.push(format!("ssl_key_file={}", key.display()));
        self.serve().await;
    }

    /// Starts the server on what it had.
    pub(crate) async fn serve(&mut self) {
        self.server = Some(self.spawn());
        within("the engine to answer", async {
            while self.client().await.is_none() {
                // It ends where a process of a killed server has not ended yet.
                if self.server.as_mut().is_some_and(|server| server.try_wait().unwrap().is_some()) {
                    self.server = Some(self.spawn());
                }
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    fn spawn(&self) -> Child {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
        for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "max_connections=500"] {
            command.args(["-c", setting]);
        }
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    /// Makes the tables.
    pub(crate) async fn init(&self, settings: &Settings) {
        init(&self.url(), settings).await.unwrap();
    }

    /// A connection of the test's own.
    pub(crate) async fn client(&self) -> Option<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    /// Runs statements.
    pub(crate) async fn run(&self, statements: &str) {
        self.client().await.unwrap().batch_execute(statements).await.unwrap();
    }

    /// The first cell of the first row, a number.
    pub(crate) async fn number(&self, statement: &str) -> i64 {
        self.client().await.unwrap().query_one_scalar(statement, &[]).await.unwrap()
    }

    /// All rows of all tables, as text and with the bytes that their hexadecimal digits encode.
    pub(crate) async fn dump(&self) -> Vec<u8> {
        let client = self.client().await.unwrap();
        let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'";
        let mut dump = Vec::new();
        for table in client.query(tables, &[]).await.unwrap() {
            let rows = format!("SELECT t::text FROM {} t", table.get::<_, String>(0));
            for row in client.query(&rows, &[]).await.unwrap() {
                let row: String = row.get(0);
                dump.extend(row.as_bytes());
                for blob in row.split(r"\\x").skip(1) {
                    let digits: Vec<_> = blob.bytes().take_while(u8::is_ascii_hexdigit).collect();
                    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
                    dump.extend(digits.chunks_exact(2).map(byte));
                }
            }
        }
        dump
    }

    pub(crate) fn url(&self) -> String {
        self.url_before("")
    }

    /// The URL that names this server and then the other one.
    pub(crate) fn url_with(&self, other: &Self) -> String {
        self.url_before(&format!(",127.0.0.1:{}", other.port))
    }

    fn url_before(&self, others: &str) -> String {
        format!("postgres://abridge@127.0.0.1:{}{others}/postgres", self.port)
    }

    /// No file of the server can become longer than this, as on a full disk; `None` for no limit.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        for pid in self.processes() {
            let limit = [format!("--fsize={limit}:unlimited"), format!("--pid={pid}")];
            let mut command = Command::new("prlimit");
            if let Some(User { uid, gid }) = self.user {
                command.uid(uid).gid(gid);
            }
            // One may have ended by itself.
            let _limited = command.args(limit).stderr(Stdio::null()).status();
        }
    }

    /// The server's process and its children.
    fn processes(&self) -> Vec<u32> {
        let server = self.server.as_ref().map(Child::id);
        server.into_iter().chain(server.into_iter().flat_map(children)).collect()
    }

    /// Sends a signal to the server and its processes.
    pub(crate) fn signal(&self, name: &str) {
        for pid in self.processes() {
            send_signal(name, pid);
        }
    }

    /// Kills the server.
    pub(crate) fn kill(&mut self) {
        if let Some(server) = &self.server {
            // One that it starts meanwhile would live on.
            send_signal("STOP", server.id());
        }
        self.signal("KILL");
        if let Some(mut server) = self.server.take() {
            server.wait().unwrap();
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        if let Some(User { uid, gid }) = self.user {
            command.uid(uid).gid(gid);
        }
        command.env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        command
    }
}

impl Pooler {
    pub(crate) fn url(&self) -> String {
        format!("postgres://abridge@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.signal("CONT");
        self.kill();
    }
}

// === helpers ===

/// A folder that this user may write to.
fn folder_of(user: Option<User>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    if let Some(User { uid, gid }) = user {
        std::os::unix::fs::chown(folder.path(), Some(uid), Some(gid)).unwrap();
    }
    folder
}

/// The folder of the newest installed version.
fn bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let has_both = |bin: &PathBuf| ["initdb", "postgres"].iter().all(|program| bin.join(program).exists());
    versions.filter_map(|version| Some(version.ok()?.path().join("bin"))).filter(has_both).max()
}

/// The user `postgres`, or else no one.
fn user() -> User {
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let of = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
        Some(User { uid: ids.next()??, gid: ids.next()?? })
    };
    of("postgres").or_else(|| of("nobody")).expect("a user who is not root")
}

fn send_signal(name: &str, pid: u32) {
    // It may have ended by itself.
    let _sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).stderr(Stdio::null()).status();
}

fn children(parent: u32) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let is_child = |process: &Path| {
        let stat = std::fs::read_to_string(process.join("stat")).ok()?;
        // After the name, which may hold anything: the state, and the parent.
        let (_, behind) = stat.rsplit_once(')')?;
        let of: u32 = behind.split_whitespace().nth(1)?.parse().ok()?;
        (of == parent).then_some(())
    };
    let processes = processes.filter_map(|process| Some(process.ok()?.path()));
    processes
        .filter(|process| is_child(process).is_some())
        .filter_map(|process| process.file_name()?.to_str()?.parse().ok())
        .collect()
}
