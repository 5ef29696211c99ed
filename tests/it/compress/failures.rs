//! If editing fails, a gateway gets its messages as they came; if there is no room, it may try again.

use serde_json::{Value, json};

use super::{Answer, BAD, COMPRESS, KEY, ON, answer, ask, ccr, original, part, rows_of, serving};
use crate::support::offloads::long_text;
use crate::support::{Setup, post};

/// Nothing was changed and nothing promised.
fn assert_as_it_came(told: &Answer, body: &str, why: &str) {
    assert_eq!(told.rows().concat(), rows_of(body.as_bytes(), "messages").concat(), "{why}");
    assert_eq!((told.skip_reason.as_deref(), told.compression_skipped), (Some(why), true));
    assert_eq!((told.tokens_saved, told.compression_ratio), (0, 1.0), "{why}");
    assert!(told.ccr_hashes.is_empty() && told.transforms_applied.is_empty(), "{why}");
}

#[tokio::test]
async fn without_a_store_messages_come_back_as_they_came() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("store.redb")).unwrap();
    let abridge = serving(&format!("store.path = {:?}", folder.path().join("store.redb"))).await;
    let body = ccr(&part(&[long_text(1)]));
    assert_as_it_came(&answer(abridge.address(), &[KEY], &body).await, &body, "no_store");
    assert_eq!(original(abridge.address(), &[KEY], "0123456789abcdef01234567").await, Err(404));
}

#[tokio::test]
async fn while_the_disk_is_full_messages_come_back_as_they_came_and_what_is_stored_is_read() {
    let abridge = Setup::to("http://127.0.0.1:9/v1").with(ON).survives_full_disks().start().await;
    let at = abridge.address();
    let mut n = 0;
    let mut body = || {
        n += 1;
        ccr(&part(&[long_text(n)]))
    };
    let first = answer(at, &[KEY], &body()).await.ccr_hashes.remove(0);
    abridge.limit_files(Some(4096));
    for _ in 0..3 {
        let body = body();
        assert_as_it_came(&answer(at, &[KEY], &body).await, &body, "failed");
        assert_eq!(original(at, &[KEY], &first).await, Ok(long_text(1)));
    }
    abridge.limit_files(None);
    // The store rests a moment after a failure.
    while answer(at, &[KEY], &body()).await.ccr_hashes.is_empty() {}
}

#[tokio::test]
async fn a_plan_without_room_is_left_out_and_a_body_without_room_is_503() {
    let abridge = serving("server.max_body = \"400KiB\"\nserver.max_buffered = \"512KiB\"").await;
    let at = abridge.address();
    // Each object takes more memory than its bytes.
    let rows: Value = (0..2500).map(|_| json!({"role": "user", "content": "x"})).collect();
    let body = ccr(&rows);
    assert_as_it_came(&answer(at, &[KEY], &body).await, &body, "failed");
    let long = ccr(&part(&["x".repeat(300 << 10)]));
    let reply = ask(at, post(COMPRESS, &[KEY], &long)).await;
    let said: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((reply.head.status(), said["error"]["type"].as_str()), (503, Some("overloaded")), "{said}");
    // A body that is no request is refused, whatever has failed.
    for body in BAD.lines() {
        assert_eq!(ask(at, post(COMPRESS, &[KEY], body)).await.head.status(), 400, "{body}");
    }
}
