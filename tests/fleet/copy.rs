//! `abridge store copy`: the texts of a file are served by a fleet, under the same handles, and back; encrypted or not.

use std::path::Path;
use std::process::{Command, Output};

use abridge_proxy::payload::{ChainKey, Place};
use abridge_proxy::store::secret::Secrets;
use abridge_proxy::store::{Clock, NoteGroup, RedbStore, Settings, Store as _};
use bytes::Bytes;

use crate::engine::{Engine, on_each_engine};
use crate::it::support::offloads::{long_text, recalls, with_results};
use crate::it::support::summarizer::{INSTRUCTION, Summarizer, talk};
use crate::it::support::{Abridge, Setup, binary};
use crate::replicas::{ask, get};

fn fleet(engine: &Engine) -> String {
    format!("store.engine = {:?}\nstore.url_env = \"STORE_URL\"\n", engine.name())
}

fn settings() -> String {
    format!(
        "recall.public_url = \"http://abridge.test\"\nsummarize.instruction = {INSTRUCTION:?}\n\
         summarize.trigger = {{ tokens = 900 }}\ntokens.counter = \"estimate\"\ntokens.ask_upstream = false\n"
    )
}

/// The settings of a fleet that is given its secret: encrypted, if its namespace is called so.
fn fleet_in(engine: &Engine, namespace: &str) -> String {
    let is_sealed = namespace.contains("sealed");
    let lines = format!("store.namespace = {namespace:?}\nstore.seal = {is_sealed}\n");
    format!("{}{lines}store.secret_env = \"STORE_SECRET\"\n", fleet(engine))
}

/// The secret that it is given.
fn secret() -> String {
    "0d".repeat(32)
}

/// Runs `abridge store` with these arguments, on the engine.
fn store(engine: &Engine, folder: &Path, arguments: &[&str]) -> Output {
    store_of(engine, &fleet(engine), folder, arguments)
}

/// The same, with these settings.
fn store_of(engine: &Engine, lines: &str, folder: &Path, arguments: &[&str]) -> Output {
    let config = folder.join("proxy.toml");
    std::fs::write(&config, format!("{lines}{}", settings())).unwrap();
    let mut command = Command::new(binary());
    command.arg("store").args(arguments).arg("--config").arg(config).env("STORE_URL", engine.url());
    command.env("STORE_SECRET", secret()).output().unwrap()
}

/// Returns what the upstream gets of a result and of a conversation that is summarised.
async fn sent(abridge: &Abridge, upstream: &Summarizer) -> [Vec<u8>; 2] {
    let mut sent = Vec::new();
    for body in [with_results(&[long_text(1)]), talk("a", 3)] {
        assert_eq!(ask(abridge, body).await.head.status(), 200);
        sent.push(upstream.chats().pop().unwrap().body.to_vec());
    }
    sent.try_into().unwrap()
}

async fn what_a_file_had_is_served_by_a_fleet_and_by_a_file_again(engine: Engine) {
    engine.init("").await;
    let (upstream, folder) = (Summarizer::playing([]).await, tempfile::tempdir().unwrap());
    let (first, last) = (folder.path().join("first.redb"), folder.path().join("last.redb"));
    let setup = |lines: String| Setup::to(upstream.url()).with(settings()).with(lines);
    let in_file = |path: &Path| setup(format!("store.path = '{}'", path.display()));
    let abridge = in_file(&first).start().await;
    let before = sent(&abridge, &upstream).await;
    let handle = recalls(&before[0]).pop().unwrap();
    abridge.signal("TERM");
    abridge.exit().await;

    // Recalls of a turn, which do not say where they are found.
    let (turn, recalls_of_turn) = (ChainKey::from_bytes([7; 16]), Bytes::from_static(b"[{\"n_before\":0}]"));
    let file = RedbStore::open(&first, Settings::default(), Clock::system()).unwrap();
    file.offer_summary(Place { root: turn, beginning: turn }, recalls_of_turn.clone()).await.unwrap();
    file.close().await.unwrap();

    let copied = store(&engine, folder.path(), &["copy", "--from", first.to_str().unwrap()]);
    let told = String::from_utf8(copied.stdout).unwrap();
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    // One, the token factors of two conversations, and the recalls.
    assert!(told.ends_with("and 4 summaries\n"), "{told}");
    let opened = engine.open(Secrets::default()).await.unwrap();
    assert_eq!(opened.notes(NoteGroup::Ledger).await.unwrap().len(), 1, "the rows of one day");
    assert_eq!(opened.summary(turn).await.unwrap(), Some(recalls_of_turn));
    opened.close().await.unwrap();
    let abridge = setup(fleet(&engine)).environment("STORE_URL", engine.url()).start().await;
    assert_eq!(get(&abridge, &handle).await.body, long_text(1));
    assert_eq!(sent(&abridge, &upstream).await, before);
    assert_eq!(upstream.summaries().len(), 1);

    let listed = store(&engine, folder.path(), &["ls"]);
    assert!(String::from_utf8(listed.stdout).unwrap().contains(handle.rsplit('/').next().unwrap()));
    let to = ["copy", "--to", last.to_str().unwrap()];
    assert!(store(&engine, folder.path(), &to).status.success());
    let again = store(&engine, folder.path(), &to);
    assert!(!again.status.success() && String::from_utf8(again.stderr).unwrap().contains("exists"));
    let abridge = in_file(&last).start().await;
    assert_eq!(get(&abridge, &handle).await.body, long_text(1));
    assert_eq!(sent(&abridge, &upstream).await, before);
    assert_eq!(upstream.summaries().len(), 1);

    // A damaged text is named, and all else is copied.
    engine.remake(|body| if body.len() > 5_000 { body[1..].to_vec() } else { body.to_vec() }).await;
    let to = ["copy", "--to", folder.path().join("rest.redb").to_str().unwrap()].map(str::to_owned);
    let copied = store(&engine, folder.path(), &to.each_ref().map(String::as_str));
    let told = String::from_utf8(copied.stdout).unwrap();
    let handle = handle.rsplit('/').next().unwrap();
    assert!(
        told.contains("and 4 summaries") && told.contains(&format!("left out the text {handle}, which is")),
        "{told}"
    );
}

async fn a_file_is_not_copied_to_tables_of_another_secret(engine: Engine) {
    engine.init("").await;
    let (upstream, folder) = (Summarizer::playing([]).await, tempfile::tempdir().unwrap());
    let file = folder.path().join("store.redb");
    let abridge = Setup::to(upstream.url()).with(format!("store.path = '{}'", file.display())).start().await;
    abridge.signal("TERM");
    abridge.exit().await;
    engine.replica_to(upstream.url().to_owned()).start().await;
    let copied = store(&engine, folder.path(), &["copy", "--from", file.to_str().unwrap()]);
    assert!(!copied.status.success());
    assert!(String::from_utf8(copied.stderr).unwrap().contains("another secret"));
}

async fn what_is_encrypted_is_copied_to_where_it_is_not_and_back(engine: Engine) {
    let (upstream, folder) = (Summarizer::playing([]).await, tempfile::tempdir().unwrap());
    let start = async |namespace: &str| {
        let setup = Setup::to(upstream.url()).with(settings()).with(fleet_in(&engine, namespace));
        setup.environment("STORE_URL", engine.url()).environment("STORE_SECRET", secret()).start().await
    };
    let copy = |namespace: &str, arguments: [&str; 3]| {
        let copied = store_of(&engine, &fleet_in(&engine, namespace), folder.path(), &arguments);
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    };
    engine.init("sealed").await;
    let abridge = start("sealed").await;
    let before = sent(&abridge, &upstream).await;
    let handle = recalls(&before[0]).pop().unwrap();
    for (from, to) in [("sealed", "plain"), ("plain", "sealed_again")] {
        engine.init(to).await;
        let file = folder.path().join(to);
        copy(from, ["copy", "--to", file.to_str().unwrap()]);
        copy(to, ["copy", "--from", file.to_str().unwrap()]);
        let abridge = start(to).await;
        assert_eq!(get(&abridge, &handle).await.body, long_text(1), "{to}");
        assert_eq!(sent(&abridge, &upstream).await, before, "{to}");
    }
    assert_eq!(upstream.summaries().len(), 1);

    let file = folder.path().join("foreign");
    RedbStore::open(&file, Settings::default(), Clock::system()).unwrap().close().await.unwrap();
    engine.init("sealed_new").await;
    let from = ["copy", "--from", file.to_str().unwrap()];
    let refused = store_of(&engine, &fleet_in(&engine, "sealed_new"), folder.path(), &from);
    assert!(!refused.status.success());
    assert!(String::from_utf8(refused.stderr).unwrap().contains("another secret"));
}

on_each_engine!(
    what_is_encrypted_is_copied_to_where_it_is_not_and_back,
    what_a_file_had_is_served_by_a_fleet_and_by_a_file_again,
    a_file_is_not_copied_to_tables_of_another_secret,
);
