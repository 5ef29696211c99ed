//! Variables that look like settings and are none, as they have one underscore for two.

use super::error::ConfigErrorKind;
use super::sources::PREFIX;
use super::value::{LocatedValue, Value};
use super::{Config, Variables};

/// What variables of abridge begin with.
const PROGRAM: &str = "ABRIDGE_";

impl Config {
    /// A sentence for each variable that looks like a setting and is none. Variables that settings name, as `api_key_env`
    /// does, are free.
    pub fn misspelt_variables(&self, variables: &Variables) -> Vec<String> {
        let settings = self.to_toml().unwrap_or_default();
        let is_named = |name: &str| settings.contains(&format!("_env = \"{name}\""));
        let sentence = |name: &str| {
            let rest = name.strip_prefix(PROGRAM).filter(|_| !name.starts_with(PREFIX) && !is_named(name))?;
            let setting = spelt(&[], &rest.to_lowercase())?;
            Some(format!("{name} is not a setting, and has no effect; did you mean {PREFIX}{setting}?"))
        };
        variables.names().filter_map(sentence).collect()
    }
}

/// The setting in the table at `path` whose keys are those of a text with single underscores between them, as variables spell it. An
/// unknown key is refused with those that are known.
fn spelt(path: &[&str], rest: &str) -> Option<String> {
    let probe = LocatedValue::of_flag("", Value::Boolean(true)).nested_in(&[path, &["?"]].concat());
    match Config::from_value(&probe).map_err(|error| error.0.kind) {
        Err(ConfigErrorKind::UnknownKey { allowed, .. }) => allowed.iter().find_map(|key| {
            let rest = rest.strip_prefix(key).filter(|rest| rest.is_empty() || rest.starts_with('_'))?;
            spelt(&[path, &[*key]].concat(), rest.trim_start_matches('_'))
        }),
        _ => rest.is_empty().then(|| path.join("__").to_uppercase()),
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
            ("ABRIDGE_SERVER_MAX_BODY", "SERVER__MAX_BODY"),
            ("ABRIDGE_SERVER__MAX_BODY", "SERVER__MAX_BODY"),
            ("ABRIDGE_UPSTREAM_URL", "UPSTREAM__URL"),
            ("ABRIDGE_TLS_CERT", "TLS__CERT"),
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
             \"ABRIDGE_SERVER_MAX_BODY\" }]\nhandlers.a = { url = \"http://h/\", key_env = \"ABRIDGE_DRY_RUN\" }\nstore.secret_env = \
             \"ABRIDGE_STORE_PATH\"\n",
        )
        .unwrap();
        let names = ["ABRIDGE_UPSTREAM_URL", "ABRIDGE_SERVER_MAX_BODY", "ABRIDGE_DRY_RUN", "ABRIDGE_STORE_PATH"];
        let variables: Variables = names.map(|name| (name, "x")).into_iter().collect();
        assert_eq!(config.misspelt_variables(&variables), [""; 0]);
        assert_eq!(Config::default().misspelt_variables(&variables).len(), names.len());
    }
}
