//! The promise of a Redis about confirmed writes, by its settings.

use redis::Pipeline;

use super::Redis;
use super::answers::Answer as _;
use super::client::Client;
use super::connect::field;

impl Redis {
    /// What survives, and what may be lost.
    pub(super) async fn describe_promise(&self) -> String {
        let Ok(open) = self.links.reads.open() else { return "it does not say what survives a crash".to_owned() };
        let asking = async { Ok(describe_crash(&open.client).await) };
        let crash = self.links.reads.within(&open, asking).await.unwrap_or(UNKNOWN);
        let failover = match self.terms.settings.replicas_acknowledge {
            0 => "a replica that is promoted may lack what was confirmed last (store.replicas_acknowledge is 0)"
                .to_owned(),
            n => format!(
                "{n} of its replicas have what was confirmed, which survives the loss of the primary if one of them is promoted"
            ),
        };
        format!("{crash}; {failover}")
    }
}

const UNKNOWN: &str = "it does not say what survives a crash";

async fn describe_crash(client: &Client) -> &'static str {
    let Ok(persistence) = client.text(0, &["INFO", "persistence"]).await else { return UNKNOWN };
    if field(&persistence, "aof_enabled") != Some("1") {
        return "its append-only file is off, so a crash loses what was stored since its last snapshot";
    }
    let mut calls = Pipeline::new();
    calls.cmd("CONFIG").arg("GET").arg("appendfsync");
    // An operator may forbid the command.
    let said = client.send(0, &calls).await.unwrap_or_default();
    let sync = said.first().and_then(|pair| pair.items().ok()?.get(1)?.bytes().ok()?);
    match sync.as_deref() {
        Some(b"always") => "what it has confirmed survives a crash",
        Some(b"everysec") => "a crash of its machine may lose the last second (appendfsync everysec)",
        Some(b"no") => "a crash of its machine may lose the last half minute (appendfsync no)",
        _ => UNKNOWN,
    }
}
