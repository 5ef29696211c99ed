//! The names of a conversation's beginnings under one policy.

use bytes::Bytes;

use super::parse::parse;
use super::{LOOK_UP_FROM, Policy};
use crate::conversation::ElementIndex;
use crate::dialect::Dialect;
use crate::draft::{LookUp, ParsedRequest, PlanContext, PrefixKeys};
use crate::payload::ChainKey;

impl Policy {
    /// The name under which a summary of all messages before `end` is remembered, if this policy uses summaries.
    pub fn beginning(
        &self,
        dialect: &dyn Dialect,
        body: &Bytes,
        context: &PlanContext<'_>,
        end: usize,
    ) -> Option<ChainKey> {
        let conversation = parse(dialect, body, context).ok()?;
        let request = ParsedRequest { dialect, body, conversation: &conversation };
        let scope = self.summarize.as_ref()?.scope().of_model(conversation.model.as_deref());
        PrefixKeys::of(request, context, &scope).name(ElementIndex::new(end))
    }

    /// The name under which other processes know the summaries of a conversation, if that is to be looked up.
    pub(super) fn root(&self, request: ParsedRequest<'_>, context: &PlanContext<'_>) -> Option<ChainKey> {
        let summarize = self.summarize.as_ref().filter(|_| context.look_up == LookUp::Pending)?;
        let (n_bytes, model) = (request.body.len(), request.conversation.model.as_deref());
        if n_bytes < LOOK_UP_FROM && n_bytes < summarize.least_bytes_within(context.meter.window(model)) {
            return None;
        }
        PrefixKeys::root_of(request, context, &summarize.scope().of_model(model))
    }

    /// The summaries of the beginnings of a conversation. Without any summary, nothing is hashed.
    pub(super) fn prefix_keys(&self, request: ParsedRequest<'_>, context: &PlanContext<'_>) -> Option<PrefixKeys> {
        let summarize = self.summarize.as_ref().filter(|_| !context.summaries.is_empty())?;
        Some(PrefixKeys::of(request, context, &summarize.scope().of_model(request.conversation.model.as_deref())))
    }
}
