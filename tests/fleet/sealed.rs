//! `store.seal`: who runs the engine reads neither texts nor handles, and all else is as without it.

use std::fmt::Write as _;
use std::time::Duration;

use abridge_proxy::payload::{ChainKey, Keys, Lifetime, PayloadKey, Place};
use abridge_proxy::store::engine::{self, EngineError, OpenError, Options};
use abridge_proxy::store::secret::Secrets;
use abridge_proxy::store::tests::conformance::dense;
use abridge_proxy::store::{Note, NoteGroup, NoteKind, PageQuery, Settings, SharedStore, StoreErrorKind};
use bytes::Bytes;

use crate::engine::{Engine, on_each_engine};
use crate::it::support::offloads::{long_text, recalls, with_results};
use crate::it::support::summarizer::{INSTRUCTION, Summarizer, talk};
use crate::it::support::{Abridge, Setup, post, request};
use crate::replicas::{ask, get};

fn place() -> Place {
    Place { root: ChainKey::from_bytes([1; 16]), beginning: ChainKey::from_bytes([2; 16]) }
}

/// The secrets that a fleet has one after another.
fn secret(n: u8) -> String {
    format!("{n:02x}").repeat(32)
}

/// Opens a store with this secret, and those that it has replaced.
async fn open(engine: &Engine, settings: Settings, secrets: &[u8]) -> Result<Box<dyn SharedStore>, OpenError> {
    let (current, old) = secrets.split_first().unwrap();
    let old: Vec<_> = old.iter().map(|n| secret(*n)).collect();
    let secrets = Secrets::parse(Some(&secret(*current)), Some(&old.join(","))).unwrap();
    let clock = None;
    engine::open(Options { url: engine.url(), settings, secrets, clock, fresh: None }).await
}

fn sealed(engine: &Engine, namespace: &str) -> Settings {
    Settings { seal: true, ..engine.settings(namespace) }
}

/// A process with its store here, encrypted with this secret.
fn replica(engine: &Engine, upstream: &Summarizer, current: u8) -> Setup {
    let setup = engine.replica_to(upstream.url().to_owned()).with("store.seal = true");
    setup.with("store.secret_env = \"STORE_SECRET\"").environment("STORE_SECRET", secret(current))
}

/// The same, with a secret that this one has replaced.
fn replica_after(engine: &Engine, upstream: &Summarizer, current: u8, old: u8) -> Setup {
    let setup = replica(engine, upstream, current).with("store.old_secrets_env = \"OLD_SECRETS\"");
    setup.environment("OLD_SECRETS", secret(old))
}

fn summarising(setup: Setup) -> Setup {
    let setup = setup.with(format!("summarize.instruction = {INSTRUCTION:?}"));
    setup.with("summarize.trigger = { tokens = 900 }").with("tokens.counter = \"estimate\"")
}

fn key(target: &str) -> PayloadKey {
    target.rsplit('/').next().unwrap().parse().unwrap()
}

fn contains(dump: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(dump, needle).is_some()
}

/// Stores a text, a summary, messages and a note, all of them short, so that they are not compressed. The text's handle.
async fn fill(store: &dyn SharedStore) -> PayloadKey {
    let keys = Keys::new(store.secret().unwrap());
    let text = Bytes::from_static(b"the text of ann");
    let handle = keys.payload(keys.caller(b"ann"), &text);
    store.put(vec![(handle, text.into())], Lifetime::Usual).await.unwrap();
    store.offer_summary(place(), Bytes::from_static(b"the summary of ann")).await.unwrap();
    store.put_inspected("req_1".to_owned(), Bytes::from_static(b"the messages of ann"), 9).await.unwrap();
    let value = Bytes::from_static(b"the note of ann");
    let note = Note { kind: NoteKind::Window, key: place().root, value };
    store.note(note, Duration::from_hours(1)).await.unwrap();
    handle
}

async fn who_reads_the_engine_finds_neither_texts_nor_handles(engine: Engine) {
    let texts = ["text", "summary", "messages", "note"].map(|what| format!("the {what} of ann").into_bytes());
    for (namespace, is_sealed) in [("sealed", true), ("plain", false)] {
        engine.init(namespace).await;
        let settings = Settings { seal: is_sealed, ..engine.settings(namespace) };
        let store = open(&engine, settings, &[1]).await.unwrap();
        let handle = fill(&*store).await;
        let dump = engine.dump().await;
        for needle in texts.iter().map(Vec::as_slice).chain([handle.as_bytes().as_slice()]) {
            assert_eq!(contains(&dump, needle), !is_sealed, "{namespace}: {}", needle.escape_ascii());
        }
        assert!(!contains(&dump, handle.to_string().as_bytes()));
        assert!(!contains(&dump, &[1; 32]) && !contains(&dump, secret(1).as_bytes()));
        // Who has the secret reads all of it.
        assert_eq!(store.get(handle).await.unwrap().unwrap(), texts[0]);
        assert_eq!(store.summary(place().beginning).await.unwrap().unwrap(), texts[1]);
        assert_eq!(store.inspected("req_1".to_owned()).await.unwrap().unwrap(), texts[2]);
        assert_eq!(store.notes(NoteGroup::Fleet).await.unwrap()[0].value, texts[3]);
        assert_eq!(store.list(9).await.unwrap()[0].key, handle);
    }
}

async fn sealed_replicas_recall_what_another_has_stored_and_the_names_of_rows_recall_nothing(engine: Engine) {
    engine.init("").await;
    let upstream = Summarizer::playing([]).await;
    let start = || summarising(replica(&engine, &upstream, 1)).with("inspect.keep = 3").start();
    let (one, other) = tokio::join!(start(), start());
    let megabyte = dense(1, 512 << 10).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    });
    let texts = [long_text(1), megabyte];
    assert_eq!(ask(&one, with_results(&texts)).await.head.status(), 200);
    let sent = upstream.chats().pop().unwrap().body;
    let targets = recalls(&sent);
    assert_eq!(targets.len(), 2);
    for (target, text) in targets.iter().zip(&texts) {
        let recalled = get(&other, target).await;
        assert!(recalled.head.status() == 200 && recalled.body == text.as_bytes());
    }
    assert_eq!(ask(&other, with_results(&texts)).await.head.status(), 200);
    assert_eq!(upstream.chats().pop().unwrap().body, sent);
    for abridge in [&one, &other] {
        assert_eq!(ask(abridge, talk("a", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
    }
    assert_eq!(upstream.summaries().len(), 1);

    let dump = engine.dump().await;
    assert!(targets.iter().all(|target| !contains(&dump, key(target).as_bytes())));
    for said in ["line 5999", "They talked.", "\"messages\"", "gpt-4o"] {
        assert!(!contains(&dump, said.as_bytes()), "{said}");
    }
    let rows = engine.payload_rows().await;
    // Two results, and what the summary was made from.
    assert_eq!(rows.len(), 3);
    for row in rows {
        let row = PayloadKey::from_bytes(row.try_into().unwrap());
        assert_eq!(get(&one, &format!("/abridge/recall/{row}")).await.head.status(), 404);
    }
}

async fn another_secret_or_another_way_to_keep_texts_is_refused(engine: Engine) {
    for namespace in ["sealed", "plain"] {
        engine.init(namespace).await;
    }
    let refusal = async |settings, secrets: &[u8]| match open(&engine, settings, secrets).await {
        Err(OpenError::Engine(error)) => Err(error),
        opened => Ok(opened.unwrap()),
    };
    let plain = |namespace| engine.settings(namespace);
    refusal(sealed(&engine, "sealed"), &[1]).await.unwrap();
    refusal(plain("plain"), &[1]).await.unwrap();
    for old in [[1, 1], [2, 1]] {
        assert!(matches!(refusal(plain("sealed"), &old).await, Err(EngineError::Sealed)), "{old:?}");
        assert!(matches!(refusal(sealed(&engine, "plain"), &old).await, Err(EngineError::NotSealed)), "{old:?}");
    }
    for namespace in ["sealed", "plain"] {
        let other = refusal(Settings { seal: namespace == "sealed", ..plain(namespace) }, &[2]).await;
        assert!(matches!(other, Err(EngineError::OtherSecret)), "{other:?}");
    }
    let settings = sealed(&engine, "sealed");
    let options = Options { url: engine.url(), settings, secrets: Secrets::default(), clock: None, fresh: None };
    assert!(matches!(engine::open(options).await, Err(OpenError::NoSecret)));
    // The process says what to do.
    engine.init("").await;
    let upstream = Summarizer::playing([]).await;
    replica(&engine, &upstream, 1).start().await;
    let failed = replica(&engine, &upstream, 2).fail().await;
    assert!(failed.stderr.contains("name it in store.old_secrets_env"), "{}", failed.stderr);
}

async fn handles_of_a_replaced_secret_are_recalled_and_listed(engine: Engine) {
    engine.init("").await;
    let upstream = Summarizer::playing([]).await;
    let send = async |abridge: &Abridge, seed: usize| {
        assert_eq!(ask(abridge, with_results(&[long_text(seed)])).await.head.status(), 200);
        recalls(&upstream.chats().pop().unwrap().body).pop().unwrap()
    };
    let before = replica(&engine, &upstream, 1).start().await;
    let old = [send(&before, 0).await, send(&before, 1).await];
    before.signal("TERM");
    before.exit().await;

    let after = replica_after(&engine, &upstream, 2, 1).start().await;
    for (seed, target) in old.iter().enumerate() {
        assert_eq!(get(&after, target).await.body, long_text(seed));
    }
    let new = send(&after, 0).await;
    assert_ne!(new, old[0]);
    for target in [&old[0], &new] {
        assert_eq!(get(&after, target).await.body, long_text(0));
    }
    let failed = replica(&engine, &upstream, 1).fail().await;
    assert!(failed.stderr.contains("another secret"), "{}", failed.stderr);

    let store = open(&engine, sealed(&engine, ""), &[2, 1]).await.unwrap();
    let mut expected: Vec<_> = old.iter().chain([&new]).map(|target| key(target)).collect();
    let mut listed: Vec<_> = store.list(9).await.unwrap().iter().map(|info| info.key).collect();
    expected.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, expected);
    for key in expected {
        let query = PageQuery { limit: 9, prefix: Some(key.to_string()), ..PageQuery::default() };
        assert_eq!(store.page(query).await.unwrap().entries.len(), 1, "{key}");
    }
    // Without the old secret its handles are unknown, and what is listed of it cannot be read.
    let store = open(&engine, sealed(&engine, ""), &[2]).await.unwrap();
    assert_eq!(store.get(key(&old[0])).await.unwrap(), None);
    for info in store.list(9).await.unwrap().into_iter().filter(|info| info.key != key(&new)) {
        assert!(store.get(info.key).await.unwrap_err().source.to_string().contains("store.old_secrets_env"));
    }
    assert!(!store.is_failing());
    assert_eq!(store.get(key(&new)).await.unwrap().unwrap(), long_text(0));
}

async fn handles_of_a_replaced_secret_are_recalled_by_their_caller_alone(engine: Engine) {
    engine.init("").await;
    let upstream = Summarizer::playing([]).await;
    let [ann, bob] = ["ann", "bob"].map(|name| format!("authorization: Bearer {name}"));
    let before = replica(&engine, &upstream, 1).with("recall.auth = \"credential\"").start().await;
    let mut client = before.connect().await;
    client.send(post("/v1/chat/completions", &[&ann], with_results(&[long_text(1)]))).await;
    assert_eq!(client.reply().await.head.status(), 200);
    let target = recalls(&upstream.chats().pop().unwrap().body).pop().unwrap();
    before.signal("TERM");
    before.exit().await;

    let after = replica_after(&engine, &upstream, 2, 1).with("recall.auth = \"credential\"").start().await;
    for (fields, status) in [(&[ann.as_str()][..], 200), (&[&bob], 404), (&[], 401)] {
        let mut client = after.connect().await;
        client.send(request("GET", &target, fields)).await;
        assert_eq!(client.reply().await.head.status(), status, "{fields:?}");
    }
}

async fn pages_of_many_texts_of_one_second_leave_none_out(engine: Engine) {
    engine.init("").await;
    let store = open(&engine, sealed(&engine, ""), &[1]).await.unwrap();
    let keys = Keys::new(store.secret().unwrap());
    let texts = (0..100).map(|n| Bytes::from(format!("text {n}")));
    let payloads: Vec<_> = texts.map(|text| (keys.payload(keys.anonymous(), &text), text.into())).collect();
    let mut expected: Vec<_> = payloads.iter().map(|(key, _)| *key).collect();
    store.put(payloads, Lifetime::Usual).await.unwrap();
    let (mut found, mut query) = (Vec::new(), PageQuery { limit: 7, ..PageQuery::default() });
    loop {
        let page = store.page(query.clone()).await.unwrap();
        found.extend(page.entries.iter().map(|entry| entry.key));
        // As a client sends it back.
        query.after = page.next.map(|next| next.to_string().parse().unwrap());
        if query.after.is_none() {
            break;
        }
    }
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
}

async fn what_was_tampered_with_is_not_read_and_requests_go_on(engine: Engine) {
    engine.init("").await;
    let upstream = Summarizer::playing([]).await;
    let start = || summarising(replica(&engine, &upstream, 1)).start();
    let one = start().await;
    let whole = with_results(&[long_text(1)]);
    assert_eq!(ask(&one, &whole).await.head.status(), 200);
    let target = recalls(&upstream.chats().pop().unwrap().body).pop().unwrap();
    assert_eq!(ask(&one, talk("a", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
    assert_eq!(get(&one, &target).await.body, long_text(1));
    engine.tamper().await;

    let other = start().await;
    assert_eq!(get(&other, &target).await.head.status(), 500);
    for body in [whole, talk("a", 3)] {
        assert_eq!(ask(&other, body).await.head.status(), 200);
    }
    // Everything that is stored from now on is read.
    assert_eq!(ask(&other, with_results(&[long_text(2)])).await.head.status(), 200);
    let target = recalls(&upstream.chats().pop().unwrap().body).pop().unwrap();
    assert_eq!(get(&one, &target).await.body, long_text(2));

    let store = open(&engine, sealed(&engine, ""), &[1]).await.unwrap();
    let handle = fill(&*store).await;
    engine.tamper().await;
    assert_eq!(store.get(handle).await.unwrap_err().kind, StoreErrorKind::Damaged);
    assert_eq!(store.summary(place().beginning).await.unwrap(), None, "it is made anew");
}

on_each_engine!(
    who_reads_the_engine_finds_neither_texts_nor_handles,
    sealed_replicas_recall_what_another_has_stored_and_the_names_of_rows_recall_nothing,
    another_secret_or_another_way_to_keep_texts_is_refused,
    handles_of_a_replaced_secret_are_recalled_and_listed,
    handles_of_a_replaced_secret_are_recalled_by_their_caller_alone,
    pages_of_many_texts_of_one_second_leave_none_out,
    what_was_tampered_with_is_not_read_and_requests_go_on,
);
