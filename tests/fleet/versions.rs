//! Two versions on one engine: rows of a later one in a format that this one does not know.

use abridge_proxy::payload::{ChainKey, Keys, Lifetime, Place};
use abridge_proxy::store::secret::Secrets;
use abridge_proxy::store::tests::conformance::damage::later_row;
use abridge_proxy::store::tests::conformance::{dense, key};
use abridge_proxy::store::{PageQuery, StoreErrorKind};
use bytes::Bytes;

use crate::engine::{Engine, on_each_engine};
use crate::it::support::offloads::{long_text, recalls, with_results};
use crate::it::support::summarizer::{INSTRUCTION, Summarizer, talk};
use crate::replicas::{ask, get};

async fn what_a_later_version_has_stored_is_missing_here_and_stays_as_it_is(engine: Engine) {
    engine.init("").await;
    let place = Place { root: ChainKey::from_bytes([1; 16]), beginning: ChainKey::from_bytes([2; 16]) };
    let text = dense(1, 2_000);
    let open = async || engine.open(Secrets::default()).await.unwrap();
    let store = open().await;
    store.put(vec![(key(&text), text.clone().into())], Lifetime::Usual).await.unwrap();
    store.offer_summary(place, dense(2, 2_000)).await.unwrap();
    engine.remake(later_row).await;
    let before = engine.bodies().await;
    assert_eq!(before.len(), 2);

    let older = open().await;
    for _ in 0..2 {
        assert_eq!(older.get(key(&text)).await.unwrap(), None);
        assert_eq!(older.summary(place.beginning).await.unwrap_err().kind, StoreErrorKind::Corrupt);
        assert!(older.offer_summary(place, dense(3, 2_000)).await.is_err());
        let query = PageQuery { limit: 9, text: Some("x".to_owned()), ..PageQuery::default() };
        assert!(older.page(query).await.unwrap().entries.is_empty());
        older.put(vec![(key(&text), text.clone().into())], Lifetime::Usual).await.unwrap();
        older.sweep().await.unwrap();
        older.maintain().await.unwrap();
    }
    assert!(!older.is_failing(), "it is no failure of the store");
    assert_eq!(engine.bodies().await, before);
    // All else is stored and read.
    let (keys, other) = (Keys::new(older.secret().unwrap()), Bytes::from_static(b"another text"));
    let handle = keys.payload(keys.anonymous(), &other);
    older.put(vec![(handle, other.clone().into())], Lifetime::Usual).await.unwrap();
    assert_eq!(older.get(handle).await.unwrap(), Some(other));
}

async fn requests_go_on_beside_a_later_version(engine: Engine) {
    engine.init("").await;
    let upstream = Summarizer::playing([]).await;
    let start = || {
        let setup =
            engine.replica_to(upstream.url().to_owned()).with(format!("summarize.instruction = {INSTRUCTION:?}"));
        setup.with("summarize.trigger = { tokens = 900 }").with("tokens.counter = \"estimate\"").start()
    };
    let later = start().await;
    let whole = with_results(&[long_text(1)]);
    assert_eq!(ask(&later, &whole).await.head.status(), 200);
    let target = recalls(&upstream.chats().pop().unwrap().body).pop().unwrap();
    assert_eq!(ask(&later, talk("a", 3)).await.head.get("x-abridge-edits"), Some("summary=1"));
    engine.remake(later_row).await;
    let before = engine.bodies().await;

    let older = start().await;
    assert_eq!(get(&older, &target).await.head.status(), 404);
    for _ in 0..3 {
        assert_eq!(ask(&older, &whole).await.head.status(), 200);
        assert_eq!(ask(&older, talk("a", 3)).await.head.status(), 200);
        assert_eq!(upstream.chats().pop().unwrap().body, talk("a", 3).as_bytes(), "it is not summarised anew");
    }
    assert_eq!(upstream.summaries().len(), 1);
    let after = engine.bodies().await;
    assert!(before.iter().all(|body| after.contains(body)));
}

on_each_engine!(
    what_a_later_version_has_stored_is_missing_here_and_stays_as_it_is,
    requests_go_on_beside_a_later_version,
);
