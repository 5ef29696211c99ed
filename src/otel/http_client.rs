//! The HTTP client of the exporters: that of upstreams. The log has one line when the collector fails, and one when it works
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::runtime::Handle;

use crate::body::RequestBody;
use crate::upstream::Upstream;
use crate::upstream::post::{PostError, send_post};

/// Posts what exporters have encoded. They call it on their own threads, and it runs on the server's runtime.
#[derive(Clone, Debug)]
pub(super) struct CollectorClient {
    collector: Arc<Collector>,
    runtime: Handle,
}

#[derive(Debug)]
struct Collector {
    client: Upstream,
    is_failing: AtomicBool,
}

/// How long one post may take. The exporters give up after 10 s, retries included.
const TIMEOUT: Duration = Duration::from_secs(5);

impl CollectorClient {
    /// Creates the client; it must be called on the server's runtime.
    pub(super) fn new(client: Upstream) -> Self {
        let collector = Collector { client, is_failing: AtomicBool::new(false) };
        Self { collector: Arc::new(collector), runtime: Handle::current() }
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let collector = Arc::clone(&self.collector);
        let request = request.map(|bytes| RequestBody::buffered(&[bytes]));
        let posted = self.runtime.spawn(async move {
            let posted = send_post(&collector.client, request, TIMEOUT).await;
            collector.log_change(&posted);
            posted
        });
        Ok(posted.await??.map(|()| Bytes::new()))
    }
}

impl Collector {
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
