//! A primary is killed under load, and its standby promoted: what a request named that the upstream saw is there.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use abridge_proxy::store::Settings;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::engine::{Postgres, Redis, cluster, replica_of};
use crate::it::support::offloads::{recalls, with_results};
use crate::it::support::summarizer::Summarizer;
use crate::it::support::{Abridge, within};
use crate::replicas::{SHORT, ask, get, text};

/// How many clients send at a time.
const WRITERS: usize = 8;

/// Clients that send all the time.
struct Load {
    abridge: Arc<Abridge>,
    upstream: Summarizer,
    writers: JoinSet<()>,
    stop: watch::Sender<bool>,
}

// === impl Load ===

impl Load {
    /// Begins to send through a process with its store at this URL.
    async fn start(engine: &str, url: String, line: &str) -> Self {
        let upstream = Summarizer::playing([]).await;
        let setup =
            replica_of(engine, upstream.url().to_owned(), url, "5s").with("tokens.counter = \"estimate\"").with(line);
        let abridge = Arc::new(setup.with(SHORT).start().await);
        let (stop, stopped) = watch::channel(false);
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let (abridge, stopped) = (Arc::clone(&abridge), stopped.clone());
            writers.spawn(async move {
                for n in 0.. {
                    if *stopped.borrow() {
                        break;
                    }
                    let body = with_results(&[text(writer + WRITERS * n)]);
                    assert_eq!(ask(&abridge, body).await.head.status(), 200, "no client sees it");
                }
            });
        }
        Self { abridge, upstream, writers, stop }
    }

    /// The handles that the upstream has seen.
    fn named(&self) -> HashSet<String> {
        self.upstream.chats().iter().flat_map(|sent| recalls(&sent.body)).collect()
    }

    /// Waits until so many more requests were edited.
    async fn until_more(&self, n: usize) {
        let n = self.named().len() + n;
        within("requests to be edited", async {
            while self.named().len() < n {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// Stops, and returns what was named and is not to be had at the store of this URL.
    async fn missing(mut self, engine: &str, url: String) -> (usize, Vec<String>) {
        self.stop.send(true).unwrap();
        while let Some(writer) = self.writers.join_next().await {
            writer.unwrap();
        }
        let late = replica_of(engine, self.upstream.url().to_owned(), url, "10s").start().await;
        let (named, mut missing) = (self.named(), Vec::new());
        for handle in &named {
            if get(&late, handle).await.head.status() != 200 {
                missing.push(handle.clone());
            }
        }
        (named.len(), missing)
    }
}

#[tokio::test]
async fn no_handle_that_the_upstream_saw_is_missing_after_a_standby_was_promoted() {
    let Some(mut postgres) = Postgres::start().await else { return };
    postgres.init(&Settings::default()).await;
    let standby = postgres.standby().await;
    let load = Load::start("postgres", postgres.url_with(&standby), "").await;
    assert!(load.abridge.says("on two machines", 0).await.contains("INFO"));
    load.until_more(40).await;
    postgres.kill();
    standby.run("SELECT pg_promote()").await;
    load.until_more(40).await;
    let (n_named, missing) = load.missing("postgres", standby.url()).await;
    assert!(n_named >= 80 && missing.is_empty(), "of {n_named} are missing {missing:?}");
}

#[tokio::test]
async fn no_handle_that_the_upstream_saw_is_missing_after_a_replica_that_confirms_was_promoted() {
    let mut n_all = 0;
    for round in 0..20 {
        let Some(mut redis) = Redis::start().await else { return };
        let replica = redis.replica().await;
        let load = Load::start("redis", redis.url_with(&replica), "store.replicas_acknowledge = 1").await;
        load.until_more(20).await;
        redis.kill();
        // By hand, at once: the harshest way. Alone it has no replica to wait for.
        replica.run(&["REPLICAOF", "NO", "ONE"]);
        let (n_named, missing) = load.missing("redis", replica.url()).await;
        assert!(n_named >= 20 && missing.is_empty(), "{round}: of {n_named} are missing {missing:?}");
        n_all += n_named;
    }
    assert!(n_all >= 400);
}

#[tokio::test]
async fn sentinels_say_who_is_the_primary_after_it_was_killed() {
    let Some(mut redis) = Redis::start().await else { return };
    // The one that has more is promoted, and the other one confirms from then on.
    let _replicas = [redis.replica().await, redis.replica().await];
    let sentinels = redis.watch(2).await;
    let load = Load::start("redis", sentinels.url(), "store.replicas_acknowledge = 1").await;
    load.until_more(40).await;
    redis.kill();
    load.until_more(40).await;
    let (n_named, missing) = load.missing("redis", sentinels.url()).await;
    assert!(n_named >= 80 && missing.is_empty(), "of {n_named} are missing {missing:?}");
}

#[tokio::test]
async fn a_cluster_serves_all_again_after_a_primary_was_killed() {
    let Some(mut nodes) = cluster().await else { return };
    let url = |node: &Redis| node.url().replace("redis:", "redis+cluster:");
    let (seeds, last) = (nodes[0].url_with(&nodes[1]).replace("redis:", "redis+cluster:"), url(&nodes[1]));
    let load = Load::start("redis", seeds, "store.replicas_acknowledge = 1").await;
    load.until_more(40).await;
    nodes[0].kill();
    within("its replica to be promoted", async {
        while !nodes[1].run(&["CLUSTER", "NODES"]).contains("master,fail")
            || !nodes[1].run(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // It returns as a replica, and without one for its slots nothing would be confirmed.
    nodes[0].serve().await;
    load.until_more(40).await;
    let (n_named, missing) = load.missing("redis", last).await;
    assert!(n_named >= 80 && missing.is_empty(), "of {n_named} are missing {missing:?}");
}
