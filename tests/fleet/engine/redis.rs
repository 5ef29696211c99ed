//! Redis: a server, a replica, sentinels that watch them, a cluster.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::sleep;

use super::free_port;
use crate::it::support::tls::Certificate;
use crate::it::support::within;

/// A server.
pub(crate) struct Redis {
    folder: TempDir,
    port: u16,
    settings: Vec<String>,
    is_encrypted: bool,
    server: Option<Child>,
}

/// Sentinels that watch a server.
pub(crate) struct Sentinels {
    ports: Vec<u16>,
    processes: Vec<Child>,
    _folder: TempDir,
}

/// The name that sentinels know the server by.
const SERVICE: &str = "main";

// === impl Redis ===

impl Redis {
    /// Starts an empty server; `None`, with a line that says so, if it is not installed.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// As [`Self::start`], with these settings besides.
    pub(crate) async fn start_with(settings: &[&str]) -> Option<Self> {
        if !program().exists() {
            eprintln!("NOT RUN: Redis is not installed (apt-get install redis-server)");
            return None;
        }
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let mut redis = Self { folder, port, settings, is_encrypted: false, server: None };
        redis.serve().await;
        Some(redis)
    }

    /// A replica of this server, in step.
    pub(crate) async fn replica(&self) -> Self {
        let port = self.port.to_string();
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &port]).await.unwrap();
        within("the replica to be in step", async {
            while !self.run(&["INFO", "replication"]).contains("state=online") {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        replica
    }

    /// Starts the server on what it had.
    pub(crate) async fn serve(&mut self) {
        let mut command = server();
        let (open, encrypted) = if self.is_encrypted { (0, self.port) } else { (self.port, 0) };
        command.args(["--bind", "127.0.0.1", "--port", &open.to_string(), "--tls-port", &encrypted.to_string()]);
        command.arg("--dir").arg(self.folder.path());
        command.args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
            "--repl-diskless-sync-delay",
            "0",
        ]);
        command.args(&self.settings);
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        self.server = Some(command.stdout(log).stderr(Stdio::null()).spawn().unwrap());
        within("the engine to answer", async {
            while self.run(&["PING"]) != "PONG" {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// Starts the server with this certificate, which it takes TLS connections with.
    pub(crate) async fn encrypt(&mut self, certificate: &Certificate) {
        let files = [("--tls-cert-file", &certificate.cert), ("--tls-key-file", &certificate.key)];
        for (setting, file) in files {
            self.settings.extend([setting.to_owned(), file.display().to_string()]);
        }
        self.settings.extend(["--tls-auth-clients", "no"].map(str::to_owned));
        self.is_encrypted = true;
        self.serve().await;
    }

    /// Runs a command.
    pub(crate) fn run(&self, command: &[&str]) -> String {
        let options: &[&str] = if self.is_encrypted { &["--tls", "--insecure"] } else { &[] };
        run_at(self.port, &[options, command].concat())
    }

    /// Lets no file of the server grow beyond this many bytes, as a full disk does.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        let pid = self.server.as_ref().unwrap().id();
        let limited =
            Command::new("prlimit").args([format!("--fsize={limit}:unlimited"), format!("--pid={pid}")]).status();
        assert!(limited.unwrap().success());
    }

    /// All that was ever written, as its file has it.
    pub(crate) fn dump(&self) -> Vec<u8> {
        let files = std::fs::read_dir(self.folder.path().join("appendonlydir")).unwrap();
        files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
    }

    /// Returns what the rows of payloads are named.
    pub(crate) fn payload_rows(&self) -> Vec<Vec<u8>> {
        self.blobs("for _, name in ipairs(redis.call('KEYS', 'abridge:{*}:p:*')) do add(string.sub(name, -16)) end")
    }

    /// The bodies of texts, with the lines before them, and of summaries.
    pub(crate) fn bodies(&self) -> Vec<Vec<u8>> {
        self.blobs(
            "for _, name in ipairs(redis.call('KEYS', 'abridge:{*}:p:*')) do add(redis.call('GET', name)) end
             for _, name in ipairs(redis.call('KEYS', 'abridge:{*}:s:*')) do
                 add(redis.call('HGET', name, 'body') or '')
             end",
        )
    }

    /// Returns what a script adds, apart from what is empty.
    fn blobs(&self, script: &str) -> Vec<Vec<u8>> {
        let script = format!(
            "local found = {{}}
             local function add(blob)
                 local digits = string.gsub(blob, '.', function(c) return string.format('%02x', string.byte(c)) end)
                 found[#found + 1] = digits
             end
             {script}
             return table.concat(found, ' ')"
        );
        let said = self.run(&["EVAL", &script, "0"]);
        let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
        said.split_whitespace().map(|blob| blob.as_bytes().chunks(2).map(byte).collect()).collect()
    }

    /// Makes something else of each text and summary.
    pub(crate) fn rewrite(&self, lua: &str) {
        let script = format!(
            "for _, name in ipairs(redis.call('KEYS', 'abridge:{{*}}:p:*')) do
                 local body = redis.call('GET', name)
                 redis.call('SET', name, {lua})
             end
             for _, name in ipairs(redis.call('KEYS', 'abridge:{{*}}:s:*')) do
                 local body = redis.call('HGET', name, 'body')
                 if body then redis.call('HSET', name, 'body', {lua}) end
             end
             return 'OK'"
        );
        assert_eq!(self.run(&["EVAL", &script, "0"]), "OK");
    }

    /// Flips a bit of each text, summary and request of a namespace; the last one where there are fewer.
    pub(crate) fn flip(&self, namespace: &str, bit: usize) {
        let script = format!(
            "local function flipped(body)
                 local from = select(2, string.find(body, '^%d+ %d+ %d+\\n')) or 0
                 local n = math.min({bit}, 8 * (#body - from) - 1)
                 local at = from + math.floor(n / 8) + 1
                 local byte = bit.bxor(string.byte(body, at), bit.lshift(1, n % 8))
                 return string.sub(body, 1, at - 1) .. string.char(byte) .. string.sub(body, at + 1)
             end
             for _, kind in ipairs({{'p', 'i'}}) do
                 for _, name in ipairs(redis.call('KEYS', 'abridge:{namespace}:{{*}}:' .. kind .. ':*')) do
                     redis.call('SET', name, flipped(redis.call('GET', name)))
                 end
             end
             for _, name in ipairs(redis.call('KEYS', 'abridge:{namespace}:{{*}}:s:*')) do
                 local body = redis.call('HGET', name, 'body')
                 if body then redis.call('HSET', name, 'body', flipped(body)) end
             end
             return 'OK'"
        );
        assert_eq!(self.run(&["EVAL", &script, "0"]), "OK");
    }

    /// Makes something else of the text or summary that is this.
    pub(crate) fn replace(&self, old: &[u8], new: &[u8]) {
        let digits = |bytes: &[u8]| bytes.iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"));
        let script = "local function read(digits)
                 return (string.gsub(digits, '..', function(c) return string.char(tonumber(c, 16)) end))
             end
             local old, new = read(ARGV[1]), read(ARGV[2])
             for _, name in ipairs(redis.call('KEYS', 'abridge:{*}:p:*')) do
                 if redis.call('GET', name) == old then redis.call('SET', name, new) end
             end
             for _, name in ipairs(redis.call('KEYS', 'abridge:{*}:s:*')) do
                 if redis.call('HGET', name, 'body') == old then redis.call('HSET', name, 'body', new) end
             end
             return 'OK'";
        assert_eq!(self.run(&["EVAL", script, "0", &digits(old), &digits(new)]), "OK");
    }

    /// How many steps were run.
    pub(crate) fn n_steps(&self) -> u64 {
        let said = self.run(&["INFO", "commandstats"]);
        let line = said.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or_default()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The URL that names this server and then the other one.
    pub(crate) fn url_with(&self, other: &Self) -> String {
        format!("redis://127.0.0.1:{},127.0.0.1:{}", self.port, other.port)
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&self, name: &str) {
        let Some(server) = &self.server else { return };
        let sent = Command::new("kill").arg(format!("-{name}")).arg(server.id().to_string()).status();
        assert!(sent.unwrap().success());
    }

    /// Kills the server.
    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// Sentinels that watch this server and so many replicas.
    pub(crate) async fn watch(&self, n_replicas: usize) -> Sentinels {
        let (folder, mut ports, mut processes) = (tempfile::tempdir().unwrap(), Vec::new(), Vec::new());
        for n in 0..3 {
            let (port, file) = (free_port(), folder.path().join(format!("{n}.conf")));
            let mut lines = format!("port {port}\nbind 127.0.0.1\ndir {}\n", folder.path().display());
            let _written = write!(
                lines,
                "sentinel monitor {SERVICE} 127.0.0.1 {} 2\nsentinel down-after-milliseconds {SERVICE} 500\n\
                 sentinel failover-timeout {SERVICE} 3000\n",
                self.port
            );
            std::fs::write(&file, lines).unwrap();
            processes.push(server().arg(file).arg("--sentinel").stdout(Stdio::null()).spawn().unwrap());
            ports.push(port);
        }
        let sentinels = Sentinels { ports, processes, _folder: folder };
        within("the sentinels to know each other and the replicas", async {
            let knows = |port: &u16| {
                let said = run_at(*port, &["SENTINEL", "MASTER", SERVICE]);
                let field = |name: &str| said.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
                field("num-other-sentinels").as_deref() == Some("2")
                    && field("num-slaves") == Some(n_replicas.to_string())
            };
            while !sentinels.ports.iter().all(knows) {
                sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        sentinels
    }
}

/// Three primaries with a replica each.
pub(crate) async fn cluster() -> Option<Vec<Redis>> {
    let mut nodes = Vec::new();
    for _ in 0..6 {
        // Its port for the other nodes is set, as the usual one may be beyond all ports.
        let bus = free_port().to_string();
        let settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", bus.as_str()];
        nodes.push(Redis::start_with(&settings).await?);
    }
    let mut command = Command::new("/usr/bin/redis-cli");
    command.args(["--cluster", "create"]).args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
    let made = command.args(["--cluster-replicas", "1", "--cluster-yes"]).stdout(Stdio::null()).status();
    assert!(made.unwrap().success(), "redis-cli should have made a cluster");
    within("the cluster to be in step", async {
        let is_well = |node: &Redis| {
            let replication = node.run(&["INFO", "replication"]);
            let is_linked = replication.contains("state=online") || replication.contains("master_link_status:up");
            is_linked && node.run(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        };
        while !nodes.iter().all(is_well) {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    Some(nodes)
}

impl Sentinels {
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        for process in &mut self.processes {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

// === helpers ===

/// Returns what the server at this port answers to a command; what `redis-cli` says where there is none.
fn run_at(port: u16, command: &[&str]) -> String {
    let mut client = Command::new("/usr/bin/redis-cli");
    let ran = client.args(["-p", &port.to_string()]).args(command).stderr(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&ran.stdout).trim().to_owned()
}

/// The server's program, which may be another that speaks its protocol.
fn program() -> PathBuf {
    std::env::var_os("ABRIDGE_REDIS_SERVER").map_or_else(|| "/usr/bin/redis-server".into(), PathBuf::from)
}

fn server() -> Command {
    // What a shell ignores, the program that takes its place ignores too: a file that cannot grow is an error to it, as on a
    // full disk, and not its end.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(program());
    command
}
