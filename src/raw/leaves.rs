//! The texts in a JSON value, such as the arguments of a call.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

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
