//! The fold of a conversation, and the names of messages.

use super::*;

fn check_parts(body: &[u8], conversation: &Conversation<'_>) {
    for (index, unit) in conversation.indexed_units() {
        for block in conversation.blocks_of(unit) {
            let unit = unit.span.of(body);
            assert_eq!(block.unit, index);
            assert!(unit.as_ptr_range().contains(&block.span.of(body).as_ptr()));
        }
    }
    let n_blocks: usize = conversation.units.iter().map(|unit| BlockIndex::numbers(&unit.blocks).len()).sum();
    assert_eq!(n_blocks, conversation.blocks.len());
}

#[test]
fn folding_takes_messages_away_with_their_blocks() {
    let body = br#"{"messages":[{"role":"system"},{"role":"assistant","tool_calls":[{"id":"a"}]},
            {"role":"tool","tool_call_id":"a"},{"role":"assistant","tool_calls":[{"id":"b"},{"id":"c"}]},
            {"role":"tool","tool_call_id":"b"},{"role":"tool","tool_call_id":"c"},{"role":"user"}]}"#;
    let whole = crate::dialect::for_path("/chat/completions").unwrap().parse(body).unwrap();
    check_parts(body, &whole);
    assert_eq!(whole.last_answer(), Some(UnitIndex::new(3)..UnitIndex::new(4)));
    let spans = |units: &[Unit]| units.iter().map(|unit| unit.span).collect::<Vec<_>>();
    let before = spans(&whole.units);
    let pairing = Pairing::of(&whole);
    for (start, end) in (0..before.len()).flat_map(|start| (start + 1..=before.len()).map(move |end| (start, end))) {
        let Some(fold) = Fold::of(&whole, &pairing, UnitIndex::new(start)..UnitIndex::new(end)) else {
            assert!(whole.units[start..end].iter().all(|unit| unit.role != Role::User));
            continue;
        };
        let folded = whole.folded(&fold);
        check_parts(body, &folded);
        let one = whole.span_of(fold.place());
        let standing: Vec<_> = UnitIndex::each(&fold.in_place()).map(|unit| fold.original_unit(unit)).collect();
        let standing = standing.iter().map(|&came| if came == fold.place().start { one } else { before[came.get()] });
        let standing: Vec<_> = standing.collect();
        assert_eq!(spans(&folded.units), [&before[..start], &standing, &before[end..]].concat());
        let summary = folded.unit(fold.summary()).unwrap();
        assert_eq!((summary.role, summary.blocks.is_empty(), summary.span), (Role::User, true, one));
    }
}

#[test]
fn a_message_is_known_by_all_of_its_bytes() {
    let fingerprints = |before: &str, content: &str, behind: &str| {
        let body = [before, content, behind].concat();
        let start = before.len();
        let content = (!content.is_empty()).then_some(Span { start, end: start + content.len() });
        let unit = Unit { span: Span { start: 0, end: body.len() }, content, ..Unit::default() };
        (unit.fingerprint(body.as_bytes()), unit.content_fingerprint(body.as_bytes()))
    };
    for long in ["", &"x".repeat(HASH_ONCE_FROM)] {
        let [x, y] = ["x", "y"].map(|end| format!("\"{long}{end}\""));
        let one = fingerprints("{a", &x, "b}");
        assert_eq!(one, fingerprints("{a", &x, "b}"));
        for other in [fingerprints("{b", &x, "b}"), fingerprints("{a", &x, "c}")] {
            assert_eq!(other.1, one.1);
            assert_ne!(other.0, one.0);
        }
        let [before, behind] = [format!("{{a{x}"), format!("{x}b}}")];
        for other in [fingerprints("{a", &y, "b}"), fingerprints("{a", "", &behind), fingerprints(&before, "", "b}")] {
            assert!(other.0 != one.0 && other.1 != one.1);
        }
    }
}
