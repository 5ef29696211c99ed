//! What is known of models: how many tokens they take, and how they split text.
//!
//! A window is never guessed. It comes from, in this order: the `[[models]]` of the settings, what the upstream itself
//! says, the table in here. Encodings come from the settings and the table; OpenAI's newest stands for the rest.

use std::{collections::HashMap, fmt, sync::Arc};

use arc_swap::ArcSwap;
use globset::{Glob, GlobMatcher};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::tiktoken::Encoding;

mod known;
mod listing;

pub use listing::windows_in;

/// The most models whose window is remembered because an upstream named it; no upstream lists as many.
const MOST_LEARNED: usize = 4096;

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
    #[serde(default)]
    pub encoding: Option<Encoding>,
}

/// A name or a pattern of names: `*` stands for any characters, `?` for one, `[ab]` and `{a,b}` for one of these.
/// Letter case does not matter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pattern(Glob);

/// All that is known.
#[derive(Debug)]
pub(super) struct Models {
    settings: Vec<(GlobMatcher, Settings)>,
    /// What upstreams said, by the name that they gave it.
    learned: ArcSwap<HashMap<Arc<str>, usize>>,
}

/// What is known of one model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Model {
    pub(super) window: Option<usize>,
    pub(super) encoding: Encoding,
}

// === impl Models ===

impl Models {
    pub(super) fn new(settings: &[Settings]) -> Self {
        let settings = settings.iter().map(|model| (model.pattern.0.compile_matcher(), model.clone())).collect();
        Self { settings, learned: ArcSwap::default() }
    }

    /// The encodings that a request may need: that of most models, and those of the settings.
    pub(super) fn encodings(&self) -> impl Iterator<Item = Encoding> {
        self.settings.iter().filter_map(|(_, model)| model.encoding).chain([Encoding::default()])
    }

    pub(super) fn find(&self, name: &str) -> Model {
        let bare = known::bare(name);
        let fits = |matcher: &GlobMatcher| [name, &*bare].iter().any(|name| matcher.is_match(name));
        let told = || self.settings.iter().filter(|(matcher, _)| fits(matcher)).map(|(_, model)| model);
        let known = known::find(&bare);
        let window = told().find_map(|model| model.context_window);
        let encoding = told().find_map(|model| model.encoding);
        Model {
            window: window.or_else(|| self.learned.load().get(name).copied()).or(known.and_then(|known| known.window)),
            encoding: encoding.or(known.and_then(|known| known.encoding)).unwrap_or_default(),
        }
    }

    /// The window of a model, and who says so.
    pub(super) fn window(&self, name: &str) -> Option<(usize, &'static str)> {
        let window = self.find(name).window?;
        let bare = known::bare(name);
        let is_set = self.settings.iter().any(|(matcher, model)| {
            model.context_window == Some(window) && [name, &*bare].iter().any(|name| matcher.is_match(name))
        });
        let source = match self.learned.load().get(name) {
            _ if is_set => "settings",
            Some(_) => "upstream",
            None => "built in",
        };
        Some((window, source))
    }

    pub(super) fn learn(&self, name: &str, window: usize) {
        let already = self.learned.load();
        let full = already.len() >= MOST_LEARNED && !already.contains_key(name);
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

// === impl Pattern ===

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let glob = globset::GlobBuilder::new(&text).case_insensitive(true).build();
        glob.map(Self).map_err(|error| {
            D::Error::custom(format_args!("{text:?} is not a pattern such as \"gpt-4o*\": {}", error.kind()))
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.glob())
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.glob())
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
