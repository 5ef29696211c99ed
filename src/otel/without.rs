//! What replaces the exporter in a build without the feature `otel`.

use http::HeaderMap;

use super::{EndedRequest, OtelError, Settings, StartedRequest};
use crate::upstream::connect::Proxies;

/// Sends traces and metrics.
#[derive(Clone, Debug)]
pub struct Exporter(());

/// The trace of one request.
#[derive(Debug)]
pub struct RequestTrace(());

impl Exporter {
    /// Refuses settings with an endpoint, so there is never an exporter.
    pub fn new(settings: &Settings, _: &Proxies) -> Result<Option<Self>, OtelError> {
        if settings.endpoint.is_some() { Err(OtelError::NotBuiltIn) } else { Ok(None) }
    }

    /// Begins the trace of a request.
    pub fn begin(&self, _: StartedRequest<'_>, _: &mut HeaderMap) -> RequestTrace {
        RequestTrace(())
    }

    /// Sends what has not been sent.
    pub fn shutdown(&self) {}
}

impl RequestTrace {
    /// Ends the trace.
    pub fn end(self, _: &EndedRequest<'_>) {}
}
