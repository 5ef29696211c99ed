//! The names of a conversation's beginnings under one policy.

use bytes::Bytes;

use super::parse::parse;
use super::{LOOK_UP_FROM, Policy};
use crate::conversation::{Element, ElementIndex};
use crate::dialect::Dialect;
use crate::draft::{LookUp, ParsedRequest, PlanContext, PrefixKeys};
use crate::payload::{Chain, ChainKey};

/// The scope of the names of conversations, which separates them from the keys of summaries.
pub const CONVERSATIONS: &[u8] = b"conversation";

/// A conversation that is shown to operators is named by so many messages. Of some clients, the first ones are the same in all
/// sessions of a folder.
pub const MAX_OPENING: usize = 8;

/// The name of a conversation, by the first messages of the user and not by instructions, which may have the time: those before
/// the first answer, `most` at most. `None` if the request does not show its beginning. `chain` has the scope [`CONVERSATIONS`].
pub fn conversation_name(request: ParsedRequest<'_>, mut chain: Chain, most: usize) -> Option<ChainKey> {
    let ParsedRequest { dialect, body, conversation } = request;
    if conversation.traits.history_elsewhere {
        return None;
    }
    let name = |message: &Element| {
        let written = conversation.element_fingerprint(message, body);
        chain.push(written, || dialect.canonical(message.span.of(body)))
    };
    conversation.opening().take(most).map(name).last()
}

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
