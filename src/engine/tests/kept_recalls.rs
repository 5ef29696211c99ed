//! Recalls that the model has made beside calls of the client: which of them are found again.

use super::*;
use crate::engine::kept_recalls::{KeptRecall, TurnPlace};

#[tokio::test(start_paused = true)]
async fn recalls_that_a_store_has_not_answered_for_are_found_later() {
    let store = Arc::new(Stuck::new());
    let answer = |answers: bool| store.1.store(answers, Ordering::Relaxed);
    let engine = || Engine::new(Some(store.clone()), WAIT, keys(), Tasks::default(), Events::default());
    let caller = engine().caller(None);
    let [turn, mark] = [1, 2].map(|n| ChainKey::from_bytes([n; 16]));
    let recalls = [KeptRecall { n_before: 1, call: "{}".to_owned(), result: "{\"a\":1}".to_owned() }];
    answer(true);
    engine().kept_recalls.keep(TurnPlace { turn, caller: (caller, mark) }, &recalls).await;
    // Another process, which remembers nothing.
    let engine = engine();
    let kept = &engine.kept_recalls;
    for answers in [false, true] {
        answer(answers);
        assert_eq!(kept.may_have(caller, || mark).await, answers);
        assert_eq!(kept.get(turn).await.as_deref(), answers.then_some(&recalls[..]));
    }
    // None are looked up once more of a caller who has none, until the first is kept.
    let other = engine.caller(Some(b"other"));
    let [turn, mark] = [3, 4].map(|n| ChainKey::from_bytes([n; 16]));
    assert!(!kept.may_have(other, || mark).await && !kept.may_have(other, || panic!("it is known")).await);
    kept.keep(TurnPlace { turn, caller: (other, mark) }, &recalls).await;
    assert!(kept.may_have(other, || panic!("it is known")).await);
}
