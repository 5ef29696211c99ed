//! One request, told in order. The file to read first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, EXPECT};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::admin::{self, Recalls};
use crate::body::encoding::{Coding, DecodeError};
use crate::body::{self, Held, Limits, Outgoing, ReadError, Unread};
use crate::dialect::{self, Dialect};
use crate::engine::{Edited, Engine, Rules, Trouble, Wanted};
use crate::recording::Recorder;
use crate::relay::Relay;
use crate::tasks::{Tasks, blocking};
use crate::upstream::Upstream;

mod exchange;
mod fail_open;
mod headers;
mod respond;
mod tunnel;
mod windows;

pub use exchange::Exchange;
use exchange::RequestIds;
use fail_open::{FailOpen, Reason};
use headers::Wish;
use respond::ProxyError;
use tunnel::Tunnel;
pub use windows::Windows;

/// What goes back to the client: the upstream's answer on its way, or one of ours.
pub type Answer = Either<Relay<Exchange>, Full<Bytes>>;

/// Serves requests. One for the whole process.
#[derive(Debug)]
pub struct Proxy {
    // What a reload replaces. A request reads it once, so it never sees half of one and half of another.
    live: ArcSwap<Live>,
    engine: Engine,
    limits: Limits,
    max_in_flight: usize,
    in_flight: Arc<Semaphore>,
    recalls: Recalls,
    recorder: Option<Recorder>,
    tasks: Tasks,
    ids: RequestIds,
    fail_open: FailOpen,
    draining: AtomicBool,
}

/// The settings that a running proxy can change.
#[derive(Debug)]
pub struct Live {
    /// Which edits run, and how.
    pub rules: Arc<Rules>,
    /// Where requests go.
    pub upstream: Upstream,
    /// What the upstream says of its models.
    pub windows: Windows,
    /// Edits are reported but not made.
    pub dry_run: bool,
    /// Answers to edited requests get `x-abridge-…` headers.
    pub report_headers: bool,
}

/// Where a request goes.
enum Route {
    /// To abridge itself.
    Admin,
    /// Through the edits.
    Edit(&'static dyn Dialect),
    /// Straight through.
    Pass,
}

/// How long we read on behind an answer that refused a request's body, so that the client can read that answer.
const LINGER: Duration = Duration::from_secs(10);

// === impl Proxy ===

impl Proxy {
    /// A proxy that has served nothing yet.
    pub fn new(
        live: Live,
        engine: Engine,
        limits: Limits,
        max_in_flight: usize,
        recorder: Option<Recorder>,
        tasks: Tasks,
    ) -> Self {
        let in_flight = Arc::new(Semaphore::new(max_in_flight.min(Semaphore::MAX_PERMITS)));
        let recalls = Recalls::new(Arc::clone(&in_flight), limits.budget.clone());
        Self {
            live: ArcSwap::from_pointee(live),
            engine,
            limits,
            max_in_flight,
            in_flight,
            recalls,
            recorder,
            tasks,
            ids: RequestIds::default(),
            fail_open: FailOpen::default(),
            draining: AtomicBool::new(false),
        }
    }

    /// Answers one request. Never fails: what goes wrong becomes an answer.
    pub async fn handle(&self, request: Request<Incoming>) -> Response<Answer> {
        let answer = match route(&request) {
            Route::Admin => {
                let draining = self.draining.load(Ordering::Relaxed);
                let state = admin::State { draining, store: self.engine.store(), recalls: &self.recalls };
                Ok(admin::answer(request.method(), request.uri(), state).await.map(Either::Right))
            }
            Route::Edit(dialect) => self.edit(dialect, request).await,
            Route::Pass => self.pass(request).await,
        };
        answer.unwrap_or_else(|error| {
            tracing::warn!(code = error.code(), error = %error.chain(), "answered with an error of ours");
            error.to_response().map(Either::Right)
        })
    }

    /// A request whose conversation may be edited: admit, read, decode, plan and splice, send, relay.
    async fn edit(
        &self,
        dialect: &'static dyn Dialect,
        request: Request<Incoming>,
    ) -> Result<Response<Answer>, ProxyError> {
        let (mut parts, body) = request.into_parts();
        let (permit, body) = self.admit(&parts.headers, body)?;
        let live = self.live.load_full();
        let target = live.upstream.join(&parts.uri)?;
        let wish = Wish::of(&parts.headers);
        if wish == Wish::Unknown {
            tracing::warn!("a request's x-abridge header is neither \"off\" nor \"dry-run\"; the policy holds");
        }
        let dry_run = live.dry_run || wish == Wish::DryRun;
        let wanted = if dry_run { Wanted::Reported } else { Wanted::Made };

        let mut held = self.read(&parts.headers, body).await?;
        let decoded = self.decode(&parts.headers, &mut held).await?;
        let text = decoded.clone().unwrap_or_else(|| held.bytes.clone());
        let edited = match decoded {
            Some(text) => self.plan(&live, dialect, &parts, text, wanted).await,
            None => Edited::untouched(held.bytes.clone()),
        };

        let mut exchange = Exchange::new(self.ids.next(), permit, self.tasks.clone());
        exchange.record(self.recorder.as_ref(), &parts, text, &edited, dry_run);
        let outgoing = outgoing(&mut parts.headers, held, &edited, dry_run);
        exchange.edited(edited, dry_run, live.report_headers);
        send(&live.upstream, Request::from_parts(parts, outgoing), target, exchange).await
    }

    /// A request that is none of our business: both bodies stream through.
    async fn pass(&self, mut request: Request<Incoming>) -> Result<Response<Answer>, ProxyError> {
        let tunnel = Tunnel::asked_for(&mut request);
        let (parts, body) = request.into_parts();
        let (permit, body) = self.admit(&parts.headers, body)?;
        let live = self.live.load_full();
        let target = live.upstream.join(&parts.uri)?;

        let mut exchange = Exchange::new(self.ids.next(), permit, self.tasks.clone());
        exchange.tunnel = tunnel;
        send(&live.upstream, Request::from_parts(parts, Outgoing::Streamed(body)), target, exchange).await
    }
}

fn route(request: &Request<Incoming>) -> Route {
    let path = request.uri().path();
    if admin::owns(path) {
        return Route::Admin;
    }
    match dialect::for_path(path) {
        Some(dialect) if request.method() == Method::POST && Wish::of(request.headers()) != Wish::Off => {
            Route::Edit(dialect)
        }
        _ => Route::Pass,
    }
}

/// Sends the request and makes the answer of what comes back. The answer owns the exchange and the upstream's body:
/// when the client goes away hyper drops it, and with it the upstream's connection.
async fn send(
    upstream: &Upstream,
    mut request: Request<Outgoing>,
    target: Uri,
    mut exchange: Exchange,
) -> Result<Response<Answer>, ProxyError> {
    *request.uri_mut() = target;
    *request.version_mut() = Version::HTTP_11;
    headers::to_upstream(request.headers_mut());
    if let Some(tunnel) = &exchange.tunnel {
        tunnel.ask(request.headers_mut());
    }
    let mut response = upstream.send(request).await.inspect_err(|_| exchange.failed())?;
    *response.version_mut() = Version::HTTP_11;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(exchange.switch(response).map(Either::Right));
    }
    headers::to_client(response.headers_mut());
    exchange.answered(&mut response);
    Ok(response.map(|body| Either::Left(Relay::new(body, upstream.idle(), exchange))))
}

/// The body for the upstream: the client's own bytes, unless an edit changed them.
fn outgoing(headers: &mut HeaderMap, held: Held, edited: &Edited, dry_run: bool) -> Outgoing {
    let Held { bytes, lease } = held;
    if dry_run || !edited.changed() {
        headers::set_length(headers, bytes.len());
        return Outgoing::held(&[bytes], lease);
    }
    headers::set_length(headers, edited.body.iter().map(Bytes::len).sum());
    headers.remove(CONTENT_ENCODING);
    Outgoing::held(&edited.body, lease)
}

// === the steps of an edit ===

impl Proxy {
    /// A place among the requests in flight, which the exchange keeps until its answer ends.
    fn admit(&self, headers: &HeaderMap, body: Incoming) -> Result<(OwnedSemaphorePermit, Incoming), ProxyError> {
        if let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() {
            return Ok((permit, body));
        }
        self.linger(headers, Unread::All(body));
        Err(ProxyError::TooManyRequests { limit: self.max_in_flight })
    }

    /// The body as it came, whole.
    async fn read(&self, headers: &HeaderMap, body: Incoming) -> Result<Held, ProxyError> {
        body::read_up_to(body, &self.limits).await.map_err(|error| match error {
            ReadError::TooLong { limit, announced, rest } => {
                self.linger(headers, rest);
                ProxyError::BodyTooLarge { limit, announced }
            }
            ReadError::NoBudget { rest } => {
                self.linger(headers, rest);
                ProxyError::TooManyBytes
            }
            ReadError::Paused(_) => ProxyError::BodyTimeout(error),
            ReadError::Broken(_) => ProxyError::BodyBroken(error),
        })
    }

    /// The body as text; `None` if its coding cannot be undone. Such a body goes on as it came, even if it looks like JSON:
    /// what it says of itself and what it is are not the same, and that is for the upstream to judge.
    async fn decode(&self, headers: &HeaderMap, held: &mut Held) -> Result<Option<Bytes>, ProxyError> {
        let coded = held.bytes.clone();
        let encoding = match Coding::of(headers) {
            Coding::Plain => return Ok(Some(coded)),
            Coding::Known(encoding) => encoding,
            Coding::Unknown => {
                self.fail_open
                    .count(Reason::UnknownEncoding, &"content-encoding is not one of gzip, deflate, br, zstd");
                return Ok(None);
            }
        };
        let limit = self.limits.max_body;
        let decoding = blocking(move || encoding.decode(&coded, limit));
        match decoding.await {
            Ok(Ok(text)) if self.limits.budget.extend(&mut held.lease, text.len()) => Ok(Some(text)),
            Ok(Ok(_)) => Err(ProxyError::TooManyBytes),
            Ok(Err(DecodeError::TooLong { limit })) => Err(ProxyError::BodyTooLarge { limit, announced: None }),
            Ok(Err(error @ DecodeError::Broken(_))) => {
                self.fail_open.count(Reason::BrokenEncoding, &error);
                Ok(None)
            }
            Err(error) => {
                self.fail_open.count(Reason::Bug, &error);
                Ok(None)
            }
        }
    }

    /// The body after the edits. Whatever happens in there, even a panic, leaves a body that can be sent.
    async fn plan(
        &self,
        live: &Live,
        dialect: &'static dyn Dialect,
        parts: &Parts,
        text: Bytes,
        wanted: Wanted,
    ) -> Edited {
        let caller = self.engine.caller(headers::credential(&parts.headers));
        let edited = self.engine.edit_body(&live.rules, dialect, text, caller, wanted).await;
        match (&edited.skipped, &edited.trouble) {
            (Some(error), _) => self.fail_open.count(Reason::NotUnderstood, error),
            (None, Some(error @ Trouble::Panic)) => self.fail_open.count(Reason::Bug, error),
            (None, Some(error)) => self.fail_open.count(Reason::NotStored, error),
            (None, None) => {}
        }
        if let Some(report) = &edited.report {
            live.windows.learn(report, &live.rules, &live.upstream, parts, &self.tasks);
        }
        edited
    }

    /// Reads on behind an answer that does not wait for the body.
    fn linger(&self, headers: &HeaderMap, unread: Unread) {
        match unread {
            Unread::All(_) if headers.contains_key(EXPECT) => {}
            Unread::All(rest) | Unread::Rest(rest) => self.tasks.spawn(body::discard(rest, LINGER)),
        }
    }
}

// === what the app does with it ===

impl Proxy {
    /// Replaces the settings. Requests that are under way keep the old ones.
    pub fn reload(&self, live: Live) {
        self.live.store(Arc::new(live));
    }

    /// The settings in force.
    pub fn live(&self) -> Arc<Live> {
        self.live.load_full()
    }

    /// Tells whoever asks `/abridge/readyz` to send no more.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}
