//! The clients that can be set up: where their settings are, and what is set there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::ValueEnum;

use super::{BYTE_ORDER_MARK, edit, jsonc};
use crate::cli::claude_code::{BASE_URL, ClaudeHost};
use crate::config::{MissingError, Variables};
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
            let is_it = |name: OsString| name.to_string_lossy().starts_with(beginning);
            let extensions = std::fs::read_dir(home.join(".vscode/extensions")).into_iter().flatten().flatten();
            extensions.into_iter().any(|extension| is_it(extension.file_name()))
        };
        let set =
            |variable, default: &str| variables.folder(variable, &home, default).unwrap_or_else(|_| home.join(default));
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
        let folder = |variable, default| variables.folder(variable, &home, default);
        Ok(Some(match self {
            Self::Codex => folder("CODEX_HOME", ".codex")?.join("config.toml"),
            Self::ClaudeCode => folder("CLAUDE_CONFIG_DIR", ".claude")?.join("settings.json"),
            Self::Opencode => {
                let folder = folder("XDG_CONFIG_HOME", ".config")?.join("opencode");
                let with_comments = folder.join("opencode.jsonc");
                if with_comments.exists() { with_comments } else { folder.join("opencode.json") }
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
            Self::Continue => edit::continue_models(text, &v1),
            Self::Shell => Some(edit::shell(text, &exports(path, url))),
            _ => None,
        };
        edited.map(|edited| format!("{mark}{edited}")).ok_or_else(|| {
            anyhow!("the settings are not in a form that is changed safely; {}", self.by_hand(url).trim_end())
        })
    }

    /// The instructions for a person. A client without a text in `by_hand.txt` has the last one.
    pub(super) fn by_hand(self, url: &str) -> String {
        let name = self.to_string();
        let mut texts = BY_HAND.split("== ").filter_map(|text| text.split_once('\n'));
        let text = texts.find(|(client, _)| *client == name || client.is_empty());
        text.map(|(_, text)| text.replace("{url}", url)).unwrap_or_default()
    }
}

/// Where Claude Code finds Claude without abridge.
pub(super) fn claude_host(text: &str, variables: &Variables) -> ClaudeHost {
    let set = |name| variables.first_set(&[name]).ok().flatten().map(|(_, value)| value.to_owned());
    // The settings win over the variables.
    ClaudeHost::of(|name| jsonc::get(text, &["env", name]).or_else(|| set(name)))
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
