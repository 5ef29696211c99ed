//! Makes the tables, for `abridge store init`: the proxy's own role needs no right to do so.

use std::time::Duration;

use super::connect::{encrypts, hosts};
use super::sql;
use crate::store::Settings;
use crate::store::engine::link::first_of;
use crate::store::engine::tls::Tls;
use crate::store::engine::{EngineError, OpenError};

/// How long the tables may take to be made.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Makes the tables that do not exist.
pub async fn init(url: &str, settings: &Settings) -> Result<(), OpenError> {
    let hosts = hosts(url, settings.timeout.0)?;
    let tls = Tls::new(settings.ca_file.as_deref(), encrypts(&hosts))?;
    let prefix = settings.table_prefix();
    Ok(first_of(TIMEOUT, hosts.iter().map(|host| create(host, tls.clone(), &prefix))).await?)
}

async fn create(host: &tokio_postgres::Config, tls: Tls, prefix: &str) -> Result<(), EngineError> {
    let (client, connection) = host.connect(tls).await?;
    let creating = async {
        for statement in sql::statements("create", prefix) {
            client.batch_execute(&statement).await?;
        }
        // It saves the engine work, and is not a standard.
        let _plain = client.batch_execute(&sql::statement("store_plain", prefix)).await;
        Ok(())
    };
    tokio::select! {
        created = creating => created,
        _ended = connection => Err(EngineError::Lost),
    }
}
