//! The file behind the store: what it survives, and who may have it.

use super::*;
use crate::store::conformance::suite;

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let n = AtomicU64::new(0);
    suite(|settings, clock| {
        let path = folder.path().join(n.fetch_add(1, Ordering::Relaxed).to_string());
        Redb::open(&path, settings, clock).unwrap()
    })
    .await;
}
