//! What replaces the exporter in a build without the feature `otel`.

use std::time::SystemTime;

use http::HeaderMap;

use super::Settings;
use crate::history::Entry;
use crate::setup_error::SetupError;
use crate::upstream::connect::Proxies;

/// Sends traces and metrics.
#[derive(Clone, Debug)]
pub struct Exporter(());

/// The trace of one request.
#[derive(Debug)]
pub struct RequestTrace(());

impl Exporter {
    /// Refuses settings with an endpoint, so there is never an exporter.
    pub fn new(settings: &Settings, _: &Proxies) -> Result<Option<Self>, SetupError> {
        let what =
            "this abridge was built without OpenTelemetry; remove the setting, or build it with `--features otel`";
        if settings.endpoint.is_some() { Err(SetupError::new(what)) } else { Ok(None) }
    }

    /// Begins the trace of a request.
    pub fn begin(&self, _: &str, _: SystemTime, _: SystemTime, _: &mut HeaderMap) -> RequestTrace {
        RequestTrace(())
    }

    /// Sends what has not been sent.
    pub fn shutdown(&self) {}
}

impl RequestTrace {
    /// Ends the trace.
    pub fn end(self, _: &Entry, _: &str, _: &[(&str, SystemTime, SystemTime)], _: SystemTime) {}
}
