//! What holds for every conversation.

use abridge_proxy::{
    dialect::{self, Dialect},
    edit::patch_tool_calls::{self, Orphans},
    engine::{EditedBody, edit_body},
    planner::{PlanSettings, Planner},
    replay::planner_from_toml,
};
use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use serde_json::value::RawValue;

use crate::support::{
    bodies,
    conversations::{Layout, Message, body, damaged, layout, steps},
    validator,
};

const PLACEHOLDER: &str = "<no result for {tool_name}, {tool_call_id}>";

fn dialect() -> &'static dyn Dialect {
    dialect::for_path("/v1/chat/completions").unwrap()
}

fn planner(orphans: Orphans) -> Planner {
    let patch_tool_calls =
        patch_tool_calls::Settings { template: Some(PLACEHOLDER.to_owned()), orphans, handler: None };
    Planner::new(PlanSettings { patch_tool_calls, ..PlanSettings::default() })
}

fn edit(orphans: Orphans, body: &Bytes) -> EditedBody {
    edit_body(&planner(orphans), dialect(), body.clone())
}

/// The edited body in one piece.
fn output(orphans: Orphans, body: &Bytes) -> Bytes {
    edit(orphans, body).body.concat().into()
}

fn is_same_allocation(body: &Bytes, edited: &EditedBody) -> bool {
    matches!(edited.body.as_slice(), [only] if only.as_ptr_range() == body.as_ptr_range())
}

/// The elements of the message array as they are written.
fn elements(body: &[u8]) -> Vec<String> {
    bodies::elements(body).into_iter().map(str::to_owned).collect()
}

/// The text in place of a result that was moved or removed.
pub(crate) const REMOVED_RESULT: &str = "[A tool result was moved or removed here.]";

/// Whether the element of an edited array is one that abridge wrote.
fn is_ours(element: &str) -> bool {
    element.contains("<no result for ") || element.contains(REMOVED_RESULT)
}

/// The messages that are not results, and the results in sorted order.
fn parted(messages: &[Message]) -> (Vec<String>, Vec<String>) {
    let (results, others): (Vec<_>, Vec<_>) = messages.iter().partition(|message| message.result_of.is_some());
    let texts = |messages: Vec<&Message>| messages.iter().map(|message| message.json.clone()).collect::<Vec<_>>();
    let mut results = texts(results);
    results.sort();
    (texts(others), results)
}

proptest! {
    #[test]
    fn without_edits_a_body_is_the_one_that_came(layout in layout(), messages in damaged()) {
        let body = body(&layout, &messages);
        let none = planner_from_toml("policy.edits = []").unwrap();
        let edited = edit_body(&none, dialect(), body.clone());
        prop_assert!(is_same_allocation(&body, &edited));
        prop_assert!(edited.report.is_some_and(|report| report.changes.is_empty()));
    }

    #[test]
    fn a_valid_conversation_is_the_one_that_came(layout in layout(), messages in steps(0..8)) {
        let body = body(&layout, &messages);
        prop_assert_eq!(validator::check(&body), Ok(()));
        for orphans in [Orphans::Drop, Orphans::Keep] {
            let edited = edit(orphans, &body);
            let is_same = is_same_allocation(&body, &edited);
            prop_assert_eq!(is_same, validator::check_order(&body).is_ok(), "{:?}", edited.report);
        }
    }

    #[test]
    fn any_conversation_becomes_valid(layout in layout(), messages in damaged()) {
        let body = body(&layout, &messages);
        let output = output(Orphans::Drop, &body);
        prop_assert_eq!(validator::check(&output), Ok(()));
        prop_assert_eq!(validator::check_order(&output), Ok(()));
        if validator::check(&body).and_then(|()| validator::check_order(&body)).is_ok() {
            prop_assert_eq!(body, output);
        }
    }

    #[test]
    fn what_is_not_a_result_keeps_its_bytes_and_its_order(layout in layout(), messages in damaged(), keep in any::<bool>()) {
        let orphans = if keep { Orphans::Keep } else { Orphans::Drop };
        let output = output(orphans, &body(&layout, &messages));
        let (others, mut results) = parted(&messages);
        let after = elements(&output);
        let theirs: Vec<String> = after.iter().filter(|element| !is_ours(element)).cloned().collect();
        let others_after: Vec<String> = theirs.iter().filter(|element| others.contains(element)).cloned().collect();
        prop_assert_eq!(&others_after, &others);
        for result in theirs.iter().filter(|element| !others.contains(element)) {
            let at = results.iter().position(|known| known == result);
            prop_assert!(at.is_some(), "{} is not what came, or came less often", result);
            results.remove(at.unwrap());
        }
        if keep {
            prop_assert!(results.is_empty(), "lost: {:?}", results);
        }
    }

    #[test]
    fn what_is_outside_the_array_keeps_its_bytes(layout in layout(), messages in damaged()) {
        let output = output(Orphans::Drop, &body(&layout, &messages));
        prop_assert!(output.starts_with(layout.head.as_bytes()));
        prop_assert!(output.ends_with(layout.tail.as_bytes()));
    }

    #[test]
    fn the_report_counts_what_is_there(layout in layout(), messages in damaged()) {
        let body = body(&layout, &messages);
        let edited = edit(Orphans::Drop, &body);
        let output = edited.body.concat();
        let report = edited.report.unwrap();
        prop_assert_eq!((report.messages_before, report.bytes_before), (messages.len(), body.len()));
        prop_assert_eq!((report.messages_after, report.bytes_after), (elements(&output).len(), output.len()));
        prop_assert_eq!(report.changes.is_empty(), is_same_allocation(&body, &edit(Orphans::Drop, &body)));
    }

    #[test]
    fn the_same_body_gives_the_same_plan(layout in layout(), messages in damaged()) {
        let body = body(&layout, &messages);
        let copy = Bytes::copy_from_slice(&body);
        prop_assert_eq!(planner(Orphans::Drop).plan(dialect(), &body), planner(Orphans::Drop).plan(dialect(), &copy));
    }

    #[test]
    fn an_edited_body_needs_no_edit(layout in layout(), messages in damaged(), keep in any::<bool>()) {
        let orphans = if keep { Orphans::Keep } else { Orphans::Drop };
        let output = output(orphans, &body(&layout, &messages));
        let again = planner(orphans).plan(dialect(), &output).unwrap();
        prop_assert!(again.is_empty(), "{}\n{}", String::from_utf8_lossy(&output), again);
    }

    /// There is one exception, below. And the text at the end in place of a result is not sent again if the conversation goes on
    /// without an answer.
    #[test]
    fn growth_by_whole_steps_leaves_the_beginning_alone(
        layout in layout(),
        messages in damaged(),
        more in steps(1..4),
        keep in any::<bool>(),
    ) {
        let orphans = if keep { Orphans::Keep } else { Orphans::Drop };
        // Results without anything else stay, as an empty array would be refused; once there is more, they are dropped.
        prop_assume!(messages.is_empty() || messages.iter().any(|message| message.result_of.is_none()));
        let mut before = elements(&output(orphans, &body(&layout, &messages)));
        before.pop_if(|last| last.contains(REMOVED_RESULT) && !more[0].json.contains("\"assistant\""));
        let grown = [messages, more].concat();
        let after = elements(&output(orphans, &body(&layout, &grown)));
        prop_assert!(after.starts_with(&before), "{:?}\n{:?}", before, after);
    }

    #[test]
    fn nothing_panics_and_nothing_is_lost_on_other_bytes(
        bytes in vec(any::<u8>(), 0..60),
        text in "[\\[\\]{}:,\"a0]{0,20}",
    ) {
        for bytes in [bytes, format!("{{\"messages\":[{text}]}}").into_bytes()] {
            let body = Bytes::from(bytes);
            let edited = edit(Orphans::Drop, &body);
            prop_assert!(is_same_allocation(&body, &edited));
        }
    }

    #[test]
    fn a_damaged_body_goes_on_as_it_came(
        layout in layout(),
        messages in damaged(),
        at in any::<prop::sample::Index>(),
        byte in prop::sample::select(&b"{}[],:\"\\\x00\xff"[..]),
    ) {
        let mut bytes = body(&layout, &messages).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let body = Bytes::from(bytes);
        let valid = std::str::from_utf8(&body).is_ok() && serde_json::from_slice::<&RawValue>(&body).is_ok();
        if !valid {
            prop_assert!(is_same_allocation(&body, &edit(Orphans::Drop, &body)));
        }
    }
}

/// A real result that arrives late replaces its placeholder: the model is to see it, at the price of
/// the cached prefix from there on.
#[test]
fn a_late_result_replaces_its_placeholder() {
    let layout = Layout { head: r#"{"messages":["#.to_owned(), comma: ",".to_owned(), tail: "]}".to_owned() };
    let message = |json: &str| Message { json: json.to_owned(), result_of: None };
    let call = message(r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}}]}"#);
    let user = message(r#"{"role":"user","content":"well?"}"#);
    let late = message(r#"{"role":"tool","tool_call_id":"a","content":"done"}"#);

    let early = elements(&output(Orphans::Drop, &body(&layout, &[call.clone(), user.clone()])));
    assert!(is_ours(&early[1]), "{early:?}");
    let complete = elements(&output(Orphans::Drop, &body(&layout, &[call.clone(), user.clone(), late.clone()])));
    assert_eq!(complete, [call.json, late.json, user.json]);
}
