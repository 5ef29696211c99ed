//! Makes the tables, for `abridge store init`: the proxy's own role needs no right to do so.

use std::time::Duration;

use tokio::time::timeout;

use super::connect::{encrypts, hosts};
use super::sql;
use crate::store::Settings;
use crate::store::engine::tls::Tls;
use crate::store::engine::{EngineError, OpenError};

/// How long the tables may take to be made.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Makes the tables that do not exist.
pub async fn init(url: &str, settings: &Settings) -> Result<(), OpenError> {
    let hosts = hosts(url, settings.timeout.0)?;
    let tls = Tls::new(settings.ca_file.as_deref(), encrypts(&hosts))?;
    let mut last = EngineError::Closed;
    for host in hosts {
        match timeout(TIMEOUT, create(&host, tls.clone(), &settings.table_prefix())).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => last = error,
            Err(_) => last = EngineError::TimedOut(TIMEOUT),
        }
    }
    Err(last.into())
}

async fn create(host: &tokio_postgres::Config, tls: Tls, prefix: &str) -> Result<(), EngineError> {
    let (client, connection) = host.connect(tls).await?;
    let creating = async {
        for text in sql::CREATE {
            client.batch_execute(&sql::statement(text, prefix)).await?;
        }
        // It saves the engine work, and is no standard.
        let _plain = client.batch_execute(&sql::statement(sql::STORE_PLAIN, prefix)).await;
        Ok(())
    };
    tokio::select! {
        created = creating => created,
        _ended = connection => Err(EngineError::Lost),
    }
}
