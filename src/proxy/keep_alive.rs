//! `[keep_alive]`: while a tool of the client runs, abridge keeps the upstream's prompt cache with requests that it makes itself.
//!
//! The request before is sent again, with one token of answer, shortly before its cache expires. It has the key of the client,
//! whose connection must be open. The next request of the conversation ends it, and so does one with `x-abridge: off` on the same
//! connection, whose conversation is not read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::fair_shares::Connections;
use super::send::send_request;
use super::{Proxy, RequestHead};
use crate::body::Budget;
use crate::dialect::{Answer, Dialect, Stop, marks_an_hour};
use crate::engine::EngineConfig;
use crate::held::Held;
use crate::ledger::{Assignment, Figures, Ledger};
use crate::metrics::Tally;
use crate::relay::tap::TapReport;
use crate::tasks::Tasks;
use crate::tokens::Usage;
use crate::tokens::cache_calls::CacheCalls;
use crate::units::Period;
use crate::upstream::Upstream;
use crate::upstream::post::json_post_with;

/// Settings of `[keep_alive]`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Keeps the prompt cache of a request in Anthropic Messages whose answer calls tools, while these run: by calls
    /// that abridge makes itself, with the client's key, and that are billed. At most four, or two where the cache lives for an hour.
    pub enabled: bool,
    /// The time from the request to the first call, and between calls. Where the client has asked for a cache of an hour, it is
    /// 58 minutes. Allowed: 1ms to 299s.
    #[default(Period::secs(280))]
    pub after: Period,
}

/// How many conversations are kept at a time; further ones are not.
const MAX_KEPT: usize = 256;

/// The longest answer that is read, in bytes, and how long it may take.
const MAX_ANSWER: usize = 64 << 10;
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// The state for an upstream.
#[derive(Debug)]
pub struct KeepAlive {
    after: Duration,
    /// A call has shown that it does not work here.
    is_stopped: AtomicBool,
}

/// The conversations whose caches are kept, and the connections of clients. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeepAlives {
    kept: Arc<Held<HashMap<[u8; 16], Kept>>>,
    pub(super) connections: Connections,
    /// The calls, by outcome.
    pub(super) counts: Arc<Tally<CallOutcome>>,
}

/// A conversation whose cache is kept.
#[derive(Debug)]
struct Kept {
    connection: u64,
    ends: CancellationToken,
    warm_until: Option<Instant>,
    /// Whether further calls may come.
    goes_on: bool,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(super) enum CallOutcome {
    /// The cache.
    Kept,
    /// No cache any more.
    Lost,
    /// Neither: it has failed.
    Failed,
}

/// A request whose cache may be kept when its answer has ended.
#[derive(Debug)]
pub(super) struct CachedPrompt {
    conversation: [u8; 16],
    connection: u64,
    /// When the request was sent, from which its cache counts.
    sent: Instant,
    dialect: &'static dyn Dialect,
    upstream: Upstream,
    target: Uri,
    /// The header fields and the body as they were sent.
    headers: HeaderMap,
    body: Vec<Bytes>,
    /// A reload drops them, which ends all calls.
    settings: Weak<KeepAlive>,
    all: KeepAlives,
    stopping: CancellationToken,
    /// Bodies are kept only while half of it is free.
    budget: Budget,
}

/// Where calls are entered.
pub(super) struct CallsAccount {
    pub(super) ledger: Ledger,
    pub(super) rules: Arc<EngineConfig>,
    pub(super) model: String,
    pub(super) assignment: Option<Assignment>,
}

impl Proxy {
    /// Keeps a request for calls after its answer, if there may be some: its conversation, the client's connection, and how it
    /// is sent.
    pub(super) fn cached_prompt(
        &self,
        head: &RequestHead<'_>,
        conversation: Option<[u8; 16]>,
        connection: u64,
        body: impl FnOnce() -> Vec<Bytes>,
    ) -> Option<Box<CachedPrompt>> {
        let RequestHead { dialect, ref parts, destination, ref target, .. } = *head;
        let settings = destination.keep_alive.as_ref().filter(|_| !head.is_signed_by_client())?;
        Some(Box::new(CachedPrompt {
            conversation: conversation?,
            connection,
            sent: Instant::now(),
            dialect,
            upstream: destination.upstream.clone(),
            target: target.clone(),
            headers: parts.headers.clone(),
            body: body(),
            settings: Arc::downgrade(settings),
            all: self.keep_alives.clone(),
            stopping: self.stopping.clone(),
            budget: self.limits.budget.clone(),
        }))
    }
}

// === impl KeepAlive ===

impl KeepAlive {
    /// With these settings; `None` if they are off.
    pub fn new(settings: Settings) -> Option<Arc<Self>> {
        let after = settings.after.0;
        settings.enabled.then(|| Arc::new(Self { after, is_stopped: AtomicBool::new(false) }))
    }
}

// === impl KeepAlives ===

impl KeepAlives {
    /// Ends the calls for a conversation, as its next request is there. Says whether they have kept its cache.
    pub(super) fn end(&self, conversation: &[u8; 16]) -> bool {
        self.kept.with(|all| all.remove(conversation)).is_some_and(|kept| {
            kept.ends.cancel();
            kept.is_warm()
        })
    }

    /// Ends the calls for conversations whose client has sent a request that is not read on this connection: it may be of one of
    /// them.
    pub(super) fn end_on(&self, connection: u64) {
        self.kept.with(|all| {
            for (_, kept) in all.extract_if(|_, kept| kept.connection == connection) {
                kept.ends.cancel();
            }
        });
    }

    fn begin(&self, conversation: [u8; 16], connection: u64, ends: CancellationToken) -> bool {
        self.kept.with(|all| {
            if all.len() >= MAX_KEPT {
                all.retain(|_, kept| kept.goes_on || kept.is_warm());
            }
            if all.len() >= MAX_KEPT && !all.contains_key(&conversation) {
                return false;
            }
            let before = all.insert(conversation, Kept { connection, ends, warm_until: None, goes_on: true });
            before.inspect(|before| before.ends.cancel());
            true
        })
    }

    /// Notes something about a conversation, unless its next request is there.
    fn note(&self, conversation: &[u8; 16], ends: &CancellationToken, note: impl FnOnce(&mut Kept)) {
        self.kept.with(|all| all.get_mut(conversation).filter(|_| !ends.is_cancelled()).map(note));
    }
}

impl Kept {
    fn is_warm(&self) -> bool {
        self.warm_until.is_some_and(|until| Instant::now() < until)
    }
}

// === impl CachedPrompt ===

impl CachedPrompt {
    /// Keeps the cache from the end of the answer on, if that calls tools and the prompt is long enough.
    pub(super) fn keep(self, answer: &TapReport, tasks: &Tasks, account: CallsAccount) {
        let calls = answer.stop_reason.as_deref().is_some_and(|reason| self.dialect.stop(reason) == Stop::ToolCall);
        let is_long = answer.usage.is_some_and(|usage| usage.cached + usage.written >= CacheCalls::SHORTEST);
        let has_room = self.budget.is_half_free();
        if !calls || !is_long || !has_room || self.settings().is_none() {
            return;
        }
        let ends = self.stopping.child_token();
        if self.all.begin(self.conversation, self.connection, ends.clone()) {
            tasks.spawn(async move {
                let _ended = ends.run_until_cancelled(self.calls(&account, &ends)).await;
                self.all.note(&self.conversation, &ends, |kept| kept.goes_on = false);
            });
        }
    }

    async fn calls(&self, account: &CallsAccount, ends: &CancellationToken) {
        let Some(_open) = self.all.connections.keep_open(self.connection) else { return };
        let after = self.settings().map(|settings| settings.after);
        let (Some(request), Some(after)) = (self.request(), after) else { return };
        let is_hour = marks_an_hour(&request);
        // Between the calls there is only the body as it was sent, which is counted as one.
        drop(request);
        let CacheCalls { after, lifetime, most } = CacheCalls::new(after, is_hour);
        let mut called = self.sent;
        // An answer may have taken longer than the cache lives.
        if called.elapsed() >= lifetime {
            return;
        }
        for _ in 0..most {
            sleep_until(called + after).await;
            if !self.all.connections.has(self.connection) || self.settings().is_none() {
                return;
            }
            called = Instant::now();
            let Some(request) = self.request() else { return };
            let (status, usage) = self.call(request).await;
            if status.is_some_and(|status| status.is_success()) {
                account.enter(self.upstream.name().as_str(), usage);
            }
            let counts = &self.all.counts;
            match (status, usage) {
                (Some(_), Some(Usage { cached, written, .. })) if cached >= written => {
                    counts.count(CallOutcome::Kept);
                    self.all.note(&self.conversation, ends, |kept| kept.warm_until = Some(called + lifetime));
                    tracing::info!(
                        cached,
                        written,
                        "a prompt cache was kept while tools run, by a request that abridge made itself"
                    );
                    continue;
                }
                (Some(_), Some(Usage { cached, written, .. })) => {
                    counts.count(CallOutcome::Lost);
                    self.stop(&format!("a call has written {written} tokens and read {cached}"));
                }
                (status, _) => {
                    counts.count(CallOutcome::Failed);
                    if let Some(status) = status.filter(StatusCode::is_client_error) {
                        self.stop(&format!("a call was answered with {status}"));
                    }
                }
            }
            return;
        }
    }

    /// The settings, while there may be calls.
    fn settings(&self) -> Option<Arc<KeepAlive>> {
        self.settings.upgrade().filter(|settings| !settings.is_stopped.load(Ordering::Relaxed))
    }

    fn request(&self) -> Option<Bytes> {
        self.dialect.keep_alive_request(&self.body.concat())
    }

    /// Makes no calls to this upstream any more, until the settings are read again.
    fn stop(&self, why: &str) {
        let Some(settings) = self.settings() else { return };
        settings.is_stopped.store(true, Ordering::Relaxed);
        let upstream = self.upstream.name().as_str();
        tracing::warn!(upstream, why, "keep_alive keeps no prompt cache here any more; a reload begins anew");
    }

    async fn call(&self, body: Bytes) -> (Option<StatusCode>, Option<Usage>) {
        let mut request = json_post_with(self.target.clone(), self.headers.clone(), body);
        request.headers_mut().remove(CONTENT_ENCODING);
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let Ok(mut answer) = send_request(&self.upstream, Box::new(request), self.target.clone(), None).await else {
            return (None, None);
        };
        let status = answer.status();
        let body = answer.body_mut().peek(MAX_ANSWER, ANSWER_TIMEOUT).await.filter(|_| status.is_success());
        let mut answer = Answer::default();
        let read = body.is_some_and(|body| self.dialect.read_answer(&body, &mut answer).is_ok());
        (Some(status), answer.usage.filter(|_| read))
    }
}

impl CallsAccount {
    /// Enters a call into the ledger, which no request would have needed.
    fn enter(&self, upstream: &str, usage: Option<Usage>) {
        let calls = Figures { keep_alives: 1, ..Figures::default() };
        let (rates, of) = (&self.rules.planner.rates, [&*self.rules.policy, upstream, &self.model]);
        self.ledger.add_own(rates, of, usage, calls, self.assignment.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> [u8; 16] {
        (n as u128).to_be_bytes()
    }

    #[test]
    fn the_number_of_conversations_has_a_limit_and_those_that_are_done_make_room() {
        let all = KeepAlives::default();
        let tokens: Vec<_> = (0..MAX_KEPT).map(|_| CancellationToken::new()).collect();
        assert!(tokens.iter().enumerate().all(|(n, ends)| all.begin(name(n), 0, ends.clone())));
        assert!(!all.begin(name(MAX_KEPT), 0, CancellationToken::new()), "all go on");
        assert!(all.begin(name(7), 0, CancellationToken::new()) && tokens[7].is_cancelled(), "its next request");

        all.note(&name(1), &tokens[1], |kept| kept.goes_on = false);
        all.note(&name(2), &tokens[2], |kept| {
            kept.goes_on = false;
            kept.warm_until = Some(Instant::now() + Duration::from_mins(5));
        });
        assert!(all.begin(name(MAX_KEPT), 0, CancellationToken::new()), "there is room for one");
        assert!(!all.begin(name(MAX_KEPT + 1), 0, CancellationToken::new()), "a warm one stays");
        assert_eq!([1, 2, 3].map(|n| all.end(&name(n))), [false, true, false]);
        assert!(tokens[3].is_cancelled());
    }
}
