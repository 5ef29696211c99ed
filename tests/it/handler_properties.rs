//! What holds for every conversation whose edits ask handlers, whatever those answer: each is a function of a seed.
#![expect(clippy::disallowed_types, reason = "what handlers are asked and answer is made and read here")]

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use abridge_proxy::{
    dialect::{self, Dialect},
    handler::{Answer, AnswerIndex, Handler, HandlerAsk},
    payload::ChainKey,
    plan::{Action, Plan},
    planner::{PlanContext, PlanSettings, Planner},
    span::splice,
    summary::NoSummaries,
    tokens::Counter,
    units::Period,
};
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;

use crate::reductions::{STICKY, in_order, message_of, requests, taken};
use crate::support::{
    bodies::elements,
    conversations::{body, damaged, layout, long_steps},
    validator,
};

/// The answers so far, as a store keeps them.
#[derive(Clone, Debug, Default)]
struct Answers(HashMap<ChainKey, Arc<Answer>>);

impl AnswerIndex for Answers {
    fn answer(&self, key: ChainKey) -> Option<Arc<Answer>> {
        self.0.get(&key).cloned()
    }

    fn can_ask(&self) -> bool {
        true
    }
}

/// A policy whose edits ask a handler, and what that answers.
#[derive(Debug)]
struct Rig {
    planner: Planner,
    seed: u64,
    answers: Answers,
}

/// How often a request is planned at most.
const MAX_ROUNDS: usize = 64;

fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").unwrap()
}

impl Rig {
    fn new(policy: &str, seed: u64) -> Self {
        let mut settings: PlanSettings = toml::from_str(policy).unwrap();
        settings.tokens.counter = Counter::Estimate;
        let handler = Handler { url: "http://h/".to_owned(), timeout: Period::secs(1), key_env: None };
        settings.handlers.insert("h".to_owned(), handler);
        settings.clear_tool_results.handler = Some("h".to_owned());
        settings.truncate_tool_results.handler = Some("h".to_owned());
        Self { planner: Planner::new(settings), seed, answers: Answers::default() }
    }

    /// Returns what the handler answers: something shorter, something as long, no text, or nonsense.
    fn answer(&self, ask: &HandlerAsk) -> Answer {
        let text = &ask.text;
        let dice = BuildHasherDefault::<DefaultHasher>::default().hash_one((self.seed, text, &ask.arguments, ask.edit));
        let piece = |most: usize| text.get(..text.floor_char_boundary(most)).unwrap_or_default().to_owned();
        let answered = match dice % 6 {
            0 => return Answer::Leave,
            1 => return Answer::Default,
            2 => return Answer::Failed,
            3 => piece(ask.most_bytes),
            4 => format!("[{dice}]"),
            _ => piece(40),
        };
        match self.planner.policy.check_answer(ask, &answered) {
            Ok(()) => Answer::Replace { text: answered },
            Err(_) => Answer::Failed,
        }
    }

    /// Plans a request, asks what it needs, and plans again, as the engine does.
    fn plan(&mut self, body: &Bytes) -> (Plan, Bytes) {
        for _ in 0..MAX_ROUNDS {
            let context = PlanContext { answers: &self.answers, ..self.planner.anonymous(&NoSummaries) };
            let plan = self.planner.policy.plan(dialect(), body, &context).unwrap();
            if plan.asks.is_empty() {
                let output = Bytes::from(splice(body, &plan.splices).concat());
                return (plan, output);
            }
            let answered: Vec<_> = plan.asks.iter().map(|ask| (ask.key, Arc::new(self.answer(ask)))).collect();
            self.answers.0.extend(answered);
        }
        panic!("a request needs answers without end");
    }
}

fn rig() -> impl Strategy<Value = (&'static str, u64)> {
    (prop::sample::select(&STICKY[..]), any::<u64>())
}

/// The texts of the results of a body, by the place of the result.
fn results(body: &[u8]) -> Vec<(usize, Vec<String>)> {
    let parsed = elements(body).into_iter().map(|element| serde_json::from_str::<Value>(element).unwrap());
    let results = parsed.enumerate().filter(|(_, message)| message["role"] == "tool");
    let texts = |content: &Value| match content {
        Value::String(text) => vec![text.clone()],
        Value::Array(parts) => parts.iter().filter_map(|part| Some(part["text"].as_str()?.to_owned())).collect(),
        _ => Vec::new(),
    };
    results.map(|(at, message)| (at, texts(&message["content"]))).collect()
}

proptest! {
    #[test]
    fn with_handlers_growth_by_whole_steps_changes_nothing_but_where_a_trigger_fires(
        layout in layout(),
        messages in long_steps(1..12),
        (policy, seed) in rig(),
    ) {
        let mut rig = Rig::new(policy, seed);
        let mut before: Option<(usize, Plan, Bytes)> = None;
        for end in requests(&messages) {
            let (plan, output) = rig.plan(&body(&layout, &messages[..end]));
            if let Some((end_before, first, first_output)) = before {
                prop_assert!(taken(&first).is_subset(&taken(&plan)), "{}\n{}\n{}", policy, first, plan);
                let old = |plan: &Plan| -> Vec<Action> {
                    let actions = plan.report.changes.iter().map(|change| change.action);
                    actions.filter(|action| message_of(*action).is_some_and(|message| message < end_before)).collect()
                };
                if old(&first) == old(&plan) {
                    let (before, after) = (elements(&first_output), elements(&output));
                    prop_assert!(after.starts_with(&before), "{}\n{}\n{}", policy, first, plan);
                }
            }
            before = Some((end, plan, output));
        }
    }

    #[test]
    fn with_handlers_the_same_request_is_the_same_bytes_and_asks_nothing_more(
        layout in layout(),
        messages in damaged(),
        (policy, seed) in rig(),
    ) {
        let body = body(&layout, &messages);
        let mut rig = Rig::new(policy, seed);
        let (_, output) = rig.plan(&body);
        prop_assert_eq!(validator::check(&output), Ok(()));
        let n_answers = rig.answers.0.len();
        let (_, again) = rig.plan(&body);
        prop_assert_eq!((again, rig.answers.0.len()), (output, n_answers));
    }

    #[test]
    fn with_handlers_nothing_is_lost_and_nothing_else_is_changed(
        layout in layout(),
        messages in long_steps(0..12),
        (policy, seed) in rig(),
    ) {
        prop_assume!(!policy.contains("filter_tool_calls") && !policy.contains("clear_tool_inputs"));
        let body = in_order(&body(&layout, &messages));
        let (plan, output) = Rig::new(policy, seed).plan(&body);
        let stored: BTreeSet<_> = plan.offloads.iter().map(|offload| offload.payload.bytes()).collect();
        let (before, after) = (elements(&body), elements(&output));
        let (texts, texts_after) = (results(&body), results(&output));
        prop_assert_eq!(before.len(), after.len());
        for (n, (before, after)) in before.iter().zip(&after).enumerate() {
            prop_assert!(before == after || texts.iter().any(|(at, _)| *at == n), "message {}", n);
        }
        for ((_, before), (_, after)) in texts.iter().zip(&texts_after) {
            for (text, now) in before.iter().zip(after).filter(|(text, now)| text != now) {
                prop_assert!(stored.contains(text.as_bytes()), "{:?} is lost\n{}", text, plan);
                prop_assert!(now.len() < text.len(), "{} is not shorter than {}", now, text);
            }
        }
    }

    #[test]
    fn a_handler_that_leaves_each_choice_to_the_edits_changes_nothing(
        layout in layout(),
        messages in long_steps(0..12),
        policy in prop::sample::select(&STICKY[..]),
    ) {
        let body = body(&layout, &messages);
        let mut rig = Rig::new(policy, 0);
        let context = rig.planner.anonymous(&NoSummaries);
        let unasked = rig.planner.policy.plan(dialect(), &body, &context).unwrap();
        rig.answers = Answers::default();
        loop {
            let context = PlanContext { answers: &rig.answers, ..rig.planner.anonymous(&NoSummaries) };
            let plan = rig.planner.policy.plan(dialect(), &body, &context).unwrap();
            prop_assert_eq!(&plan.splices, &unasked.splices);
            if plan.asks.is_empty() {
                break;
            }
            rig.answers.0.extend(plan.asks.iter().map(|ask| (ask.key, Arc::new(Answer::Default))));
        }
        let mut without: PlanSettings = toml::from_str(policy).unwrap();
        without.tokens.counter = Counter::Estimate;
        prop_assert_eq!(Planner::new(without).plan(dialect(), &body).unwrap().splices, unasked.splices);
    }
}
