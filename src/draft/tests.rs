//! Decisions become splices: small cases by hand, then all combinations against a naive reconstruction of the array.

use proptest::prelude::*;

use super::*;
use crate::{dialect, plan::Plan, span::splice, summary::NoMemory, tokens};

const CALLER: &str = r#"{"role":"assistant","tool_calls":[{"id":"c"}]}"#;
const PLACED: &str = r#"{"role":"tool","tool_call_id":"c","content":"new"}"#;

/// What a test asks of a draft.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Drop(usize),
    Move(usize, usize),
    Insert(usize),
}

/// Lets somebody write on the draft of a body.
fn draft<T>(body: &Bytes, offload: Offload, write: impl FnOnce(&mut Draft<'_>) -> T) -> (T, Plan) {
    let dialect = dialect::for_path("/chat/completions").unwrap();
    let conversation = dialect.parse(body).unwrap();
    let (meter, keys) = (Meter::new(&tokens::Settings::default(), &[]), Keys::new([0; 32]));
    let situation = Situation {
        meter: &meter,
        keys: &keys,
        caller: keys.caller(&[]),
        offload,
        summaries: &NoMemory,
        summarize: When::Triggered,
    };
    let recall = recall::Settings::default();
    let source = Source { dialect, body, conversation: &conversation };
    let mut draft = Draft::new(source, &situation, &recall, Language::En);
    let done = write(&mut draft);
    (done, draft.finish())
}

fn ask(body: &Bytes, asked: &[Ask]) -> (Vec<bool>, Plan) {
    draft(body, Offload::Possible, |draft| ask_of(draft, asked))
}

fn ask_of(draft: &mut Draft<'_>, asked: &[Ask]) -> Vec<bool> {
    asked
        .iter()
        .map(|&ask| match ask {
            Ask::Drop(message) => draft.drop_result("e", message),
            Ask::Move(message, behind) => draft.move_result("e", message, behind),
            Ask::Insert(behind) => draft.insert_result("e", 0, behind, "new"),
        })
        .collect()
}

/// In `template`, `C` stands for a message with a call, `0` to `9` for results; in `expected` also `+` for an inserted
/// one.
fn check(template: &str, asked: &[Ask], expected: &str) {
    let write = |template: &str| {
        let mut body = r#"{"messages":"#.to_owned();
        body.extend(template.chars().map(|c| match c {
            'C' => CALLER.to_owned(),
            '+' => PLACED.to_owned(),
            '0'..='9' => format!(r#"{{"role":"tool","content":{c}}}"#),
            _ => c.to_string(),
        }));
        Bytes::from(body + "}")
    };
    let body = write(template);
    let (_, plan) = ask(&body, asked);
    let output = splice(&body, &plan.splices).concat();
    assert_eq!(String::from_utf8(output.clone()).unwrap(), String::from_utf8(write(expected).to_vec()).unwrap());
    assert_eq!(plan.report.bytes_after, output.len());
}

#[test]
fn a_dropped_message_takes_along_what_stands_before_it() {
    check("[ C ,  1,2\n, 3 ]", &[Ask::Drop(1)], "[ C,2\n, 3 ]");
    check("[ C ,  1,2\n, 3 ]", &[Ask::Drop(3)], "[ C ,  1,2 ]");
    check("[ C ,  1,2\n, 3 ]", &[Ask::Drop(1), Ask::Drop(2)], "[ C\n, 3 ]");
}

#[test]
fn the_first_messages_take_along_what_stands_behind_them() {
    check("[ 0 ,  1,2\n, 3 ]", &[Ask::Drop(0)], "[ 1,2\n, 3 ]");
    check("[ 0 ,  1,2\n, 3 ]", &[Ask::Drop(1), Ask::Drop(0), Ask::Drop(2)], "[ 3 ]");
    check("[ 0 ,  1 ]", &[Ask::Drop(0), Ask::Drop(1)], "[  ]");
}

#[test]
fn an_inserted_message_stands_directly_behind() {
    check("[ C , 1 ]", &[Ask::Insert(0)], "[ C,+ , 1 ]");
    check("[ C , 1 ]", &[Ask::Insert(1)], "[ C , 1,+ ]");
    check("[ C , 1 , 2 ]", &[Ask::Insert(1), Ask::Drop(1)], "[ C,+ , 2 ]");
    check("[ C , 1 , 2 ]", &[Ask::Insert(0), Ask::Drop(0)], "[ +,1 , 2 ]");
    check("[ C , 1 ]", &[Ask::Insert(1), Ask::Drop(0), Ask::Drop(1)], "[ + ]");
}

#[test]
fn a_moved_message_keeps_its_bytes() {
    check("[ C , 1, 2 ]", &[Ask::Move(2, 0)], "[ C,2 , 1 ]");
    check("[ C , 1, 2 ]", &[Ask::Move(2, 0), Ask::Insert(0), Ask::Move(1, 0)], "[ C,2,+,1 ]");
}

#[test]
fn instructions_at_the_beginning_stay() {
    let body = Bytes::from_static(br#"{"messages":[{"role":"system"},{"role":"developer"},{"role":"tool"}]}"#);
    let (done, plan) = ask(&body, &[Ask::Drop(0), Ask::Move(1, 2)]);
    assert_eq!(done, [false, false]);
    assert!(plan.is_empty());
}

#[test]
fn the_first_claim_wins() {
    let body = Bytes::from_static(br#"{"messages":[{"role":"user"},{"role":"tool"}]}"#);
    let (done, plan) = ask(&body, &[Ask::Drop(1), Ask::Move(1, 0), Ask::Drop(1), Ask::Drop(2), Ask::Insert(0)]);
    assert_eq!(done, [true, false, false, false, false]);
    assert_eq!(plan.report.changes.len(), 1);
}

#[test]
fn a_large_moved_message_is_not_copied() {
    let body =
        format!(r#"{{"messages":[{CALLER},{{"role":"user"}},{{"role":"tool","content":"{}"}}]}}"#, "x".repeat(9000));
    let body = Bytes::from(body);
    let (_, plan) = ask(&body, &[Ask::Move(2, 0)]);
    let range = body.as_ptr_range();
    assert!(plan.splices.iter().any(|splice| splice.with.len() > 9000 && range.contains(&splice.with.as_ptr())));
}

#[derive(serde::Deserialize)]
struct Parsed<'a> {
    #[serde(borrow)]
    messages: Vec<&'a serde_json::value::RawValue>,
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let one = prop_oneof![
        (0..7usize).prop_map(Ask::Drop),
        (0..7usize, 0..7usize).prop_map(|(message, behind)| Ask::Move(message, behind)),
        (0..7usize).prop_map(Ask::Insert),
    ];
    prop::collection::vec(one, 0..10)
}

/// The texts of the array's elements after `asked`, the slow way.
fn reference(elements: &[String], asked: &[Ask]) -> Vec<String> {
    let mut rows: Vec<(Option<String>, Vec<String>)> =
        elements.iter().map(|element| (Some(element.clone()), Vec::new())).collect();
    for &ask in asked {
        match ask {
            Ask::Drop(message) if message < rows.len() => rows[message].0 = None,
            Ask::Move(message, behind) if message < rows.len() && behind < rows.len() => {
                let moved = rows[message].0.take();
                rows[behind].1.extend(moved);
            }
            Ask::Insert(behind) if behind < rows.len() => rows[behind].1.push(PLACED.to_owned()),
            _ => {}
        }
    }
    rows.into_iter().flat_map(|(stays, added)| stays.into_iter().chain(added)).collect()
}

proptest! {
    #[test]
    fn splices_make_what_the_decisions_say(
        large in prop::collection::vec(any::<bool>(), 0..6),
        spaces in prop::collection::vec("[ \n\t]{0,2}", 16),
        asked in asks(),
    ) {
        let mut elements = vec![CALLER.to_owned()];
        elements.extend(large.iter().enumerate().map(|(n, &large)| {
            format!(r#"{{"role":"tool", "content":"{n}{}"}}"#, "x".repeat(if large { 5000 } else { 0 }))
        }));
        let head = format!("{}{{\"messages\":[{}", spaces[0], spaces[1]);
        let mut text = head.clone();
        for (n, element) in elements.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            text = text + comma + &spaces[2 * n + 2] + element + &spaces[2 * n + 3];
        }
        let tail = format!("]{} }}", spaces[0]);
        let body = Bytes::from(text + &tail);
        let (_, plan) = ask(&body, &asked);
        let output = String::from_utf8(splice(&body, &plan.splices).concat()).unwrap();

        let parsed: Parsed<'_> = serde_json::from_str(&output).unwrap();
        let got: Vec<String> = parsed.messages.iter().map(|raw| raw.get().to_owned()).collect();
        let expected = reference(&elements, &asked);
        prop_assert_eq!(plan.report.messages_after, expected.len());
        prop_assert_eq!(plan.report.bytes_after, output.len());
        prop_assert_eq!(got, expected);
        prop_assert!(output.starts_with(&head));
        prop_assert!(output.ends_with(&tail));
        prop_assert!(plan.splices.is_sorted_by(|a, b| a.span.end <= b.span.start));
    }
}
