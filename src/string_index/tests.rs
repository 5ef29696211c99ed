//! Long strings are found in chunks of any size.

use super::*;

fn index(body: &str, chunk: usize, hashes: bool) -> Vec<(Span, Option<Fingerprint>)> {
    let mut indexer = StringIndexer::new(hashes);
    body.as_bytes().chunks(chunk).for_each(|chunk| indexer.push(chunk));
    indexer.finish().strings.into_iter().map(|LongString { span, fingerprint }| (span, fingerprint)).collect()
}

#[test]
fn long_strings_are_found_in_chunks_of_any_size() {
    let texts = [r#"a\"b\\"#, r"\\\\", "plain ", r"\u0022é"].map(|text| text.repeat(LONG / text.len() + 1));
    let body = format!(r#"{{"a":"{}","{}":["{}","short\"","\\"], "{}":1}}"#, texts[0], texts[1], texts[2], texts[3]);
    let mut expected = Vec::new();
    for text in &texts {
        let start = body.find(&format!("\"{text}\"")).unwrap();
        let span = Span { start, end: start + text.len() + 2 };
        expected.push((span, Some(Fingerprint::of(span.of(body.as_bytes())))));
    }
    for chunk in [1, 2, 3, 5, 63, 64, 65, 127, 1000, LONG, 2 * LONG, body.len() - 1, body.len()] {
        assert_eq!(index(&body, chunk, true), expected, "{chunk}");
        let unhashed: Vec<_> = expected.iter().map(|(span, _)| (*span, None)).collect();
        assert_eq!(index(&body, chunk, false), unhashed, "{chunk}");
    }
}

#[test]
fn a_value_is_found_by_where_it_is() {
    let body = format!(r#"["{}"]"#, "x".repeat(LONG));
    let mut indexer = StringIndexer::new(true);
    indexer.push(body.as_bytes());
    let (index, string) = (indexer.finish(), Span { start: 1, end: body.len() - 1 });
    assert_eq!((index.starting(1), index.starting(0), index.starting(2)), (Some(string), None, None));
    assert_eq!(index.fingerprint(string), Some(Fingerprint::of(string.of(body.as_bytes()))));
    assert_eq!(index.fingerprint(Span { start: 1, end: 5 }), None);
    assert_eq!(StringIndex::EMPTY.starting(1), None);
}

#[test]
fn a_string_without_an_end_is_not_there() {
    assert_eq!(index(&format!(r#"["{}\""#, "x".repeat(2 * LONG)), 1000, true), []);
}
