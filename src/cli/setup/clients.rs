//! The clients that can be set up: where their settings are, what is set there, and where their requests went before.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::ValueEnum;

use super::{BYTE_ORDER_MARK, edit, jsonc};
use crate::cli::{ANTHROPIC, CHATGPT};
use crate::config::{Config, MissingError, Sources, Variables};
use crate::template::section;
use crate::upstream::routes;
use crate::upstream::target::BaseUrl;

/// A client.
#[derive(Clone, Copy, Debug, derive_more::Display, Eq, PartialEq, ValueEnum)]
#[display("{}", self.to_possible_value().unwrap_or_default().get_name())]
pub(super) enum Client {
    Codex,
    #[value(alias = "claude")]
    ClaudeCode,
    Opencode,
    Aider,
    Goose,
    Continue,
    Cline,
    #[value(alias = "roo-code")]
    Roo,
    Crush,
    Cursor,
    Zed,
    #[value(alias = "gemini")]
    GeminiCli,
    #[value(alias = "qwen")]
    QwenCode,
    /// The variables in the profile of the shell.
    Shell,
}

/// The settings of opencode before anything is set.
const OPENCODE: &str = "{\n  \"$schema\": \"https://opencode.ai/config.json\"\n}\n";

/// Instructions for clients whose settings abridge does not write.
const BY_HAND: &str = include_str!("by_hand.txt");

impl Client {
    /// The clients whose settings, or whose folder for them, this user has.
    pub(super) fn found(variables: &Variables) -> Vec<Self> {
        Self::value_variants().iter().copied().filter(|client| client.is_found(variables)).collect()
    }

    fn is_found(self, variables: &Variables) -> bool {
        let home = variables.home().ok().flatten().unwrap_or_default();
        let has_extension = |beginning: &str| {
            let mut extensions = fs::read_dir(home.join(".vscode/extensions")).into_iter().flatten().flatten();
            extensions.any(|extension| extension.file_name().to_string_lossy().starts_with(beginning))
        };
        let set = |name, below: &str| variables.folder(name, below).ok().flatten().unwrap_or_else(|| home.join(below));
        match (self, self.path(variables)) {
            (Self::Aider, Ok(Some(path))) => path.exists() || home.join(".aider").exists(),
            (Self::Shell, Ok(Some(path))) => path.exists(),
            (Self::Cline, _) => has_extension("saoudrizwan.claude-dev"),
            (Self::Roo, _) => has_extension("rooveterinaryinc.roo-cline"),
            (Self::Crush, _) => set("XDG_CONFIG_HOME", ".config").join("crush").exists(),
            (Self::Cursor, _) => home.join(".cursor").exists(),
            (Self::Zed, _) => set("XDG_CONFIG_HOME", ".config").join("zed").exists(),
            (Self::GeminiCli, _) => set("GEMINI_CLI_HOME", "").join(".gemini").exists(),
            (Self::QwenCode, _) => home.join(".qwen").exists(),
            (_, path) => path.ok().flatten().and_then(|path| path.parent().map(Path::exists)).unwrap_or(false),
        }
    }

    /// The file with its settings; none if they are in no file that can be written.
    pub(super) fn path(self, variables: &Variables) -> anyhow::Result<Option<PathBuf>> {
        let home = variables.home()?.ok_or(MissingError::Home)?;
        let folder = |variable, default| anyhow::Ok(variables.folder(variable, default)?.ok_or(MissingError::Home)?);
        Ok(Some(match self {
            Self::Codex => folder("CODEX_HOME", ".codex")?.join("config.toml"),
            Self::ClaudeCode => folder("CLAUDE_CONFIG_DIR", ".claude")?.join("settings.json"),
            Self::Opencode => {
                let with_comments = folder("XDG_CONFIG_HOME", ".config")?.join("opencode/opencode.jsonc");
                if with_comments.exists() { with_comments } else { with_comments.with_extension("json") }
            }
            Self::Aider => home.join(".aider.conf.yml"),
            Self::Goose => folder("XDG_CONFIG_HOME", ".config")?.join("goose/config.yaml"),
            Self::Continue => home.join(".continue/config.yaml"),
            Self::Shell => {
                let shell = variables.first_set(&["SHELL"])?.map_or("", |(_, shell)| shell);
                match shell.rsplit('/').next() {
                    Some("fish") => folder("XDG_CONFIG_HOME", ".config")?.join("fish/config.fish"),
                    Some("zsh") => folder("ZDOTDIR", "")?.join(".zshrc"),
                    Some("bash") => home.join(".bashrc"),
                    _ => home.join(".profile"),
                }
            }
            _ => return Ok(None),
        }))
    }

    /// The settings of this file with the address of abridge.
    pub(super) fn edit(self, path: &Path, text: &str, url: &str, variables: &Variables) -> anyhow::Result<String> {
        let (mark, text) = text.split_at(text.len() - text.trim_start_matches(BYTE_ORDER_MARK).len());
        let v1 = format!("{url}/v1");
        let edited = match self {
            Self::Codex => edit::codex(text, &v1),
            Self::ClaudeCode => claude_code(text, url, variables),
            Self::Opencode => {
                // opencode puts its schema into a file without one.
                let text = if text.trim().is_empty() { OPENCODE } else { text };
                jsonc::set(text, &["provider", "openai", "options", "baseURL"], &v1)
                    .and_then(|text| jsonc::set(&text, &["provider", "anthropic", "options", "baseURL"], &v1))
            }
            Self::Aider => edit::yaml_key(text, "openai-api-base", &v1),
            Self::Goose => {
                edit::yaml_key(text, "OPENAI_HOST", url).and_then(|text| edit::yaml_key(&text, "ANTHROPIC_HOST", url))
            }
            Self::Continue => edit::continue_models(text, &v1).map(|(text, _)| text),
            Self::Shell => Some(edit::shell(text, &exports(path, url))),
            _ => None,
        };
        edited
            .map(|edited| format!("{mark}{edited}"))
            .ok_or_else(|| anyhow!("its file has nothing that can be changed safely; {}", self.by_hand(url).trim_end()))
    }

    /// The instructions for a person.
    pub(super) fn by_hand(self, url: &str) -> String {
        let text = Some(section(BY_HAND, &self.to_string())).filter(|text| !text.is_empty());
        text.unwrap_or("set the base URL to {url} by hand\n").replace("{url}", url)
    }
}

/// Where Claude Code finds Claude without abridge.
fn claude_host(text: &str, variables: &Variables) -> ClaudeHost {
    ClaudeHost::of_client(|name| jsonc::get(text, &["env", name]), variables)
}

fn claude_code(text: &str, url: &str, variables: &Variables) -> Option<String> {
    let host = claude_host(text, variables);
    // A path of a gateway in front of Anthropic's own API is that of the upstream alone.
    let present = host.url.filter(|_| host.variable != BASE_URL).and_then(|url| url.parse::<BaseUrl>().ok());
    let path = present.as_ref().map_or(host.path, |url| url.uri().path().trim_end_matches('/'));
    let text = jsonc::set(text, &["env", host.variable], &format!("{url}{path}"))?;
    match host.excluded {
        Some(name) => jsonc::set(&text, &["env", name], ""),
        None => Some(text),
    }
}

/// The line of a shell profile that sets the variables.
fn exports(path: &Path, url: &str) -> String {
    let variables = [("OPENAI_BASE_URL", "/v1"), ("OPENAI_API_BASE", "/v1"), ("ANTHROPIC_BASE_URL", "")];
    if path.extension().is_some_and(|end| end == "fish") {
        return variables.map(|(name, version)| format!("set -gx {name} {url}{version}")).join("; ");
    }
    format!("export {}", variables.map(|(name, version)| format!("{name}={url}{version}")).join(" "))
}

// === where requests went before ===

/// The API of a base URL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Api {
    OpenAi,
    Anthropic,
}

/// A base URL of a client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Displaced {
    client: Client,
    api: Api,
    /// As the client has it.
    url: String,
    /// As an upstream of abridge, whose path replaces the `/v1` of a request.
    upstream: String,
}

/// The base URLs in the settings of a client, other than abridge at `url`.
pub(super) fn displaced_of(client: Client, text: &str, variables: &Variables, url: &str) -> Vec<Displaced> {
    use Api::{Anthropic, OpenAi};
    let text = text.trim_start_matches(BYTE_ORDER_MARK);
    let set = |names: &[&str]| variables.first_set(names).ok().flatten().map(|(_, value)| value.to_owned());
    let in_profile = |names: &[&str]| edit::assigned(text, names).or_else(|| set(names));
    // A client's base URL has the version, or the client adds `/v1` to it.
    let versioned = |api, url: Option<String>| url.map(|url| (api, url.trim_end_matches('/').to_owned(), url));
    let host = |api, url: Option<String>| url.map(|url| (api, with_version(&url), url));
    let found: Vec<_> = match client {
        Client::Codex => vec![versioned(OpenAi, edit::codex_url(text))],
        Client::ClaudeCode => {
            let ClaudeHost { variable, url, .. } = claude_host(text, variables);
            vec![if variable == BASE_URL { host(Anthropic, url) } else { versioned(Anthropic, url) }]
        }
        Client::Opencode => [(OpenAi, "openai"), (Anthropic, "anthropic")]
            .map(|(api, name)| versioned(api, jsonc::get(text, &["provider", name, "options", "baseURL"])))
            .into(),
        Client::Aider => vec![versioned(OpenAi, edit::yaml_value(text, "openai-api-base"))],
        Client::Goose => vec![
            host(OpenAi, edit::yaml_value(text, "OPENAI_HOST")),
            host(Anthropic, edit::yaml_value(text, "ANTHROPIC_HOST")),
        ],
        Client::Continue => {
            let api = |maker: &str| if maker == "anthropic" { Anthropic } else { OpenAi };
            let models = edit::continue_models(text, url).into_iter().flat_map(|(_, present)| present);
            models.map(|(maker, url)| versioned(api(&maker), Some(url))).collect()
        }
        Client::Shell => vec![
            versioned(OpenAi, in_profile(&["OPENAI_BASE_URL", "OPENAI_API_BASE"])),
            host(Anthropic, in_profile(&[BASE_URL])),
        ],
        _ => Vec::new(),
    };
    let found = found.into_iter().flatten().filter(|(_, _, found)| !is_below(found, url));
    let found = found.map(|(api, upstream, url)| Displaced { client, api, url, upstream });
    let mut displaced: Vec<_> = found.collect();
    displaced.dedup();
    displaced
}

/// The last lines of the output: where requests went before, and the command that serves the clients and sends them there.
pub(super) fn afterwards(displaced: &[Displaced], sources: &Sources, config: &Config) -> String {
    let (mut lines, mut flags) = (Vec::new(), Vec::new());
    let is_codex_elsewhere = displaced.iter().any(|of| of.client == Client::Codex);
    let openai = BaseUrl::default().to_string();
    for (api, name, maker) in [(Api::OpenAi, "", openai), (Api::Anthropic, "anthropic=", ANTHROPIC.to_owned())] {
        let mut upstream = None;
        for Displaced { client, url, upstream: there, .. } in displaced.iter().filter(|of| of.api == api) {
            let settled = named_by_settings(config, api).or_else(|| upstream.clone());
            lines.push(match settled.filter(|settled| settled != there) {
                _ if there.parse::<BaseUrl>().is_err() => {
                    format!("{client} sent its requests to {}, which abridge cannot have as an upstream\n", without_user(url))
                }
                None => {
                    upstream = Some(there.clone());
                    format!("{client} sent its requests to {url}; that is an upstream of abridge now: --upstream {name}{there}\n")
                }
                Some(other) => format!(
                    "{client} sent its requests to {url}, and abridge will send them to {other}; to keep both, run another abridge \
                     with --listen and --upstream {name}{there}, and set {client} up with --url\n"
                ),
            });
        }
        if !names_upstreams(config) || upstream.is_some() {
            flags.push(format!("--upstream {name}{}", upstream.unwrap_or(maker)));
        }
    }
    if !names_upstreams(config) && !is_codex_elsewhere {
        flags.push(format!("--upstream chatgpt={CHATGPT}"));
    }
    let given = sources.file.as_ref().map(|file| format!("--config {}", file.display()));
    let given = given.into_iter().chain(sources.flags.listen.iter().map(|address| format!("--listen {address}")));
    let flags = given.chain(flags).collect::<Vec<_>>().join(" \\\n    ");
    let command = format!("abridge serve {flags}");
    format!("{}abridge must run while these clients do:\n  {}\n", lines.concat(), command.trim_end())
}

/// Whether the settings of abridge name upstreams.
pub(in crate::cli) fn names_upstreams(config: &Config) -> bool {
    config.upstream.url != BaseUrl::default() || !config.upstreams.is_empty()
}

/// Where the settings of abridge send requests in an API, if they say so.
fn named_by_settings(config: &Config, api: Api) -> Option<String> {
    let messages = config.upstreams.iter().find(|upstream| upstream.speaks(routes::DialectName::Messages));
    let route = messages.filter(|_| api == Api::Anthropic).map(|route| &route.url);
    let url = route.or(Some(&config.upstream.url).filter(|_| names_upstreams(config)))?;
    Some(url.to_string())
}

/// A base URL to which a client adds `/v1`, as an upstream of abridge.
fn with_version(url: &str) -> String {
    let bare = url.trim_end_matches('/');
    let has_path = bare.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    if has_path { format!("{bare}/v1") } else { bare.to_owned() }
}

fn is_below(url: &str, folder: &str) -> bool {
    url.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A URL without the user in it, who may have a password.
fn without_user(url: &str) -> String {
    url.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, host)| format!("***@{host}"))
}

// === Claude Code ===

/// A host, by the variables of Claude Code 2.1.197 and Anthropic's SDKs 2.12.0.
#[derive(Debug)]
pub(in crate::cli) struct ClaudeHost {
    /// The variable with its base URL.
    pub(in crate::cli) variable: &'static str,
    /// The path of its base URL.
    pub(in crate::cli) path: &'static str,
    /// Its base URL, as far as variables say one.
    pub(in crate::cli) url: Option<String>,
    /// A variable that must be empty where the base URL is set.
    pub(in crate::cli) excluded: Option<&'static str>,
}

/// The base URL of Anthropic's clients.
pub(in crate::cli) const BASE_URL: &str = "ANTHROPIC_BASE_URL";

const FOUNDRY_RESOURCE: &str = "ANTHROPIC_FOUNDRY_RESOURCE";

impl ClaudeHost {
    /// The host that the settings of Claude Code choose, which win over the variables.
    pub(in crate::cli) fn of_client(in_settings: impl Fn(&str) -> Option<String>, variables: &Variables) -> Self {
        let set = |name| variables.first_set(&[name]).ok().flatten().map(|(_, value)| value.to_owned());
        Self::of(|name| in_settings(name).or_else(|| set(name)))
    }

    /// The host that variables choose.
    pub(in crate::cli) fn of(value: impl Fn(&'static str) -> Option<String>) -> Self {
        let value = |name| value(name).filter(|value| !value.is_empty());
        let is_on = |name| value(name).is_some_and(|value| !matches!(&*value, "0" | "false"));
        let (mut variable, mut path, mut default, mut excluded) = (BASE_URL, "", None, None);
        if is_on("CLAUDE_CODE_USE_BEDROCK") {
            let region = value("AWS_REGION").or_else(|| value("AWS_DEFAULT_REGION"));
            let region = region.as_deref().unwrap_or("us-east-1");
            variable = "ANTHROPIC_BEDROCK_BASE_URL";
            default = Some(format!("https://bedrock-runtime.{region}.amazonaws.com"));
        } else if is_on("CLAUDE_CODE_USE_VERTEX") {
            (variable, path) = ("ANTHROPIC_VERTEX_BASE_URL", "/v1");
            default = Some(match value("CLOUD_ML_REGION").as_deref().unwrap_or("us-east5") {
                "global" => "https://aiplatform.googleapis.com/v1".to_owned(),
                region @ ("us" | "eu") => format!("https://aiplatform.{region}.rep.googleapis.com/v1"),
                region => format!("https://{region}-aiplatform.googleapis.com/v1"),
            });
        } else if is_on("CLAUDE_CODE_USE_FOUNDRY") {
            (variable, path) = ("ANTHROPIC_FOUNDRY_BASE_URL", "/anthropic");
            excluded = Some(FOUNDRY_RESOURCE);
            let of_resource = |resource| format!("https://{resource}.services.ai.azure.com/anthropic");
            default = value(FOUNDRY_RESOURCE).map(of_resource);
        }
        Self { variable, path, url: value(variable).or(default), excluded }
    }
}
