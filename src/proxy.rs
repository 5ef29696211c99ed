//! The path of one request, in order: route, admit, read, decode, choose the upstream, plan, send, relay. Read it first.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::admin::access::{self, ConnectionInfo, ListenerRole};
use crate::admin::events::EventStream;
use crate::admin::mcp;
use crate::admin::{self, RecallHandler};
use crate::body::peek::PeekableBody;
use crate::body::{ClientBody, Limits, RequestBody};
use crate::dialect::{self, AnswerEnd, Dialect};
use crate::engine::Engine;
use crate::events::Events;
use crate::history::History;
use crate::metrics::Metrics;
use crate::otel;
use crate::payload::Caller;
use crate::recording::Recorder;
use crate::relay::Relay;
use crate::tasks::Tasks;
use crate::upstream::routes::RequestFacts;
use crate::upstream::target::TargetError;
use crate::upstream::{Upstream, UpstreamError};

mod authorization;
pub(crate) mod cache_ledger;
pub mod compress;
mod exchange;
pub mod fair_shares;
mod headers;
mod in_band;
mod inspection;
pub mod keep_alive;
mod live;
mod notices;
mod on_request;
mod own_paths;
mod prefix_tracker;
mod request;
mod respond;
pub mod responses;
pub mod scrape;
pub mod second_try;
mod send;
pub(crate) mod status;
pub mod windows;

pub use authorization::HandleAccess;
use authorization::{CallersSeen, WrongTokens};
use compress::GatewayRequest;
pub use exchange::Exchange;
use exchange::{Accounting, BillingContext, Conversation, OverheadTimer};
use headers::ControlHeader;
use inspection::{EditEvents, Inspector};
pub use live::{Destination, Destinations, Experiment, ExperimentSettings, LiveConfig, NO_EDITS};
use on_request::ManualSummary;
use prefix_tracker::{CacheScope, PrefixTracker};
use request::{EditedRequest, FailOpenCounters, Purpose, ReadRequest};
use respond::ProxyError;
use responses::CompactionTurn;
use second_try::{RescueCounters, RetryContext};
use send::{RequestHead, RequestId, RequestIds, Tunnel, request_body, send_request};
pub use windows::WindowDiscovery;

/// The body of a response to the client: the upstream's, relayed, or one that abridge writes itself.
pub type ResponseBody = Either<Relay<Box<Exchange>>, Either<Full<Bytes>, EventStream>>;

/// A request of a client.
type ClientRequest = Request<ClientBody>;

/// The answer of an upstream, which can be read in advance.
type UpstreamAnswer = Response<PeekableBody>;

/// An answer that abridge writes itself.
type OwnAnswer = Response<Full<Bytes>>;

/// The answer to a request, or the error that is answered in its place.
type ProxyResult = Result<Response<ResponseBody>, ProxyError>;

/// Serves requests. One for the whole process.
#[derive(Debug)]
pub struct Proxy {
    // Replaced by a reload. A request loads it once, so it never sees parts of two configurations.
    pub(crate) live: ArcSwap<LiveConfig>,
    pub(crate) engine: Engine,
    limits: Limits,
    max_in_flight: usize,
    in_flight: Arc<Semaphore>,
    recalls: Arc<RecallHandler>,
    services: Services,
    ids: RequestIds,
    fail_open: FailOpenCounters,
    rescue_counters: RescueCounters,
    inspector: Inspector,
    stats: status::StatsCache,
    accounting: Arc<Accounting>,
    /// The way of requests for a reload to who reads the settings.
    reloads: OnceLock<mpsc::Sender<live::ReloadReply>>,
    /// Ends the event streams, and makes `/abridge/readyz` report 503.
    pub(crate) stopping: CancellationToken,
    callers_seen: CallersSeen,
    shares: fair_shares::FairShares,
    wrong_tokens: WrongTokens,
    keep_alives: keep_alive::KeepAlives,
}

/// Services that run beside the requests.
#[derive(Debug)]
pub struct Services {
    /// Records edited exchanges; `None` without `--record`.
    pub recorder: Option<Recorder>,
    /// Background tasks; only shutdown waits for them.
    pub tasks: Tasks,
    /// Publishes events to listeners.
    pub events: Events,
    /// Sends traces and metrics to a collector, if the settings name one.
    pub otel: Option<otel::Exporter>,
}

/// Where a request goes.
enum Route {
    /// To abridge itself.
    Admin,
    /// To abridge itself, for the event stream.
    Events,
    /// To abridge itself, for the Model Context Protocol.
    Mcp,
    /// To abridge itself, to reload the settings.
    Reload,
    /// To abridge itself, from a gateway.
    Gateway(GatewayRequest),
    /// To abridge itself, to be rewritten.
    Rewrite,
    /// To abridge itself, for a manual summary.
    Summarize(ManualSummary),
    /// Through the edits.
    Edit(&'static dyn Dialect),
    /// Through the edits, to be counted.
    Count(&'static dyn Dialect),
    /// To the upstream, or summarised by abridge itself.
    Compact(&'static dyn Dialect),
    /// To the upstream, unread: not a conversation, or one whose client has switched the edits off.
    Pass { is_off: bool },
}

// === impl Proxy ===

impl Proxy {
    /// Creates a proxy.
    pub fn new(
        live: LiveConfig,
        engine: Engine,
        limits: Limits,
        [max_in_flight, max_connections]: [usize; 2],
        shares: &fair_shares::Settings,
        services: Services,
    ) -> Self {
        let shares = fair_shares::FairShares::new(shares, [max_in_flight, max_connections], &limits.budget);
        let in_flight = Arc::new(Semaphore::new(max_in_flight.min(Semaphore::MAX_PERMITS)));
        let mut recalls =
            RecallHandler::new(Arc::clone(&in_flight), limits.budget.clone(), limits.max_body, engine.store_timeout());
        recalls.lacks_store = engine.store_notice().is_some();
        let (inspector, factors) = (Inspector::new(engine.shared_store()), Arc::clone(&engine.factors));
        let ledger = engine.bookkeeper.ledger.clone();
        let is_shared = engine.store().is_some_and(|store| store.shared().is_some());
        let budget = limits.budget.clone();
        Self {
            live: ArcSwap::from_pointee(live),
            engine,
            limits,
            max_in_flight,
            in_flight,
            recalls: Arc::new(recalls),
            services,
            ids: RequestIds::default(),
            fail_open: FailOpenCounters::default(),
            rescue_counters: RescueCounters::default(),
            inspector,
            stats: status::StatsCache::default(),
            accounting: Arc::new(Accounting {
                notices: notices::Notices::default(),
                budget,
                history: History::default(),
                metrics: Metrics::default(),
                prefixes: PrefixTracker::default(),
                caches: cache_ledger::CacheLedger::default(),
                is_shared,
                ledger,
                factors,
            }),
            reloads: OnceLock::new(),
            stopping: CancellationToken::new(),
            callers_seen: CallersSeen::default(),
            shares,
            wrong_tokens: WrongTokens::default(),
            keep_alives: keep_alive::KeepAlives::default(),
        }
    }

    /// Answers one request that arrived on `connection`. Never fails: errors become answers.
    ///
    /// The future is moved before it runs, so what few requests wait for is boxed, here and in `edit`.
    pub async fn handle(&self, mut request: ClientRequest, connection: ConnectionInfo) -> Response<ResponseBody> {
        if let Some(to_page) = admin::page::for_browser(&request) {
            let mut answer = to_page.map(full_body);
            access::set_security_headers(&mut answer);
            return answer;
        }
        let live = self.live.load();
        let gateway = live.compress.path(&request);
        let is_gateway = gateway.is_some();
        let is_admin = matches!(connection.listener_role, ListenerRole::Operators(_))
            || admin::is_admin_path(request.uri().path());
        let allowed = match is_gateway {
            true => live.access.check_gateway(&request, connection, live.clients.are_required()),
            false if is_admin => live.access.check(&request, connection),
            false => Ok(()),
        };
        if let Err(error) = allowed {
            drop(live);
            return Box::pin(self.refuse(error, &request, connection)).await.map(full_body);
        }
        if is_gateway {
            compress::place_token(&mut request);
        }
        let dialect = RequestFacts::of_head(&request).dialect().unwrap_or(dialect::default());
        let route = gateway.map_or_else(|| route(&request), Route::Gateway);
        let known = self.identify(&live, &mut request, connection, !is_admin && !is_gateway);
        drop(live);
        let caller = self.caller(request.headers());
        let over_share = || self.count_connection(request.headers(), caller, connection);
        let refused = match &route {
            Route::Edit(_) | Route::Count(_) | Route::Compact(_) | Route::Pass { .. } => {
                self.page_error(&request, connection).map(ProxyError::Page).or(known.err()).or_else(over_share)
            }
            Route::Summarize(_) | Route::Gateway(_) => known.err().or_else(over_share),
            Route::Admin | Route::Events | Route::Mcp | Route::Reload | Route::Rewrite => None,
        };
        let answer = match route {
            _ if let Some(error) = refused => Err(self.reject(request, error)),
            Route::Admin => {
                let requester = self.requester(request.headers(), connection);
                Ok(Box::pin(self.answer_own(&request, requester)).await.map(full_body))
            }
            Route::Events => {
                let audience = self.audience(request.headers());
                Ok(admin::events::answer(&request, &self.services.events, &self.stopping, audience).map(Either::Right))
            }
            Route::Mcp => Ok(Box::pin(self.serve_mcp(request, connection)).await.map(full_body)),
            Route::Reload => Ok(Box::pin(self.answer_reload()).await.map(full_body)),
            Route::Gateway(GatewayRequest::Compress) => Box::pin(self.compress(request, caller)).await,
            Route::Gateway(GatewayRequest::Retrieve(hash)) => Box::pin(self.retrieve(hash, request)).await,
            Route::Rewrite => Box::pin(self.rewrite(request)).await,
            Route::Summarize(manual) => Box::pin(self.summarize(manual, request, caller)).await,
            Route::Edit(dialect) => Box::pin(self.edit(dialect, request, caller, connection.id)).await,
            Route::Count(dialect) => Box::pin(self.count(dialect, request, caller)).await,
            Route::Compact(dialect) => Box::pin(self.compact(dialect, request, caller)).await,
            Route::Pass { is_off } => {
                if let Some(refused) = self.check_socket(&self.live.load(), &request) {
                    return refused.to_response(dialect).map(full_body);
                }
                if is_off {
                    self.keep_alives.end_on(connection.id);
                }
                self.pass(request).await
            }
        };
        let mut answer = answer.unwrap_or_else(|error| {
            tracing::warn!(code = error.code(), error = %error.chain(), "answered with an error of abridge itself");
            self.accounting.failed(&error);
            let answer = if is_gateway { error.to_gateway() } else { error.to_response(dialect) };
            answer.map(full_body)
        });
        if is_admin || is_gateway {
            access::set_security_headers(&mut answer);
        }
        answer
    }

    /// Serves a request that may be edited: admit, read, decode, plan, send (again for a rescue or a recall in band), relay.
    async fn edit(
        &self,
        dialect: &'static dyn Dialect,
        request: ClientRequest,
        caller: Caller,
        connection: u64,
    ) -> ProxyResult {
        let live = self.live.load_full();
        let mut read = self.receive(&live, dialect, request, caller).await?;
        let turn = read.text.as_ref().filter(|_| !read.dry_run);
        let turn = turn.and_then(|text| CompactionTurn::of(live.responses.compact, &read.head, text));
        if let Some(made) = self.compacted_turn(turn.as_deref()).await {
            return made;
        }
        let EditedRequest { edited, text, readable, place, cache, name, arm, is_rescued, assignment, form, rules } =
            self.edited(&mut read, Purpose::Turn).await;
        let ReadRequest { mut head, bytes, dry_run, permit, timer, .. } = read;

        let mut exchange = self.exchange(head.id, permit, timer);
        let mut conversation = Conversation::new(dialect, &head.parts.uri, text.len(), cache);
        conversation.readable = readable;
        exchange.conversation = Some(conversation);
        exchange.client = head.parts.headers.get(headers::CLIENT).cloned();
        exchange.billing = Some(BillingContext::new(&arm.rules, &head.parts.headers, assignment));
        exchange.begin_trace(self.services.otel.as_ref(), &mut head.parts.headers);
        let planner = &rules.planner;
        exchange.record(self.services.recorder.as_ref(), || {
            inspection::sent_request(&head.parts, text.clone(), &edited, form, planner, dry_run)
        });
        exchange.pending_inspection = self.inspector.capture(live.inspect.keep, dialect, &text, &edited);
        self.note_title(live.inspect.keep, dialect, &text, edited.basis.conversation);
        exchange.edit_events = EditEvents::begin(&self.services.events, head.id, head.caller, &edited, dry_run);
        let retry = (is_rescued && self.limits.budget.is_half_free())
            .then(|| RetryContext::new(&mut head, bytes.clone(), text.clone(), &edited));
        let upstream = &head.destination.upstream;
        let body = request_body(&mut head.parts.headers, bytes, &edited, dry_run);
        let sent = || if edited.changed() { edited.body.clone() } else { vec![text] };
        exchange.cached_prompt = self.cached_prompt(&head, name.filter(|_| !dry_run), connection, sent);
        if !dry_run {
            exchange.recalls = self.recalls_in_band(&mut head, planner, place, &edited);
        }
        exchange.set_edited(edited, dry_run);
        let mut answer =
            send(upstream, Request::from_parts(head.parts, body).into(), head.target, &mut exchange).await?;
        if let Some(retry) = retry.filter(|retry| retry.may_be_refused_by(&answer)) {
            answer = Box::pin(self.rescue(&live, arm, retry, answer, &mut exchange)).await;
        }
        if let Some(form) = exchange.take_sent_form(answer.status()) {
            Box::pin(self.engine.summaries.remember_sent(&form)).await;
        }
        if let Some(recalls) = exchange.recalls.take() {
            answer = Box::pin(recalls.join(answer)).await;
        }
        if let Some(made) = self.compacted_instead(turn, &mut answer).await {
            return Ok(made);
        }
        Ok(relay(upstream, answer, exchange))
    }

    /// Serves a request that only counts, with the edits of its turn, so that what is sent is counted. Nothing is stored for
    /// it, no summary is made for it, and it is neither in the history nor recorded: the turn itself is.
    async fn count(&self, dialect: &'static dyn Dialect, request: ClientRequest, caller: Caller) -> ProxyResult {
        let live = self.live.load_full();
        let mut read = self.receive(&live, dialect, request, caller).await?;
        let edited = self.edited(&mut read, Purpose::Count).await.edited;
        let ReadRequest { mut head, bytes, dry_run, permit, timer, .. } = read;
        let mut exchange = self.exchange(head.id, permit, timer);
        let body = request_body(&mut head.parts.headers, bytes, &edited, dry_run);
        exchange.set_edited(edited, dry_run);
        let upstream = &head.destination.upstream;
        let answer = send(upstream, Request::from_parts(head.parts, body).into(), head.target, &mut exchange).await?;
        Ok(relay(upstream, answer, exchange))
    }

    /// Serves a request that is not edited: both bodies are streamed through.
    async fn pass(&self, mut request: ClientRequest) -> ProxyResult {
        let timer = OverheadTimer::start();
        if request.method() == Method::CONNECT {
            return Err(TargetError::NoPath.into()); // whatever the target looks like
        }
        let tunnel = Tunnel::from_request(&mut request);
        let (parts, body) = request.into_parts();
        let (admission, body) = self.admit(&parts.headers, body)?;
        let live = self.live.load_full();
        let facts = RequestFacts { path: parts.uri.path(), headers: &parts.headers, model: None };
        let upstream = &live.destinations.find(&facts).upstream;
        let target = upstream.join(&parts.uri)?;

        let mut exchange = self.exchange(self.ids.next(), admission.permit, timer);
        exchange.tunnel = tunnel.map(Box::new);
        exchange.client = parts.headers.get(headers::CLIENT).cloned();
        if parts.method == Method::POST
            && let Some(dialect) = dialect::for_path(parts.uri.path())
        {
            exchange.conversation = Some(Conversation::new(dialect, &parts.uri, 0, CacheScope::default()));
        }
        let request = Box::new(Request::from_parts(parts, RequestBody::streamed(body)));
        let answer = send(upstream, request, target, &mut exchange).await?;
        Ok(relay(upstream, answer, exchange))
    }
}

impl LiveConfig {
    /// Whether a request with these header fields is sent as it came.
    fn is_dry(&self, headers: &HeaderMap) -> bool {
        let control = ControlHeader::from_headers(headers);
        if control == ControlHeader::Unknown {
            tracing::warn!("the x-abridge header of a request is neither \"off\" nor \"dry-run\"; the policy applies");
        }
        self.dry_run || control == ControlHeader::DryRun
    }
}

fn route(request: &ClientRequest) -> Route {
    let (path, is_post) = (request.uri().path(), request.method() == Method::POST);
    let counted = || dialect::for_counting_path(path).map(Route::Count);
    let compacted = || dialect::for_compacting_path(path).map(Route::Compact);
    let edited = || dialect::for_path(path).map(Route::Edit).or_else(counted).or_else(compacted);
    match path {
        admin::events::PATH => Route::Events,
        mcp::PATH => Route::Mcp,
        admin::RELOAD if is_post => Route::Reload,
        _ if is_post && on_request::is_rewrite_path(path) => Route::Rewrite,
        _ if admin::is_admin_path(path) => ManualSummary::from_request(request).map_or(Route::Admin, Route::Summarize),
        _ if is_post && ControlHeader::from_headers(request.headers()) == ControlHeader::Off => {
            Route::Pass { is_off: dialect::for_path(path).is_some() }
        }
        _ => is_post.then(edited).flatten().unwrap_or(Route::Pass { is_off: false }),
    }
}

/// Wraps a body that abridge writes itself.
fn full_body(body: Full<Bytes>) -> ResponseBody {
    Either::Right(Either::Left(body))
}

/// Sends the request and waits for the head of the answer. Notes the time and a failure in the exchange. The request is boxed,
/// as each future on its way has room for it twice.
async fn send(
    upstream: &Upstream,
    request: Box<Request<RequestBody>>,
    target: Uri,
    exchange: &mut Exchange,
) -> Result<UpstreamAnswer, UpstreamError> {
    exchange.mark_sent(upstream.name());
    let answer = send_request(upstream, request, target, exchange.tunnel.as_deref()).await;
    answer.inspect_err(|_| exchange.end_without_answer(AnswerEnd::Unanswered))
}

/// Relays the upstream's answer to the client. The response owns the exchange and the upstream's body: when the client
/// disconnects, hyper drops it, and with it the upstream's connection.
fn relay(upstream: &Upstream, mut answer: UpstreamAnswer, mut exchange: Box<Exchange>) -> Response<ResponseBody> {
    *answer.version_mut() = Version::HTTP_11;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return exchange.switch_protocols(answer).map(full_body);
    }
    headers::to_client(answer.headers_mut());
    exchange.on_answer_head(&mut answer);
    answer.map(|body| Either::Left(Relay::new(body, upstream.idle, exchange)))
}
