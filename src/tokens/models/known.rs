//! Well-known models and hosts, from `assets/models.toml`, which says when and where it was read.

use std::iter;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::{Pattern, names};
use crate::tokens::factor::Factor;
use crate::tokens::tiktoken::Encoding;

/// The file, which is compiled in. In each table the first line that fits counts.
#[derive(Default, Deserialize)]
pub(super) struct Tables {
    pub(super) models: Vec<Known>,
    billed: Vec<Billed>,
    reasoning: Vec<ReasoningOf>,
    hosts: Vec<MediaLimits>,
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

/// The images and bytes that a host accepts in one request.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MediaLimits {
    host: Pattern,
    /// The most images.
    pub images: usize,
    /// From more images than these on, `side` holds.
    pub many: usize,
    /// The longest side of an image, in pixels.
    pub side: usize,
    /// The most bytes of the body.
    pub body: usize,
}

/// The billed tokens for one counted token of some models.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Billed {
    name: String,
    factor: Factor,
}

/// The properties of a model's reasoning.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default)]
pub struct Reasoning {
    /// The tenths of a byte of sealed reasoning, which only its maker can read, that are billed as one token.
    #[default(46)]
    pub sealed: usize,
    /// Whether reasoning of ended turns is read by the model, billed, and may be left out.
    pub ended_turns: bool,
}

/// The reasoning of some models.
#[derive(Deserialize)]
struct ReasoningOf {
    name: String,
    #[serde(flatten)]
    reasoning: Reasoning,
}

/// The file of models and prices.
pub(in crate::tokens) const TABLES_FILE: &str = include_str!("../../../assets/models.toml");

/// A test reads the file.
pub(super) static TABLES: LazyLock<Tables> = LazyLock::new(|| toml::from_str(TABLES_FILE).unwrap_or_default());

impl MediaLimits {
    /// Those of a host, if they are known.
    pub fn of_host(host: &str) -> Option<&'static Self> {
        TABLES.hosts.iter().find(|limits| limits.host.fits(host))
    }
}

/// Returns what the tokens of a model are billed as, given its bare name.
pub(super) fn factor(bare: &str) -> Factor {
    first(bare, &TABLES.billed, |known| &known.name).map_or(Factor::ONE, |known| known.factor)
}

/// The properties of a model's reasoning, given its bare name.
pub(super) fn reasoning(bare: &str) -> Reasoning {
    first(bare, &TABLES.reasoning, |known| &known.name).map_or_else(Reasoning::default, |known| known.reasoning)
}

/// The line of a model, given its bare name.
pub(super) fn find(bare: &str) -> Option<&'static Known> {
    first(bare, &TABLES.models, |known| &known.name)
}

/// Whether a model belongs to a family, given its bare name.
pub(super) fn is_family(bare: &str, family: &str) -> bool {
    let name = names::canonical(bare);
    iter::successors(Some(name.as_str()), |name| names::without_vendor(name)).any(|name| fits(family, name))
}

/// The first line that fits a model. A line about the model at one vendor wins over one about the model.
fn first<'t, T>(bare: &str, lines: &'t [T], name: fn(&T) -> &str) -> Option<&'t T> {
    let canonical = names::canonical(bare);
    let line = |model: &str| lines.iter().find(|line| fits(name(line), model));
    iter::successors(Some(canonical.as_str()), |name| names::without_vendor(name)).find_map(line)
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_limits_of_hosts() {
        let images = |host: &str| MediaLimits::of_host(host).map(|limits| limits.images);
        assert_eq!(images("api.anthropic.com"), Some(100));
        assert_eq!(images("bedrock-runtime.eu-west-1.amazonaws.com"), Some(100));
        assert_eq!(images("localhost"), None);
        assert!(TABLES.hosts.iter().all(|limits| limits.many <= limits.images && limits.body >= 1 << 20));
    }
}
