//! The trace of one request: a span for the request, one for the call of the upstream, and one for each step before that.

use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, StringValue, Value};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;

use super::instruments::{Instruments, Measures};
use super::{EndedRequest, StartedRequest};
use crate::dialect::AnswerEnd;
use crate::history::{Entry, Outcome};

/// The trace of one request. Everything that is not ended ends when it is dropped.
#[derive(Debug)]
pub struct RequestTrace {
    instrumentation: Arc<Instrumentation>,
    provider: &'static str,
    request: Context,
    upstream: Context,
}

/// What spans are made and requests are measured with.
#[derive(Debug)]
pub(super) struct Instrumentation {
    pub(super) tracer: SdkTracer,
    pub(super) instruments: Instruments,
}

/// The name of the empty field that the propagator writes without a state.
const TRACESTATE: &str = "tracestate";

impl RequestTrace {
    pub(super) fn begin(
        instrumentation: Arc<Instrumentation>,
        request: StartedRequest<'_>,
        headers: &mut HeaderMap,
    ) -> Self {
        let StartedRequest { path, provider, began, sent } = request;
        let propagator = TraceContextPropagator::new();
        let client = propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let span = |name: String, kind, began: SystemTime, parent: &Context| {
            let builder = instrumentation.tracer.span_builder(name).with_kind(kind).with_start_time(began);
            parent.with_span(builder.start_with_context(&instrumentation.tracer, parent))
        };
        let request = span(format!("POST {path}"), SpanKind::Server, began, &client);
        let upstream = span("chat".to_owned(), SpanKind::Client, sent, &request);
        propagator.inject_context(&upstream, &mut HeaderInjector(headers));
        if headers.get(TRACESTATE).is_some_and(http::HeaderValue::is_empty) {
            headers.remove(TRACESTATE);
        }
        Self { instrumentation, provider, request, upstream }
    }

    /// Ends all spans, and measures the request.
    pub fn end(self, ended: &EndedRequest<'_>) {
        let EndedRequest { entry, steps, sent, at } = ended;
        let model = entry.model.clone().unwrap_or_default();
        let mut named = vec![
            KeyValue::new("gen_ai.operation.name", "chat"),
            KeyValue::new("gen_ai.provider.name", self.provider),
            KeyValue::new("gen_ai.request.model", model.clone()),
        ];
        named.extend(error_type(entry).map(|error| KeyValue::new("error.type", error)));
        let measures = Measures {
            tokens: entry.input_tokens.zip(entry.output_tokens).map(|(input, output)| [input, output]),
            duration: at.duration_since(*sent).unwrap_or_default().as_secs_f64(),
            removed: if entry.outcome == Outcome::Edited { removed(entry) } else { 0 },
        };
        self.instrumentation.instruments.record(measures, &named);

        if !self.request.span().is_recording() {
            return;
        }
        for (name, began, ended) in *steps {
            let builder = self.instrumentation.tracer.span_builder(*name).with_start_time(*began);
            let step = builder.start_with_context(&self.instrumentation.tracer, &self.request);
            self.request.with_span(step).span().end_with_timestamp(*ended);
        }
        let status = error_type(entry).map(|error| Status::error(error.to_string()));
        let upstream = self.upstream.span();
        upstream.update_name(if model.is_empty() { "chat".to_owned() } else { format!("chat {model}") });
        upstream.set_attributes(named);
        upstream.set_attributes(usage(entry));
        upstream.set_status(status.clone().unwrap_or_default());
        upstream.end_with_timestamp(*at);
        let request = self.request.span();
        request.set_attributes(edits(entry));
        request.set_status(status.unwrap_or_default());
        request.end_with_timestamp(*at);
    }
}

/// Returns what the conventions have of the answer.
fn usage(entry: &Entry) -> impl Iterator<Item = KeyValue> {
    let tokens = [
        ("gen_ai.usage.input_tokens", entry.input_tokens),
        ("gen_ai.usage.cache_read.input_tokens", entry.cached_tokens),
        ("gen_ai.usage.output_tokens", entry.output_tokens),
        ("http.response.status_code", entry.status.map(u64::from)),
    ];
    let tokens = tokens.into_iter().filter_map(|(name, n)| Some(KeyValue::new(name, number(n?))));
    let reasons = entry.stop_reason.clone().map(|reason| {
        let reasons = vec![StringValue::from(reason)];
        KeyValue::new("gen_ai.response.finish_reasons", Value::Array(reasons.into()))
    });
    tokens.chain(reasons)
}

/// Returns what was edited.
fn edits(entry: &Entry) -> impl Iterator<Item = KeyValue> {
    let texts = [
        ("http.request.method", "POST".to_owned()),
        ("url.path", entry.path.clone()),
        ("abridge.request.id", entry.id.clone()),
        ("abridge.upstream", entry.upstream.clone()),
        ("abridge.outcome", entry.outcome.label().to_owned()),
    ];
    let numbers = [
        ("http.response.status_code", entry.status.map(u64::from)),
        ("abridge.messages", Some(entry.messages as u64)),
        ("abridge.bytes.before", Some(entry.bytes_before as u64)),
        ("abridge.bytes.after", Some(entry.bytes_after as u64)),
        ("abridge.tokens.before", entry.tokens_before.map(|n| n as u64)),
        ("abridge.tokens.after", entry.tokens_after.map(|n| n as u64)),
        ("abridge.offloaded_bytes", Some(entry.offloaded_bytes)),
    ];
    let each = entry.edits.iter().map(|(edit, n)| KeyValue::new(format!("abridge.edits.{edit}"), number(*n as u64)));
    let each: Vec<_> = each.collect();
    let share = entry.prefix_kept.map(|share| KeyValue::new("abridge.prefix_kept", share));
    let numbers = numbers.into_iter().filter_map(|(name, n)| Some(KeyValue::new(name, number(n?))));
    texts.into_iter().map(|(name, text)| KeyValue::new(name, text)).chain(numbers).chain(each).chain(share)
}

/// What went wrong with the answer, in a word or as its status.
fn error_type(entry: &Entry) -> Option<Value> {
    match (entry.end, entry.status) {
        (AnswerEnd::Unanswered, _) => Some("unanswered".into()),
        (AnswerEnd::Cut, _) => Some("cut".into()),
        (AnswerEnd::ClientGone, _) => Some("client_gone".into()),
        (AnswerEnd::Complete, Some(status @ 400..)) => Some(status.to_string().into()),
        (AnswerEnd::Complete, _) => None,
    }
}

fn removed(entry: &Entry) -> u64 {
    let (before, after) = (entry.tokens_before.unwrap_or_default(), entry.tokens_after.unwrap_or_default());
    before.saturating_sub(after) as u64
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
