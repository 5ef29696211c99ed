//! Posts every event to a URL, one after the other, beside the requests: what is too slow there is lost, never waited for.
//!
//! A post that fails is tried twice more where that may help, unless those before it have failed as well. What is given up and
//! what did not fit into the queue is counted, and told to the webhook itself as soon as it answers again. The log has a line
//! when it begins to fail and one when it is over, not one for each event.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::body::{self, Lease, Outgoing};
use crate::events::{self, Delivery, Events, Subscription, WebhookUrl};
use crate::upstream::connect::{ConnectorError, Proxies};
use crate::upstream::target::BaseUrlError;
use crate::upstream::{self, Upstream, UpstreamError};

/// Posts events.
#[derive(Debug)]
pub struct Webhook {
    listener: Subscription,
    url: WebhookUrl,
    client: Upstream,
    within: Duration,
    /// What the webhook has not been told of, since it last heard of that.
    lost: u64,
    failing: bool,
}

/// Why no webhook could be made.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The URL has no host to connect to.
    #[error(transparent)]
    Url(#[from] BaseUrlError),
    /// No client for it.
    #[error(transparent)]
    Connector(#[from] ConnectorError),
}

/// Why a post has failed.
#[derive(Debug, thiserror::Error)]
enum PostError {
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("it did not answer within {} ms", .0.as_millis())]
    Slow(Duration),
    // Not the upstream's own words, for it is another one.
    #[error("{}", no_answer(.0))]
    NoAnswer(UpstreamError),
}

/// The pauses before a post is tried again.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// How long an answer's body may take; it is read so that the connection can be used again.
const LINGER: Duration = Duration::from_secs(1);

// === impl Webhook ===

impl Webhook {
    /// The webhook of the settings, if they have one. It hears what is published from now on.
    pub fn new(settings: &events::Settings, events: &Events, proxies: &Proxies) -> Result<Option<Self>, WebhookError> {
        let Some(url) = settings.webhook.clone() else { return Ok(None) };
        let within = settings.webhook_timeout;
        let client =
            upstream::Settings { url: url.origin().parse()?, connect_timeout: within, ..upstream::Settings::default() };
        let client = Upstream::new(&client, proxies, None)?;
        let listener = events.subscribe_unlimited();
        Ok(Some(Self { listener, url, client, within: within.0, lost: 0, failing: false }))
    }

    /// Posts until it is told to stop, and then what still waits, each once.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let delivery = if self.listener.is_empty() {
                tokio::select! {
                    delivery = self.listener.next() => delivery,
                    () = stop.cancelled() => None,
                }
            } else {
                self.listener.next().await
            };
            match delivery {
                Some(Delivery::Event(told)) => self.tell(&told.json, &stop).await,
                Some(Delivery::Lost(n)) => self.lost += n,
                None => break,
            }
        }
        if self.lost > 0 {
            tracing::warn!(webhook = %self.url, lost = self.lost, "the webhook was never told of some events");
        }
    }

    async fn tell(&mut self, event: &Bytes, stop: &CancellationToken) {
        if let Err(error) = self.try_to_tell(event, stop).await {
            self.lost += 1;
            if self.failing {
                tracing::debug!(webhook = %self.url, %error, lost = self.lost, "an event is not told to the webhook");
            } else {
                tracing::warn!(webhook = %self.url, %error, "events are not told to the webhook; more are logged at debug");
            }
            self.failing = true;
        }
    }

    /// First what was lost before, so that the webhook knows of a gap before it hears what comes behind.
    async fn try_to_tell(&mut self, event: &Bytes, stop: &CancellationToken) -> Result<(), PostError> {
        if self.lost > 0 {
            self.post_again_and_again(&events::lost_event(self.lost), stop).await?;
            tracing::info!(webhook = %self.url, lost = self.lost, "events are told to the webhook again, and how many were lost");
            self.lost = 0;
            self.failing = false;
        }
        self.post_again_and_again(event, stop).await
    }

    async fn post_again_and_again(&self, json: &Bytes, stop: &CancellationToken) -> Result<(), PostError> {
        let mut pauses = PAUSES.iter();
        loop {
            let error = match self.post(json.clone()).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let patient = !self.failing && error.may_pass();
            let Some(pause) = pauses.next().filter(|_| patient) else { return Err(error) };
            if stop.run_until_cancelled(sleep(*pause)).await.is_none() {
                return Err(error);
            }
        }
    }

    async fn post(&self, json: Bytes) -> Result<(), PostError> {
        let answered = timeout(self.within, self.client.send(request(self.url.uri(), json))).await;
        let answer = answered.map_err(|_| PostError::Slow(self.within))?.map_err(PostError::NoAnswer)?;
        let status = answer.status();
        body::discard(answer.into_body(), LINGER).await;
        if status.is_success() { Ok(()) } else { Err(PostError::Status(status)) }
    }
}

fn request(target: &Uri, json: Bytes) -> Request<Outgoing> {
    let length = HeaderValue::from(json.len());
    let mut request = Request::new(Outgoing::held(&[json], Lease::default()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = target.clone();
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("abridge/", env!("CARGO_PKG_VERSION"))));
    request
}

// === impl PostError ===

impl PostError {
    /// Whether the same post may do better soon.
    fn may_pass(&self) -> bool {
        match self {
            Self::Status(status) => {
                status.is_server_error()
                    || matches!(
                        *status,
                        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS
                    )
            }
            Self::Slow(_) | Self::NoAnswer(_) => true,
        }
    }
}

fn no_answer(error: &UpstreamError) -> &'static str {
    match error.kind {
        upstream::UpstreamErrorKind::Tls => "no TLS with it",
        upstream::UpstreamErrorKind::ConnectTimeout(_) | upstream::UpstreamErrorKind::FirstByteTimeout(_) => {
            "it did not answer in time"
        }
        upstream::UpstreamErrorKind::Connect => "no connection to it",
        upstream::UpstreamErrorKind::Descriptors(_) => "no connection to it, because no file descriptor is left",
        upstream::UpstreamErrorKind::HeadTooLong | upstream::UpstreamErrorKind::Malformed => {
            "its answer cannot be read"
        }
        upstream::UpstreamErrorKind::Closed => "it closed the connection without an answer",
    }
}
