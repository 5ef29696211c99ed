//! Raw JSON, read one level at a time: a value stays the text that it is until someone asks what is in it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

pub(crate) use self::{
    blocks::{closing_quote, control, find_escaped, find_quote, near_closing_quote},
    strings::{halved, has_half, string, unescaped, without_halves, written_at},
};

mod blocks;
mod strings;

/// The keys and values of an object, in their order; a key may be there twice.
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'a> Fields<'a> {
    /// These keys and values.
    pub(crate) fn new(fields: Vec<(Cow<'a, str>, &'a str)>) -> Self {
        Self(fields)
    }

    /// The fields of a value, if it is an object.
    pub(crate) fn of(json: &'a str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), *value))
    }

    /// The value of a key; the last one where there are more, as most readers have it.
    pub(crate) fn get(&self, key: &str) -> Option<&'a str> {
        self.iter().filter(|(found, _)| *found == key).last().map(|(_, value)| value)
    }

    /// The text of a key's value, if it is a string.
    pub(crate) fn string(&self, key: &str) -> Option<Cow<'a, str>> {
        self.get(key).and_then(string)
    }

    /// The fields of a key's value, if it is an object.
    pub(crate) fn object(&self, key: &str) -> Option<Self> {
        self.get(key).and_then(Self::of)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::with_capacity(8);
                while let Some(Text(key)) = map.next_key()? {
                    fields.push((key, map.next_value::<&RawValue>()?.get()));
                }
                Ok(Fields(fields))
            }
        }

        from.deserialize_map(Reader)
    }
}

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Bytes as text, if they are valid UTF-8: long texts are checked many bytes at a time, which std does for ASCII only.
#[inline]
pub(crate) fn utf8(bytes: &[u8]) -> Option<&str> {
    simdutf8::basic::from_utf8(bytes).ok()
}

/// As [`String::from_utf8_lossy`], which checks one character after the other, but quicker where all of it is text.
pub(crate) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    utf8(bytes).map_or_else(|| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// The elements of a value, if it is an array.
pub(crate) fn elements(json: &str) -> Option<Vec<&str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(json).ok()?;
    Some(elements.into_iter().map(RawValue::get).collect())
}

/// The value without white space between its parts.
pub(crate) fn compact(json: &str) -> String {
    let mut in_string = false;
    let mut escaped = false;
    let keep = |c: &char| {
        let keep = in_string || !c.is_ascii_whitespace();
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = in_string,
            '"' => in_string = !in_string,
            _ => {}
        }
        keep
    };
    json.chars().filter(keep).collect()
}

/// A JSON value, of which only the texts count.
#[derive(Deserialize)]
#[serde(untagged)]
enum Json {
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
    Other(IgnoredAny),
}

/// A text and the key that it stands under; empty where there is none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Leaf {
    pub(crate) key: String,
    pub(crate) text: String,
}

/// The texts in a JSON value; the value itself as a text if it is not JSON.
pub(crate) fn leaves(json: &str) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    match serde_json::from_str(json) {
        Ok(value) => collect("", value, &mut leaves),
        Err(_) => leaves.push(Leaf { key: String::new(), text: json.to_owned() }),
    }
    leaves
}

fn collect(key: &str, value: Json, leaves: &mut Vec<Leaf>) {
    match value {
        Json::Text(text) => leaves.push(Leaf { key: key.to_owned(), text }),
        Json::Array(values) => values.into_iter().for_each(|value| collect(key, value, leaves)),
        Json::Object(fields) => fields.into_iter().for_each(|(key, value)| collect(&key, value, leaves)),
        Json::Other(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_goes_only_where_it_says_nothing() {
        let json = "{ \"a b\" :\n[ 1,\t\" \\\" \\\\\" , \"\\\\ \\\" [ \" ] }";
        assert_eq!(compact(json), "{\"a b\":[1,\" \\\" \\\\\",\"\\\\ \\\" [ \"]}");
    }

    #[test]
    fn texts_are_found_at_any_depth_under_the_nearest_key() {
        let found = leaves(r#"{"path":"a","edits":[{"old":"b"},{"old":["c",1,null]}],"n":2}"#);
        let found: Vec<_> = found.iter().map(|leaf| (leaf.key.as_str(), leaf.text.as_str())).collect();
        assert_eq!(found, [("old", "b"), ("old", "c"), ("path", "a")]);
    }

    #[test]
    fn what_is_no_json_is_one_text() {
        assert_eq!(leaves("*** Begin Patch"), [Leaf { key: String::new(), text: "*** Begin Patch".to_owned() }]);
        assert_eq!(leaves("\"x\""), [Leaf { key: String::new(), text: "x".to_owned() }]);
        assert_eq!(leaves("7"), []);
    }
}
