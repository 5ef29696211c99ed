//! Who sends a request: a known client, a caller, an operator; which payloads and events it may read; and whether requests of
//! several callers have come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue};
use smart_default::SmartDefault;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep};

use super::headers::{self, X_GOOG_API_KEY, credential, shown_credential};
use super::{ClientRequest, Destination, LiveConfig, OwnAnswer, Proxy, ProxyError};
use crate::admin::Requester;
use crate::admin::access::{self, AccessError, ConnectionInfo, Exposure, ListenerRole, is_forwarded};
use crate::admin::clients::Client;
use crate::admin::mcp::{self, Session};
use crate::events::Audience;
use crate::held::Held;
use crate::payload::Caller;
use crate::recall::Auth;
use crate::upstream::routes::ANTHROPIC_VERSION;

/// How long the answer to a wrong token takes. Wrong tokens are answered one after the other.
const WRONG_TOKEN_DELAY: Duration = Duration::from_secs(1);

/// How many wrong tokens wait for their answer; further ones are answered at once, with 429.
const MAX_WRONG_TOKENS: usize = 16;

/// How often wrong tokens are logged.
const WRONG_TOKEN_LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Slows down and logs requests with a wrong token.
#[derive(Debug, SmartDefault)]
pub(super) struct WrongTokens {
    #[default(Semaphore::new(MAX_WRONG_TOKENS))]
    waiting: Semaphore,
    since_logged: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

/// How a text can be read by its handle, as `abridge serve` and `abridge doctor` say it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, strum::Display)]
pub enum HandleAccess {
    /// By the handle alone.
    #[strum(to_string = "by their handle alone (recall.auth = \"handle\")")]
    Handle,
    /// By the handle alone from this machine, as long as one caller sends requests.
    #[strum(to_string = "by their handle alone while one caller sends requests, else with its credential")]
    OneCaller,
    /// With the credential of the conversation.
    #[strum(to_string = "with the credential of the conversation")]
    Credential,
}

impl HandleAccess {
    /// What these settings mean on a listener.
    pub fn of(auth: Auth, exposure: Exposure, knows_clients: bool) -> Self {
        match auth {
            Auth::Handle => Self::Handle,
            Auth::Auto if exposure != Exposure::Network && !knows_clients => Self::OneCaller,
            Auth::Auto | Auth::Credential => Self::Credential,
        }
    }
}

// === impl WrongTokens ===

impl WrongTokens {
    /// Waits until a wrong token may be answered. `None` if too many wait already.
    async fn delay(&self, path: &str, connection: ConnectionInfo) -> Option<()> {
        self.since_logged.fetch_add(1, Ordering::Relaxed);
        let _waiting = self.waiting.try_acquire().ok()?;
        let mut logged = self.logged.lock().await;
        if logged.is_none_or(|before| before.elapsed() >= WRONG_TOKEN_LOG_INTERVAL) {
            let count = self.since_logged.swap(0, Ordering::Relaxed);
            let peer = connection.peer.map_or_else(|| "a Unix socket".to_owned(), |peer| peer.to_string());
            tracing::warn!(peer, path, count, "a wrong token was shown; each is answered after a second");
            *logged = Some(Instant::now());
        }
        sleep(WRONG_TOKEN_DELAY).await;
        Some(())
    }
}

// === impl Proxy ===

impl Proxy {
    /// Notes which known client sends the request, in a header field that clients cannot set, and removes its token: no
    /// upstream gets it. Where no clients are known, every client may use abridge.
    ///
    /// A client renews the tokens of an account every few hours, and a text whose name depends on the token would then get
    /// another name. So all tokens of an account are noted as one, on this machine, as long as no other caller has come. The
    /// upstream checks the token, and abridge cannot: requests that read texts from abridge are not noted.
    pub(super) fn identify(
        &self,
        live: &LiveConfig,
        request: &mut ClientRequest,
        connection: ConnectionInfo,
        is_for_upstream: bool,
    ) -> Result<(), ProxyError> {
        let query_key = headers::query_key(request.uri()).filter(|_| is_for_upstream);
        let headers = request.headers_mut();
        let shown = headers.remove(headers::CLIENT);
        if !live.clients.are_required() {
            let is_local = connection.listener_role.exposure() != Exposure::Network && !is_forwarded(headers);
            let may_be_account = is_for_upstream && is_local && !self.are_several_callers();
            match shown_credential(headers) {
                Some(shown) if may_be_account && expires(shown) => headers::set_account(headers),
                None => headers.extend(query_key.map(|key| (headers::CLIENT, key))),
                Some(_) => {}
            }
            return Ok(());
        }
        let by_certificate = connection.certificate.and_then(|digest| live.clients.with_digest(&digest));
        let by_field = || live.clients.with_token(shown.as_ref()?.as_bytes());
        let client = by_certificate.or_else(by_field).map(Arc::clone);
        let client = client.or_else(|| Self::take_token(live, headers)).ok_or(ProxyError::UnknownClient)?;
        client.count();
        // Its bytes are those that a header value may have.
        headers.insert(headers::CLIENT, HeaderValue::from_str(&client.name).map_err(|_| ProxyError::UnknownClient)?);
        Ok(())
    }

    /// The client whose token was sent in place of a key; the field is removed.
    fn take_token(live: &LiveConfig, headers: &mut HeaderMap) -> Option<Arc<Client>> {
        let mut fields = [headers::X_API_KEY, AUTHORIZATION, headers::API_KEY, X_GOOG_API_KEY].into_iter();
        let (name, token) = fields.find_map(|name| {
            let shown = headers.get(&name)?.as_bytes();
            let token = shown.strip_prefix(b"Bearer ").unwrap_or(shown);
            Some((name, live.clients.with_token(token)?))
        })?;
        headers.remove(name);
        Some(Arc::clone(token))
    }

    /// The reason to refuse a request for the upstream, if a web page sends it whose host or origin is not allowed.
    pub(super) fn page_error(&self, request: &ClientRequest, connection: ConnectionInfo) -> Option<AccessError> {
        let is_page_request = access::is_page_request(request);
        is_page_request.then(|| self.live.load().access.check_page_request(request, connection).err()).flatten()
    }

    /// Refuses a request of an unknown client, and discards the body that may still be arriving.
    pub(super) fn reject(&self, request: ClientRequest, error: ProxyError) -> ProxyError {
        let (parts, body) = request.into_parts();
        self.discard_unread(&parts.headers, body);
        error
    }

    /// The answer to a request for abridge itself that is refused. A wrong token is answered late.
    pub(super) async fn refuse(
        &self,
        error: AccessError,
        request: &ClientRequest,
        connection: ConnectionInfo,
    ) -> OwnAnswer {
        tracing::debug!(%error, "refused a request for a path of abridge itself");
        let shows_token = error == AccessError::Token && request.headers().contains_key(AUTHORIZATION);
        if shows_token && self.wrong_tokens.delay(request.uri().path(), connection).await.is_none() {
            return AccessError::TooManyTokens.to_response();
        }
        error.to_response()
    }

    /// Whether several callers send requests, as far as is known, or the settings say that they do.
    pub(super) fn are_several_callers(&self) -> bool {
        let live = self.live.load();
        self.callers_seen.are_several() || live.clients.are_required() || live.recall_auth == Auth::Credential
    }

    /// The rights of a request that recalls a payload.
    pub(super) fn requester(&self, headers: &HeaderMap, connection: ConnectionInfo) -> Requester {
        let live = self.live.load();
        // On the operators' address, `Access::check` has already required the token.
        if matches!(connection.listener_role, ListenerRole::Operators(_)) || live.access.is_operator(headers) {
            return Requester::Operator;
        }
        let exposure = connection.listener_role.exposure();
        let by_handle = match HandleAccess::of(live.recall_auth, exposure, live.clients.are_required()) {
            HandleAccess::Handle => true,
            HandleAccess::OneCaller => !self.callers_seen.are_several() && !is_forwarded(headers),
            HandleAccess::Credential => false,
        };
        match credential(headers) {
            _ if by_handle => Requester::Unrestricted,
            Some(shown) => Requester::caller(&self.engine.keys, shown),
            None => Requester::Unauthenticated,
        }
    }

    /// Whose data a request may read; `None` if it must show a credential.
    pub(super) fn audience(&self, headers: &HeaderMap) -> Option<Audience> {
        if self.live.load().access.is_operator(headers) {
            return Some(Audience::All);
        }
        Some(Audience::Caller(self.engine.caller(Some(credential(headers)?))))
    }

    /// A session that recalls with these rights, and lists nothing.
    pub(super) fn session(&self, requester: Requester) -> Session {
        let (recalls, keys) = (Arc::clone(&self.recalls), self.engine.keys.clone());
        Session { recalls, store: self.engine.shared_store(), requester, audience: None, keys, controls: false }
    }

    /// Answers `POST /abridge/mcp` with what the request may read.
    pub(super) async fn serve_mcp(&self, request: ClientRequest, connection: ConnectionInfo) -> OwnAnswer {
        let accepts_controls = |of: &Destination| of.usual.rules.planner.settings.recall.controls;
        let session = Session {
            audience: self.audience(request.headers()),
            controls: self.live.load().destinations.iter().any(accepts_controls),
            ..self.session(self.requester(request.headers(), connection))
        };
        mcp::answer(request, session).await
    }
}

/// The callers of this process's requests. A user of two APIs has a key for each, so callers are told apart within an API.
#[derive(Debug, Default)]
pub(super) struct CallersSeen {
    openai: OfApi,
    anthropic: OfApi,
    google: OfApi,
    // Whether an API has more than one. Nothing is noted from then on.
    are_several: AtomicBool,
}

/// The callers of one API.
#[derive(Debug, Default)]
struct OfApi {
    // The last caller, whose next request changes nothing.
    last: AtomicU64,
    history: Held<CallerHistory>,
}

#[derive(Debug, Default)]
struct CallerHistory {
    // The last caller, and whether its credential expires.
    last: Option<(u64, bool)>,
    // The callers whose credentials have been replaced by newer ones.
    replaced: VecDeque<u64>,
}

/// How many replaced credentials are remembered.
const MAX_REPLACED: usize = 64;

// === impl CallersSeen ===

impl CallersSeen {
    /// Notes the caller of a conversation with these header fields, which say what API the client speaks. Of an account, it is
    /// that of the token.
    pub(super) fn note(&self, caller: Caller, headers: &HeaderMap) {
        let api = if headers.contains_key(ANTHROPIC_VERSION) {
            &self.anthropic
        } else if headers::is_google(headers) {
            &self.google
        } else {
            &self.openai
        };
        let id = caller.id();
        if api.last.load(Ordering::Relaxed) == id || self.are_several() {
            return;
        }
        let expires = headers::is_account(headers) || expires(credential(headers).unwrap_or_default());
        if api.history.with(|history| history.follow(id, expires)) {
            api.last.store(id, Ordering::Relaxed);
        } else {
            self.are_several.store(true, Ordering::Relaxed);
        }
    }

    fn are_several(&self) -> bool {
        self.are_several.load(Ordering::Relaxed)
    }
}

impl CallerHistory {
    /// Whether the next caller is that of before, perhaps with a newer credential: one that expires and takes the place of another
    /// one that does is the same caller's, and the earlier one does not come again.
    fn follow(&mut self, id: u64, expires: bool) -> bool {
        let before = self.last.replace((id, expires));
        let Some((before, did_expire)) = before.filter(|(before, _)| *before != id) else { return true };
        let is_renewed = did_expire && expires && !self.replaced.contains(&id);
        if is_renewed {
            if self.replaced.len() == MAX_REPLACED {
                self.replaced.pop_front();
            }
            self.replaced.push_back(before);
        }
        is_renewed
    }
}

/// Whether a credential is one that its client renews: a JSON Web Token, as Codex sends it with an account of `ChatGPT`, or a token
/// that Claude Code has of an Anthropic account, or of Google Cloud.
fn expires(credential: &[u8]) -> bool {
    let token = credential.strip_prefix(b"Bearer ").unwrap_or(credential);
    [&b"eyJ"[..], b"sk-ant-oat", b"ya29."].iter().any(|known| token.starts_with(known))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::AUTHORIZATION;

    use super::*;
    use crate::payload::Keys;

    fn several(credentials: &[&str]) -> bool {
        let (seen, keys) = (CallersSeen::default(), Keys::new([7; 32]));
        for credential in credentials {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, credential.parse().unwrap());
            if credential.contains("sk-ant") {
                headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
            }
            seen.note(keys.caller(credential.as_bytes()), &headers);
        }
        seen.are_several()
    }

    #[test]
    fn one_key_is_one_caller_and_two_keys_are_two() {
        assert!(!several(&[]) && !several(&["Bearer sk-a"; 3]) && !several(&["", ""]));
        assert!(several(&["Bearer sk-a", "Bearer sk-b"]) && several(&["", "Bearer sk-a"]));
        assert!(several(&["Bearer sk-a", "Bearer eyJa"]), "an account beside a key");
    }

    #[test]
    fn a_user_of_two_apis_is_one_caller() {
        assert!(!several(&["Bearer sk-a", "sk-ant-api03-a", "Bearer sk-a"]));
        assert!(several(&["Bearer sk-a", "sk-ant-api03-a", "sk-ant-api03-b"]));
    }

    #[test]
    fn a_token_that_replaces_another_is_the_same_caller_until_that_one_comes_again() {
        let [a, b, c] = ["Bearer eyJa", "Bearer eyJb", "Bearer eyJc"];
        assert!(!several(&[a, a, b, b, c, c]) && !several(&["sk-ant-oat01-a", "sk-ant-oat01-b"]));
        assert!(several(&[a, b, a]) && several(&[a, b, c, a]));
    }
}
