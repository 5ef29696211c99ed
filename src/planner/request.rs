//! One request under a policy: its conversation, the names of its beginnings, and a plan of it without counting.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::{LOOK_UP_FROM, Policy};
use crate::conversation::{Conversation, ElementIndex};
use crate::dialect::{Dialect, ParseError};
use crate::draft::{LookUp, ParsedRequest, PlanContext, PrefixKeys, SummaryTiming};
use crate::edit::Edit;
use crate::payload::ChainKey;
use crate::plan::Plan;
use crate::string_index::PathFacts;

/// The conversation in a body. Everything that was hashed of it while it arrived is not hashed again.
pub(super) fn parse<'a>(
    dialect: &dyn Dialect,
    body: &'a Bytes,
    context: &PlanContext<'a>,
) -> Result<Conversation<'a>, ParseError> {
    let mut conversation = dialect.parse_indexed(body, context.strings)?;
    let PathFacts { model, is_framed } = context.strings.path();
    conversation.model = conversation.model.or(model.as_deref().map(Cow::Borrowed));
    conversation.traits.answers_no_calls |= *is_framed;
    for unit in &conversation.units {
        if let Some(content) = unit.content.and_then(|content| context.strings.fingerprint(content)) {
            unit.set_content_fingerprint(content);
        }
    }
    Ok(conversation)
}

impl Policy {
    /// Plans a request whose tokens need not be counted. This takes so little time that no other thread is needed. `None` if
    /// tokens may be counted.
    pub fn plan_uncounted(
        &self,
        dialect: &dyn Dialect,
        body: &Bytes,
        context: &PlanContext<'_>,
    ) -> Result<Option<Box<Plan>>, ParseError> {
        let conversation = &parse(dialect, body, context)?;
        let window = || context.meter.window(conversation.model.as_deref());
        let counts = body.len() >= self.counts_from
            && (context.summarize != SummaryTiming::Triggered || body.len() >= counts_from(&self.edits, window()));
        let plan = || self.plan_parsed(ParsedRequest { dialect, body, conversation }, context);
        (!counts).then(plan).transpose()
    }

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
        let scope = self.summarize.as_ref()?.scope.of_model(conversation.model.as_deref());
        PrefixKeys::of(request, context, &scope).name(ElementIndex::new(end))
    }

    /// The name under which other processes know the summaries of a conversation, if that is to be looked up.
    pub(super) fn root(&self, request: ParsedRequest<'_>, context: &PlanContext<'_>) -> Option<ChainKey> {
        let summarize = self.summarize.as_ref().filter(|_| context.look_up == LookUp::Pending)?;
        let (n_bytes, model) = (request.body.len(), request.conversation.model.as_deref());
        if n_bytes < LOOK_UP_FROM && n_bytes < summarize.least_bytes_within(context.meter.window(model)) {
            return None;
        }
        PrefixKeys::root_of(request, context, &summarize.scope.of_model(model))
    }

    /// The summaries of the beginnings of a conversation. Without any summary, nothing is hashed.
    pub(super) fn prefix_keys(&self, request: ParsedRequest<'_>, context: &PlanContext<'_>) -> Option<PrefixKeys> {
        let summarize = self.summarize.as_ref().filter(|_| !context.summaries.is_empty())?;
        Some(PrefixKeys::of(request, context, &summarize.scope.of_model(request.conversation.model.as_deref())))
    }
}

/// From how many bytes on one of the edits may count tokens.
pub(super) fn counts_from(edits: &[Arc<dyn Edit>], window: Option<usize>) -> usize {
    edits.iter().map(|edit| edit.counts_from(window)).min().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use crate::{dialect, planner::Planner, summary::NoSummaries};

    /// Whether a body of so many bytes is planned without counting, under the defaults.
    fn is_planned(model: &str, n_bytes: usize) -> bool {
        let planner = Planner::new(toml::from_str("").unwrap());
        let body = |text: &str| format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{text}"}}]}}"#);
        let body = body(&"x".repeat(n_bytes - body("").len()));
        let context = planner.anonymous(&NoSummaries);
        let plan = planner.policy.plan_uncounted(dialect::default(), &body.clone().into(), &context).transpose();
        assert!(plan.as_ref().is_none_or(|plan| *plan == planner.plan(dialect::default(), &body.into()).map(Box::new)));
        assert_eq!(planner.meter.n_tokenised(), 0);
        plan.is_some()
    }

    #[test]
    fn a_body_below_the_trigger_of_its_model_is_planned_without_counting() {
        // The trigger is 80,000 tokens or half of the window, and three eighths of that where a turn begins.
        assert!(is_planned("gpt-4o", 23_999) && !is_planned("gpt-4o", 24_000), "a window of 128,000");
        assert!(is_planned("gpt-4", 1_535) && !is_planned("gpt-4", 1_536), "a window of 8,192");
        assert!(is_planned("unknown", 29_999) && !is_planned("unknown", 30_000), "the window is not known");
    }
}
