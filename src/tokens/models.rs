//! Facts about models: how many tokens they take, and how they split text.
//!
//! A window is never guessed. It comes from, in this order: the `[[models]]` of the settings, what the upstream itself
//! says, the table in here. Encodings come from the settings and the table; OpenAI's newest is used for the rest.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use super::{factor::Factor, tiktoken::Encoding};
use crate::payload::cache::{Cache, with_slots};
use crate::wildcard;

mod known;
mod listing;
mod names;

use known::TABLES;
pub(super) use known::TABLES_FILE;
pub use known::{MediaLimits, Reasoning};
pub use listing::{LocalServer, num_ctx, windows_in};

/// The most models whose window is remembered because an upstream named it; no upstream lists as many.
const MAX_LEARNED: usize = 4096;

/// The most names of which is remembered what settings and table say of them.
const MAX_FOUND: usize = 256;

/// Of longer names, in bytes, nothing is remembered; no model has one.
const MAX_FOUND_NAME: usize = 256;

/// One of the `[[models]]` of `proxy.toml`. What it does not say is looked for in the next one that fits, and at last in
/// what is known otherwise.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The models that this table is about.
    ///
    /// Example: `"my-model*"`
    #[serde(rename = "match")]
    pub pattern: Pattern,
    /// The model that these names are aliases of, such as the model of a deployment at Azure: they have its context window,
    /// its tokens and its prices.
    ///
    /// Not set: each name is that of a model.
    ///
    /// Example: `"gpt-5.5"`
    pub alias_of: Option<String>,
    /// How many tokens prompt and answer may have together.
    ///
    /// Not set: what the upstream or the built-in table says.
    ///
    /// Example: `32768`
    #[serde(default, deserialize_with = "at_least_one")]
    pub context_window: Option<usize>,
    /// How the model splits text into tokens.
    ///
    /// Not set: what the built-in table says, or else `"o200k_base"`.
    ///
    /// Example: `"o200k_base"`
    pub encoding: Option<Encoding>,
}

/// A name or a pattern of names: `*` matches any characters, `?` one. Letter case does not matter.
#[derive(Clone, Debug, derive_more::Display, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Pattern(#[serde(deserialize_with = "pattern")] Box<str>);

fn pattern<'de, D: Deserializer<'de>>(from: D) -> Result<Box<str>, D::Error> {
    let text = String::deserialize(from)?;
    if text.contains(['{', '[', '\\']) {
        let means = "is not a pattern such as \"gpt-4o*\": only * and ? mean something";
        return Err(D::Error::custom(format_args!("{text:?} {means}")));
    }
    Ok(text.into())
}

impl Pattern {
    /// The pattern of this text.
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Whether it matches this name.
    pub fn fits(&self, name: &str) -> bool {
        let lower = |c: char| c.to_ascii_lowercase();
        wildcard::matches(self.0.chars().map(lower), name.chars().map(lower))
    }
}

impl Settings {
    fn fits(&self, name: &str) -> bool {
        [name, &*names::bare(name)].iter().any(|name| self.pattern.fits(name))
    }
}

/// The model that a name is an alias of by these settings, or else the name itself.
pub fn unaliased<'n>(settings: &'n [Settings], name: &'n str) -> &'n str {
    let model = |table: &'n Settings| table.alias_of.as_deref().filter(|_| table.fits(name));
    settings.iter().find_map(model).unwrap_or(name)
}

/// All that is known of models.
#[derive(Debug)]
pub struct Models {
    settings: Vec<Settings>,
    /// What upstreams said, by the name that they gave it.
    learned: ArcSwap<HashMap<Arc<str>, usize>>,
    /// What settings and table say, by the name that a request has.
    found: Cache<Box<str>, Model>,
}

/// The facts about one model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Model {
    /// How many tokens it takes, prompt and answer together, and who says so; it is never guessed.
    pub window: Option<(usize, Source)>,
    /// How it splits text.
    pub encoding: Encoding,
    /// What the built-in table says that its tokens are billed as.
    pub token_factor: Factor,
    /// The properties of its reasoning.
    pub reasoning: Reasoning,
}

/// Who says something of a model.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, strum::Display, strum::IntoStaticStr)]
#[serde(into = "&'static str")]
#[strum(serialize_all = "lowercase")]
pub enum Source {
    /// The `[[models]]` of the settings.
    Settings,
    /// The upstream, in its listing or when it refused a request.
    Upstream,
    /// The table that is compiled in.
    #[strum(serialize = "built in")]
    BuiltIn,
}

/// One thing that is known, of all models that its pattern fits.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Entry {
    /// A name, or a pattern of names.
    pub pattern: String,
    /// How many tokens they take.
    pub window: Option<usize>,
    /// How they split text.
    pub encoding: Option<Encoding>,
    /// The billed tokens for each counted one, if they are not as many.
    pub factor: Option<Factor>,
    /// The model that they are aliases of.
    pub alias_of: Option<String>,
    /// Who says so.
    pub source: Source,
}

/// The beginnings of names of models that only their makers and large clouds serve.
const CLOSED: [&str; 10] = ["gpt-3", "gpt-4", "gpt-5", "chatgpt-", "o1", "o3", "o4", "claude-", "gemini-", "text-"];

/// Whether the weights of a model may be on a server of the user.
pub fn may_be_served_locally(model: &str) -> bool {
    let bare = names::bare(model);
    !CLOSED.iter().any(|beginning| bare.starts_with(beginning))
}

/// Whether a model belongs to a family, which is a canonical name, or the beginning of one and `*`.
pub(super) fn is_family(model: &str, family: &str) -> bool {
    known::is_family(&names::bare(model), family)
}

// === impl Models ===

impl Models {
    pub(super) fn new(settings: &[Settings]) -> Self {
        // Read now, and not when the first request waits for it.
        LazyLock::force(&TABLES);
        Self { settings: settings.to_vec(), learned: ArcSwap::default(), found: with_slots(MAX_FOUND) }
    }

    /// What upstreams have said.
    pub fn learned(&self) -> Vec<(Arc<str>, usize)> {
        self.learned.load().iter().map(|(model, window)| (Arc::clone(model), *window)).collect()
    }

    /// The model that a name is an alias of, or else the name itself.
    pub fn unaliased<'n>(&'n self, name: &'n str) -> &'n str {
        unaliased(&self.settings, name)
    }

    /// The facts about the model of this name.
    pub fn find(&self, name: &str) -> Model {
        let model = self.found.get(name).unwrap_or_else(|| self.look_up(name));
        let learned = self.learned.load();
        if learned.is_empty() || matches!(model.window, Some((_, Source::Settings))) {
            return model;
        }
        let names = [name, names::without_routing(name), self.unaliased(name)];
        let learned = names.iter().find_map(|name| learned.get(*name)).copied();
        Model { window: learned.map(|window| (window, Source::Upstream)).or(model.window), ..model }
    }

    /// What settings and table say of it, which is remembered.
    fn look_up(&self, name: &str) -> Model {
        let model = self.unaliased(name);
        let bare = names::bare(model);
        let told =
            || [name, model].into_iter().flat_map(|name| self.settings.iter().filter(move |table| table.fits(name)));
        let known = known::find(&bare);
        let window = known.and_then(|known| known.window).filter(|_| !names::is_of_its_host(model));
        let set = told().find_map(|model| model.context_window);
        let encoding = told().find_map(|model| model.encoding);
        let model = Model {
            window: set.map(|window| (window, Source::Settings)).or(window.map(|window| (window, Source::BuiltIn))),
            encoding: encoding.or(known.and_then(|known| known.encoding)).unwrap_or_default(),
            // An encoding of the settings is taken at its word.
            token_factor: if encoding.is_some() { Factor::ONE } else { known::factor(&bare) },
            reasoning: known::reasoning(&bare),
        };
        if name.len() <= MAX_FOUND_NAME {
            self.found.insert(name.into(), model);
        }
        model
    }

    /// All that is known, the first that fits a model first.
    pub fn entries(&self) -> Vec<Entry> {
        let entry = |source, pattern: &dyn ToString, window, encoding| Entry {
            pattern: pattern.to_string(),
            window,
            encoding,
            factor: None,
            alias_of: None,
            source,
        };
        let settings = self.settings.iter().map(|told| {
            let of_settings = entry(Source::Settings, &told.pattern, told.context_window, told.encoding);
            Entry { alias_of: told.alias_of.clone(), ..of_settings }
        });
        let learned = self.learned.load();
        let learned: BTreeMap<_, _> = learned.iter().collect();
        let learned = learned.into_iter().map(|(name, window)| entry(Source::Upstream, name, Some(*window), None));
        let known = TABLES.models.iter().map(|known| {
            let factor = Some(known::factor(&known.name)).filter(|factor| *factor != Factor::ONE);
            Entry { factor, ..entry(Source::BuiltIn, &known.name, known.window, known.encoding) }
        });
        settings.chain(learned).chain(known).collect()
    }

    /// Remembers what an upstream said about a model. The settings win over it, and it wins over what is built in.
    pub fn learn(&self, name: &str, window: usize) {
        let already = self.learned.load();
        let full = already.len() >= MAX_LEARNED && !already.contains_key(name);
        if window == 0 || full || already.get(name) == Some(&window) {
            return;
        }
        let name: Arc<str> = name.into();
        self.learned.rcu(|learned| {
            let mut learned = HashMap::clone(learned);
            learned.insert(Arc::clone(&name), window);
            learned
        });
    }
}

fn at_least_one<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    match Option::deserialize(from)? {
        Some(0) => Err(D::Error::custom("0 is out of range; allowed: 1 or more")),
        window => Ok(window),
    }
}

#[cfg(test)]
mod tests;
