//! Under any policy: what comes out can be read and is a valid sequence, what no change names keeps its bytes, what is
//! taken out is there to be stored, the same body gives the same plan, and growth leaves the beginning alone.
//!
//! The last bytes of the input choose a policy: see [`policy`]. What stands before them is a conversation: see [`Given`].

use std::collections::BTreeSet;
use std::sync::LazyLock;

use abridge_proxy::dialect::{
    media::{self, MediaForm},
    strings,
};
use abridge_proxy::payload::media::Base64;
use abridge_proxy::plan::{Action, Plan};
use abridge_proxy::planner::{Offload, PlanSettings, Planner};
use abridge_proxy::span::{Span, splice};
use abridge_proxy::tokens::Counter;
use bytes::Bytes;

use super::accounted::{accounted, elements};
use super::conversation::{Given, Made};
use super::policy::{self, Chosen};
use super::{dialect, is_ours, is_readable, may_answer_in_words, validator};

/// It takes a quarter of the bytes for tokens. To make one takes longer than a plan.
pub(super) static ESTIMATING: LazyLock<Planner> = LazyLock::new(|| {
    let mut settings = PlanSettings::default();
    settings.tokens.counter = Counter::Estimate;
    Planner::new(settings)
});

/// Plans and splices a conversation under a policy.
pub fn run(input: &[u8]) {
    let Some((conversation, choices)) = input.split_last_chunk::<{ policy::N_CHOICES }>() else { return };
    let (given, chosen) = (Given::read(conversation), policy::chosen(*choices));
    let body = given.body();
    let Some(first) = Planned::of(&chosen, &body, Offload::Possible) else { return };
    first.is_sound(&chosen);
    let copy = Planned::of(&chosen, &Bytes::copy_from_slice(&body), Offload::Possible);
    assert_eq!(copy.map(|copy| copy.plan).as_ref(), Some(&first.plan), "the same body gives the same plan");

    let without = Planned::of(&chosen, &body, Offload::Impossible).expect("it was understood before");
    without.is_sound(&chosen);
    assert!(without.plan.offloads.is_empty());
    assert!(without.plan.report.changes.iter().all(|change| change.handles.is_empty()));

    if let Given::Made(made) = &given
        && chosen.is_sticky
    {
        grows(&chosen, made, &first);
    }
}

/// A body with its plan, and what comes of both.
struct Planned {
    body: Bytes,
    plan: Plan,
    output: Bytes,
}

/// What the data of a content stands for: of its texts, and of its parts that are none.
fn data_of(body: &Bytes, content: Span) -> Vec<Bytes> {
    let texts = dialect().texts(body, content).into_iter().map(|text| (text, Base64::of_text(text.of(body))));
    let parts = media::parts(body, content).into_iter().map(|part| match part.form {
        MediaForm::Url => (part.data, Base64::of_url(part.data.of(body))),
        _ => (part.data, Base64::whole(part.data.of(body), None)),
    });
    let said = |data: Span| strings::text(body, data).map(|text| text.into_owned().into());
    let of = |(data, base64): (Span, Option<Base64>)| {
        base64.and_then(|base64| base64.decode(data.of(body))).map(|media| media.bytes.into()).or_else(|| said(data))
    };
    texts.chain(parts).filter_map(of).collect()
}

impl Planned {
    /// None if the body is not understood.
    fn of(chosen: &Chosen, body: &Bytes, offload: Offload) -> Option<Self> {
        let planner = Planner { offload, ..ESTIMATING.under(chosen.settings.clone()) };
        let plan = planner.plan(dialect(), body).ok()?;
        // What is remembered of the first time changes nothing.
        assert_eq!(planner.plan(dialect(), body).as_ref(), Ok(&plan));
        let output = splice(body, &plan.splices).concat().into();
        Some(Self { body: body.clone(), plan, output })
    }

    fn is_sound(&self, chosen: &Chosen) {
        let Self { body, plan, output, .. } = self;
        assert!(plan.splices.windows(2).all(|two| two[0].span.end <= two[1].span.start), "sorted and disjoint");
        assert_eq!(plan.is_empty(), plan.report.changes.is_empty());
        assert_eq!(plan.report.bytes_after, output.len());
        if plan.is_empty() {
            assert_eq!(output, body);
            return;
        }
        let conversation = dialect().parse(output).expect("what comes out is understood");
        assert_eq!(strings::verify(output), Ok(()));
        assert_eq!(plan.report.messages_after, conversation.elements.len());
        self.leaves_the_rest(chosen);
        self.has_what_it_takes_out();
        let should_be_valid = chosen.patches || validator::check(body).is_ok();
        if should_be_valid && is_readable(body) && !may_answer_in_words(body) {
            assert_eq!(validator::check(output), Ok(()), "{plan}");
        }
    }

    /// What stands around the messages, and those that no change names.
    fn leaves_the_rest(&self, chosen: &Chosen) {
        let Self { body, plan, output, .. } = self;
        let came = dialect().parse(body).expect("it was planned");
        let (first, last) = (came.elements.first().expect("a change is about one"), came.elements.last());
        let end = last.map_or(first.span.end, |last| last.span.end);
        assert!(output.starts_with(&body[..first.span.start]) && output.ends_with(&body[end..]));
        let known = accounted(&elements(body), &elements(output), &plan.report, is_ours);
        assert_eq!(known, Ok(()), "{plan}");
        for change in plan.report.changes.iter().filter(|_| chosen.guards_growth) {
            if let Action::Truncate { .. } | Action::Clear { .. } | Action::ClearInput { .. } = change.action {
                assert!(change.bytes.after < change.bytes.before, "{plan}");
            }
        }
    }

    /// Each handle that a change names is one of the offloads, which are each a text of the message, and no others.
    fn has_what_it_takes_out(&self) {
        let came = dialect().parse(&self.body).expect("it was planned");
        let mut named = BTreeSet::new();
        for change in &self.plan.report.changes {
            named.extend(change.handles.iter().copied());
            let (Action::Truncate { message } | Action::Deduplicate { message } | Action::Clear { message }) =
                change.action
            else {
                continue;
            };
            let content = came.units[message].content.expect("it had a text");
            let texts: Vec<_> = dialect().texts(&self.body, content);
            for handle in &change.handles {
                let offload = self.plan.offloads.iter().find(|offload| offload.key == *handle).expect("it is stored");
                let payload = offload.payload.bytes();
                assert_eq!(offload.payload.len(), payload.len());
                let keys = &ESTIMATING.keys;
                assert_eq!(keys.payload(keys.anonymous(), &payload), *handle);
                let is_it = |span: &Span| match serde_json::from_slice::<String>(span.of(&self.body)) {
                    Ok(text) => text.as_bytes() == payload,
                    Err(_) => span.of(&self.body) == payload, // it has half a surrogate pair
                };
                let is_data = || data_of(&self.body, content).contains(&payload);
                assert!(texts.iter().any(is_it) || is_data(), "{}", self.plan);
            }
        }
        let stored: BTreeSet<_> = self.plan.offloads.iter().map(|offload| offload.key).collect();
        assert_eq!(stored, named);
        assert_eq!(stored.len(), self.plan.offloads.len(), "each once");
    }

    /// What is done to the first `n` messages.
    fn actions(&self, n: usize) -> Vec<Action> {
        let mut actions: Vec<_> = self.plan.report.changes.iter().map(|change| change.action).collect();
        actions.retain(|action| message_of(*action).is_some_and(|message| message < n));
        actions
    }
}

/// The message that does not stay what it was.
fn message_of(action: Action) -> Option<usize> {
    match action {
        Action::Drop { message }
        | Action::DropCall { message }
        | Action::Strip { message }
        | Action::Truncate { message }
        | Action::Deduplicate { message }
        | Action::Clear { message }
        | Action::ClearInput { message }
        | Action::Mend { message }
        | Action::Move { message, .. } => Some(message),
        Action::Insert { behind } => Some(behind),
        Action::InsertText { .. } | Action::Summarize { .. } => None,
    }
}

/// What was done to the first messages is done to them in the longer conversation, too; and if it is all that is done to
/// them, it begins with the same bytes.
fn grows(chosen: &Chosen, made: &Made, grown: &Planned) {
    let Some(n) = made.n_before_growth else { return };
    let Some(before) = Planned::of(chosen, &made.first(n), Offload::Possible) else { return };
    let (actions, later) = (before.actions(n), grown.actions(n));
    let gone =
        |actions: &[Action]| -> BTreeSet<_> { actions.iter().filter_map(|action| message_of(*action)).collect() };
    assert!(gone(&actions).is_subset(&gone(&later)), "{}\n{}", before.plan, grown.plan);
    if actions == later {
        let (before_out, grown_out) = (elements(&before.output), elements(&grown.output));
        assert!(grown_out.starts_with(&before_out), "{}\n{}", before.plan, grown.plan);
    }
}
