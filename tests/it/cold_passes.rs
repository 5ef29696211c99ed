//! Passes after a pause in which the prompt cache has expired.

use std::time::Duration;

use tempfile::TempDir;
use tokio::time::sleep;

use crate::calibration::{Scene, conversation};
use crate::recording::replayed;
use crate::support::Setup;

/// The shortest pause that is told apart, and a second.
const PAUSE: Duration = Duration::from_secs(31);

/// The upstream's bills say that nothing was cached.
#[tokio::test]
async fn behind_a_pause_that_caches_do_not_survive_a_pass_is_made_and_replayed() {
    let (recorded, store) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut scene = Scene::new().await;
    let setup = || {
        Setup::before(&scene.upstream)
            .with("tokens = { counter = \"estimate\", ask_upstream = false, calibrate = false }")
            .with("prices = [{ read = 0.1, write = 1.0 }]")
            .with("recall.public_url = \"http://abridge.test\"")
            .with("clear_tool_results = { trigger = { tokens = 16000 }, keep = { results = 1 }, keep_reads = 0 }")
            .with(format!("store.path = \"{}\"", store.path().join("store.redb").display()))
            .argument("--record")
            .argument(recorded.path())
    };
    let (first, second) = (setup().start().await, setup());
    for n in [6, 7] {
        for seed in ["one", "another", "a third"] {
            let body = conversation(seed, n);
            assert_eq!(scene.sent(&first, &body).await, body, "nothing is known of the cache");
        }
        sleep(PAUSE).await;
    }
    let cleared = scene.sent(&first, &conversation("one", 8)).await;
    assert!(cleared.len() < conversation("one", 3).len(), "seven of eight results are cleared");
    let untouched = conversation("a new one", 8);
    assert_eq!(scene.sent(&first, &untouched).await, untouched);
    first.signal("TERM");
    first.exit().await;
    let second = second.start().await;
    let later = scene.sent(&second, &conversation("one", 9)).await;
    let beginning = cleared.len() - "]}".len();
    assert_eq!(later[..beginning], cleared[..beginning], "the prompt cache has it now");
    second.signal("TERM");
    second.exit().await;
    let (code, table) = replayed(recorded.path(), &second, &[]);
    assert_eq!(code, Some(0), "{table}");
    assert!(table.matches("clear=7").count() == 2, "{table}");
}
