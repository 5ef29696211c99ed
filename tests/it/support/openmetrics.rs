//! A reader of OpenMetrics text that takes nothing else.

use std::collections::{BTreeMap, BTreeSet};

/// The families of a scrape.
#[derive(Debug, Default)]
pub(crate) struct Scrape {
    /// The value of each sample, by its name with its labels as they are written: `a_total{x="1"}`.
    pub(crate) samples: BTreeMap<String, f64>,
    /// The kind of each family.
    pub(crate) families: BTreeMap<String, String>,
}

/// Returns what may follow the name of a family of this kind.
fn suffixes(kind: &str) -> &'static [&'static str] {
    match kind {
        "counter" => &["_total"],
        "gauge" => &[""],
        "info" => &["_info"],
        "histogram" => &["_sum", "_count", "_bucket"],
        _ => panic!("unknown kind {kind}"),
    }
}

impl Scrape {
    /// Reads all of it.
    pub(crate) fn read(text: &str) -> Self {
        let body = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
        let (mut scrape, mut family, mut helped) = (Self::default(), String::new(), BTreeSet::new());
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let (word, rest) = rest.split_once(' ').expect("a word and more");
                let (name, rest) = rest.split_once(' ').expect("a name and more");
                match word {
                    "HELP" => {
                        assert!(!rest.is_empty() && helped.insert(name.to_owned()), "{line}");
                        name.clone_into(&mut family);
                    }
                    "TYPE" => {
                        let before = scrape.families.insert(name.to_owned(), rest.to_owned());
                        assert!(before.is_none() && name == family, "{line}");
                    }
                    "UNIT" => assert!(name == family && name.ends_with(&format!("_{rest}")), "{line}"),
                    _ => panic!("what is {line}"),
                }
                continue;
            }
            let (sample, value) = line.rsplit_once(' ').expect("a value");
            let value: f64 = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
            let (name, labels) = parted(sample);
            let suffix = name.strip_prefix(&*family).unwrap_or_else(|| panic!("{line} is not of {family}"));
            assert!(suffixes(&scrape.families[&family]).contains(&suffix), "{line}");
            let names: BTreeSet<_> = labels.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), labels.len(), "a label twice: {line}");
            assert_eq!(suffix == "_bucket", names.contains(&"le".to_owned()), "{line}");
            assert!(value >= 0.0 && scrape.samples.insert(sample.to_owned(), value).is_none(), "{line}");
        }
        scrape.check_buckets();
        scrape
    }

    /// Buckets hold those before them, and the last one all.
    fn check_buckets(&self) {
        let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for (sample, value) in self.samples.iter().filter(|(sample, _)| sample.contains("_bucket{")) {
            let (name, labels) = parted(sample);
            let bound = labels.iter().find(|(label, _)| label == "le").map(|(_, bound)| bound.replace("+Inf", "inf"));
            let others: Vec<_> = labels.iter().filter(|(label, _)| label != "le").collect();
            let key = format!("{name}{others:?}");
            buckets.entry(key).or_default().push((bound.unwrap().parse().unwrap(), *value));
        }
        assert!(!buckets.is_empty(), "there are histograms");
        for (name, mut each) in buckets {
            each.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(each.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name}: {each:?}");
            assert!(each.last().unwrap().0.is_infinite(), "{name}: {each:?}");
        }
    }

    /// The value of one sample, which is a whole number; 0 if it is not there.
    pub(crate) fn get(&self, sample: &str) -> u64 {
        self.samples.get(sample).map_or(0, |value| whole(*value))
    }

    /// The sum of all samples with this name, whatever their labels.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        self.samples.iter().filter(|(sample, _)| parted(sample).0 == name).map(|(_, value)| whole(*value)).sum()
    }

    /// All names that samples have or may have.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let names = self
            .families
            .iter()
            .flat_map(|(family, kind)| suffixes(kind).iter().map(move |suffix| format!("{family}{suffix}")));
        names.collect()
    }
}

fn whole(value: f64) -> u64 {
    format!("{value}").parse().expect("a whole number")
}

/// A name, and its labels with their values.
fn parted(sample: &str) -> (&str, Vec<(String, String)>) {
    let Some((name, rest)) = sample.split_once('{') else { return (sample, Vec::new()) };
    let mut rest = rest.strip_suffix('}').expect("labels end");
    let mut labels = Vec::new();
    while !rest.is_empty() {
        let (label, behind) = rest.split_once("=\"").expect("a value in quotes");
        let (mut value, mut chars) = (String::new(), behind.char_indices());
        let end = loop {
            match chars.next().expect("a quote at the end") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    escaped @ ('"' | '\\') => escaped,
                    other => panic!("\\{other} is no escape"),
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((label.to_owned(), value));
        rest = behind.split_at(end + 1).1;
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    (name, labels)
}
