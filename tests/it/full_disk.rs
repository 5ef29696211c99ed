//! A disk that takes nothing more: requests go on whole, one line says so, and one says that it is over.

use std::collections::BTreeSet;

use crate::metrics::scrape;
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::{Exchange, Scene, Setup, Upstream, chat, request};

const ALARM: &str = "the store failed: requests go on without the edits that need it";
const OVER: &str = "the store works again";

/// Sends a conversation that no one has sent before; what went upstream of it.
async fn upstream_got(scene: &mut Scene, call: &mut Option<Exchange>, body: &str) -> Vec<u8> {
    scene.client.send(chat(body)).await;
    let mut now = match call.take() {
        Some(before) => before.next().await,
        None => scene.upstream.request().await,
    };
    let got = now.bytes().await;
    now.json("{}").await;
    assert_eq!(scene.client.reply().await.head.status(), 200);
    *call = Some(now);
    got.to_vec()
}

/// How often the store has failed.
async fn failures(scene: &Scene) -> u64 {
    scrape(&scene.abridge).await.sum("abridge_store_errors_total")
}

#[tokio::test]
async fn a_full_disk_and_its_recovery_are_logged_once_each() {
    let upstream = Upstream::start().await;
    let abridge = Setup::before(&upstream).survives_full_disks().start().await;
    let client = abridge.connect().await;
    let (mut scene, mut call) = (Scene { upstream, abridge, client }, None);
    let mut n = 0;
    let mut body = || {
        n += 1;
        with_results(&[long_text(n)])
    };

    let first = recalls(&upstream_got(&mut scene, &mut call, &body()).await);
    assert_eq!(first.len(), 1);
    for alarms in 0..2 {
        scene.abridge.limit_files(Some(4096));
        let (before, mut tries) = (failures(&scene).await, BTreeSet::new());
        // It rests between two tries: the same failure is to be met again.
        while tries.len() < 2 {
            let body = body();
            assert_eq!(upstream_got(&mut scene, &mut call, &body).await, body.as_bytes(), "it goes on whole");
            tries.extend(Some(failures(&scene).await).filter(|failures| *failures > before));
        }
        let lines = scene.abridge.said(ALARM, alarms + 1).await;
        assert_eq!(lines.len(), alarms + 1, "{lines:?}");
        assert!(lines[alarms].contains("ERROR") && lines[alarms].contains("kind=\"full\""), "{lines:?}");
        assert_eq!(scene.abridge.said(OVER, alarms).await.len(), alarms);

        // Everything that is stored can be read meanwhile.
        scene.client.send(request("GET", &first[0], &[])).await;
        assert_eq!(scene.client.reply().await.body, long_text(1));

        scene.abridge.limit_files(None);
        // The store rests a moment after a failure, and is tried again by itself.
        let mut stored = Vec::new();
        while stored.is_empty() {
            let got = upstream_got(&mut scene, &mut call, &body()).await;
            stored = recalls(&got);
        }
        assert_eq!(scene.abridge.said(OVER, alarms + 1).await.len(), alarms + 1);
        assert_eq!(scene.abridge.said(ALARM, alarms + 1).await.len(), alarms + 1);
    }
}
