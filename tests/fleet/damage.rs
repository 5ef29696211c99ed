//! Rows that no version has written, tables of others, and servers that refuse: requests go on, one row hides no other, and
//! nothing waits for ever.

use std::process::Command;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::engine::{Engine, Postgres, Redis};
use crate::it::support::offloads::{recalls, with_results};
use crate::it::support::summarizer::{INSTRUCTION, Summarizer, talk};
use crate::it::support::{Abridge, binary};
use crate::replicas::{SHORT, ask, get, text};

/// `store.timeout` is five seconds, and a request may wait for each of two connections.
const LONGEST: Duration = Duration::from_secs(20);

struct Scene {
    engine: Engine,
    upstream: Summarizer,
    abridge: Abridge,
    handle: String,
}

impl Scene {
    /// A text and a summary are stored.
    async fn new(engine: Engine) -> Self {
        engine.init("").await;
        let upstream = Summarizer::playing([]).await;
        let setup =
            engine.impatient_replica_to(upstream.url().to_owned()).with(SHORT).with("tokens.counter = \"estimate\"");
        let setup = setup.with(format!("summarize.instruction = {INSTRUCTION:?}"));
        let abridge = setup.with("summarize.trigger = { tokens = 900 }").with("inspect.keep = 5").start().await;
        let mut scene = Self { engine, upstream, abridge, handle: String::new() };
        scene.handle = recalls(&scene.send(0).await).pop().unwrap();
        assert_eq!(ask(&scene.abridge, talk("a", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
        scene
    }

    async fn send(&self, seed: usize) -> Vec<u8> {
        let began = Instant::now();
        let reply = timeout(2 * LONGEST, ask(&self.abridge, with_results(&[text(seed)]))).await.unwrap();
        assert!(reply.head.status() == 200 && began.elapsed() < LONGEST, "{:?}", began.elapsed());
        self.upstream.chats().pop().unwrap().body.to_vec()
    }

    /// Requests go on, a recall is answered, and the commands end.
    async fn lives(&self, damage: &str, seed: usize) {
        self.send(0).await;
        self.send(seed).await;
        assert_eq!(ask(&self.abridge, talk("a", 3)).await.head.status(), 200, "{damage}");
        assert_eq!(ask(&self.abridge, talk(&format!("b{seed}"), 3)).await.head.status(), 200, "{damage}");
        let recalled = timeout(LONGEST, get(&self.abridge, &self.handle)).await.unwrap();
        let status = recalled.head.status();
        assert!([200, 404, 500, 503].contains(&status), "{damage}: {status}");
        assert!(status != 200 || recalled.body == text(0), "{damage}");
        let said: Vec<_> = ["verify", "sweep", "ls"].iter().map(|command| self.store(command)).collect();
        for path in ["/abridge/readyz", "/abridge/metrics"] {
            assert_eq!(timeout(LONGEST, get(&self.abridge, path)).await.unwrap().head.status(), 200, "{damage}");
        }
        // One row hides no other, unless a whole table is not what it was.
        let lists = said.iter().all(|said| said.contains("Some(0)") || said.contains("Some(1)"));
        assert!(lists || IS_NO_STORE.iter().any(|part| damage.contains(part)), "{damage}: {said:#?}");
        let log = self.abridge.stderr().join("\n");
        assert!(!log.contains("panicked"), "{damage}: {log}");
    }

    /// Edits are made again soon.
    async fn recovers(&self, seed: usize) {
        let began = Instant::now();
        while recalls(&self.send(seed).await).is_empty() {
            assert!(began.elapsed() < LONGEST, "{:?}", self.abridge.stderr());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn store(&self, command: &str) -> String {
        let mut process = Command::new("timeout");
        process.args(["60", binary(), "store", command, "--config"]).arg(self.abridge.config());
        let ran = process.env("STORE_URL", self.engine.url()).output().unwrap();
        let said = [ran.stdout, ran.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(ran.status.code().is_some_and(|code| code < 100) && !said.contains("panicked"), "{command}: {said}");
        format!("{command} {:?}: {said}", ran.status.code())
    }
}

/// Damage after which nothing is listed.
const IS_NO_STORE: [&str; 7] = [
    "'usual', function(name) call('DEL'",
    "TYPE text",
    "DROP TABLE",
    "DROP NOT NULL",
    "read_only",
    "statement_timeout",
    "search_path",
];

const POSTGRES: [&str; 17] = [
    "UPDATE abridge_payloads SET body = substr(body, 1, 10)",
    "UPDATE abridge_payloads SET body = ''",
    "UPDATE abridge_summaries SET body = ''",
    "UPDATE abridge_payloads SET bytes = -1, stored_bytes = -5, created = -9",
    "UPDATE abridge_payloads SET used = 9223372036854775807, due = 9223372036854775807",
    "UPDATE abridge_payloads SET used = -9223372036854775808",
    "UPDATE abridge_payloads SET extra = 9223372036854775807, used = 1",
    "UPDATE abridge_summaries SET used = 9223372036854775807",
    "INSERT INTO abridge_payloads VALUES ('\\x01', '\\x02', 1, 1, 1, 1, 1, 99999999999, 70000)",
    "INSERT INTO abridge_payloads VALUES ('\\x02', '', 1, 1, 99999999999, 99999999999, 1, 99999999999, NULL)",
    "INSERT INTO abridge_summaries VALUES ('\\x01', '\\x02', '\\x03', NULL, NULL, 99999999999)",
    "INSERT INTO abridge_notes VALUES ('window', '\\x01', '', 99999999999, 99999999999)",
    "INSERT INTO abridge_meta VALUES ('sweep', NULL, NULL) ON CONFLICT (name) DO UPDATE SET number = NULL",
    "ALTER TABLE abridge_payloads ALTER used DROP NOT NULL, ALTER bytes DROP NOT NULL, ALTER body DROP NOT NULL;
     INSERT INTO abridge_payloads (key, due, extra, created, stored_bytes) VALUES ('\\x0102030405060708090a0b0c0d0e0f10', 99999999999, 0, 0, 0)",
    "DELETE FROM abridge_payloads; DELETE FROM abridge_summaries",
    "ALTER TABLE abridge_payloads ALTER used TYPE text",
    "DROP TABLE abridge_summaries",
];

#[tokio::test]
async fn requests_go_on_beside_damaged_rows_of_postgres() {
    let Some(postgres) = Postgres::start().await else { return };
    let scene = Scene::new(Engine::Postgres(postgres)).await;
    let Engine::Postgres(postgres) = &scene.engine else { unreachable!() };
    for (n, damage) in POSTGRES.iter().enumerate() {
        postgres.run(damage).await;
        scene.lives(damage, 100 + n).await;
    }
}

const REDIS: [&str; 17] = [
    "each('usual', function(name) for _, key in ipairs(call('ZRANGE', name, 0, -1)) do call('ZADD', name, 5, key) end end)",
    "each('p:*', function(name) call('SET', name, 'x') end)",
    "each('p:*', function(name) call('SET', name, '1 2 3\\n') end)",
    "each('p:*', function(name) call('SET', name, '99999999999999999999 1e999 99999999\\nxx') end)",
    "each('p:*', function(name) call('DEL', name) end)",
    "each('p:*', function(name) call('DEL', name); call('LPUSH', name, 'x') end)",
    "each('s:*', function(name) call('HSET', name, 'body', '') end)",
    "each('s:*', function(name) call('HSET', name, 'until', 'x', 'holder', 'y') end)",
    "each('usual', function(name) call('ZADD', name, -99999999999, 'short') end)",
    "each('summaries', function(name) call('ZADD', name, 99999999999, 'short') end)",
    "each('r:*', function(name) call('ZADD', name, 99999999999, 'short') end)",
    "each('counts', function(name) call('HSET', name, 'stored', 'x', 'summary_bytes', '-7', 'bytes', '') end)",
    "each('owners', function(name) call('HSET', name, 'x', 'y') end)",
    "each('mark', function(name) call('HSET', base(name) .. 'notes', string.rep('n', 16) .. 'window', 'x') end)",
    "each('mark', function(name) call('ZADD', base(name) .. 'inspected', 1, 'x') end)",
    "each('b:*', function(name) call('SET', name, 'short') end)",
    "each('usual', function(name) call('DEL', name); call('SET', name, 'x') end)",
];

#[tokio::test]
async fn requests_go_on_beside_damaged_keys_of_redis() {
    let Some(redis) = Redis::start().await else { return };
    let scene = Scene::new(Engine::Redis(redis)).await;
    let Engine::Redis(redis) = &scene.engine else { unreachable!() };
    for (n, damage) in REDIS.iter().enumerate() {
        let script = format!(
            "local call = redis.call
             local function base(name) return string.match(name, '^abridge:{{..}}:') end
             local function each(kind, change)
                 for _, name in ipairs(call('KEYS', 'abridge:{{*}}:' .. kind)) do change(name) end
             end
             {damage}
             return 'OK'"
        );
        assert_eq!(redis.run(&["EVAL", &script, "0"]), "OK", "{damage}");
        scene.lives(damage, 100 + n).await;
    }
}

#[tokio::test]
async fn a_postgres_that_refuses_or_hangs_in_a_statement_delays_and_stops_no_request() {
    let Some(postgres) = Postgres::start().await else { return };
    let scene = Scene::new(Engine::Postgres(postgres)).await;
    let Engine::Postgres(postgres) = &scene.engine else { unreachable!() };
    let set = async |is_set: &str| {
        let client = postgres.client().await.unwrap();
        client.batch_execute("SET default_transaction_read_only = off; SET statement_timeout = 0").await.unwrap();
        client.batch_execute(&format!("ALTER DATABASE postgres {is_set}")).await.unwrap();
        let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name = 'abridge'";
        client.query(others, &[]).await.unwrap();
    };
    for (n, setting) in ["default_transaction_read_only", "statement_timeout", "search_path"].into_iter().enumerate() {
        let value = ["on", "1", "nowhere"][n];
        set(&format!("SET {setting} = {value}")).await;
        scene.lives(setting, 200 + n).await;
        set(&format!("RESET {setting}")).await;
        scene.recovers(210 + n).await;
    }
    let client = postgres.client().await.unwrap();
    client
        .batch_execute("BEGIN; LOCK TABLE abridge_payloads, abridge_summaries IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    for seed in 220..225 {
        scene.send(seed).await;
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    scene.recovers(230).await;
    assert_eq!(get(&scene.abridge, &scene.handle).await.body, text(0));
}
