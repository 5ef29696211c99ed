//! Tests of the printed output.

use super::*;

fn plain() -> DiffWriter {
    DiffWriter::default()
}

fn document(messages: &str) -> Document<Request> {
    let json = format!(
        r#"{{"request":{{"id":"req_1","outcome":"edited","model":"m","edits":{{"clear":2}},"bytes_before":100,"bytes_after":50,"tokens_before":9,"tokens_after":5,"status":200}},
        "changes":[{{"message":4,"action":"clear","label":"clear","tool":"ls","call_id":"c","bytes_before":9,"bytes_after":3,"handle":"00000000000000000000000000","more_handles":["11111111111111111111111111"]}}],
        "n_changes":1,"left_out":[{{"message":7,"label":"clear","why":"not_smaller"}}],"content":{messages}}}"#
    );
    serde_json::from_str(&json).unwrap()
}

#[test]
fn changed_messages_are_printed_with_their_texts() {
    let messages = r#"{"messages":[
        {"index":0,"at":0,"role":"user","state":"same","before":"go"},
        {"index":1,"at":null,"role":"assistant","state":"filtered","before":"[call a] ls {}","before_bytes":14},
        {"index":3,"at":2,"role":"tool","name":"ls","state":"moved","before":"x","before_bytes":1},
        {"index":3,"at":3,"role":"tool","name":"ls","state":"inserted","after":"none\nto have","after_bytes":12},
        {"index":4,"at":4,"role":"tool","name":"ls","state":"cleared","before":"a\nb\nc\nd\ne\n","after":"a\nb\nc\nX\ne","before_bytes":10,"after_bytes":9}]}"#;
    let expected = "\
req_1, edited, m, clear=2, bytes 100 -> 50, tokens 9 -> 5, status 200

@@ message 1, assistant: filtered, 14 bytes @@
- [call a] ls {}

@@ message 3 -> 2, tool ls: moved, 1 bytes @@

@@ new message 3, tool ls: inserted, 12 bytes @@
+ none
+ to have

@@ message 4, tool ls: cleared, 10 -> 9 bytes, abridge show 00000000000000000000000000, abridge show 11111111111111111111111111 @@
  … 1 lines that are the same
  b
  c
- d
+ X
  e
1 messages went on as they came
clear: not done to message 7: not_smaller
";
    assert_eq!(document(messages).to_text(plain()), expected);
}

#[test]
fn without_content_the_changes_are_listed() {
    let expected = "\
req_1, edited, m, clear=2, bytes 100 -> 50, tokens 9 -> 5, status 200
clear: clear message 4, call c of tool ls, bytes 9 -> 3, stored as 00000000000000000000000000, stored as 11111111111111111111111111
clear: not done to message 7: not_smaller
";
    assert_eq!(document("null").to_text(plain()), expected);
}

#[test]
fn long_texts_are_shortened_unless_full_is_set() {
    let lines: Vec<_> = (0..1000).map(|n| format!("line {n}")).collect();
    let long = lines.join("\n");
    let mut out = plain();
    out.write_removed(&long);
    let shown: Vec<_> = out.text.lines().collect();
    assert_eq!(shown.len(), 13);
    assert_eq!((shown[0], shown[11], shown[12]), ("- line 0", "- line 11", "- … 988 lines, 8804 bytes"));
    let mut out = DiffWriter { full: true, ..plain() };
    out.write_removed(&long);
    assert_eq!(out.text.lines().count(), 1000);

    let mut out = plain();
    out.write_change(&"é".repeat(400), &long);
    assert!(out.text.starts_with(&format!("- {} … 200 bytes\n+ line 0\n", "é".repeat(300))), "{}", out.text);
}

#[test]
fn control_characters_in_texts_are_escaped_and_colours_are_added() {
    let mut out = DiffWriter { colour: true, ..plain() };
    out.write_change("\u{1b}[2J\r\nx", "\u{202e}\nx");
    assert_eq!(out.text, "\u{1b}[31m- \\u{1b}[2J\\r\u{1b}[0m\n\u{1b}[32m+ \\u{202e}\u{1b}[0m\n  x\n");
    let mut out = plain();
    out.write_change("\u{1b}[2J", "\u{9b}2J");
    assert!(!out.text.contains(|c: char| c.is_control() && c != '\n'), "{:?}", out.text);
}
