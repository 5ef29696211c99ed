//! The configuration that a reload can replace while the proxy runs.

use super::{Destination, Destinations, compress, responses};
use crate::admin::access::Access;
use crate::admin::clients::Clients;
use crate::{inspect, recall};

/// The configuration that a reload can replace while the proxy runs.
#[derive(Debug)]
pub struct LiveConfig {
    /// Where requests go, and which edits run.
    pub destinations: Destinations,
    /// Access control for the paths below `/abridge/`.
    pub access: Access,
    /// Whether a recall needs the credential of the conversation.
    pub recall_auth: recall::Auth,
    /// The clients that may use abridge.
    pub clients: Clients,
    /// What becomes of websockets that would carry conversations.
    pub responses: responses::Settings,
    /// Whether gateways are served, and where.
    pub compress: compress::Settings,
    /// How many edited requests keep their messages for inspection.
    pub inspect: inspect::Settings,
    /// Whether edits are reported but not made.
    pub dry_run: bool,
}

// === impl LiveConfig ===

impl LiveConfig {
    /// A name for the version and all settings that the bytes of a request depend on.
    pub fn fingerprint(&self) -> String {
        let all: Vec<_> =
            self.destinations.iter().flat_map(Destination::arms).map(|arm| &arm.rules.planner.settings).collect();
        let parts = serde_json::to_vec(&(env!("CARGO_PKG_VERSION"), all)).unwrap_or_default();
        blake3::hash(&parts).to_hex().chars().take(12).collect()
    }
}
