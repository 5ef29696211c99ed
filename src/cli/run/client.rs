//! How a command is led to abridge: the variables that clients read, and the arguments of clients that need more.
//!
//! A client gets the base URL that it has without abridge, with the address of abridge in it. So it asks for the paths that
//! its upstream knows, and its upstream is where the requests go.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::cli::setup::clients::{BASE_URL, ClaudeHost};
use crate::cli::setup::edit::CodexSettings;
use crate::cli::setup::jsonc;
use crate::cli::{ANTHROPIC, CHATGPT};
use crate::config::{Config, ConfigError, Variables, read_text};
use crate::upstream::routes;
use crate::upstream::target::BaseUrl;

/// A client, and its base URLs without abridge.
#[derive(Debug)]
pub(super) struct Client {
    // None if it has no base URL, or if the settings of abridge name the upstream.
    openai: Option<BaseUrl>,
    anthropic: Option<BaseUrl>,
    // The variables that name the former, and its usual path.
    openai_variables: &'static [&'static str],
    openai_path: &'static str,
    // What says where the latter is.
    host: ClaudeHost,
    /// Of Codex, which reads no variable, the key of its settings for the base URL of its provider; none of a provider without
    /// one.
    codex_key: Option<String>,
    /// Whether the settings of Claude Code name a base URL, which wins over the variable.
    settings_win: bool,
}

/// The variables of most clients of the API of OpenAI.
const OPENAI_VARIABLES: [&str; 2] = ["OPENAI_BASE_URL", "OPENAI_API_BASE"];

/// The variables that lead a client's requests to a proxy.
const PROXIES: [&str; 6] = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

// === impl Client ===

impl Client {
    /// The client that a command runs, by its name, with what its variables and its settings say.
    pub(super) fn of(command: &[OsString], variables: &Variables, config: &Config) -> Result<Self, ConfigError> {
        let mut client = Self {
            openai: variables.base_url(&OPENAI_VARIABLES)?,
            anthropic: variables.base_url(&[BASE_URL])?,
            openai_variables: &OPENAI_VARIABLES,
            openai_path: "/v1",
            host: ClaudeHost::of(|_| None),
            codex_key: None,
            settings_win: false,
        };
        let (program, arguments) = command.split_first().unzip();
        match program.and_then(|program| Path::new(program).file_stem()?.to_str()) {
            Some("codex") => client.read_codex(arguments.unwrap_or_default(), variables),
            Some("claude") => client.read_claude(variables)?,
            // Its base URL for Anthropic has the version.
            Some("opencode") => client.host.path = "/v1",
            Some("goose") => {
                (client.openai_variables, client.openai_path) = (&["OPENAI_HOST"], "");
                client.host.variable = "ANTHROPIC_HOST";
                client.openai = variables.base_url(client.openai_variables)?;
                client.anthropic = variables.base_url(&[client.host.variable])?;
            }
            _ => {}
        }
        client.openai = client.openai.filter(|_| !names_upstream(config));
        client.anthropic = client.anthropic.filter(|_| !names_anthropic(config));
        Ok(client)
    }

    /// The values of `--upstream` that lead abridge to where the requests go without it, as far as `config` does not say.
    pub(super) fn upstreams(&self, config: &Config) -> Vec<String> {
        let mut flags = Vec::new();
        match &self.openai {
            Some(url) => flags.push(url.to_string()),
            None if names_upstream(config) || config.upstreams.iter().any(|upstream| upstream.name == "chatgpt") => {}
            None => flags.push(format!("chatgpt={CHATGPT}")),
        }
        match &self.anthropic {
            Some(url) => flags.push(format!("anthropic={url}")),
            // Requests in both APIs go to the one upstream that the settings name.
            None if names_anthropic(config) || names_upstream(config) => {}
            None => flags.push(format!("anthropic={ANTHROPIC}")),
        }
        flags
    }

    /// The variables that lead the client to abridge at `url`.
    pub(super) fn variables(&self, url: &str) -> Vec<(&'static str, String)> {
        let openai = self.openai_variables.iter().map(|name| (*name, self.openai_base(url)));
        openai.chain(self.anthropic_variables(url)).collect()
    }

    fn anthropic_variables(&self, url: &str) -> impl Iterator<Item = (&'static str, String)> {
        let excluded = self.host.excluded.map(|name| (name, String::new()));
        let base = format!("{url}{}", self.anthropic.as_ref().map_or(self.host.path, path_of));
        excluded.into_iter().chain([(self.host.variable, base)])
    }

    /// The arguments that lead the client to abridge at `url`; they precede its own.
    pub(super) fn arguments(&self, url: &str) -> Vec<String> {
        if let Some(key) = &self.codex_key {
            return vec!["-c".to_owned(), format!("{key}={:?}", self.openai_base(url))];
        }
        if !self.settings_win {
            return Vec::new();
        }
        let variables = self.anthropic_variables(url).map(|(name, value)| format!("{name:?}:{value:?}"));
        let env = variables.collect::<Vec<_>>().join(",");
        vec!["--settings".to_owned(), format!("{{\"env\":{{{env}}}}}")]
    }

    fn openai_base(&self, url: &str) -> String {
        format!("{url}{}", self.openai.as_ref().map_or(self.openai_path, path_of))
    }

    fn read_codex(&mut self, arguments: &[OsString], variables: &Variables) {
        let folder = variables.folder("CODEX_HOME", ".codex").ok().flatten();
        let read = |name: &str| {
            let text = folder.as_ref().and_then(|folder| read_text(&folder.join(name)).ok());
            text.and_then(|text| toml::from_str(&text).ok()).unwrap_or_default()
        };
        let profile = codex_profile(arguments).map(|name| read(&format!("{name}.config.toml")));
        let settings: CodexSettings = read("config.toml");
        let settings = settings.with_profile(profile.unwrap_or_default());
        let url = settings.base_url().flatten();
        let key = match settings.model_provider.as_deref() {
            None | Some("openai") => Some("openai_base_url".to_owned()),
            // Codex splits a key at each full stop.
            Some(name) => (url.is_some() && !name.contains('.')).then(|| format!("model_providers.{name}.base_url")),
        };
        (self.codex_key, self.openai) = (key, url.and_then(|url| url.get_ref().parse().ok()));
    }

    fn read_claude(&mut self, variables: &Variables) -> Result<(), ConfigError> {
        let of_user = variables.folder("CLAUDE_CONFIG_DIR", ".claude").ok().flatten();
        let of_user = of_user.map(|folder| folder.join("settings.json"));
        // The first one wins.
        let of_project = [".claude/settings.local.json", ".claude/settings.json"].map(PathBuf::from);
        let texts: Vec<_> = of_project.into_iter().chain(of_user).filter_map(|path| read_text(&path).ok()).collect();
        let in_settings = |name: &str| texts.iter().find_map(|text| jsonc::get(text, &["env", name]));
        self.host = ClaudeHost::of_client(in_settings, variables);
        let ClaudeHost { variable, url, excluded, .. } = &self.host;
        self.settings_win = in_settings(variable).or(excluded.and_then(in_settings)).is_some();
        self.anthropic = url.as_ref().and_then(|url| url.parse().ok()).or(variables.base_url(&[variable])?);
        Ok(())
    }
}

// === helpers ===

/// The variables with which a client speaks to abridge directly, where a proxy is set.
pub(super) fn direct(variables: &Variables) -> Result<Vec<(&'static str, String)>, ConfigError> {
    if variables.first_set(&PROXIES)?.is_none() {
        return Ok(Vec::new());
    }
    let present = variables.first_set(&["no_proxy", "NO_PROXY"])?.map(|(_, hosts)| hosts);
    let hosts = present.map_or_else(|| "127.0.0.1".to_owned(), |hosts| format!("{hosts},127.0.0.1"));
    // A star is understood only where it is alone.
    let hosts = if present == Some("*") { "*".to_owned() } else { hosts };
    Ok(vec![("no_proxy", hosts.clone()), ("NO_PROXY", hosts)])
}

/// The profile that the arguments of Codex name. Since 0.134, its settings are in `NAME.config.toml` (openai/codex#24051).
fn codex_profile(arguments: &[OsString]) -> Option<&str> {
    let mut arguments =
        arguments.iter().map_while(|argument| argument.to_str()).take_while(|argument| *argument != "--");
    let name = arguments.find_map(|argument| match argument {
        "--profile" | "-p" => Some(None),
        _ => argument.strip_prefix("--profile=").or(argument.strip_prefix("-p")).map(Some),
    })?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    name.or_else(|| arguments.next()).filter(|name| !name.is_empty() && name.chars().all(is_plain))
}

fn path_of(url: &BaseUrl) -> &str {
    url.uri().path().trim_end_matches('/')
}

/// Whether the settings of abridge name their own upstream.
fn names_upstream(config: &Config) -> bool {
    config.upstream.url != BaseUrl::default()
}

/// Whether they say where requests in the dialect `messages` go.
fn names_anthropic(config: &Config) -> bool {
    let is_one = |of: &routes::Settings| of.name == "anthropic" || of.speaks(routes::DialectName::Messages);
    config.upstreams.iter().any(is_one)
}

#[cfg(test)]
mod tests;
