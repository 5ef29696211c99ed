//! Reads a request, and has the policy edit it. Turns, counts, compactions and summaries on request begin with this.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;

use super::exchange::{Exchange, OverheadTimer};
use super::fair_shares::Permit;
use super::headers;
use super::in_band::RequestPlace;
use super::prefix_tracker::CacheScope;
use super::request_head::{RequestHead, RequestId};
use super::respond::ProxyError;
use super::second_try::Arm;
use super::{LiveConfig, Proxy};
use crate::body::ClientBody;
use crate::dialect::Dialect;
use crate::engine::summarizer::SummaryOrigin;
use crate::engine::{EditMode, EditOptions, EditedBody, EngineConfig};
use crate::ledger::Assignment;
use crate::payload::Caller;
use crate::plan::Plan;
use crate::planner::SummaryTiming;
use crate::recording::RequestForm;
use crate::string_index::IndexedBody;

/// A request whose body has been read.
pub(super) struct ReadRequest<'l> {
    pub(super) head: RequestHead<'l>,
    /// The body as it is forwarded if nothing edits it.
    pub(super) bytes: Bytes,
    /// Its text, if it could be decoded.
    pub(super) text: Option<IndexedBody>,
    /// Whether edits are only reported.
    pub(super) dry_run: bool,
    pub(super) permit: Permit,
    pub(super) timer: OverheadTimer,
}

/// A request after the policy has edited it.
pub(super) struct EditedRequest<'l> {
    pub(super) edited: EditedBody,
    /// The text, or the bytes of a body that could not be decoded.
    pub(super) text: Bytes,
    pub(super) readable: bool,
    /// The place that recalls of the answer are kept under.
    pub(super) place: Option<RequestPlace>,
    pub(super) cache: CacheScope,
    /// The name of the conversation, if an experiment or `[keep_alive]` needs it.
    pub(super) name: Option<[u8; 16]>,
    /// How it was edited, and whether a refusal is answered.
    pub(super) arm: &'l Arm,
    pub(super) is_rescued: bool,
    pub(super) assignment: Option<Assignment>,
    pub(super) form: RequestForm,
    pub(super) rules: Arc<EngineConfig>,
}

/// The purpose of an edit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    /// The model takes a turn.
    Turn,
    /// The edited body is the answer. Originals are stored; no model is called.
    Rewrite,
    /// Its tokens are counted. Nothing is stored and no summary is made, as in a dry run, but the edited body is sent.
    Count,
}

impl RequestHead<'_> {
    /// Whether the client has signed its body for AWS, so that another one would be refused.
    pub(super) fn is_signed_by_client(&self) -> bool {
        headers::is_signed(&self.parts.headers) && !self.destination.upstream.has_key()
    }

    /// The options of an edit of the body.
    pub(super) fn options(&self, when: SummaryTiming) -> EditOptions<'_> {
        EditOptions::new(self.caller, self.destination.upstream.name().as_str(), when)
    }
}

impl Proxy {
    /// Admits a request of this caller, reads and decodes its body, and chooses its upstream.
    pub(super) async fn receive<'l>(
        &self,
        live: &'l LiveConfig,
        dialect: &'static dyn Dialect,
        request: Request<ClientBody>,
        caller: Caller,
    ) -> Result<ReadRequest<'l>, ProxyError> {
        let mut timer = OverheadTimer::start();
        let (mut parts, body) = request.into_parts();
        let (admission, body) = self.admit(&parts.headers, body)?;
        let dry_run = live.is_dry(&parts.headers);
        self.callers_seen.note(caller, &parts.headers);
        let (mut bytes, indexer) = timer.excluding(self.read(live, &parts.headers, body, &admission)).await?;
        let text = self.decode(&parts.headers, &bytes, indexer, &admission).await?;
        let text = self.restore(dialect, &mut parts.headers, &mut bytes, text);
        let text = text.map(|text| text.at(dialect.path_facts(parts.uri.path())));
        let destination = live.destinations.of_body(parts.uri.path(), &parts.headers, dialect, text.as_ref()).await;
        let (target, id, permit) = (destination.upstream.join(&parts.uri)?, self.ids.next(), admission.permit);
        let head = RequestHead { dialect, id, parts, caller, destination, target };
        Ok(ReadRequest { head, bytes, text, dry_run, permit, timer })
    }

    /// Puts recalls back into a request, and has the policy edit it. Its text is taken.
    pub(super) async fn edited<'l>(&self, read: &mut ReadRequest<'l>, purpose: Purpose) -> EditedRequest<'l> {
        let RequestHead { caller, destination, .. } = read.head;
        let dry_run = read.dry_run;
        let adds_tool = destination.adds_recall_tool() && !dry_run;
        let place = if adds_tool {
            Box::pin(self.put_back(&mut read.head, &mut read.bytes, &mut read.text)).await
        } else {
            None
        };
        let (head, decoded) = (&read.head, read.text.take());
        let text = decoded.as_deref().unwrap_or(&read.bytes).clone();
        let readable = decoded.is_some();
        let cache = self.accounting.prefixes.cache_scope(&head.target, caller);
        let name = self.conversation_name(head, decoded.as_ref()).await;
        let assignment = destination.experiment.as_ref().and_then(|experiment| Some(experiment.assign(name?)));
        let was_kept = purpose == Purpose::Turn && name.is_some_and(|name| self.keep_alives.end(&name));
        let arm = destination.arm(assignment.as_ref());
        let rescue = arm.rescue.as_ref().filter(|_| !dry_run && readable);
        let form = self.form(rescue, head, &text).await;
        let rules = rescue.map_or_else(|| Arc::clone(&arm.rules), |rescue| rescue.rules(form));
        let is_signed = head.is_signed_by_client();
        if is_signed {
            self.accounting.notices.note_signed();
        }
        let edited = match decoded {
            Some(text) if form != RequestForm::Unedited && !is_signed => {
                let origin = || SummaryOrigin { assignment: assignment.clone(), ..self.origin(head) };
                let upstream = destination.upstream.name().as_str();
                let has_expired = |plan: &Plan| !was_kept && self.accounting.has_expired(cache, upstream, plan);
                let mut asked = head.options(SummaryTiming::Triggered);
                if dry_run || purpose == Purpose::Count {
                    asked.mode = EditMode::DryRun;
                }
                if purpose == Purpose::Turn {
                    asked.origin = Some(&origin);
                }
                if purpose != Purpose::Count {
                    asked.has_expired = Some(&has_expired);
                }
                self.plan(head, &rules, text, asked).await
            }
            _ => EditedBody::untouched(read.bytes.clone()),
        };
        let is_rescued = rescue.is_some();
        EditedRequest { edited, text, readable, place, cache, name, arm, is_rescued, assignment, form, rules }
    }

    /// The exchange of a request that is sent upstream.
    pub(super) fn exchange(&self, id: RequestId, permit: Permit, timer: OverheadTimer) -> Box<Exchange> {
        Exchange::new(id, permit, self.tasks.clone(), Arc::clone(&self.accounting), timer)
    }
}
