//! The names that the messages after a summary use: those that the summary leaves out are listed after it.

use std::collections::{HashMap, HashSet};

use crate::names::{names, paths};

/// Names that only the messages have that a summary replaces, and that those after it use.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct UsedNames {
    /// The heading of the list of names that the summary leaves out.
    heading: &'static str,
    /// The most bytes of that list.
    max_bytes: usize,
    /// The names, the newest use first.
    names: Vec<UsedName>,
}

/// A name, and the line in which it stood first, if that is short.
#[derive(Clone, Debug, Eq, PartialEq)]
struct UsedName {
    name: String,
    line: Option<String>,
}

/// The texts among which names are looked for, each from first to last.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NameSources<T> {
    /// The texts that are in sight whatever the summary says.
    pub in_sight: Vec<T>,
    /// The texts that the summary replaces.
    pub replaced: Vec<T>,
    /// What stays after it.
    pub tail: Vec<T>,
}

/// The most names that are remembered until the summary is there.
const MAX_REMEMBERED: usize = 1000;

/// The most lines of a list.
const MAX_LISTED: usize = 50;

/// The longest name and the longest line that are listed, in bytes. Of a longer line the name is alone.
const MAX_LINE: usize = 160;

// === impl UsedNames ===

impl UsedNames {
    /// Looks for the names. `heading` is to precede the list, which is to have no more than so many bytes.
    pub fn find<T: AsRef<str>>(heading: &'static str, max_bytes: usize, sources: &NameSources<T>) -> Self {
        let in_sight: HashSet<&str> = sources.in_sight.iter().flat_map(|text| all(text.as_ref())).collect();
        let mut first_lines: HashMap<&str, Option<&str>> = HashMap::new();
        let mut newest_first = Vec::new();
        for name in sources.tail.iter().rev().flat_map(|text| all(text.as_ref()).rev()) {
            if name.len() <= MAX_LINE && !in_sight.contains(name) && !first_lines.contains_key(name) {
                first_lines.insert(name, None);
                newest_first.push(name);
            }
        }
        for line in sources.replaced.iter().flat_map(|text| text.as_ref().lines()) {
            for name in all(line) {
                if let Some(first @ None) = first_lines.get_mut(name) {
                    *first = Some(line.trim());
                }
            }
        }
        let names = newest_first.into_iter().filter_map(|name| {
            let line = first_lines.get(name).copied().flatten()?;
            Some(UsedName { name: name.to_owned(), line: (line.len() <= MAX_LINE).then(|| line.to_owned()) })
        });
        Self { heading, max_bytes, names: names.take(MAX_REMEMBERED).collect() }
    }

    /// The list of the names that are in none of the texts; none if there are none.
    pub fn missing_from(&self, texts: &[&str]) -> Option<String> {
        let mut said: HashSet<&str> = texts.iter().flat_map(|text| all(text)).collect();
        let mut list = String::new();
        let mut n_listed = 0;
        for UsedName { name, line } in &self.names {
            if said.contains(name.as_str()) {
                continue;
            }
            let entry = line.as_ref().unwrap_or(name);
            if n_listed == MAX_LISTED || list.len() + "\n- ".len() + entry.len() > self.max_bytes {
                break;
            }
            n_listed += 1;
            list.extend(["\n- ", entry]);
            said.extend(all(entry));
        }
        (n_listed > 0).then(|| format!("{}{list}", self.heading))
    }
}

/// The names and the paths in a text.
fn all(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    names(text).chain(paths(text))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::platform::testing::thread_time;

    fn used(in_sight: &[&str], replaced: &[&str], tail: &[&str]) -> UsedNames {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let sources = NameSources { in_sight: owned(in_sight), replaced: owned(replaced), tail: owned(tail) };
        UsedNames::find("LEFT OUT", 2048, &sources)
    }

    #[test]
    fn a_name_that_the_tail_uses_and_the_summary_drops_is_listed_with_its_first_line() {
        let replaced = ["hello", "  let pool_size = 4;\nuse pool_size again", "pool_size"];
        let used = used(&[], &replaced, &["set pool_size to 8"]);
        assert_eq!(used.missing_from(&["They talked."]).as_deref(), Some("LEFT OUT\n- let pool_size = 4;"));
    }

    #[test]
    fn every_form_of_a_name_counts() {
        for name in ["snake_case", "camelCase", "pool.rs", "deadbe3f", "8417", "/etc/sites/new"] {
            let used = used(&[], &[name], &[name]);
            assert_eq!(used.missing_from(&["short"]).unwrap(), format!("LEFT OUT\n- {name}"));
        }
    }

    #[test]
    fn what_is_said_or_in_sight_or_new_or_unused_is_not_listed() {
        let one = ["name_one"];
        assert_eq!(used(&[], &one, &one).missing_from(&["x", "keeps `name_one`."]), None);
        assert_eq!(used(&one, &one, &one).missing_from(&["x"]), None);
        assert_eq!(used(&[], &["x"], &one).missing_from(&["x"]), None);
        assert_eq!(used(&[], &one, &["x"]).missing_from(&["x"]), None);
        // A part of a longer name is a different name.
        assert!(used(&[], &one, &one).missing_from(&["name_one_more"]).is_some());
    }

    #[test]
    fn the_newest_use_comes_first_and_a_line_once() {
        let replaced = ["a_one b_two", "c_three", "d_four"];
        let used = used(&[], &replaced, &["a_one d_four", "b_two a_one", "c_three"]);
        assert_eq!(used.missing_from(&[]).unwrap(), "LEFT OUT\n- c_three\n- a_one b_two\n- d_four");
    }

    #[test]
    fn of_a_long_line_the_name_stands_alone_and_a_long_name_is_not_listed() {
        let fits = format!("name_one {}", "x".repeat(MAX_LINE - 9));
        let long = format!("{fits}y");
        let list = |line: &str| used(&[], &[line], &["name_one"]).missing_from(&[]).unwrap();
        assert_eq!(list(&fits), format!("LEFT OUT\n- {fits}"));
        assert_eq!(list(&long), "LEFT OUT\n- name_one");
        let long = fits.replace(' ', "_");
        assert!(used(&[], &[&long], &[&long]).missing_from(&[]).is_some());
        let longer = format!("{long}y");
        assert_eq!(used(&[], &[&longer], &[&longer]).missing_from(&[]), None);
    }

    #[test]
    fn a_list_stays_within_its_lines_and_its_bytes() {
        let names: Vec<_> = (1000..3000).map(|n| format!("n_{n}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let used = used(&[], &names, &names);
        assert_eq!(used.names.len(), MAX_REMEMBERED);
        let list = used.missing_from(&[]).unwrap();
        assert_eq!(list.lines().count(), 1 + MAX_LISTED);
        assert!(list.starts_with("LEFT OUT\n- n_2999\n- n_2998\n"), "{list}");
        // Nine bytes a line: a mark, a blank and a line end, and six of the name.
        for (max_bytes, n) in [(0, 0), (8, 0), (9, 1), (26, 2), (27, 3)] {
            let list = UsedNames { max_bytes, ..used.clone() }.missing_from(&[]);
            assert_eq!(list.map_or(0, |list| list.lines().count() - 1), n, "{max_bytes}");
        }
    }

    #[test]
    fn many_names_and_long_lines_take_linear_time() {
        let many = (0..200_000).map(|n| format!("name_{n} ")).collect::<Vec<_>>().concat();
        let slashes = "/".repeat(1 << 20);
        let before = thread_time();
        let used = used(&[], &[&many, &slashes], &[&many, &slashes]);
        assert!(used.missing_from(&[&many]).is_none());
        let took = thread_time().saturating_sub(before);
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}
