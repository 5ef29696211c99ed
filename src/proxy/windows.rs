//! How many tokens the upstream's models take, asked of the upstream itself, beside the requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, StatusCode, Uri};
use tokio::time::{Instant, timeout};

use crate::body::{self, Budget, Lease, Limits, Outgoing, pool::Pool};
use crate::dialect;
use crate::engine::EngineConfig;
use crate::plan::Report;
use crate::tasks::Tasks;
use crate::tokens;
use crate::tokens::models::windows_in;
use crate::upstream::Upstream;

use super::headers::API_KEY;

/// Whether the upstream was asked. It is asked when a model comes by whose window nobody knows: until it has answered once,
/// and after each failure not before a pause that becomes longer.
#[derive(Debug)]
pub struct Windows {
    began: Instant,
    turn: Arc<Turn>,
}

/// Whose turn it is to ask: one at a time, and nobody for a while after a failure.
#[derive(Debug)]
struct Turn {
    // From when on the upstream may be asked, in milliseconds.
    from: AtomicU64,
    // The next pause, in milliseconds.
    pause: AtomicU64,
}

/// Not before the turn is given back; for ever, if it is not.
const TAKEN: u64 = u64::MAX;

/// The pause behind a failure; each is twice as long as the one before.
const PAUSES: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(1));

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
        Self { began: Instant::now(), turn: Arc::new(Turn::new(tokens.ask_upstream, PAUSES.0)) }
    }

    /// Asks the upstream, in a task of its own and as the client of this request, if that has not been done and is of use.
    pub(super) fn learn(
        &self,
        report: &Report,
        rules: &Arc<EngineConfig>,
        upstream: &Upstream,
        parts: &Parts,
        tasks: &Tasks,
    ) {
        let began = self.began;
        if !self.turn.is_free(since(began)) || report.model.is_none() || report.bytes_before < FROM {
            return;
        }
        if rules.planner.meter.for_model(report.model.as_deref()).window().is_some() {
            return;
        }
        let Some(request) = listing(upstream, parts) else { return };
        if !self.turn.take(since(began)) {
            return;
        }
        let (turn, rules, upstream) = (Arc::clone(&self.turn), Arc::clone(rules), upstream.clone());
        tasks.spawn(async move {
            match timeout(PATIENCE, fetch(&upstream, request)).await.unwrap_or(Err(Unlearned::Slow)) {
                Ok(windows) => {
                    tracing::debug!(models = windows.len(), "the upstream has told the context windows of its models");
                    for (model, window) in &windows {
                        rules.planner.meter.learn_window(model, *window);
                    }
                }
                Err(error) => {
                    let pause = turn.give_back(since(began));
                    let pause_seconds = pause.as_secs();
                    tracing::debug!(%error, pause_seconds, "the upstream does not tell the context windows of its models");
                }
            }
        });
    }
}

// === impl Turn ===

impl Turn {
    /// A turn that nobody has, or that nobody can ever take.
    fn new(free: bool, pause: Duration) -> Self {
        let from = if free { 0 } else { TAKEN };
        Self { from: AtomicU64::new(from), pause: AtomicU64::new(millis(pause)) }
    }

    fn is_free(&self, now: u64) -> bool {
        self.from.load(Ordering::Relaxed) <= now
    }

    /// Takes the turn, if it is free.
    fn take(&self, now: u64) -> bool {
        let take = |from| (from <= now).then_some(TAKEN);
        self.from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Gives the turn back after a failure; it is free again behind the pause that it returns.
    fn give_back(&self, now: u64) -> Duration {
        let pause = self.pause.load(Ordering::Relaxed);
        self.pause.store((2 * pause).min(millis(PAUSES.1)), Ordering::Relaxed);
        self.from.store(now.saturating_add(pause), Ordering::Relaxed);
        Duration::from_millis(pause)
    }
}

fn since(began: Instant) -> u64 {
    millis(began.elapsed())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(TAKEN - 1)
}

// === the request ===

/// `GET /models` beside the path that the client posts to, with what the client shows of itself.
fn listing(upstream: &Upstream, parts: &Parts) -> Option<Request<Outgoing>> {
    let path = parts.uri.path();
    let folder = dialect::for_path(path)?.base_path(path)?;
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path: Uri = format!("{folder}/models{query}").parse().ok()?;
    let mut request = Request::new(Outgoing::held(&[], Lease::default()));
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::engine::summarizer::Endpoints;
    use crate::planner::{Parts as Policies, Planner};
    use crate::upstream;
    use crate::upstream::connect::Proxies;

    #[test]
    fn one_asks_at_a_time_and_pauses_grow_to_an_hour() {
        let turn = Turn::new(true, PAUSES.0);
        let (mut now, mut minutes) = (0, Vec::new());
        for _ in 0..9 {
            assert!(turn.is_free(now) && turn.take(now));
            assert!(!turn.is_free(now) && !turn.take(now));
            let pause = turn.give_back(now);
            minutes.push(pause.as_secs() / 60);
            now += millis(pause);
            assert!(!turn.is_free(now - 1) && !turn.take(now - 1));
        }
        assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(!Turn::new(false, Duration::ZERO).take(now));
    }

    /// An upstream that gives these answers, one a connection, and then listens no more.
    fn upstream(answers: [(&'static str, &'static str); 2]) -> (Upstream, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let answering = thread::spawn(move || {
            for (status, body) in answers {
                let (mut socket, _) = listener.accept().unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    socket.read_exact(&mut byte).unwrap();
                    head.push(byte[0]);
                }
                assert!(head.starts_with(b"GET /v1/models HTTP/1.1\r\n"), "{}", String::from_utf8_lossy(&head));
                let length = body.len();
                write!(socket, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                    .unwrap();
            }
        });
        let settings = upstream::Settings { url: url.parse().unwrap(), ..upstream::Settings::default() };
        (Upstream::new(&settings, &Proxies::default(), None).unwrap(), answering)
    }

    #[tokio::test]
    async fn a_listing_that_failed_is_fetched_again_and_one_that_came_is_not() {
        let listing = r#"{"data":[{"id":"house-model","max_model_len":16000}]}"#;
        let (upstream, answering) = upstream([("503 Service Unavailable", ""), ("200 OK", listing)]);
        let planner = Planner::new(Policies::default());
        let rules = Arc::new(EngineConfig { planner, endpoints: Endpoints::default() });
        let (parts, ()) = Request::post("/v1/chat/completions").body(()).unwrap().into_parts();
        let mut report = Report { model: Some("house-model".to_owned()), bytes_before: FROM, ..Report::default() };
        let windows = Windows { began: Instant::now(), turn: Arc::new(Turn::new(true, Duration::ZERO)) };
        let window = || rules.planner.meter.for_model(Some("house-model")).window();
        for expected in [None, Some(16000)] {
            let tasks = Tasks::default();
            windows.learn(&report, &rules, &upstream, &parts, &tasks);
            tasks.drained().await;
            assert_eq!(window(), expected);
        }
        answering.join().unwrap();
        // It has told all that it knows.
        report.model = Some("another".to_owned());
        let tasks = Tasks::default();
        windows.learn(&report, &rules, &upstream, &parts, &tasks);
        assert_eq!(tasks.running(), 0);
    }
}
