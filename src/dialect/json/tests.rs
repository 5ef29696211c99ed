//! The cursor and the string check against `serde_json`.

use proptest::prelude::*;
use serde::de::IgnoredAny;

use super::*;
use crate::dialect::strings::{push_string, verify};

/// What cursor and string check together say must be what `serde_json` says.
fn agree(text: &[u8]) -> bool {
    let mut cursor = Cursor::new(text);
    let structure = cursor.value().and_then(|_| cursor.end());
    let ours = structure.is_ok() && verify(text).is_ok();
    let valid = std::str::from_utf8(text).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    ours == valid
}

fn check(text: &str, valid: bool) {
    assert!(agree(text.as_bytes()), "{text}");
    assert_eq!(serde_json::from_str::<IgnoredAny>(text).is_ok(), valid, "{text}");
}

#[test]
fn numbers() {
    for text in ["0", "-0", "12", "-1.5", "1e5", "1E+05", "0.0e-0", "1e999", "123456789012345678901234567890"] {
        check(text, true);
    }
    for text in ["", "-", "01", "1.", ".5", "1e", "1e+", "+1", "0x1", "1.e1", "NaN", "--1", "1 2"] {
        check(text, false);
    }
}

#[test]
fn literals_and_containers() {
    for text in ["null", " true ", "[]", "{ }", "[ [ ] , { } ]", r#"{"a":1,"a":2}"#, "\r\n\t[1,\n2]"] {
        check(text, true);
    }
    for text in [
        "nul",
        "nulll",
        "True",
        "[",
        "[1,]",
        "[,1]",
        "{,}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        "[1}",
        "{]",
        "[1 2]",
    ] {
        check(text, false);
    }
    for text in [r"{1:2}", "{a:1}", "[1]]", "\u{feff}1", "\u{a0}1", "1\u{b}", "// x\n1", "'a'"] {
        check(text, false);
    }
}

#[test]
fn strings() {
    for text in [r#""""#, r#""\"""#, r#""\\""#, r#""\\\"""#, r#""\u0041\n\/\b\f\r\t""#, r#""\ud800""#, "\"é\u{7f}\""] {
        check(text, true);
    }
    for text in
        [r#"""#, r#""\""#, r#""\\\""#, r#""\x""#, r#""\u12""#, r#""\u12g4""#, "\"\n\"", "\"\u{0}\"", "\"a\u{1f}\""]
    {
        check(text, false);
    }
}

#[test]
fn a_control_character_is_found_wherever_it_stands() {
    for length in [0, 1, 62, 63, 64, 65, 127, 128, 200] {
        let text = format!("\"{}\u{1}\"", "x".repeat(length));
        assert!(verify(text.as_bytes()).is_err(), "{length}");
    }
}

#[test]
fn depth_is_bounded_and_needs_no_stack() {
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    assert!(Cursor::new(nested(128).as_bytes()).value().is_ok());
    assert_eq!(Cursor::new(nested(129).as_bytes()).value(), Err(Unsupported));
    assert_eq!(Cursor::new("[".repeat(1_000_000).as_bytes()).value(), Err(Unsupported));
    let mixed = r#"{"a":["#.repeat(64) + &"]}".repeat(64);
    assert!(Cursor::new(mixed.as_bytes()).value().is_ok());
}

#[test]
fn a_written_string_reads_back() {
    let text: String = (0..0x250u32).filter_map(char::from_u32).chain("😀\u{2028}".chars()).collect();
    let mut raw = Vec::new();
    push_string(&mut raw, &text);
    assert_eq!(serde_json::from_slice::<String>(&raw).unwrap(), text);
    assert_eq!(decode(&raw).unwrap(), text);
}

#[test]
fn a_written_string_has_the_short_escapes() {
    let mut raw = Vec::new();
    push_string(&mut raw, "\"\\\n\r\t\u{1}\u{1f}/é\u{7f}");
    assert_eq!(raw, "\"\\\"\\\\\\n\\r\\t\\u0001\\u001f/é\u{7f}\"".as_bytes());
}

#[test]
fn half_a_surrogate_pair_has_no_text() {
    assert_eq!(decode(br#""\ud83d\ude00""#).unwrap(), "😀");
    assert_eq!(decode(br#""\ud83d""#), None);
    assert_eq!(decode(b"\"\xff\""), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn agrees_on_anything(text in r#"([\[\]{},:"\\ ]|"a"|"[^"]{0,3}"|-?[0-9.eE+]{1,3}|true|null|\n|\\u00e9){0,12}"#) {
        prop_assert!(agree(text.as_bytes()), "{}", text);
    }

    #[test]
    fn fields_are_those_of_serde_json(
        members in prop::collection::vec(r#"[ \n]?"(a|b\\n|é|k{40})"[ \n]?:[ \n]?("[^"\\\x00-\x1f]{0,9}"|"\\n\\\\"|[0-9]|\[1, 2\]|\{"a": \[\]\}|null) ?"#, 0..4),
        behind in prop::sample::select(vec!["", " ", "1", "}"]),
    ) {
        let json = format!("{{{}}}{behind}", members.join(","));
        let all = |fields: Option<Fields<'_>>| {
            fields.map(|fields| fields.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<Vec<_>>())
        };
        prop_assert_eq!(all(element_fields(&json)), all(Fields::of(&json)), "{}", json);
        prop_assert_eq!(all(Fields::of(&json)).is_some(), behind.trim().is_empty());
    }

    #[test]
    fn agrees_on_bytes(text in prop::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b'u'), any::<u8>()], 0..10)) {
        let quoted = [b"\"", text.as_slice(), b"\""].concat();
        prop_assert!(agree(&quoted), "{:?}", quoted);
    }
}
