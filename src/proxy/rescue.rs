//! A second try, where the upstream has refused a request that can be sent in another form. Off unless `[rescue]` says so.
//!
//! A conversation that is too long for the model is sent once more with everything cleared that may be, and summarised if
//! that is not enough. An edited request whose sequence of messages the upstream does not take is sent once more as the
//! client wrote it, and so is what the conversation says next. There is never a third try. Until the head of an answer is
//! known that goes back, no byte has, so the client sees one answer; if nothing helps, it is the upstream's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};

use self::unedited::Unedited;
use super::exchange::{Exchange, Rescued};
use super::send::{ask, outgoing};
use super::{Live, Proxy, recorded};
use crate::body::Lease;
use crate::body::ahead::Ahead;
use crate::body::encoding::Coding;
use crate::dialect::Dialect;
use crate::engine::{EditMode, EditOptions, EditedBody, EngineConfig};
use crate::payload::ChainKey;
use crate::plan::Report;
use crate::planner::When;
use crate::recording::RequestForm;
use crate::tasks::blocking;
use crate::upstream::refusal::{self, Numbers, Refusal};

mod unedited;

/// `[rescue]` of `proxy.toml`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Sends a request that the upstream refused once more in another form. When the upstream answers 400 or 413
    /// because the conversation is too long for the model, all results that the model has read are cleared, and the
    /// rest is summarised if that is not enough and `"summarize"` is in `policy.edits`.
    pub enabled: bool,
    /// When the upstream answers an edited request with 400 and names its messages or tool calls: sends the client's
    /// original once, and leaves that conversation unedited for an hour. Only where `enabled` is true.
    pub original_on_400: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { enabled: false, original_on_400: true }
    }
}

/// How requests are rescued. A reload begins it anew: under other settings, the upstream may take what it has refused.
#[derive(Debug)]
pub struct Rescue {
    rules: Arc<EngineConfig>,
    original: bool,
    unedited: Unedited,
}

/// What a second try is made of. Kept until the head of the first answer is here.
#[derive(Debug)]
pub(super) struct Spare {
    dialect: &'static dyn Dialect,
    // As the client sent it.
    parts: Parts,
    // The body as it came, what pays for it, and the same as text.
    bytes: Bytes,
    lease: Arc<Lease>,
    text: Bytes,
    // What the first try was.
    edited: bool,
    n_bytes_sent: usize,
    n_tokens_sent: Option<usize>,
}

/// How often requests were rescued, and how often not.
#[derive(Debug, Default)]
pub(super) struct Rescues {
    overflow: Outcomes,
    original: Outcomes,
}

#[derive(Debug, Default)]
struct Outcomes {
    helped: AtomicU64,
    in_vain: AtomicU64,
}

/// The longest refusal that is read, in bytes, as it comes and as text. Those that say something are far shorter.
const LONGEST: usize = 64 << 10;

/// How long a refusal may take to come after its head.
const PATIENCE: Duration = Duration::from_secs(5);

/// A body from this length on, in bytes, is read and named away from the threads that serve requests.
const HOP_FROM: usize = 256 << 10;

/// What sets these names of beginnings apart from those of summaries.
const SCOPE: &[u8] = b"unedited";

// === impl Rescue ===

impl Rescue {
    /// Rescues by these rules, which are to be those of [`Parts::shortest`](crate::planner::Parts::shortest).
    pub fn new(settings: Settings, rules: Arc<EngineConfig>) -> Self {
        Self { rules, original: settings.original_on_400, unedited: Unedited::default() }
    }
}

// === impl Proxy ===

impl Proxy {
    /// Whether the upstream has refused to take an edited form of what this conversation begins with, but took the original.
    pub(super) async fn goes_unedited(
        &self,
        rescue: Option<&Rescue>,
        dialect: &'static dyn Dialect,
        headers: &HeaderMap,
        text: &Bytes,
    ) -> bool {
        let Some(rescue) = rescue.filter(|rescue| !rescue.unedited.is_empty()) else { return false };
        let goes = rescue.unedited.has(&self.beginnings(dialect, headers, text).await);
        if goes {
            tracing::debug!(
                "a request goes on as it came: the upstream did not take what its conversation was edited to"
            );
        }
        goes
    }

    /// The answer that goes back: the `first` one, or, if that is a refusal that another form of the request may spare the
    /// client, the one to that.
    pub(super) async fn rescued(
        &self,
        live: &Live,
        rescue: &Rescue,
        spare: Spare,
        mut first: Response<Ahead>,
        exchange: &mut Exchange,
    ) -> Response<Ahead> {
        let Some(refusal) = refusal(&mut first).await else { return first };
        let Ok(target) = live.upstream.join(&spare.parts.uri) else { return first };
        let (edited, by) = match refusal {
            Refusal::Overflow(numbers) => match self.shortened(live, rescue, &spare, numbers, exchange).await {
                Some(edited) => (edited, Rescued::Overflow),
                None => return self.rescues.count(Rescued::Overflow, false, first),
            },
            Refusal::Sequence if rescue.original && spare.edited && first.status() == StatusCode::BAD_REQUEST => {
                (EditedBody::untouched(spare.bytes.clone()), Rescued::Original)
            }
            Refusal::Sequence | Refusal::Tools => return first,
        };
        let mut parts = spare.parts.clone();
        let body = outgoing(&mut parts.headers, spare.bytes.clone(), Arc::clone(&spare.lease), &edited, false);
        let second = ask(&live.upstream, Request::from_parts(parts, body), target, None).await;
        let second = match second {
            Ok(second) if by == Rescued::Original || second.status().is_success() => second,
            Ok(_) | Err(_) => return self.rescues.count(by, false, first),
        };
        let helped = second.status().is_success();
        if helped && by == Rescued::Original {
            let names = self.beginnings(spare.dialect, &spare.parts.headers, &spare.text).await;
            names.last().into_iter().for_each(|name| rescue.unedited.note(*name));
        }
        let text = spare.text;
        let meter = &rescue.rules.planner.meter;
        exchange.record(self.recorder.as_ref(), || {
            recorded::sent(&spare.parts, text.clone(), &edited, RequestForm::Shortest, meter, false)
        });
        exchange.inspecting = self.inspector.hold(live.inspect.keep, spare.dialect, &text, &edited);
        exchange.edited(edited, false, live.report_headers);
        exchange.rescued = Some(by);
        self.rescues.count(by, helped, second)
    }

    /// A shorter form of the request: cleared, and summarised if it still does not fit. `None` if it gets no shorter.
    async fn shortened(
        &self,
        live: &Live,
        rescue: &Rescue,
        spare: &Spare,
        numbers: Numbers,
        exchange: &Exchange,
    ) -> Option<EditedBody> {
        let rules = &rescue.rules;
        let caller = self.caller(&spare.parts.headers);
        let target = live.upstream.join(&spare.parts.uri).ok()?;
        let origin = || self.origin(live, spare.dialect, &spare.parts, &target, exchange.id(), caller);
        let edit = |when, origin| {
            let asked = EditOptions { caller, mode: EditMode::Apply, when, origin };
            self.engine.edit_body(rules, spare.dialect, spare.text.clone(), asked)
        };
        // Clearing comes first and costs no call, so a summary is wanted only if that was not enough.
        let cleared = edit(When::Triggered, None).await;
        let report = cleared.report.as_ref()?;
        if let (Some(model), Some(window)) = (&report.model, numbers.window) {
            rules.planner.meter.learn_window(model, window);
        }
        let window = rules.planner.meter.for_model(report.model.as_deref()).window();
        if spare.is_shorter(&cleared) && fits(report, spare.n_tokens_sent, numbers, window) {
            return Some(cleared);
        }
        let summarised = edit(When::Now, Some(&origin)).await;
        [summarised, cleared].into_iter().find(|edited| spare.is_shorter(edited))
    }

    /// The names of the beginnings of a conversation, the last of which is all of it; none if it is not understood.
    async fn beginnings(&self, dialect: &'static dyn Dialect, headers: &HeaderMap, text: &Bytes) -> Vec<ChainKey> {
        let mut chain = self.engine.chain(self.caller(headers), SCOPE);
        let body = text.clone();
        let mut name = move || {
            let Ok(conversation) = dialect.parse(&body) else { return Vec::new() };
            let messages = conversation.messages.iter();
            messages
                .map(|message| chain.push(message.prints(&body).message, || dialect.canonical(message.span.of(&body))))
                .collect()
        };
        if text.len() < HOP_FROM { name() } else { blocking(name).await.unwrap_or_default() }
    }
}

/// What an answer refuses, if it does. It is read ahead for that.
async fn refusal(answer: &mut Response<Ahead>) -> Option<Refusal> {
    if ![StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE].contains(&answer.status()) {
        return None;
    }
    let coding = Coding::of(answer.headers());
    let body = answer.body_mut().peek(LONGEST, PATIENCE).await?;
    let text = match coding {
        Coding::Plain => body,
        Coding::Known(encoding) => blocking(move || encoding.decode(&body, LONGEST)).await.ok()?.ok()?,
        Coding::Unknown => return None,
    };
    refusal::refusal(&text)
}

// === impl Spare ===

impl Spare {
    /// Of a request that is about to be sent.
    pub(super) fn new(
        dialect: &'static dyn Dialect,
        parts: &Parts,
        bytes: Bytes,
        lease: &Arc<Lease>,
        text: Bytes,
        edited: &EditedBody,
    ) -> Self {
        let report = edited.report.as_ref();
        Self {
            dialect,
            parts: parts.clone(),
            bytes,
            lease: Arc::clone(lease),
            edited: edited.changed(),
            n_bytes_sent: report.map_or(text.len(), |report| report.bytes_after),
            n_tokens_sent: report.and_then(|report| report.tokens_after),
            text,
        }
    }

    fn is_shorter(&self, edited: &EditedBody) -> bool {
        edited.report.as_ref().is_some_and(|report| report.bytes_after < self.n_bytes_sent)
    }
}

/// Whether a shorter form fits, as far as anybody knows. The upstream's count of what was `sent` corrects ours.
fn fits(shorter: &Report, sent: Option<usize>, numbers: Numbers, window: Option<usize>) -> bool {
    let (Some(tokens), Some(window)) = (shorter.tokens_after, numbers.window.or(window)) else { return true };
    let room = window.saturating_sub(numbers.answer.unwrap_or(0));
    let ours = sent.or(shorter.tokens_before).unwrap_or(0);
    match numbers.prompt {
        Some(theirs) if ours > 0 => tokens.saturating_mul(theirs) / ours <= room,
        _ => tokens <= room,
    }
}

// === impl Rescues ===

impl Rescues {
    /// What for, whether it helped, and how often.
    pub(super) fn counted(&self) -> [(&'static str, &'static str, u64); 4] {
        let Self { overflow, original } = self;
        [
            ("overflow", "helped", &overflow.helped),
            ("overflow", "in_vain", &overflow.in_vain),
            ("original", "helped", &original.helped),
            ("original", "in_vain", &original.in_vain),
        ]
        .map(|(rescue, outcome, count)| (rescue, outcome, count.load(Ordering::Relaxed)))
    }

    /// Counts a second try that was made or could not be, and hands on its answer. The first original that helped is a
    /// warning: an edit has made what the upstream does not take.
    fn count(&self, by: Rescued, helped: bool, answer: Response<Ahead>) -> Response<Ahead> {
        let outcomes = match by {
            Rescued::Overflow => &self.overflow,
            Rescued::Original => &self.original,
        };
        let counter = if helped { &outcomes.helped } else { &outcomes.in_vain };
        let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
        if helped && by == Rescued::Original && count == 1 {
            tracing::warn!(
                "the upstream has refused an edited request and taken the original; more of this kind are logged at debug"
            );
        } else {
            tracing::debug!(rescue = %by, helped, count, "the upstream has refused a request");
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_told_by_the_upstreams_own_count() {
        let report = |before, after| Report { tokens_before: before, tokens_after: after, ..Report::default() };
        let numbers = |window, prompt, answer| Numbers { window, prompt, answer };
        let half = report(Some(1000), Some(500));
        // It counts three tokens for two of ours.
        assert!(fits(&half, None, numbers(Some(750), Some(1500), None), None));
        assert!(!fits(&half, None, numbers(Some(749), Some(1500), None), None));
        assert!(!fits(&half, None, numbers(Some(750), Some(1500), Some(1)), None));
        // What was sent was shorter than what came.
        assert!(!fits(&half, Some(800), numbers(Some(750), Some(1500), None), None));
        // It tells no count, or no window.
        assert!(fits(&half, None, numbers(None, None, None), Some(500)));
        assert!(!fits(&half, None, numbers(None, None, None), Some(499)));
        assert!(fits(&half, None, numbers(None, None, None), None));
        assert!(fits(&report(None, None), None, numbers(Some(10), Some(20), None), None));
    }
}
