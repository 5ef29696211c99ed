//! The files of `examples/compose`, without containers: their variables, their balancer, and the engines of this machine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::sleep;

use crate::engine::{Engine, free_port, on_each_engine};
use crate::it::support::offloads::{long_text, recalls, with_results};
use crate::it::support::summarizer::Summarizer;
use crate::it::support::wire::Reply;
use crate::it::support::{Abridge, Setup, Wire, binary, chat, request, within};

const HAPROXY: &str = "/usr/sbin/haproxy";
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/compose");

/// The balancer of the examples, in front of the processes.
struct Balancer {
    address: SocketAddr,
    process: Child,
    _folder: TempDir,
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _ended = self.process.wait();
    }
}

impl Balancer {
    /// Starts it at this address.
    async fn start(address: SocketAddr, processes: &[&Abridge]) -> Self {
        let example = std::fs::read_to_string(format!("{EXAMPLES}/haproxy.cfg")).unwrap();
        let servers =
            processes.iter().enumerate().map(|(n, process)| format!("    server s{n} {} check\n", process.address()));
        let template = example.lines().find(|line| line.contains("server-template")).unwrap();
        let settings = example
            .replace("bind :8787", &format!("bind {address}"))
            .replace(&format!("{template}\n"), &servers.collect::<String>());
        assert!(settings.contains(&address.to_string()) && !settings.contains("server-template"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("haproxy.cfg");
        std::fs::write(&file, settings).unwrap();
        let mut command = Command::new(HAPROXY);
        command.arg("-db").arg("-f").arg(file).stdout(Stdio::null()).stderr(Stdio::null());
        let balancer = Self { address, process: command.spawn().unwrap(), _folder: folder };
        within("the balancer to reach a process", async {
            while tokio::net::TcpStream::connect(address).await.is_err()
                || balancer.get("/abridge/readyz").await.head.status() != 200
            {
                sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        balancer
    }

    async fn send(&self, bytes: impl AsRef<[u8]>) -> Reply {
        let mut client = Wire::connect(self.address).await;
        client.send(bytes).await;
        client.reply().await
    }

    async fn get(&self, target: &str) -> Reply {
        self.send(request("GET", target, &[])).await
    }
}

/// The variables that a compose file has for abridge, with what is in a container there.
fn variables(engine: &Engine, balancer: SocketAddr, upstream: &str) -> BTreeMap<String, String> {
    let file = match engine {
        Engine::Postgres(_) => "fleet.yaml",
        Engine::Redis(_) => "fleet_redis.yaml",
    };
    let file = std::fs::read_to_string(format!("{EXAMPLES}/{file}")).unwrap();
    let is_ours = |name: &str| name.starts_with("ABRIDGE__") || name.starts_with("STORE_");
    let pairs = file.lines().filter_map(|line| line.trim().split_once(": ")).filter(|(name, _)| is_ours(name));
    let mut variables: BTreeMap<_, _> =
        pairs.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect();
    for (name, value) in [
        ("STORE_URL", engine.url()),
        ("STORE_SECRET", "5e".repeat(32)),
        ("ABRIDGE__RECALL__PUBLIC_URL", format!("http://{balancer}")),
        ("ABRIDGE__UPSTREAM__URL", upstream.to_owned()),
    ] {
        assert!(variables.insert(name.to_owned(), value).is_some(), "the file has {name}");
    }
    variables
}

async fn the_parts_of_the_compose_file_serve_as_one_and_without_one_of_them(engine: Engine) {
    if !Path::new(HAPROXY).exists() {
        return eprintln!("NOT RUN: HAProxy is not installed (apt-get install haproxy)");
    }
    let whole = Command::new(HAPROXY).args(["-c", "-f"]).arg(format!("{EXAMPLES}/haproxy.cfg")).output().unwrap();
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));

    let upstream = Summarizer::playing([]).await;
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let variables = variables(&engine, address, upstream.url());
    if let Engine::Postgres(_) = engine {
        let made = Command::new(binary()).args(["store", "init"]).envs(&variables).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let process = || {
        variables.iter().fold(Setup::to(upstream.url()), |setup, (name, value)| setup.environment(name, value)).start()
    };
    let (one, other) = tokio::join!(process(), process());
    let balancer = Balancer::start(address, &[&one, &other]).await;
    for n in 0..20 {
        if n == 10 {
            for process in [&one, &other] {
                process.says("truncated 2 results", 0).await;
            }
            one.signal("KILL");
            one.exit().await;
        }
        let texts = [long_text(2 * n), long_text(2 * n + 1)];
        let reply = balancer.send(chat(with_results(&texts))).await;
        assert_eq!(reply.head.status(), 200, "{n}");
        let sent = upstream.chats().pop().unwrap();
        let handles = recalls(&sent.body);
        assert!(!handles.is_empty() && sent.text().contains(&format!("http://{address}/abridge/recall/")), "{n}");
        for handle in handles {
            let recalled = balancer.get(&handle).await;
            assert!(recalled.head.status() == 200, "{n}: {}", recalled.head.status());
            assert!(texts.iter().any(|text| recalled.body == text.as_bytes()), "{n}");
        }
    }
}

on_each_engine!(the_parts_of_the_compose_file_serve_as_one_and_without_one_of_them);
