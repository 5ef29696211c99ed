//! Upgrades of OpenAI Responses: a turn that goes through a websocket is not edited, so it is refused where at least one edit is on. With `dry_run`, or with `x-abridge: off` or `dry-run` in the request, it
//! is tunnelled.

use std::sync::atomic::Ordering;

use http::{Method, Request};
use serde::{Deserialize, Serialize};

use super::headers::{self, ControlHeader};
use super::{LiveConfig, Proxy, ProxyError};
use crate::upstream::routes::RequestFacts;

/// `[responses]` of `proxy.toml`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Who answers requests for a compaction: `POST …/responses/compact`, and turns that end in `compaction_trigger`. An
    /// answer of abridge's own is a summary of the whole conversation, made by the settings of `[summarize]`, as one
    /// message of the user, or as one item `compaction`.
    pub compact: Compact,
}

/// Who answers requests for a compaction.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compact {
    /// The upstream.
    #[default]
    Pass,
    /// The upstream, until it has shown that it compacts nothing; then abridge.
    Auto,
    /// abridge.
    Answer,
}

/// How the paths of turns end, which is where clients open sockets too.
const PATH: &str = "/responses";

impl Proxy {
    /// The error for a socket that is refused. The log says once what becomes of sockets.
    pub(super) fn check_socket<B>(&self, live: &LiveConfig, request: &Request<B>) -> Option<ProxyError> {
        let notices = &self.accounting.notices;
        let has_edits = || {
            let destination = live.destinations.find(&RequestFacts::of_head(request));
            !destination.usual.rules.planner.settings.policy.edits.is_empty()
        };
        if !is_socket(request) || !has_edits() {
            return None;
        }
        let follows_policy =
            matches!(ControlHeader::from_headers(request.headers()), ControlHeader::Policy | ControlHeader::Unknown);
        if !live.dry_run && follows_policy {
            if !notices.socket_refused.swap(true, Ordering::Relaxed) {
                tracing::info!(
                    "a websocket to {PATH} was answered with 426, so that the client goes on over HTTP, where its requests are edited; x-abridge: off lets a socket through, unedited"
                );
            }
            return Some(ProxyError::SocketRefused);
        }
        if !notices.socket_tunnelled.swap(true, Ordering::Relaxed) {
            tracing::info!("a websocket to {PATH} is tunnelled, and no request in it is edited");
        }
        None
    }
}

/// Whether a request asks for a WebSocket to a path of turns.
fn is_socket<B>(request: &Request<B>) -> bool {
    let is_websocket = |name: &[u8]| {
        name.split(|byte| *byte == b'/').next().is_some_and(|name| name.eq_ignore_ascii_case(b"websocket"))
    };
    request.method() == Method::GET
        && request.uri().path().ends_with(PATH)
        && headers::upgrade_protocol(request.headers()).iter().flat_map(headers::names).any(is_websocket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, fields: &[(&str, &str)]) -> Request<()> {
        let request = fields.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap()
    }

    #[test]
    fn a_socket_is_a_get_with_an_upgrade_to_websocket() {
        let upgrade = |protocol| [("connection", "Upgrade"), ("upgrade", protocol)];
        for path in ["/v1/responses", "/responses", "/backend-api/codex/responses", "/openai/responses?api-version=1"] {
            assert!(is_socket(&get(path, &upgrade("websocket"))), "{path}");
        }
        for protocol in ["WebSocket", "websocket/13", "foo, websocket"] {
            assert!(is_socket(&get("/v1/responses", &upgrade(protocol))), "{protocol}");
        }
        for path in ["/v1/realtime", "/v1/responses/resp_1", "/v1/chat/completions", "/v1/responses/"] {
            assert!(!is_socket(&get(path, &upgrade("websocket"))), "{path}");
        }
        for protocol in ["foo", "h2c", "websocket, h2c", "websockets"] {
            assert!(!is_socket(&get("/v1/responses", &upgrade(protocol))), "{protocol}");
        }
        assert!(!is_socket(&get("/v1/responses", &[("upgrade", "websocket")])));
        let mut post = get("/v1/responses", &upgrade("websocket"));
        *post.method_mut() = Method::POST;
        assert!(!is_socket(&post));
    }
}
