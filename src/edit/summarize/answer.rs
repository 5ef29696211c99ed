//! The summary in what a model answered, and what makes an answer none.
//!
//! A summary takes the place of what was said, so what is not one must never pass for one. But a summary may well speak of
//! errors, tools and tags: only what cannot be meant as a summary is refused.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::dialect::Stop;
use crate::raw::{Fields, elements};

/// Why an answer is not a summary.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    /// Nothing is left of it without its thoughts.
    #[error("the answer has no summary in it")]
    Empty,
    /// It is the text of an error.
    #[error("the answer is an error message")]
    ErrorText,
    /// The model will not do it.
    #[error("the model refuses")]
    Refusal,
    /// It calls a tool.
    #[error("the model calls a tool")]
    ToolCall,
    /// It was longer than it may be.
    #[error("the answer is cut off at its limit")]
    CutOff,
    /// The provider kept it back.
    #[error("the provider's filter stopped the answer")]
    Filtered,
    /// It is far too short for the messages that it would replace.
    #[error("the summary has {tokens} tokens, which is too short for {replaced}")]
    TooShort {
        /// The tokens of the summary alone.
        tokens: usize,
        /// The tokens of the messages.
        replaced: usize,
    },
    /// It does not save anything.
    #[error("the summary has {tokens} tokens, what it would replace has {replaced}")]
    NotSmaller {
        /// Its tokens, with the frame.
        tokens: usize,
        /// The tokens that it was to replace.
        replaced: usize,
    },
}

/// Tags around what a model thinks before it answers.
const THOUGHTS: [&str; 4] = ["analysis", "think", "thinking", "reasoning"];

/// So many thoughts may follow each other.
const MAX_THOUGHTS: usize = 8;

/// The most bytes before the first tag that count as a remark, and not as a text.
const MAX_REMARK: usize = 300;

/// A longer text is neither an error message nor a refusal, whatever it begins with, in characters.
const MAX_ERROR: usize = 400;

/// Texts by which an answer shows that it is not a summary, as the file explains them.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signs {
    errors: Vec<String>,
    error_like: Vec<String>,
    of_providers: Vec<String>,
    refusals: Vec<String>,
    calls: Vec<String>,
}

/// Tests read the file.
static SIGNS: LazyLock<Signs> = LazyLock::new(|| toml::from_str(include_str!("answer/signs.toml")).unwrap_or_default());

/// A summary that replaces `LONG` tokens or more has at least one token for each `SHORTEST_PART` of them. `SHORTEST` tokens, the
/// length of a long sentence, are always enough.
const LONG: usize = 12_000;
const SHORTEST_PART: usize = 400;
const SHORTEST: usize = 40;

/// A text of more bytes is never too short.
pub const SHORTEST_BYTES: usize = 1024;

/// The summary in the text of an answer that ended for this reason, if it is one.
pub fn checked(text: &str, stop: Stop) -> Result<String, Fault> {
    match stop {
        Stop::ToolCall => return Err(Fault::ToolCall),
        Stop::Length => return Err(Fault::CutOff),
        Stop::ContentFilter => return Err(Fault::Filtered),
        Stop::Error => return Err(Fault::ErrorText),
        Stop::Done => {}
    }
    let summary = summary_of(text).ok_or(Fault::Empty)?;
    disguised(&summary, text).map_or(Ok(summary), Err)
}

/// Whether a summary of so many tokens may say what it is to replace.
pub fn long_enough(tokens: usize, replaced: usize) -> Result<(), Fault> {
    let least = if replaced < LONG { 0 } else { SHORTEST.min(replaced / SHORTEST_PART) };
    if tokens >= least { Ok(()) } else { Err(Fault::TooShort { tokens, replaced }) }
}

/// Whether a message of so many tokens is smaller than what it is to replace.
pub fn smaller(tokens: usize, replaced: usize) -> Result<(), Fault> {
    if tokens < replaced { Ok(()) } else { Err(Fault::NotSmaller { tokens, replaced }) }
}

/// The rest of an answer without the model's thoughts and without the tags around the summary; none if that is nothing.
fn summary_of(text: &str) -> Option<String> {
    let summary = without_thoughts(unwrapped(without_thoughts(behind_stray_thoughts(text))));
    (!summary.is_empty()).then(|| summary.to_owned())
}

// === tags, in letters of any case ===

const OPEN: &str = "<summary>";
const CLOSE: &str = "</summary>";

/// Where a tag is in a text.
fn places(text: &str, tag: &str) -> impl DoubleEndedIterator<Item = usize> {
    let parts = text.as_bytes().windows(tag.len()).enumerate();
    parts.filter(move |(_, part)| part.eq_ignore_ascii_case(tag.as_bytes())).map(|(at, _)| at)
}

fn from(text: &str, at: usize) -> &str {
    text.get(at..).unwrap_or_default()
}

fn up_to(text: &str, at: usize) -> &str {
    text.get(..at).unwrap_or_default()
}

fn begins_with(text: &str, tag: &str) -> bool {
    up_to(text, tag.len()).eq_ignore_ascii_case(tag)
}

/// The first place of a tag that begins its line.
fn on_its_line(text: &str, tag: &str) -> Option<usize> {
    let before = |at: usize| up_to(text, at).trim_end_matches([' ', '\t']);
    places(text, tag).find(|at| before(*at).is_empty() || before(*at).ends_with('\n'))
}

/// The same, if no more than a remark precedes it.
fn beginning(text: &str, tag: &str) -> Option<usize> {
    on_its_line(up_to(text, text.floor_char_boundary(MAX_REMARK + tag.len())), tag)
}

/// Whether a tag that we asked for comes next.
fn goes_on_as_asked(text: &str) -> bool {
    [OPEN, "<analysis>"].iter().any(|tag| begins_with(text.trim_start(), tag))
}

/// Some servers leave out where the thoughts begin, but not where they end.
fn behind_stray_thoughts(text: &str) -> &str {
    let tag = "</think>";
    let end = places(text, tag).next().filter(|at| places(up_to(text, *at), "<think>").next().is_none());
    let behind = end.map(|at| from(text, at + tag.len()));
    behind.filter(|behind| goes_on_as_asked(behind)).unwrap_or(text)
}

/// Without thoughts at the beginning.
fn without_thoughts(text: &str) -> &str {
    let mut rest = text.trim();
    for _ in 0..MAX_THOUGHTS {
        let Some(behind) = THOUGHTS.iter().find_map(|name| behind_thoughts(rest, name)) else { break };
        rest = behind.trim();
    }
    rest
}

/// Returns what is behind thoughts, if it begins with them, perhaps after a remark; nothing, if they have no end.
fn behind_thoughts<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let at = beginning(text, &open)?;
    let behind = behind(from(text, at + open.len()), &close);
    if at == 0 { Some(behind.unwrap_or_default()) } else { behind.filter(|behind| goes_on_as_asked(behind)) }
}

/// The rest after the end of thoughts: the end before a tag that we asked for, or else the first. Without an end, the
/// summary ends them.
fn behind<'t>(text: &'t str, close: &str) -> Option<&'t str> {
    let ends = || places(text, close).map(|at| from(text, at + close.len()));
    let summary = || on_its_line(text, OPEN).map(|at| from(text, at));
    ends().find(|behind| goes_on_as_asked(behind)).or_else(|| ends().next()).or_else(summary)
}

/// What is in the tags of the summary, if all of it is. A tag may be spoken of inside, so the last one ends it, unless
/// each has its beginning inside.
fn unwrapped(text: &str) -> &str {
    let is_all = begins_with(text, OPEN) || is_end(text, places(text, CLOSE).next_back());
    let Some(at) = beginning(text, OPEN).filter(|_| is_all) else { return text };
    let inside = from(text, at + OPEN.len());
    let last = places(inside, CLOSE).next_back();
    let has_own = places(inside, CLOSE).count() <= places(inside, OPEN).count();
    last.filter(|_| is_end(inside, last) || !has_own).map_or(inside, |last| up_to(inside, last))
}

/// Whether the end of the summary is that of a text.
fn is_end(text: &str, close: Option<usize>) -> bool {
    close.is_some_and(|at| at + CLOSE.len() == text.len())
}

// === what is not a summary ===

/// Returns what a text is that is not a summary, though it is there.
fn disguised(summary: &str, answer: &str) -> Option<Fault> {
    if let Some(fault) = json(summary) {
        return Some(fault);
    }
    let lower = summary.to_lowercase();
    let begins = |signs: &[String]| signs.iter().any(|sign| lower.starts_with(sign));
    if begins(&SIGNS.calls) {
        return Some(Fault::ToolCall);
    }
    // Who keeps to the form that was asked for means what it says.
    if places(answer, OPEN).next().is_some() {
        return None;
    }
    // A model may say what it is about to do first.
    if lower.lines().any(|line| SIGNS.calls.iter().any(|call| line.trim_start().starts_with(call))) {
        return Some(Fault::ToolCall);
    }
    if ["<!doctype html", "<html"].iter().any(|page| lower.starts_with(page)) {
        return Some(Fault::ErrorText);
    }
    if summary.chars().nth(MAX_ERROR).is_some() {
        return None;
    }
    let of_provider = || SIGNS.of_providers.iter().any(|words| lower.contains(words));
    let is_error = begins(&SIGNS.errors) || begins(&SIGNS.error_like) && of_provider();
    if is_error { Some(Fault::ErrorText) } else { begins(&SIGNS.refusals).then_some(Fault::Refusal) }
}

/// Returns what a text is that is nothing but JSON.
fn json(text: &str) -> Option<Fault> {
    let bare = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    let text = bare.map_or(text, |rest| rest.trim_start_matches("json")).trim();
    let first = elements(text).and_then(|elements| elements.first().copied()).unwrap_or(text);
    let fields = Fields::of(first)?;
    let says = |key| fields.get(key).is_some_and(|value| !matches!(value, "null" | "false"));
    let is_error = says("error") || fields.string("object").as_deref() == Some("error");
    let is_call = says("tool_calls") || says("name") && (says("arguments") || says("parameters"));
    if is_error { Some(Fault::ErrorText) } else { is_call.then_some(Fault::ToolCall) }
}

#[cfg(test)]
mod tests;
