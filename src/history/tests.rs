//! The entries of the history, and how long they are kept.

use super::*;

fn entry(id: &str, outcome: Outcome) -> Entry {
    Entry {
        seq: 0,
        id: id.to_owned(),
        time: 1.5,
        model: Some("m".to_owned()),
        conversation: None,
        title: None,
        client: "claude-cli".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        upstream: "default".to_owned(),
        outcome,
        edits: vec![("patch", 1), ("clear", 12)],
        messages: 30,
        bytes_before: 1000,
        bytes_after: 400,
        tokens_before: Some(300),
        tokens_after: Some(100),
        offloaded_bytes: 700,
        added_ms: 1.0,
        summary_ms: None,
        first_byte_ms: Some(5.0),
        total_ms: 9.0,
        status: Some(200),
        end: AnswerEnd::Complete,
        input_tokens: Some(200),
        cached_tokens: Some(50),
        output_tokens: Some(3),
        prefix_kept: Some(0.5),
        stop_reason: None,
        regrets: Regrets::default(),
        edited_cost: None,
        unedited_cost: None,
        window: None,
        beyond_window: None,
        does_not_pay: outcome == Outcome::Unedited,
        held_back: false,
        inspectable: false,
        token_factor: None,
    }
}

#[test]
fn the_most_recent_entries_are_kept_and_numbered() {
    let history = History::default();
    for n in 1..=MAX_ENTRIES + 3 {
        history.push(entry(&format!("req_{n}"), Outcome::Unedited));
    }
    let all = history.newest(usize::MAX);
    assert_eq!(all.len(), MAX_ENTRIES);
    assert_eq!(all.iter().map(|entry| entry.seq).collect::<Vec<_>>(), (4..=MAX_ENTRIES as u64 + 3).collect::<Vec<_>>());
    let numbers = |entries: Vec<Entry>| entries.into_iter().map(|entry| entry.seq).collect::<Vec<_>>();
    assert_eq!(numbers(history.newest(2)), [MAX_ENTRIES as u64 + 2, MAX_ENTRIES as u64 + 3]);
    assert_eq!(numbers(history.after(0, 2)), [4, 5]);
    assert_eq!(numbers(history.after(5, 2)), [6, 7]);
    assert!(history.after(history.latest(), 5).is_empty());
    assert!(history.get("req_3").is_none());
    assert_eq!(history.get("req_4").unwrap().seq, 4);
    assert_eq!(history.totals().requests.unedited, MAX_ENTRIES as u64 + 3, "sums are of all");
}

#[test]
fn titles_are_bounded_and_those_of_entries_are_kept() {
    let history = History::default();
    let of = |n: usize| ChainKey::from_bytes((n as u128).to_be_bytes());
    history.push(Entry { conversation: Some(of(0)), ..entry("a", Outcome::Unedited) });
    for n in 0..=MAX_ENTRIES {
        history.note_title(of(n), n.to_string());
    }
    assert_eq!(history.newest(1)[0].title.as_deref(), Some("0"));
    assert!(history.has_title(of(MAX_ENTRIES)) && !history.has_title(of(1)));
    history.forget_titles();
    assert_eq!(history.newest(1)[0].title, None);
}

#[test]
fn a_request_is_named_by_its_id_its_beginning_or_as_the_last_one() {
    let history = History::default();
    assert!(history.named("last").is_empty());
    let edited = Entry { edits: vec![("patch", 1)], ..entry("req_01a2ff", Outcome::Edited) };
    let unedited = |id: &str| Entry { edits: Vec::new(), ..entry(id, Outcome::Unedited) };
    for entry in [unedited("req_01b2"), edited, unedited("req_01b200")] {
        history.push(entry);
    }
    for (name, ids) in [
        ("req_01b2", &["req_01b2"][..]),
        ("01a2", &["req_01a2ff"]),
        ("req_01a2f", &["req_01a2ff"]),
        ("01b2", &["req_01b200", "req_01b2"]),
        ("last", &["req_01a2ff"]),
        ("01a", &[]),
        ("req_", &[]),
        ("req", &[]),
        ("", &[]),
    ] {
        assert_eq!(history.named(name), ids, "{name:?}");
    }
}

#[test]
fn totals_leave_out_dry_runs() {
    let history = History::default();
    for outcome in [Outcome::Edited, Outcome::Unedited, Outcome::WouldBeEdited, Outcome::NotUnderstood] {
        history.push(entry("a", outcome));
    }
    history.count(|requests| &mut requests.passed);
    history.count_failed();
    history.count(|requests| &mut requests.shed);
    history.count(|requests| &mut requests.refused);
    let totals = history.totals();
    let expected = RequestCounts {
        total: 7,
        edited: 1,
        unedited: 1,
        does_not_pay: 1,
        held_back: 0,
        would_be_edited: 1,
        not_understood: 1,
        passed: 1,
        failed: 1,
        shed: 1,
        refused: 1,
    };
    assert_eq!(totals.requests, expected);
    assert_eq!(expected.why_unedited(false), None);
    let none = RequestCounts { edited: 0, would_be_edited: 0, unedited: 4, held_back: 1, ..expected }
        .why_unedited(false)
        .unwrap();
    assert_eq!(
        none,
        "2 below every trigger, 1 where an edit does not pay yet, 1 where an edit could not be made, 1 not understood, 1 forwarded unread"
    );
    assert_eq!(totals.tokens, TokenTotals { before: 900, after: 300 }, "without the dry run");
    assert_eq!(totals.billed, Usage { input: 800, cached: 200, output: 12, ..Usage::default() });
    assert_eq!(totals.predicted_cached, 400);
}

#[test]
fn added_latency_is_computed_from_the_kept_entries() {
    let history = History::default();
    assert_eq!(history.totals().added_ms, AddedLatency::default());
    for n in 1..=200_u32 {
        history.push(Entry { added_ms: f64::from(n), ..entry("a", Outcome::Edited) });
    }
    assert_eq!(history.totals().added_ms, AddedLatency { p50: 100.0, p99: 198.0, count: 200 });
}

#[test]
fn an_entry_serialises_its_edits_as_an_object() {
    let json = serde_json::to_string(&entry("req_1", Outcome::WouldBeEdited)).unwrap();
    for part in [r#""edits":{"patch":1,"clear":12}"#, r#""outcome":"would_be_edited""#, r#""end":"complete""#] {
        assert!(json.contains(part), "{part} is not in {json}");
    }
}
