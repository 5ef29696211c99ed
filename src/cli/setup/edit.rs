//! Minimal changes of settings in TOML, YAML and shell scripts, and the way back: all other bytes stay.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use crate::cli::diff::render::common_ends;

/// The settings of Codex that say where it sends its requests, with their places.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(in crate::cli) struct CodexSettings {
    pub(in crate::cli) model_provider: Option<String>,
    openai_base_url: Option<Spanned<String>>,
    model_providers: BTreeMap<String, CodexProvider>,
}

#[derive(Deserialize)]
struct CodexProvider {
    base_url: Option<Spanned<String>>,
}

/// Represents any URL of abridge.
pub(super) const ANY_URL: &str = "http://abridge.invalid";

/// The first line of what is in a shell profile.
const SHELL_MARK: &str = "# abridge: base URLs for clients of the APIs of OpenAI and Anthropic";

impl CodexSettings {
    /// The settings that hold with a profile, whose own win.
    pub(in crate::cli) fn with_profile(mut self, profile: Self) -> Self {
        self.model_provider = profile.model_provider.or(self.model_provider);
        self.openai_base_url = profile.openai_base_url.or(self.openai_base_url);
        self.model_providers.extend(profile.model_providers.into_iter().filter(|(_, of)| of.base_url.is_some()));
        self
    }

    /// The base URL of the provider that Codex uses, if one is set; `None` if that provider takes none.
    #[expect(clippy::option_option, reason = "there may be none yet, or no place for one")]
    pub(in crate::cli) fn base_url(&self) -> Option<Option<&Spanned<String>>> {
        match self.model_provider.as_deref() {
            None | Some("openai") => Some(self.openai_base_url.as_ref()),
            Some(name) => Some(Some(self.model_providers.get(name)?.base_url.as_ref()?)),
        }
    }
}

/// The base URL of the provider that Codex uses.
pub(super) fn codex_url(text: &str) -> Option<String> {
    toml::from_str::<CodexSettings>(text).ok()?.base_url()?.map(|url| url.get_ref().clone())
}

/// Sets the base URL of the provider that Codex uses.
pub(super) fn codex(text: &str, url: &str) -> Option<String> {
    let settings: CodexSettings = toml::from_str(text).ok()?;
    match settings.base_url()? {
        Some(value) if value.get_ref() == url => Some(text.to_owned()),
        Some(value) => {
            let Range { start, end } = value.span();
            Some(format!("{}{url:?}{}", text.get(..start)?, text.get(end..)?))
        }
        // Before the first table, whose key it would be.
        None => Some(format!("openai_base_url = {url:?}\n{text}")),
    }
}

/// Sets a key at the top level of a YAML document of one key on a line. `None` if the text is no such document.
pub(super) fn yaml_key(text: &str, key: &str, value: &str) -> Option<String> {
    let is_other_form = |line: &str| line.starts_with(['{', '[', '-', '%', '\t', '"', '\'', '?']) && line != "---";
    let documents = text.lines().skip_while(|line| line.trim().is_empty() || line.starts_with('#')).skip(1);
    if text.lines().any(is_other_form) || documents.into_iter().any(|line| line.starts_with("---") || line == "...") {
        return None;
    }
    let mut lines = lines(text);
    let Some(at) = lines.iter().position(|line| is_key(line, key)) else {
        return Some(with_line(text, &format!("{key}: {value}")));
    };
    let (before, after) = lines.split_at_mut(at + 1);
    let next = after.iter().find(|line| !line.trim().is_empty());
    let has_more_lines = next.is_some_and(|next| next.starts_with(' '));
    if has_more_lines || after.iter().any(|line| is_key(line, key)) {
        return None;
    }
    let line = before.last_mut()?;
    *line = with_value(line, value)?;
    Some(lines.concat())
}

/// The value of a key at the top level of such a document, without quotes and comment.
pub(super) fn yaml_value(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|line| is_key(line, key))?;
    let value = unquoted(line.split_once(':')?.1.split(" #").next()?);
    (!value.is_empty()).then(|| value.to_owned())
}

/// Sets `apiBase` of each model of Continue whose provider is OpenAI or Anthropic. Also returns the providers and base URLs
/// that models had. `None` if there is no such model, or a base URL is not on one line with its key.
pub(super) fn continue_models(text: &str, url: &str) -> Option<(String, Vec<(String, String)>)> {
    let provider =
        |line: &String| yaml_value(key_of(line), "provider").filter(|name| matches!(&**name, "openai" | "anthropic"));
    let mut lines = lines(text);
    // The keys of all models have one column.
    let column = column_of(lines.iter().find(|line| provider(line).is_some())?);
    let is_item = |line: &String| column_of(line) == column && line.trim_start().starts_with('-');
    let mut present = Vec::new();
    for model in lines.chunk_by_mut(|_, next| column_of(next) >= column && !is_item(next)) {
        let mut keys = model.iter().enumerate().filter(|(_, line)| column_of(line) == column);
        let Some((at, provider)) = keys.find_map(|(at, line)| Some((at, provider(line)?))) else { continue };
        let is_base = |line: &&mut String| column_of(line) == column && is_key(key_of(line), "apiBase");
        if let Some(line) = model.iter_mut().find(is_base) {
            present.push((provider, yaml_value(key_of(line), "apiBase")?));
            *line = with_value(line, url)?;
        } else if let Some(line) = model.get_mut(at) {
            *line = with_line(line, &format!("{}apiBase: {url}", " ".repeat(column)));
        }
    }
    Some((lines.concat(), present))
}

/// The URL that a shell profile assigns last to the first of the variables that has one.
pub(super) fn assigned(text: &str, names: &[&str]) -> Option<String> {
    let of_line = |line: &str, name: &str| {
        let (before, rest) = line.split_once(name)?;
        let value = rest.strip_prefix(['=', ' '])?.trim_start();
        let is_word = before.is_empty() || before.ends_with([' ', '\t', ';']);
        let value = value.trim_start_matches(['"', '\'']).split(['"', '\'', ' ', ';', '#']).next()?;
        (is_word && !before.trim_start().starts_with('#') && value.contains("://")).then(|| value.to_owned())
    };
    names.iter().find_map(|name| text.lines().rev().find_map(|line| of_line(line, name)))
}

/// Sets lines after a mark in a shell profile.
pub(super) fn shell(text: &str, line: &str) -> String {
    let block = format!("{SHELL_MARK}\n{line}");
    let mut lines = lines(text);
    let Some(mark) = lines.iter().position(|line| line.trim_end() == SHELL_MARK) else {
        return with_line(text, &block);
    };
    lines.splice(mark..lines.len().min(mark + 2), [block + "\n"]);
    lines.concat()
}

/// The URL that a change has put into a text. `inserted` is what the same change puts in with [`ANY_URL`].
pub(super) fn url_in<'t>(present: &'t str, inserted: &str) -> Option<&'t str> {
    let (before, after) = inserted.split_once(ANY_URL)?;
    let mut line_starts = iter::once(0).chain(present.match_indices('\n').map(|(at, _)| at + 1));
    let rest = line_starts.find_map(|at| present.get(at..)?.strip_prefix(before))?;
    // Without anything after it, the URL ends with its line.
    let end = after.split_inclusive(['\n', ' ', '"']).next();
    end.map_or_else(|| rest.lines().next(), |end| rest.split_once(end).map(|(url, _)| url))
}

/// `present` without what was changed from `original` to `written`; `None` if that cannot be found any more.
pub(super) fn undo(present: &str, original: &str, written: &str) -> Option<String> {
    if present == written || present == original {
        return Some(original.to_owned());
    }
    let (removed, inserted) = changed_lines(original, written);
    let (before, rest) = present.split_once(&inserted).filter(|_| !inserted.is_empty())?;
    let begins = before.is_empty() || before.ends_with('\n');
    // The last line of a file may have no end: in a longer line, it was changed.
    let ends = inserted.ends_with('\n') || rest.is_empty() || rest.starts_with(['\r', '\n']);
    (begins && ends && !rest.contains(&inserted)).then(|| format!("{before}{removed}{rest}"))
}

/// The whole lines that a change takes out of a text, and those that it puts in: from the first to the last one that differ.
pub(super) fn changed_lines(before: &str, after: &str) -> (String, String) {
    let (old, new) = (lines(before), lines(after));
    let (first, last) = common_ends(&old, &new);
    let changed = |lines: &[String]| lines.get(first..lines.len() - last).unwrap_or_default().concat();
    (changed(&old), changed(&new))
}

// === lines ===

/// The lines of a text, with their ends.
fn lines(text: &str) -> Vec<String> {
    text.split_inclusive('\n').map(str::to_owned).collect()
}

/// The text with another line at its end.
fn with_line(text: &str, line: &str) -> String {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}{line}\n")
}

fn is_key(line: &str, key: &str) -> bool {
    let value = line.strip_prefix(key).and_then(|rest| rest.trim_start().strip_prefix(':'));
    value.is_some_and(|value| value.is_empty() || value.starts_with(char::is_whitespace))
}

/// A line of YAML from its key on.
fn key_of(line: &str) -> &str {
    line.trim_start_matches([' ', '-'])
}

/// The column of the key of a line; that of a blank line or a comment is after all others.
fn column_of(line: &str) -> usize {
    let key = key_of(line);
    if key.trim().is_empty() || key.starts_with('#') { usize::MAX } else { line.len() - key.len() }
}

fn unquoted(value: &str) -> &str {
    value.trim().trim_matches(['"', '\''])
}

/// The line with another value after its colon; a comment stays. `None` if the value is not a text on this line alone.
fn with_value(line: &str, value: &str) -> Option<String> {
    let (key, rest) =
        line.split_once(':').filter(|(_, rest)| !rest.trim_start().starts_with(['|', '>', '&', '*', '!']))?;
    let (present, comment) = rest.split_at_checked(rest.find(" #").unwrap_or(rest.trim_end().len()))?;
    Some(if unquoted(present) == value { line.to_owned() } else { format!("{key}: {value}{comment}") })
}

#[cfg(test)]
mod tests;
