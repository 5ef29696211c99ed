//! What holds for conversations of every dialect: the same scripts, as each wire format writes them.
#![expect(clippy::disallowed_types, reason = "what is sent is looked at, and not sent again")]

use std::{collections::BTreeSet, time::Duration};

use abridge_proxy::{
    conversation::{BlockKind, Pairing, Role},
    dialect,
    plan::{Action, Plan},
    planner::{PlanSettings, Planner},
    span::splice,
    tokens::Counter,
};
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;

use crate::{
    reductions::{STICKY, computed},
    support::scripts::{Item, PATHS, Script, any_path, body, whole, with_gaps},
};

struct Request<'s> {
    path: &'static str,
    items: &'s [Item],
    body: Bytes,
    plan: Plan,
    output: Bytes,
}

/// The requests of a script under a policy, to a model of which nothing is known.
fn requests<'s>(path: &'static str, script: &'s Script, policy: &str) -> Vec<Request<'s>> {
    requests_to("m", path, script, policy)
}

/// The same to a model.
fn requests_to<'s>(model: &str, path: &'static str, script: &'s Script, policy: &str) -> Vec<Request<'s>> {
    let mut settings: PlanSettings = toml::from_str(policy).unwrap();
    settings.tokens.counter = Counter::Estimate;
    let planner = Planner::new(settings);
    let dialect = dialect::for_path(path).unwrap();
    let request = |n: &usize| {
        let items = &script.items[..*n];
        let body = body(path, model, items);
        let plan = planner.plan(dialect, &body).unwrap();
        let output = Bytes::from(splice(&body, &plan.splices).concat());
        Request { path, items, body, plan, output }
    };
    script.calls.iter().map(request).collect()
}

impl Request<'_> {
    /// Each call has one result directly after its turn, and no result is without a call.
    fn is_valid(&self) {
        let dialect = dialect::for_path(self.path).unwrap();
        let conversation = dialect.parse(&self.output).unwrap();
        assert_eq!(conversation.elements.len(), self.plan.report.messages_after, "{}", self.plan);
        let pairing = Pairing::of(&conversation);
        assert!(pairing.calls.iter().all(|call| call.answered), "{self}");
        for result in &pairing.results {
            let call = result.answers.unwrap_or_else(|| panic!("an orphan\n{self}"));
            assert!(
                Some(result.unit) <= pairing.call(call).and_then(|call| pairing.run_end_of(call)),
                "displaced\n{self}"
            );
        }
        assert_eq!(pairing.calls.len(), pairing.results.len(), "{self}");
        // Whatever was moved, the model is not the last. No message is empty, and new text of the user follows the results.
        assert_ne!(conversation.units.last().map(|unit| unit.role), Some(Role::Assistant), "{self}");
        for element in &conversation.elements {
            assert!(!element.units.is_empty(), "{self}");
            let units = conversation.unit_range(&element.units);
            let first_user = units.iter().position(|unit| unit.role == Role::User).unwrap_or(units.len());
            assert!(units[first_user..].iter().all(|unit| unit.role != Role::Tool), "{self}");
        }
    }

    /// What a call of this id was answered with is in the request, or stored, or was removed with its call.
    fn loses_nothing(&self) {
        let keys = self.plan.offloads.iter().map(|offload| offload.payload.bytes());
        let stored: BTreeSet<_> = keys.map(|payload| payload.to_vec()).collect();
        for item in self.items {
            let Item::Result { id, text } = item else { continue };
            let is_there = self.shows(text);
            let has_left = self.plan.report.changes.iter().any(|change| {
                change.edit == "filter"
                    && change.call_id == *id
                    && matches!(change.action, Action::Drop { .. } | Action::DropCall { .. })
            });
            assert!(is_there || has_left || stored.contains(text.as_bytes()), "{id} is lost\n{self}");
        }
    }

    /// Results after the last answer of the model are there, or cut and stored.
    fn keeps_the_unread(&self) {
        let of_model = |item: &&Item| matches!(item, Item::Said(_) | Item::Call { .. } | Item::Thought(_));
        let new = self.items.iter().rev().take_while(|item| !of_model(item));
        for item in new {
            let Item::Result { id, text } = item else { continue };
            let is_cut =
                self.changed(id).any(|action| matches!(action, Action::Truncate { .. } | Action::Deduplicate { .. }));
            assert!(self.shows(text) || is_cut, "{id} was not read\n{self}");
            assert!(!self.changed(id).any(|action| matches!(action, Action::Clear { .. })), "{self}");
        }
    }

    fn changed(&self, id: &str) -> impl Iterator<Item = Action> {
        self.plan.report.changes.iter().filter(move |change| change.call_id == id).map(|change| change.action)
    }

    fn shows(&self, text: &str) -> bool {
        let text = serde_json::to_string(text).unwrap();
        std::str::from_utf8(&self.output).unwrap().contains(&text)
    }

    /// The ids of the calls whose results were cleared or left out.
    fn taken(&self) -> BTreeSet<&str> {
        let is_it = |action| matches!(action, Action::Clear { .. } | Action::Drop { .. });
        let changes = self.plan.report.changes.iter().filter(|change| change.edit != "patch" && is_it(change.action));
        changes.map(|change| change.call_id.as_str()).collect()
    }

    /// What was done to which call.
    fn done(&self) -> BTreeSet<(&str, &str, &str)> {
        let changes = self.plan.report.changes.iter();
        changes.map(|change| (change.edit, change.action.label(), change.call_id.as_str())).collect()
    }

    /// The thoughts that are sent, each with the number of its element.
    fn thoughts(&self) -> Vec<(usize, String)> {
        let elements = self.elements().into_iter().enumerate();
        let of = |(n, element): (usize, &[u8])| {
            let element: Value = serde_json::from_slice(element).unwrap();
            let blocks = element["content"].as_array().cloned().unwrap_or_default();
            let signatures = blocks.into_iter().filter_map(|block| Some(block["signature"].as_str()?.to_owned()));
            signatures.map(move |signature| (n, signature)).collect::<Vec<_>>()
        };
        elements.flat_map(of).collect()
    }

    /// What the first elements say, without thoughts.
    fn without_thoughts(&self, n: usize) -> Vec<Value> {
        let elements = self.elements().into_iter().take(n).map(|element| {
            let mut element: Value = serde_json::from_slice(element).unwrap();
            if let Some(blocks) = element["content"].as_array_mut() {
                blocks.retain(|block| block["type"] != "thinking");
            }
            element
        });
        elements.filter(|element| element["content"].as_array().is_none_or(|blocks| !blocks.is_empty())).collect()
    }

    /// The elements of the output.
    fn elements(&self) -> Vec<&[u8]> {
        let conversation = dialect::for_path(self.path).unwrap().parse(&self.output).unwrap();
        conversation.elements.iter().map(|element| &self.output[element.span.start..element.span.end]).collect()
    }
}

impl std::fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).replace("line of it\\n", ".");
        write!(f, "{}\n{}\n{}\n{}", self.path, self.plan, text(&self.body), text(&self.output))
    }
}

/// A model that signs its thoughts together with what precedes them.
const BINDING: &str = "claude-opus-5-5";

#[test]
fn a_pass_lets_go_of_the_thinking_before_it_and_of_none_behind() {
    let round = |n: usize| {
        let (id, text) = (format!("call_{n}"), format!("<{n}>{}", "line of it\n".repeat(200)));
        // All calls of a script have the same arguments, and none is to repeat another.
        let call = Item::Call { id: id.clone(), name: ["bash", "grep", "ls", "find", "make"][n] };
        [Item::Thought(format!("thought{n}")), call, Item::Result { id, text }]
    };
    let user = |text: &str| Item::User(text.to_owned());
    let mut items = vec![user("Go.")];
    items.extend((0..3).flat_map(round).chain([Item::Said("Done.".to_owned()), user("More.")]));
    items.extend((3..5).flat_map(round));
    let calls: Vec<_> = (1..=items.len())
        .filter(|n| items.get(*n).is_none_or(|item| matches!(item, Item::Thought(_) | Item::Said(_))))
        .collect();
    let script = Script { items, calls };
    let policy = "[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 1000 }\nkeep = { results = 1 }";
    let sent_with = |model, settings: &str| {
        let policy = &format!("{policy}\n{settings}");
        let requests = requests_to(model, "/v1/messages", &script, policy);
        let thoughts = |request: &Request<'_>| request.thoughts().len();
        let cleared = |request: &Request<'_>| request.taken().len();
        requests.iter().map(|request| (cleared(request), thoughts(request))).collect::<Vec<_>>()
    };
    let sent = |model| sent_with(model, "");
    // A model that binds nothing: passes are made within rounds of tools, and all thoughts stay.
    assert_eq!(sent("claude-opus-5"), [(0, 0), (0, 1), (1, 2), (2, 3), (2, 3), (3, 4), (4, 5)]);
    // One that does: each pass takes what was thought before it.
    assert_eq!(sent(BINDING), [(0, 0), (0, 1), (1, 0), (2, 0), (2, 0), (3, 0), (4, 0)]);
    assert_eq!(sent_with("Claude-Opus-5", "[reasoning]\nmodels = [\"claude-opus-5*\"]"), sent(BINDING));
    assert_eq!(sent_with(BINDING, "[reasoning]\nbound = \"keep\""), sent("claude-opus-5"));
    let withheld = (0..7).map(|n| (0, [0, 1, 2, 3, 3, 4, 5][n])).collect::<Vec<_>>();
    assert_eq!(sent_with(BINDING, "[reasoning]\nbound = \"withhold\""), withheld);
}

/// How many times as large the larger one of two hostile requests is.
const MORE: usize = 6;

/// Conversations in which something comes very often: all calls in one turn with a thought, turns with a thought each, and
/// results that come when all is over, or are in front of their calls.
fn hostile(n: usize) -> [(&'static str, Vec<Item>); 4] {
    let user = |text: &str| Item::User(text.to_owned());
    let call = |n: usize| Item::Call { id: format!("call_{n}"), name: "bash" };
    let result = |n: usize| Item::Result { id: format!("call_{n}"), text: "line of it\n".repeat(10) };
    let thought = |n: usize| Item::Thought(format!("thought{n}"));
    let end = || [Item::Said("Done.".to_owned()), user("More."), Item::Said("Done.".to_owned()), user("More.")];
    let turn = (0..n).map(call).chain((0..n).map(result));
    let turn = [user("Go."), thought(0)].into_iter().chain(turn).chain(end());
    let turns = (0..n).flat_map(|n| [thought(n), call(n), result(n)]);
    let turns = std::iter::once(user("Go.")).chain(turns).chain(end());
    let late = (0..n).flat_map(|n| [thought(n), call(n), user("Go on.")]);
    let late = late.chain((0..n).map(result)).chain(end());
    let before = (0..n).map(result).chain((0..n).flat_map(|n| [thought(n), call(n), user("Go on.")])).chain(end());
    [
        ("calls of one turn", turn.collect()),
        ("turns", turns.collect()),
        ("late results", late.collect()),
        ("results before their calls", before.collect()),
    ]
}

#[test]
fn hostile_sizes_take_linear_time_in_every_dialect() {
    // A summary is asked for at both sizes.
    let policy = "summarize.trigger = { tokens = 500 }\n[filter_tool_calls]\nmax_tool_calls = 1\n[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 500 }\nkeep = { results = 1 }";
    let mut settings: PlanSettings = toml::from_str(policy).unwrap();
    settings.tokens.counter = Counter::Estimate;
    let planner = Planner::new(settings);
    let few = 400;
    for path in PATHS {
        let dialect = dialect::for_path(path).unwrap();
        for ((what, short), (_, long)) in hostile(few).into_iter().zip(hostile(few * MORE)) {
            let [short, long] = [short, long].map(|items| body(path, BINDING, &items));
            let time = |body: &Bytes| {
                let began = computed();
                planner.plan(dialect, body).unwrap();
                computed().saturating_sub(began)
            };
            let once = (0..3).map(|_| time(&short)).min().unwrap();
            let most = once * u32::try_from(MORE * MORE / 2).unwrap() + Duration::from_millis(10);
            let times: Vec<_> = (0..3).map(|_| time(&long)).take_while(|time| *time > most).collect();
            assert!(times.len() < 3, "{few} {what} of {path} took {once:?}, {MORE} times as many {times:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn thinking_that_is_sent_was_made_with_what_is_sent_before_it(
        script in with_gaps(1..18),
        policy in prop::sample::select(STICKY.to_vec()),
    ) {
        let requests = requests_to(BINDING, "/v1/messages", &script, policy);
        let mut gone = BTreeSet::new();
        for request in &requests {
            request.is_valid();
            let thoughts = request.thoughts();
            for (element, signature) in &thoughts {
                let at = script.items.iter().position(|item| *item == Item::Thought(signature.clone())).unwrap();
                let made_in = &requests[script.calls.iter().position(|call| *call == at).unwrap()];
                let before = made_in.without_thoughts(usize::MAX);
                prop_assert_eq!(request.without_thoughts(*element), before, "{}\n{}", made_in, request);
                prop_assert!(!gone.contains(signature), "{} came back", signature);
            }
            let kept: BTreeSet<_> = thoughts.into_iter().map(|(_, signature)| signature).collect();
            let all = request.items.iter().filter_map(|item| match item {
                Item::Thought(signature) => Some(signature.clone()),
                _ => None,
            });
            gone.extend(all.filter(|signature| !kept.contains(signature)));
        }
    }

    #[test]
    fn sequences_are_valid_and_nothing_is_lost_in_every_dialect(
        path in any_path(),
        script in with_gaps(1..14),
        policy in prop::sample::select(STICKY.to_vec()),
    ) {
        for request in requests(path, &script, policy) {
            request.is_valid();
            request.loses_nothing();
            request.keeps_the_unread();
        }
    }

    #[test]
    fn what_is_taken_stays_taken_and_the_beginning_stays_in_every_dialect(
        path in any_path(),
        script in whole(1..16),
        policy in prop::sample::select(STICKY.to_vec()),
    ) {
        let requests = requests(path, &script, policy);
        for two in requests.windows(2) {
            let (before, after) = (two[0].taken(), two[1].taken());
            prop_assert!(before.is_subset(&after), "{:?} came back\n{}\n{}", before.difference(&after), two[0], two[1]);
            if two[0].done() == two[1].done() {
                let (before, after) = (two[0].elements(), two[1].elements());
                prop_assert!(after.starts_with(&before), "{}\n{}", two[0], two[1]);
            }
        }
    }

    #[test]
    fn below_the_trigger_passes_are_made_where_the_user_has_spoken(
        path in any_path(),
        script in whole(1..16),
        auto in prop::sample::select(vec!["", "clear_at_least = \"auto\"\n[[prices]]\nread = 0.5"]),
    ) {
        const TRIGGER: usize = 6000;
        let policy = format!(
            "[clear_tool_results]\ntrigger = {{ tokens = {TRIGGER} }}\nwhen = \"turn\"\nkeep = {{ results = 1 }}\n{auto}"
        );
        let requests = requests(path, &script, &policy);
        for two in requests.windows(2) {
            let passes = two[0].taken() != two[1].taken();
            let is_below = two[1].plan.report.tokens_before.is_none_or(|tokens| tokens < TRIGGER);
            let begins_turn = matches!(two[1].items.last(), Some(Item::User(_)));
            prop_assert!(!passes || !is_below || begins_turn, "{}\n{}", two[0], two[1]);
        }
    }

    #[test]
    fn calls_and_results_of_a_script_are_the_same_in_every_dialect(script in with_gaps(1..14)) {
        let of = |path: &'static str| {
            let body = body(path, "m", &script.items);
            let conversation = dialect::for_path(path).unwrap().parse(&body).unwrap();
            let pairing = Pairing::of(&conversation);
            let answered = pairing.calls.iter().map(|call| match &conversation.block(call.block).unwrap().kind {
                BlockKind::ToolCall { id, .. } => (id.text.clone().into_owned(), call.answered),
                BlockKind::ToolResult { .. } => unreachable!(),
            });
            (answered.collect::<Vec<_>>(), conversation.model_calls().len())
        };
        let [chat, responses, messages, gemini] = PATHS.map(of);
        prop_assert_eq!(&chat, &messages);
        prop_assert_eq!(&chat, &gemini);
        prop_assert_eq!(&chat, &responses);
    }
}
