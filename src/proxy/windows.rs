//! Fetches the context windows of models from the upstream, beside the requests.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue, USER_AGENT};
use http::request::Parts;
use tokio::time::{Instant, timeout};

use crate::dialect;
use crate::engine::EngineConfig;
use crate::held::Held;
use crate::plan::Report;
use crate::tasks::Tasks;
use crate::tokens;
use crate::tokens::models::{self, Source};
use crate::upstream::probe::{Listing, ListingError, ModelsRequest, ONE_PAGE};
use crate::upstream::routes::{ANTHROPIC_VERSION, CHATGPT_ACCOUNT};
use crate::upstream::{ANTHROPIC_BETA, Upstream};

use super::headers::{self, API_KEY, X_API_KEY};

/// Fetches the upstream's list of models when a request names a model with an unknown window: until one fetch succeeds,
/// with a pause after each failure. A local server may load another model, or one in another way, so each answer of one
/// counts as a failure: it is asked again when another window is unknown.
#[derive(Debug)]
pub struct WindowDiscovery {
    // When the next fetch may begin. None while one runs, and for ever after one that succeeds.
    opens: Arc<Held<Option<Instant>>>,
}

/// The pause after a failure.
const PAUSE: Duration = Duration::from_mins(5);

/// Shorter bodies, in bytes, are far from filling any window and start no fetch.
const MIN_BODY: usize = 8 * 1024;

/// How long a fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

// === impl WindowDiscovery ===

impl WindowDiscovery {
    /// Fetches when needed, or never if `tokens.ask_upstream` is false.
    pub fn new(tokens: &tokens::Settings) -> Self {
        Self { opens: Arc::new(Held::new(tokens.ask_upstream.then(Instant::now))) }
    }

    /// Starts a fetch in a task, with the credential of this request, if the window is unknown and a fetch may begin. The built-in
    /// table does not know with which context a local server has loaded a model, nor that accounts of `ChatGPT` and Copilot
    /// have smaller ones.
    pub(super) fn fetch_if_needed(
        &self,
        report: &Report,
        rules: &Arc<EngineConfig>,
        upstream: &Upstream,
        parts: &Parts,
        tasks: &Tasks,
    ) {
        let is_open = || self.opens.with(|opens| opens.is_some_and(|opens| opens <= Instant::now()));
        if report.bytes_before < MIN_BODY || report.model.is_none() || !is_open() {
            return;
        }
        let model = report.model.as_deref().unwrap_or_default();
        let meter = &rules.planner.meter;
        let may_be_local = || models::may_be_served_locally(meter.models().unaliased(model));
        let has = |name: &HeaderName| parts.headers.contains_key(name);
        let is_less = || OF_ACCOUNTS.iter().any(has) || upstream.base.is_local() && may_be_local();
        if meter.models().find(model).window.is_some_and(|(_, source)| source != Source::BuiltIn || !is_less()) {
            return;
        }
        let Some(request) = models_request(upstream, parts) else { return };
        if self.opens.with(|opens| opens.take_if(|opens| *opens <= Instant::now())).is_none() {
            return;
        }
        let (opens, rules, upstream) = (Arc::clone(&self.opens), Arc::clone(rules), upstream.clone());
        let model = report.model.clone().unwrap_or_default();
        tasks.spawn(async move {
            let fetched = fetch(&upstream, &request, &model).await;
            if !matches!(fetched, Ok(Listing { server: None, .. })) {
                opens.with(|opens| *opens = Some(Instant::now() + PAUSE));
            }
            match fetched {
                Ok(Listing { windows, .. }) => {
                    tracing::debug!(models = windows.len(), "fetched the context windows of the upstream's models");
                    for (model, window) in &windows {
                        rules.planner.meter.models().learn(model, *window);
                    }
                }
                Err(error) => tracing::debug!(%error, "could not fetch the context windows of the upstream's models"),
            }
        });
    }
}

// === the request ===

/// `GET /models` next to the path that the client posts to, with the client's credential.
fn models_request(upstream: &Upstream, parts: &Parts) -> Option<ModelsRequest> {
    let path = parts.uri.path();
    let dialect = dialect::for_path(path)?;
    // A path that names the model has no list of models beside it.
    let folder = dialect.base_path(path).filter(|_| dialect.path_facts(path).model.is_none())?;
    // `ChatGPT` lists the models that this version of Codex may use, and all to this one (NousResearch/hermes-agent#93295).
    let query = if parts.headers.contains_key(CHATGPT_ACCOUNT) {
        vec!["client_version=0.0.0"]
    } else {
        let one_page = parts.headers.contains_key(ANTHROPIC_VERSION).then_some(ONE_PAGE);
        parts.uri.query().into_iter().chain(one_page).collect()
    };
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    let path: Uri = format!("{folder}/models{query}").parse().ok()?;
    let mut request = ModelsRequest::new(upstream.join(&path).ok()?);
    let usual = [AUTHORIZATION, API_KEY, ORGANIZATION, PROJECT, X_API_KEY, ANTHROPIC_VERSION, USER_AGENT, EDITOR];
    for name in usual.into_iter().chain(OF_ACCOUNTS) {
        if let Some(value) = parts.headers.get(&name) {
            request.headers.insert(name, value.clone());
        }
    }
    // Anthropic's API takes the token of an account beside this name alone.
    let mut betas = parts.headers.get_all(ANTHROPIC_BETA).iter().flat_map(headers::names);
    let of_account = betas.find(|name| name.starts_with(b"oauth-")).and_then(|name| HeaderValue::from_bytes(name).ok());
    request.headers.extend(of_account.map(|name| (ANTHROPIC_BETA, name)));
    Some(request)
}

/// What requests with an account have: Codex's of `ChatGPT`, editors' and opencode's of Copilot. Copilot refuses more than
/// 128,000 tokens for models with windows of 400,000 (anomalyco/opencode#5993).
const OF_ACCOUNTS: [HeaderName; 3] =
    [CHATGPT_ACCOUNT, HeaderName::from_static("copilot-integration-id"), HeaderName::from_static("openai-intent")];
const EDITOR: HeaderName = HeaderName::from_static("editor-version");
const ORGANIZATION: HeaderName = HeaderName::from_static("openai-organization");
const PROJECT: HeaderName = HeaderName::from_static("openai-project");

/// Fetches the list, and the window of `model` if a local server says that elsewhere.
async fn fetch(upstream: &Upstream, request: &ModelsRequest, model: &str) -> Result<Listing, ListingError> {
    let read = async {
        let first = request.send(upstream).await?;
        let mut listing = request.read_windows(upstream, first, FETCH_TIMEOUT).await?;
        let is_missing = !listing.windows.iter().any(|(name, _)| name == model);
        if let Some(server) = listing.server.as_ref().filter(|_| is_missing) {
            let only = listing.windows.last().filter(|_| server.serves_any_name()).map(|(_, window)| *window);
            let window = match only {
                Some(window) => Some(window),
                None => request.window_of(upstream, server, model, FETCH_TIMEOUT).await,
            };
            listing.windows.extend(window.map(|window| (model.to_owned(), window)));
        }
        Ok(listing)
    };
    timeout(FETCH_TIMEOUT, read).await.unwrap_or(Err(ListingError::Timeout(FETCH_TIMEOUT)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use http::Request;

    use super::*;
    use crate::engine::handlers::HandlerClients;
    use crate::engine::summarizer::Endpoints;
    use crate::planner::{PlanSettings, Planner};
    use crate::upstream;
    use crate::upstream::connect::Proxies;

    /// An upstream that gives these answers, one per connection, and then closes its listener.
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
    async fn a_failed_fetch_is_repeated_and_a_successful_one_is_not() {
        let listing = r#"{"data":[{"id":"house-model","max_model_len":16000}]}"#;
        let (upstream, answering) = upstream([("503 Service Unavailable", ""), ("200 OK", listing)]);
        let planner = Planner::new(PlanSettings::default());
        let rules = Arc::new(EngineConfig {
            planner,
            endpoints: Endpoints::default(),
            handlers: HandlerClients::default(),
            policy: EngineConfig::NO_POLICY.into(),
        });
        let (parts, ()) = Request::post("/v1/chat/completions").body(()).unwrap().into_parts();
        let mut report = Report { model: Some("house-model".to_owned()), bytes_before: MIN_BODY, ..Report::default() };
        let windows = WindowDiscovery::new(&tokens::Settings::default());
        let window = || rules.planner.meter.for_model(Some("house-model")).window;
        for expected in [None, Some(16000)] {
            let tasks = Tasks::default();
            windows.fetch_if_needed(&report, &rules, &upstream, &parts, &tasks);
            let is_open = || windows.opens.with(|opens| opens.is_some_and(|opens| opens <= Instant::now()));
            assert!(!is_open(), "one runs at a time");
            tasks.wait().await;
            assert_eq!(window(), expected);
            assert!(!is_open(), "after a failure there is a pause");
            windows.opens.with(|opens| *opens = opens.map(|opens| opens - PAUSE));
        }
        answering.join().unwrap();
        // The fetch has succeeded, so no other starts.
        report.model = Some("another".to_owned());
        let tasks = Tasks::default();
        windows.fetch_if_needed(&report, &rules, &upstream, &parts, &tasks);
        assert_eq!(tasks.running(), 0);
    }
}
