//! The webhook: posts each event to a URL, one after the other, beside the requests. Events are lost if it is too slow.
//!
//! A failed post is retried twice if that may help, unless earlier posts have failed as well. Lost events, given up or
//! dropped from the full queue, are counted, and the count is posted as soon as the webhook answers again. The log has one
//! line when posts begin to fail and one when they succeed again, not one for each event.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::events::{self, Delivery, Events, Subscription, WebhookUrl};
use crate::setup_error::SetupError;
use crate::upstream::Upstream;
use crate::upstream::connect::Proxies;
use crate::upstream::post::{PostError, json_post, post_client, send_post};

/// Posts events to a URL.
#[derive(Debug)]
pub struct Webhook {
    listener: Subscription,
    url: WebhookUrl,
    client: Upstream,
    within: Duration,
    /// The number of lost events that has not been posted yet.
    lost: u64,
    failing: bool,
}

/// Why an event was not delivered.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error(transparent)]
    Post(#[from] PostError),
}

/// The delays before each retry of a post.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

// === impl Webhook ===

impl Webhook {
    /// Creates the webhook of the settings, if they have one. It receives events from now on.
    pub fn new(settings: &events::Settings, events: &Events, proxies: &Proxies) -> Result<Option<Self>, SetupError> {
        let Some(url) = settings.webhook.clone() else { return Ok(None) };
        let within = settings.webhook_timeout;
        let client = post_client(&url, within, proxies)?;
        let listener = events.subscribe_unlimited();
        Ok(Some(Self { listener, url, client, within: within.0, lost: 0, failing: false }))
    }

    /// Posts events until `stop` is cancelled, and then each queued event once, without retries.
    pub async fn run(mut self, stop: CancellationToken) {
        while let Some(delivery) = self.listener.next_until(&stop).await {
            match delivery {
                Delivery::Event(told) => self.deliver(&told.json, &stop).await,
                Delivery::Lost(n) => self.lost += n,
            }
        }
        if self.lost > 0 {
            tracing::warn!(webhook = %self.url, lost = self.lost, "some events were not posted to the webhook");
        }
    }

    async fn deliver(&mut self, event: &Bytes, stop: &CancellationToken) {
        if let Err(error) = self.try_deliver(event, stop).await {
            self.lost += 1;
            if self.failing {
                tracing::debug!(webhook = %self.url, %error, lost = self.lost, "an event could not be posted to the webhook");
            } else {
                tracing::warn!(webhook = %self.url, %error, "events cannot be posted to the webhook; more are logged at debug");
            }
            self.failing = true;
        }
    }

    /// Posts the number of lost events first, so that the webhook learns of the gap before the next event.
    async fn try_deliver(&mut self, event: &Bytes, stop: &CancellationToken) -> Result<(), DeliveryError> {
        if self.lost > 0 {
            self.post_with_retries(&events::lost_event(self.lost), stop).await?;
            tracing::info!(webhook = %self.url, lost = self.lost, "events are posted to the webhook again, with the number of lost ones");
            self.lost = 0;
            self.failing = false;
        }
        self.post_with_retries(event, stop).await
    }

    async fn post_with_retries(&self, json: &Bytes, stop: &CancellationToken) -> Result<(), DeliveryError> {
        let mut pauses = RETRY_DELAYS.iter();
        loop {
            let Err(error) = self.post(json.clone()).await else { return Ok(()) };
            let may_retry = !self.failing && error.is_retryable();
            let Some(pause) = pauses.next().filter(|_| may_retry) else { return Err(error) };
            if stop.run_until_cancelled(sleep(*pause)).await.is_none() {
                return Err(error);
            }
        }
    }

    async fn post(&self, json: Bytes) -> Result<(), DeliveryError> {
        let status = send_post(&self.client, json_post(self.url.uri().clone(), json), self.within).await?.status();
        if status.is_success() { Ok(()) } else { Err(DeliveryError::Status(status)) }
    }
}

// === impl DeliveryError ===

impl DeliveryError {
    /// Whether a retry may succeed.
    fn is_retryable(&self) -> bool {
        let may_help = [StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
        matches!(self, Self::Post(_))
            || matches!(self, Self::Status(of) if of.is_server_error() || may_help.contains(of))
    }
}
