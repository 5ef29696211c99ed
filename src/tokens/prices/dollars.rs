//! What requests and answers cost in dollars.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Dollars, PriceList, whole};
use crate::tokens::Usage;
use crate::tokens::models::is_family;

/// An amount of money in billionths of a dollar: what a token costs is a whole number of them, or nearly.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Nanodollars(pub u64);

/// The price of a million tokens, in dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Input that no prompt cache knows.
    pub input: f64,
    /// Input that a cache serves.
    pub read: f64,
    /// Input that is written to a cache.
    pub write: f64,
    /// Input that is written to a cache which keeps it for an hour.
    pub write_hour: f64,
    /// Output.
    pub output: f64,
    /// From how many tokens of input on a request costs more, and how much more.
    long: Option<Long>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Long {
    over: u64,
    times_input: f64,
    times_output: f64,
}

/// What some models cost, in the file of models.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    name: String,
    input: f64,
    output: f64,
    long: Option<Long>,
}

/// What a cache that keeps a prompt for an hour asks for writing, relative to other input. Source: platform.claude.com (prompt
/// caching). No other vendor sells lifetimes.
const HOUR: f64 = 2.0;

// === impl Nanodollars ===

impl Nanodollars {
    /// The amount in dollars.
    #[expect(clippy::cast_precision_loss, reason = "a rounding by a billionth is of no account")]
    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl std::ops::Add for Nanodollars {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Nanodollars {
    /// In cents; below ten cents with two digits more: `$13.10`, `$0.0042`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dollars = self.dollars();
        if dollars == 0.0 || dollars >= 0.1 { write!(f, "${dollars:.2}") } else { write!(f, "${dollars:.4}") }
    }
}

// === impl PriceList ===

impl PriceList {
    /// The prices of a model in dollars, which are looked up once; `None` if neither the settings nor the built-in table say so.
    pub fn dollars(&self, model: &str) -> Option<Rates> {
        self.found.get(model).unwrap_or_else(|| {
            let rates = self.look_up(model);
            self.found.insert(model.into(), rates);
            rates
        })
    }

    fn look_up(&self, name: &str) -> Option<Rates> {
        let known = super::TABLES.dollars.iter().find(|known| is_family(self.unaliased(name), &known.name));
        let set_input = self.set(name, |table| table.input).map(Dollars::value);
        let set_output = self.set(name, |table| table.output).map(Dollars::value);
        let input = set_input.or(known.map(|known| known.input))?;
        let output = set_output.or(known.map(|known| known.output))?;
        let prices = self.of_model(Some(name));
        // Prices of the settings hold for requests of any length.
        let long = known.filter(|_| set_input.is_none() && set_output.is_none()).and_then(|known| known.long);
        let write = input * prices.write.value();
        // A cache that asks nothing for writing has no lifetimes to sell.
        let write_hour = if prices.write > super::Price::INPUT { input * HOUR } else { write };
        Some(Rates { input, read: input * prices.read.value(), write, write_hour, output, long })
    }
}

// === impl Rates ===

impl Rates {
    /// The cost of a request and its answer.
    #[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2^53")]
    pub fn cost(&self, usage: &Usage) -> Nanodollars {
        let Usage { input, cached, written, written_hour, output } = *usage;
        let plain = input.saturating_sub(cached).saturating_sub(written);
        let written_short = written.saturating_sub(written_hour);
        let of_input = [
            (plain, self.input),
            (cached, self.read),
            (written_short, self.write),
            (written.min(written_hour), self.write_hour),
        ];
        let of_input: f64 = of_input.into_iter().map(|(tokens, rate)| tokens as f64 * rate).sum();
        let of_output = output as f64 * self.output;
        let long = self.long.filter(|long| input > long.over);
        let (times_input, times_output) = long.map_or((1.0, 1.0), |long| (long.times_input, long.times_output));
        // A dollar for a million tokens is a thousand billionths for one.
        Nanodollars(whole((of_input * times_input + of_output * times_output) * 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::prices::Settings;

    #[test]
    fn a_line_of_the_file_has_no_other_keys() {
        let read = |more: &str| toml::from_str::<Known>(&format!("name = \"m\"\ninput = 1.0\noutput = 2.0\n{more}"));
        assert!(read("").is_ok_and(|known| known.long.is_none()));
        assert!(
            read("long = { over = 9, times_input = 2.0, times_output = 1.5 }").is_ok_and(|known| known.long.is_some())
        );
        for wrong in ["ouput = 3.0", "over = 9", "long = { over = 9 }", "long = { over = 9, times_inputs = 2.0 }"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    fn rates(settings: &str, model: &str) -> Option<Rates> {
        PriceList::new(&[toml::from_str::<Settings>(settings).unwrap()], &[], "api.example.com").dollars(model)
    }

    fn cost(settings: &str, model: &str, usage: Usage) -> String {
        rates(settings, model).map_or_else(String::new, |rates| format!("{:.6}", rates.cost(&usage).dollars()))
    }

    #[test]
    fn each_kind_of_token_has_its_price() {
        let usage = Usage { input: 111_000, cached: 100_000, written: 10_000, written_hour: 4_000, output: 2_000 };
        // 1,000 at $5, 100,000 at $0.50, 6,000 at $6.25, 4,000 at $10, 2,000 at $25, each a million.
        assert_eq!(cost("", "claude-opus-4-5-20251101", usage), "0.182500");
        // 101,000 at $0.25, no price for writing, 2,000 at $10.
        let usage = Usage { input: 101_000, cached: 100_000, output: 2_000, ..Usage::default() };
        assert_eq!(cost("", "gpt-5.4", usage), "0.057500");
        assert_eq!(cost("", "anthropic/claude-sonnet-5.5", usage), "0.032000");
    }

    #[test]
    fn a_long_request_costs_more_as_a_whole() {
        let usage = |input| Usage { input, cached: 0, output: 1_000, ..Usage::default() };
        assert_eq!(cost("", "gpt-5.5", usage(272_000)), "1.390000");
        assert_eq!(cost("", "gpt-5.5", usage(272_001)), "2.765010");
        assert_eq!(cost("", "claude-haiku-5-5", usage(100_010)), "0.052505");
    }

    #[test]
    fn the_settings_win_and_a_model_without_a_price_has_no_cost() {
        let usage = Usage { input: 1_000_000, cached: 500_000, output: 1_000_000, ..Usage::default() };
        assert_eq!(rates("", "nobody-knows"), None);
        assert_eq!(rates("", "deepseek-chat"), None);
        assert_eq!(rates("input = 1.0", "nobody-knows"), None, "half of a price is none");
        assert_eq!(cost("input = 1\noutput = 4", "nobody-knows", usage), "4.550000");
        let settings = "model = 'glm-*'\ninput = 2.0\noutput = 0.5\nread = 0.5\n";
        assert_eq!(cost(settings, "glm-5", usage), "2.000000");
        assert_eq!(rates(settings, "other"), None);
        // One price that is set holds for any length of request, beside the known one of the other kind.
        assert_eq!(cost("output = 1", "gpt-5.5", usage), "3.750000");
    }

    #[test]
    fn amounts_are_in_cents() {
        for (nano, shown) in [(0, "$0.00"), (4_200_000, "$0.0042"), (13_099_000_000, "$13.10"), (99_000_000, "$0.0990")]
        {
            assert_eq!(Nanodollars(nano).to_string(), shown);
        }
    }

    #[test]
    fn prices_are_from_nothing_to_ten_thousand() {
        for text in ["-1", "10000.5", "nan"] {
            let error = toml::from_str::<Settings>(&format!("input = {text}")).unwrap_err().to_string();
            assert!(error.contains("out of range; allowed: 0 to 10000"), "{text}: {error}");
        }
        let settings: Settings = toml::from_str("input = 0.1\noutput = 10000").unwrap();
        assert_eq!(toml::from_str::<Settings>(&toml::to_string(&settings).unwrap()).unwrap(), settings);
    }
}
