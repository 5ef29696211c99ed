//! Properties of every conversation with summaries, whatever they say.
#![expect(clippy::disallowed_types, reason = "nothing waits while it holds the memory")]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use abridge_proxy::{
    dialect::{self, Dialect},
    payload::ChainKey,
    plan::{Action, Need, Plan, SummaryJob},
    planner::{PlanContext, PlanSettings, Planner, SummaryTiming},
    span::splice,
    summary::{Summary, SummaryIndex, SummaryState},
    tokens::Counter,
};
use bytes::Bytes;
use proptest::prelude::*;
use serde::Deserialize;

use crate::reductions::in_order;
use crate::support::{
    bodies::elements,
    conversations::{Late, Layout, Message, body, damaged, late_results, layout, long_steps, steps},
    validator,
};

const POLICIES: [&str; 6] = [
    "[summarize]\ntrigger = { tokens = 400 }",
    "[summarize]\ntrigger = { messages = 5 }\nkeep = { rounds = 0 }",
    "[summarize]\ntrigger = [{ tokens = 800 }, { messages = 12 }]\nkeep = { results = 3 }\nmode = \"background\"",
    "[summarize]\ntrigger = { tokens = 600 }\nkeep = { tokens = 200 }\n[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 300 }\nkeep = { results = 1 }",
    "[summarize]\ntrigger = { messages = 4 }\n[filter_tool_calls]\nmax_tool_calls = 2\n[truncate_tool_results]\nmax_bytes = 300",
    "language = \"zh\"\n[summarize]\ntrigger = { tokens = 300 }",
];

fn any_policy() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&POLICIES[..])
}

/// Steps that are worth a summary, broken or not.
fn any_messages() -> impl Strategy<Value = Vec<Message>> {
    prop_oneof![3 => long_steps(0..12), 1 => steps(4..12), 1 => damaged()]
}

fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").unwrap()
}

/// A memory that is a map, and one who plans with it: a quarter of the bytes are tokens.
#[derive(Debug)]
struct Scene {
    known: Mutex<HashMap<ChainKey, SummaryState>>,
    planner: Planner,
}

impl SummaryIndex for Scene {
    fn state(&self, beginning: ChainKey) -> SummaryState {
        self.known.lock().unwrap().get(&beginning).cloned().unwrap_or(SummaryState::Unknown)
    }

    fn is_empty(&self) -> bool {
        self.known.lock().unwrap().is_empty()
    }
}

impl Scene {
    fn new(policy: &str) -> Self {
        let mut settings: PlanSettings = toml::from_str(policy).unwrap();
        settings.tokens.counter = Counter::Estimate;
        Self { known: Mutex::default(), planner: Planner::new(settings) }
    }

    fn plan(&self, body: &Bytes, when: SummaryTiming) -> (Plan, Bytes) {
        let Self { planner, .. } = self;
        let context = PlanContext { summarize: when, ..planner.anonymous(self) };
        let plan = planner.policy.plan(dialect(), body, &context).unwrap();
        let output = Bytes::from(splice(body, &plan.splices).concat());
        assert_eq!((plan.report.bytes_after, plan.report.messages_after), (output.len(), elements(&output).len()));
        (plan, output)
    }

    /// Plans, and makes the summary that is wanted; then plans with it.
    fn request(&self, body: &Bytes, when: SummaryTiming, says: &str) -> (Plan, Bytes) {
        let (plan, output) = self.plan(body, when);
        let Some(Need::Make(job)) = &plan.needs else { return (plan, output) };
        self.make(job, says);
        self.plan(body, SummaryTiming::Triggered)
    }

    fn make(&self, job: &SummaryJob, says: &str) {
        let summary = Summary {
            text: job.frame.around(says),
            tokens_replaced: job.tokens_replaced,
            made_at: job.n_elements,
            transcript: job.transcript.as_ref().map(|transcript| transcript.key),
        };
        self.known.lock().unwrap().insert(job.key, SummaryState::Summary(Arc::new(summary)));
    }
}

/// The first message that a summary replaces, and the one after the last: rounds that are reopened may lie between.
fn summarised(plan: &Plan) -> Option<(usize, usize)> {
    let stretches = || stretches(plan).map(|(from, to, _)| (from, to));
    let n_summaries = self::stretches(plan).filter(|(.., bytes)| *bytes > 0).count();
    assert_eq!(n_summaries, stretches().take(1).count(), "one summary at most");
    stretches().reduce(|(from, to), (other_from, other_to)| (from.min(other_from), to.max(other_to)))
}

/// How many messages that are.
fn n_summarised(plan: &Plan) -> usize {
    stretches(plan).map(|(from, to, _)| to - from).sum()
}

/// The stretches that a summary replaces, and the bytes that each leaves.
fn stretches(plan: &Plan) -> impl Iterator<Item = (usize, usize, usize)> {
    plan.report.changes.iter().filter_map(|change| match change.action {
        Action::Summarize { from, to } => Some((from, to, change.bytes.after)),
        _ => None,
    })
}

fn says(role: &str, text: &str) -> Message {
    Message { json: format!(r#"{{"role":"{role}","content":"{text}"}}"#), result_of: None }
}

fn role(message: &str) -> String {
    #[derive(Deserialize)]
    struct WithRole {
        role: String,
    }
    serde_json::from_str::<WithRole>(message).unwrap().role
}

/// Where the last message of the model stands.
fn last_assistant(messages: &[Message]) -> Option<usize> {
    messages.iter().rposition(|message| role(&message.json) == "assistant")
}

/// How many messages at the beginning are instructions.
fn n_leading(messages: &[Message]) -> usize {
    messages.iter().take_while(|message| matches!(role(&message.json).as_str(), "system" | "developer")).count()
}

const SAYS: &str = "<summary>the work went on</summary>";

fn bodies(layout: &Layout, messages: &[Message], more: &[Message]) -> (Bytes, Bytes) {
    (body(layout, messages), body(layout, &[messages, more].concat()))
}

/// Every sequence of up to `n` of the messages.
fn sequences(n: u32) -> impl Iterator<Item = Vec<&'static str>> {
    const MESSAGES: [&str; 6] = [
        r#"{"role":"user","content":"go on with the next one"}"#,
        r#"{"role":"assistant","content":"this one is done"}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"2","type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
        r#"{"role":"tool","tool_call_id":"1","content":"found nothing"}"#,
        r#"{"role":"tool","tool_call_id":"2","content":"found it all"}"#,
    ];
    let of_length = |n| (0..MESSAGES.len().pow(n)).map(move |code| (code, n));
    (0..=n).flat_map(of_length).map(|(code, n)| {
        let digit = |at| code / MESSAGES.len().pow(at) % MESSAGES.len();
        (0..n).map(|at| MESSAGES[digit(at)]).collect()
    })
}

#[test]
fn in_every_short_sequence_a_summary_that_is_made_is_used() {
    let (mut n_used, mut n) = (0, 0);
    for messages in sequences(5) {
        let scene = Scene::new("[summarize]\nkeep = { rounds = 0 }");
        let body = Bytes::from(format!(r#"{{"messages":[{}]}}"#, messages.join(",")));
        let (asked, _) = scene.plan(&body, SummaryTiming::Now);
        let (plan, output) = scene.request(&body, SummaryTiming::Now, SAYS);
        assert_eq!(validator::check(&output), Ok(()), "{messages:#?}\n{plan}");
        let (is_used, is_made) = (summarised(&plan).is_some(), matches!(asked.needs, Some(Need::Make(_))));
        assert_eq!(is_used, is_made, "{messages:#?}\n{asked}\n{plan}");
        (n_used, n) = (n_used + usize::from(is_used), n + 1);
    }
    assert_eq!(n, 9331);
    assert!(n_used > 1000, "{n_used}");
}

proptest! {
    #[test]
    fn a_summary_leaves_a_valid_sequence(
        layout in layout(),
        messages in any_messages(),
        policy in any_policy(),
        says in "\\PC{0,40}",
    ) {
        let scene = Scene::new(policy);
        let body = body(&layout, &messages);
        let (asked, _) = scene.plan(&body, SummaryTiming::Now);
        let (plan, output) = scene.request(&body, SummaryTiming::Now, &says);
        prop_assert_eq!(validator::check(&output), Ok(()), "{}", plan);
        prop_assert!(output.starts_with(layout.head.as_bytes()) && output.ends_with(layout.tail.as_bytes()));
        let (used, wanted) = (summarised(&plan).is_some(), matches!(asked.needs, Some(Need::Make(_))));
        prop_assert_eq!(used, wanted, "{}", plan);
        prop_assert!(asked.needs.is_some() || asked.report.left_out.iter().any(|left_out| left_out.edit == "summary"));
    }

    #[test]
    fn messages_that_were_not_summarised_are_unchanged(
        layout in layout(),
        messages in prop_oneof![long_steps(0..12), steps(4..12)],
        policy in prop::sample::select(&POLICIES[..3]),
    ) {
        let scene = Scene::new(policy);
        // In an order that moves no result.
        let in_order = in_order(&body(&layout, &messages));
        let ordered = elements(&in_order).into_iter().map(|json| Message { json: json.to_owned(), result_of: None });
        let messages: Vec<_> = ordered.collect();
        let (plan, output) = scene.request(&body(&layout, &messages), SummaryTiming::Now, SAYS);
        let after = elements(&output);
        let Some((from, to)) = summarised(&plan) else {
            let all: Vec<_> = messages.iter().map(|message| message.json.as_str()).collect();
            prop_assert_eq!(after, all);
            return Ok(());
        };
        prop_assert_eq!(from, n_leading(&messages), "instructions stay");
        let before = messages[..from].iter().map(|message| message.json.as_str());
        let behind = messages[to..].iter().map(|message| message.json.as_str());
        prop_assert_eq!(&after[..from], before.collect::<Vec<_>>());
        prop_assert_eq!(&after[from + 1..], behind.collect::<Vec<_>>());
        prop_assert_eq!(role(after[from]), "user");
        prop_assert_eq!(after.concat().matches("the work went on").count(), 1);
        // Between two commas nothing is left of what was between the messages that it replaces.
        let expected = [&layout.head, &after.join(&layout.comma), &layout.tail].map(String::as_str).concat();
        prop_assert_eq!(output, expected);
    }

    #[test]
    fn what_was_not_read_is_not_summarised(layout in layout(), messages in any_messages(), policy in any_policy()) {
        let scene = Scene::new(policy);
        let (plan, _) = scene.request(&body(&layout, &messages), SummaryTiming::Now, SAYS);
        if let Some((_, to)) = summarised(&plan) {
            let last = last_assistant(&messages).unwrap();
            let unread = messages[last + 1..].iter().any(|message| role(&message.json) == "tool");
            prop_assert!(to <= if unread { last } else { last + 1 }, "{}", plan);
            prop_assert!(to < messages.len());
        }
    }

    #[test]
    fn between_summaries_the_beginning_stays(
        layout in layout(),
        messages in long_steps(3..12),
        more in long_steps(1..4),
        policy in prop::sample::select(&POLICIES[..3]),
    ) {
        let scene = Scene::new(policy);
        let (short, long) = bodies(&layout, &messages, &more);
        let (first, output) = scene.request(&short, SummaryTiming::Now, SAYS);
        let (second, grown) = scene.plan(&long, SummaryTiming::Triggered);
        prop_assert_eq!(summarised(&first), summarised(&second));
        prop_assert!(elements(&grown).starts_with(&elements(&output)), "{}\n{}", first, second);
    }

    #[test]
    fn the_same_request_gives_the_same_plan_again(
        layout in layout(),
        messages in any_messages(),
        policy in any_policy(),
    ) {
        let scene = Scene::new(policy);
        let body = body(&layout, &messages);
        let again = Bytes::copy_from_slice(&body);
        prop_assert_eq!(scene.plan(&body, SummaryTiming::Now), scene.plan(&again, SummaryTiming::Now));
        scene.request(&body, SummaryTiming::Now, SAYS);
        prop_assert_eq!(scene.plan(&body, SummaryTiming::Triggered), scene.plan(&again, SummaryTiming::Triggered));
    }

    #[test]
    fn a_summary_is_not_used_for_another_history(
        layout in layout(),
        messages in long_steps(3..12),
        at in any::<prop::sample::Index>(),
        policy in any_policy(),
    ) {
        let scene = Scene::new(policy);
        let (plan, _) = scene.request(&body(&layout, &messages), SummaryTiming::Now, SAYS);
        let Some((from, to)) = summarised(&plan) else { return Ok(()) };
        let mut other = messages;
        let at = from + at.index(to - from);
        other[at].json = other[at].json.replacen('{', "{\"branch\":1,", 1);
        let (plan, output) = scene.plan(&body(&layout, &other), SummaryTiming::Triggered);
        prop_assert_eq!(summarised(&plan), None);
        prop_assert!(!String::from_utf8_lossy(&output).contains("the work went on"));
    }

    #[test]
    fn one_summary_after_another_keeps_every_word_of_the_user(
        layout in layout(),
        settings in prop::collection::vec(long_steps(2..5), 3..5),
    ) {
        let scene = Scene::new("[summarize]\ntrigger = { messages = 1 }\nkeep = { rounds = 0 }\npreserve_user_messages = { max_tokens = 100000 }\npreserve_skills = { max_skills = 100, max_tokens_per_skill = 9000, budget = 99000 }");
        let mut messages = Vec::new();
        let mut n_summaries = 0;
        for (n, part) in settings.iter().enumerate() {
            let one = |json: String| Message { json, result_of: None };
            messages.push(one(format!(r#"{{"role":"user","content":"wish number {n}"}}"#)));
            messages.extend(part.iter().cloned());
            messages.push(one(format!(r#"{{"role":"assistant","tool_calls":[{{"id":"k{n}","type":"function","function":{{"name":"skill","arguments":"{{\"skill\":\"art{n}\"}}"}}}}]}}"#)));
            messages.push(one(format!(r#"{{"role":"tool","tool_call_id":"k{n}","content":"rule number {n}"}}"#)));
            messages.push(one(r#"{"role":"assistant","content":"done"}"#.to_owned()));
            messages.push(one(r#"{"role":"user","content":"go on"}"#.to_owned()));
            let (plan, output) = scene.request(&body(&layout, &messages), SummaryTiming::Now, &format!("told in part {n}"));
            let (_, to) = summarised(&plan).expect("there is enough for one");
            n_summaries += 1;
            let text = String::from_utf8(output.to_vec()).unwrap();
            for kept in 0..=n {
                prop_assert_eq!(text.matches(&format!("wish number {kept}")).count(), 1, "{}", text);
                prop_assert_eq!(text.matches(&format!("rule number {kept}")).count(), 1, "{}", text);
                prop_assert_eq!(text.contains(&format!("told in part {kept}")), kept == n);
            }
            prop_assert_eq!(to, messages.len() - 2, "the answer and the question stay");
        }
        prop_assert_eq!(n_summaries, settings.len());
    }

    #[test]
    fn a_late_result_leaves_the_summary_in_use(
        layout in layout(),
        late in late_results(),
        in_one_batch in any::<bool>(),
        more in long_steps(1..4),
        policy in prop::sample::select(&POLICIES[..3]),
    ) {
        let scene = Scene::new(policy);
        let Late { mut messages, results, rounds } = late;
        messages.extend([says("assistant", "done"), says("user", "go on")]);
        let (mut plan, mut output) = scene.request(&body(&layout, &messages), SummaryTiming::Now, SAYS);
        let covered = n_summarised(&plan);
        // Everything that is sent again of a round, and what is put in for the calls that have no result yet.
        let reopened: usize = rounds.iter().flatten().map(|message| message.json.len() + 300).sum();
        let groups = results.chunks(if in_one_batch { results.len().max(1) } else { 1 });
        for (n, group) in groups.enumerate() {
            let length = body(&layout, &messages).len();
            if n > 0 {
                messages.extend([says("assistant", "so far"), says("user", "go on")]);
            }
            messages.extend_from_slice(group);
            let grown = body(&layout, &messages);
            let before = std::mem::replace(&mut output, Bytes::new()).len();
            (plan, output) = scene.plan(&grown, SummaryTiming::Triggered);
            prop_assert_eq!(validator::check(&output), Ok(()), "{}", plan);
            let least = covered.saturating_sub(rounds.concat().len());
            prop_assert!(n_summarised(&plan) >= least, "the summary stays in use: {}", plan);
            prop_assert!(output.len() <= before + grown.len() - length + reopened, "{}", plan);
            let sent = elements(&output);
            for result in group.iter().filter(|result| !matches!(result.result_of.as_deref(), Some("null" | "\"\""))) {
                prop_assert!(sent.contains(&result.json.as_str()), "what was not read is sent: {}", plan);
            }
        }
        messages.push(says("assistant", "I see"));
        messages.extend(more);
        let (grown, later) = scene.plan(&body(&layout, &messages), SummaryTiming::Triggered);
        prop_assert!(elements(&later).starts_with(&elements(&output)), "{}\n{}", plan, grown);
        let (_, output) = scene.request(&body(&layout, &messages), SummaryTiming::Now, SAYS);
        prop_assert_eq!(validator::check(&output), Ok(()));
    }

    #[test]
    fn every_request_of_a_long_session_is_valid(
        layout in layout(),
        messages in long_steps(3..20),
        policy in any_policy(),
        lost in any::<bool>(),
    ) {
        // Each request of a session, as it would be sent: what a summary replaces grows, and the rest is untouched.
        let scene = Scene::new(policy);
        let mut before: Option<(usize, usize)> = None;
        for end in 0..=messages.len() {
            if messages.get(end).is_some_and(|message| role(&message.json) != "assistant") {
                continue;
            }
            let body = body(&layout, &messages[..end]);
            let (plan, output) = if lost && end % 2 == 0 {
                scene.plan(&body, SummaryTiming::Triggered)
            } else {
                scene.request(&body, SummaryTiming::Triggered, SAYS)
            };
            prop_assert_eq!(validator::check(&output), Ok(()), "{}", plan);
            let now = summarised(&plan);
            prop_assert!(before.is_none_or(|(_, before)| now.is_some_and(|(_, now)| now >= before)), "{}", plan);
            before = now;
        }
    }
}
