//! The machine under abridge: a disk that may not be written to, and descriptors that have run out.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::upstream_got;
use crate::failures::refused;
use crate::support::bodies::PLAIN;
use crate::support::offloads::{long_text, recalls, with_results};
use crate::support::{Scene, Setup, Upstream, chat, request};

const READ_ONLY: u32 = 0o500;
const WRITABLE: u32 = 0o700;

fn make(path: &Path, mode: u32) {
    set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

async fn scene(setup: Setup, upstream: Upstream) -> Scene {
    let abridge = setup.minds_modes().start().await;
    let client = abridge.connect().await;
    Scene { upstream, abridge, client }
}

// === a disk that is read-only ===

#[tokio::test]
async fn a_store_that_cannot_be_written_is_said_at_the_start_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (below, file) = (folder.path().join("sealed"), folder.path().join("store.redb"));
    std::fs::create_dir(&below).unwrap();
    std::fs::write(&file, "").unwrap();
    make(&below, READ_ONLY);
    make(&file, 0o400);
    let upstream = Upstream::start().await;
    for path in [below.join("store.redb"), below.join("deeper/store.redb"), file] {
        let setup = || Setup::before(&upstream).with(format!("store.path = {path:?}")).minds_modes();
        let failed = setup().with("store.required = true").fail().await;
        assert_eq!(failed.status.code(), Some(69), "{}", failed.stderr);
        let said = ["cannot be opened", path.to_str().unwrap(), "store.path", "Permission denied"];
        for part in said {
            assert!(failed.stderr.contains(part), "{part:?} is missing: {}", failed.stderr);
        }
        assert_eq!(failed.stderr.lines().count(), 1, "{}", failed.stderr);

        let abridge = setup().start().await;
        abridge.says("take nothing out until a restart", 0).await;
        abridge.says("Permission denied", 0).await;
    }
    make(&below, WRITABLE);
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_again_is_tried_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.redb");
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).with(format!("store.path = {file:?}")).survives_full_disks();
    let mut scene = scene(setup, upstream).await;
    let before = with_results(&[long_text(0)]);
    let first = recalls(&upstream_got(&mut scene, &before).await);
    assert_eq!(first.len(), 1);

    // It is full, and while it is, someone makes it read-only.
    make(&file, 0o400);
    scene.abridge.limit_files(Some(4096));
    let body = with_results(&[long_text(1)]);
    assert_eq!(upstream_got(&mut scene, &body).await, body.as_bytes(), "it goes on whole");
    scene.abridge.limit_files(None);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    for n in 2..4 {
        let body = with_results(&[long_text(n)]);
        assert_eq!(upstream_got(&mut scene, &body).await, body.as_bytes(), "it goes on whole");
    }
    scene.client.send(request("GET", &first[0], &[])).await;
    assert_eq!(scene.client.reply().await.head.status(), 503);
    let alarms = scene.abridge.said("the store failed:", 1).await;
    assert_eq!(alarms.len(), 1, "{alarms:?}");

    make(&file, 0o600);
    let mut n = 4;
    while recalls(&upstream_got(&mut scene, &with_results(&[long_text(n)])).await).is_empty() {
        n += 1;
    }
    scene.abridge.says("the store works again", 0).await;
    scene.client.send(request("GET", &first[0], &[])).await;
    assert_eq!(scene.client.reply().await.body, long_text(0));
}

#[tokio::test]
async fn exported_files_that_cannot_be_written_leave_requests_whole_until_they_can() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("exported");
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream).with(format!("recall.via = \"file\"\nrecall.export_dir = {dir:?}"));
    let mut scene = scene(setup, upstream).await;
    let is_edited = |body: &[u8]| String::from_utf8_lossy(body).contains(dir.to_str().unwrap());
    assert!(is_edited(&upstream_got(&mut scene, &with_results(&[long_text(0)])).await));

    make(&dir, READ_ONLY);
    for n in 1..4 {
        let body = with_results(&[long_text(n)]);
        assert_eq!(upstream_got(&mut scene, &body).await, body.as_bytes(), "it goes on whole");
    }
    // Everything that is there already can still be named.
    assert!(is_edited(&upstream_got(&mut scene, &with_results(&[long_text(0)])).await));
    let told = scene.abridge.said("recall.export_dir", 1).await;
    assert_eq!(told.len(), 1, "{told:?}");

    make(&dir, WRITABLE);
    assert!(is_edited(&upstream_got(&mut scene, &with_results(&[long_text(1)])).await));
}

// === descriptors ===

#[tokio::test]
async fn descriptors_that_run_out_stop_nothing_for_good() {
    let mut scene = Scene::new().await;
    scene.client.send(chat(PLAIN)).await;
    let mut call = scene.upstream.request().await;
    call.bytes().await;
    call.begin_stream().await;
    scene.client.head().await;

    scene.abridge.limit_descriptors(8);
    let mut idle = Vec::new();
    for _ in 0..64 {
        idle.push(scene.abridge.connect().await);
    }
    let told = "a connection could not be accepted";
    scene.abridge.says(told, 0).await;

    // While nothing can be accepted, what runs goes on, hardly anything is computed, and nothing more is said.
    let before = scene.abridge.computed();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        call.send_chunk("data: 1\n\n").await;
        assert_eq!(scene.client.chunk().await.unwrap(), "data: 1\n\n");
    }
    let computed = scene.abridge.computed() - before;
    assert!(computed <= 20, "{computed} hundredths of a second in two seconds");

    // No descriptor for a connection to the upstream either.
    let mut waits = idle.remove(0);
    waits.send(request("GET", "/v1/models", &[])).await;
    let why = refused(&waits.reply().await, 502, "upstream_connect");
    for part in ["abridge has run out of file descriptors", "ulimit -n", "LimitNOFILE", "server.max_connections"] {
        assert!(why.contains(part), "{part} is missing: {why}");
    }
    assert!(!why.contains("upstream.url"), "{why}");

    // Those who waited are served as soon as others go.
    let mut last = idle.pop().unwrap();
    drop(idle);
    for client in [&mut last, &mut waits] {
        client.send(request("GET", "/v1/models", &[])).await;
        scene.upstream.request().await.answer("200 OK", &["connection: close"], "{}").await;
        assert_eq!(client.reply().await.head.status(), 200);
    }
    let lines = scene.abridge.stderr().into_iter().filter(|line| line.contains(told)).count();
    assert_eq!(lines, 1);
}
