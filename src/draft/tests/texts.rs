//! The replacement of a text, whether that is smaller, and how much is counted to know it.

use super::*;
use crate::span::{joined, splice};

/// Lines of text, of some four bytes a token.
fn lines(n_bytes: usize) -> String {
    let lines: Vec<_> = (0..n_bytes / 5).map(|n| format!("line {n}\n")).collect();
    lines.concat().chars().take(n_bytes).collect()
}

/// The text with other words for a part of it.
fn with_words(text: &str, TextCut { from, to, words }: &TextCut) -> String {
    [text.get(..*from).unwrap(), words, text.get(*to..).unwrap()].concat()
}

/// Returns what comes of replacing a part of a text by something smaller, and how many bytes were tokenised for that.
fn offered(text: &str, cut: &TextCut) -> (Result<String, NotApplicable>, u64) {
    let text = serde_json::to_string(text).unwrap();
    let body = Bytes::from(format!(
        r#"{{"messages":[{{"role":"tool","content":{text}}},{{"role":"assistant"}},{{"role":"user"}}]}}"#
    ));
    let write = |draft: &mut Draft<'_>| {
        let proposed = draft.propose_result(
            UnitIndex::new(0),
            ReplaceOptions { stored: false, smaller: true, media: false },
            |_| Some(cut.clone()),
        );
        let with = proposed.map(|proposed| proposed.replacements[0].text(&body));
        (with, draft.context.meter.n_tokenised())
    };
    draft(&body, Offload::Possible, write).0
}

#[test]
fn of_a_long_text_little_is_tokenised() {
    let (text, words) = (lines(100_000), "word ".repeat(100));
    for (from, to) in [(0, text.len()), (1000, 99_000), (0, 99_000), (1000, text.len())] {
        let cut = TextCut { from, to, words: words.clone() };
        let (with, n_tokenised) = offered(&text, &cut);
        assert_eq!(with, Ok(with_words(&text, &cut)));
        assert!(n_tokenised < 4000, "{from} {to}: {n_tokenised}");
    }
}

#[test]
fn of_what_was_truncated_little_is_tokenised_to_clear_it() {
    let text = serde_json::to_string(&lines(100_000)).unwrap();
    let body = Bytes::from(format!(
        r#"{{"messages":[{{"role":"tool","content":{text}}},{{"role":"assistant"}},{{"role":"user"}}]}}"#
    ));
    let options = ReplaceOptions { stored: true, smaller: true, media: false };
    let (n_tokenised, plan) = draft(&body, Offload::Possible, |draft| {
        let middle = TextCut { from: 1000, to: 50_000, words: "word ".repeat(100) };
        let proposed = draft.propose_result(UnitIndex::new(0), options, |_| Some(middle.clone())).unwrap();
        assert!(draft.apply("e", Action::Truncate { message: 0 }, proposed));
        let proposed = draft.propose_result(UnitIndex::new(0), options, |text| Some(shorter(text))).unwrap();
        assert!(draft.apply("e", Action::Clear { message: 0 }, proposed));
        draft.context.meter.n_tokenised()
    });
    assert_eq!(plan.splices.iter().map(|splice| &splice.with[..]).collect::<Vec<_>>(), [br#""-""#]);
    assert!(n_tokenised < 8000, "{n_tokenised}");
}

#[test]
fn what_has_more_tokens_is_not_smaller_however_few_bytes_it_has() {
    // A run of spaces is few tokens.
    let (text, words) = (" ".repeat(20_000), "word ".repeat(1000));
    for (from, to) in [(0, text.len()), (1000, 19_000)] {
        assert_eq!(
            offered(&text, &TextCut { from, to, words: words.clone() }).0,
            Err(NotApplicable::NotSmaller),
            "{from} {to}"
        );
    }
    let same = |text: &str, words: &str| offered(text, &TextCut { from: 0, to: text.len(), words: words.to_owned() }).0;
    assert_eq!(same("one two three", "two three one"), Err(NotApplicable::NotSmaller));
    assert_eq!(same("one two three", "one two three"), Err(NotApplicable::Nothing));
    assert_eq!(same("one two three", "two"), Ok("two".to_owned()));
}

#[test]
fn what_was_truncated_is_cut_anew_out_of_what_came() {
    let text = lines(3000);
    let json = serde_json::to_string(&text).unwrap();
    let body = Bytes::from(format!(
        r#"{{"messages":[{{"role":"tool","content":{json}}},{{"role":"assistant"}},{{"role":"user"}}]}}"#
    ));
    let (_, plan) = draft(&body, Offload::Possible, |draft| {
        for (from, to) in [(1000, 2000), (500, 2500)] {
            let cut = |_: &ResultText<'_, '_>| Some(TextCut { from, to, words: "-".to_owned() });
            let proposed = draft
                .propose_result(UnitIndex::new(0), ReplaceOptions { stored: true, smaller: true, media: false }, cut)
                .unwrap();
            assert!(draft.apply("e", Action::Truncate { message: 0 }, proposed));
        }
        draft.rows()
    });
    let left = with_words(&text, &TextCut { from: 500, to: 2500, words: "-".to_owned() });
    let edited = String::from_utf8(body.to_vec()).unwrap().replace(&json, &serde_json::to_string(&left).unwrap());
    assert_eq!(joined(splice(&body, &plan.splices)), edited);
    assert_eq!(&plan.splices[0].with[..], b"-", "the ends are the client's");
    assert_eq!(plan.report.changes.len(), 1, "the first one is moot");
    assert_eq!(plan.offloads.iter().map(|offload| offload.payload.bytes()).collect::<Vec<_>>(), [text]);
}

#[test]
fn an_offer_is_asked_for_once_until_somebody_has_written_there() {
    let text = serde_json::to_string(&lines(3000)).unwrap();
    let body = Bytes::from(format!(
        r#"{{"messages":[{{"role":"tool","content":{text}}},{{"role":"assistant"}},{{"role":"user"}}]}}"#
    ));
    let (asked, _) = draft(&body, Offload::Possible, |draft| {
        let (truncation_cache, n_asked) = (TruncationCache::default(), std::cell::Cell::new(0));
        let proposed = |draft: &Draft<'_>| {
            let proposed = draft.cached(&truncation_cache, UnitIndex::new(0), "ls", 100, || {
                n_asked.set(n_asked.get() + 1);
                draft.propose_result(UnitIndex::new(0), ANY, |text| Some(shorter(text)))
            });
            (proposed, n_asked.get())
        };
        let mut asked = vec![proposed(draft).1, proposed(draft).1];
        let (again, _) = proposed(draft);
        assert!(draft.apply("e", Action::Truncate { message: 0 }, again.unwrap()));
        asked.extend([proposed(draft).1, proposed(draft).1]);
        asked
    });
    assert_eq!(asked, [1, 1, 2, 3]);
}
