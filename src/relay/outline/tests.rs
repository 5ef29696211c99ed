//! The part of a value that an outline keeps.

use super::*;

fn outline(json: &str, piece: usize) -> String {
    let (mut outline, mut out) = (Outline::default(), BytesMut::new());
    json.as_bytes().chunks(piece).for_each(|piece| outline.push(piece, &mut out));
    String::from_utf8(out.to_vec()).unwrap()
}

fn check(json: &str, expected: &str) {
    for piece in [1, 2, 3, 7, 100, 255, 256, 257, 1 << 20] {
        assert_eq!(outline(json, piece), expected, "in pieces of {piece}");
    }
}

#[test]
fn what_is_short_and_flat_stays() {
    for json in ["", "{}", r#" {"a" : [1, "b\"]\\", {"c":null}], "d":{"e":{"f":"}"}}} "#, "data: x"] {
        check(json, json);
    }
}

#[test]
fn long_strings_are_emptied() {
    let long = "é\\\"\\\\".repeat(100);
    let most = "x".repeat(MAX_STRING);
    check(
        &format!(r#"{{"a":"{long}","b":"{most}","{long}":1,"c":"{most}x"}}"#),
        &format!(r#"{{"a":"","b":"{most}","":1,"c":""}}"#),
    );
    check(&format!(r#"{{"a":"{long}"#), r#"{"a":""#);
}

#[test]
fn what_is_deep_leaves_its_brackets() {
    check(
        r#"{"a":{"b":{"c":{"d":1,"e":{"f":[2,"]}"]},"g":[[3]]}}},"h":4}"#,
        r#"{"a":{"b":{"c":{"d":1,"e":{},"g":[]}}},"h":4}"#,
    );
    check(&format!("{}{}1", "[".repeat(1000), "]".repeat(1000)), "[[[[[]]]]]1");
    check("]]}{", "]]}{");
}
