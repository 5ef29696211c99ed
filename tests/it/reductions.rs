//! What holds for every conversation that is made shorter, under every policy.

use std::{collections::BTreeSet, time::Duration};

use abridge_proxy::{
    dialect::{self, Dialect},
    engine::edit_body,
    plan::{Action, Plan, SkipReason},
    planner::{Offload, PlanSettings, Planner},
    replay::planner_from_toml,
    span::splice,
    tokens::{self, Counter, Meter},
};
use bytes::Bytes;
use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use crate::support::{
    bodies::elements,
    conversations::{Message, body, damaged, late_steps, layout, long_steps},
    validator,
};

/// Policies under which what was cleared or left out once is so in all later requests.
pub(crate) const STICKY: [&str; 15] = [
    "[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 600 }",
    "[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 900 }\nkeep = { rounds = 1 }\nclear_at_least = 300\nclear_tool_inputs = true",
    "[clear_tool_results]\nwhen = 'any'\ntrigger = [{ messages = 6, tokens = 300 }, { tokens = 2000 }]\nkeep = { tokens = 400 }\n[tools.bash]\nclear = false",
    "[recall]\nvia = \"http\"\npublic_url = \"http://h\"\n[truncate_tool_results]\nmax_bytes = 700\n[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 500 }\nkeep = { results = 0 }",
    "[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 500 }\nclear_at_least = 0\nkeep = { results = 1 }",
    "[truncate_tool_results]\nmax_bytes = 300\n[tools.'re*']\ntruncate = { head = 50 }\nclear = false",
    "[filter_tool_calls]\nmax_tool_calls = 2\n[policy]\nedits = [\"patch_tool_calls\", \"filter_tool_calls\"]",
    "[filter_tool_calls]\nmax_tool_calls = 3\n[policy]\nedits = [\"patch_tool_calls\", \"filter_tool_calls\"]",
    "[filter_tool_calls]\nmax_tool_calls = 1\n[truncate_tool_results]\nmax_bytes = 500\n[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 500 }\nkeep = { results = 1 }",
    "[filter_tool_calls]\nmax_tool_calls = 3\n[truncate_tool_results]\nmax_bytes = 900\n[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 600 }\nkeep = { tokens = 400 }\nclear_at_least = 0\nclear_tool_inputs = [\"bash\"]",
    "[clear_tool_results]\nwhen = 'any'\ntrigger = { messages = 7 }\nkeep = { rounds = 1 }",
    "[filter_tool_calls]\nmax_tool_calls = 4\n[clear_tool_results]\nwhen = 'any'\ntrigger = [{ messages = 5 }, { tokens = 900 }]\nkeep = { results = 1 }",
    "[clear_tool_results]\ntrigger = { tokens = 1500 }\nwhen = \"turn\"\nkeep = { results = 1 }",
    "[[prices]]\nread = 0.4\n[clear_tool_results]\ntrigger = { tokens = 2000 }\nwhen = \"turn\"\nclear_at_least = \"auto\"\nkeep = { rounds = 1 }\nkeep_reads = 2",
    "[[prices]]\nread = 0.6\nbreak = \"all\"\n[filter_tool_calls]\nmax_tool_calls = 4\n[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 300 }\nclear_at_least = \"auto\"\nclear_tool_inputs = true\nkeep = { results = 1 }",
];

/// Where [`STICKY`] has a policy with a filter and a clear.
const BOTH: usize = 8;

/// The others.
const OTHER: [&str; 3] = [
    "[clear_tool_results]\ntrigger = { tokens = 600 }\nfrontier = \"sliding\"\nkeep = { results = 0 }",
    "[clear_tool_results]\ntrigger = { messages = 1 }\nfrontier = \"sliding\"\ngrowth_guard = false\noffload = false",
    "[policy]\nedits = [\"clear_tool_results\", \"truncate_tool_results\", \"filter_tool_calls\", \"patch_tool_calls\"]\n[filter_tool_calls]\nmax_tool_calls = 0\n[clear_tool_results]\nwhen = 'any'\ntrigger = { messages = 1 }",
];

fn any_policy() -> impl Strategy<Value = &'static str> {
    prop::sample::select([STICKY.as_slice(), &OTHER].concat())
}

fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").unwrap()
}

/// Takes a quarter of the bytes for tokens.
pub(crate) fn meter() -> Meter {
    Meter::new(&tokens::Settings { counter: Counter::Estimate, ..tokens::Settings::default() }, &[])
}

fn plan_with(policy: &str, body: &Bytes, offload: Offload) -> (Plan, Bytes) {
    let mut parts: PlanSettings = toml::from_str(policy).unwrap();
    parts.tokens.counter = Counter::Estimate;
    let plan = Planner { offload, ..Planner::new(parts) }.plan(dialect(), body).unwrap();
    let output = Bytes::from(splice(body, &plan.splices).concat());
    assert_eq!((plan.report.bytes_after, plan.report.messages_after), (output.len(), elements(&output).len()));
    (plan, output)
}

pub(crate) fn plan(policy: &str, body: &Bytes) -> (Plan, Bytes) {
    plan_with(policy, body, Offload::Possible)
}

/// The body with its results in the order of the calls.
pub(crate) fn in_order(body: &Bytes) -> Bytes {
    plan("policy.edits = ['patch_tool_calls']", body).1
}

fn is_assistant(message: &Message) -> bool {
    message.json.contains(r#""role":"assistant""#)
}

/// The index of the last answer of the model. What it has said without calls at the end is a prefill.
fn last_answer(messages: &[Message]) -> Option<usize> {
    let is_prefill = |message: &&Message| is_assistant(message) && !message.json.contains("tool_calls");
    let n_prefill = messages.iter().rev().take_while(is_prefill).count();
    messages[..messages.len() - n_prefill].iter().rposition(is_assistant)
}

/// The messages that are not what they were, or are not there any more.
pub(crate) fn touched(plan: &Plan) -> BTreeSet<usize> {
    plan.report.changes.iter().filter_map(|change| message_of(change.action)).collect()
}

/// The same without those that point to lines elsewhere: where these leave, the text is back.
pub(crate) fn taken(plan: &Plan) -> BTreeSet<usize> {
    let actions = plan.report.changes.iter().map(|change| change.action);
    actions.filter(|action| !matches!(action, Action::Deduplicate { .. })).filter_map(message_of).collect()
}

/// The message that does not stay what it was.
pub(crate) fn message_of(action: Action) -> Option<usize> {
    match action {
        Action::Drop { message }
        | Action::DropCall { message }
        | Action::Strip { message }
        | Action::Truncate { message }
        | Action::Deduplicate { message }
        | Action::Clear { message }
        | Action::ClearInput { message }
        | Action::Mend { message } => Some(message),
        Action::Insert { .. } | Action::InsertText { .. } | Action::Move { .. } | Action::Summarize { .. } => None,
    }
}

/// The text of a content that is a string, and those of parts that are texts.
fn texts(message: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct Part {
        text: Option<String>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Content {
        Text(String),
        Parts(Vec<Part>),
        Other(serde::de::IgnoredAny),
    }
    #[derive(Deserialize)]
    struct Result {
        content: Content,
    }
    match serde_json::from_str::<Result>(message).map(|result| result.content) {
        Ok(Content::Text(text)) => vec![text],
        Ok(Content::Parts(parts)) => parts.into_iter().filter_map(|part| part.text).collect(),
        Ok(Content::Other(_)) | Err(_) => Vec::new(),
    }
}

/// Where the requests end that these messages were made of: before each answer, and at the end.
pub(crate) fn requests(messages: &[Message]) -> impl Iterator<Item = usize> {
    (0..=messages.len()).filter(|&n| messages.get(n).is_none_or(is_assistant))
}

proptest! {
    #[test]
    fn every_policy_leaves_a_valid_sequence(layout in layout(), messages in damaged(), policy in any_policy()) {
        let (plan, output) = plan(policy, &body(&layout, &messages));
        prop_assert_eq!(validator::check(&output), Ok(()), "{}", plan);
        prop_assert!(output.starts_with(layout.head.as_bytes()) && output.ends_with(layout.tail.as_bytes()));
    }

    #[test]
    fn long_conversations_stay_valid(layout in layout(), messages in long_steps(0..10), policy in any_policy()) {
        let (plan, output) = plan(policy, &body(&layout, &messages));
        prop_assert_eq!(validator::check(&output), Ok(()), "{}", plan);
    }

    #[test]
    fn a_text_without_its_calls_is_not_followed_by_the_model(
        layout in layout(),
        messages in prop_oneof![long_steps(0..10), late_steps(0..10), damaged()],
        policy in any_policy(),
    ) {
        let (plan, output) = plan(policy, &body(&layout, &messages));
        for pair in elements(&output).windows(2) {
            let came = |element: &str| messages.iter().any(|message| message.json == element);
            let are_answers = pair.iter().all(|element| element.contains(r#""role":"assistant""#));
            prop_assert!(!are_answers || came(pair[0]), "{:?}\n{}", pair, plan);
        }
    }

    #[test]
    fn what_no_change_names_keeps_its_bytes(layout in layout(), messages in long_steps(0..10), policy in any_policy()) {
        let body = in_order(&body(&layout, &messages));
        let (plan, output) = plan(policy, &body);
        let (touched, after) = (touched(&plan), elements(&output));
        let mut rest = after.iter();
        for (n, message) in elements(&body).iter().enumerate().filter(|(n, _)| !touched.contains(n)) {
            prop_assert!(rest.any(|after| after == message), "message {} is lost\n{}", n, plan);
        }
        prop_assert_eq!(plan.is_empty(), plan.report.changes.is_empty());
    }

    #[test]
    fn what_was_not_read_is_neither_cleared_nor_left_out(
        layout in layout(),
        messages in prop_oneof![long_steps(0..10), damaged()],
        policy in any_policy(),
    ) {
        let (plan, _) = plan(policy, &body(&layout, &messages));
        let last = last_answer(&messages);
        for change in plan.report.changes.iter().filter(|change| change.edit != "patch") {
            if let Action::Clear { message } | Action::Drop { message } = change.action {
                prop_assert!(last.is_some_and(|last| message <= last), "{}", plan);
            }
        }
    }

    #[test]
    fn growth_by_whole_steps_changes_nothing_but_where_a_trigger_fires(
        layout in layout(),
        messages in long_steps(0..10),
        more in long_steps(1..4),
        policy in prop::sample::select(&STICKY[..]),
    ) {
        let (first, output) = plan(policy, &body(&layout, &messages));
        // A request that the model has not answered is not seen in later ones.
        let more: Vec<_> = more.into_iter().skip_while(|message| !is_assistant(message)).collect();
        let grown = [messages.clone(), more].concat();
        let (second, grown_output) = plan(policy, &body(&layout, &grown));
        let (before, after) = (taken(&first), taken(&second));
        prop_assert!(before.is_subset(&after), "{}\n{}", first, second);
        // A trigger that fires clears more; that may be a result that was truncated before.
        let old = |plan: &Plan| -> Vec<Action> {
            let mut actions: Vec<_> = plan.report.changes.iter().map(|change| change.action).collect();
            actions.retain(|action| message_of(*action).is_some_and(|message| message < messages.len()));
            actions
        };
        if old(&first) == old(&second) {
            let (before, after) = (elements(&output), elements(&grown_output));
            prop_assert!(after.starts_with(&before), "{}\n{}", first, second);
        }
    }

    #[test]
    fn a_filter_beside_a_clear_brings_nothing_back(
        layout in layout(),
        messages in long_steps(1..14),
        max in 0..4_usize,
        tokens in 200..1500_usize,
        keep in prop::sample::select(&["results = 0", "results = 1", "results = 3", "rounds = 1", "tokens = 400"][..]),
        at_least in prop::sample::select(&["", "clear_at_least = 0", "clear_at_least = 300"][..]),
        max_bytes in 400..2000_usize,
    ) {
        let policy = format!(
            "[filter_tool_calls]\nmax_tool_calls = {max}\n[truncate_tool_results]\nmax_bytes = {max_bytes}\n[clear_tool_results]\nwhen = 'any'\ntrigger = {{ tokens = {tokens} }}\nkeep = {{ {keep} }}\n{at_least}"
        );
        let mut before = BTreeSet::new();
        for end in requests(&messages) {
            let (plan, _) = plan(&policy, &body(&layout, &messages[..end]));
            let now = taken(&plan);
            prop_assert!(before.is_subset(&now), "{}\n{:?} {}", policy, before, plan);
            before = now;
        }
    }

    #[test]
    fn what_a_request_clears_all_later_ones_clear(
        layout in layout(),
        messages in long_steps(1..14),
        policy in prop::sample::select(&STICKY[..]),
    ) {
        let mut cleared = BTreeSet::new();
        for end in requests(&messages) {
            let (plan, _) = plan(policy, &body(&layout, &messages[..end]));
            let now = taken(&plan);
            prop_assert!(cleared.is_subset(&now), "{:?} {}", cleared, plan);
            cleared = now;
        }
    }

    #[test]
    fn what_is_put_in_is_smaller(layout in layout(), messages in long_steps(0..10), policy in any_policy()) {
        let (plan, _) = plan(policy, &body(&layout, &messages));
        if !policy.contains("growth_guard = false") {
            for change in &plan.report.changes {
                if let Action::Truncate { .. } | Action::Clear { .. } | Action::ClearInput { .. } = change.action {
                    prop_assert!(change.bytes.after < change.bytes.before, "{}", plan);
                }
            }
        }
    }

    #[test]
    fn every_text_that_is_taken_out_is_stored_under_its_handle(
        layout in layout(),
        messages in long_steps(0..10),
        policy in any_policy(),
    ) {
        let (plan, output) = plan(policy, &body(&layout, &messages));
        let stored: Vec<_> = plan.offloads.iter().map(|offload| offload.key).collect();
        let mut named = BTreeSet::new();
        for change in &plan.report.changes {
            named.extend(change.handles.iter().copied());
            if let Action::Truncate { message } | Action::Deduplicate { message } | Action::Clear { message } =
                change.action
            {
                if policy.contains("offload = false") {
                    continue;
                }
                // As many payloads as there are handles, each of them one of the texts that came.
                let texts = texts(&messages[message].json);
                for handle in &change.handles {
                    let payload = plan.offloads.iter().find(|offload| offload.key == *handle).unwrap();
                    prop_assert!(texts.iter().any(|text| text.as_bytes() == payload.payload.bytes()), "{}", plan);
                }
                prop_assert!(!change.handles.is_empty());
            }
        }
        prop_assert_eq!(stored.iter().copied().collect::<BTreeSet<_>>(), named);
        prop_assert_eq!(stored.iter().collect::<BTreeSet<_>>().len(), stored.len(), "each once");
        if policy.contains("http://h") {
            let output = String::from_utf8(output.to_vec()).unwrap();
            for change in plan.report.changes.iter().filter(|change| !matches!(change.action, Action::ClearInput { .. })) {
                for handle in &change.handles {
                    let named = output.contains(&format!("http://h/abridge/recall/{handle}"));
                    prop_assert!(named);
                }
            }
        }
    }

    #[test]
    fn without_a_store_nothing_is_taken_out_that_should_be_stored(
        layout in layout(),
        messages in long_steps(0..10),
        policy in any_policy(),
    ) {
        let body = body(&layout, &messages);
        let (without, output) = plan_with(policy, &body, Offload::Impossible);
        prop_assert!(without.offloads.is_empty());
        prop_assert!(without.report.changes.iter().all(|change| change.handles.is_empty()));
        prop_assert_eq!(validator::check(&output), Ok(()));
        if plan(policy, &body).0.report.changes.iter().any(|change| !change.handles.is_empty()) {
            prop_assert!(!without.report.left_out.is_empty());
        }
    }

    #[test]
    fn the_same_request_gives_the_same_plan(layout in layout(), messages in long_steps(0..10), policy in any_policy()) {
        let body = body(&layout, &messages);
        prop_assert_eq!(plan(policy, &body), plan(policy, &Bytes::copy_from_slice(&body)));
    }

    #[test]
    fn what_was_made_shorter_is_left_alone(
        layout in layout(),
        messages in long_steps(0..10),
        policy in prop::sample::select([&STICKY[..6], &OTHER[..2]].concat()),
    ) {
        let (first, output) = plan(policy, &body(&layout, &messages));
        let (again, _) = plan(policy, &output);
        prop_assert!(again.is_empty() || first.report.regrets.keep_doubled, "{}", again);
    }

    #[test]
    fn sliding_clears_what_one_pass_at_the_end_clears(layout in layout(), messages in long_steps(0..10)) {
        // A trigger that always holds makes a pass wherever a model was called: all of them together are the last one.
        let policy = |frontier| format!("[clear_tool_results]\nwhen = 'any'\ntrigger = {{ messages = 1 }}\nkeep = {{ results = 2 }}\nfrontier = \"{frontier}\"");
        let body = body(&layout, &messages);
        let (sticky, output) = plan(&policy("sticky"), &body);
        // What is asked for again is seen by a sticky frontier alone.
        if !sticky.report.regrets.keep_doubled {
            prop_assert_eq!(output, plan(&policy("sliding"), &body).1);
        }
    }
}

/// Where `patch_tool_calls` comes last, others have written on results by then that it has to leave out.
#[test]
fn a_result_without_a_call_leaves_even_if_it_was_cleared_or_truncated_before() {
    const ORDER: &str = "[policy]\nedits = [\"truncate_tool_results\", \"clear_tool_results\", \"patch_tool_calls\"]\n";
    let text = |of: &str| format!("{of} ").repeat(200);
    let body = Bytes::from(format!(
        r#"{{"messages":[{{"role":"user"}},{{"role":"assistant","tool_calls":[{{"id":"a","function":{{"name":"f"}}}}]}},
            {{"role":"tool","tool_call_id":"a","content":"{}"}},{{"role":"tool","tool_call_id":"b","content":"{}"}},
            {{"role":"assistant","content":"x"}},{{"role":"user"}}]}}"#,
        text("answered"),
        text("orphan"),
    ));
    for settings in [
        "[truncate_tool_results]\nmax_bytes = 300",
        "[clear_tool_results]\nwhen = 'any'\ntrigger = { messages = 1 }\nkeep = { results = 0 }",
    ] {
        let (plan, output) = plan(&format!("{ORDER}{settings}"), &body);
        assert_eq!(validator::check(&output), Ok(()), "{plan}");
        let payloads: Vec<_> = plan.offloads.iter().map(|offload| offload.payload.bytes()).collect();
        assert_eq!(payloads, [text("answered"), text("orphan")], "{plan}");
        assert!(!String::from_utf8_lossy(&output).contains("orphan"));
    }
}

/// Rare characters are many tokens, so that a notice of more bytes may have fewer; but the limit is one of bytes.
#[test]
fn a_notice_that_is_longer_than_what_it_stands_for_is_not_put_in() {
    let policy = "[recall]\nvia = \"http\"\npublic_url = \"http://h\"\n[truncate_tool_results]\nmax_bytes = 10";
    let edited = |text: &str| {
        let body = Bytes::from(format!(
            r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"id":"a"}}]}},{{"role":"tool","tool_call_id":"a","content":"{text}"}}]}}"#
        ));
        let edited = edit_body(&planner_from_toml(policy).unwrap(), dialect(), body);
        edited.report.unwrap()
    };
    let rare = edited(&"\u{12000}".repeat(35));
    assert_eq!((rare.changes.len(), rare.left_out.len()), (0, 1), "{rare}");
    assert_eq!(rare.left_out[0].why, SkipReason::NotSmaller);
    let longer = edited(&"\u{12000}".repeat(80));
    assert!(longer.bytes_after < longer.bytes_before, "{longer}");
}

/// What is asked for, and many times that. What takes time by the square of it takes 64 times as long.
const MORE: usize = 8;

/// A request with so many of something.
type Shape = fn(usize) -> String;

const HOSTILE: [(&str, usize, Shape); 11] = [
    ("calls", 1_000, |n| rounds(n, &|n| format!("c{n}"), &"word ".repeat(60))),
    ("calls of one id", 3_000, |n| rounds(n, &|_| "same".to_owned(), "word")),
    ("calls of long ids", 20, |n| rounds(n, &|_| "../../etc/passwd".to_owned() + &"x".repeat(10_000), "word")),
    ("calls without ids", 1_000, |n| rounds(n, &|_| String::new(), "word")),
    ("calls without results", 1_000, |n| {
        rounds(n, &|_| "same".to_owned(), "word").replace("\"tool\",\"tool_call_id\"", "\"user\",\"x\"")
    }),
    ("late results", 1_000, late),
    ("blanks", 40_000, |n| rounds(2, &|n| n.to_string(), &" ".repeat(n))),
    ("letters", 40_000, |n| rounds(2, &|n| n.to_string(), &"a".repeat(n))),
    ("escaped quotes", 40_000, |n| rounds(2, &|n| n.to_string(), &"\\\"".repeat(n))),
    ("backslashes", 40_000, |n| rounds(2, &|n| n.to_string(), &"\\\\".repeat(n))),
    ("short lines", 40_000, |n| rounds(2, &|n| n.to_string(), &"é\\n".repeat(n))),
];

/// So many calls of one message, with their results.
fn rounds(n_calls: usize, id: &dyn Fn(usize) -> String, result: &str) -> String {
    let call = |n| format!(r#"{{"id":"{}","function":{{"name":"f{n}","arguments":"{{\"a\":{n}}}"}}}}"#, id(n));
    let answer = |n| format!(r#"{{"role":"tool","tool_call_id":"{}","content":"{result}"}}"#, id(n));
    let calls: Vec<_> = (0..n_calls).map(call).collect();
    let results: Vec<_> = (0..n_calls).map(answer).collect();
    format!(
        r#"{{"messages":[{{"role":"user"}},{{"role":"assistant","tool_calls":[{}]}},{},{{"role":"assistant","content":"x"}},{{"role":"user"}}]}}"#,
        calls.join(","),
        results.join(",")
    )
}

/// So many messages with a call of the same id and one of another, whose results arrive late or have no id.
fn late(n_messages: usize) -> String {
    let round = |n| {
        format!(
            r#"{{"role":"assistant","tool_calls":[{{"id":"same"}},{{"id":"x{n}"}}]}},{{"role":"user"}},{{"role":"tool","tool_call_id":"same"}},{{"role":"tool"}}"#
        )
    };
    format!(r#"{{"messages":[{}]}}"#, (0..n_messages).map(round).collect::<Vec<_>>().join(","))
}

/// How long this thread has computed, whatever else the machine does.
pub(crate) fn computed() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// How long planning takes.
fn planning(policy: &str, body: &Bytes) -> Duration {
    let began = computed();
    plan(policy, body);
    computed().saturating_sub(began)
}

#[test]
fn hostile_sizes_take_linear_time() {
    for (what, n, shape) in HOSTILE {
        let (few, many) = (Bytes::from(shape(n)), Bytes::from(shape(n * MORE)));
        for policy in [STICKY[1], STICKY[BOTH]] {
            // A summary is asked for at both sizes, or at neither.
            let policy = &format!("{policy}\n[summarize]\ntrigger = {{ tokens = 500 }}");
            let (_, output) = plan(policy, &few);
            assert_eq!(validator::check(&output), Ok(()), "{what}");
            let short = (0..2).map(|_| planning(policy, &few)).min().unwrap();
            // Half of what the square would take. Caches are only so large, and others use them, too.
            let most = short * u32::try_from(MORE * MORE / 2).unwrap() + Duration::from_millis(10);
            let long: Vec<_> = (0..3).map(|_| planning(policy, &many)).take_while(|long| *long > most).collect();
            assert!(long.len() < 3, "{n} {what} took {short:?}, {MORE} times as many {long:?}: {policy}");
        }
    }
}
