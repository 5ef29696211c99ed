//! The request in Anthropic Messages that asks for a summary, made of the client's own.
//!
//! A request in the form [`PromptMode::Fresh`] has no thinking, which would be bound to the instructions and tools that are missing
//! there.

use std::collections::HashSet;

use bytes::Bytes;

use super::Messages;
use crate::dialect::Dialect;
use crate::dialect::chat_completions::ChatCompletions;
use crate::dialect::object::{ObjectWriter, Shown, SummaryRequest, fields, limit_within};
use crate::dialect::strings;
use crate::raw::{Fields, elements, string};
use crate::summary::{Prompt, PromptMode};

/// How the texts begin in which Claude Code and its SDK name themselves, as of Claude Code 2.1.331.
const IDENTITIES: [&str; 2] =
    ["You are Claude Code, Anthropic's official CLI", "You are a Claude agent, built on Anthropic's"];

/// How the block begins that Claude Code has before it.
const BILLING: &str = "x-anthropic-billing-header:";

/// The tokens that a model without a limit may think before it writes a summary.
const THINKING: usize = 4096;

impl SummaryRequest for Messages {
    const LIST: &'static str = "messages";
    /// `tool_choice`, `thinking` and the effort stay as they are, as another value would miss the cache of the messages; that no
    /// tool may be called is what the instruction says.
    const SHAPING: &'static str = include_str!("summary/shaping.txt");
    /// Not `speed`: a fast answer costs several times as much, and is for requests as Claude Code has written them alone.
    const ROUTING: &'static [&'static str] =
        &["metadata", "service_tier", "inference_geo", "anthropic_version", "anthropic_beta"];

    /// What an `OAuth` token needs, and the system line.
    fn begin(&self, request: &mut ObjectWriter, fields: &Fields<'_>, prompt: &Prompt<'_>) {
        let system = if prompt.input == PromptMode::Plain { "" } else { prompt.system };
        let identity = if prompt.model.is_none() { identity(fields.get("system")) } else { Vec::new() };
        if !identity.is_empty() {
            let own = (!system.is_empty()).then(|| text_block(system));
            let blocks: Vec<_> = identity.into_iter().chain(own).collect();
            request.json("system", &format!("[{}]", blocks.join(",")));
        } else if !system.is_empty() {
            request.text("system", system);
        }
    }

    fn message<'p>(&self, json: &'p [u8], prompt: &Prompt<'_>, by_program: &mut HashSet<String>) -> Shown<'p> {
        let text = str::from_utf8(json).ok().filter(|_| prompt.input != PromptMode::Cached);
        match text.and_then(|text| plain(text, by_program)) {
            Some(rest) => (!rest.is_empty()).then(|| Vec::from(rest).into()),
            None => Some(json.into()),
        }
    }

    fn instruction(&self, text: &str) -> Bytes {
        ChatCompletions.render_user_message(text)
    }

    /// Of the settings of the answer, its format is left out.
    fn member(&self, request: &mut ObjectWriter, key: &str, value: &str) -> Option<()> {
        let config = Fields::of(value).filter(|config| key == "output_config" && config.get("format").is_some());
        let Some(config) = config else {
            request.json(key, value);
            return Some(());
        };
        let mut rest = ObjectWriter::default();
        rest.members(config.iter().filter(|(key, _)| *key != "format"));
        if !rest.is_empty() {
            request.json(key, str::from_utf8(&rest.end()).ok()?);
        }
        Some(())
    }

    fn end(&self, request: &mut ObjectWriter, fields: &Fields<'_>, prompt: &Prompt<'_>) {
        let limit = match prompt.input {
            PromptMode::Cached => prompt.max_tokens.saturating_add(thinking(fields)),
            PromptMode::Plain if prompt.model.is_none() => limit_within(fields, "max_tokens", prompt.max_tokens),
            PromptMode::Fresh | PromptMode::Plain => prompt.max_tokens,
        };
        request.json("max_tokens", &limit.to_string());
    }
}

/// The client's request with one token of answer and without a stream. None with a budget for thinking, which the answer must
/// have room for.
pub(super) fn with_one_token(body: &[u8]) -> Option<Bytes> {
    let fields = fields(body)?;
    let has_budget = fields.get("thinking").is_some_and(|thinking| thinking.contains("\"budget_tokens\""));
    fields.get("max_tokens").filter(|_| !has_budget)?;
    let mut request = ObjectWriter::default();
    for (key, value) in fields.iter().filter(|(key, _)| *key != "stream") {
        request.json(key, if key == "max_tokens" { "1" } else { value });
    }
    Some(request.end())
}

/// The system blocks without which Anthropic refuses a request that shows an `OAuth` token: what says who pays for a request
/// of Claude Code, the sentence in which it names itself, or both. They are the first ones, or the beginning of the only text.
fn identity(system: Option<&str>) -> Vec<String> {
    let is_identity = |text: &str| IDENTITIES.iter().any(|identity| text.starts_with(identity));
    if let Some(text) = system.and_then(string) {
        let line = text.lines().next().filter(|line| is_identity(line));
        return line.map(text_block).into_iter().collect();
    }
    let blocks = system.and_then(elements).unwrap_or_default();
    let text = |block: &str| Some(Fields::of(block)?.string("text")?.into_owned());
    let n_billing = blocks.iter().take_while(|block| text(block).is_some_and(|text| text.starts_with(BILLING))).count();
    let is_named = blocks.get(n_billing).and_then(|block| text(block)).is_some_and(|text| is_identity(&text));
    blocks.into_iter().take(n_billing + usize::from(is_named)).map(str::to_owned).collect()
}

fn text_block(text: &str) -> String {
    format!(r#"{{"type":"text","text":{}}}"#, String::from_utf8_lossy(&strings::render(text)))
}

/// The tokens that the answer may have for thinking: `max_tokens` has to be more than they are.
fn thinking(fields: &Fields<'_>) -> usize {
    let Some(thinking) = fields.object("thinking") else { return 0 };
    match thinking.string("type").as_deref() {
        Some("enabled") => thinking.get("budget_tokens").and_then(|budget| budget.parse().ok()).unwrap_or(THINKING),
        Some("disabled") | None => 0,
        Some(_) => THINKING,
    }
}

/// A message without its thinking and without what programs call for and get, whose calls are noted in `by_program`; the
/// message itself where it has none, nothing where it has nothing else. Nothing of a system message either: not every model
/// takes one, and it goes on beside the summary.
fn plain(json: &str, by_program: &mut HashSet<String>) -> Option<Bytes> {
    let fields = Fields::of(json)?;
    if fields.string("role").as_deref() == Some("system") {
        return Some(Bytes::new());
    }
    let entries = fields.get("content").filter(|content| content.starts_with('[')).and_then(elements)?;
    let n_entries = entries.len();
    let mut leaves = |json: &str| {
        let Some(entry) = Fields::of(json) else { return false };
        let text = |key| entry.string(key).unwrap_or_default();
        match &*text("type") {
            "thinking" | "redacted_thinking" => true,
            "tool_use" => {
                let caller = entry.object("caller");
                let is_program = caller.is_some_and(|caller| caller.string("type").is_none_or(|by| by != "direct"));
                if is_program {
                    by_program.insert(text("id").into_owned());
                }
                is_program
            }
            "tool_result" => by_program.contains(&*text("tool_use_id")),
            _ => false,
        }
    };
    let rest: Vec<_> = entries.into_iter().filter(|entry| !leaves(entry)).collect();
    if rest.len() == n_entries {
        return None;
    }
    if rest.is_empty() {
        return Some(Bytes::new());
    }
    let content = format!("[{}]", rest.join(","));
    Some(ObjectWriter::replaced(&fields, "content", &content))
}

#[cfg(test)]
mod tests;
