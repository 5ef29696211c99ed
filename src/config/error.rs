//! Errors in the settings, each printed as one line: the location, the problem, and what is allowed.

use std::fmt::{self, Write};
use std::sync::Arc;

use serde::de::{self, Unexpected};
use strsim::levenshtein;

use crate::telemetry::Escaped;
use crate::wildcard;

/// An error in the settings. Its [`fmt::Display`] is one line without control characters.
#[derive(Clone, Debug)]
pub struct ConfigError(pub(super) Box<ErrorDetails>);

#[derive(Clone, Debug)]
pub(super) struct ErrorDetails {
    location: Option<SourceLocation>,
    /// The keys that lead to the value, innermost first.
    keys: Vec<String>,
    pub(super) kind: ConfigErrorKind,
}

/// The place where a value was written.
#[derive(Clone, Debug, derive_more::Display, Eq, PartialEq)]
pub(super) enum SourceLocation {
    /// A line and a column, in characters, of a file.
    #[display("{name}:{line}:{column}")]
    File { name: Arc<str>, line: usize, column: usize },
    /// A file as a whole.
    WholeFile(Arc<str>),
    /// An environment variable.
    Variable(Arc<str>),
    /// A flag of the command line.
    Flag(&'static str),
}

/// The kind of the error. Values are shown only where they cannot be secret.
#[derive(Clone, Debug)]
pub(super) enum ConfigErrorKind {
    UnknownKey { key: String, allowed: &'static [&'static str] },
    NotAChoice { given: Option<String>, allowed: &'static [&'static str] },
    Type { found: &'static str, expected: String },
    Other(String),
}

// === impl ConfigError ===

/// The settings that were removed, as patterns, each with what holds now.
const REMOVED: &str = include_str!("removed.txt");

impl ConfigError {
    /// An error in what was written at a location.
    pub(super) fn at(location: &SourceLocation, message: impl Into<String>) -> Self {
        Self::unlocated(message).or_at(location)
    }

    /// A text at a location that is not TOML.
    pub(super) fn syntax(location: &SourceLocation, error: &toml::de::Error) -> Self {
        Self::at(location, format!("not valid TOML: {}", error.message().lines().collect::<Vec<_>>().join(", ")))
    }

    /// An error without a location in the settings, such as one in a file that a setting names.
    pub fn unlocated(message: impl Into<String>) -> Self {
        ConfigErrorKind::Other(message.into()).into()
    }

    /// Whether the error is in a flag of the command line, and not in a file or the environment.
    pub fn is_from_flag(&self) -> bool {
        matches!(self.0.location, Some(SourceLocation::Flag(_)))
    }

    /// Sets the location, if the error has none.
    #[cold]
    #[inline(never)]
    pub(super) fn or_at(mut self, location: &SourceLocation) -> Self {
        self.0.location.get_or_insert_with(|| location.clone());
        self
    }

    /// Adds `key` to the path of keys, as the key of the table that holds the value.
    #[cold]
    #[inline(never)]
    pub(super) fn under_key(mut self, key: &str) -> Self {
        self.0.keys.push(key.to_owned());
        self
    }

    fn message(&self) -> String {
        let path = self.0.keys.iter().rev().map(String::as_str).collect::<Vec<_>>().join(".");
        let named = matches!(self.0.location, Some(SourceLocation::Variable(_) | SourceLocation::Flag(_)));
        let subject = if path.is_empty() || named { String::new() } else { format!("{path}: ") };
        let value = if path.is_empty() { "the value" } else { path.as_str() };
        let did_you_mean = |near| format!("did you mean {near:?}? ");
        match &self.0.kind {
            ConfigErrorKind::UnknownKey { key, allowed } => {
                let table = if path.is_empty() { "at the top level".to_owned() } else { format!("in [{path}]") };
                let hint = match removed(&path, key) {
                    Some(now) => format!("it was removed: {now}; "),
                    None => closest_match(key, allowed).map(did_you_mean).unwrap_or_default(),
                };
                format!("unknown key {key:?} {table}; {hint}allowed: {}", allowed.join(", "))
            }
            ConfigErrorKind::NotAChoice { given: Some(given), allowed } => {
                let hint = closest_match(given, allowed).map(did_you_mean).unwrap_or_default();
                format!("{subject}{given:?} is not a choice; {hint}allowed: {}", quoted(allowed))
            }
            ConfigErrorKind::NotAChoice { given: None, allowed } => {
                format!("{value} must be a string; allowed: {}", quoted(allowed))
            }
            ConfigErrorKind::Type { found, expected } => {
                let now = removed("", &path).map_or_else(String::new, |now| format!("; {now}"));
                format!("{value} must be {expected}, and is {found}{now}")
            }
            ConfigErrorKind::Other(message) => format!("{subject}{message}"),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.0.location {
            write!(Escaped(f), "{location}: ")?;
        }
        Escaped(f).write_str(&self.message())
    }
}

impl std::error::Error for ConfigError {}

impl From<ConfigErrorKind> for ConfigError {
    fn from(kind: ConfigErrorKind) -> Self {
        Self(Box::new(ErrorDetails { location: None, keys: Vec::new(), kind }))
    }
}

// Out of line: inlined, they would be in the program once for each setting.
impl de::Error for ConfigError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::unlocated(message.to_string())
    }

    #[cold]
    #[inline(never)]
    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        wrong_type(type_name(&found), expected)
    }

    #[cold]
    #[inline(never)]
    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let found = match found {
            Unexpected::Signed(number) if number < 0 => "a negative number",
            Unexpected::Signed(_) | Unexpected::Unsigned(_) => "a number that is too large",
            other => type_name(&other),
        };
        wrong_type(found, expected)
    }

    #[cold]
    #[inline(never)]
    fn invalid_length(_: usize, expected: &dyn de::Expected) -> Self {
        Self::unlocated(format!("the list is empty; allowed: {expected}"))
    }

    #[cold]
    #[inline(never)]
    fn unknown_variant(given: &str, allowed: &'static [&'static str]) -> Self {
        ConfigErrorKind::NotAChoice { given: Some(given.to_owned()), allowed }.into()
    }

    #[cold]
    #[inline(never)]
    fn unknown_field(key: &str, allowed: &'static [&'static str]) -> Self {
        ConfigErrorKind::UnknownKey { key: key.to_owned(), allowed }.into()
    }

    #[cold]
    #[inline(never)]
    fn missing_field(key: &'static str) -> Self {
        Self::unlocated(format!("{key:?} is missing"))
    }
}

// === helpers ===

fn type_name(found: &Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "true or false",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "a whole number",
        Unexpected::Float(_) => "a number with a fraction",
        Unexpected::Char(_) | Unexpected::Str(_) => "a string",
        Unexpected::Seq => "a list",
        Unexpected::Map => "a table",
        _ => "something else",
    }
}

/// A value of another type than the expected one, whose description by serde is translated into TOML terms.
pub(super) fn wrong_type(found: &'static str, expected: &dyn de::Expected) -> ConfigError {
    let expected = expected.to_string();
    let words = match expected.as_str() {
        "usize" | "u64" | "u32" | "u16" => "a whole number, 0 or more",
        "a boolean" => "true or false",
        "path string" => "a string",
        "a sequence" => "a list",
        "a map" => "a table",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    ConfigErrorKind::Type { found, expected: words.to_owned() }.into()
}

/// What holds in place of a setting that was removed.
fn removed(path: &str, key: &str) -> Option<&'static str> {
    let setting = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let fits = |pattern: &str| wildcard::matches(pattern.chars(), setting.chars());
    let is_removed = |pattern: &str| fits(pattern) || fits(&format!("policies.*.{pattern}"));
    REMOVED.lines().filter_map(|line| line.split_once(' ')).find(|(pattern, _)| is_removed(pattern)).map(|(_, now)| now)
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

/// The allowed word that is closest to `word`, if it is close enough to be a typing error.
fn closest_match<'a>(word: &str, allowed: &[&'a str]) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let most = (word.chars().count() / 3).min(3);
    let near = allowed.iter().map(|candidate| (levenshtein(&word, candidate), *candidate)).min()?;
    (near.0 <= most).then_some(near.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_close_word_is_suggested() {
        let allowed = ["listen", "workers", "max_body"];
        assert_eq!(closest_match("lisen", &allowed), Some("listen"));
        assert_eq!(closest_match("max-body", &allowed), Some("max_body"));
        assert_eq!(closest_match("threads", &allowed), None);
        assert_eq!(closest_match("l", &[]), None);
    }
}
