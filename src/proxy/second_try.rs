//! Retry of refused requests in another form: once, unless `[second_try]` is off.
//!
//! A conversation that is too long for the model, or has images that it does not take, is sent again with all that may be
//! cleared cleared, and summarised if that is not enough. A request whose form the upstream refuses by a name that is known
//! is sent again in the form that it asks for, and later ones for that model are sent so at once. One whose reasoning
//! it refuses is sent again without that, and so are later requests of that conversation. An edited request whose sequence of
//! messages it refuses, or whose reasoning cannot be left out, is sent again as the client wrote it, and later ones are not
//! edited. A third attempt is never made. No byte goes to the client before the final answer is chosen, so the client sees one
//! answer; if nothing helps, it is the upstream's first.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

pub use self::policy::{Arm, FormsNote, Lesson, NOTED_FOR, RescuePolicy};
use super::exchange::{Exchange, RescueKind};
use super::send::{request_body, send_request};
use super::{LiveConfig, Proxy, RequestHead, UpstreamAnswer, inspection};
use crate::body::Budget;
use crate::body::encoding::ContentEncoding;
use crate::conversation::Element;
use crate::dialect::{Form, OpeningEvents};
use crate::engine::summarizer::SummaryOrigin;
use crate::engine::{EditOptions, EditedBody, EngineConfig};
use crate::metrics::Tally;
use crate::payload::ChainKey;
use crate::plan::Report;
use crate::planner::SummaryTiming;
use crate::recording::RequestForm;
use crate::string_index::IndexedBody;
use crate::tasks::{run_blocking, run_blocking_from};
use crate::upstream::refusal::{self, Refusal, TokenCounts};

mod opening;
mod policy;

/// `[second_try]` of `proxy.toml`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Sends a request that the upstream refused once more in another form. When the upstream answers 400, 413 or 422
    /// because the conversation is too long for the model, or says so in the first events of a stream or in an answer
    /// whose `status` is `failed`, all results that the model has read are cleared, and the rest is summarised if that is
    /// not enough and `"summarize"` is in `policy.edits`. When it names one of the forms of `policy.forms`, the request is
    /// brought into that form, and so are all later requests for that model; with 500 too, as llama.cpp answers.
    ///
    /// When the upstream answers an edited request with 400 and names its messages, its tool calls or abridge's own tool, or
    /// refuses what Claude Code has not written, the client's original is sent once, and that conversation is not edited for
    /// an hour. If it names the model's reasoning, the request is sent without the reasoning before each pass, if that makes
    /// another one, and so is that conversation for an hour.
    #[default(true)]
    pub enabled: bool,
}

/// The outcomes of retries.
#[derive(Debug, Default)]
pub(super) struct RescueCounters {
    helped: Tally<RescueKind>,
    in_vain: Tally<RescueKind>,
}

/// What a second attempt is made from. Kept until the head of the first answer has arrived.
#[derive(Debug)]
pub(super) struct RetryContext<'l> {
    // As the client sent it; its header fields are put back when the request is refused.
    head: RequestHead<'l>,
    fields: Vec<(HeaderName, HeaderValue)>,
    // The body as received, and the decoded body.
    bytes: Bytes,
    text: Bytes,
    // Whether the first attempt was edited, and its size.
    edited: bool,
    n_bytes_sent: usize,
    n_tokens_sent: Option<usize>,
    n_changes_sent: usize,
}

/// The longest refusal that is read, in bytes, both encoded and decoded. Real ones are far shorter.
const MAX_REFUSAL: usize = 64 << 10;

/// How long the body of a refusal may take after its head.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// From this length on, in bytes, a body is parsed and hashed on a blocking thread.
pub(super) const BLOCKING_FROM: usize = 256 << 10;

/// The scope of these keys, which separates them from the keys of summaries.
const SCOPE: &[u8] = b"unedited";

// === impl Proxy ===

impl Proxy {
    /// The form in which a conversation is sent: not as the policy has it where the upstream has refused that form of its
    /// beginning, and accepted another one.
    pub(super) async fn form(
        &self,
        rescue: Option<&RescuePolicy>,
        head: &RequestHead<'_>,
        text: &Bytes,
    ) -> RequestForm {
        let Some(rescue) = rescue.filter(|rescue| !rescue.noted.is_empty()) else { return RequestForm::Edited };
        let noted = rescue.noted.form(&self.chain_keys(head, text).await);
        if let Some(form) = noted {
            tracing::debug!(treatment = ?form, "the upstream has refused an edited form of a conversation");
        }
        noted.unwrap_or_default()
    }

    /// Returns the answer to relay: `first`, or the answer to another form of the request if `first` is a refusal that
    /// another form may avoid.
    pub(super) async fn rescue(
        &self,
        live: &LiveConfig,
        arm: &Arm,
        mut retry: RetryContext<'_>,
        mut first: UpstreamAnswer,
        exchange: &mut Exchange,
    ) -> UpstreamAnswer {
        let Some(rescue) = &arm.rescue else { return first };
        let RequestHead { dialect, destination, .. } = retry.head;
        let (upstream, opening) = (&destination.upstream, dialect.facts().opening.as_ref());
        let Some(refusal) = read_refusal(&mut first, opening).await else { return first };
        retry.head.parts.headers = mem::take(&mut retry.fields).into_iter().collect();
        let mut learnt = None;
        let other = match refusal {
            // abridge's own tool may be one that is not accepted, or one too many.
            Refusal::Tools if exchange.recalls.is_none() => return first,
            Refusal::Tools | Refusal::Sequence => None,
            Refusal::Overflow(counts) => {
                self.shorten(rescue, &retry, counts, exchange).await.map(|shorter| (shorter, RescueKind::Overflow))
            }
            Refusal::Reasoning => {
                let rules = rescue.rules(RequestForm::Stripped);
                self.other_form(&rules, &retry, true).await.map(|other| (other, RescueKind::Reasoning))
            }
            Refusal::Form(form, words) => {
                let usual = rescue.rules(RequestForm::Edited);
                let rules = usual.under(usual.planner.settings.with_forms(&form.with_likely()));
                let found = self.mended_or_shorter(form, &rules, rescue, &retry, exchange).await;
                let teaches = |by| by == RescueKind::Form || form == Form::FewImages;
                let edited = found.as_ref().filter(|(_, by)| teaches(*by)).map(|(edited, _)| edited);
                learnt = edited.map(|edited| (rules, Lesson::new(form, words, edited)));
                found
            }
        };
        let is_too_much = matches!(refusal, Refusal::Overflow(_)) || refusal.is_of_images();
        let may_be_original = retry.edited && !is_too_much && !first.status().is_success();
        let original =
            || may_be_original.then(|| (Box::new(EditedBody::untouched(retry.bytes.clone())), RescueKind::Original));
        let Some((edited, by)) = other.or_else(original) else {
            return if is_too_much { self.rescue_counters.count(RescueKind::Overflow, false, first) } else { first };
        };
        let mut again = retry.head.clone();
        let body = request_body(&mut again.parts.headers, retry.bytes.clone(), &edited, false);
        let recalls = self.recalls_in_band(&mut again, &rescue.rules(RequestForm::Shortest).planner, None, &edited);
        let second = send_request(upstream, Request::from_parts(again.parts, body).into(), again.target, None).await;
        let Ok(mut second) = second else { return self.rescue_counters.count(by, false, first) };
        let helped = second.status().is_success() && opening::failure(&mut second, opening).await.is_none();
        if !helped && by != RescueKind::Original {
            return self.rescue_counters.count(by, false, first);
        }
        let form = match by {
            RescueKind::Overflow => RequestForm::Shortest,
            RescueKind::Reasoning => RequestForm::Stripped,
            RescueKind::Form => RequestForm::Edited,
            RescueKind::Original => RequestForm::Unedited,
        };
        if helped && matches!(form, RequestForm::Stripped | RequestForm::Unedited) {
            let keys = self.chain_keys(&retry.head, &retry.text).await;
            keys.last().into_iter().for_each(|key| rescue.noted.insert(*key, form));
        }
        let formed = learnt.as_ref().filter(|_| by == RescueKind::Form);
        let rules = formed.map_or_else(|| rescue.rules(RequestForm::Shortest), |(rules, _)| Arc::clone(rules));
        let (text, planner) = (retry.text, &rules.planner);
        if let Some((_, lesson)) = learnt.filter(|_| helped) {
            tracing::warn!(
                upstream = upstream.name().as_str(),
                form = %lesson.form,
                model = lesson.model.as_deref(),
                "the upstream requires another form of conversations; all later requests to this model have it; set policy.forms to send the first one so, too"
            );
            rescue.require(&[lesson]);
        }
        exchange.record(self.services.recorder.as_ref(), || {
            inspection::sent_request(&retry.head.parts, text.clone(), &edited, form, planner, false)
        });
        exchange.pending_inspection = self.inspector.capture(live.inspect.keep, dialect, &text, &edited);
        exchange.set_edited(edited, false);
        exchange.rescue = Some(by);
        exchange.recalls = recalls;
        self.rescue_counters.count(by, helped, second)
    }

    /// A shorter form of the request: cleared, and summarised if that does not fit. `None` if it gets no shorter.
    async fn shorten(
        &self,
        rescue: &RescuePolicy,
        retry: &RetryContext<'_>,
        counts: TokenCounts,
        exchange: &Exchange,
    ) -> Option<Box<EditedBody>> {
        let rules = rescue.rules(RequestForm::Shortest);
        let assignment = || exchange.billing.as_ref()?.assignment.clone();
        let origin = || SummaryOrigin { assignment: assignment(), ..self.origin(&retry.head) };
        let edit = |when, origin| {
            let asked = EditOptions { origin, ..retry.head.options(when) };
            self.engine.edit_body(&rules, retry.head.dialect, retry.body(), asked)
        };
        // Clearing comes first because it costs no call; a summary is made only if that is not enough.
        let cleared = edit(SummaryTiming::Triggered, None).await;
        let report = cleared.report.as_ref()?;
        if let (Some(model), Some(window)) = (&report.model, counts.window) {
            rules.planner.meter.models().learn(model, window);
        }
        let window = rules.planner.meter.for_model(report.model.as_deref()).window;
        if retry.is_shorter(&cleared) && fits(report, retry.n_tokens_sent, counts, window) {
            return Some(cleared);
        }
        let summarised = edit(SummaryTiming::Now, Some(&origin)).await;
        [summarised, cleared].into_iter().find(|edited| retry.is_shorter(edited))
    }

    /// The request in the form that was asked for, or a shorter one where the upstream finds too many images, or one too large and
    /// abridge none.
    async fn mended_or_shorter(
        &self,
        form: Form,
        rules: &Arc<EngineConfig>,
        rescue: &RescuePolicy,
        retry: &RetryContext<'_>,
        exchange: &Exchange,
    ) -> Option<(Box<EditedBody>, RescueKind)> {
        let mended = if form == Form::FewImages { None } else { self.other_form(rules, retry, false).await };
        if mended.is_some() || !form.is_of_images() {
            return mended.map(|mended| (mended, RescueKind::Form));
        }
        let shorter = self.shorten(rescue, retry, TokenCounts::default(), exchange).await?;
        Some((shorter, RescueKind::Overflow))
    }

    /// The request as other rules have it, with `strips_now` without the reasoning so far. `None` if it is the one that was
    /// sent.
    async fn other_form(
        &self,
        rules: &Arc<EngineConfig>,
        retry: &RetryContext<'_>,
        strips_now: bool,
    ) -> Option<Box<EditedBody>> {
        let asked = EditOptions { strips_now, ..retry.head.options(SummaryTiming::Triggered) };
        let edited = self.engine.edit_body(rules, retry.head.dialect, retry.body(), asked).await;
        retry.is_another(&edited).then_some(edited)
    }

    /// The keys of the beginnings of a conversation, the whole conversation last; empty if it cannot be parsed.
    async fn chain_keys(&self, head: &RequestHead<'_>, text: &Bytes) -> Vec<ChainKey> {
        let mut chain = self.engine.keys.chain(head.caller, SCOPE);
        let (dialect, body) = (head.dialect, text.clone());
        let keys = move || {
            let Ok(conversation) = dialect.parse(&body) else { return Vec::new() };
            let elements = conversation.elements.iter();
            let key = |element: &Element| {
                chain.push(conversation.element_fingerprint(element, &body), || {
                    dialect.canonical(element.span.of(&body))
                })
            };
            elements.map(key).collect()
        };
        run_blocking_from(BLOCKING_FROM, text.len(), keys).await.unwrap_or_default()
    }
}

/// Classifies the answer if it is a refusal. Peeks at the body for that.
async fn read_refusal(answer: &mut UpstreamAnswer, opening: Option<&'static OpeningEvents>) -> Option<Refusal> {
    if let Some(event) = opening::failure(answer, opening).await {
        return refusal::classify_event(&event);
    }
    if !REFUSED.contains(&answer.status()) {
        return None;
    }
    let is_too_large = answer.status() == StatusCode::PAYLOAD_TOO_LARGE;
    let said = text(answer, MAX_REFUSAL, REFUSAL_TIMEOUT).await?;
    // Servers before the upstream say so in HTML.
    let by_status = is_too_large && !said.trim_ascii_start().starts_with(b"{");
    let refusal = refusal::classify(&said).or_else(|| by_status.then(|| Refusal::Overflow(TokenCounts::default())));
    let may_be_failure = answer.status() == StatusCode::INTERNAL_SERVER_ERROR;
    refusal.filter(|refusal| !may_be_failure || matches!(refusal, Refusal::Form(..)))
}

/// The statuses by which a request is refused for what it is. llama.cpp answers 500 where a template raises an exception
/// (ggml-org/llama.cpp#19851).
const REFUSED: [StatusCode; 4] = [
    StatusCode::BAD_REQUEST,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNPROCESSABLE_ENTITY,
    StatusCode::INTERNAL_SERVER_ERROR,
];

/// The most bytes that decoding a refusal takes. They are few, so they do not count towards `server.max_buffered`.
const MAX_DECODING: usize = 32 << 20;

/// The decoded body of an answer, which can still be relayed; none if it has more than `most` bytes, encoded or decoded, or
/// takes longer than `within`.
async fn text(answer: &mut UpstreamAnswer, most: usize, within: Duration) -> Option<Bytes> {
    let coding = ContentEncoding::from_headers(answer.headers());
    let body = answer.body_mut().peek(most, within).await?;
    match coding {
        ContentEncoding::Identity => Some(body),
        ContentEncoding::Supported(encoding) => {
            run_blocking(move || encoding.decode(&body, most, &Budget::new(MAX_DECODING))).await.ok()?.ok()
        }
        ContentEncoding::Unsupported => None,
    }
}

// === impl RescueCounters ===

impl RescueCounters {
    /// The kind of each retry, its outcome, and its count.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let both = self.helped.counts().zip(self.in_vain.counts());
        both.flat_map(|((kind, helped), (_, in_vain))| [(kind, "helped", helped), (kind, "in_vain", in_vain)])
    }

    /// Counts a retry that was made or could not be, and returns its answer. The first original that is accepted is logged
    /// as a warning, because an edit produced what the upstream refuses.
    fn count(&self, by: RescueKind, helped: bool, answer: UpstreamAnswer) -> UpstreamAnswer {
        let count = if helped { self.helped.count(by) } else { self.in_vain.count(by) };
        if helped && by == RescueKind::Original && count == 1 {
            tracing::warn!(
                "the upstream refused an edited request and accepted the original; more of this kind are logged at debug"
            );
        } else {
            tracing::debug!(rescue = %by, helped, count, "the upstream refused a request");
        }
        answer
    }
}

// === impl RetryContext ===

impl<'l> RetryContext<'l> {
    /// Captures a request that is about to be sent, but not what hyper has noted of how its client spells the names of header
    /// fields, as the copy would cost as much as all else. The fields are copied as a list, which takes half of a map.
    pub(super) fn new(head: &mut RequestHead<'l>, bytes: Bytes, text: Bytes, edited: &EditedBody) -> Self {
        let report = edited.report.as_ref();
        let taken = (mem::take(&mut head.parts.extensions), mem::take(&mut head.parts.headers));
        let copy = head.clone();
        (head.parts.extensions, head.parts.headers) = taken;
        let fields = head.parts.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        Self {
            head: copy,
            fields: fields.collect(),
            bytes,
            edited: edited.changed(),
            n_bytes_sent: report.map_or(text.len(), |report| report.bytes_after),
            n_tokens_sent: report.and_then(|report| report.tokens_after),
            n_changes_sent: report.map_or(0, |report| report.changes.len()),
            text,
        }
    }

    /// The body, as the edits read it.
    fn body(&self) -> IndexedBody {
        IndexedBody::from(self.text.clone()).at(self.head.dialect.path_facts(self.head.parts.uri.path()))
    }

    /// Whether it is not the request that was sent; what a form replaces may be as long as before.
    fn is_another(&self, edited: &EditedBody) -> bool {
        let sent = (self.n_bytes_sent, self.n_changes_sent);
        edited.report.as_ref().is_some_and(|report| (report.bytes_after, report.changes.len()) != sent)
    }

    /// Whether this answer may be a refusal, by its status. No other one is read here.
    pub(super) fn may_be_refused_by<B>(&self, answer: &Response<B>) -> bool {
        REFUSED.contains(&answer.status())
            || self.head.dialect.facts().opening.is_some() && answer.status().is_success()
    }

    fn is_shorter(&self, edited: &EditedBody) -> bool {
        edited.report.as_ref().is_some_and(|report| report.bytes_after < self.n_bytes_sent)
    }
}

/// Whether a shorter form fits; true if the window is unknown. The upstream's count of what was `sent` scales abridge's.
fn fits(shorter: &Report, sent: Option<usize>, counts: TokenCounts, window: Option<usize>) -> bool {
    let (Some(tokens), Some(window)) = (shorter.tokens_after, counts.window.or(window)) else { return true };
    let room = window.saturating_sub(counts.answer.unwrap_or(0));
    let counted = sent.or(shorter.tokens_before).unwrap_or(0);
    match counts.prompt {
        Some(reported) if counted > 0 => tokens.saturating_mul(reported) / counted <= room,
        _ => tokens <= room,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_request_fits_is_scaled_by_the_upstreams_count() {
        let report = |before, after| Report { tokens_before: before, tokens_after: after, ..Report::default() };
        let counts = |window, prompt, answer| TokenCounts { window, prompt, answer };
        let half = report(Some(1000), Some(500));
        // The upstream counts three tokens where abridge counts two.
        assert!(fits(&half, None, counts(Some(750), Some(1500), None), None));
        assert!(!fits(&half, None, counts(Some(749), Some(1500), None), None));
        assert!(!fits(&half, None, counts(Some(750), Some(1500), Some(1)), None));
        // The request that was sent was shorter than the client's.
        assert!(!fits(&half, Some(800), counts(Some(750), Some(1500), None), None));
        // The refusal has no count, or no window.
        assert!(fits(&half, None, counts(None, None, None), Some(500)));
        assert!(!fits(&half, None, counts(None, None, None), Some(499)));
        assert!(fits(&half, None, counts(None, None, None), None));
        assert!(fits(&report(None, None), None, counts(Some(10), Some(20), None), None));
    }
}
