//! An engine whose disk is full takes no new text and gives those that it has.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::engine::{Engine, Postgres, Redis};
use crate::it::support::offloads::{long_text, recalls, with_results};
use crate::it::support::summarizer::Summarizer;
use crate::replicas::{ask, get};

/// The longest that a file of PostgreSQL may be. The end of a page is beyond it, so that the page is written in part, which is
/// what a full disk does. A segment of the log is shorter.
const FULL: u64 = (16 << 20) + 4096;

#[tokio::test]
async fn a_postgres_whose_disk_is_full_takes_no_new_text_and_gives_those_it_has() {
    let Some(postgres) = Postgres::start().await else { return };
    let fill = async |engine: &Engine| {
        let Engine::Postgres(postgres) = engine else { unreachable!() };
        // Everything that was written in vain is not made free.
        postgres.run("ALTER SYSTEM SET autovacuum = off").await;
        postgres.run("SELECT pg_reload_conf()").await;
        engine.limit_files(Some(FULL));
        let rows =
            "INSERT INTO abridge_payloads SELECT decode(md5(n::text), 'hex'), convert_to(repeat('x', 1000000), 'utf8'),
            1000000, 1000000, 0, 0, 0, 0 FROM generate_series(1, 40) AS n";
        let refused = postgres.client().await.unwrap().batch_execute(rows).await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "53100", "{refused}");
    };
    takes_no_new_text_and_gives_those_it_has(Engine::Postgres(postgres), fill).await;
}

/// With `appendfsync always` Redis ends where its disk is full, and is away; otherwise it goes on and refuses to write.
#[tokio::test]
async fn a_redis_whose_disk_is_full_takes_no_new_text_and_gives_those_it_has() {
    let Some(redis) = Redis::start_with(&["--appendfsync", "everysec"]).await else { return };
    let fill = async |engine: &Engine| {
        let Engine::Redis(redis) = engine else { unreachable!() };
        engine.limit_files(Some(redis.dump().len() as u64 + 100));
        // It notices when it writes to its file, once a second.
        let began = Instant::now();
        while !redis.run(&["SET", "other", "x"]).starts_with("MISCONF") {
            assert!(began.elapsed() < Duration::from_secs(10), "it has room");
            sleep(Duration::from_millis(50)).await;
        }
    };
    takes_no_new_text_and_gives_those_it_has(Engine::Redis(redis), fill).await;
}

/// Until its files may grow again.
async fn takes_no_new_text_and_gives_those_it_has(engine: Engine, fill: impl AsyncFn(&Engine)) {
    engine.init("").await;
    let upstream = Summarizer::playing([]).await;
    let abridge = engine.replica_to(upstream.url().to_owned()).start().await;
    let sent = async |seed: usize| {
        assert_eq!(ask(&abridge, with_results(&[long_text(seed)])).await.head.status(), 200);
        upstream.chats().pop().unwrap().body
    };
    let handle = recalls(&sent(0).await).pop().unwrap();
    fill(&engine).await;

    for seed in 1..4 {
        assert_eq!(sent(seed).await, with_results(&[long_text(seed)]).as_bytes(), "{seed}");
    }
    assert_eq!(recalls(&sent(0).await), [handle.as_str()], "what is known stays taken out");
    assert_eq!(get(&abridge, &handle).await.body, long_text(0));
    let failed = abridge.said("the store failed", 1).await;
    assert!(failed.len() == 1 && failed[0].contains("full"), "{failed:#?}");

    engine.limit_files(None);
    let began = Instant::now();
    while recalls(&sent(1).await).is_empty() {
        assert!(began.elapsed() < Duration::from_mins(1), "edits are not made again");
        sleep(Duration::from_millis(50)).await;
    }
}
