//! Whose tables they are: made by `abridge store init`, under one secret.

use std::process::Command;

use abridge_proxy::store::PostgresStore;
use abridge_proxy::store::postgres::{EngineClock, OpenError, Options, PostgresError};
use abridge_proxy::store::secret::Secrets;
use tokio::task::JoinSet;

use crate::engine::{Postgres, settings};
use crate::it::support::Upstream;

async fn open(postgres: &Postgres, current: Option<&str>, old: Option<&str>) -> Result<PostgresStore, OpenError> {
    let secrets = Secrets::parse(current, old).unwrap();
    let (url, clock) = (postgres.url(), EngineClock::engine());
    PostgresStore::open(Options { url, settings: settings(""), secrets, clock, fresh: None }).await
}

#[tokio::test]
async fn without_tables_a_start_is_refused_and_says_how_to_make_them() {
    let Some(postgres) = Postgres::start().await else { return };
    let upstream = Upstream::start().await;
    let failed = postgres.replica(&upstream).fail().await;
    assert!(!failed.status.success());
    assert!(failed.stderr.contains("abridge store init"), "{}", failed.stderr);

    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("proxy.toml");
    let lines = "store = { engine = \"postgres\", url_env = \"STORE_URL\" }\nrecall.public_url = \"http://a.test\"\n";
    std::fs::write(&config, lines).unwrap();
    // Twice is once.
    for _ in 0..2 {
        let init = Command::new(env!("CARGO_BIN_EXE_abridge"))
            .args(["store", "init", "--config"])
            .arg(&config)
            .env("STORE_URL", postgres.url())
            .output()
            .unwrap();
        assert!(init.status.success(), "{}", String::from_utf8_lossy(&init.stderr));
    }
    postgres.replica(&upstream).start().await;
}

#[tokio::test]
async fn of_many_starts_at_once_one_makes_the_secret() {
    let Some(postgres) = Postgres::start().await else { return };
    postgres.init("").await;
    let mut starts = JoinSet::new();
    for _ in 0..20 {
        let options = Options {
            url: postgres.url(),
            settings: settings(""),
            secrets: Secrets::default(),
            clock: EngineClock::engine(),
            fresh: None,
        };
        starts.spawn(async move { PostgresStore::open(options).await.unwrap().secret().unwrap() });
    }
    let secrets = starts.join_all().await;
    assert!(secrets.iter().all(|secret| *secret == secrets[0] && *secret != [0; 32]));
}

#[tokio::test]
async fn another_secret_is_refused_until_the_old_one_is_named() {
    let Some(postgres) = Postgres::start().await else { return };
    postgres.init("").await;
    let [first, second] = ["0a", "0b"].map(|byte| byte.repeat(32));
    let is_refused =
        |opened: Result<PostgresStore, OpenError>| matches!(opened, Err(OpenError::Engine(PostgresError::OtherSecret)));
    assert_eq!(open(&postgres, Some(&first), None).await.unwrap().secret(), Some([0x0A; 32]));
    assert!(open(&postgres, Some(&first), None).await.is_ok());
    assert!(is_refused(open(&postgres, Some(&second), None).await));
    assert!(is_refused(open(&postgres, None, None).await));
    assert_eq!(open(&postgres, Some(&second), Some(&first)).await.unwrap().secret(), Some([0x0B; 32]));
    assert!(open(&postgres, Some(&second), None).await.is_ok());
    assert!(is_refused(open(&postgres, Some(&first), None).await), "it was replaced");
    // The secret itself is not in the engine.
    let n =
        postgres.number("SELECT count(*) FROM abridge_meta WHERE name = 'secret' OR octet_length(value) > 16").await;
    assert_eq!(n, 0);
}

#[tokio::test]
async fn a_store_that_has_its_own_secret_takes_no_other() {
    let Some(postgres) = Postgres::start().await else { return };
    postgres.init("").await;
    let own = open(&postgres, None, None).await.unwrap().secret();
    assert_eq!(open(&postgres, None, None).await.unwrap().secret(), own);
    let given = open(&postgres, Some(&"0a".repeat(32)), None).await;
    assert!(matches!(given, Err(OpenError::Engine(PostgresError::OwnSecret))), "{given:?}");
}
