//! What `promtool check metrics` asks of the text format of Prometheus: that it can be read, and how names are formed.
//!
//! The rules are those of `prometheus/client_golang`, `testutil/promlint`.

use std::collections::{BTreeMap, BTreeSet};

/// The kinds that the text format has.
const KINDS: [&str; 5] = ["counter", "gauge", "histogram", "summary", "untyped"];

const ABBREVIATIONS: [&str; 14] = ["s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"];

const OTHER_UNITS: [&str; 13] = [
    "minutes",
    "hours",
    "days",
    "weeks",
    "kelvins",
    "fahrenheit",
    "rankine",
    "inches",
    "yards",
    "miles",
    "bits",
    "calories",
    "milliseconds",
];

/// Everything that is wrong with a text.
pub(crate) fn problems(text: &str) -> Vec<String> {
    let (mut kinds, mut helped) = (BTreeMap::new(), BTreeSet::new());
    let mut problems = Vec::new();
    for line in text.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] if !help.trim().is_empty() && helped.insert(name.to_owned()) => {}
            ["#", "TYPE", name, kind] if KINDS.contains(&kind) => {
                if kinds.insert(name.to_owned(), kind.to_owned()).is_some() {
                    problems.push(format!("a family twice: {line}"));
                }
            }
            ["#", ..] => problems.push(format!("a comment that is neither help nor type: {line}")),
            _ => problems.extend(sample(line, &kinds, &helped)),
        }
    }
    let named = kinds.iter().flat_map(|(name, kind)| name_problems(name, kind));
    problems.extend(named.map(str::to_owned));
    if !text.ends_with('\n') || kinds.is_empty() {
        problems.push("no families, or no end of the last line".to_owned());
    }
    problems
}

/// The fault of a sample.
fn sample(line: &str, kinds: &BTreeMap<String, String>, helped: &BTreeSet<String>) -> Option<String> {
    let end = line.find(['{', ' '])?;
    let (name, value) = (line.get(..end)?, line.rsplit(' ').next()?);
    if value.parse::<f64>().is_err() {
        return Some(format!("no number: {line}"));
    }
    let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
    let family = of_histogram.filter(|family| kinds.get(*family).is_some_and(|kind| kind == "histogram"));
    let family = family.unwrap_or(name);
    let is_known = kinds.contains_key(family) && helped.contains(family);
    let has_bound = line.contains("{le=\"") || line.contains(",le=\"");
    (!is_known || has_bound != name.ends_with("_bucket") || line.contains("quantile=\""))
        .then(|| format!("not of a family: {line}"))
}

/// The name of a family, if it breaks a rule.
fn name_problems<'t>(name: &'t str, kind: &'t str) -> impl Iterator<Item = &'t str> {
    let pieces: Vec<_> = name.split('_').collect();
    let is_reserved = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let wrong = (kind == "counter") != name.ends_with("_total")
        || (kind != "histogram" && is_reserved(&["_bucket", "_count", "_sum"]))
        || (kind != "gauge" && name.ends_with("_timestamp_seconds"))
        || KINDS.iter().any(|kind| pieces[1..].contains(kind))
        || pieces[1..].iter().any(|piece| ABBREVIATIONS.contains(piece))
        || pieces.iter().any(|piece| OTHER_UNITS.contains(piece))
        || name.contains(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    wrong.then_some(name).into_iter()
}
