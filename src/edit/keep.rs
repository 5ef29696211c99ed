//! The end of a conversation, which an edit spares.

use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::{draft::Draft, units::Fraction};

/// The part that an edit spares at the end of a conversation, counted from the newest backwards: a table with exactly one of the
/// following keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// This many results.
    Results(usize),
    /// This many messages with tool calls, and their results.
    Rounds(usize),
    /// As many results as have this many tokens together; the first that does not fit ends the count.
    Tokens(usize),
    /// The same as a fraction of the model's context window. Where the window is not known, 3 results.
    Fraction(Fraction),
}

/// The part that is kept if a fraction of an unknown window is asked for.
const FALLBACK: Keep = Keep::Results(3);

impl Keep {
    /// Twice as much of what is not a part of a window.
    pub(super) fn doubled(self) -> Self {
        match self {
            Self::Results(n) => Self::Results(n.saturating_mul(2)),
            Self::Rounds(n) => Self::Rounds(n.saturating_mul(2)),
            Self::Tokens(n) => Self::Tokens(n.saturating_mul(2)),
            Self::Fraction(_) => self,
        }
    }

    /// The same without parts of a window.
    pub(super) fn resolved(self, draft: &mut Draft<'_>) -> Self {
        let Self::Fraction(fraction) = self else { return self };
        if let Some(window) = draft.window() {
            return Self::Tokens(fraction.of(window));
        }
        draft.report.unknown_window = true;
        FALLBACK
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    results: Option<usize>,
    rounds: Option<usize>,
    tokens: Option<usize>,
    fraction: Option<Fraction>,
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Table::deserialize(from)? {
            Table { results: Some(n), rounds: None, tokens: None, fraction: None } => Ok(Self::Results(n)),
            Table { results: None, rounds: Some(n), tokens: None, fraction: None } => Ok(Self::Rounds(n)),
            Table { results: None, rounds: None, tokens: Some(n), fraction: None } => Ok(Self::Tokens(n)),
            Table { results: None, rounds: None, tokens: None, fraction: Some(part) } => Ok(Self::Fraction(part)),
            _ => Err(D::Error::custom("exactly one key is needed; allowed: results, rounds, tokens, fraction")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_key() {
        for (text, expected) in
            [("results = 3", Keep::Results(3)), ("rounds = 0", Keep::Rounds(0)), ("tokens = 9", Keep::Tokens(9))]
        {
            let keep: Keep = toml::from_str(text).unwrap();
            assert_eq!(keep, expected);
            assert_eq!(toml::to_string(&keep).unwrap().trim(), text);
        }
        assert!(matches!(toml::from_str("fraction = 0.1"), Ok(Keep::Fraction(_))));
        for text in ["", "results = 1\nrounds = 1", "rows = 1", "fraction = 0.0"] {
            assert!(toml::from_str::<Keep>(text).is_err(), "{text}");
        }
    }
}
