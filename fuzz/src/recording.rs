//! A folder with anything in it is an exchange or is refused; what was read is read again once it has been written, and
//! can be replayed.
//!
//! The first byte of the input says which files there are, and what stands between bytes 0 is in them, in the order of
//! [`FILES`].

use std::fs;
use std::path::Path;

use abridge_proxy::planner::PlanSettings;
use abridge_proxy::recording::Exchange;
use abridge_proxy::replay::{Replay, ReplayPolicy};
use abridge_proxy::upstream::routes::Routes;

use super::planner;

const FILES: [&str; 8] = [
    "request.json",
    "meta.json",
    "rewritten.json",
    "policy.toml",
    "plan.snap",
    "response.sse",
    "response.json",
    "response.bin",
];

/// Reads, writes and replays a folder.
pub fn run(input: &[u8]) {
    let Some((&which, contents)) = input.split_first() else { return };
    let scratch = tempfile::tempdir().expect("a folder");
    let (dir, copy) = (scratch.path().join("exchange"), scratch.path().join("copy"));
    fs::create_dir(&dir).expect("a folder");
    let mut contents = contents.split(|byte| *byte == 0);
    for (bit, name) in FILES.iter().enumerate().filter(|(bit, _)| which >> bit & 1 == 1) {
        let content = contents.next().unwrap_or_default();
        fs::write(dir.join(name), content).unwrap_or_else(|error| panic!("file {bit}: {error}"));
    }
    match Exchange::read(&dir) {
        Ok(exchange) => {
            exchange.write(&copy).expect("what was read can be written");
            assert_eq!(Exchange::read(&copy).expect("what was written can be read"), exchange);
        }
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error}"),
    }
    replays(&dir);
}

fn replays(dir: &Path) {
    let replay =
        Replay::run(&[dir.to_owned()], &ReplayPolicy::Fallback(Routes::only(planner(PlanSettings::default()))));
    assert_eq!(replay.exchanges.len(), 1, "one row a folder");
    let totals = replay.totals;
    assert_eq!(totals.same + totals.different + totals.unreadable, 1);
    assert!(!replay.to_string().is_empty());
}
