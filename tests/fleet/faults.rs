//! An engine that is away, hangs, is killed, or has lost what it had: requests go on, and what is missing is written again.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use abridge_proxy::store::Settings;
use bytes::Bytes;
use tokio::time::sleep;

use crate::engine::{Engine, Postgres, Redis, on_each_engine};
use crate::it::support::offloads::{long_text, recalls, with_results};
use crate::it::support::summarizer::Summarizer;
use crate::it::support::{Abridge, Upstream, binary, is_static, within};
use crate::relay::{Mode, Relay};
use crate::replicas::{SHORT, ask, get, text};

/// How long it takes at most until edits are made again: five seconds, and what a busy machine adds.
const RECOVERY: Duration = Duration::from_secs(15);

/// A request that waits for the engine waits longer than this, as `store.timeout` is five seconds. One that does not takes
/// less, also on a busy machine.
const WAIT: Duration = Duration::from_millis(4900);

/// A request waits for an engine that does not answer once for each of the two connections, and not for ever.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// An engine, and a process before an upstream.
struct Scene {
    engine: Engine,
    upstream: Summarizer,
    abridge: Abridge,
}

impl Scene {
    async fn new(engine: Engine) -> Self {
        let url = engine.url();
        Self::at(engine, url, "").await
    }

    /// The process finds the engine at this URL, and has this setting besides.
    async fn at(engine: Engine, url: String, line: &str) -> Self {
        engine.init("").await;
        let upstream = Summarizer::playing([]).await;
        // Where nothing is counted, a request takes hardly longer than its bytes.
        let setup = engine.impatient_replica_to(upstream.url().to_owned());
        let setup = setup.with("tokens.counter = \"estimate\"").with(SHORT);
        let abridge = setup.with(line).environment("STORE_URL", url).start().await;
        Self { engine, upstream, abridge }
    }

    /// Returns what the upstream gets of this result, and how long the client waits.
    async fn send(&self, seed: usize) -> (Bytes, Duration) {
        let began = Instant::now();
        let reply = ask(&self.abridge, with_results(&[text(seed)])).await;
        let waited = began.elapsed();
        assert_eq!(reply.head.status(), 200, "no client sees that the engine is away");
        (self.upstream.chats().pop().unwrap().body, waited)
    }

    /// The request goes on as it came.
    async fn goes_on_whole(&self, seed: usize) -> Duration {
        let (sent, waited) = self.send(seed).await;
        assert_eq!(sent, with_results(&[text(seed)]).as_bytes());
        waited
    }

    /// Requests go on as they came, and do not wait for the engine.
    async fn go_on_without_waiting(&self, seeds: Range<usize>) {
        let (n, mut waited) = (seeds.len(), Vec::new());
        for seed in seeds {
            waited.push(self.goes_on_whole(seed).await);
        }
        let n_quick = waited.iter().filter(|waited| **waited < WAIT).count();
        assert!(n_quick >= n - 1, "they wait for the engine: {waited:?}");
    }

    /// Edits are made again soon.
    async fn recovers(&self, seed: usize) -> String {
        let began = Instant::now();
        loop {
            let (sent, _) = self.send(seed).await;
            assert!(began.elapsed() < RECOVERY, "{:?}", began.elapsed());
            if let Some(handle) = recalls(&sent).pop() {
                return handle;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn metrics(&self) -> String {
        String::from_utf8(get(&self.abridge, "/abridge/metrics").await.body.to_vec()).unwrap()
    }

    async fn readyz(&self) -> String {
        let reply = get(&self.abridge, "/abridge/readyz").await;
        assert_eq!(reply.head.status(), 200);
        String::from_utf8(reply.body.to_vec()).unwrap()
    }
}

async fn a_killed_engine_delays_no_request_and_loses_nothing(engine: Engine) {
    let mut scene = Scene::new(engine).await;
    let handle = recalls(&scene.send(0).await.0).pop().unwrap();
    assert_eq!(scene.readyz().await, "ready\n");
    for round in 1..4 {
        scene.engine.kill();
        scene.go_on_without_waiting(10 * round..10 * round + 6).await;
        assert_eq!(scene.readyz().await, "ready, degraded: store\n");
        assert!(scene.metrics().await.contains("abridge_store_up 0\n"));
        // Everything that was stored before stays taken out.
        assert_eq!(recalls(&scene.send(0).await.0), [handle.as_str()]);
        scene.engine.serve().await;
        let recovered = scene.recovers(10 * round).await;
        for (target, seed) in [(&handle, 0), (&recovered, 10 * round)] {
            assert_eq!(get(&scene.abridge, target).await.body, text(seed), "{round}");
        }
        assert_eq!(scene.readyz().await, "ready\n");
        // After a new connection it is asked for anew, and known from then on.
        assert_eq!(recalls(&scene.send(0).await.0), [handle.as_str()]);
    }
    let metrics = scene.metrics().await;
    assert!(metrics.contains("abridge_store_up 1\n"), "{metrics}");
    assert!(metrics.contains("abridge_store_reconnects_total 3\n"), "{metrics}");
    let failed = scene.abridge.said("the store failed", 1).await;
    assert!((1..=6).contains(&failed.len()), "once for each time: {failed:#?}");
}

async fn an_engine_that_hangs_is_waited_for_once(engine: Engine) {
    let scene = Scene::new(engine).await;
    let handle = recalls(&scene.send(0).await.0).pop().unwrap();
    scene.engine.signal("STOP");
    let waited = scene.goes_on_whole(1).await;
    assert!(waited >= WAIT, "{waited:?}: the engine does not hang");
    assert!(waited < LONGEST_WAIT, "{waited:?}: the request waits longer than it may");
    scene.go_on_without_waiting(2..8).await;
    for _ in 0..6 {
        assert_eq!(recalls(&scene.send(0).await.0), [handle.as_str()], "what is known stays taken out");
    }
    sleep(Duration::from_secs(3)).await;
    scene.engine.signal("CONT");
    scene.recovers(1).await;
    // A connection that was opened while the engine hung may still end with its time-out.
    let reads = async {
        while get(&scene.abridge, &handle).await.body != text(0) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    within("the text to be read again", reads).await;
}

async fn what_an_engine_has_lost_is_written_again_under_the_same_handle(engine: Engine) {
    let mut scene = Scene::new(engine).await;
    let first = scene.send(0).await.0;
    let handle = recalls(&first).pop().unwrap();
    let other = scene.engine.replica_to(scene.upstream.url().to_owned()).start().await;
    scene.engine.lose_payloads().await;
    // Redis has lost its marks, too, so a connection may be given up first.
    assert_ne!(get(&other, &handle).await.head.status(), 200);
    // As after a backup was restored: the engine was away.
    scene.engine.kill();
    scene.engine.serve().await;
    let reads_again = async {
        while get(&other, &handle).await.body != text(0) {
            assert_eq!(scene.send(0).await.0, first, "the bytes stay");
            sleep(Duration::from_millis(50)).await;
        }
    };
    within("the text to be written again", reads_again).await;
}

async fn an_engine_that_is_away_at_start_is_waited_for_unless_the_settings_have_the_secret(mut engine: Engine) {
    engine.init("own").await;
    engine.init("given").await;
    engine.kill();
    let upstream = Summarizer::playing([]).await;
    let setup = |namespace: &str| {
        engine.replica_to(upstream.url().to_owned()).with(format!("store.namespace = {namespace:?}")).with(SHORT)
    };
    let given = setup("given")
        .with("store.secret_env = \"STORE_SECRET\"")
        .environment("STORE_SECRET", "0c".repeat(32))
        .start()
        .await;
    let waits = tokio::spawn(setup("own").start());
    let scene = Scene { upstream, abridge: given, engine };
    assert_eq!(scene.readyz().await, "ready, degraded: store\n");
    scene.goes_on_whole(0).await;
    assert!(!waits.is_finished(), "it has no secret to name anything with");
    let Scene { mut engine, upstream, abridge } = scene;
    engine.serve().await;
    let scene = Scene { engine, upstream, abridge };
    scene.recovers(0).await;
    let own = within("the other to start", waits).await.unwrap();
    assert_eq!(get(&own, "/abridge/readyz").await.body, "ready\n");
}

#[tokio::test]
async fn doctor_says_what_the_engine_promises_and_what_is_wrong_with_it() {
    let Some(mut postgres) = Postgres::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("proxy.toml");
    let lines = "store = { engine = \"postgres\", url_env = \"STORE_URL\", timeout = \"1s\" }\n\
                 recall.public_url = \"http://a.test\"\nupstream.url = \"http://127.0.0.1:1/v1\"\nserver.listen = \"127.0.0.1:0\"\n";
    std::fs::write(&config, lines).unwrap();
    let doctor = |postgres: &Postgres| {
        let mut command = Command::new(binary());
        command.args(["doctor", "--config"]).arg(&config).env("STORE_URL", postgres.url());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(doctor(&postgres).contains("abridge store init"));
    postgres.init(&Settings::default()).await;
    let said = doctor(&postgres);
    assert!(said.contains("survives a crash, and not the loss of its disk"), "{said}");
    postgres.run("ALTER SYSTEM SET default_transaction_read_only = on").await;
    postgres.run("SELECT pg_reload_conf()").await;
    let said = doctor(&postgres);
    assert!(said.contains("the engine is read-only; turn writes on there"), "{said}");
    postgres.kill();
    let said = doctor(&postgres);
    assert!(said.contains("Connection refused"), "{said}");
}

#[tokio::test]
async fn a_postgres_that_can_be_read_and_not_written_is_waited_for_once_and_what_it_has_stays_taken_out() {
    let Some(postgres) = Postgres::start().await else { return };
    let scene = Scene::new(Engine::Postgres(postgres)).await;
    let handle = recalls(&scene.send(0).await.0).pop().unwrap();
    let Engine::Postgres(postgres) = &scene.engine else { unreachable!() };
    let set = async |on: &str| {
        postgres.run(&format!("ALTER SYSTEM SET default_transaction_read_only = {on}")).await;
        postgres.run("SELECT pg_reload_conf()").await;
    };
    let other = postgres.client().await.unwrap();
    for (round, is_locked) in [(1, true), (2, false)] {
        // After a new connection it is asked for anew, and known from then on.
        assert_eq!(recalls(&scene.send(0).await.0), [handle.as_str()]);
        if is_locked {
            other.batch_execute("BEGIN; LOCK TABLE abridge_payloads IN SHARE MODE").await.unwrap();
            assert!((WAIT..LONGEST_WAIT).contains(&scene.goes_on_whole(1).await));
        } else {
            set("on").await;
            scene.goes_on_whole(1).await;
        }
        for pause in 1..4 {
            // Longer than until the next attempt to connect.
            sleep(Duration::from_secs(1)).await;
            scene.go_on_without_waiting(100 * round + 10 * pause..100 * round + 10 * pause + 4).await;
            assert_eq!(recalls(&scene.send(0).await.0), [handle.as_str()], "what is known stays taken out");
            assert_eq!(get(&scene.abridge, &handle).await.body, text(0));
        }
        let n = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'abridge'";
        let n = postgres.number(n).await;
        assert!(n <= 4, "{n} connections");
        if is_locked {
            other.batch_execute("COMMIT").await.unwrap();
        } else {
            set("off").await;
        }
        scene.recovers(100 * round).await;
    }
}

async fn keys_and_texts_are_not_in_the_log_when_the_engine_fails(engine: Engine) {
    let mut scene = Scene::new(engine).await;
    let canary = "canary-in-a-text";
    scene.engine.kill();
    let body = with_results(&[format!("{canary} {}", text(1))]);
    ask(&scene.abridge, &body).await;
    scene.engine.serve().await;
    scene.recovers(2).await;
    scene.abridge.says("the store works again", 0).await;
    let log = scene.abridge.stderr().join("\n");
    let address = scene.engine.url();
    assert!(!log.contains(canary) && !log.contains(&address), "{log}");
}

async fn an_engine_behind_a_partition_is_waited_for_once(engine: Engine) {
    let relay = Relay::to(&engine.url()).await;
    let url = relay.url(&engine.url());
    let scene = Scene::at(engine, url, "").await;
    let handle = recalls(&scene.send(0).await.0).pop().unwrap();
    for round in 1..3 {
        relay.set(Mode::Hold);
        let waited = scene.goes_on_whole(10 * round).await;
        assert!(waited >= WAIT && waited < LONGEST_WAIT, "{waited:?}");
        scene.go_on_without_waiting(10 * round + 1..10 * round + 7).await;
        sleep(Duration::from_secs(2)).await;
        relay.set(Mode::Pass);
        scene.recovers(10 * round).await;
        let reads = async {
            while get(&scene.abridge, &handle).await.body != text(0) {
                sleep(Duration::from_millis(50)).await;
            }
        };
        within("the text to be read again", reads).await;
    }
}

async fn an_engine_that_answers_late_is_waited_for_within_the_time_out(engine: Engine) {
    let relay = Relay::to(&engine.url()).await;
    let url = relay.url(&engine.url());
    let scene = Scene::at(engine, url, "").await;
    scene.send(0).await;
    relay.set(Mode::Delay(Duration::from_millis(150)));
    let (sent, waited) = scene.send(1).await;
    assert_eq!(recalls(&sent).len(), 1, "a slow engine stores it all the same");
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    relay.set(Mode::Delay(2 * LONGEST_WAIT));
    let waited = scene.goes_on_whole(2).await;
    assert!(waited < LONGEST_WAIT, "{waited:?}: longer than it may");
    scene.go_on_without_waiting(3..9).await;
    relay.set(Mode::Pass);
    scene.recovers(2).await;
}

/// `abridge store sweep` on this engine, by a process whose clock is wrong by this much.
fn sweep_with_clock(engine: &Engine, off: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("proxy.toml");
    let lines = format!(
        "store = {{ engine = {:?}, url_env = \"STORE_URL\", keep_for = \"1m\" }}\nrecall.public_url = \"http://a.test\"\n",
        engine.name()
    );
    std::fs::write(&config, lines).unwrap();
    let mut command = Command::new("/usr/bin/faketime");
    command.args(["-m", "-f", off, binary(), "store", "sweep", "--config"]).arg(&config);
    let swept = command.env("STORE_URL", engine.url()).env("DONT_FAKE_MONOTONIC", "1").output().unwrap();
    assert!(swept.status.success(), "{}", String::from_utf8_lossy(&swept.stderr));
    String::from_utf8(swept.stdout).unwrap()
}

async fn the_engine_s_time_counts_and_not_that_of_a_process(engine: Engine) {
    if is_static() {
        eprintln!("NOT RUN: faketime is a library, and none can be preloaded into a static program");
        return;
    }
    if !Path::new("/usr/bin/faketime").exists() {
        eprintln!("NOT RUN: faketime is not installed (apt-get install faketime)");
        return;
    }
    let scene = Scene::new(engine).await;
    let handle = recalls(&scene.send(0).await.0).pop().unwrap();
    for off in ["+2h", "-2h"] {
        let swept = sweep_with_clock(&scene.engine, off);
        assert!(swept.starts_with("removed 0 unused for too long and 0 too many"), "{swept}");
    }
    assert_eq!(get(&scene.abridge, &handle).await.body, text(0));
}

on_each_engine!(
    an_engine_behind_a_partition_is_waited_for_once,
    an_engine_that_answers_late_is_waited_for_within_the_time_out,
    the_engine_s_time_counts_and_not_that_of_a_process,
    a_killed_engine_delays_no_request_and_loses_nothing,
    an_engine_that_hangs_is_waited_for_once,
    what_an_engine_has_lost_is_written_again_under_the_same_handle,
    an_engine_that_is_away_at_start_is_waited_for_unless_the_settings_have_the_secret,
    keys_and_texts_are_not_in_the_log_when_the_engine_fails,
);

#[tokio::test]
async fn what_a_redis_has_lost_while_it_was_connected_is_written_again_within_seconds() {
    let Some(redis) = Redis::start().await else { return };
    let scene = Scene::new(Engine::Redis(redis)).await;
    let first = scene.send(0).await.0;
    let handle = recalls(&first).pop().unwrap();
    scene.engine.lose_payloads().await;
    let began = Instant::now();
    while get(&scene.abridge, &handle).await.body != text(0) {
        assert_eq!(scene.send(0).await.0, first, "the bytes stay");
        sleep(Duration::from_millis(50)).await;
    }
    assert!(began.elapsed() < RECOVERY, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_redis_without_memory_takes_no_new_text_and_gives_those_it_has() {
    let Some(redis) = Redis::start().await else { return };
    let scene = Scene::new(Engine::Redis(redis)).await;
    let handle = recalls(&scene.send(0).await.0).pop().unwrap();
    let Engine::Redis(redis) = &scene.engine else { unreachable!() };
    redis.run(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(redis.run(&["SET", "other", "x"]).starts_with("OOM"), "it has room");
    scene.goes_on_whole(1).await;
    scene.goes_on_whole(2).await;
    assert_eq!(recalls(&scene.send(0).await.0), [handle.as_str()]);
    assert_eq!(get(&scene.abridge, &handle).await.body, text(0));
    let failed = scene.abridge.said("the store failed", 1).await;
    assert!(failed.len() == 1 && failed[0].contains("full"), "{failed:#?}");
    redis.run(&["CONFIG", "SET", "maxmemory", "0"]);
    scene.recovers(1).await;
}

#[tokio::test]
async fn a_redis_that_removes_what_requests_name_is_refused() {
    let Some(redis) = Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]).await else { return };
    let engine = Engine::Redis(redis);
    let upstream = Upstream::start().await;
    let refused = engine.replica(&upstream).fail().await;
    assert!(refused.stderr.contains("allkeys-lru") && refused.stderr.contains("noeviction"), "{}", refused.stderr);
    let Engine::Redis(redis) = &engine else { unreachable!() };
    // No key has a lifetime, so this one removes none.
    redis.run(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    engine.replica(&upstream).start().await;
}

#[tokio::test]
async fn a_start_says_what_a_redis_promises() {
    let Some(redis) = Redis::start().await else { return };
    let engine = Engine::Redis(redis);
    let upstream = Upstream::start().await;
    let Engine::Redis(redis) = &engine else { unreachable!() };
    for (setting, value, said) in [
        ("appendfsync", "always", "what it has confirmed survives a crash"),
        ("appendfsync", "everysec", "may lose the last second"),
        ("appendonly", "no", "since its last snapshot"),
    ] {
        redis.run(&["CONFIG", "SET", setting, value]);
        let line = engine.replica(&upstream).start().await.says("the store is in Redis", 0).await;
        assert!(line.contains(said) && line.contains("store.replicas_acknowledge is 0"), "{line}");
    }
}

#[tokio::test]
async fn replicas_that_do_not_confirm_are_waited_for_once() {
    let Some(redis) = Redis::start().await else { return };
    let (replica, url) = (redis.replica().await, redis.url());
    let scene = Scene::at(Engine::Redis(redis), url, "store.replicas_acknowledge = 1").await;
    let handle = recalls(&scene.send(0).await.0).pop().unwrap();
    replica.signal("STOP");
    let waited = scene.goes_on_whole(1).await;
    // Three fourths of `store.timeout`.
    assert!(waited >= Duration::from_millis(3700), "{waited:?}: it does not wait for the replica");
    let mut shortest = Duration::MAX;
    for seed in 2..8 {
        shortest = shortest.min(scene.goes_on_whole(seed).await);
    }
    assert!(shortest < Duration::from_millis(3700), "{shortest:?}: each of them waits");
    assert_eq!(get(&scene.abridge, &handle).await.body, text(0), "what is stored can be read");
    replica.signal("CONT");
    scene.recovers(1).await;
}

#[tokio::test]
async fn a_request_that_stores_nothing_new_asks_redis_once_and_a_short_one_never() {
    let Some(redis) = Redis::start().await else { return };
    let url = redis.url();
    // A part of a window may be as short as the window is.
    let triggers = "clear_tool_results.trigger = { tokens = 80000 }\nsummarize.trigger = { tokens = 160000 }";
    let scene = Scene::at(Engine::Redis(redis), url, triggers).await;
    let Engine::Redis(redis) = &scene.engine else { unreachable!() };
    let short = "short ".repeat(100);
    for (texts, n_steps) in [(long_text(0), 1), (short, 0)] {
        let body = with_results(&[texts]);
        ask(&scene.abridge, &body).await;
        let mut fewest = u64::MAX;
        // Everything that is exchanged and swept meanwhile counts, too.
        for _ in 0..5 {
            let before = redis.n_steps();
            ask(&scene.abridge, &body).await;
            fewest = fewest.min(redis.n_steps() - before);
        }
        assert_eq!(fewest, n_steps, "{} bytes", body.len());
    }
}
