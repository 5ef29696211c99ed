//! `abridge explain`: prints what a setting does, as `proxy.toml.example` says it.

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
        print_error(&anyhow::anyhow!("no setting is called {key:?}; abridge explain prints all names"));
        return Ok(Exit::Usage);
    }
    print([found.join("\n")])
}

/// The texts of what is called so: a table with all that is in it, a setting under its table, or settings by their last key.
fn found(entries: &[Entry], key: &str) -> Vec<String> {
    if entries.iter().any(|entry| entry.is_table && entry.name == key) {
        let is_inside = |entry: &&Entry| format!("{}.", entry.name).starts_with(&format!("{key}."));
        return entries.iter().filter(is_inside).map(|entry| entry.text.clone()).collect();
    }
    let is_it = |entry: &&Entry| !entry.is_table && (entry.name == key || entry.name.rsplit('.').next() == Some(key));
    entries.iter().filter(is_it).map(Entry::under_its_table).collect()
}

/// The settings and tables of the example.
fn entries() -> Vec<Entry> {
    let (mut entries, mut table, mut text) = (Vec::<Entry>::new(), String::new(), String::new());
    for line in EXAMPLE.lines() {
        if line.is_empty() {
            text.clear(); // the head of the file
            continue;
        }
        if line.starts_with([' ', ']'])
            && let Some(list) = entries.last_mut()
        {
            list.text.extend([line, "\n"]);
            continue;
        }
        text.extend([line, "\n"]);
        let code = line.strip_prefix("# ").unwrap_or(line);
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || b"_.".contains(&byte))
        };
        let header =
            code.strip_prefix('[').and_then(|code| code.strip_suffix(']')).map(|code| code.trim_matches(['[', ']']));
        if let Some(header) = header.filter(|header| is_name(header)) {
            header.clone_into(&mut table);
            entries.push(Entry { name: table.clone(), text: std::mem::take(&mut text), is_table: true });
        } else if let Some((key, _)) = code.split_once(" = ").filter(|(key, _)| is_name(key)) {
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
        let settings = toml::Value::try_from(crate::config::Config::default()).unwrap();
        let tables = settings.as_table().unwrap().iter().filter_map(|(table, value)| Some((table, value.as_table()?)));
        for (table, keys) in tables.filter(|(_, keys)| keys.values().all(|value| !value.is_table())) {
            for key in keys.keys() {
                assert!(!text(&format!("{table}.{key}")).is_empty(), "{table}.{key}");
            }
        }
    }
}
