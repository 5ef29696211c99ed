//! An edited body needs no edit, under any policy.

use abridge_proxy::{
    conversation::Role,
    dialect::{self, Dialect, strings},
    edit::clear_tool_results::AtLeast,
    handler::NoAnswers,
    payload::Keys,
    plan::{Action, Change, Plan, SkipReason},
    planner::{Calibration, ColdPasses, LookUp, Offload, PlanContext, PlanSettings, Policy, Sent, SummaryTiming},
    span::splice,
    string_index::StringIndex,
    summary::NoSummaries,
    tokens::{self, Counter, Meter},
};
use bytes::Bytes;
use proptest::prelude::*;

use crate::properties::REMOVED_RESULT;
use crate::support::bodies;
use crate::support::conversations::{Message, body, damaged, damaged_of, layout, long_steps};
use crate::support::validator;

fn one_of(choices: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(choices)
}

/// Settings of all edits, each of which may find something to do.
fn policy() -> impl Strategy<Value = String> {
    let language = one_of(&["", "language = \"zh\"\n"]);
    (language, before_clearing(), clearing())
        .prop_map(|(language, before, clearing)| format!("{language}{before}{clearing}"))
}

fn before_clearing() -> impl Strategy<Value = String> {
    let edits = one_of(&[
        "",
        "",
        "",
        "[policy]\nedits = [\"patch_tool_calls\", \"truncate_tool_results\", \"clear_tool_results\"]\n",
        "[policy]\nedits = [\"patch_tool_calls\", \"clear_tool_results\"]\n",
        "[policy]\nedits = [\"patch_tool_calls\", \"truncate_tool_results\"]\n",
        "[policy]\nedits = [\"patch_tool_calls\", \"filter_tool_calls\"]\n",
        "[policy]\nedits = [\"truncate_tool_results\", \"clear_tool_results\"]\n",
    ]);
    let way = one_of(&[
        "[recall]\nvia = \"none\"\n",
        "[recall]\nvia = \"http\"\npublic_url = \"http://h\"\n",
        "[recall]\npublic_url = \"http://h\"\n",
        "[recall]\nvia = \"file\"\nexport_dir = \"/tmp/x\"\n",
    ]);
    let patch = one_of(&[
        "",
        "",
        "[patch_tool_calls]\norphans = \"keep\"\n",
        "[patch_tool_calls]\ntemplate = \"\"\n",
        "[patch_tool_calls]\ntemplate = \"{tool_name} gave nothing, again and again and again and again\"\n",
    ]);
    let filter = one_of(&[
        "",
        "",
        "",
        "[filter_tool_calls]\nmax_tool_calls = 0\n",
        "[filter_tool_calls]\nmax_tool_calls = 1\n",
        "[filter_tool_calls]\nmax_tool_calls = 2\n",
        "[filter_tool_calls]\nmax_tool_calls = 4\n",
    ]);
    let notice = one_of(&[
        "",
        "",
        "",
        "notice = \"[{left_out}]\"\n",
        "notice = \"{handle}\"\n",
        "notice = \"\"\n",
        "notice = \"<cut {left_out} of {bytes} of {tool_name}. {how}>\"\n",
    ]);
    let max_bytes = prop::sample::select(&[0_usize, 0, 1, 10, 60, 200, 500, 1500, 50_000][..]);
    (edits, way, patch, filter, max_bytes, notice).prop_map(|(edits, way, patch, filter, max_bytes, notice)| {
        format!("{edits}{way}{patch}{filter}[truncate_tool_results]\nmax_bytes = {max_bytes}\n{notice}")
    })
}

fn clearing() -> impl Strategy<Value = String> {
    let trigger = prop_oneof![
        4 => (0..200_usize).prop_map(|n| format!("trigger = {{ tokens = {} }}\n", 10 + n * 10)),
        1 => (1..12_usize).prop_map(|n| format!("trigger = {{ messages = {n} }}\n")),
        1 => Just("trigger = [{ messages = 6, tokens = 300 }, { tokens = 2000 }]\n".to_owned()),
    ];
    let keep = one_of(&[
        "",
        "keep = { results = 0 }\n",
        "keep = { results = 1 }\n",
        "keep = { rounds = 1 }\n",
        "keep = { rounds = 0 }\n",
        "keep = { tokens = 200 }\n",
        "keep = { tokens = 900 }\n",
    ]);
    let at_least = one_of(&["", "", "clear_at_least = 0\n", "clear_at_least = 100\n", "clear_at_least = 400\n"]);
    let inputs = one_of(&["", "clear_tool_inputs = true\n", "clear_tool_inputs = [\"bash\"]\n"]);
    let exclude = one_of(&["", "", "exclude_tools = [\"re*\"]\n"]);
    let placeholder = one_of(&[
        "",
        "",
        "",
        "placeholder = \"[cleared]\"\n",
        "placeholder = \"\"\n",
        "placeholder = \"{handle}\"\n",
        "placeholder = \"{tool_name}: {bytes}\"\n",
        "placeholder = \"gone: {bytes} bytes. {how} Look elsewhere, look elsewhere, look elsewhere, look elsewhere.\"\n",
    ]);
    let how = one_of(&[
        "",
        "",
        "",
        "growth_guard = false\n",
        "frontier = \"sliding\"\n",
        "frontier = \"sliding\"\ngrowth_guard = false\n",
        "offload = false\n",
    ]);
    let tools = one_of(&[
        "",
        "",
        "",
        "[tools.bash]\nclear = false\n",
        "[tools.'re*']\ntruncate = { head = 50 }\nclear = false\n",
        "[tools.bash]\ntruncate = { head = 20, tail = 30, max_bytes = 300 }\n",
        "[tools.bash]\ntruncate = { tail = 0 }\nclear = true\n",
        "[tools.'*']\ntruncate = false\n",
    ]);
    (trigger, keep, at_least, inputs, exclude, placeholder, how, tools).prop_map(
        |(trigger, keep, at_least, inputs, exclude, placeholder, how, tools)| {
            format!("[clear_tool_results]\nwhen = 'any'\n{trigger}{keep}{at_least}{inputs}{exclude}{placeholder}{how}{tools}")
        },
    )
}

/// A policy that `check-config` takes: results are cut to no less than the longest notice.
fn settings(policy: &str) -> PlanSettings {
    let mut settings: PlanSettings = toml::from_str(policy).unwrap();
    settings.truncate_tool_results.max_bytes +=
        settings.truncate_tool_results.longest_notice(&settings.recall, settings.language);
    settings
}

fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").unwrap()
}

fn plan(settings: &PlanSettings, meter: &Meter, body: &Bytes) -> (Plan, Bytes) {
    let keys = Keys::new([1; 32]);
    let context = PlanContext {
        strings: StringIndex::EMPTY,
        meter,
        calibration: Calibration::Table,
        look_up: LookUp::Done,
        keys: &keys,
        caller: keys.caller(b"me"),
        offload: Offload::Possible,
        summaries: &NoSummaries,
        summarize: SummaryTiming::Triggered,
        cold_passes: ColdPasses::At(&[]),
        sent: Sent::Assumed,
        strips_now: false,
        in_place: None,
        answers: &NoAnswers,
    };
    let plan = Policy::new(settings).plan(dialect(), body, &context).unwrap();
    let output = Bytes::from(splice(body, &plan.splices).concat());
    (plan, output)
}

/// The texts of the results of a body, in order.
fn texts(body: &Bytes) -> Vec<String> {
    let conversation = dialect().parse(body).unwrap();
    let results = conversation.units.iter().filter(|message| message.role == Role::Tool);
    let spans = results.filter_map(|message| message.content).flat_map(|content| dialect().texts(body, content));
    spans.map(|text| strings::text(body, text).unwrap().into_owned()).collect()
}

/// Handles and numbers of other digits may make so many tokens more or less.
const LUCK: usize = 16;

/// A body, what it became, and what that became.
struct Passes<'a> {
    settings: &'a PlanSettings,
    meter: &'a Meter,
    bodies: [&'a Bytes; 3],
    plans: [&'a Plan; 2],
}

impl Passes<'_> {
    /// Whether the placeholder of what a truncated text has left, which names another handle and other numbers than the
    /// placeholder of the whole would, decides by a few tokens: that the text is cleared after all, or that a pass is.
    fn differ_by_luck(&self) -> bool {
        let [came, once, twice] = self.bodies;
        let gauge = self.meter.for_model(dialect().parse(came).unwrap().model.as_deref());
        let came = texts(came);
        let changed: Vec<_> = texts(once).into_iter().zip(texts(twice)).filter(|(once, twice)| once != twice).collect();
        let is_near = |(once, twice): &(String, String)| gauge.text(once) <= gauge.text(twice) + LUCK;
        let were_cut = changed.iter().all(|(once, _)| !came.contains(once));
        // Placeholders may be of any length where they need not be shorter than what they replace.
        let longest = texts(twice).iter().filter(|text| !came.contains(text)).map(|text| gauge.text(text)).max();
        let luck = if self.settings.clear_tool_results.growth_guard {
            LUCK * changed.len()
        } else {
            (LUCK + longest.unwrap_or_default()) * texts(twice).len()
        };
        (were_cut && changed.iter().all(is_near)) || self.frees_nearly_too_little(luck)
    }

    /// Whether a trigger of messages alone counts from the last pass on: an edited body does not show where that was made.
    fn counts_from_the_last_pass(&self) -> bool {
        let conditions = &self.settings.clear_tool_results.trigger.0;
        conditions.iter().any(|condition| condition.tokens.is_none() && condition.fraction.is_none())
    }

    /// Whether the trigger holds only with the texts that `filter_tool_calls` put between two answers. A replay counts none
    /// of them, as their places in earlier requests depend on what was removed since.
    fn parting_texts_decide(&self) -> bool {
        let changes = &self.plans[0].report.changes;
        let n_texts = changes.iter().filter(|change| matches!(change.action, Action::InsertText { .. })).count();
        let mut settings = self.settings.clone();
        for tokens in settings.clear_tool_results.trigger.0.iter_mut().filter_map(|condition| condition.tokens.as_mut())
        {
            *tokens += LUCK * n_texts;
        }
        n_texts > 0 && plan(&settings, self.meter, self.bodies[1]).0.is_empty()
    }

    /// Whether the texts in place of results that were removed decide: in an edited body they begin turns.
    fn texts_for_results_decide(&self) -> bool {
        let is_text =
            |entry: &&str| [REMOVED_RESULT, "[此处的工具结果已被移动或移除。]"].iter().any(|text| entry.contains(text));
        let body = std::str::from_utf8(self.bodies[1]).unwrap();
        let texts: Vec<_> = bodies::elements(body.as_bytes()).into_iter().filter(is_text).collect();
        let without = texts.iter().fold(body.to_owned(), |body, text| body.replace(&format!(",{text}"), ""));
        !texts.is_empty() && plan(self.settings, self.meter, &Bytes::from(without)).0.is_empty()
    }

    fn frees_nearly_too_little(&self, luck: usize) -> bool {
        let [first, again] = self.plans;
        let clear = &self.settings.clear_tool_results;
        let trigger = clear.trigger.0.iter().filter_map(|condition| condition.tokens).min();
        let at_least = match clear.clear_at_least {
            Some(AtLeast::Tokens(tokens)) => tokens,
            Some(AtLeast::Auto) => 0,
            None => trigger.unwrap_or_default() / 7,
        };
        let freed = again
            .report
            .tokens_before
            .zip(again.report.tokens_after)
            .map(|(before, after)| before.saturating_sub(after));
        first.report.left_out.iter().any(|left_out| left_out.why == SkipReason::TooLittle)
            && freed.is_some_and(|freed| freed < at_least + luck)
    }
}

/// Whether a message is a result without an id, or has a call without one.
fn lacks_id(message: &Message) -> bool {
    let of_result = message.result_of.as_deref().is_some_and(|id| ["\"\"", "null"].contains(&id));
    of_result || ["\"id\":\"\"", "\"id\":null"].iter().any(|call| message.json.contains(call))
}

proptest! {
    /// In the usual order, where each edit sees what those before it have left, and nothing came late: a result that was
    /// moved counts as read after the place that it came from.
    #[test]
    fn an_edited_body_needs_no_edit_under_any_policy(
        policy in policy(),
        layout in layout(),
        messages in prop_oneof![2 => long_steps(0..14), 1 => damaged(), 1 => damaged_of(long_steps(0..12).boxed())],
        counter in prop::sample::select(&[Counter::Estimate, Counter::Estimate, Counter::Exact][..]),
    ) {
        let (settings, body) = (settings(&policy), body(&layout, &messages));
        let meter = Meter::new(&tokens::Settings { counter, ..tokens::Settings::default() }, &[]);
        let (first, once) = plan(&settings, &meter, &body);
        if first.report.changes.iter().all(|change| !matches!(change.action, Action::Move { .. })) {
            let (again, twice) = plan(&settings, &meter, &once);
            let passes =
                Passes { settings: &settings, meter: &meter, bodies: [&body, &once, &twice], plans: [&first, &again] };
            let is_enough = again.is_empty() || passes.differ_by_luck() || passes.counts_from_the_last_pass();
            let is_enough = is_enough || first.report.regrets.keep_doubled || passes.parting_texts_decide();
            let is_enough = is_enough || passes.texts_for_results_decide();
            // Lines that came truncated are lines like others; those that are truncated here have no pointers.
            let is_pointer = |change: &Change| matches!(change.action, Action::Deduplicate { .. });
            let was_truncated = |change: &Change| matches!(change.action, Action::Truncate { .. });
            let is_enough = is_enough
                || (first.report.changes.iter().any(was_truncated) && again.report.changes.iter().all(is_pointer));
            // Once a call or a result without an id has left its batch, the results of the others can be put in order.
            let is_move = |change: &Change| matches!(change.action, Action::Move { .. });
            let is_order = validator::check_order(&once).is_err() && again.report.changes.iter().all(is_move);
            // Which call a result without an id answers shows once its batch lacks no result.
            let entries = bodies::elements(&once);
            let is_known_now = again.report.changes.iter().all(|change| match change.action {
                Action::Drop { message }
                | Action::Truncate { message }
                | Action::Deduplicate { message }
                | Action::Clear { message } => !entries[message].contains("\"tool_call_id\":\"call_"),
                _ => false,
            });
            let is_enough = is_enough || ((is_order || is_known_now) && messages.iter().any(lacks_id));
            prop_assert!(is_enough, "{}\n{}\n{}\n{}", policy, first, String::from_utf8_lossy(&once), again);
        }
    }
}
