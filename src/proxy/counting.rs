//! Requests that only ask how many tokens a turn has. They get the edits of the turn, so that what is sent is counted.

use std::sync::Arc;

use http::{Request, Response};

use super::exchange::{Exchange, OverheadTimer};
use super::headers::ControlHeader;
use super::respond::ProxyError;
use super::second_try::{RescuePolicy, Treatment};
use super::send::request_body;
use super::{Proxy, ResponseBody, relay, send};
use crate::body::ClientBody;
use crate::dialect::Dialect;
use crate::engine::{EditMode, EditOptions, EditedBody};
use crate::planner::SummaryTiming;

// === impl Proxy ===

impl Proxy {
    /// Serves a request that only counts. Nothing is stored for it, no summary is made for it, and it is neither in the
    /// history nor recorded: the turn itself is.
    pub(super) async fn count(
        &self,
        dialect: &'static dyn Dialect,
        request: Request<ClientBody>,
    ) -> Result<Response<ResponseBody>, ProxyError> {
        let mut timer = OverheadTimer::start();
        let (mut parts, body) = request.into_parts();
        let (admission, body) = self.admit(&parts.headers, body)?;
        let live = self.live.load_full();
        let dry_run = live.dry_run || ControlHeader::from_headers(&parts.headers) == ControlHeader::DryRun;
        let (mut bytes, indexer, caller) = timer.excluding(self.read(&live, &parts.headers, body, &admission)).await?;
        let decoded = self.decode(&parts.headers, &bytes, indexer, &admission).await?;
        let decoded = self.restore(dialect, &mut parts.headers, &mut bytes, decoded);
        let path = parts.uri.path();
        let destination = live.destinations.of_body(path, &parts.headers, dialect, decoded.as_ref()).await;
        let target = destination.upstream.join(&parts.uri)?;
        let decoded = if destination.adds_recall_tool() && !dry_run {
            self.put_back(dialect, caller, &mut parts.headers, &mut bytes, decoded).await.0
        } else {
            decoded
        };
        let rescue = destination.rescue.as_ref().filter(|_| !dry_run);
        let treatment = match &decoded {
            Some(text) => self.treatment(rescue, dialect, &parts.headers, text).await,
            None => Treatment::Unedited,
        };
        let rules = RescuePolicy::rules(rescue, treatment, &destination.rules);
        let edited = match decoded {
            Some(text) if treatment != Treatment::Unedited => {
                // As in a dry run nothing is stored or made; what comes out is sent all the same.
                let asked = EditOptions::new(caller, destination.upstream.name().as_str(), SummaryTiming::Triggered);
                let asked = EditOptions { mode: EditMode::DryRun, ..asked };
                self.plan(destination, &rules, dialect, &parts, text, asked).await
            }
            _ => EditedBody::untouched(bytes.clone()),
        };
        let accounting = Arc::clone(&self.accounting);
        let mut exchange = Exchange::new(self.ids.next(), admission.permit, self.tasks.clone(), accounting, timer);
        let body = request_body(&mut parts.headers, bytes, &edited, dry_run);
        exchange.set_edited(edited, dry_run, live.report_headers);
        let upstream = &destination.upstream;
        let answer = send(upstream, Request::from_parts(parts, body), target, &mut exchange).await?;
        Ok(relay(upstream, answer, exchange))
    }
}
