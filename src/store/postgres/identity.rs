//! Whose tables they are: their version, and the secret that all names are made with.

use std::sync::OnceLock;

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use zeroize::Zeroizing;

use super::error::PostgresError;
use super::sql;
use crate::store::secret::{Secrets, check_value};

/// What the tables must be, and the secret once it is known.
#[derive(Debug)]
pub(super) struct Identity {
    prefix: String,
    secrets: Secrets,
    /// A secret that the tables get if they have none.
    fresh: Zeroizing<[u8; 32]>,
    found: OnceLock<Zeroizing<[u8; 32]>>,
}

// === impl Identity ===

impl Identity {
    pub(super) fn new(prefix: String, secrets: Secrets, fresh: [u8; 32]) -> Self {
        Self { prefix, secrets, fresh: Zeroizing::new(fresh), found: OnceLock::new() }
    }

    /// The secret: that of the settings, or the tables' own once they were read.
    pub(super) fn secret(&self) -> Option<[u8; 32]> {
        self.secrets.current().or_else(|| self.found.get().map(|secret| **secret))
    }

    /// Checks the tables behind a new connection. Tables that have no secret get one.
    pub(super) async fn check(&self, client: &Client) -> Result<(), PostgresError> {
        let version = self.number(client, "version").await?.ok_or(PostgresError::NotInitialised)?;
        if version != sql::VERSION {
            return Err(PostgresError::Version(version));
        }
        match self.secrets.current() {
            Some(secret) => self.check_secret(client, &secret).await,
            None => self.read_secret(client).await,
        }
    }

    /// The tables hold a hash of the secret, so that a process with another one finds out.
    async fn check_secret(&self, client: &Client, secret: &[u8; 32]) -> Result<(), PostgresError> {
        if self.value(client, "secret").await?.is_some() {
            return Err(PostgresError::OwnSecret);
        }
        let value = check_value(secret);
        self.put_if_absent(client, "secret_check", &value).await?;
        let stored = self.value(client, "secret_check").await?.unwrap_or_default();
        if stored == value {
            return Ok(());
        }
        if !self.secrets.old().any(|old| stored == check_value(old)) {
            return Err(PostgresError::OtherSecret);
        }
        let replace = sql::statement(sql::REPLACE_META, &self.prefix);
        let parameters: &[_] =
            &[(&"secret_check" as _, Type::TEXT), (&value.as_slice() as _, Type::BYTEA), (&stored as _, Type::BYTEA)];
        client.execute_typed(&replace, parameters).await?;
        Ok(())
    }

    /// Of several processes that start at once, one makes the secret.
    async fn read_secret(&self, client: &Client) -> Result<(), PostgresError> {
        if self.value(client, "secret_check").await?.is_some() {
            return Err(PostgresError::OtherSecret);
        }
        self.put_if_absent(client, "secret", self.fresh.as_slice()).await?;
        let stored = self.value(client, "secret").await?.and_then(|secret| secret.try_into().ok());
        let stored: [u8; 32] = stored.ok_or(PostgresError::Damaged)?;
        // A database that was replaced by another one names nothing that this process has named.
        if **self.found.get_or_init(|| Zeroizing::new(stored)) == stored {
            Ok(())
        } else {
            Err(PostgresError::OtherSecret)
        }
    }

    async fn put_if_absent(&self, client: &Client, name: &str, value: &[u8]) -> Result<(), PostgresError> {
        let put = sql::statement(sql::PUT_META, &self.prefix);
        client.execute_typed(&put, &[(&name, Type::TEXT), (&value, Type::BYTEA)]).await?;
        Ok(())
    }

    async fn value(&self, client: &Client, name: &str) -> Result<Option<Vec<u8>>, PostgresError> {
        let found = client.query_typed_opt(&sql::statement(sql::META, &self.prefix), &[(&name, Type::TEXT)]).await?;
        Ok(found.map(|row| row.try_get(0)).transpose()?.flatten())
    }

    async fn number(&self, client: &Client, name: &str) -> Result<Option<i64>, PostgresError> {
        let found = client.query_typed_opt(&sql::statement(sql::META, &self.prefix), &[(&name, Type::TEXT)]).await?;
        Ok(found.map(|row| row.try_get(1)).transpose()?.flatten())
    }
}
