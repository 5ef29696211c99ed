//! Checks of `[store]`: ranges, and what cannot hold where several processes share a store.

use std::path::Path;

use super::{Checker, MAX_PERIOD, MIN_PERIOD};
use crate::config::{Config, ConfigError};
use crate::recall::Via;
use crate::store::StoreEngine;
use crate::units::{ByteSize, Period};

/// The most replicas that are waited for.
const MAX_REPLICAS: usize = 8;

impl Checker<'_> {
    pub(super) fn store(&self) -> Result<(), ConfigError> {
        let store = &self.config.store;
        for (key, period, least) in
            [("keep_for", store.keep_for, Period::secs(60)), ("timeout", store.timeout, MIN_PERIOD)]
        {
            self.within(&["store", key], period, least..=MAX_PERIOD)?;
        }
        self.within(&["store", "max_bytes"], store.max_bytes, ByteSize::mib(1)..=ByteSize::mib(1 << 30))?;
        let is_empty = |path: &Path| path.as_os_str().is_empty();
        if store.path.as_deref().is_some_and(is_empty) {
            return self.refuse(&["store", "path"], "empty; allowed: the path of a file");
        }
        for (key, name) in [
            ("url_env", &store.url_env),
            ("secret_env", &store.secret_env),
            ("old_secrets_env", &store.old_secrets_env),
        ] {
            self.variable_name(&["store", key], name.as_deref())?;
            if name.is_some() && store.engine == StoreEngine::File {
                let message = "not with store.engine = \"file\", which is one process's own; allowed: another engine";
                return self.refuse(&["store", key], message);
            }
        }
        if store.seal && store.engine == StoreEngine::File {
            let message = "on, and store.engine is \"file\", which is not encrypted; allowed: another engine, or a disk that encrypts";
            return self.refuse(&["store", "seal"], message);
        }
        self.within(&["store", "replicas_acknowledge"], store.replicas_acknowledge, 0..=MAX_REPLICAS)?;
        if store.replicas_acknowledge > 0 && store.engine != StoreEngine::Redis {
            let message = "not 0, and store.engine is not \"redis\"; allowed: 0";
            return self.refuse(&["store", "replicas_acknowledge"], message);
        }
        match store.engine {
            StoreEngine::File => Ok(()),
            StoreEngine::Postgres | StoreEngine::Redis => self.fleet(),
        }
    }

    /// What several processes need to send the same bytes, and what they cannot share.
    fn fleet(&self) -> Result<(), ConfigError> {
        let Config { store, recall, .. } = self.config;
        let refuse =
            |path: [&str; 2], message: &str| Err(self.error_at_any(&[&path, &["store", "engine"]], message.to_owned()));
        if store.url_env.is_none() {
            let message = "store.url_env is not set, and store.engine is not \"file\"; allowed: the name of the variable with the engine's URL";
            return refuse(["store", "url_env"], message);
        }
        if store.old_secrets_env.is_some() && store.secret_env.is_none() {
            let message = "set without store.secret_env; allowed: both, or neither";
            return refuse(["store", "old_secrets_env"], message);
        }
        if store.seal && store.secret_env.is_none() {
            let message =
                "on without store.secret_env, so the engine would hold the secret too; allowed: both, or neither";
            return refuse(["store", "seal"], message);
        }
        let is_in_names = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let namespace = store.namespace.as_deref();
        if namespace.is_some_and(|name| name.is_empty() || name.len() > 32 || !name.chars().all(is_in_names)) {
            let message = "not a part of a name; allowed: up to 32 lower-case letters, digits and _";
            return refuse(["store", "namespace"], message);
        }
        if store.enabled && recall.public_url.is_none() {
            let message = "recall.public_url is not set, and store.engine is not \"file\": the texts of each process would name its own address; allowed: the URL at which the agents' tools reach all processes";
            return refuse(["recall", "public_url"], message);
        }
        for (key, is_file) in [("via", recall.via == Via::File), ("export_dir", recall.export_dir.is_some())] {
            if is_file {
                let message = "files are one machine's own, and store.engine is not \"file\"; allowed: texts that are read back over HTTP";
                return refuse(["recall", key], message);
            }
        }
        Ok(())
    }
}
