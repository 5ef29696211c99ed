//! Whose tables they are: made by `abridge store init`, under one secret.

use std::process::Command;
use std::sync::Arc;

use abridge_proxy::store::SharedStore;
use abridge_proxy::store::engine::{EngineError, OpenError};
use abridge_proxy::store::secret::Secrets;
use tokio::task::JoinSet;

use crate::engine::{Engine, Postgres, on_each_engine};
use crate::it::support::{Upstream, binary};

type Opened = Result<Box<dyn SharedStore>, OpenError>;

async fn open(engine: &Engine, current: Option<&str>, old: Option<&str>) -> Opened {
    engine.open(Secrets::parse(current, old).unwrap()).await
}

#[tokio::test]
async fn without_tables_a_start_is_refused_and_says_how_to_make_them() {
    let Some(postgres) = Postgres::start().await else { return };
    let engine = Engine::Postgres(postgres);
    let upstream = Upstream::start().await;
    let failed = engine.replica(&upstream).fail().await;
    assert!(!failed.status.success());
    assert!(failed.stderr.contains("abridge store init"), "{}", failed.stderr);

    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("proxy.toml");
    let lines = "store = { engine = \"postgres\", url_env = \"STORE_URL\" }\nrecall.public_url = \"http://a.test\"\n";
    std::fs::write(&config, lines).unwrap();
    // Twice is once.
    for _ in 0..2 {
        let init = Command::new(binary())
            .args(["store", "init", "--config"])
            .arg(&config)
            .env("STORE_URL", engine.url())
            .output()
            .unwrap();
        assert!(init.status.success(), "{}", String::from_utf8_lossy(&init.stderr));
    }
    engine.replica(&upstream).start().await;
}

async fn of_many_starts_at_once_one_makes_the_secret(engine: Engine) {
    engine.init("").await;
    let engine = Arc::new(engine);
    let mut starts = JoinSet::new();
    for _ in 0..200 {
        let engine = Arc::clone(&engine);
        starts.spawn(async move {
            loop {
                match open(&engine, None, None).await {
                    // So many at once may take longer than `store.timeout`; `abridge serve` tries again, too.
                    Err(OpenError::Engine(error)) if error.may_pass() => {}
                    opened => break opened.unwrap().secret().unwrap(),
                }
            }
        });
    }
    let secrets = starts.join_all().await;
    assert!(secrets.iter().all(|secret| *secret == secrets[0] && *secret != [0; 32]));
}

async fn another_secret_is_refused_until_the_old_one_is_named(engine: Engine) {
    engine.init("").await;
    let [first, second] = ["0a", "0b"].map(|byte| byte.repeat(32));
    let is_refused = |opened: Opened| matches!(opened, Err(OpenError::Engine(EngineError::OtherSecret)));
    assert_eq!(open(&engine, Some(&first), None).await.unwrap().secret(), Some([0x0A; 32]));
    assert!(open(&engine, Some(&first), None).await.is_ok());
    assert!(is_refused(open(&engine, Some(&second), None).await));
    assert!(is_refused(open(&engine, None, None).await));
    assert_eq!(open(&engine, Some(&second), Some(&first)).await.unwrap().secret(), Some([0x0B; 32]));
    assert!(open(&engine, Some(&second), None).await.is_ok());
    assert!(is_refused(open(&engine, Some(&first), None).await), "it was replaced");
    // The secret itself is not in the engine.
    match &engine {
        Engine::Postgres(postgres) => {
            let meta = "SELECT count(*) FROM abridge_meta WHERE name = 'secret' OR octet_length(value) > 16";
            assert_eq!(postgres.number(meta).await, 0);
        }
        Engine::Redis(redis) => {
            assert_eq!(redis.run(&["HKEYS", "abridge:{00}:meta"]), "version\nsecret_check");
            assert_eq!(redis.run(&["HSTRLEN", "abridge:{00}:meta", "secret_check"]), "16");
        }
    }
}

async fn a_store_that_has_its_own_secret_takes_no_other(engine: Engine) {
    engine.init("").await;
    let own = open(&engine, None, None).await.unwrap().secret();
    assert_eq!(open(&engine, None, None).await.unwrap().secret(), own);
    let given = open(&engine, Some(&"0a".repeat(32)), None).await;
    assert!(matches!(given, Err(OpenError::Engine(EngineError::OwnSecret))), "{given:?}");
}

on_each_engine!(
    of_many_starts_at_once_one_makes_the_secret,
    another_secret_is_refused_until_the_old_one_is_named,
    a_store_that_has_its_own_secret_takes_no_other,
);
