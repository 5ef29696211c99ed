//! Well-known models, from `assets/models.toml`, which says when and where it was read.

use std::iter;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::names;
use crate::tokens::factor::Factor;
use crate::tokens::tiktoken::Encoding;

/// The file, which is compiled in.
pub(in crate::tokens) const FILE: &str = include_str!("../../../assets/models.toml");

/// The file without its prices. In each table the first line that fits a model counts.
#[derive(Default, Deserialize)]
pub(super) struct Tables {
    pub(super) models: Vec<Known>,
    billed: Vec<Billed>,
    reasoning: Vec<ReasoningOf>,
}

/// The table of some models.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    /// A canonical name, or the beginning of one and `*`.
    pub(super) name: String,
    pub(super) window: Option<usize>,
    pub(super) encoding: Option<Encoding>,
}

/// The billed tokens for one counted token of some models.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Billed {
    name: String,
    factor: Factor,
}

/// What is known of the reasoning of a model.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Reasoning {
    /// How many tenths of a byte of what only its maker can read are a token.
    pub sealed: usize,
    /// Whether the model reads that of ended turns, it is billed, and it may be left out.
    pub ended_turns: bool,
}

/// The reasoning of some models.
#[derive(Deserialize)]
struct ReasoningOf {
    name: String,
    #[serde(flatten)]
    reasoning: Reasoning,
}

impl Default for Reasoning {
    fn default() -> Self {
        Self { sealed: 46, ended_turns: false }
    }
}

/// A test reads the file.
pub(super) static TABLES: LazyLock<Tables> = LazyLock::new(|| toml::from_str(FILE).unwrap_or_default());

/// Returns what the tokens of a model are billed as, given its bare name.
pub(super) fn factor(bare: &str) -> Factor {
    let name = names::canonical(bare);
    let of = |name: &str| TABLES.billed.iter().find(|known| fits(&known.name, name));
    let found = iter::successors(Some(name.as_str()), |name| names::without_vendor(name)).find_map(of);
    found.map_or(Factor::ONE, |known| known.factor)
}

/// What is known of the reasoning of a model, given its bare name.
pub(super) fn reasoning(bare: &str) -> Reasoning {
    let name = names::canonical(bare);
    let of = |name: &str| TABLES.reasoning.iter().find(|known| fits(&known.name, name));
    let found = iter::successors(Some(name.as_str()), |name| names::without_vendor(name)).find_map(of);
    found.map_or_else(Reasoning::default, |known| known.reasoning)
}

/// What is known of a model, given its bare name. A line about the model at one vendor wins over one about the model.
pub(super) fn find(bare: &str) -> Option<&'static Known> {
    let name = names::canonical(bare);
    iter::successors(Some(name.as_str()), |name| names::without_vendor(name)).find_map(line)
}

/// Whether a model belongs to a family, given its bare name.
pub(super) fn is_family(bare: &str, family: &str) -> bool {
    let name = names::canonical(bare);
    iter::successors(Some(name.as_str()), |name| names::without_vendor(name)).any(|name| fits(family, name))
}

fn line(name: &str) -> Option<&'static Known> {
    TABLES.models.iter().find(|known| fits(&known.name, name))
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}
