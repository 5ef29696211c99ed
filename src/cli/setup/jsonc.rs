//! Sets a string in JSON, with or without comments, and leaves every other byte as it is.

use jsonc_parser::ast::{Object, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

/// The text with `value` at the end of the path of keys; objects that are missing are inserted. `None` if the text is not an
/// object, or another value is in the way.
pub(super) fn set(text: &str, path: &[&str], value: &str) -> Option<String> {
    if text.trim().is_empty() {
        return Some(format!("{{\n  {}\n}}\n", member(path, value, Some(("", "  ")))?));
    }
    let root = object(text)?;
    let (mut object, mut path) = (&root, path);
    loop {
        let (key, rest) = path.split_first()?;
        match (last(object, key), rest) {
            (None, _) => return insert(text, object, path, value),
            (Some(Value::Object(inner)), [_, ..]) => (object, path) = (inner, rest),
            (Some(Value::StringLit(present)), []) if present.value == value => return Some(text.to_owned()),
            (Some(present), []) => {
                let range = present.range();
                return Some(format!("{}{}{}", text.get(..range.start)?, quoted(value), text.get(range.end..)?));
            }
            (Some(_), _) => return None,
        }
    }
}

/// The string at the end of the path of keys.
pub(in crate::cli) fn get(text: &str, path: &[&str]) -> Option<String> {
    let root = object(text.trim_start_matches(super::BYTE_ORDER_MARK))?;
    let (key, objects) = path.split_last()?;
    let object = objects.iter().try_fold(&root, |object, key| match last(object, key)? {
        Value::Object(inner) => Some(inner),
        _ => None,
    })?;
    last(object, key)?.as_string_lit().map(|found| found.value.to_string())
}

fn object(text: &str) -> Option<Object<'_>> {
    match parse_to_ast(text, &CollectOptions::default(), &ParseOptions::default()).ok()?.value? {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

/// The value of a key. Of equal keys the last one counts.
fn last<'o, 't>(object: &'o Object<'t>, key: &str) -> Option<&'o Value<'t>> {
    object.properties.iter().rev().find(|property| property.name.as_str() == key).map(|property| &property.value)
}

/// Inserts a member as the first one of an object, on its own lines if the others are, as clients write them.
fn insert(text: &str, object: &Object<'_>, path: &[&str], value: &str) -> Option<String> {
    let (before, after) = text.split_at_checked(object.range.start + 1)?;
    let line = before.rsplit('\n').next().unwrap_or_default();
    let indent = line.get(..line.len() - line.trim_start().len()).unwrap_or_default();
    let rest = after.trim_start();
    if object.properties.is_empty() {
        return Some(format!("{before}\n{indent}  {}\n{indent}{rest}", member(path, value, Some((indent, "  ")))?));
    }
    let blank = after.get(..after.len() - rest.len()).unwrap_or_default();
    let blank = if rest.starts_with('/') { &format!("\n{indent}  ") } else { blank };
    let step = blank.rsplit_once('\n').and_then(|(_, inner)| inner.strip_prefix(indent));
    Some(format!("{before}{blank}{},{after}", member(path, value, step.map(|step| (indent, step)))?))
}

/// `"a": { "b": "value" }`, or on lines of their own: how far those of the object around it are indented, and by how much more
/// each level is.
fn member(path: &[&str], value: &str, lines: Option<(&str, &str)>) -> Option<String> {
    let (key, rest) = path.split_first()?;
    let value = match lines {
        _ if rest.is_empty() => quoted(value),
        None => format!("{{ {} }}", member(rest, value, None)?),
        Some((indent, step)) => {
            let indent = format!("{indent}{step}");
            format!("{{\n{indent}{step}{}\n{indent}}}", member(rest, value, Some((&indent, step)))?)
        }
    };
    Some(format!("{}: {value}", quoted(key)))
}

fn quoted(text: &str) -> String {
    // A string has a JSON form.
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: [&str; 2] = ["env", "URL"];

    #[test]
    fn a_value_is_replaced_and_nothing_else() {
        let text = "// mine\n{ \"a\" : [1, {\"env\": {}}, \"}\"], /* x { */ \"env\":{\"K\":\"s\\\"\", \"URL\" : \"old\" ,},\n}\n";
        assert_eq!(set(text, &PATH, "new").unwrap(), text.replace("\"old\"", "\"new\""));
        assert_eq!(set(text, &PATH, "old").unwrap(), text);
        assert_eq!(get(&format!("\u{feff}{text}"), &PATH).as_deref(), Some("old"));
        let repeated = r#"{"env":{"URL":"a"},"env":{"URL":"b","URL":"c"}}"#;
        assert_eq!(set(repeated, &PATH, "new").unwrap(), repeated.replace("\"c\"", "\"new\""));
        assert_eq!(get(repeated, &PATH).as_deref(), Some("c"));
        let spelled = r#"{"env":{"URL":"http:\/\/h"}}"#;
        assert_eq!(set(spelled, &PATH, "http://h").unwrap(), spelled);
    }

    #[test]
    fn a_member_is_inserted_as_the_others_are_written() {
        let cases = [
            ("", "{\n  \"env\": {\n    \"URL\": \"u\"\n  }\n}\n"),
            ("{}\n", "{\n  \"env\": {\n    \"URL\": \"u\"\n  }\n}\n"),
            ("{\"a\":1}", "{\"env\": { \"URL\": \"u\" },\"a\":1}"),
            ("{\n\t\"a\": 1\n}\n", "{\n\t\"env\": {\n\t\t\"URL\": \"u\"\n\t},\n\t\"a\": 1\n}\n"),
            ("{\n    \"env\": {\n    }\n}", "{\n    \"env\": {\n      \"URL\": \"u\"\n    }\n}"),
            ("{\n  // c\n  \"a\": 1\n}", "{\n  \"env\": {\n    \"URL\": \"u\"\n  },\n  // c\n  \"a\": 1\n}"),
            ("{\"env\":{\"K\":1}}", "{\"env\":{\"URL\": \"u\",\"K\":1}}"),
        ];
        for (text, expected) in cases {
            let set = set(text, &PATH, "u").unwrap_or_else(|| panic!("{text:?}"));
            assert_eq!(set, expected);
            assert_eq!(super::set(&set, &PATH, "u").as_deref(), Some(expected), "again");
        }
    }

    #[test]
    fn what_is_no_object_is_left() {
        for text in ["[]", "{\"env\": 1}", "{\"env\" 1}", "{", "{\"a\": \"x}", "nonsense", "{,}", "{\"a\":}"] {
            assert_eq!(set(text, &PATH, "u"), None, "{text:?}");
        }
    }
}
