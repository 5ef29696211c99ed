//! What holds of bodies in the dialects whose units are items or blocks, for the targets `responses` and `messages`.
//!
//! The last bytes of the input choose a policy: see [`policy`](super::policy). What stands before them is a body.

use std::collections::BTreeSet;

use abridge_proxy::conversation::{BlockKind, Conversation, Role};
use abridge_proxy::dialect::{Answer, Dialect, strings};
use abridge_proxy::plan::{Action, Plan};
use abridge_proxy::planner::{PlanSettings, Planner};
use abridge_proxy::recall::Via;
use abridge_proxy::span::{Span, splice};
use abridge_proxy::tokens::Gauge;
use bytes::Bytes;
use serde_json::value::RawValue;

use super::policy;
use super::scanner::odd;

const PATCH: &str = "policy.edits = ['patch_tool_calls']";

/// Reads a body, and plans it under the policy and with patches alone.
pub fn run(dialect: &dyn Dialect, input: &[u8]) {
    let _answer = dialect.read_answer(input, &mut Answer::with_text());
    let Some((body, choices)) = input.split_last_chunk::<{ policy::N_CHOICES }>() else { return };
    let body = Bytes::copy_from_slice(body);
    read(dialect, &body);
    let chosen = policy::chosen(*choices);
    planned(dialect, &chosen.settings, &body);
    let patch: PlanSettings = toml::from_str(PATCH).expect("settings that can be read");
    let Some(patched) = planned(dialect, &patch, &body) else { return };
    let again = planned(dialect, &patch, &patched.output).expect("what comes out is understood");
    assert!(again.plan.is_empty(), "once is enough\n{}\n{}", patched.plan, again.plan);
}

/// A body reads the same with one key more, and if its strings are valid, each span of it is a value.
fn read(dialect: &dyn Dialect, body: &Bytes) {
    let plain = dialect.parse(body);
    let Some(odd) = odd(body) else { return assert!(plain.is_err(), "no object, and read all the same") };
    match (plain, dialect.parse(&odd)) {
        (Ok(plain), Ok(escaped)) => {
            assert_eq!(plain, escaped);
            if strings::verify(body).is_ok() {
                shows_values(dialect, body, &plain);
            }
        }
        (Err(_), Err(_)) => {}
        (Ok(_), Err(error)) => panic!("{error}, but not without one key more"),
        (Err(error), Ok(_)) => panic!("{error}, but not with one key more"),
    }
}

/// Each place that edits ask for is one of the values of the body, inside of its element.
fn shows_values(dialect: &dyn Dialect, body: &Bytes, conversation: &Conversation<'_>) {
    let gauge = planner(&PlanSettings::default()).meter.for_model(conversation.model.as_deref());
    for element in &conversation.elements {
        is_value(body, element.span);
        count(dialect, &gauge, element.span.of(body));
        for unit in conversation.unit_range(&element.units) {
            is_value(body, unit.span);
            assert!(is_within(unit.span, element.span));
            for text in unit.content.map(|content| dialect.texts(body, content)).unwrap_or_default() {
                is_value(body, text);
                assert!(is_within(text, unit.span) && text.of(body).starts_with(b"\""));
            }
        }
        for span in dialect.entries(body, element.span).into_iter().flat_map(|entries| entries.spans) {
            is_value(body, span);
        }
    }
    for block in &conversation.blocks {
        assert!(is_within(block.span, conversation.unit(block.unit).expect("it is there").span));
        if let BlockKind::ToolCall { .. } = block.kind
            && let Some(input) = dialect.input(body, block.span)
        {
            assert!(is_within(input.span, block.span));
            is_value(body, input.span);
        }
    }
}

fn count(dialect: &dyn Dialect, gauge: &Gauge, element: &[u8]) {
    let (first, again) = (dialect.element_tokens(gauge, element), dialect.element_tokens(gauge, element));
    assert_eq!(first, again, "what is remembered changes nothing");
    dialect.canonical(element);
}

/// A body with its plan, and what comes of both.
struct Planned {
    plan: Plan,
    output: Bytes,
}

/// Plans a body, and looks at what comes of it; none if it is not understood.
fn planned(dialect: &dyn Dialect, settings: &PlanSettings, body: &Bytes) -> Option<Planned> {
    let planner = planner(settings);
    let plan = planner.plan(dialect, body).ok()?;
    assert_eq!(
        planner.plan(dialect, &Bytes::copy_from_slice(body)).as_ref(),
        Ok(&plan),
        "the same body, the same plan"
    );
    assert!(plan.splices.windows(2).all(|two| two[0].span.end <= two[1].span.start), "sorted and disjoint");
    assert_eq!(plan.is_empty(), plan.report.changes.is_empty());
    let output: Bytes = splice(body, &plan.splices).concat().into();
    assert_eq!(plan.report.bytes_after, output.len());
    if plan.is_empty() {
        assert_eq!(&output, body);
        return Some(Planned { plan, output });
    }
    let (came, went) = (dialect.parse(body).ok()?, dialect.parse(&output).expect("what comes out is understood"));
    assert_eq!(strings::verify(&output), Ok(()));
    assert_eq!(plan.report.messages_after, went.elements.len());
    let (first, last) = (came.elements.first().expect("a change is about one"), came.elements.last());
    let end = last.map_or(first.span.end, |last| last.span.end);
    assert!(output.starts_with(&body[..first.span.start]) && output.ends_with(&body[end..]), "{plan}");
    keeps_words(body, &came, &output, &went, &plan);
    let named: BTreeSet<_> = plan.report.changes.iter().flat_map(|change| change.handles.iter().copied()).collect();
    let stored: BTreeSet<_> = plan.offloads.iter().map(|offload| offload.key).collect();
    assert_eq!((&stored, stored.len()), (&named, plan.offloads.len()), "{plan}");
    Some(Planned { plan, output })
}

/// What the user and the instructions say is there, in order, whatever was done around it.
fn keeps_words(body: &Bytes, came: &Conversation<'_>, output: &Bytes, went: &Conversation<'_>, plan: &Plan) {
    if plan.report.changes.iter().any(|change| matches!(change.action, Action::Summarize { .. })) {
        return;
    }
    let words = |body: &Bytes, conversation: &Conversation<'_>| -> Vec<Vec<u8>> {
        let said = |role| matches!(role, Role::User | Role::System | Role::Developer);
        let units = conversation.units.iter().filter(|unit| said(unit.role) && unit.flags.speaks);
        let words = units.map(|unit| unit.span.of(body).to_vec());
        words.filter(|words| !super::is_ours(&String::from_utf8_lossy(words))).collect()
    };
    assert_eq!(words(body, came), words(output, went), "{plan}");
}

/// Adds no tool, so that all bytes outside of the conversation must stay.
fn planner(settings: &PlanSettings) -> Planner {
    let mut settings = settings.clone();
    settings.recall.via = Via::Offered;
    super::plan_and_splice::ESTIMATING.under(settings)
}

fn is_value(body: &[u8], span: Span) {
    let raw: &RawValue = serde_json::from_slice(span.of(body)).expect("a span is a value");
    assert_eq!(raw.get().len(), span.len(), "no white space around it");
}

fn is_within(inner: Span, outer: Span) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
