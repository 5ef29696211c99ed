//! Strings that are read and found as `serde_json` reads them.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_string_reads_as_serde_json_reads_it(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::sample::select(vec![
                    r"\n", r"\\", "\\\"", r"\/", r"\b", r"\f", r"\r", r"\t", r"\u0041", r"\u00E9", r"\ud83d\ude00",
                    r"\ud83d", r"\uDE00", r"\u12", r"\u+123", r"\x", r"\", "\"", "\n", "\u{1f}", "\u{7f}", "é", "日", " !#[]",
                ]).prop_map(str::to_owned),
                "[ -~]{0,20}",
                "\\PC{0,4}",
            ],
            0..8,
        ),
    ) {
        for json in [format!("\"{}\"", pieces.concat()), pieces.concat()] {
            let read = serde_json::from_str::<String>(&json).ok().filter(|_| json.trim() == json);
            let unescaped = unescaped(&json);
            prop_assert_eq!(unescaped.as_deref(), read.as_deref(), "{}", json);
        }
    }
}

#[test]
fn half_a_surrogate_pair_reads_as_a_replacement_character() {
    for (json, text) in [
        (r#""""#, ""),
        (r#""a\u00e9\n\"\\""#, "aé\n\"\\"),
        (r#""\ud83d\ude00""#, "😀"),
        (r#""\ud83d""#, "\u{FFFD}"),
        (r#""a\uDE00b""#, "a\u{FFFD}b"),
        (r#""\ud83d\ud83d\ude00""#, "\u{FFFD}😀"),
        (r#""\ud83d\n\ude00é""#, "\u{FFFD}\n\u{FFFD}é"),
        (r#""\\ud83d\ud83d\u0041""#, "\\ud83d\u{FFFD}A"),
    ] {
        assert_eq!(string(json).as_deref(), Some(text), "{json}");
        assert_eq!(has_half(json.as_bytes()), serde_json::from_str::<String>(json).is_err(), "{json}");
    }
    for json in [r#""\ud83d"#, r#""\ud83d\x""#, r#""\ud8""#, r#"{"a":"\ud83d"}"#, r#"["\ud83d"]"#, "", "\""] {
        assert_eq!(string(json), None, "{json}");
    }
    assert!(!has_half(br#"{"a":"\ud83d"}"#));
}

#[test]
fn each_character_of_a_text_is_found_where_it_is_written() {
    let pieces =
        ["a", "é", "😀", r"\n", r"\\", r"\u0041", r"\u00e9", r"\u20ac", r"\ud83d\ude00", r"\ud83d", r"\udc00", "ude00"];
    for (one, two) in pieces.iter().flat_map(|one| pieces.iter().map(move |two| (one, two))) {
        let json = format!("\"{one}{two}{one}\"");
        let text = string(&json).unwrap();
        let places: Vec<_> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
        for at in places {
            let (before, behind) = json.split_at(written_at(json.as_bytes(), &(at..at)).start);
            let (before, behind) = (format!("{before}\""), format!("\"{behind}"));
            assert_eq!(string(&before).as_deref(), text.get(..at), "{json} {at}");
            assert_eq!(string(&behind).as_deref(), text.get(at..), "{json} {at}");
        }
    }
}
