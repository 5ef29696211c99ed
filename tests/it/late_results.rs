//! What becomes of conversations in which results arrive late, when the model has gone on without them.

use std::collections::BTreeSet;

use abridge_proxy::{
    dialect,
    plan::{Action, Plan},
};
use proptest::prelude::*;

use crate::{
    reductions::{STICKY, message_of, meter, plan, requests},
    support::{
        bodies::elements,
        conversations::{LATE, Layout, Message, body, late_steps, layout},
        validator,
    },
};

/// Policies under which a request is not larger than the one before it and what is new, though they slide.
const LATE_TOO: [&str; 5] = [
    "[clear_tool_results]\ntrigger = { tokens = 600 }\nfrontier = \"sliding\"\nkeep = { results = 2 }",
    "[clear_tool_results]\ntrigger = { messages = 1 }\nfrontier = \"sliding\"\nkeep = { rounds = 1 }",
    // Those of the presets that clear, with smaller numbers, and that of the one that filters.
    "[policy]\nedits = [\"patch_tool_calls\", \"truncate_tool_results\", \"clear_tool_results\"]\n[truncate_tool_results]\nmax_bytes = 1500\n[clear_tool_results]\ntrigger = { tokens = 500 }\nkeep = { rounds = 1 }\nclear_at_least = 0\ngrowth_guard = false\nfrontier = \"sliding\"",
    "[policy]\nedits = [\"patch_tool_calls\", \"clear_tool_results\"]\n[clear_tool_results]\ntrigger = { tokens = 800 }\nkeep = { results = 3 }\nclear_at_least = 0\nplaceholder = \"[cleared]\"\noffload = false\ngrowth_guard = false\nfrontier = \"sliding\"",
    "[policy]\nedits = [\"patch_tool_calls\", \"filter_tool_calls\"]\n[filter_tool_calls]\nmax_tool_calls = 3",
];

/// The texts of the user between two messages of the model.
const PARTING: [&str; 2] = ["[Tool calls were removed here.]", "[A tool result was moved or removed here.]"];

/// One request of a conversation with late results.
struct Request {
    end: usize,
    plan: Plan,
    elements: Vec<String>,
    tokens: usize,
}

impl Request {
    fn of(policy: &str, layout: &Layout, messages: &[Message]) -> Self {
        let (plan, output) = plan(policy, &body(layout, messages));
        assert_eq!(validator::check(&output), Ok(()), "{plan}");
        let elements: Vec<_> = elements(&output).into_iter().map(str::to_owned).collect();
        let tokens = elements.iter().map(|element| tokens_of(element)).sum();
        Self { end: messages.len(), plan, elements, tokens }
    }

    fn n_cleared(&self) -> usize {
        self.plan.report.changes.iter().filter(|change| change.action.label() == "clear").count()
    }

    /// Where nothing guards it, what is cleared may be shorter than what replaces it.
    fn may_grow(&self, before: &Self, policy: &str) -> usize {
        let placeholder = if policy.contains("growth_guard = false") { 60 } else { 0 };
        placeholder * self.n_cleared().saturating_sub(before.n_cleared())
    }

    /// Returns what was done to the first `n` messages, but those of rounds of which results may arrive late.
    fn done_beside_late(&self, messages: &[Message], n: usize) -> Vec<Action> {
        let mut actions: Vec<_> = self.plan.report.changes.iter().map(|change| change.action).collect();
        actions.retain(|action| message_of(*action).is_some_and(|at| at < n && !messages[at].json.contains(LATE)));
        actions
    }

    /// What went out of all rounds but those of which results may come late, without the texts that part two messages of the
    /// model: those are needed or not by what is beside them.
    fn beside_late(&self) -> Vec<&String> {
        let is_beside = |element: &&String| ![LATE, PARTING[0], PARTING[1]].iter().any(|text| element.contains(text));
        self.elements.iter().filter(is_beside).collect()
    }
}

/// The tokens of what has come, of what is put in for results that are missing, of messages that are there again with calls
/// whose results have arrived late, and of the text that stands where such a result was.
fn new_tokens(messages: &[Message], from: usize, to: usize) -> usize {
    const MISSING: usize = 40;
    let parting = PARTING.map(|text| tokens_of(&format!(r#"{{"role":"user","content":"{text}"}}"#)));
    let new = &messages[from..to];
    let tokens = new.iter().map(|message| tokens_of(&message.json));
    let calls = new.iter().map(|message| message.json.matches("\"id\":\"late_").count() * MISSING);
    let late = new.iter().filter_map(|message| message.result_of.as_ref()).filter(|id| id.contains(LATE));
    let callers = late.filter_map(|id| messages.iter().find(|message| message.json.contains(&format!("\"id\":{id}"))));
    let again = callers.map(|caller| tokens_of(&caller.json) + parting.into_iter().max().unwrap_or_default());
    tokens.sum::<usize>() + calls.sum::<usize>() + again.sum::<usize>()
}

fn tokens_of(message: &str) -> usize {
    dialect::default().element_tokens(&meter().for_model(None), message.as_bytes())
}

proptest! {
    /// A request in which a result has arrived late has no more than the one before it, what is new, and what of the round
    /// had left.
    #[test]
    fn a_late_result_brings_back_its_own_round_at_most(
        layout in layout(),
        messages in late_steps(2..14),
        policy in prop_oneof![prop::sample::select(&STICKY[..]), prop::sample::select(&LATE_TOO[..])],
    ) {
        let mut before: Option<Request> = None;
        for end in requests(&messages) {
            let now = Request::of(policy, &layout, &messages[..end]);
            if let Some(before) = &before {
                let most = before.tokens + new_tokens(&messages, before.end, end) + now.may_grow(before, policy);
                prop_assert!(now.tokens <= most, "{} > {}\n{}\n{}{}", now.tokens, most, policy, before.plan, now.plan);
            }
            before = Some(now);
        }
    }

    /// Beside that round, what went out goes out again, except for what is cleared or left out now.
    #[test]
    fn a_late_result_changes_nothing_but_its_own_round(
        layout in layout(),
        messages in late_steps(2..14),
        policy in prop::sample::select(&STICKY[..]),
    ) {
        let mut before: Option<Request> = None;
        for end in requests(&messages) {
            let now = Request::of(policy, &layout, &messages[..end]);
            if let Some(before) = &before {
                let (old, new) = (before.done_beside_late(&messages, before.end), now.done_beside_late(&messages, before.end));
                let at = |actions: &[Action]| actions.iter().filter_map(|action| message_of(*action)).collect::<BTreeSet<_>>();
                prop_assert!(at(&old).is_subset(&at(&new)), "{}\n{}{}", policy, before.plan, now.plan);
                if old == new {
                    prop_assert!(now.beside_late().starts_with(&before.beside_late()), "{}\n{}{}", policy, before.plan, now.plan);
                }
            }
            before = Some(now);
        }
    }
}
