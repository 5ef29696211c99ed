//! How many tokens the upstream's models take, asked of the upstream itself, beside the requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, StatusCode, Uri};
use tokio::time::timeout;

use crate::body::{self, Budget, Lease, Limits, Outgoing, pool::Pool};
use crate::engine::Rules;
use crate::plan::Report;
use crate::tasks::Tasks;
use crate::tokens;
use crate::tokens::models::windows_in;
use crate::upstream::Upstream;

use super::headers::API_KEY;

/// Whether the upstream was asked. It is asked once, when a model comes by whose window nobody knows.
#[derive(Debug)]
pub struct Windows {
    asked: AtomicBool,
}

/// A shorter body, in bytes, is far from filling any window; the upstream is not asked for its sake.
const FROM: usize = 8 * 1024;

/// The longest listing that is read, in bytes. Those of gateways to everything are a tenth of it.
const LONGEST: usize = 8 << 20;

/// How long the upstream may take to list its models.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why nothing was learned.
#[derive(Debug, thiserror::Error)]
enum Unlearned {
    #[error("the upstream answered {0}")]
    Status(StatusCode),
    #[error("it took longer than {} s", PATIENCE.as_secs())]
    Slow,
    #[error(transparent)]
    Upstream(#[from] crate::upstream::UpstreamError),
    #[error(transparent)]
    Body(#[from] body::ReadError),
}

// === impl Windows ===

impl Windows {
    /// The upstream is asked when there is need to, or never.
    pub fn new(tokens: &tokens::Settings) -> Self {
        Self { asked: AtomicBool::new(!tokens.ask_upstream) }
    }

    /// Asks the upstream, in a task of its own and as the client of this request, if that has not been done and is of use.
    pub(super) fn learn(&self, report: &Report, rules: &Arc<Rules>, upstream: &Upstream, parts: &Parts, tasks: &Tasks) {
        if self.asked.load(Ordering::Relaxed) || report.model.is_none() || report.bytes_before < FROM {
            return;
        }
        if rules.meter.for_model(report.model.as_deref()).window().is_some() {
            return;
        }
        let Some(request) = listing(upstream, parts) else { return };
        if self.asked.swap(true, Ordering::Relaxed) {
            return;
        }
        let (rules, upstream) = (Arc::clone(rules), upstream.clone());
        tasks.spawn(async move {
            match timeout(PATIENCE, fetch(&upstream, request)).await.unwrap_or(Err(Unlearned::Slow)) {
                Ok(windows) => {
                    tracing::debug!(models = windows.len(), "the upstream has told the context windows of its models");
                    for (model, window) in &windows {
                        rules.meter.learn_window(model, *window);
                    }
                }
                Err(error) => tracing::debug!(%error, "the upstream does not tell the context windows of its models"),
            }
        });
    }
}

/// `GET /models` beside the path that the client posts to, with what the client shows of itself.
fn listing(upstream: &Upstream, parts: &Parts) -> Option<Request<Outgoing>> {
    let folder = parts.uri.path().strip_suffix("/chat/completions")?;
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path: Uri = format!("{folder}/models{query}").parse().ok()?;
    let mut request = Request::new(Outgoing::held(Vec::new(), Lease::default()));
    *request.method_mut() = Method::GET;
    *request.uri_mut() = upstream.join(&path).ok()?;
    for name in [AUTHORIZATION, API_KEY, ORGANIZATION, PROJECT] {
        if let Some(value) = parts.headers.get(&name) {
            request.headers_mut().insert(name, value.clone());
        }
    }
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    Some(request)
}

const ORGANIZATION: HeaderName = HeaderName::from_static("openai-organization");
const PROJECT: HeaderName = HeaderName::from_static("openai-project");

async fn fetch(upstream: &Upstream, request: Request<Outgoing>) -> Result<Vec<(String, usize)>, Unlearned> {
    let response = upstream.send(request).await?;
    if response.status() != StatusCode::OK {
        return Err(Unlearned::Status(response.status()));
    }
    // A budget of its own: what requests need is not spent on this.
    let limits = Limits { max_body: LONGEST, pause: PATIENCE, budget: Budget::new(2 * LONGEST), pool: Pool::default() };
    let listing = body::read_up_to(response.into_body(), &limits).await?;
    Ok(windows_in(&listing.bytes))
}
