//! The webhook: posts each event to a URL, one after the other, beside the requests. Events are lost if it is too slow.
//!
//! Each event is posted once. Lost events, which could not be posted or were dropped from the full queue, are counted, and the
//! count is posted as soon as the webhook answers again. The log has one line when posts begin to fail and one when they
//! succeed again, not one for each event.

use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::events::{self, Delivery, Events, Subscription, WebhookUrl};
use crate::setup_error::SetupError;
use crate::upstream::Upstream;
use crate::upstream::connect::Proxies;
use crate::upstream::post::{json_post, post_client, send_post};

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

    /// Posts events until `stop` is cancelled, and then each queued event.
    pub async fn run(mut self, stop: CancellationToken) {
        while let Some(delivery) = self.listener.next_until(&stop).await {
            match delivery {
                Delivery::Event(told) => self.deliver(&told.json).await,
                Delivery::Lost(n) => self.lost += n,
            }
        }
        if self.lost > 0 {
            tracing::warn!(webhook = %self.url, lost = self.lost, "some events were not posted to the webhook");
        }
    }

    async fn deliver(&mut self, event: &Bytes) {
        if let Err(error) = self.try_deliver(event).await {
            self.lost += 1;
            if self.failing {
                tracing::debug!(webhook = %self.url, error, lost = self.lost, "an event could not be posted to the webhook");
            } else {
                tracing::warn!(webhook = %self.url, error, "events cannot be posted to the webhook; more are logged at debug");
            }
            self.failing = true;
        }
    }

    /// Posts the number of lost events first, so that the webhook learns of the gap before the next event.
    async fn try_deliver(&mut self, event: &Bytes) -> Result<(), String> {
        if self.lost > 0 {
            self.post(&events::lost_event(self.lost)).await?;
            tracing::info!(webhook = %self.url, lost = self.lost, "events are posted to the webhook again, with the number of lost ones");
            self.lost = 0;
            self.failing = false;
        }
        self.post(event).await
    }

    async fn post(&self, json: &Bytes) -> Result<(), String> {
        let request = json_post(self.url.uri().clone(), json.clone());
        match send_post(&self.client, request, self.within).await {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => Err(format!("it answered {}", answer.status())),
            Err(error) => Err(error.to_string()),
        }
    }
}
