//! The exporter: the SDK of OpenTelemetry, which queues spans and adds up metrics, and sends them from its own threads.

use std::sync::Arc;

use http::HeaderMap;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};

use super::http_client::CollectorClient;
use super::instruments::Instruments;
use super::trace::Instrumentation;
pub use super::trace::RequestTrace;
use super::{OtelError, Settings, StartedRequest};
use crate::upstream::connect::Proxies;
use crate::upstream::{self, Upstream};

/// Sends traces and metrics. Clones are one exporter.
#[derive(Clone, Debug)]
pub struct Exporter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    instrumentation: Arc<Instrumentation>,
    traces: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

impl Exporter {
    /// Creates the exporter of the settings, if they name a collector; it must be called on the server's runtime.
    pub fn new(settings: &Settings, proxies: &Proxies) -> Result<Option<Self>, OtelError> {
        let Some(endpoint) = &settings.endpoint else { return Ok(None) };
        let collector = upstream::Settings { url: endpoint.clone(), ..upstream::Settings::default() };
        let client = CollectorClient::new(Upstream::new(&collector, proxies, None)?);
        let base = endpoint.uri().to_string();
        let below = |path: &str| format!("{}{path}", base.trim_end_matches('/'));
        let failed = |error: opentelemetry_otlp::ExporterBuildError| OtelError::Exporter(error.to_string());
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
        let instrumentation = Arc::new(Instrumentation { tracer: traces.tracer("abridge"), instruments });
        Ok(Some(Self(Arc::new(Inner { instrumentation, traces, metrics }))))
    }

    /// Begins the trace of a request that is sent now, and names it in the request's header.
    pub fn begin(&self, request: StartedRequest<'_>, headers: &mut HeaderMap) -> RequestTrace {
        RequestTrace::begin(Arc::clone(&self.0.instrumentation), request, headers)
    }

    /// Sends what has not been sent; it waits, and must not be called on the server's thread.
    pub fn shutdown(&self) {
        for (what, ended) in [("traces", self.0.traces.shutdown()), ("metrics", self.0.metrics.shutdown())] {
            if let Err(error) = ended {
                tracing::warn!(%error, "the last {what} were not sent to otel.endpoint");
            }
        }
    }
}
