//! The request in Anthropic Messages that asks for a summary, made of the client's own.
//!
//! Messages go into it as they are, to the byte, in two shapes: [`PromptMode::Cached`] is the request that the client would have
//! made, so that the provider finds its beginning in its prompt cache; [`PromptMode::Fresh`] has abridge's system line,
//! no tools, and no thinking, which would be bound to the instructions and tools that are missing there. [`PromptMode::Plain`] is
//! one message of the user.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::LazyLock;

use bytes::Bytes;

use crate::dialect::Dialect;
use crate::dialect::chat_completions::ChatCompletions;
use crate::dialect::object::{ObjectWriter, fields, is_streamed, limit_within};
use crate::dialect::strings;
use crate::raw::{Fields, elements, string};
use crate::summary::{InputElement, Prompt, PromptMode, SummaryInput};

/// Keys of a client's request that shape its answer: the first ones are written anew, the others would spoil a summary.
/// `tool_choice`, `thinking` and the effort stay as they are, as another value would miss the cache of the messages; that no
/// tool may be called is what the instruction says.
static SHAPING: LazyLock<HashSet<&str>> = LazyLock::new(|| include_str!("summary/shaping.txt").lines().collect());

/// Keys of a client's request that say who asks and where it goes. They stay in every request to the client's own model.
const ROUTING: [&str; 6] =
    ["metadata", "service_tier", "inference_geo", "speed", "anthropic_version", "anthropic_beta"];

/// How the texts begin in which Claude Code and its SDK name themselves, as of Claude Code 2.1.331.
const IDENTITIES: [&str; 2] =
    ["You are Claude Code, Anthropic's official CLI", "You are a Claude agent, built on Anthropic's"];

/// How the block begins that Claude Code has before it.
const BILLING: &str = "x-anthropic-billing-header:";

/// The tokens that a model without a limit may think before it writes a summary.
const THINKING: usize = 4096;

/// The request in the shape that is asked for. None if it cannot be made of what the client sent.
pub(super) fn request(source: &SummaryInput, prompt: &Prompt<'_>) -> Option<Bytes> {
    let fields = fields(&source.body)?;
    match prompt.input {
        PromptMode::Cached => cached(source, &fields, prompt),
        PromptMode::Fresh => fresh(source, &fields, prompt),
        PromptMode::Plain => Some(plain_request(&fields, prompt)),
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

/// The client's request with the messages of `source`, then the instruction.
fn cached(source: &SummaryInput, fields: &Fields<'_>, prompt: &Prompt<'_>) -> Option<Bytes> {
    source.split()?;
    fields.get("messages")?;
    let request = ObjectWriter::of_client(fields, &SHAPING, prompt.model, |request, key, value| {
        match key {
            "messages" => messages(request, &source.messages, prompt, false),
            "output_config" => without_format(request, key, value)?,
            _ => return Some(false),
        }
        Some(true)
    })?;
    Some(end(request, prompt.max_tokens.saturating_add(thinking(fields))))
}

/// A request of our own: a system line, what is summarised without the client's instructions, the instruction, no tools.
/// It has few of the client's keys, and none but its messages if it asks another model than the client does.
fn fresh(source: &SummaryInput, fields: &Fields<'_>, prompt: &Prompt<'_>) -> Option<Bytes> {
    let (_, region) = source.split()?;
    let mut request = begun(fields, prompt.model, prompt.system);
    messages(&mut request, region, prompt, true);
    request.keep(fields, &ROUTING, prompt.model);
    Some(end(request, prompt.max_tokens))
}

/// A request with one message of the user, for servers that refuse the others, and otherwise with keys that the client sends.
fn plain_request(fields: &Fields<'_>, prompt: &Prompt<'_>) -> Bytes {
    let &Prompt { max_tokens, model, .. } = prompt;
    let mut request = begun(fields, model, "");
    messages(&mut request, &[], prompt, true);
    request.keep(fields, &ROUTING, model);
    let limit = if model.is_none() { limit_within(fields, "max_tokens", max_tokens) } else { max_tokens };
    request.json("max_tokens", &limit.to_string());
    if is_streamed(fields, model) {
        request.json("stream", "true");
    }
    request.end()
}

/// The beginning of a request of our own: its model, what an `OAuth` token needs, and the system line, if there is one.
fn begun(fields: &Fields<'_>, model: Option<&str>, system: &str) -> ObjectWriter {
    let mut request = ObjectWriter::of_model(fields, model);
    let identity = if model.is_none() { identity(fields.get("system")) } else { Vec::new() };
    if !identity.is_empty() {
        let own = (!system.is_empty()).then(|| text_block(system));
        let blocks: Vec<_> = identity.into_iter().chain(own).collect();
        request.json("system", &format!("[{}]", blocks.join(",")));
    } else if !system.is_empty() {
        request.text("system", system);
    }
    request
}

/// The system blocks without which Anthropic refuses a request that shows an `OAuth` token: what says who pays for a request
/// of Claude Code, and the sentence in which it names itself. They are the first ones, or the beginning of the only text.
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
    let n = if is_named { n_billing + 1 } else { 0 };
    blocks.into_iter().take(n).map(str::to_owned).collect()
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
fn plain(json: &str, by_program: &mut HashSet<String>) -> Option<String> {
    let fields = Fields::of(json)?;
    if fields.string("role").as_deref() == Some("system") {
        return Some(String::new());
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
        return Some(String::new());
    }
    let content = format!("[{}]", rest.join(","));
    let mut message = ObjectWriter::default();
    for (key, value) in fields.iter() {
        message.json(key, if key == "content" { &content } else { value });
    }
    String::from_utf8(message.end().into()).ok()
}

/// Adds the settings of the answer except for its format.
fn without_format(request: &mut ObjectWriter, key: &str, config: &str) -> Option<()> {
    let Some(fields) = Fields::of(config).filter(|config| config.get("format").is_some()) else {
        request.json(key, config);
        return Some(());
    };
    let mut rest = ObjectWriter::default();
    for (key, value) in fields.iter().filter(|(key, _)| *key != "format") {
        rest.json(key, value);
    }
    if !rest.is_empty() {
        request.json(key, str::from_utf8(&rest.end()).ok()?);
    }
    Some(())
}

/// Adds the messages, and the instruction after them. `is_plain`: without thinking and system messages.
fn messages(request: &mut ObjectWriter, pieces: &[InputElement], prompt: &Prompt<'_>, is_plain: bool) {
    let mut by_program = HashSet::new();
    let of = |json| {
        let text = str::from_utf8(json).ok().filter(|_| is_plain);
        let without = text.and_then(|text| plain(text, &mut by_program));
        let json = without.map_or(Cow::Borrowed(json), |without| without.into_bytes().into());
        (!json.is_empty()).then_some(json)
    };
    request.list("messages", None, pieces, of, &ChatCompletions.render_user_message(prompt.instruction));
}

fn end(mut request: ObjectWriter, max_tokens: usize) -> Bytes {
    request.json("max_tokens", &max_tokens.to_string());
    request.json("stream", "true");
    request.end()
}

#[cfg(test)]
mod tests;
