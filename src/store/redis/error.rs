//! The meaning of Redis's errors.

use redis::{ErrorKind, RedisError};

use crate::store::engine::EngineError;
use crate::store::engine::error::Refusal;

/// Who says so serves no one on this connection: it is a replica, starts, is no part of a cluster that works, has other
/// slots than before, or has lost the scripts or the data.
const AWAY: [&str; 7] = ["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "NOSCRIPT", "ABRIDGELOST"];

/// Who says so has no room, in memory or on its disk.
const FULL: [&str; 2] = ["OOM", "MISCONF"];

const BUSY: [&str; 4] = ["BUSY", "ASK", "TRYAGAIN", "NOREPLICAS"];

impl From<RedisError> for EngineError {
    fn from(error: RedisError) -> Self {
        let Some(code) = error.code() else {
            return match error.kind() {
                _ if error.is_connection_dropped() => Self::Lost,
                ErrorKind::AuthenticationFailed => refused("AUTH", &error.to_string(), Refusal::Wrong),
                _ => Self::Unreachable(error.to_string().into()),
            };
        };
        let message = error.detail().unwrap_or_default();
        // Earlier versions name the error of a step in the text.
        let is = |codes: &[&str]| codes.iter().any(|known| code == *known || message.contains(&format!("-{known} ")));
        let means = match () {
            () if is(&FULL) => Refusal::Full,
            () if is(&AWAY) => Refusal::Away,
            () if is(&BUSY) => Refusal::Busy,
            () => Refusal::Wrong,
        };
        refused(code, message, means)
    }
}

/// A refusal with a code and what it means.
pub(super) fn refused(code: &str, message: &str, means: Refusal) -> EngineError {
    EngineError::Refused { code: code.into(), message: message.into(), means }
}
