//! What tokens cost: those of a request relative to one that no prompt cache knows, what a change before them makes of that,
//! and all of them in dollars.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize, Serializer};

use super::models::{self, Pattern, TABLES_FILE, is_family};
use crate::local_address::is_local_address;
use crate::payload::cache::{Cache, with_slots};

mod dollars;

pub use dollars::{Nanodollars, Rates};

/// One of the `[[prices]]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The models that it is about.
    ///
    /// Not set: all models.
    ///
    /// Example: `"glm-*"`
    pub model: Option<Pattern>,
    /// The hosts of the upstreams that it is about.
    ///
    /// Not set: all upstreams.
    ///
    /// Example: `"*.example.com"`
    pub upstream: Option<Pattern>,
    /// A token that is read from the prompt cache. 1 means an upstream without a cache, 0 one whose tokens cost
    /// nothing, as a local model's. Allowed: 0 to 1.
    ///
    /// Not set: what the built-in table says of the upstream and the model, or else 0.1.
    ///
    /// Example: `0.1`
    pub read: Option<Price>,
    /// A token that is not in the cache, and is written to it. Allowed: 0 to 10, and no less than `read`.
    ///
    /// Not set: what the built-in table says of the upstream and the model, or else 1.
    ///
    /// Example: `1.25`
    pub write: Option<Price>,
    /// The part of a cache that is lost when a message changes.
    ///
    /// Not set: `"suffix"`.
    ///
    /// Example: `"suffix"`
    #[serde(rename = "break")]
    pub on_break: Option<Break>,
    /// The price of a million input tokens that no prompt cache knows, in dollars. Allowed: 0 to 10000.
    ///
    /// Not set: what the built-in table says of the model. A model without prices is counted in tokens alone.
    ///
    /// Example: `3.0`
    pub input: Option<Dollars>,
    /// The price of a million tokens of answers, in dollars. Allowed: 0 to 10000.
    ///
    /// Not set: what the built-in table says of the model.
    ///
    /// Example: `15.0`
    pub output: Option<Dollars>,
}

/// A number from 0 to `MOST`, in millionths.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
#[serde(try_from = "f64")]
pub struct Millionths<const MOST: u32>(u64);

/// The price of a token, as a multiple of the price of an input token that no cache knows.
pub type Price = Millionths<10>;

/// Dollars for a million tokens.
pub type Dollars = Millionths<10_000>;

const ONE: u64 = 1_000_000;

/// The part of a cache that is lost when a message changes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Break {
    /// That message and all after it.
    #[default]
    Suffix,
    /// The whole request, as servers of hybrid and recurrent models do.
    All,
}

/// The prices of the tokens of a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Prices {
    /// A token that is read from the cache.
    pub read: Price,
    /// A token that is written to the cache.
    pub write: Price,
    /// The part of a cache that is lost.
    pub on_break: Break,
}

/// The prices at one upstream.
#[derive(Debug)]
pub struct PriceList {
    /// The tables that are about this upstream.
    tables: Vec<Settings>,
    /// The `[[models]]` of the settings, for their aliases.
    models: Vec<models::Settings>,
    /// The host of the upstream.
    pub upstream: String,
    /// The prices in dollars by model.
    found: Cache<Box<str>, Option<Rates>>,
}

/// How many models are remembered, whose names clients choose.
const MAX_FOUND: usize = 256;

/// The prices of the tokens of some models.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    name: String,
    read: Price,
    write: Price,
    /// The host of the only upstream that it is about.
    host: Option<String>,
}

/// The prices in the file of models.
#[derive(Default, Deserialize)]
struct Tables {
    prices: Vec<Known>,
    dollars: Vec<dollars::Known>,
}

/// A test reads the file.
static TABLES: LazyLock<Tables> = LazyLock::new(|| toml::from_str(TABLES_FILE).unwrap_or_default());

/// Where nothing else is known.
const USUAL: (Price, Price) = (Price::TENTH, Price::INPUT);

// === impl Millionths ===

impl<const MOST: u32> Millionths<MOST> {
    /// The number 1.
    pub const ONE: Self = Self(ONE);

    /// A tenth.
    pub const TENTH: Self = Self(ONE / 10);

    /// The number, if it is in the range.
    pub fn new(number: f64) -> Option<Self> {
        Self::try_from(number).ok()
    }

    /// The number.
    #[expect(clippy::cast_precision_loss, reason = "it is far below 2^53")]
    pub fn value(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// So many times the number, in millionths.
    pub fn of(self, n: usize) -> u64 {
        self.0.saturating_mul(n as u64)
    }
}

impl<const MOST: u32> FromStr for Millionths<MOST> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse::<f64>().map_err(|_| format!("not a number; allowed: 0 to {MOST}, such as 0.1"));
        number.and_then(Self::try_from)
    }
}

impl<const MOST: u32> TryFrom<f64> for Millionths<MOST> {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        let is_allowed = (0.0..=f64::from(MOST)).contains(&number);
        let error = || format!("{number} is out of range; allowed: 0 to {MOST}");
        is_allowed.then(|| Self(whole(number * 1e6))).ok_or_else(error)
    }
}

impl<const MOST: u32> fmt::Display for Millionths<MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.value();
        if number.fract() == 0.0 { write!(f, "{number:.1}") } else { write!(f, "{number}") }
    }
}

impl<const MOST: u32> Serialize for Millionths<MOST> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.value())
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float saturates")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

// === impl Price ===

impl Price {
    /// The price of an input token that no cache knows.
    pub const INPUT: Self = Self::ONE;

    /// Whether tokens cost nothing.
    pub fn is_free(self) -> bool {
        self.0 == 0
    }

    /// How much more this is than another price; nothing if it is less.
    #[must_use]
    pub fn above(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

// === impl PriceList ===

impl PriceList {
    /// The prices at the upstream of this host.
    pub fn new(settings: &[Settings], models: &[models::Settings], upstream: &str) -> Self {
        // As the table of models is.
        LazyLock::force(&TABLES);
        let is_here = |table: &&Settings| table.upstream.as_ref().is_none_or(|pattern| pattern.fits(upstream));
        let tables = settings.iter().filter(is_here).cloned().collect();
        Self { tables, models: models.to_vec(), upstream: upstream.to_owned(), found: with_slots(MAX_FOUND) }
    }

    /// The prices of a model.
    pub fn of_model(&self, model: Option<&str>) -> Prices {
        self.of_request(model, false)
    }

    /// The same for a request that asks the cache to keep it for an hour, if `for_an_hour`: to write it costs twice an input
    /// token where the settings do not say otherwise.
    pub fn of_request(&self, model: Option<&str>, for_an_hour: bool) -> Prices {
        let model = model.unwrap_or_default();
        let (read, write) = built_in(self.unaliased(model), &self.upstream);
        let write = if for_an_hour { Millionths(2 * ONE) } else { write };
        let read = self.set(model, |table| table.read).unwrap_or(read);
        let write = self.set(model, |table| table.write).unwrap_or(write).max(read);
        Prices { read, write, on_break: self.set(model, |table| table.on_break).unwrap_or_default() }
    }

    fn unaliased<'n>(&'n self, name: &'n str) -> &'n str {
        models::unaliased(&self.models, name)
    }

    /// The key in the first table that has it and is about the name, or about the model that it is an alias of.
    fn set<T>(&self, name: &str, key: impl Fn(&Settings) -> Option<T>) -> Option<T> {
        let fits = |pattern: &Pattern| pattern.fits(name) || pattern.fits(self.unaliased(name));
        let is_of = |table: &&Settings| table.model.as_ref().is_none_or(fits);
        self.tables.iter().filter(is_of).find_map(key)
    }
}

/// The facts about a model at an upstream. A maker's model costs what its maker asks, also behind a gateway.
fn built_in(model: &str, upstream: &str) -> (Price, Price) {
    let fits = |known: &&Known| {
        is_family(model, &known.name) && known.host.as_ref().is_none_or(|host| upstream.eq_ignore_ascii_case(host))
    };
    match TABLES.prices.iter().find(fits) {
        Some(known) => (known.read, known.write),
        None if is_local(upstream) => (Millionths(0), Price::INPUT),
        None => USUAL,
    }
}

/// Whether a host is this machine, or one of the same network.
fn is_local(host: &str) -> bool {
    let name = host.to_ascii_lowercase();
    let end = name.rsplit('.').next();
    is_local_address(host).unwrap_or(matches!(end, Some("localhost" | "local" | "internal")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn prices(settings: &str, upstream: &str, model: &str) -> (u64, u64, Break) {
        let settings: Vec<Settings> =
            toml::from_str::<BTreeMap<String, Vec<Settings>>>(settings).unwrap().remove("prices").unwrap_or_default();
        let Prices { read, write, on_break } = PriceList::new(&settings, &[], upstream).of_model(Some(model));
        (read.0 / 1000, write.0 / 1000, on_break)
    }

    #[test]
    fn makers_models_have_the_prices_of_their_makers_behind_a_gateway_too() {
        for (upstream, model, read, write) in [
            ("api.anthropic.com", "claude-sonnet-4-5-20250929", 100, 1250),
            ("openrouter.ai", "anthropic/claude-opus-5.5", 50, 1250),
            ("127.0.0.1", "claude-haiku-4-5", 100, 1250),
            ("bedrock.example", "us.anthropic.claude-opus-4-5-20251101-v1:0", 100, 1250),
            ("api.openai.com", "gpt-5.4-mini", 100, 1000),
            ("api.openai.com", "gpt-5.6-sol", 100, 1250),
            ("api.openai.com", "gpt-4o-2024-08-06", 500, 1000),
            ("api.deepseek.com", "deepseek-v4-flash", 20, 1000),
            ("api.together.ai", "deepseek-v4-flash", 100, 1000),
            ("api.example.com", "nobody-knows", 100, 1000),
            ("localhost", "qwen3", 0, 1000),
            ("192.168.1.7", "deepseek-r1:8b", 0, 1000),
            ("::1", "", 0, 1000),
        ] {
            assert_eq!(prices("", upstream, model), (read, write, Break::Suffix), "{upstream} {model}");
        }
    }

    #[test]
    fn an_alias_has_the_prices_of_its_model() {
        let models = [toml::from_str("match = 'our-*'\nalias_of = 'gpt-4o'").unwrap()];
        let table = |toml: &str| toml::from_str::<Settings>(toml).unwrap();
        let list = PriceList::new(
            &[table("model = 'our-own'\ninput = 9"), table("model = 'gpt-4o'\nread = 0.4")],
            &models,
            "",
        );
        assert_eq!(list.of_model(Some("our-gpt")), list.of_model(Some("gpt-4o")));
        assert_eq!(list.dollars("our-gpt"), list.dollars("gpt-4o"));
        let [own, of_model] = ["our-own", "gpt-4o"].map(|name| list.dollars(name).unwrap());
        assert_eq!((own.input, own.output, own.read), (9.0, of_model.output, 9.0 * 0.4));
    }

    #[test]
    fn for_each_key_the_first_table_that_fits_and_has_it_counts() {
        let settings = "[[prices]]\nmodel = 'glm-*'\nwrite = 1.5\n\
                        [[prices]]\nupstream = '*.z.ai'\nread = 0.2\nwrite = 2\nbreak = 'all'\n[[prices]]\nread = 0.3";
        assert_eq!(prices(settings, "api.z.ai", "glm-5"), (200, 1500, Break::All));
        assert_eq!(prices(settings, "api.z.ai", "other"), (200, 2000, Break::All));
        assert_eq!(prices(settings, "other.example", "glm-5"), (300, 1500, Break::Suffix));
        assert_eq!(prices(settings, "other.example", "other"), (300, 1000, Break::Suffix));
        // Without a cache every token costs what an input token costs.
        assert_eq!(prices("[[prices]]\nread = 1", "localhost", ""), (1000, 1000, Break::Suffix));
    }

    #[test]
    fn prices_are_from_nothing_to_ten() {
        let read =
            |text: &str| toml::from_str::<Settings>(&format!("read = {text}")).map_err(|error| error.to_string());
        for text in ["0", "0.0", "0.02", "1", "10"] {
            let settings = read(text).unwrap();
            assert_eq!(toml::from_str::<Settings>(&toml::to_string(&settings).unwrap()).unwrap(), settings);
        }
        for text in ["-0.1", "10.01", "nan"] {
            assert!(read(text).unwrap_err().contains("out of range; allowed: 0 to 10"), "{text}");
        }
    }
}
