//! Settings of single tools: `[tools."name or pattern"]`, which win over the edits' own.
//!
//! An entry sets only the keys that it names. For each key the most specific entry that names it counts: the name itself
//! before a pattern, a longer pattern before a shorter one, and of two as long the first in the alphabet.

use std::{cmp::Reverse, collections::BTreeMap};

use serde::{Deserialize, Serialize};

use crate::wildcard;

/// `[tools]` of `proxy.toml`.
pub type Settings = BTreeMap<String, Tool>;

/// One table of `[tools]`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tool {
    /// Whether results are truncated, and to what: `false` for not at all, `true` for as the edit says, or limits of
    /// their own.
    ///
    /// Not set: as `truncate_tool_results` says.
    ///
    /// Example: `{ max_bytes = 20000, head = 5000, tail = 10000 }`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<Truncate>,
    /// The handler that says what replaces a result that is too long; an empty name for none.
    ///
    /// Not set: as `truncate_tool_results.handler` says.
    ///
    /// Example: `"diffs"`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate_handler: Option<String>,
    /// Whether results are cleared.
    ///
    /// Not set: as `clear_tool_results` says.
    ///
    /// Example: `true`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clear: Option<bool>,
    /// The handler that says what replaces a cleared result; an empty name for none.
    ///
    /// Not set: as `clear_tool_results.handler` says.
    ///
    /// Example: `"digests"`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clear_handler: Option<String>,
    /// The argument with the path of the file that a call reads, for `clear_tool_results.keep_reads`.
    ///
    /// Not set: the built-in list of the tools of many agents.
    ///
    /// Example: `"path"`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads: Option<String>,
    /// The argument with the path of the file that a call writes, for `clear_tool_results.keep_reads`.
    ///
    /// Not set: the built-in list of the tools of many agents.
    ///
    /// Example: `"path"`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edits: Option<String>,
}

/// `true`, `false`, or a table with any of the following keys.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(untagged, expecting = "expected true, false or a table with some of the keys max_bytes, head and tail")]
pub enum Truncate {
    /// As the edit's own settings say (`true`), or not at all (`false`).
    Whether(bool),
    /// Otherwise than the edit's own settings say.
    To(Limits),
}

/// How long a result may be, and what is left of a longer one.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The length in bytes that a longer result is cut to. Without it, `truncate_tool_results.max_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<usize>,
    /// The most bytes that are left of the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<usize>,
    /// The most bytes that are left of the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<usize>,
}

/// The tables of all tools, the most specific ones first.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    entries: Vec<(String, Tool)>,
}

impl Tools {
    /// The tables as they were written.
    pub fn new(settings: &Settings) -> Self {
        let mut entries: Vec<_> = settings.iter().map(|(pattern, tool)| (pattern.clone(), tool.clone())).collect();
        entries.sort_by_key(|(pattern, _)| (is_pattern(pattern), Reverse(pattern.chars().count())));
        Self { entries }
    }

    /// The value of a key for a tool, from the most specific table that has it.
    pub fn find<T>(&self, name: &str, key: impl Fn(&Tool) -> Option<T>) -> Option<T> {
        self.entries.iter().filter(|(pattern, _)| fits(pattern, name)).find_map(|(_, tool)| key(tool))
    }

    /// All values of one key.
    pub fn all<T>(&self, key: impl Fn(&Tool) -> Option<T>) -> impl Iterator<Item = T> {
        self.entries.iter().filter_map(move |(_, tool)| key(tool))
    }
}

/// Whether `name` is what `pattern` says. Letter case matters, as it does to upstreams.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    wildcard::matches(pattern.chars(), name.chars())
}

/// Whether it is a pattern and not simply a name.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Whether one of `patterns` fits.
pub(super) fn any_fits(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| fits(pattern, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(text: &str) -> Tools {
        Tools::new(&toml::from_str(text).unwrap())
    }

    #[test]
    fn the_most_specific_table_that_names_a_key_counts() {
        let tools = tools(
            "'*' = { reads = 'a', clear = false }\n'mcp__*' = { reads = 'b' }\n'mcp__git_*' = { truncate = true }\nmcp__git_log = { clear = true }",
        );
        let reads = |name| tools.find(name, |tool| tool.reads.clone());
        let clear = |name| tools.find(name, |tool| tool.clear);
        let [a, b] = ["a", "b"].map(|argument| Some(argument.to_owned()));
        assert_eq!([reads("bash"), reads("mcp__x"), reads("mcp__git_log")], [a, b.clone(), b]);
        assert_eq!(
            [clear("bash"), clear("mcp__git_log"), clear("mcp__git_diff")],
            [Some(false), Some(true), Some(false)]
        );
        assert_eq!(tools.find("bash", |tool| tool.truncate), None);
    }

    #[test]
    fn truncate_is_false_or_a_table() {
        let of = |text| toml::from_str::<Tool>(text).map(|tool| tool.truncate);
        assert_eq!(of("truncate = false"), Ok(Some(Truncate::Whether(false))));
        let limits = Limits { max_bytes: Some(9), head: None, tail: Some(0) };
        assert_eq!(of("truncate = { max_bytes = 9, tail = 0 }"), Ok(Some(Truncate::To(limits))));
        assert!(of("truncate = 7").unwrap_err().message().contains("true, false or a table"));
        assert!(of("truncate = { maxbytes = 9 }").is_err());
    }

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name) in [
            ("bash", "bash"),
            ("*", ""),
            ("*", "x"),
            ("mcp__*", "mcp__a"),
            ("*_file", "read_file"),
            ("a*b*c", "aXbYbZc"),
            ("?", "é"),
            ("**", "a"),
            ("a*", "a"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("bash", "Bash"),
            ("", "x"),
            ("x", ""),
            ("mcp__*", "mcp_a"),
            ("*_file", "read_files"),
            ("a*b*c", "aXbYbZ"),
            ("?", ""),
            ("?", "ab"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
        assert!(is_pattern("a*") && is_pattern("?a") && !is_pattern("mcp__a"));
        let (pattern, name) = ("a*".repeat(40) + "b", "a".repeat(4000));
        assert!(!fits(&pattern, &name));
    }
}
