//! The models that can be called for a summary, the one that the client uses or those of the settings, and the requests to
//! them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, EXPECT, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Uri};

use super::SummaryOrigin;
use crate::dialect::Dialect;
use crate::edit::Language;
use crate::edit::summarize::{self, PromptMode, fit, instruction};
use crate::events::Phase;
use crate::setup_error::SetupError;
use crate::summary::{Prompt, SummaryInput};
use crate::upstream::connect::Proxies;
use crate::upstream::target::{BaseUrl, BaseUrlError};
use crate::upstream::{self, KeyHeader, Upstream};

/// The models of `[summarize.model]` and `[[summarize.failover]]`.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    primary: Option<Endpoint>,
    failover: Vec<Endpoint>,
}

/// A model of the settings, with its own key. It never receives a client's headers.
#[derive(Clone, Debug)]
struct Endpoint {
    upstream: Upstream,
    url: BaseUrl,
    model: String,
    // The key in each field that a dialect may send it in.
    keys: HeaderMap,
}

/// A model that can be called for a summary.
pub(super) struct Candidate<'a> {
    /// Whether it is the first choice or a failover.
    pub(super) phase: Phase,
    /// The model to request, if it is not the one of the client's request.
    pub(super) model: Option<&'a str>,
    /// The upstream that requests go to.
    pub(super) upstream: &'a Upstream,
    pub(super) target: Uri,
    pub(super) headers: HeaderMap,
}

/// The parameters of a request.
pub(super) struct RequestSpec {
    pub(super) input: PromptMode,
    pub(super) language: Language,
    /// The part of the conversation to summarize that fits.
    pub(super) source: SummaryInput,
    /// Whether something is left out of its middle.
    pub(super) is_cut: bool,
    /// The most tokens of it in the plain form, which can be cut anywhere.
    pub(super) most_tokens: usize,
    pub(super) max_tokens: usize,
    pub(super) instruction: String,
}

/// Client headers that are not forwarded: they are about the client's own body and answer, or would change this
/// request.
const NOT_FORWARDED: [HeaderName; 5] = [
    ACCEPT_ENCODING,
    EXPECT,
    HeaderName::from_static("x-abridge"),
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("host"),
];

// === impl Endpoints ===

impl Endpoints {
    /// Creates the endpoints of the settings, which are reached as the upstream is. `key` returns the value of a header
    /// field with the key in an environment variable.
    ///
    /// # Errors
    ///
    /// If a URL is invalid, and as [`Upstream::new`].
    pub fn new(
        settings: &summarize::Settings,
        upstream: &upstream::Settings,
        proxies: &Proxies,
        key: impl Fn(&str, KeyHeader) -> Option<HeaderValue>,
    ) -> Result<Self, SetupError> {
        let endpoint = |endpoint: &summarize::Endpoint| Endpoint::new(endpoint, upstream, proxies, &key);
        Ok(Self {
            primary: settings.model.as_ref().map(endpoint).transpose()?,
            failover: settings.failover.iter().map(endpoint).collect::<Result<_, _>>()?,
        })
    }

    /// All models that can be called for this request, in order.
    pub(super) fn candidates<'a>(&'a self, origin: &'a SummaryOrigin) -> Vec<Candidate<'a>> {
        let first = match &self.primary {
            Some(endpoint) => endpoint.candidate(Phase::Primary, origin),
            None => Some(Candidate {
                phase: Phase::Primary,
                model: None,
                upstream: &origin.upstream,
                target: origin.target.clone(),
                headers: headers_of(&origin.headers),
            }),
        };
        let others = self.failover.iter().filter_map(|endpoint| endpoint.candidate(Phase::Failover, origin));
        first.into_iter().chain(others).collect()
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn new(
        endpoint: &summarize::Endpoint,
        like: &upstream::Settings,
        proxies: &Proxies,
        key: impl Fn(&str, KeyHeader) -> Option<HeaderValue>,
    ) -> Result<Self, SetupError> {
        let invalid =
            |error: BaseUrlError| SetupError::because(format!("base_url = {:?} is {error}", endpoint.base_url), error);
        let url: BaseUrl = endpoint.base_url.parse().map_err(invalid)?;
        // The headers of the upstream's settings may be keys for that upstream.
        let settings = upstream::Settings {
            url: url.clone(),
            headers: BTreeMap::new(),
            api_key_env: None,
            api_key_header: KeyHeader::Authorization,
            ..like.clone()
        };
        let upstream = Upstream::new(&settings, proxies, None)?;
        let fields = KeyHeader::ALL.into_iter();
        let keys = fields.filter_map(|field| Some((field.name(), key(endpoint.api_key_env.as_deref()?, field)?)));
        Ok(Self { upstream, url, model: endpoint.model.clone(), keys: keys.collect() })
    }

    /// The endpoint in the dialect of the request; `None` if its URL cannot take the path.
    fn candidate(&self, phase: Phase, origin: &SummaryOrigin) -> Option<Candidate<'_>> {
        let dialect = origin.dialect;
        let target = self.url.join(&dialect.path_of(&self.model).parse().ok()?).ok()?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("abridge/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = self.keys.get(dialect.facts().key_field) {
            headers.insert(HeaderName::from_static(dialect.facts().key_field), key.clone());
        }
        if let Some((name, default)) = dialect.facts().version_field {
            let version = origin.headers.get(name).cloned();
            headers.insert(HeaderName::from_static(name), version.unwrap_or(HeaderValue::from_static(default)));
        }
        Some(Candidate { phase, model: Some(&self.model), upstream: &self.upstream, target, headers })
    }
}

/// The client's headers for a call in its name, without those about its own body and answer.
fn headers_of(client: &HeaderMap) -> HeaderMap {
    let ours = |name: &HeaderName| !NOT_FORWARDED.contains(name) && !name.as_str().starts_with("content-");
    client.iter().filter(|(name, _)| ours(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

// === impl RequestSpec ===

impl RequestSpec {
    /// Leaves out the middle if the source has more tokens than this.
    pub(super) fn fit(&mut self, most_tokens: usize) {
        if self.input == PromptMode::Plain {
            self.most_tokens = most_tokens;
            return;
        }
        let fitted = fit::fitted(&self.source, most_tokens);
        self.is_cut |= fitted.messages.len() < self.source.messages.len();
        self.source = fitted;
    }

    /// Takes the plain form, which has none of the client's instructions and tools.
    pub(super) fn become_plain(&mut self) {
        self.input = PromptMode::Plain;
        self.source.messages.drain(..self.source.n_leading.min(self.source.messages.len()));
        (self.source.n_leading, self.source.base_tokens) = (0, 0);
    }

    pub(super) fn request(&self, dialect: &dyn Dialect, model: Option<&str>) -> Option<Bytes> {
        let is_plain = self.input == PromptMode::Plain;
        let mut instruction = Cow::Borrowed(&*self.instruction);
        if self.is_cut || is_plain && tokens_of(&self.source) > self.most_tokens {
            let left_out = &instruction::words(self.language).middle_left_out;
            instruction = format!("{instruction}\n\n{left_out}").into();
        }
        let system = &*instruction::words(self.language).system;
        if is_plain {
            instruction = fit::prompt(&self.source, dialect, &[system, &instruction], self.most_tokens)?.into();
        }
        let &Self { input, max_tokens, .. } = self;
        dialect.summary_request(&self.source, &Prompt { input, system, instruction: &instruction, max_tokens, model })
    }
}

pub(super) fn tokens_of(source: &SummaryInput) -> usize {
    source.base_tokens + fit::tokens(&source.messages)
}
