//! Plans for which no tokens are counted: they take so little time that no other thread is needed.

use std::sync::Arc;

use bytes::Bytes;

use super::Policy;
use super::parse::parse;
use crate::dialect::{Dialect, ParseError};
use crate::draft::{PlanContext, SummaryTiming};
use crate::edit::Edit;
use crate::plan::Plan;

impl Policy {
    /// The same where no tokens are counted; none where they may be.
    pub fn plan_uncounted(
        &self,
        dialect: &dyn Dialect,
        body: &Bytes,
        context: &PlanContext<'_>,
    ) -> Option<Result<Plan, ParseError>> {
        let whole = match parse(dialect, body, context) {
            Ok(whole) => whole,
            Err(error) => return Some(Err(error)),
        };
        let window = || context.meter.window(whole.model.as_deref());
        let counts = body.len() >= self.counts_from
            && (context.summarize != SummaryTiming::Triggered || body.len() >= counts_from(&self.edits, window()));
        (!counts).then(|| self.plan_parsed(dialect, body, &whole, context))
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
        let plan = planner.policy.plan_uncounted(dialect::default(), &body.clone().into(), &context);
        assert!(plan.as_ref().is_none_or(|plan| *plan == planner.plan(dialect::default(), &body.into())));
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
