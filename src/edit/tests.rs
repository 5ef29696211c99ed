//! Conversations in shorthand, one word a message, for the tests of all edits that make a conversation shorter.
//!
//! - `s`, `u`, `a`: a system, user and plain assistant message
//! - `c:1,2`: an assistant message without text that calls `1` and `2`; `C:1` has text, too. A call is of tool `bash`;
//!   `read_file/1` is one of another tool. What follows `^` is how many bytes its argument has. Call 27 has the
//!   arguments of call 1, and so on
//! - `t:1*400`: a result of 400 bytes; without a length, of two
//!
//! In what comes out, `t:1!` is a result that was cleared, `t:1~` one that was truncated, and `1-` a call whose arguments
//! were cleared. Tokens are a quarter of bytes.
#![expect(clippy::disallowed_types, reason = "messages are made here, and looked at by eyes of our own")]

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    dialect::{self, Dialect},
    draft::{Calibration, ColdPasses, LookUp, Offload, PlanContext, Sent, SummaryTiming},
    handler::NoAnswers,
    payload::Keys,
    plan::{Action, Plan, Sizes},
    planner::{EditName, PlanSettings, Policy},
    span::splice,
    string_index::StringIndex,
    summary::{NoSummaries, SummaryIndex},
    tokens::{self, Countable, Counter, Meter, REQUEST_OVERHEAD},
};

mod ended_reasoning;
mod forms;
mod gemini;
mod item_types;
mod media_limits;
mod messages;
mod programs_and_tools;
mod several_results;
mod window;

pub(super) const HTTP: &str = "recall = { via = \"http\", public_url = \"http://h\" }\n";

fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").unwrap()
}

/// Lines of text, as long as they are asked to be.
pub(super) fn text(n_bytes: usize) -> String {
    let mut text = String::new();
    for n in 0.. {
        if text.len() >= n_bytes {
            break;
        }
        text = text + "line " + &n.to_string() + "\n";
    }
    text.truncate(n_bytes);
    text
}

/// The name of the argument of a call: those of 1 to 26 differ, and 27 repeats 1.
fn argument(call: &str) -> String {
    let id = call.rsplit('/').next().unwrap_or_default();
    let letter = id.parse::<u8>().map(|n| char::from(b'a' + (n + 25) % 26));
    letter.map_or_else(|_| id.to_uppercase(), String::from)
}

fn message(word: &str) -> Value {
    let length = |word: &str| word.parse::<usize>().unwrap();
    match word.split_once(':') {
        None => {
            let role = match word {
                "s" => "system",
                "u" => "user",
                _ => "assistant",
            };
            json!({"role": role, "content": "hi"})
        }
        Some((kind @ ("c" | "C"), calls)) => {
            let call = |call: &str| {
                let (call, n_bytes) = call.split_once('^').unwrap_or((call, "0"));
                let name = call.rsplit_once('/').map_or("bash", |(name, _)| name);
                let arguments = json!({argument(call): text(length(n_bytes))}).to_string();
                json!({"id": call, "type": "function", "function": {"name": name, "arguments": arguments}})
            };
            let calls: Vec<_> = calls.split(',').map(call).collect();
            let content = if kind == "C" { json!("hi") } else { Value::Null };
            json!({"role": "assistant", "content": content, "tool_calls": calls})
        }
        Some((_, result)) => {
            let (id, n_bytes) = result.split_once('*').unwrap_or((result, "2"));
            json!({"role": "tool", "tool_call_id": id, "content": text(length(n_bytes))})
        }
    }
}

pub(super) fn body(words: &str) -> Bytes {
    let messages: Vec<_> = words.split_whitespace().map(message).collect();
    body_of(&messages)
}

pub(super) fn body_of(messages: &[Value]) -> Bytes {
    Bytes::from(json!({"messages": messages}).to_string())
}

/// The word for a message that has come out.
fn word(message: &Value) -> String {
    let content = message["content"].as_str().unwrap_or_default();
    match (message["role"].as_str().unwrap(), message["tool_calls"].as_array()) {
        ("assistant", Some(calls)) => {
            let call = |call: &Value| {
                let id = call["id"].as_str().unwrap();
                let arguments = call["function"]["arguments"].as_str().unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                let length = arguments.as_object().unwrap().values().next().and_then(Value::as_str).map(str::len);
                match length {
                    None => format!("{id}-"),
                    Some(0) => id.to_owned(),
                    Some(length) => format!("{id}^{length}"),
                }
            };
            let kind = if content.is_empty() { 'c' } else { 'C' };
            format!("{kind}:{}", calls.iter().map(call).collect::<Vec<_>>().join(","))
        }
        ("tool", _) => {
            let id = message["tool_call_id"].as_str().unwrap();
            match content.len() {
                _ if content.starts_with("[Cleared: ") => format!("t:{id}!"),
                _ if content.contains("left out") => format!("t:{id}~"),
                2 => format!("t:{id}"),
                length => format!("t:{id}*{length}"),
            }
        }
        (role, _) => role.chars().take(1).collect(),
    }
}

pub(super) fn words(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["messages"].as_array().unwrap().iter().map(word).collect::<Vec<_>>().join(" ")
}

/// All that a plan depends on beside the body and the policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct World<'w> {
    pub(super) caller: &'w [u8],
    pub(super) offload: Offload,
    pub(super) summaries: &'w dyn SummaryIndex,
    pub(super) look_up: LookUp,
    pub(super) when: SummaryTiming,
    pub(super) cold: &'w [usize],
}

impl Default for World<'_> {
    fn default() -> Self {
        Self {
            caller: &[],
            offload: Offload::Possible,
            summaries: &NoSummaries,
            look_up: LookUp::Done,
            when: SummaryTiming::Triggered,
            cold: &[],
        }
    }
}

impl World<'_> {
    pub(super) fn plan(&self, body: &Bytes, policy: &str) -> (Plan, Bytes) {
        let mut settings: PlanSettings = toml::from_str(policy).unwrap();
        // All texts of the tests are alike.
        settings
            .policy
            .edits
            .retain(|edit| *edit != EditName::DeduplicateToolResults || policy.contains("deduplicate"));
        let keys = Keys::new([0; 32]);
        let strings = StringIndex::of_all(body, 61);
        let context = PlanContext {
            strings: &strings,
            meter: &METER,
            calibration: Calibration::Table,
            look_up: self.look_up,
            keys: &keys,
            caller: keys.caller(self.caller),
            offload: self.offload,
            summaries: self.summaries,
            summarize: self.when,
            cold_passes: ColdPasses::At(self.cold),
            sent: Sent::Assumed,
            strips_now: false,
            in_place: None,
            answers: &NoAnswers,
        };
        let plan = Policy::new(&settings).plan(dialect(), body, &context).unwrap();
        let output = Bytes::from(splice(body, &plan.splices).concat());
        assert_eq!(plan.report.bytes_after, output.len());
        if let Some(tokens_after) = plan.report.tokens_after {
            assert_eq!(tokens_after, tokens(&output), "{}", String::from_utf8_lossy(&output));
        }
        (plan, output)
    }
}

/// What all tests count with, so that each meets what the others have left in its memory.
static METER: LazyLock<Meter> = LazyLock::new(meter);

fn meter() -> Meter {
    Meter::new(&tokens::Settings { counter: Counter::Estimate, ..tokens::Settings::default() }, &[])
}

/// The tokens of a body, as what has counted nothing before finds them.
fn tokens(body: &[u8]) -> usize {
    let (dialect, gauge) = (dialect(), meter().for_model(None));
    let conversation = dialect.parse(body).unwrap();
    let messages = conversation.units.iter().map(|message| dialect.element_tokens(&gauge, message.span.of(body)));
    let tools = conversation.tools.map_or(0, |tools| dialect.tokens(&gauge, Countable::Tools, tools.of(body)));
    let format = conversation.format.map_or(0, |format| dialect.tokens(&gauge, Countable::Format, format.of(body)));
    REQUEST_OVERHEAD + tools + format + messages.sum::<usize>()
}

pub(super) fn plan_with(body: &Bytes, policy: &str, offload: Offload) -> (Plan, Bytes) {
    World { offload, ..World::default() }.plan(body, policy)
}

pub(super) fn plan(body: &Bytes, policy: &str) -> (Plan, Bytes) {
    plan_with(body, policy, Offload::Possible)
}

/// The messages of a body, as JSON.
pub(super) fn messages(body: &[u8]) -> Vec<Value> {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["messages"].as_array().unwrap().clone()
}

/// Checks what comes out. Where a result has arrived late, what comes out does not say so any more.
pub(super) fn check_late(input: &str, policy: &str, expected: &str) -> (Plan, Bytes) {
    let (plan, output) = plan(&body(input), policy);
    assert_eq!(words(&output), expected, "{input}\n{policy}\n{plan}");
    assert_eq!(plan.is_empty(), plan.report.changes.is_empty());
    (plan, output)
}

/// The same, and that it comes out as it is when it goes in again.
pub(super) fn check(input: &str, policy: &str, expected: &str) -> Plan {
    let (plan, output) = check_late(input, policy, expected);
    let (again, _) = self::plan(&output, policy);
    assert!(again.is_empty(), "{input}\n{policy}\n{again}");
    plan
}

/// Checks that nothing is done.
pub(super) fn check_untouched(input: &str, policy: &str) -> Plan {
    check(input, policy, input)
}

/// The message that has the result of a call, and its tokens.
pub(super) fn result_of(body: &[u8], id: &str) -> Option<(usize, usize)> {
    let conversation = dialect().parse(body).unwrap();
    let results = messages(body).into_iter().position(|message| message["tool_call_id"] == id);
    results.map(|at| (at, dialect().element_tokens(&meter().for_model(None), conversation.units[at].span.of(body))))
}

#[test]
fn a_change_says_the_tokens_of_its_result_before_and_after() {
    let policy = format!(
        "{HTTP}[truncate_tool_results]\nmax_bytes = 900\n[filter_tool_calls]\nmax_tool_calls = 2\n\
         [clear_tool_results]\nwhen = 'any'\ntrigger = {{ tokens = 1 }}\nkeep = {{ results = 1 }}"
    );
    let body = body("s u c:1 t:1*2000 u c:2 t:2*3000 c:3 t:3*4000 u a u");
    let (plan, output) = plan(&body, &policy);
    assert_eq!(words(&output), "s u u c:2 t:2! c:3 t:3~ u a u");
    for (id, wanted) in [("1", "drop"), ("2", "clear"), ("3", "truncate")] {
        let (message, before) = result_of(&body, id).unwrap();
        let after = result_of(&output, id).map_or(0, |(_, tokens)| tokens);
        let of_it = |action: Action| match action {
            Action::Drop { message: it } | Action::Clear { message: it } | Action::Truncate { message: it } => {
                it == message
            }
            _ => false,
        };
        let change = plan.report.changes.iter().find(|change| of_it(change.action)).unwrap();
        assert_eq!(change.action.label(), wanted);
        assert_eq!(change.tokens, Some(Sizes { before, after }), "{wanted}");
    }
}

#[test]
fn what_is_beside_the_messages_counts() {
    let mut request: Value = serde_json::from_slice(&body("u c:1 t:1*2000 c:2 t:2*2000 a u")).unwrap();
    request["tools"] = json!([{"type": "function", "function": {"name": "bash", "description": text(900)}}]);
    request["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "x", "description": text(700)}});
    let body = Bytes::from(request.to_string());
    let clears_from = |least: usize| {
        let policy = format!(
            "{HTTP}[clear_tool_results]\nwhen = 'any'\ntrigger = {{ tokens = {least} }}\nkeep = {{ results = 0 }}"
        );
        !plan(&body, &policy).0.report.changes.is_empty()
    };
    let all = tokens(&body);
    assert!(clears_from(all) && !clears_from(all + 1));
}

#[test]
fn a_message_that_a_call_has_left_is_counted_anew() {
    let count = "[clear_tool_results]\nwhen = 'any'\ntrigger = { tokens = 200 }\n";
    let left_out = "[filter_tool_calls]\nmax_tool_calls = 1\n";
    let body = body("u c:1^900,2 t:1 t:2 u a u");
    let (before, _) = plan(&body, count);
    let (after, output) = plan(&body, &format!("{left_out}{count}"));
    assert_eq!(words(&output), "u c:2 t:2 u a u");
    assert_eq!(after.report.tokens_before, before.report.tokens_before);
}
