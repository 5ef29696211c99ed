//! The sources of the settings, and how each becomes one layer.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;

use super::error::{ConfigErrorKind, SourceLocation};
use super::value::{LocatedValue, Value};
use super::{Config, ConfigError, Variables};

/// The file that is read if no other is named.
const DEFAULT_FILE: &str = "proxy.toml";

/// The longest settings file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The prefix of environment variables that are settings.
const PREFIX: &str = "ABRIDGE__";

/// The sources of the settings; they can be read repeatedly.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file; if none is named, `proxy.toml` of the working directory, which may be absent.
    pub file: Option<PathBuf>,
    /// The environment at the start of the process.
    pub variables: Variables,
    /// The flags of the command line.
    pub flags: Flags,
}

/// The settings that have a flag, as text. A flag overrides the environment and the file.
#[derive(clap::Args, Clone, Debug, Default, Eq, PartialEq)]
#[command(next_help_heading = "Settings")]
pub struct Flags {
    /// The listen addresses; the flag may be repeated.
    #[arg(long, global = true, value_name = "ADDR")]
    #[arg(help = "Where to listen: host:port or unix:/path; may be given more than once [default: 127.0.0.1:8787]")]
    pub listen: Vec<String>,
    /// The upstreams' base URLs, each as `URL` or `NAME=URL`.
    #[arg(long, global = true, value_name = "[NAME=]URL")]
    #[arg(help = UPSTREAM_HELP)]
    pub upstream: Vec<String>,
    /// The format of the log lines [default: text]
    #[arg(long, global = true, value_name = "FORM", value_parser = PossibleValuesParser::new(["text", "json"]))]
    pub log_format: Option<String>,
    /// Forward every request unedited, and only report what would be edited
    #[arg(long, global = true)]
    pub dry_run: bool,
}

const UPSTREAM_HELP: &str = "Where requests go [default: https://api.openai.com/v1]; once more as anthropic=URL for the \
requests of Claude Code, or as NAME=URL for another of [[upstreams]]";

// === impl Sources ===

impl Sources {
    /// The sources of this process. A `proxy.toml` that exists now must still exist when the sources are read again: a
    /// missing file is then an error, and not a return to the defaults.
    pub fn of_process(file: Option<PathBuf>, flags: Flags) -> Self {
        let found = || Path::new(DEFAULT_FILE).try_exists().unwrap_or(true).then(|| DEFAULT_FILE.into());
        Self { file: file.or_else(found), variables: Variables::of_process(), flags }
    }

    /// Reads all layers, checks each one by itself, and lays them on each other.
    pub(super) fn read(&self) -> Result<LocatedValue, ConfigError> {
        let mut written = self.file_layer()?;
        Config::from_value(&written)?;
        written.overlay(self.variable_layer()?);
        written.overlay(self.flags.layer()?);
        self.flags.name_upstreams(&mut written)?;
        Ok(written)
    }

    fn file_layer(&self) -> Result<LocatedValue, ConfigError> {
        let path = self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        let text = match read_text(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound && self.file.is_none() => {
                return Ok(LocatedValue::empty());
            }
            Err(error) => {
                let message = match error.kind() {
                    ErrorKind::NotFound => format!(
                        "not found; name a file that is there with --config, or none to read {DEFAULT_FILE} of the working directory"
                    ),
                    _ => format!("cannot be read: {error}"),
                };
                return Err(ConfigError::at(&SourceLocation::WholeFile(path.display().to_string().into()), message));
            }
        };
        let mut layer = LocatedValue::from_file(path, &text)?;
        fold_header_names(&mut layer);
        Ok(layer)
    }

    fn variable_layer(&self) -> Result<LocatedValue, ConfigError> {
        let mut layer = LocatedValue::empty();
        for name in self.variables.names().filter(|name| name.starts_with(PREFIX)) {
            let location = SourceLocation::Variable(name.into());
            let text = self.variables.text(name)?.unwrap_or_default();
            layer.merge(variable(&location, name.trim_start_matches(PREFIX), text)?);
        }
        fold_header_names(&mut layer);
        Ok(layer)
    }
}

// === impl Flags ===

impl Flags {
    fn layer(&self) -> Result<LocatedValue, ConfigError> {
        let mut layer = LocatedValue::empty();
        let mut set = |path: &[&str], value: LocatedValue| layer.overlay(value.nested_in(path));
        if !self.listen.is_empty() {
            let list = self.listen.iter().map(|address| text("--listen", address)).collect();
            set(&["server", "listen"], LocatedValue::of_flag("--listen", Value::List(list)));
        }
        let mut default = self.upstream.iter().filter(|flag| named_upstream(flag).is_none());
        if let Some(url) = default.next() {
            set(&["upstream", "url"], text(UPSTREAM, url));
        }
        if default.next().is_some() {
            let message = "given twice without a name; allowed: URL once, and NAME=URL for each further upstream";
            return Err(ConfigError::at(&SourceLocation::Flag(UPSTREAM), message));
        }
        if let Some(format) = &self.log_format {
            set(&["log", "format"], text("--log-format", format));
        }
        if self.dry_run {
            set(&["dry_run"], LocatedValue::of_flag("--dry-run", Value::Boolean(true)));
        }
        Config::from_value(&layer)?;
        Ok(layer)
    }

    /// Whether `--upstream URL` is given.
    pub fn has_default_upstream(&self) -> bool {
        self.upstream.iter().any(|flag| named_upstream(flag).is_none())
    }

    /// Lays each `--upstream NAME=URL` over the `[[upstreams]]`: over the `url` of the one of this name, or else as a new one
    /// before all others.
    fn name_upstreams(&self, written: &mut LocatedValue) -> Result<(), ConfigError> {
        for (n, (name, url)) in self.upstream.iter().filter_map(|flag| named_upstream(flag)).enumerate() {
            let url = text(UPSTREAM, url).nested_in(&["url"]);
            let Some(upstreams) = written.list_mut("upstreams") else { continue };
            let is_it = |upstream: &&mut LocatedValue| matches!(upstream.get(&["name"]), Some(LocatedValue { value: Value::Text(of), .. }) if of == name);
            if let Some(upstream) = upstreams.iter_mut().find(is_it) {
                upstream.overlay(url);
                continue;
            }
            let mut upstream = text(UPSTREAM, name).nested_in(&["name"]);
            upstream.overlay(url);
            upstreams.insert(n.min(upstreams.len()), upstream);
        }
        Config::from_value(written).map(drop)
    }
}

// === helpers ===

/// Its flag, in errors.
const UPSTREAM: &str = "--upstream";

fn text(flag: &'static str, text: &str) -> LocatedValue {
    LocatedValue::of_flag(flag, Value::Text(text.to_owned()))
}

/// Name and URL of `NAME=URL`; none of a URL alone, where a `:` precedes any `=`.
fn named_upstream(flag: &str) -> Option<(&str, &str)> {
    flag.split_once('=').filter(|(name, _)| !name.contains([':', '/']))
}

/// Reads a text file of at most 1 MiB.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::other("it is longer than 1MiB"));
    }
    String::from_utf8(bytes).map_err(|error| std::io::Error::other(error.utf8_error()))
}

/// Parses the value of a variable as TOML if that fits the key, and takes it as text otherwise: so `1` is a number, and
/// neither `127.0.0.1:8787` nor `1.1` needs quotes inside quotes.
fn variable(location: &SourceLocation, name: &str, text: &str) -> Result<LocatedValue, ConfigError> {
    let path: Vec<String> = name.split("__").map(str::to_lowercase).collect();
    let as_text = LocatedValue::at(location.clone(), Value::Text(text.to_owned())).nested_in(&path);
    let as_toml = match LocatedValue::from_text(location, text) {
        Ok(value) => value.nested_in(&path),
        // A value that begins like a list or a table is meant as one, and may contain secrets: it is never taken as
        // text.
        Err(error) if text.trim_start().starts_with(['{', '[']) => return Err(error),
        Err(_) => as_text.clone(),
    };
    let Err(error) = Config::from_value(&as_toml) else { return Ok(as_toml) };
    match Config::from_value(&as_text) {
        Ok(_) => Ok(as_text),
        Err(of_text) if matches!(of_text.0.kind, ConfigErrorKind::Type { .. }) => Err(error),
        Err(of_text) => Err(of_text),
    }
}

/// Turns header names into lower case, so that a later layer replaces a header of an earlier one.
fn fold_header_names(layer: &mut LocatedValue) {
    match &mut layer.value {
        Value::List(list) => list.iter_mut().for_each(fold_header_names),
        Value::Table(table) => {
            for (key, value) in table {
                match &mut value.value {
                    Value::Table(headers) if key == "headers" => {
                        let folded = std::mem::take(headers).into_iter();
                        *headers = folded.map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
                    }
                    _ => fold_header_names(value),
                }
            }
        }
        _ => {}
    }
}

// === variables that look like settings and are none ===

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

/// The setting in the table at `path` whose keys are those of a text with single underscores between them, as variables spell
/// it. An unknown key is refused with those that are known.
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
