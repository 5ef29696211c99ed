//! Minimal changes of settings in TOML, YAML and shell scripts, and the way back: all other bytes stay.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

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

/// The whole lines that a change takes out of a text and puts in.
pub(super) struct ChangedLines {
    pub(super) removed: String,
    pub(super) inserted: String,
}

/// Represents any URL of abridge.
pub(super) const ANY_URL: &str = "http://abridge.invalid";

/// The first line of what is in a shell profile.
const SHELL_MARK: &str = "# abridge: base URLs for clients of the APIs of OpenAI and Anthropic";

impl CodexSettings {
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
        Some(value) => replaced(text, value.span(), &format!("{url:?}")),
        // Before the first table, whose key it would be.
        None => Some(format!("openai_base_url = {url:?}\n{text}")),
    }
}

/// Sets a key at the top level of a YAML document of one key on a line. `None` if the text is no such document.
pub(super) fn yaml_key(text: &str, key: &str, value: &str) -> Option<String> {
    let is_other_form = |line: &str| line.starts_with(['{', '[', '-', '%', '\t']) && line != "---";
    let documents = text.lines().skip_while(|line| line.trim().is_empty() || line.starts_with('#')).skip(1);
    if text.lines().any(is_other_form) || documents.into_iter().any(|line| line.starts_with("---") || line == "...") {
        return None;
    }
    if let Some(line) = lines(text).find(|line| is_key(text.get(line.clone()).unwrap_or_default(), key)) {
        return set_value(text, line, value);
    }
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    Some(format!("{text}{end}{key}: {value}\n"))
}

/// The value of a key at the top level of such a document.
pub(super) fn yaml_value(text: &str, key: &str) -> Option<String> {
    value_of(text.lines().find(|line| is_key(line, key))?)
}

/// The providers and base URLs of the models that have one, in the settings of Continue.
pub(super) fn continue_bases(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(line) = next_maker(text, at) {
        at = line.end;
        let maker = text.get(line.clone()).unwrap_or_default();
        let column = column_of_key(maker);
        let key_line = |line: Range<usize>| text.get(line).unwrap_or_default().trim_start_matches([' ', '-']);
        let base = model_lines(text, &line, column).into_iter().map(key_line).find(|line| is_key(line, "apiBase"));
        found.extend(value_of(maker).zip(base.and_then(value_of)));
    }
    found
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

/// Sets `apiBase` for the models of the providers in the settings of Continue. `None` if there is none.
pub(super) fn continue_models(text: &str, value: &str) -> Option<String> {
    let mut changed = text.to_owned();
    let mut at = 0;
    let mut n_models = 0;
    while let Some(line) = next_maker(&changed, at) {
        n_models += 1;
        let column = column_of_key(changed.get(line.clone())?);
        at = line.end;
        let base = model_lines(&changed, &line, column).into_iter().find(|line| {
            is_key(changed.get(line.clone()).unwrap_or_default().trim_start_matches([' ', '-']), "apiBase")
        });
        changed = if let Some(base) = base {
            set_value(&changed, base, value)?
        } else {
            let end = if changed.get(..line.end)?.ends_with('\n') { "" } else { "\n" };
            let added = format!("{end}{}apiBase: {value}\n", " ".repeat(column));
            replaced(&changed, line.end..line.end, &added)?
        };
    }
    (n_models > 0).then_some(changed)
}

/// Sets lines after a mark in a shell profile.
pub(super) fn shell(text: &str, line: &str) -> String {
    let block = format!("{SHELL_MARK}\n{line}\n");
    let mut all = lines(text);
    if let Some(mark) = all.find(|range| text.get(range.clone()).is_some_and(|line| line.trim_end() == SHELL_MARK)) {
        let end = all.next().map_or(mark.end, |line| line.end);
        return replaced(text, mark.start..end, &block).unwrap_or_else(|| text.to_owned());
    }
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}{block}")
}

/// The URL that a change has put into a text. `inserted` is what the same change puts in with [`ANY_URL`].
pub(super) fn url_in<'t>(present: &'t str, inserted: &str) -> Option<&'t str> {
    let (before, after) = inserted.split_once(ANY_URL)?;
    let (_, rest) = present.split_once(before)?;
    let end = after.split_inclusive(['\n', ' ', '"']).next()?;
    rest.split_once(end).map(|(url, _)| url)
}

/// `present` without what was changed from `original` to `written`; `None` if that cannot be found any more.
pub(super) fn undo(present: &str, original: &str, written: &str) -> Option<String> {
    if present == written || present == original {
        return Some(original.to_owned());
    }
    // Whole lines, so that what is looked for is found once.
    let ChangedLines { removed, inserted } = changed_lines(original, written);
    (!inserted.is_empty() && present.matches(&inserted).count() == 1).then(|| present.replacen(&inserted, &removed, 1))
}

/// The lines from the first to the last one that differ.
pub(super) fn changed_lines(before: &str, after: &str) -> ChangedLines {
    let (old, new): (Vec<_>, Vec<_>) = (before.split_inclusive('\n').collect(), after.split_inclusive('\n').collect());
    let first = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let behind = |lines: &[&str]| lines.iter().skip(first).map(ToString::to_string).collect::<Vec<_>>();
    let (mut old, mut new) = (behind(&old), behind(&new));
    let last = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    old.truncate(old.len() - last);
    new.truncate(new.len() - last);
    ChangedLines { removed: old.concat(), inserted: new.concat() }
}

// === lines ===

/// The lines of a text, with their ends.
fn lines(text: &str) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    text.split_inclusive('\n').map(move |line| {
        let from = at;
        at += line.len();
        from..at
    })
}

fn replaced(text: &str, range: Range<usize>, by: &str) -> Option<String> {
    Some(format!("{}{by}{}", text.get(..range.start)?, text.get(range.end..)?))
}

fn is_key(line: &str, key: &str) -> bool {
    line.strip_prefix(key).is_some_and(|rest| rest.starts_with(": ") || rest.trim_end() == ":")
}

/// The value of a line `key: value`, without quotes and comment.
fn value_of(line: &str) -> Option<String> {
    let value = line.split_once(':')?.1.split(" #").next()?.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

/// Sets what follows the colon of a line; a comment stays.
fn set_value(text: &str, line: Range<usize>, value: &str) -> Option<String> {
    let written = text.get(line.clone())?;
    let from = written.find(':')? + 1;
    let rest = written.get(from..)?;
    let to = from + rest.find(" #").unwrap_or(rest.trim_end().len());
    if written.get(from..to)?.trim().trim_matches(['"', '\'']) == value {
        return Some(text.to_owned());
    }
    replaced(text, line.start + from..line.start + to, &format!(" {value}"))
}

/// The next line from a place on that names a provider of models that has one of the two APIs.
fn next_maker(text: &str, at: usize) -> Option<Range<usize>> {
    lines(text).find(|line| line.start >= at && is_maker(text.get(line.clone()).unwrap_or_default()))
}

/// Whether a line names a provider of models that has one of the two APIs.
fn is_maker(line: &str) -> bool {
    let key = line.trim_start_matches([' ', '-']);
    let value = key.strip_prefix("provider:").map(|value| value.split(" #").next().unwrap_or_default());
    value.is_some_and(|value| matches!(value.trim().trim_matches(['"', '\'']), "openai" | "anthropic"))
}

fn column_of_key(line: &str) -> usize {
    line.len() - line.trim_start_matches([' ', '-']).len()
}

/// The lines of the model that this line belongs to: those around it whose keys are in the same column or after it, up to
/// one that begins an item.
fn model_lines(text: &str, line: &Range<usize>, column: usize) -> Vec<Range<usize>> {
    let all: Vec<_> = lines(text).collect();
    let at = all.iter().position(|range| range == line).unwrap_or_default();
    let belongs = |range: &&Range<usize>| {
        let line = text.get((*range).clone()).unwrap_or_default();
        line.trim().is_empty() || column_of_key(line) >= column
    };
    let begins = |range: &Range<usize>| {
        let line = text.get(range.clone()).unwrap_or_default();
        line.trim_start().starts_with("- ") && column_of_key(line) == column
    };
    let here = all.get(at..=at).unwrap_or_default().iter();
    let behind = all.iter().skip(at + 1).take_while(belongs).take_while(|range| !begins(range));
    let mut model: Vec<_> = here.clone().chain(behind).cloned().collect();
    if !here.clone().any(begins) {
        let before: Vec<_> = all.iter().take(at).collect();
        for range in before.into_iter().rev().take_while(belongs) {
            model.push(range.clone());
            if begins(range) {
                break;
            }
        }
    }
    model.retain(|range| column_of_key(text.get(range.clone()).unwrap_or_default()) == column);
    model
}

#[cfg(test)]
mod tests;
