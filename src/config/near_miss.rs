//! Variables that look like settings and are none: one underscore for two, a key without its table, a typing error.

use std::collections::BTreeSet;

use strsim::levenshtein;

use super::error::ConfigErrorKind;
use super::sources::PREFIX;
use super::value::{LocatedValue, Value};
use super::{Config, Variables};

/// What variables of abridge begin with, in lower case.
const PROGRAM: &str = "abridge";

/// A variable with the name of a flag whose setting has another name.
const FLAG: (&str, &str) = ("upstream", "UPSTREAM__URL");

/// A key is found without its table from this length on; shorter ones, such as `url`, name other things as well.
const MIN_KEY: usize = 6;

/// How many letters may be wrong.
const MAX_TYPOS: usize = 2;

/// Settings are not nested deeper.
const MAX_DEPTH: usize = 4;

impl Config {
    /// A sentence for each variable that looks like a setting and is none. Variables that settings name, as `api_key_env`
    /// does, are free.
    pub fn misspelt_variables(&self, variables: &Variables) -> Vec<String> {
        let named = self.named_variables();
        let is_candidate = |name: &&str| !name.starts_with(PREFIX) && !named.contains(*name) && rest_of(name).is_some();
        let candidates: Vec<_> = variables.names().filter(is_candidate).collect();
        if candidates.is_empty() {
            return Vec::new();
        }
        let mut known = Vec::new();
        find_settings(&[], &mut known);
        let sentence = |name: &str| {
            let setting = nearest(rest_of(name)?, &known)?;
            Some(format!("{name} is not a setting, and has no effect; did you mean {PREFIX}{setting}?"))
        };
        candidates.into_iter().filter_map(sentence).collect()
    }

    /// The variables that settings name.
    fn named_variables(&self) -> BTreeSet<String> {
        let mut named = BTreeSet::new();
        let mut tables = self.to_table().map(toml::Value::Table).into_iter().collect::<Vec<_>>();
        while let Some(value) = tables.pop() {
            match value {
                toml::Value::Table(table) => {
                    for (key, value) in table {
                        match value {
                            toml::Value::String(name) if key.ends_with("_env") => drop(named.insert(name)),
                            value => tables.push(value),
                        }
                    }
                }
                toml::Value::Array(values) => tables.extend(values),
                _ => {}
            }
        }
        named
    }
}

/// The part of a variable after the name of the program, if the variable may be meant as a setting. Before two underscores, the
/// name of the program may have a typing error.
fn rest_of(name: &str) -> Option<&str> {
    let (program, rest) = name.split_once('_')?;
    let program = program.to_lowercase();
    let is_meant = program == PROGRAM
        || (rest.starts_with('_') && program.starts_with('a') && levenshtein(&program, PROGRAM) <= MAX_TYPOS);
    is_meant.then_some(rest)
}

/// The setting whose letters are those of a text, or nearly so.
fn nearest<'k>(text: &str, known: &'k [String]) -> Option<&'k str> {
    let letters = |text: &str| text.replace('_', "").to_lowercase();
    let text = letters(text);
    if text == FLAG.0 {
        return Some(FLAG.1);
    }
    let is_key = |setting: &&String| setting.rsplit("__").next().is_some_and(|key| letters(key) == text);
    let typos = |setting: &&String| levenshtein(&text, &letters(setting));
    let exact = known.iter().find(|setting| letters(setting) == text);
    let key = || known.iter().find(|setting| text.len() >= MIN_KEY && is_key(setting));
    let near = || known.iter().min_by_key(typos).filter(|near| typos(near) <= MAX_TYPOS.min(text.len() / 3));
    exact.or_else(key).or_else(near).map(String::as_str)
}

/// Finds all settings below a path of keys, as variables spell them: an unknown key is refused with those that are known.
fn find_settings(path: &[&str], found: &mut Vec<String>) {
    let probe = LocatedValue::of_flag("", Value::Boolean(true)).nested_in(&[path, &["?"]].concat());
    match Config::from_value(&probe).map_err(|error| error.0.kind) {
        Err(ConfigErrorKind::UnknownKey { allowed, .. }) if path.len() < MAX_DEPTH => {
            for key in allowed {
                find_settings(&[path, &[*key]].concat(), found);
            }
        }
        _ => found.push(path.join("__").to_uppercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_looks_like_a_setting_is_named() {
        let config = Config::default();
        let said = |name: &str| config.misspelt_variables(&[(name, "x")].into_iter().collect());
        for (name, setting) in [
            ("ABRIDGE_DRY_RUN", "DRY_RUN"),
            ("abridge__dry_run", "DRY_RUN"),
            ("ABRIDGE_SERVER_MAX_BODY", "SERVER__MAX_BODY"),
            ("ABRIDGE_SERVER__MAX_BODY", "SERVER__MAX_BODY"),
            ("ABRIDGE_MAX_BODY", "SERVER__MAX_BODY"),
            ("ABRIDGE_LISTEN", "SERVER__LISTEN"),
            ("ABRIDGE_UPSTREAM", "UPSTREAM__URL"),
            ("ABRIDGE_UPSTREAM_URL", "UPSTREAM__URL"),
            ("ABRIDGE_TLS_CERT", "TLS__CERT"),
            ("ABRIDGE_LOG_LEVLE", "LOG__LEVEL"),
            ("ABRIDGE_DRYRUN", "DRY_RUN"),
            ("ABRIGDE__DRY_RUN", "DRY_RUN"),
            ("ABRIDGE_CLEAR_TOOL_RESULTS_TRIGGER_TOKENS", "CLEAR_TOOL_RESULTS__TRIGGER__TOKENS"),
        ] {
            let sentence = format!("{name} is not a setting, and has no effect; did you mean ABRIDGE__{setting}?");
            assert_eq!(said(name), [sentence]);
        }
        for free in [
            "ABRIDGE_ADMIN_TOKEN",
            "ABRIDGE_BIN",
            "ABRIDGE_BINARY",
            "ABRIDGE_BROWSER",
            "ABRIDGE_CHROMIUM",
            "ABRIDGE_CLIENTS",
            "ABRIDGE_CORPUS",
            "ABRIDGE_CORPUS_MESSAGES",
            "ABRIDGE_CORPUS_RESPONSES",
            "ABRIDGE_CRASH_SEED",
            "ABRIDGE_PAGE",
            "ABRIDGE_OLD_STORE_SECRETS",
            "ABRIDGE_STORE_SECRET",
            "ABRIDGE_STORE_URL",
            "ABRIDGE_TOKEN",
            "ABRIDGE_SCREENS",
            "ABRIDGE_REDIS_SERVER",
            "ABRIDGE_VERSION",
            "ABRIDGE_URL",
            "ABRIDGE_PORT",
            "ABRIDGE_PORT_8787_TCP_ADDR",
            "ABRIDGE_SERVICE_HOST",
            "ABRIDGE_SERVICE_PORT",
            "ABRIDGE_HOME",
            "ABRIDGE",
            "ABRIDGE_",
            "OTHER__DRY_RUN",
            "DRY_RUN",
            "ABRIDGE__DRY_RUN",
        ] {
            assert_eq!(said(free), [""; 0], "{free}");
        }
    }

    #[test]
    fn what_settings_name_is_free() {
        let config: Config = toml::from_str(
            "upstream.api_key_env = \"ABRIDGE_UPSTREAM_URL\"\nupstreams = [{ name = \"messages\", url = \"http://h\", api_key_env = \
             \"ABRIDGE_MAX_BODY\" }]\nhandlers.a = { url = \"http://h/\", key_env = \"ABRIDGE_DRY_RUN\" }\nstore.secret_env = \
             \"ABRIDGE_STORE_PATH\"\n",
        )
        .unwrap();
        let names = ["ABRIDGE_UPSTREAM_URL", "ABRIDGE_MAX_BODY", "ABRIDGE_DRY_RUN", "ABRIDGE_STORE_PATH"];
        let variables: Variables = names.map(|name| (name, "x")).into_iter().collect();
        assert_eq!(config.misspelt_variables(&variables), [""; 0]);
        assert_eq!(Config::default().misspelt_variables(&variables).len(), names.len());
    }
}
