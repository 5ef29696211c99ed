//! Traces and metrics of requests, sent to an OpenTelemetry collector: OTLP over HTTP, in protobuf, with the semantic
//! conventions for generative AI. Names, numbers and times; nothing of what messages say, and no key.

use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::units::Fraction;
use crate::upstream::target::BaseUrl;

#[cfg(not(feature = "otel"))]
#[path = "otel/without.rs"]
mod exporter;
#[cfg(feature = "otel")]
mod exporter;

pub use exporter::{Exporter, RequestTrace};

/// `[otel]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The collector, which speaks OTLP over HTTP: traces are posted to `/v1/traces` below it, metrics to `/v1/metrics`. Each
    /// edited request then names its span to the upstream in `traceparent`. Header fields for the collector are read from
    /// `OTEL_EXPORTER_OTLP_HEADERS`, and its pauses and queues from the other variables of OpenTelemetry.
    ///
    /// Not set: nothing is sent.
    ///
    /// Example: `"http://127.0.0.1:4318"`
    pub endpoint: Option<BaseUrl>,
    /// The share of requests that get a trace, more than 0 and at most 1. For a request with a `traceparent`, that decides.
    #[default(Fraction::ONE)]
    pub sample: Fraction,
}
