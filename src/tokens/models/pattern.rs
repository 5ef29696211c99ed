//! Patterns of names.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::wildcard;

/// A name or a pattern of names: `*` matches any characters, `?` one. Letter case does not matter.
#[derive(Clone, Debug, derive_more::Display, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// The pattern of this text.
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Whether it matches this name.
    pub fn fits(&self, name: &str) -> bool {
        wildcard::matches(self.0.chars().map(lower), name.chars().map(lower))
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if text.contains(['{', '[', '\\']) {
            let means = "is not a pattern such as \"gpt-4o*\": only * and ? mean something";
            return Err(D::Error::custom(format_args!("{text:?} {means}")));
        }
        Ok(Self::new(&text))
    }
}

/// A character that becomes several in lower case stays what it is.
fn lower(character: char) -> char {
    let mut lower = character.to_lowercase();
    lower.next().filter(|_| lower.next().is_none()).unwrap_or(character)
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};

    use super::*;

    fn read(text: &str) -> Result<Pattern, Error> {
        let from: StrDeserializer<'_, Error> = text.into_deserializer();
        Pattern::deserialize(from)
    }

    #[test]
    fn letter_case_does_not_matter_and_a_name_with_a_maker_fits_a_star() {
        for (pattern, name) in [
            ("GPT-4o*", "gpt-4O-mini"),
            ("*", "openai/gpt-4o"),
            ("openai/*", "OpenAI/x/y"),
            ("O?-mini", "o3-mini"),
            ("É", "é"),
        ] {
            assert!(read(pattern).unwrap().fits(name), "{pattern} {name}");
        }
        assert!(!read("gpt-4").unwrap().fits("gpt-4o"));
    }

    #[test]
    fn braces_classes_and_escapes_are_refused_with_the_reason() {
        for text in ["gpt-{4,5}", "o[13]", r"a\*"] {
            let said = format!("{text:?} is not a pattern such as \"gpt-4o*\": only * and ? mean something");
            assert_eq!(read(text).unwrap_err().to_string(), said);
        }
    }
}
