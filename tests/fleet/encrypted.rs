//! TLS to the engine: its certificate is checked.

use abridge_proxy::store::postgres::{EngineClock, Options, PostgresError};
use abridge_proxy::store::secret::Secrets;
use abridge_proxy::store::{PostgresStore, Settings};

use crate::engine::{Postgres, settings};
use crate::it::support::tls::Certificate;

#[tokio::test]
async fn a_certificate_that_nobody_has_signed_is_refused_unless_the_settings_name_it() {
    let Some(mut postgres) = Postgres::start().await else { return };
    postgres.init("").await;
    let (own, foreign) = (Certificate::new(), Certificate::new());
    postgres.kill();
    postgres.encrypt(&own).await;
    let open = async |certificate: Option<&Certificate>| {
        let ca_file = certificate.map(|certificate| certificate.cert.clone());
        let options = Options {
            url: format!("{}?sslmode=require", postgres.url()),
            settings: Settings { ca_file, ..settings("") },
            // With a secret, what cannot be reached is no error at start.
            secrets: Secrets::parse(Some(&"0a".repeat(32)), None).unwrap(),
            clock: EngineClock::engine(),
            fresh: None,
        };
        PostgresStore::open(options).await.unwrap().state()
    };
    assert!(open(Some(&own)).await.is_ok());
    for wrong in [None, Some(&foreign)] {
        let refused = open(wrong).await;
        let is_certificate = |said: &str| said.contains("certificate");
        assert!(matches!(&refused, Err(PostgresError::Unreachable(said)) if is_certificate(said)), "{refused:?}");
    }
}
