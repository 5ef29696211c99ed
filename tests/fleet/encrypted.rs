//! TLS to the engine: its certificate is checked.

use abridge_proxy::store::Settings;
use abridge_proxy::store::engine::{self, EngineError, Options};
use abridge_proxy::store::secret::Secrets;

use crate::engine::{Engine, on_each_engine};
use crate::it::support::tls::Certificate;

async fn a_certificate_that_nobody_has_signed_is_refused_unless_the_settings_name_it(mut engine: Engine) {
    engine.init("").await;
    let (own, foreign) = (Certificate::new(), Certificate::new());
    engine.kill();
    engine.encrypt(&own).await;
    let open = async |certificate: Option<&Certificate>| {
        let ca_file = certificate.map(|certificate| certificate.cert.clone());
        let options = Options {
            url: format!("{}?sslmode=require", engine.url()),
            settings: Settings { ca_file, ..engine.settings("") },
            // With a secret, what cannot be reached is not an error at start.
            secrets: Secrets::parse(Some(&"0a".repeat(32)), None).unwrap(),
            clock: None,
            fresh: None,
        };
        engine::open(options).await.unwrap().state()
    };
    assert!(open(Some(&own)).await.is_ok());
    for wrong in [None, Some(&foreign)] {
        let refused = open(wrong).await;
        let is_certificate = |said: &str| said.contains("certificate");
        assert!(matches!(&refused, Err(EngineError::Unreachable(said)) if is_certificate(said)), "{refused:?}");
    }
}

on_each_engine!(a_certificate_that_nobody_has_signed_is_refused_unless_the_settings_name_it);
