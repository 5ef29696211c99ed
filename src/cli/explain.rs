//! `abridge explain`: prints what a setting does, as `proxy.toml.example` says it.

use strsim::levenshtein;

use crate::cli::{Exit, print, print_error};

/// Arguments of `explain`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The setting or table.
    #[arg(value_name = "KEY")]
    #[arg(help = "A setting or a table, such as server.max_body or summarize [default: the names of all]")]
    key: Option<String>,
    /// Print the JSON schema of the settings, for editors
    #[arg(long, conflicts_with = "key")]
    schema: bool,
}

/// A setting, or the head of a table.
struct Entry {
    /// Its keys from the top level on, with full stops between.
    name: String,
    /// Its lines in the example, with its description.
    text: String,
    is_table: bool,
}

const EXAMPLE: &str = include_str!("../../proxy.toml.example");
const SCHEMA: &str = include_str!("../../assets/proxy.schema.json");

/// How many letters of a name may be wrong for it to be suggested.
const MAX_TYPOS: usize = 3;

/// Prints a setting, a table, the names of all, or the schema.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    if args.schema {
        return print([SCHEMA]);
    }
    let entries = entries();
    let Some(key) = &args.key else {
        return print(entries.iter().filter(|entry| !entry.is_table).map(|entry| format!("{}\n", entry.name)));
    };
    let key = key.trim_matches(['[', ']']);
    let found = found(&entries, key);
    if found.is_empty() {
        let names = nearest(&entries, key).join(" or ");
        let hint = if names.is_empty() {
            "abridge explain prints all names".to_owned()
        } else {
            format!("did you mean {names}?")
        };
        print_error(&anyhow::anyhow!("no setting is called {key:?}; {hint}"));
        return Ok(Exit::Usage);
    }
    print([found.join("\n")])
}

/// The texts of what is called so: a table with all that is in it, a setting under its table, or settings by their last key.
fn found(entries: &[Entry], key: &str) -> Vec<String> {
    let is_inside =
        |entry: &&Entry| entry.name == key || entry.name.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
    if entries.iter().any(|entry| entry.is_table && entry.name == key) {
        return entries.iter().filter(is_inside).map(|entry| entry.text.clone()).collect();
    }
    let named = |is_it: &dyn Fn(&str) -> bool| {
        let is_it = |entry: &&Entry| !entry.is_table && is_it(&entry.name);
        entries.iter().filter(is_it).map(Entry::under_its_table).collect::<Vec<_>>()
    };
    let exact = named(&|name| name == key);
    if exact.is_empty() { named(&|name| name.rsplit('.').next() == Some(key)) } else { exact }
}

fn nearest<'e>(entries: &'e [Entry], key: &str) -> Vec<&'e str> {
    let last = |name: &'e str| name.rsplit('.').next().unwrap_or(name);
    let typos = |name| levenshtein(key, name).min(levenshtein(key, last(name)));
    let mut near: Vec<_> = entries.iter().map(|entry| (typos(&entry.name), &*entry.name)).collect();
    near.retain(|(typos, _)| *typos <= MAX_TYPOS.min(key.len() / 3));
    near.sort_unstable();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// The settings and tables of the example.
fn entries() -> Vec<Entry> {
    let (mut entries, mut table, mut text) = (Vec::new(), String::new(), String::new());
    let mut lines = EXAMPLE.lines();
    while let Some(line) = lines.next() {
        if line.is_empty() {
            text.clear(); // the head of the file
            continue;
        }
        text.push_str(line);
        text.push('\n');
        let code = line.strip_prefix("# ").unwrap_or(line);
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || b"_.".contains(&byte))
        };
        let header =
            code.strip_prefix('[').and_then(|code| code.strip_suffix(']')).map(|code| code.trim_matches(['[', ']']));
        if let Some(header) = header.filter(|header| is_name(header)) {
            header.clone_into(&mut table);
            entries.push(Entry { name: table.clone(), text: std::mem::take(&mut text), is_table: true });
        } else if let Some((key, value)) = code.split_once(" = ").filter(|(key, _)| is_name(key)) {
            if value == "[" {
                for line in lines.by_ref().take_while(|line| *line != "]") {
                    text.extend([line, "\n"]);
                }
                text.push_str("]\n");
            }
            let name = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
            entries.push(Entry { name, text: std::mem::take(&mut text), is_table: false });
        }
    }
    entries
}

impl Entry {
    fn under_its_table(&self) -> String {
        let table = self.name.rsplit_once('.').map(|(table, _)| format!("[{table}]\n")).unwrap_or_default();
        table + &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_tables_are_found_by_their_names() {
        let entries = entries();
        let text = |key: &str| found(&entries, key).join("\n");
        assert!(
            text("server.max_body").starts_with("[server]\n# The longest request body")
                && text("server.max_body").ends_with("max_body = \"64MiB\"\n")
        );
        assert_eq!(text("max_body"), text("server.max_body"));
        assert!(text("policy").contains("\nedits = [\n") && text("policy").contains("\n]\n"));
        assert!(text("preset").starts_with("# The set of defaults"), "{}", text("preset"));
        assert!(text("upstreams").contains("# [[upstreams]]"));
        assert_eq!(text("nothing"), "");
        assert_eq!(nearest(&entries, "max_boddy"), ["server.max_body"]);
        let settings = toml::Value::try_from(crate::config::Config::default()).unwrap();
        let tables = settings.as_table().unwrap().iter().filter_map(|(table, value)| Some((table, value.as_table()?)));
        for (table, keys) in tables.filter(|(_, keys)| keys.values().all(|value| !value.is_table())) {
            for key in keys.keys() {
                assert!(!text(&format!("{table}.{key}")).is_empty(), "{table}.{key}");
            }
        }
    }
}
