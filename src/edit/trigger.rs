//! When an edit starts: conditions on the size of a conversation. And the end of a conversation, which it spares.

use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::draft::Draft;
use crate::units::{Fraction, one_or_more};

/// When an edit acts: one condition, or a list of conditions of which at least one must hold. A condition is a table of
/// the following keys, and holds when every key in it holds (`>=`).
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Trigger(pub Vec<Condition>);

/// A table, which holds where all that it names holds.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields, expecting = "a table such as { tokens = 100000 }, or a list of them")]
pub struct Condition {
    /// The tokens of the request, tool definitions included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// The length of the `messages` array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<usize>,
    /// The tokens of the request as a fraction of the model's context window. Where the window is not known, the
    /// condition does not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<Fraction>,
    /// With `true` the condition holds only if the context window of the model is unknown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_window: bool,
}

/// Where in a conversation an edit acts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Moment {
    /// At every request for which the trigger holds.
    #[default]
    Any,
    /// At the first request of a user's turn: the newest message is the user's own, and no tool result. The conditions of
    /// the trigger are lower there. Between turns the trigger has to hold as it is written.
    Turn,
}

/// The conditions of one request, as numbers.
pub(super) struct Limits(Vec<Limit>);

#[derive(Clone, Copy, Debug)]
struct Limit {
    tokens: Option<usize>,
    messages: usize,
}

/// A part of a trigger: so many of so many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part(pub(super) usize, pub(super) usize);

/// No model has a smaller window, so no condition that asks for a part of it holds below that part of this.
pub const MIN_WINDOW: usize = 4096;

impl Part {
    /// The part of a number, rounded up.
    pub(super) fn of(self, n: usize) -> usize {
        let Self(part, whole) = self;
        n - n / whole * (whole - part)
    }
}

impl Trigger {
    /// The conditions as numbers of the model that is asked.
    pub(super) fn limits(&self, draft: &mut Draft<'_>) -> Limits {
        let asks = |condition: &Condition| condition.fraction.is_some() || condition.without_window;
        let window = if self.0.iter().any(asks) { draft.window() } else { None };
        let limits = self.limits_within(window);
        if window.is_none() && limits.0.len() < self.0.len() {
            draft.report.unknown_window = true;
        }
        limits
    }

    /// The conditions that may hold in a window of so many tokens, or in one that is not known.
    fn limits_within(&self, window: Option<usize>) -> Limits {
        let limit = |condition: &Condition| {
            if condition.without_window && window.is_some() {
                return None;
            }
            let part = match condition.fraction {
                Some(fraction) => Some(fraction.of(window?)),
                None => None,
            };
            let tokens = condition.tokens.max(part);
            Some(Limit { tokens, messages: condition.messages.unwrap_or_default() })
        };
        Limits(self.0.iter().filter_map(limit).collect())
    }

    /// A body of fewer bytes is below every condition, whatever the model.
    pub(super) fn least_bytes(&self) -> usize {
        self.least_bytes_within(Some(MIN_WINDOW)).min(self.least_bytes_within(None))
    }

    /// A body of fewer bytes is below every condition, where the window has so many tokens or is not known.
    pub(super) fn least_bytes_within(&self, window: Option<usize>) -> usize {
        // A message is {} and a comma.
        let least = |limit: &Limit| limit.tokens.unwrap_or_default().max(limit.messages.saturating_mul(3));
        self.limits_within(window).0.iter().map(least).min().unwrap_or(usize::MAX)
    }
}

impl Condition {
    /// From this number of tokens on.
    pub(crate) fn tokens(tokens: usize) -> Self {
        Self { tokens: Some(tokens), ..Self::default() }
    }

    /// From this part of the window on.
    pub(crate) fn fraction(part: f64) -> Self {
        Self { fraction: Fraction::new(part), ..Self::default() }
    }
}

impl Limits {
    /// Whether one of them holds. With bytes for tokens it says whether it may, as a token has a byte or more.
    pub(super) fn hold(&self, n_tokens: usize, n_messages: usize) -> bool {
        self.0.iter().any(|limit| limit.tokens.is_none_or(|least| n_tokens >= least) && n_messages >= limit.messages)
    }

    /// The same where something was done before that makes tokens fewer and leaves messages as many as they are:
    /// conditions that ask for messages alone ask for so many that have come since then, too.
    pub(super) fn hold_anew(&self, n_tokens: usize, n_messages: usize, n_since: usize) -> bool {
        self.0.iter().any(|limit| {
            let enough = limit.tokens.map_or(n_since >= limit.messages, |least| n_tokens >= least);
            enough && n_messages >= limit.messages
        })
    }

    /// The same at a part of them.
    pub(super) fn at(&self, part: Part) -> Self {
        let lower =
            |limit: &Limit| Limit { tokens: limit.tokens.map(|n| part.of(n)), messages: part.of(limit.messages) };
        Self(self.0.iter().map(lower).collect())
    }

    /// The least tokens that one of them asks for; 0 where none asks for any.
    pub(super) fn least_tokens(&self) -> usize {
        self.0.iter().filter_map(|limit| limit.tokens).min().unwrap_or_default()
    }

    /// Whether tokens need to be counted to know.
    pub(super) fn ask_for_tokens(&self) -> bool {
        self.0.iter().any(|limit| limit.tokens.is_some())
    }
}

impl<'de> Deserialize<'de> for Trigger {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let conditions = one_or_more(from, "a table such as { tokens = 100000 }, or a list of them")?;
        if conditions.is_empty() {
            return Err(D::Error::custom("the list is empty; allowed: at least one table"));
        }
        // A table that names nothing would always hold, and no one means that.
        if conditions.contains(&Condition::default()) {
            return Err(D::Error::custom("the table is empty; allowed: tokens, messages, fraction"));
        }
        Ok(Self(conditions))
    }
}

/// The part that an edit spares at the end of a conversation, counted from the newest backwards: a table with exactly one of the
/// following keys.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
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
    pub(super) fn doubled(mut self) -> Self {
        if let Self::Results(n) | Self::Rounds(n) | Self::Tokens(n) = &mut self {
            *n = n.saturating_mul(2);
        }
        self
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Table {
        trigger: Trigger,
    }

    fn trigger(text: &str) -> Result<Trigger, String> {
        toml::from_str::<Table>(text).map(|table| table.trigger).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn one_table_is_a_list_of_one() {
        assert_eq!(
            trigger("trigger = { tokens = 1, messages = 2 }"),
            trigger("trigger = [{ tokens = 1, messages = 2 }]")
        );
        assert!(trigger("trigger = {}").unwrap_err().contains("the table is empty"));
        assert!(trigger("trigger = []").unwrap_err().contains("the list is empty"));
        assert!(trigger("trigger = [{ fraction = 1.5 }]").is_err());
        assert!(trigger("trigger = 100000").unwrap_err().contains("a table such as { tokens = 100000 }"));
    }

    #[test]
    fn a_table_is_and_a_list_is_or() {
        let limits = Limits(vec![Limit { tokens: Some(10), messages: 3 }, Limit { tokens: None, messages: 5 }]);
        for (n_tokens, n_messages, expected) in
            [(10, 3, true), (9, 3, false), (10, 2, false), (0, 5, true), (0, 4, false)]
        {
            assert_eq!(limits.hold(n_tokens, n_messages), expected, "{n_tokens} {n_messages}");
        }
        assert!(limits.ask_for_tokens());
        assert_eq!(limits.least_tokens(), 10);
        assert_eq!(Limits(vec![Limit { tokens: None, messages: 5 }]).least_tokens(), 0);
    }

    #[test]
    fn the_least_body_that_is_counted() {
        let least = |text: &str| trigger(&format!("trigger = {text}")).unwrap().least_bytes();
        assert_eq!(least("{ tokens = 100 }"), 100);
        assert_eq!(least("[{ tokens = 100000 }, { fraction = 0.5 }]"), 2048);
        assert_eq!(least("{ tokens = 100, messages = 50 }"), 150);
    }

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
