//! What is wrong with the settings, in one line: where it was written, what is wrong, what is allowed.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, Unexpected};

/// Something that the settings must not say. Its [`fmt::Display`] is one line without control characters.
#[derive(Clone, Debug)]
pub struct Problem(Box<Fault>);

#[derive(Clone, Debug)]
struct Fault {
    place: Option<Place>,
    /// The keys that lead to the value, innermost first.
    keys: Vec<String>,
    wrong: Wrong,
}

/// Where a value was written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// A line and a column, in characters, of a file.
    File { name: Arc<str>, line: usize, column: usize },
    /// A file as a whole.
    WholeFile(Arc<str>),
    /// An environment variable.
    Variable(Arc<str>),
    /// A flag of the command line.
    Flag(&'static str),
}

/// What is wrong. Values are shown only where they cannot be secret.
#[derive(Clone, Debug)]
pub(super) enum Wrong {
    UnknownKey { key: String, allowed: &'static [&'static str], elsewhere: Option<String> },
    NotAChoice { given: Option<String>, allowed: &'static [&'static str] },
    Type { found: &'static str, expected: String },
    Missing(&'static str),
    Syntax(String),
    Other(String),
}

// === impl Problem ===

impl Problem {
    pub(super) fn new(place: Place, wrong: Wrong) -> Self {
        Self(Box::new(Fault { place: Some(place), keys: Vec::new(), wrong }))
    }

    /// A problem that no place of the settings has, such as a file that one of them names.
    pub fn elsewhere(message: impl Into<String>) -> Self {
        Self::nowhere(Wrong::Other(message.into()))
    }

    /// Whether the command line is to blame, and not a file or the environment.
    pub fn is_of_a_flag(&self) -> bool {
        matches!(self.0.place, Some(Place::Flag(_)))
    }

    /// The place, if the problem has none yet.
    pub(super) fn at(mut self, place: &Place) -> Self {
        self.0.place.get_or_insert_with(|| place.clone());
        self
    }

    /// The problem, seen from the table that holds its value under `key`.
    pub(super) fn within(mut self, key: &str) -> Self {
        self.0.keys.push(key.to_owned());
        self
    }

    /// Whether the value has another type than its key wants.
    pub(super) fn is_of_type(&self) -> bool {
        matches!(self.0.wrong, Wrong::Type { .. })
    }

    /// Names the table that has the key that is unknown here, if one has.
    pub(super) fn hint(mut self, table_with: impl Fn(&str) -> Option<String>) -> Self {
        if let Wrong::UnknownKey { key, elsewhere, .. } = &mut self.0.wrong {
            *elsewhere = table_with(key);
        }
        self
    }

    fn nowhere(wrong: Wrong) -> Self {
        Self(Box::new(Fault { place: None, keys: Vec::new(), wrong }))
    }

    fn path(&self) -> String {
        self.0.keys.iter().rev().map(String::as_str).collect::<Vec<_>>().join(".")
    }

    fn text(&self) -> String {
        let path = self.path();
        let named = matches!(self.0.place, Some(Place::Variable(_) | Place::Flag(_)));
        let subject = if path.is_empty() || named { String::new() } else { format!("{path}: ") };
        let value = if path.is_empty() { "the value" } else { path.as_str() };
        match &self.0.wrong {
            Wrong::UnknownKey { key, allowed, elsewhere } => {
                let table = if path.is_empty() { "at the top level".to_owned() } else { format!("in [{path}]") };
                let hint = match (nearest(key, allowed), elsewhere) {
                    (Some(near), _) => format!("did you mean {near:?}? "),
                    (None, Some(other)) => format!("it belongs to [{other}]; "),
                    (None, None) => String::new(),
                };
                format!("unknown key {key:?} {table}; {hint}allowed: {}", allowed.join(", "))
            }
            Wrong::NotAChoice { given: Some(given), allowed } => {
                let hint = nearest(given, allowed).map_or_else(String::new, |near| format!("did you mean {near:?}? "));
                format!("{subject}{given:?} is not a choice; {hint}allowed: {}", quoted(allowed))
            }
            Wrong::NotAChoice { given: None, allowed } => {
                format!("{value} must be a string; allowed: {}", quoted(allowed))
            }
            Wrong::Type { found, expected } => format!("{value} must be {expected}, and is {found}"),
            Wrong::Missing(key) => format!("{subject}{key:?} is missing"),
            Wrong::Syntax(message) => format!("not valid TOML: {message}"),
            Wrong::Other(message) => format!("{subject}{message}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match &self.0.place {
            Some(place) => format!("{place}: {}", self.text()),
            None => self.text(),
        };
        text.chars()
            .try_for_each(|c| if c.is_control() { write!(f, "{}", c.escape_default()) } else { write!(f, "{c}") })
    }
}

impl std::error::Error for Problem {}

impl de::Error for Problem {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::elsewhere(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::nowhere(Wrong::Type { found: kind(&found), expected: wanted(&expected.to_string()) })
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let found = match found {
            Unexpected::Signed(number) if number < 0 => "a negative number",
            Unexpected::Signed(_) | Unexpected::Unsigned(_) => "a number that is too large",
            other => kind(&other),
        };
        Self::nowhere(Wrong::Type { found, expected: wanted(&expected.to_string()) })
    }

    fn invalid_length(_: usize, expected: &dyn de::Expected) -> Self {
        Self::elsewhere(format!("the list is empty; allowed: {expected}"))
    }

    fn unknown_variant(given: &str, allowed: &'static [&'static str]) -> Self {
        Self::nowhere(Wrong::NotAChoice { given: Some(given.to_owned()), allowed })
    }

    fn unknown_field(key: &str, allowed: &'static [&'static str]) -> Self {
        Self::nowhere(Wrong::UnknownKey { key: key.to_owned(), allowed, elsewhere: None })
    }

    fn missing_field(key: &'static str) -> Self {
        Self::nowhere(Wrong::Missing(key))
    }
}

impl Wrong {
    pub(super) fn syntax(error: &toml::de::Error) -> Self {
        Self::Syntax(error.message().lines().collect::<Vec<_>>().join(", "))
    }
}

// === impl Place ===

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Self::WholeFile(name) | Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

// === helpers ===

fn kind(found: &Unexpected<'_>) -> &'static str {
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

/// serde's words for what a type takes, as people who write TOML would say it.
fn wanted(expected: &str) -> String {
    let words = match expected {
        "usize" | "u64" | "u32" | "u16" => "a whole number, 0 or more",
        "a boolean" => "true or false",
        "path string" => "a string",
        "a sequence" => "a list",
        "a map" => "a table",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    words.to_owned()
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

/// The allowed word that somebody who typed `word` most likely meant.
fn nearest<'a>(word: &str, allowed: &[&'a str]) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let most = (word.chars().count() / 3).min(3);
    let near = allowed.iter().map(|candidate| (distance(&word, candidate), *candidate)).min()?;
    (near.0 <= most).then_some(near.1)
}

/// How many letters must be changed, put in or taken out to get from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut above_left = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, b) in row.iter_mut().skip(1).zip(to.chars()) {
            let changed = above_left + usize::from(a != b);
            above_left = *cell;
            left = changed.min(left + 1).min(*cell + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_letters_between_two_words() {
        for (from, to, n) in
            [("", "", 0), ("", "ab", 2), ("lisen", "listen", 1), ("kitten", "sitting", 3), ("ab", "", 2)]
        {
            assert_eq!(distance(from, to), n, "{from} {to}");
        }
    }

    #[test]
    fn guesses_only_what_is_near() {
        let allowed = ["listen", "workers", "max_body"];
        assert_eq!(nearest("lisen", &allowed), Some("listen"));
        assert_eq!(nearest("max-body", &allowed), Some("max_body"));
        assert_eq!(nearest("threads", &allowed), None);
        assert_eq!(nearest("l", &[]), None);
    }
}
