//! Packs the background of `abridge simulate`: units that several projects have. See `pack_background.sh`.
//!
//! Each argument is one language: folders of projects, with colons between. A project is an entry of such a folder; its
//! name ends where its version begins. Each language gives an equal share of the units, those of the most projects first.
#![expect(clippy::print_stderr, reason = "a tool of developers")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

use abridge_proxy::simulate::regret::{background, units};

/// 64 KiB of them.
const MAX_UNITS: usize = 16 << 10;

/// A unit of fewer projects is not common.
const MIN_PROJECTS: usize = 2;

const MAX_FILE_BYTES: u64 = 1 << 20;
const EXTENSIONS: [&str; 12] = ["py", "rs", "js", "mjs", "c", "h", "go", "ts", "md", "toml", "json", "sh"];

fn main() -> io::Result<()> {
    let languages: Vec<String> = env::args().skip(1).collect();
    let share = MAX_UNITS / languages.len().max(1);
    let mut packed = BTreeSet::new();
    for language in &languages {
        let mut projects: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for folder in language.split(':') {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                projects.entry(name_of(&entry.file_name().to_string_lossy())).or_default().push(entry.path());
            }
        }
        let common = common(&projects)?;
        eprintln!("{language}: {} projects, {} units in {MIN_PROJECTS} of them", projects.len(), common.len());
        packed.extend(common.into_iter().take(share).map(background::packed));
    }
    packed.iter().try_for_each(|hash| io::stdout().write_all(&hash.to_le_bytes()))
}

/// The units of several projects, those of the most first.
fn common(projects: &BTreeMap<String, Vec<PathBuf>>) -> io::Result<Vec<u64>> {
    let mut n_projects: HashMap<u64, usize> = HashMap::new();
    for paths in projects.values() {
        let mut units = BTreeSet::new();
        paths.iter().try_for_each(|path| collect(path, &mut units))?;
        for unit in units {
            *n_projects.entry(unit).or_default() += 1;
        }
    }
    let mut common: Vec<_> = n_projects.into_iter().filter(|(_, n)| *n >= MIN_PROJECTS).collect();
    common.sort_by_key(|(unit, n)| (std::cmp::Reverse(*n), *unit));
    Ok(common.into_iter().map(|(unit, _)| unit).collect())
}

fn collect(path: &Path, found: &mut BTreeSet<u64>) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_dir() {
        return fs::read_dir(path)?.try_for_each(|entry| collect(&entry?.path(), found));
    }
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_source = extension.is_some_and(|extension| EXTENSIONS.contains(&extension));
    if metadata.is_file() && is_source && metadata.len() <= MAX_FILE_BYTES {
        let text = fs::read(path)?;
        found.extend(units::units(&String::from_utf8_lossy(&text)).map(|unit| unit.hash()));
        found.extend(
            path.file_name().and_then(|name| name.to_str()).into_iter().flat_map(units::units).map(|unit| unit.hash()),
        );
    }
    Ok(())
}

/// The name of a project without its version: `serde-1.0.228` and `PyYAML-6.0.dist-info` lose theirs.
fn name_of(entry: &str) -> String {
    let is_version = |rest: &str| rest.get(1..).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let mut parts = entry.match_indices('-').map(|(at, _)| entry.split_at(at));
    let name = parts.find(|(_, rest)| is_version(rest)).map_or(entry, |(name, _)| name);
    name.trim_end_matches(".py").to_lowercase()
}
