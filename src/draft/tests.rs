//! Decisions become splices: small cases by hand, then all combinations against a naive reconstruction of the array.

use proptest::prelude::*;

use super::*;
use crate::{
    dialect,
    handler::NoAnswers,
    payload::Keys,
    plan::{Action, Plan, SentFact, SentFacts},
    span::splice,
    string_index::StringIndex,
    summary::NoSummaries,
    tokens::{self, Meter},
};

mod texts;

const CALLER: &str = r#"{"role":"assistant","tool_calls":[{"id":"c"}]}"#;
const PLACED: &str = r#"{"role":"tool","tool_call_id":"c","content":"new"}"#;

/// A question of a test to a draft.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Drop(usize),
    Move(usize, usize),
    Insert(usize),
}

/// Lets someone write on the draft of a body.
fn draft<T>(body: &Bytes, offload: Offload, write: impl FnOnce(&mut Draft<'_>) -> T) -> (T, Plan) {
    draft_after(body, offload, Sent::Assumed, write)
}

/// The same when this is known of earlier requests.
fn draft_after<T>(
    body: &Bytes,
    offload: Offload,
    sent: Sent<'_>,
    write: impl FnOnce(&mut Draft<'_>) -> T,
) -> (T, Plan) {
    let dialect = dialect::for_path("/chat/completions").unwrap();
    let conversation = dialect.parse(body).unwrap();
    let (meter, keys) = (Meter::new(&tokens::Settings::default(), &[]), Keys::new([0; 32]));
    let context = PlanContext {
        strings: StringIndex::EMPTY,
        meter: &meter,
        calibration: Calibration::Table,
        look_up: LookUp::Done,
        keys: &keys,
        caller: keys.caller(&[]),
        offload,
        summaries: &NoSummaries,
        summarize: SummaryTiming::Triggered,
        cold_passes: ColdPasses::At(&[]),
        sent,
        strips_now: false,
        in_place: None,
        answers: &NoAnswers,
    };
    let recall = recall::Settings::default();
    let request = ParsedRequest { dialect, body, conversation: &conversation };
    let mut draft = Draft::new(request, &context, &recall, Language::En);
    let done = write(&mut draft);
    (done, *draft.finish())
}

fn ask(body: &Bytes, asked: &[Ask]) -> (Vec<bool>, Plan) {
    draft(body, Offload::Possible, |draft| ask_of(draft, asked))
}

fn ask_of(draft: &mut Draft<'_>, asked: &[Ask]) -> Vec<bool> {
    asked
        .iter()
        .map(|&ask| match ask {
            Ask::Drop(unit) => draft.drop_result("e", UnitIndex::new(unit)),
            Ask::Move(unit, behind) => draft.move_result("e", UnitIndex::new(unit), UnitIndex::new(behind), Some("-")),
            Ask::Insert(behind) => draft.insert_result("e", BlockIndex::new(0), UnitIndex::new(behind), "new"),
        })
        .collect()
}

/// In `template`, `C` means a message with a call, `0` to `9` for results; in `expected` also `+` for an inserted
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
fn a_mark_for_the_prompt_cache_is_no_part_of_a_content() {
    let body = |mark: &str| {
        Bytes::from(format!(
            r#"{{"messages":[{CALLER},{{"role":"tool","tool_call_id":"c","content":[{{"type":"text","text":"x"{mark}}}]}}]}}"#
        ))
    };
    let length = |body: &Bytes| draft(body, Offload::Possible, |draft| draft.content_len(UnitIndex::new(1))).0;
    let marked = body(r#","cache_control":{"type":"ephemeral"}"#);
    assert_eq!(length(&marked), length(&body("")));
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
fn messages_that_come_to_one_place_are_one_splice() {
    let body = Bytes::from(format!(r#"{{"messages":[{CALLER},{{"role":"user"}}]}}"#));
    let (_, plan) = ask(&body, &[Ask::Insert(0), Ask::Insert(0), Ask::Insert(0)]);
    assert_eq!(plan.splices.len(), 1);
}

/// A message that calls `a` and `b`, the result of `b`, one of no call, and what has been said since.
const ROUND: &str = r#"{"messages":[{"role":"system","content":"s"},
    {"role":"assistant","tool_calls":[{"id":"a","function":{"name":"ls"}}, {"id":"b"}]},
    {"role":"tool","tool_call_id":"b","content":"of b"},{"role":"tool","tool_call_id":"x","content":"of x"},
    {"role":"assistant","content":"done"},{"role":"user","content":"go"}]}"#;

fn places(draft: &Draft<'_>) -> Vec<(Option<usize>, Option<usize>)> {
    draft.rows().iter().map(|row| (row.unit.map(UnitIndex::get), row.call.map(BlockIndex::get))).collect()
}

/// Checks that the written bytes are never more than the draft has said, and hardly fewer.
fn check_bytes(body: &Bytes, n_bytes: usize, plan: &Plan) {
    let n_written = splice(body, &plan.splices).concat().len();
    assert_eq!(plan.report.bytes_after, n_written);
    assert!((n_written..n_written + 16).contains(&n_bytes), "{n_bytes} {n_written}");
}

#[test]
fn a_result_that_was_put_in_leaves_with_its_call() {
    let body = Bytes::from_static(ROUND.as_bytes());
    let (n_bytes, plan) = draft(&body, Offload::Possible, |draft| {
        assert!(draft.insert_result(
            "e",
            BlockIndex::new(0),
            UnitIndex::new(2),
            "a result of some length that was put in"
        ));
        assert_eq!(draft.insertions.len(), 1);
        let standing = [(Some(0), None), (Some(1), None), (Some(2), Some(1))];
        let behind = [(Some(3), None), (Some(4), None), (Some(5), None)];
        assert_eq!(places(draft), [&standing[..], &[(None, Some(0))], &behind].concat());
        let row = draft.rows()[3];
        assert!(draft.drop_round_trips("e", &[row], UnitIndex::new(4)));
        assert!(!draft.drop_round_trips("e", &[row], UnitIndex::new(4)));
        assert_eq!(places(draft), [&standing[..], &behind].concat());
        assert!(draft.has_calls(&draft.rows()[1]));
        draft.n_bytes
    });
    check_bytes(&body, n_bytes, &plan);
    assert_eq!(plan.report.changes.len(), 1, "that it was put in is moot");
}

#[test]
fn a_round_trip_leaves_whole_or_not_at_all() {
    let body = Bytes::from_static(ROUND.as_bytes());
    let (n_bytes, plan) = draft(&body, Offload::Possible, |draft| {
        let [result, orphan] = [2, 3].map(|n| draft.rows()[n]);
        assert!(draft.drop_round_trips("e", &[result], UnitIndex::new(4)));
        assert!(!draft.drop_round_trips("e", &[orphan], UnitIndex::new(4)), "it answers no call");
        draft.n_bytes
    });
    check_bytes(&body, n_bytes, &plan);
    assert_eq!(plan.report.messages_after, 5);
    // Not without its call, when the message that calls has been taken.
    let ((), plan) = draft(&body, Offload::Possible, |draft| {
        let row = draft.rows()[2];
        assert!(draft.drop_result("e", UnitIndex::new(1)));
        assert!(!draft.drop_round_trips("e", &[row], UnitIndex::new(4)));
    });
    assert_eq!(plan.report.messages_after, 5);
    // Nor one that answers no call and stands elsewhere now.
    let ((), plan) = draft(&body, Offload::Possible, |draft| {
        assert!(draft.move_result("e", UnitIndex::new(3), UnitIndex::new(1), Some("-")));
        let moved = *draft.rows().iter().find(|row| row.unit == Some(UnitIndex::new(3))).unwrap();
        assert!(!draft.drop_round_trips("e", &[moved], UnitIndex::new(4)));
    });
    assert_eq!(plan.report.messages_after, 6);
}

#[test]
fn what_has_not_been_read_stays() {
    let unread =
        ROUND.replace(r#",{"role":"user","content":"go"}"#, r#",{"role":"tool","tool_call_id":"a","content":"late"}"#);
    let body = Bytes::from(unread);
    let ((), plan) = draft(&body, Offload::Possible, |draft| {
        let rows = draft.rows();
        assert_eq!([2, 3, 5].map(|unit| draft.is_unread(UnitIndex::new(unit))), [false, false, true]);
        assert!(!draft.drop_round_trips("e", &[rows[5]], UnitIndex::new(4)));
    });
    assert!(plan.is_empty());
    // A call of the last message of the model has not been answered until the model has read that.
    let last = ROUND.replace(r#"{"role":"assistant","content":"done"},"#, "");
    let body = Bytes::from(last);
    let ((), plan) = draft(&body, Offload::Possible, |draft| {
        assert!(draft.insert_result("e", BlockIndex::new(0), UnitIndex::new(2), "put in"));
        let rows = draft.rows();
        assert!((2..5).all(|n| !draft.drop_round_trips("e", &[rows[n]], UnitIndex::new(4))));
    });
    assert_eq!(plan.report.changes.len(), 1);
}

/// All of a text is replaced, and nothing is stored.
const ANY: ReplaceOptions = ReplaceOptions { stored: false, smaller: false, media: false };

fn shorter(text: &ResultText<'_, '_>) -> TextCut {
    TextCut { from: 0, to: text.len, words: "-".to_owned() }
}

#[test]
fn what_is_not_to_be_touched_is_not_replaced() {
    let body = Bytes::from_static(ROUND.as_bytes());
    let ((), plan) = draft(&body, Offload::Possible, |draft| {
        let [instructions, gone, kept] =
            [0, 3, 2].map(|unit| draft.propose_result(UnitIndex::new(unit), ANY, |text| Some(shorter(text))).unwrap());
        assert_eq!(kept.unit, UnitIndex::new(2));
        assert!(!draft.apply("e", Action::Truncate { message: 0 }, instructions));
        assert!(draft.drop_result("e", UnitIndex::new(3)));
        assert!(!draft.apply("e", Action::Truncate { message: 3 }, gone));
        assert!(draft.apply("e", Action::Truncate { message: 2 }, kept));
        let input = draft.propose_input(BlockIndex::new(0), ANY);
        assert!(input.is_err(), "it has no arguments");
    });
    assert_eq!(plan.report.changes.len(), 2);
    // The arguments of a call are cleared once the model has gone on from it.
    let called = r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"arguments":"{\"b\":1}"}}]}"#;
    for (rest, cleared) in [
        ("", false),
        (r#",{"role":"tool","tool_call_id":"a"}"#, false),
        (r#",{"role":"assistant"}"#, false),
        (r#",{"role":"assistant"},{"role":"user"}"#, true),
    ] {
        let body = Bytes::from(format!(r#"{{"messages":[{{"role":"user"}},{called}{rest}]}}"#));
        let (made, _) = draft(&body, Offload::Possible, |draft| {
            let proposed = draft.propose_input(BlockIndex::new(0), ANY).unwrap();
            assert_eq!(proposed.unit, UnitIndex::new(1));
            draft.apply("e", Action::ClearInput { message: 1 }, proposed)
        });
        assert_eq!(made, cleared, "{rest}");
    }
}

#[test]
fn what_the_model_reads_is_known_by_what_and_where_it_is_in_a_message() {
    let reads = |before: usize, shortened: usize| {
        let text = r#"{"type":"text","text":"the same"}"#;
        let body = Bytes::from(format!(
            r#"{{"messages":[{{"role":"user","content":"{}"}},{{"role":"tool","content":[{text},{text}]}},{{"role":"assistant"}},{{"role":"user"}}]}}"#,
            "x".repeat(before)
        ));
        let ((), plan) = draft(&body, Offload::Possible, |draft| {
            let mut n = 0;
            let proposed = draft.propose_result(UnitIndex::new(1), ANY, |text| {
                n += 1;
                (n == shortened).then(|| shorter(text))
            });
            assert!(draft.apply("e", Action::Clear { message: 1 }, proposed.unwrap()));
            draft.base_tokens();
        });
        plan.segments[2].fingerprint
    };
    assert_eq!(reads(5000, 1), reads(6000, 1), "it is the same wherever the message begins");
    assert_ne!(reads(5000, 1), reads(5000, 2));
}

#[test]
fn a_message_that_a_call_has_left_is_known_by_which_one_that_was() {
    let reads = |n_before: usize, answered: &str| {
        let before = r#"{"role":"assistant","tool_calls":[{"id":"z"}]},{"role":"tool","tool_call_id":"z"},"#;
        let caller = r#"{"role":"assistant","tool_calls":[{"id":"a"},{"id":"b"}]}"#;
        let body = Bytes::from(format!(
            r#"{{"messages":[{}{caller},{{"role":"tool","tool_call_id":"{answered}"}},{{"role":"assistant"}},{{"role":"user"}}]}}"#,
            before.repeat(n_before)
        ));
        let ((), plan) = draft(&body, Offload::Possible, |draft| {
            let row = draft.rows()[2 * n_before + 1];
            assert!(draft.drop_round_trips("e", &[row], UnitIndex::new(4)));
            draft.base_tokens();
        });
        plan.segments[1 + 2 * n_before].fingerprint
    };
    assert_eq!(reads(0, "b"), reads(1, "b"), "it is the same whatever was called before");
    assert_ne!(reads(0, "a"), reads(0, "b"));
}

#[test]
fn a_result_without_a_call_takes_along_what_was_written_on_it() {
    let body = Bytes::from(ROUND.replace("of x", &"x".repeat(300)));
    let (n_bytes, plan) = draft(&body, Offload::Possible, |draft| {
        let proposed = draft.propose_result(UnitIndex::new(3), ANY, |text| Some(shorter(text))).unwrap();
        assert!(draft.apply("e", Action::Truncate { message: 3 }, proposed));
        assert!(draft.drop_result("e", UnitIndex::new(3)));
        draft.n_bytes
    });
    check_bytes(&body, n_bytes, &plan);
    assert_eq!(plan.report.changes.len(), 1, "that it was truncated is moot");
}

#[test]
fn a_result_that_an_unanswered_request_did_not_have_supersedes_what_stood_for_it() {
    let body = ROUND
        .replace(r#"{"role":"tool","tool_call_id":"x","content":"of x"}"#, r#"{"role":"tool","tool_call_id":"a"}"#);
    let facts = SentFacts { facts: vec![(3, SentFact::Cleared)], is_known: true, strips_now: false };
    let (events, _) = draft_after(&Bytes::from(body), Offload::Possible, Sent::Recorded(&facts), |draft| {
        let events = draft.timeline().into_iter().map(|event| match event {
            TimelineEvent::Added(Row { unit: Some(unit), .. }) => format!("{}", unit.get()),
            TimelineEvent::Added(_) => "missing".to_owned(),
            TimelineEvent::Superseded(row) => format!("row {} superseded", row.get()),
            TimelineEvent::Removed(row) => format!("row {} removed", row.get()),
            TimelineEvent::ModelCall(_) => "call".to_owned(),
        });
        events.collect::<Vec<_>>().join(", ")
    });
    assert_eq!(events, "0, call, 1, 2, missing, call, row 3 superseded, 3, call, 4, 5, call");
}

#[derive(serde::Deserialize)]
struct Parsed<'a> {
    #[serde(borrow)]
    messages: Vec<&'a serde_json::value::RawValue>,
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let one = prop_oneof![
        (0..7usize).prop_map(Ask::Drop),
        (0..7usize, 0..7usize).prop_map(|(unit, behind)| Ask::Move(unit, behind)),
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
            Ask::Drop(unit) if unit < rows.len() => rows[unit].0 = None,
            Ask::Move(unit, behind) if unit < rows.len() && behind < rows.len() => {
                let moved = rows[unit].0.take();
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
        let (n_bytes, plan) = draft(&body, Offload::Possible, |draft| {
            ask_of(draft, &asked);
            draft.n_bytes
        });
        let output = String::from_utf8(splice(&body, &plan.splices).concat()).unwrap();

        let parsed: Parsed<'_> = serde_json::from_str(&output).unwrap();
        let got: Vec<String> = parsed.messages.iter().map(|raw| raw.get().to_owned()).collect();
        let expected = reference(&elements, &asked);
        prop_assert_eq!(plan.report.messages_after, expected.len());
        prop_assert_eq!(plan.report.bytes_after, output.len());
        prop_assert_eq!(got, expected);
        prop_assert!(n_bytes >= output.len());
        prop_assert!(output.starts_with(&head));
        prop_assert!(output.ends_with(&tail));
        prop_assert!(plan.splices.is_sorted_by(|a, b| a.span.end <= b.span.start));
    }
}
