//! Knowledge of messages that were seen before.

use super::*;
use crate::string_index::StringIndexer;

#[tokio::test]
async fn known_messages_are_neither_tokenised_nor_stored_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.redb");
    let store = Arc::new(RedbStore::open(&file, store::Settings::default(), Clock::system()).unwrap());
    let engine = Engine::new(Some(store.clone()), WAIT, keys(), Tasks::default(), Events::default());
    let mut settings = PlanSettings::default();
    settings.truncate_tool_results.max_bytes = 8000;
    let (config, caller) = (config(&settings), engine.caller(Some(b"Bearer a")));
    let edit = async |last: &str| {
        let edited = engine.edit_body(&config, chat(), session(100, last), options(caller, Apply)).await;
        assert!(edited.error.is_none());
        edited.report.unwrap().changes
    };

    let first = edit("a").await;
    let cleared = first.iter().filter(|change| change.edit == "clear").count();
    assert!(cleared >= 60 && first.len() > cleared, "{cleared} of {} changes clear", first.len());
    let (stats, tokenised) = (store.stats().await.unwrap(), config.planner.meter.n_tokenised());
    assert!(stats.written >= 60 && tokenised > 900_000, "{stats:?}, {tokenised} bytes tokenised");

    let tail = (0..700).map(|n| format!("and then go on with number {n} ")).collect::<Vec<_>>().concat();
    assert_eq!(edit(&tail).await.len(), first.len());
    let tokenised = config.planner.meter.n_tokenised() - tokenised;
    let slack = 64; // the role of the last message, and what else is too short to be remembered
    assert!(
        (tail.len() as u64..=tail.len() as u64 + slack).contains(&tokenised),
        "{tokenised} bytes tokenised for a tail of {}",
        tail.len()
    );
    // The pass at the new place was remembered; the same request again has nothing new.
    let stats = store.stats().await.unwrap();
    assert_eq!(edit(&tail).await.len(), first.len());
    let now = store.stats().await.unwrap();
    assert_eq!((now.commits, now.written), (stats.commits, stats.written));
}

#[tokio::test]
async fn what_was_hashed_while_it_arrived_is_known_by_the_same() {
    let (engine, _store) = engine();
    let (config, body) = (config(&PlanSettings::default()), session(60, "a"));
    let edit = async |body: IndexedBody| {
        let edited = engine.edit_body(&config, chat(), body, options(engine.caller(None), Apply)).await;
        assert!(edited.changed() && edited.error.is_none());
        (edited.body.concat(), config.planner.meter.n_tokenised())
    };
    let indexed = |chunk: usize, hashes| {
        let mut indexer = StringIndexer::new(hashes);
        body.chunks(chunk).for_each(|chunk| indexer.push(chunk));
        IndexedBody::new(body.clone(), indexer.finish())
    };
    let first = edit(indexed(1000, true)).await;
    for again in [body.clone().into(), indexed(1001, true), indexed(100_000, true), indexed(5000, false)] {
        assert!(edit(again).await == first, "another body, or something was counted again");
    }
}
