//! The exporter: the SDK of OpenTelemetry, which queues spans and adds up metrics, and sends them from its own threads.
//!
//! The trace of a request has a span for the request, one for the call of the upstream, and one for each step before that. The
//! log has one line when the collector fails, and one when it works again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use http::HeaderMap;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider as _};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer, TracerProvider as _};
use opentelemetry::{Context, KeyValue, StringValue, Value};
use opentelemetry_http::{Bytes, HeaderExtractor, HeaderInjector, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;

use super::Settings;
use crate::body::RequestBody;
use crate::dialect::AnswerEnd;
use crate::history::{Entry, Outcome};
use crate::metrics::{answer_times, token_counts};
use crate::setup_error::SetupError;
use crate::upstream::connect::Proxies;
use crate::upstream::post::{PostError, send_post};
use crate::upstream::{self, Upstream};

/// Sends traces and metrics. Clones are one exporter.
#[derive(Clone, Debug)]
pub struct Exporter {
    tracer: SdkTracer,
    instruments: Instruments,
    traces: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

impl Exporter {
    /// Creates the exporter of the settings, if they name a collector; it must be called on the server's runtime.
    pub fn new(settings: &Settings, proxies: &Proxies) -> Result<Option<Self>, SetupError> {
        let Some(endpoint) = &settings.endpoint else { return Ok(None) };
        let collector = upstream::Settings { url: endpoint.clone(), ..upstream::Settings::default() };
        let client = Upstream::new(&collector, proxies, None)?;
        let client = CollectorClient { client, is_failing: Arc::default(), runtime: Handle::current() };
        let base = endpoint.uri().to_string();
        let below = |path: &str| format!("{}{path}", base.trim_end_matches('/'));
        let failed = |error: opentelemetry_otlp::ExporterBuildError| SetupError::new(error.to_string());
        let spans = SpanExporter::builder()
            .with_http()
            .with_http_client(client.clone())
            .with_endpoint(below("/v1/traces"))
            .build()
            .map_err(failed)?;
        let numbers = MetricExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(below("/v1/metrics"))
            .build()
            .map_err(failed)?;
        let resource = Resource::builder().with_service_name("abridge").build();
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sample.get())));
        let traces = SdkTracerProvider::builder()
            .with_sampler(sampler)
            .with_resource(resource.clone())
            .with_batch_exporter(spans)
            .build();
        let metrics = SdkMeterProvider::builder().with_resource(resource).with_periodic_exporter(numbers).build();
        let instruments = Instruments::new(&metrics.meter("abridge"));
        Ok(Some(Self { tracer: traces.tracer("abridge"), instruments, traces, metrics }))
    }

    /// Begins the trace of a request that came when it `began` and is sent now, and names it in the request's header.
    pub fn begin(&self, path: &str, began: SystemTime, sent: SystemTime, headers: &mut HeaderMap) -> RequestTrace {
        let propagator = TraceContextPropagator::new();
        let client = propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let span = |name: String, kind, began: SystemTime, parent: &Context| {
            let builder = self.tracer.span_builder(name).with_kind(kind).with_start_time(began);
            parent.with_span(builder.start_with_context(&self.tracer, parent))
        };
        let request = span(format!("POST {path}"), SpanKind::Server, began, &client);
        let upstream = span("chat".to_owned(), SpanKind::Client, sent, &request);
        propagator.inject_context(&upstream, &mut HeaderInjector(headers));
        if headers.get(TRACESTATE).is_some_and(http::HeaderValue::is_empty) {
            headers.remove(TRACESTATE);
        }
        RequestTrace { exporter: self.clone(), request, upstream, sent }
    }

    /// Sends what has not been sent; it waits, and must not be called on the server's thread.
    pub fn shutdown(&self) {
        for (what, ended) in [("traces", self.traces.shutdown()), ("metrics", self.metrics.shutdown())] {
            if let Err(error) = ended {
                tracing::warn!(%error, "the last {what} were not sent to otel.endpoint");
            }
        }
    }
}

// === the HTTP client ===

/// Posts what exporters have encoded. They call it on their own threads, and it runs on the server's runtime.
#[derive(Clone, Debug)]
struct CollectorClient {
    client: Upstream,
    is_failing: Arc<AtomicBool>,
    runtime: Handle,
}

/// How long one post may take. The exporters give up after 10 s, retries included.
const TIMEOUT: Duration = Duration::from_secs(5);

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let collector = self.clone();
        let request = request.map(|bytes| RequestBody::buffered(&[bytes]));
        let posted = self.runtime.spawn(async move {
            let posted = send_post(&collector.client, request, TIMEOUT).await;
            collector.log_change(&posted);
            posted
        });
        Ok(posted.await??.map(|()| Bytes::new()))
    }
}

impl CollectorClient {
    /// Logs that the collector fails from now on, or works again.
    fn log_change(&self, posted: &Result<Response<()>, PostError>) {
        let failure = match posted {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answered {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        let was_failing = self.is_failing.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(reason) if !was_failing => tracing::warn!(
                %reason,
                "traces and metrics cannot be sent to otel.endpoint; what is not sent in time is lost"
            ),
            None if was_failing => tracing::info!("traces and metrics are sent to otel.endpoint again"),
            _ => {}
        }
    }
}

// === the metrics ===

/// What requests are measured with.
#[derive(Clone, Debug)]
struct Instruments {
    tokens: Histogram<u64>,
    duration: Histogram<f64>,
    removed: Counter<u64>,
}

impl Instruments {
    fn new(meter: &Meter) -> Self {
        Self {
            tokens: meter
                .u64_histogram("gen_ai.client.token.usage")
                .with_unit("{token}")
                .with_description("Tokens as billed")
                .with_boundaries(token_counts().collect())
                .build(),
            duration: meter
                .f64_histogram("gen_ai.client.operation.duration")
                .with_unit("s")
                .with_description("From when a request was sent to the end of its answer")
                .with_boundaries(answer_times().collect())
                .build(),
            removed: meter
                .u64_counter("abridge.tokens.removed")
                .with_unit("{token}")
                .with_description("Tokens that edits have taken out of requests")
                .build(),
        }
    }

    /// Measures a request with its billed tokens, and how long it took from when it was sent to the end of its answer.
    fn record(&self, entry: &Entry, duration: Duration, attributes: &[KeyValue]) {
        self.duration.record(duration.as_secs_f64(), attributes);
        if let Some((input, output)) = entry.input_tokens.zip(entry.output_tokens) {
            for (kind, tokens) in [("input", input), ("output", output)] {
                let typed = [attributes, &[KeyValue::new("gen_ai.token.type", kind)]].concat();
                self.tokens.record(tokens, &typed);
            }
        }
        let (before, after) = (entry.tokens_before.unwrap_or_default(), entry.tokens_after.unwrap_or_default());
        if entry.outcome == Outcome::Edited && before > after {
            self.removed.add((before - after) as u64, attributes);
        }
    }
}

// === the trace ===

/// The trace of one request. Everything that is not ended ends when it is dropped.
#[derive(Debug)]
pub struct RequestTrace {
    exporter: Exporter,
    request: Context,
    upstream: Context,
    sent: SystemTime,
}

/// The name of the empty field that the propagator writes without a state.
const TRACESTATE: &str = "tracestate";

impl RequestTrace {
    /// Ends all spans, and measures the request. `provider` is the maker whose wire format it has, as the conventions name it;
    /// each step before it was sent has its beginning and end.
    pub fn end(
        self,
        entry: &Entry,
        provider: &'static str,
        steps: &[(&'static str, SystemTime, SystemTime)],
        at: SystemTime,
    ) {
        let model = entry.model.clone().unwrap_or_default();
        let mut named = vec![
            KeyValue::new("gen_ai.operation.name", "chat"),
            KeyValue::new("gen_ai.provider.name", provider),
            KeyValue::new("gen_ai.request.model", model.clone()),
        ];
        named.extend(error_type(entry).map(|error| KeyValue::new("error.type", error)));
        let Exporter { tracer, instruments, .. } = &self.exporter;
        instruments.record(entry, at.duration_since(self.sent).unwrap_or_default(), &named);

        if !self.request.span().is_recording() {
            return;
        }
        for (name, began, ended) in steps {
            let builder = tracer.span_builder(*name).with_start_time(*began);
            let step = builder.start_with_context(tracer, &self.request);
            self.request.with_span(step).span().end_with_timestamp(*ended);
        }
        let status = error_type(entry).map(|error| Status::error(error.to_string()));
        let upstream = self.upstream.span();
        upstream.update_name(if model.is_empty() { "chat".to_owned() } else { format!("chat {model}") });
        upstream.set_attributes(named);
        upstream.set_attributes(usage(entry));
        upstream.set_status(status.clone().unwrap_or_default());
        upstream.end_with_timestamp(at);
        let request = self.request.span();
        request.set_attributes(edits(entry));
        request.set_status(status.unwrap_or_default());
        request.end_with_timestamp(at);
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
    let reasons = entry.stop_reason.clone().map(|reason| {
        let reasons = vec![StringValue::from(reason)];
        KeyValue::new("gen_ai.response.finish_reasons", Value::Array(reasons.into()))
    });
    numbers(tokens).chain(reasons)
}

/// Returns what was edited.
fn edits(entry: &Entry) -> impl Iterator<Item = KeyValue> {
    let texts = [
        ("http.request.method", "POST".to_owned()),
        ("url.path", entry.path.clone()),
        ("abridge.request.id", entry.id.clone()),
        ("abridge.upstream", entry.upstream.clone()),
        ("abridge.outcome", <&str>::from(entry.outcome).to_owned()),
    ];
    let counts = [
        ("http.response.status_code", entry.status.map(u64::from)),
        ("abridge.messages", Some(entry.messages as u64)),
        ("abridge.bytes.before", Some(entry.bytes_before as u64)),
        ("abridge.bytes.after", Some(entry.bytes_after as u64)),
        ("abridge.tokens.before", entry.tokens_before.map(|n| n as u64)),
        ("abridge.tokens.after", entry.tokens_after.map(|n| n as u64)),
        ("abridge.offloaded_bytes", Some(entry.offloaded_bytes)),
    ];
    let each = entry.edits.iter().map(|(edit, n)| KeyValue::new(format!("abridge.edits.{edit}"), number(*n as u64)));
    let share = entry.prefix_kept.map(|share| KeyValue::new("abridge.prefix_kept", share));
    let texts = texts.into_iter().map(|(name, text)| KeyValue::new(name, text));
    texts.chain(numbers(counts)).chain(each).chain(share)
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

/// The numbers that are known.
fn numbers<const N: usize>(of: [(&'static str, Option<u64>); N]) -> impl Iterator<Item = KeyValue> {
    of.into_iter().filter_map(|(name, n)| Some(KeyValue::new(name, number(n?))))
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
