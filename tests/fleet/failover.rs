//! A primary is killed under load, and its standby promoted: what a request named that the upstream saw is there.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::engine::Postgres;
use crate::it::support::offloads::{long_text, recalls, with_results};
use crate::it::support::summarizer::Summarizer;
use crate::it::support::{Abridge, within};
use crate::replicas::{ask, get};

/// How many clients send at a time.
const WRITERS: usize = 8;

async fn replica(postgres: &Postgres, upstream: &Summarizer, url: String) -> Arc<Abridge> {
    let setup = postgres.replica_to(upstream.url().to_owned()).environment("STORE_URL", url);
    Arc::new(setup.with("tokens.counter = \"estimate\"").start().await)
}

#[tokio::test]
async fn no_handle_that_the_upstream_saw_is_missing_after_a_standby_was_promoted() {
    let Some(mut postgres) = Postgres::start().await else { return };
    postgres.init("").await;
    let standby = postgres.standby().await;
    let upstream = Summarizer::playing([]).await;
    let abridge = replica(&standby, &upstream, postgres.url_with(&standby)).await;
    assert!(abridge.says("on two machines", 0).await.contains("INFO"));

    let (stop, stopped) = watch::channel(false);
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (abridge, stopped) = (Arc::clone(&abridge), stopped.clone());
        writers.spawn(async move {
            for n in 0.. {
                if *stopped.borrow() {
                    break;
                }
                let body = with_results(&[long_text(writer + WRITERS * n)]);
                assert_eq!(ask(&abridge, body).await.head.status(), 200, "no client sees it");
            }
        });
    }
    let n_edited = || upstream.chats().iter().filter(|sent| !recalls(&sent.body).is_empty()).count();
    let until = async |n: usize| {
        within("requests to be edited", async {
            while n_edited() < n {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    };
    until(40).await;
    postgres.kill();
    standby.run("SELECT pg_promote()").await;
    let before = n_edited();
    until(before + 40).await;
    stop.send(true).unwrap();
    while let Some(writer) = writers.join_next().await {
        writer.unwrap();
    }
    let late = replica(&standby, &upstream, standby.url()).await;
    let handles: Vec<_> = upstream.chats().iter().flat_map(|sent| recalls(&sent.body)).collect();
    assert!(handles.len() >= 80);
    for handle in handles {
        assert_eq!(get(&late, &handle).await.head.status(), 200, "{handle} was named and is missing");
    }
}
