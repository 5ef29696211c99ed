//! Who sends a request: a known client, a caller, an operator; and which payloads and events it may read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{HeaderMap, Request, Response};
use http_body_util::{Either, Full};
use smart_default::SmartDefault;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep};

use super::respond::ProxyError;
use super::{LiveConfig, Proxy, headers};
use crate::admin::access::{self, AccessError, ConnectionInfo, Exposure, ListenerRole, is_forwarded};
use crate::admin::clients::Client;
use crate::admin::events::EventStream;
use crate::admin::mcp::{self, Session};
use crate::admin::{self, Requester};
use crate::body::{ClientBody, UnreadBody};
use crate::events::Audience;
use crate::recall::Auth;

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
    pub(super) fn identify(
        live: &LiveConfig,
        request: &mut Request<ClientBody>,
        connection: ConnectionInfo,
    ) -> Result<(), ProxyError> {
        let headers = request.headers_mut();
        let shown = headers.remove(headers::CLIENT);
        if !live.clients.are_required() {
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
        let mut fields = [headers::X_API_KEY, AUTHORIZATION, headers::API_KEY, headers::X_GOOG_API_KEY].into_iter();
        let (name, token) = fields.find_map(|name| {
            let shown = headers.get(&name)?.as_bytes();
            let token = shown.strip_prefix(b"Bearer ").unwrap_or(shown);
            Some((name, live.clients.with_token(token)?))
        })?;
        headers.remove(name);
        Some(Arc::clone(token))
    }

    /// The reason to refuse a request for the upstream, if a web page sends it whose host or origin is not allowed.
    pub(super) fn page_error(&self, request: &Request<ClientBody>, connection: ConnectionInfo) -> Option<AccessError> {
        let is_page_request = access::is_page_request(request);
        is_page_request.then(|| self.live.load().access.check_page_request(request, connection).err()).flatten()
    }

    /// Refuses a request of an unknown client, and discards the body that may still be arriving.
    pub(super) fn reject(&self, request: Request<ClientBody>, error: ProxyError) -> ProxyError {
        let (parts, body) = request.into_parts();
        self.discard_unread(&parts.headers, UnreadBody::All(body));
        error
    }

    /// The answer to a request for abridge itself that is refused. A wrong token is answered late.
    pub(super) async fn refuse(
        &self,
        error: AccessError,
        request: &Request<ClientBody>,
        connection: ConnectionInfo,
    ) -> Response<Full<Bytes>> {
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
        match headers::credential(headers) {
            _ if by_handle => Requester::Unrestricted,
            Some(shown) => Requester::caller(self.engine.keys(), shown),
            None => Requester::Unauthenticated,
        }
    }

    /// Whose data a request may read; `None` if it must show a credential.
    fn audience(&self, headers: &HeaderMap) -> Option<Audience> {
        if self.live.load().access.is_operator(headers) {
            return Some(Audience::All);
        }
        Some(Audience::Caller(self.engine.caller(Some(headers::credential(headers)?))))
    }

    /// A session that recalls with these rights, and lists nothing.
    pub(super) fn session(&self, requester: Requester) -> Session {
        let (recalls, keys) = (Arc::clone(&self.recalls), self.engine.keys().clone());
        Session { recalls, store: self.engine.shared_store(), requester, audience: None, keys, controls: false }
    }

    /// Answers `POST /abridge/mcp` with what the request may read.
    pub(super) async fn serve_mcp(
        &self,
        request: Request<ClientBody>,
        connection: ConnectionInfo,
    ) -> Response<Full<Bytes>> {
        let session = Session {
            audience: self.audience(request.headers()),
            controls: self.live.load().destinations.accept_controls(),
            ..self.session(self.requester(request.headers(), connection))
        };
        mcp::answer(request, session).await
    }

    /// Answers `GET /abridge/events` with the events that the request may see.
    pub(super) fn serve_events(&self, request: &Request<ClientBody>) -> Response<Either<Full<Bytes>, EventStream>> {
        admin::events::answer(request, &self.events, &self.stopping, self.audience(request.headers()))
    }
}
