//! One request, told in order. The file to read first.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::EXPECT;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::admin::access::{self, Access, Door, Way};
use crate::admin::events::Stream;
use crate::admin::{self, Recalls};
use crate::body::ahead::Ahead;
use crate::body::encoding::{Coding, DecodeError};
use crate::body::{self, Held, Limits, Outgoing, ReadError, Unread};
use crate::dialect::{self, Dialect};
use crate::engine::summarizer::SummaryOrigin;
use crate::engine::{EditMode, EditOptions, EditedBody, Engine, EngineConfig, EngineError};
use crate::events::Events;
use crate::history::History;
use crate::inspect;
use crate::metrics::Metrics;
use crate::payload::Caller;
use crate::planner::When;
use crate::recording::{Recorder, RequestForm};
use crate::relay::Relay;
use crate::tasks::{Tasks, blocking};
use crate::upstream::target::NoPath;
use crate::upstream::{Upstream, UpstreamError};

mod by_hand;
mod exchange;
mod fail_open;
mod headers;
mod inspecting;
mod pages;
mod prefix;
mod recorded;
pub mod rescue;
mod respond;
pub mod scrape;
mod send;
mod status;
mod telling;
mod tunnel;
mod whose;
pub mod windows;

use by_hand::ByHand;
pub use exchange::Exchange;
use exchange::{Books, RequestId, RequestIds, Stopwatch};
use fail_open::{FailOpen, Reason};
use headers::Wish;
use inspecting::Inspector;
use prefix::{Cache, Prompts};
use rescue::{Rescue, Rescues, Spare};
use respond::ProxyError;
use send::{ask, outgoing};
use status::Stats;
use telling::Telling;
use tunnel::Tunnel;
pub use windows::Windows;

/// What goes back to the client: the upstream's answer on its way, or one of ours.
pub type Answer = Either<Relay<Exchange>, Either<Full<Bytes>, Stream>>;

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
    rescues: Rescues,
    inspector: Inspector,
    stats: Stats,
    events: Events,
    books: Arc<Books>,
    stopping: CancellationToken,
}

/// What goes on beside the requests.
#[derive(Debug)]
pub struct Beside {
    /// Records edited exchanges, if that is asked for.
    pub recorder: Option<Recorder>,
    /// What nobody awaits but shutdown.
    pub tasks: Tasks,
    /// Tells who listens.
    pub events: Events,
    /// Keeps what the last requests were.
    pub history: History,
    /// Counts.
    pub metrics: Metrics,
}

/// The settings that a running proxy can change.
#[derive(Debug)]
pub struct Live {
    /// Which edits run, and how.
    pub rules: Arc<EngineConfig>,
    /// Where requests go.
    pub upstream: Upstream,
    /// What the upstream says of its models.
    pub windows: Windows,
    /// Who may ask what of abridge itself.
    pub access: Access,
    /// A recall shows the credential of the conversation.
    pub require_auth: bool,
    /// How requests are sent a second time that the upstream has refused, if that is wanted.
    pub rescue: Option<Rescue>,
    /// Of how many edited requests the messages are kept.
    pub inspect: inspect::Settings,
    /// Edits are reported but not made.
    pub dry_run: bool,
    /// Answers to edited requests get `x-abridge-…` headers.
    pub report_headers: bool,
}

/// Where a request goes.
enum Route {
    /// To abridge itself.
    Admin,
    /// To abridge itself, for what happens.
    Events,
    /// To abridge itself, for a summary.
    Summarize(ByHand),
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
    pub fn new(live: Live, engine: Engine, limits: Limits, max_in_flight: usize, beside: Beside) -> Self {
        let Beside { recorder, tasks, events, history, metrics } = beside;
        let in_flight = Arc::new(Semaphore::new(max_in_flight.min(Semaphore::MAX_PERMITS)));
        let recalls = Recalls::new(Arc::clone(&in_flight), limits.budget.clone(), engine.store_timeout());
        let inspector = Inspector::new(engine.shared_store());
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
            rescues: Rescues::default(),
            inspector,
            stats: Stats::default(),
            events,
            books: Arc::new(Books { history, metrics, prompts: Prompts::default() }),
            stopping: CancellationToken::new(),
        }
    }

    /// Answers one request, which came this way. Never fails: what goes wrong becomes an answer.
    pub async fn handle(&self, request: Request<Incoming>, way: Way) -> Response<Answer> {
        let is_ours = matches!(way.door, Door::Operators(_)) || admin::owns(request.uri().path());
        if is_ours && let Err(refused) = self.live.load().access.check(&request, way) {
            tracing::debug!(error = %refused, "a request for abridge itself was refused");
            return refused.to_response().map(ours);
        }
        let dialect = dialect::for_path(request.uri().path()).unwrap_or(dialect::default());
        let answer = match route(&request) {
            Route::Edit(_) | Route::Pass if let Some(refused) = self.refused_page(&request, way) => {
                Err(self.turn_away(request, refused))
            }
            Route::Admin => {
                let draining = self.stopping.is_cancelled();
                let (store, reader) = (self.engine.store(), self.reader(request.headers(), way));
                let state = admin::State { numbers: self, draining, store, recalls: &self.recalls, reader };
                Ok(admin::answer(request.method(), request.uri(), state).await.map(ours))
            }
            Route::Events => Ok(self.listen(&request, way).map(Either::Right)),
            Route::Summarize(by_hand) => self.summarize(by_hand, request).await,
            Route::Edit(dialect) => self.edit(dialect, request).await,
            Route::Pass => self.pass(request).await,
        };
        let mut answer = answer.unwrap_or_else(|error| {
            tracing::warn!(code = error.code(), error = %error.chain(), "answered with an error of ours");
            self.books.failed(&error);
            error.to_response(dialect).map(ours)
        });
        if is_ours {
            access::seal(&mut answer);
        }
        answer
    }

    /// A request whose conversation may be edited: admit, read, decode, plan and splice, send, perhaps once
    /// more in another form, relay.
    async fn edit(
        &self,
        dialect: &'static dyn Dialect,
        request: Request<Incoming>,
    ) -> Result<Response<Answer>, ProxyError> {
        let mut watch = Stopwatch::start();
        let (mut parts, body) = request.into_parts();
        let (permit, body) = self.admit(&parts.headers, body)?;
        let live = self.live.load_full();
        let target = live.upstream.join(&parts.uri)?;
        let wish = Wish::of(&parts.headers);
        if wish == Wish::Unknown {
            tracing::warn!("a request's x-abridge header is neither \"off\" nor \"dry-run\"; the policy holds");
        }
        let dry_run = live.dry_run || wish == Wish::DryRun;
        let mode = if dry_run { EditMode::DryRun } else { EditMode::Apply };

        let mut held = watch.stopped(self.read(&parts.headers, body)).await?;
        let decoded = self.decode(&parts.headers, &mut held).await?;
        let text = decoded.clone().unwrap_or_else(|| held.bytes.clone());
        let (id, caller, readable) = (self.ids.next(), self.caller(&parts.headers), decoded.is_some());
        let rescue = live.rescue.as_ref().filter(|_| !dry_run && readable);
        let edited = match decoded {
            Some(text) if !self.goes_unedited(rescue, dialect, &parts.headers, &text).await => {
                let origin = || self.origin(&live, dialect, &parts, &target, id, caller);
                let asked = EditOptions { caller, mode, when: When::Triggered, origin: Some(&origin) };
                self.plan(&live, dialect, &parts, text, asked).await
            }
            _ => EditedBody::untouched(held.bytes.clone()),
        };

        let mut exchange = Exchange::new(id, permit, self.tasks.clone(), Arc::clone(&self.books), watch);
        exchange.converses(dialect, &parts.uri, text.len(), readable, self.books.prompts.cache(&target, caller));
        let meter = &live.rules.planner.meter;
        exchange.record(self.recorder.as_ref(), || {
            recorded::sent(&parts, text.clone(), &edited, RequestForm::Edited, meter, dry_run)
        });
        exchange.inspecting = self.inspector.hold(live.inspect.keep, dialect, &text, &edited);
        if self.events.has_subscribers() {
            exchange.telling = Telling::begin(&self.events, id.to_string(), caller, &edited, dry_run);
        }
        let Held { bytes, lease } = held;
        let lease = Arc::new(lease);
        let spare = rescue.map(|rescue| (rescue, Spare::new(dialect, &parts, bytes.clone(), &lease, text, &edited)));
        let outgoing = outgoing(&mut parts.headers, bytes, lease, &edited, dry_run);
        exchange.edited(edited, dry_run, live.report_headers);
        let mut answer = send(&live.upstream, Request::from_parts(parts, outgoing), target, &mut exchange).await?;
        if let Some((rescue, spare)) = spare {
            answer = self.rescued(&live, rescue, spare, answer, &mut exchange).await;
        }
        Ok(relay(&live.upstream, answer, exchange))
    }

    /// A request that is none of our business: both bodies stream through.
    async fn pass(&self, mut request: Request<Incoming>) -> Result<Response<Answer>, ProxyError> {
        let watch = Stopwatch::start();
        if request.method() == Method::CONNECT {
            return Err(NoPath.into()); // whatever its target looks like
        }
        let tunnel = Tunnel::asked_for(&mut request);
        let (parts, body) = request.into_parts();
        let (permit, body) = self.admit(&parts.headers, body)?;
        let live = self.live.load_full();
        let target = live.upstream.join(&parts.uri)?;

        let mut exchange = Exchange::new(self.ids.next(), permit, self.tasks.clone(), Arc::clone(&self.books), watch);
        exchange.tunnel = tunnel;
        if parts.method == Method::POST
            && let Some(dialect) = dialect::for_path(parts.uri.path())
        {
            exchange.converses(dialect, &parts.uri, 0, true, Cache::default());
        }
        let request = Request::from_parts(parts, Outgoing::Streamed(body));
        let answer = send(&live.upstream, request, target, &mut exchange).await?;
        Ok(relay(&live.upstream, answer, exchange))
    }
}

fn route(request: &Request<Incoming>) -> Route {
    let path = request.uri().path();
    if path == admin::events::PATH {
        return Route::Events;
    }
    if admin::owns(path) {
        return ByHand::of(request).map_or(Route::Admin, Route::Summarize);
    }
    match dialect::for_path(path) {
        Some(dialect) if request.method() == Method::POST && Wish::of(request.headers()) != Wish::Off => {
            Route::Edit(dialect)
        }
        _ => Route::Pass,
    }
}

/// An answer of ours.
fn ours(body: Full<Bytes>) -> Answer {
    Either::Right(Either::Left(body))
}

/// Sends the request, and waits for the head of its answer.
async fn send(
    upstream: &Upstream,
    request: Request<Outgoing>,
    target: Uri,
    exchange: &mut Exchange,
) -> Result<Response<Ahead>, UpstreamError> {
    exchange.goes();
    let answer = ask(upstream, request, target, exchange.tunnel.as_ref()).await;
    answer.inspect_err(|_| exchange.failed())
}

/// The upstream's answer on its way to the client. It owns the exchange and the upstream's body: when the client goes away
/// hyper drops it, and with it the upstream's connection.
fn relay(upstream: &Upstream, mut answer: Response<Ahead>, mut exchange: Exchange) -> Response<Answer> {
    *answer.version_mut() = Version::HTTP_11;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return exchange.switch(answer).map(ours);
    }
    headers::to_client(answer.headers_mut());
    exchange.answered(&mut answer);
    answer.map(|body| Either::Left(Relay::new(body, upstream.idle(), exchange)))
}

// === the steps of an edit ===

impl Proxy {
    /// A place among the requests in flight, which the exchange keeps until its answer ends.
    fn admit(&self, headers: &HeaderMap, body: Incoming) -> Result<(OwnedSemaphorePermit, Incoming), ProxyError> {
        if headers::is_coded(headers) {
            return Err(ProxyError::BadTransfer);
        }
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
        asked: EditOptions<'_>,
    ) -> EditedBody {
        let edited = self.engine.edit_body(&live.rules, dialect, text, asked).await;
        match (&edited.parse_error, &edited.error) {
            (Some(error), _) => self.fail_open.count(Reason::NotUnderstood, error),
            (None, Some(error @ EngineError::Panic)) => self.fail_open.count(Reason::Bug, error),
            (None, Some(error)) => self.fail_open.count(Reason::NotStored, error),
            (None, None) => {}
        }
        if let Some(report) = &edited.report {
            live.windows.learn(report, &live.rules, &live.upstream, parts, &self.tasks);
        }
        edited
    }

    /// Whose a request is, by what it shows.
    fn caller(&self, headers: &HeaderMap) -> Caller {
        self.engine.caller(headers::credential(headers))
    }

    /// What a call in the name of this request needs, which may outlive it.
    fn origin(
        &self,
        live: &Live,
        dialect: &'static dyn Dialect,
        parts: &Parts,
        target: &Uri,
        id: RequestId,
        caller: Caller,
    ) -> SummaryOrigin {
        let mut headers = parts.headers.clone();
        headers::to_upstream(&mut headers);
        SummaryOrigin {
            request_id: Some(id.to_string()),
            caller,
            dialect,
            target: target.clone(),
            headers,
            upstream: live.upstream.clone(),
            budget: self.limits.budget.clone(),
        }
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

    /// What the last requests were.
    pub fn history(&self) -> &History {
        &self.books.history
    }

    /// Numbers about all requests.
    pub fn metrics(&self) -> &Metrics {
        &self.books.metrics
    }

    /// The settings in force.
    pub fn live(&self) -> Arc<Live> {
        self.live.load_full()
    }

    /// Tells whoever asks `/abridge/readyz` to send no more, and ends the streams of events.
    pub fn drain(&self) {
        self.stopping.cancel();
    }
}
