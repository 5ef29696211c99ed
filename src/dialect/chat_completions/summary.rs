//! The request that asks for a summary, made of the client's own.
//!
//! Messages go into it as they are, to the byte, in two shapes: [`PromptMode::Cached`] is the request that the client would have
//! made, so that the provider finds its beginning in its prompt cache; [`PromptMode::Fresh`] has abridge's system line
//! and no tools. [`PromptMode::Plain`] is one message of the user.

use std::collections::HashSet;
use std::sync::LazyLock;

use bytes::Bytes;

use super::ChatCompletions;
use crate::dialect::Dialect;
use crate::dialect::object::{ObjectWriter, fields, is_streamed, limit_within};
use crate::raw::{Fields, elements};
use crate::summary::{InputElement, Prompt, PromptMode, SummaryInput};

/// Keys of a client's request that shape its answer: the first ones are written anew, the others would spoil a summary.
static SHAPING: LazyLock<HashSet<&str>> = LazyLock::new(|| include_str!("summary/shaping.txt").lines().collect());

/// Keys of a client's request that say who asks, what may be done with it, and where it goes. They stay in every request to
/// the client's own model.
const ROUTING: [&str; 8] =
    ["user", "safety_identifier", "service_tier", "store", "metadata", "provider", "models", "route"];

/// Keys that say how long the model thinks. They stay in a fresh request to the client's own model, too.
const THINKING: [&str; 2] = ["reasoning_effort", "chat_template_kwargs"];

/// The beginnings of the names of models that refuse `max_tokens`.
const ONLY_COMPLETION_TOKENS: [&str; 4] = ["o1", "o3", "o4", "gpt-5"];

const NONE: &str = r#""none""#;

/// The request in the shape that is asked for. None if it cannot be made of what the client sent.
pub(super) fn request(source: &SummaryInput, prompt: &Prompt<'_>) -> Option<Bytes> {
    let fields = fields(&source.body)?;
    match prompt.input {
        PromptMode::Cached => cached(source, &fields, prompt),
        PromptMode::Fresh => fresh(source, &fields, prompt),
        PromptMode::Plain => Some(plain(&fields, prompt)),
    }
}

/// The client's request with the messages of `source`, then the instruction. Tools stay, as they precede the messages,
/// but none may be called.
fn cached(source: &SummaryInput, fields: &Fields<'_>, prompt: &Prompt<'_>) -> Option<Bytes> {
    source.split()?;
    fields.get("messages")?;
    let mut request = ObjectWriter::of_client(fields, &SHAPING, prompt.model, |request, key, _| {
        let is_list = key == "messages";
        if is_list {
            messages(request, None, &source.messages, prompt);
        }
        Some(is_list)
    })?;
    for (offer, choice) in [("tools", "tool_choice"), ("functions", "function_call")] {
        if fields.get(offer).and_then(elements).is_some_and(|tools| !tools.is_empty()) {
            request.json(choice, NONE);
        }
    }
    let max_tokens = prompt.max_tokens.saturating_add(thinking(fields));
    Some(end(request, limit(Some(fields), prompt.model), max_tokens))
}

/// A request of our own: a system line, what is summarised without the client's instructions, the instruction, no tools.
/// It has few of the client's keys, and none but its messages if it asks another model than the client does.
fn fresh(source: &SummaryInput, fields: &Fields<'_>, prompt: &Prompt<'_>) -> Option<Bytes> {
    let &Prompt { system, max_tokens, model, .. } = prompt;
    let (leading, region) = source.split()?;
    let developer = || {
        let first = Fields::of(str::from_utf8(&leading.first()?.json).ok()?)?;
        first.string("role").filter(|role| role == "developer").map(|_| "developer")
    };
    let role = if model.is_none() { developer().unwrap_or("system") } else { "system" };
    let mut line = ObjectWriter::default();
    line.text("role", role);
    line.text("content", system);
    let mut request = ObjectWriter::of_model(fields, model);
    messages(&mut request, Some(&line.end()), region, prompt);
    request.keep(fields, &[&ROUTING[..], &THINKING].concat(), model);
    Some(end(request, limit(Some(fields).filter(|_| model.is_none()), model), max_tokens))
}

/// A request with one message of the user, for servers that refuse the others: of the keys that shape an answer,
/// it has the client's limit and `stream`.
fn plain(fields: &Fields<'_>, prompt: &Prompt<'_>) -> Bytes {
    let &Prompt { max_tokens, model, .. } = prompt;
    let mut request = ObjectWriter::of_model(fields, model);
    messages(&mut request, None, &[], prompt);
    request.keep(fields, &ROUTING, model);
    let key = limit(Some(fields), None);
    if model.is_none() && fields.get(key).is_some_and(|value| value != "null") {
        request.json(key, &limit_within(fields, key, max_tokens).to_string());
    }
    if is_streamed(fields, model) {
        request.json("stream", "true");
    }
    request.end()
}

/// The tokens that the model may think: some servers refuse a limit of the answer that is not above them. The keys are those of
/// Anthropic's models, OpenRouter and `DashScope`.
fn thinking(fields: &Fields<'_>) -> usize {
    let inside = |key: &str, budget: &str| fields.object(key)?.get(budget)?.parse().ok();
    let budgets = [
        inside("thinking", "budget_tokens"),
        inside("reasoning", "max_tokens"),
        fields.get("thinking_budget").and_then(|budget| budget.parse().ok()),
    ];
    budgets.into_iter().flatten().max().unwrap_or(0)
}

/// The key that limits the answer: the one that the client uses, or else the one that the model knows.
fn limit(fields: Option<&Fields<'_>>, model: Option<&str>) -> &'static str {
    let is_set = |key| fields.and_then(|fields| fields.get(key)).is_some_and(|value| value != "null");
    let asked = fields.and_then(|fields| fields.string("model"));
    let name = model.or(asked.as_deref()).unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default();
    let by_model = || ONLY_COMPLETION_TOKENS.iter().any(|beginning| name.starts_with(beginning));
    match (is_set("max_completion_tokens"), is_set("max_tokens")) {
        (false, true) => "max_tokens",
        (false, false) if !by_model() => "max_tokens",
        _ => "max_completion_tokens",
    }
}

/// Adds the messages, and the instruction after them.
fn messages(request: &mut ObjectWriter, system: Option<&[u8]>, pieces: &[InputElement], prompt: &Prompt<'_>) {
    let instruction = ChatCompletions.render_user_message(prompt.instruction);
    request.list("messages", system, pieces, |json| Some(json.into()), &instruction);
}

fn end(mut request: ObjectWriter, limit: &str, max_tokens: usize) -> Bytes {
    request.json(limit, &max_tokens.to_string());
    request.json("stream", "true");
    request.json("stream_options", r#"{"include_usage":true}"#);
    request.end()
}

#[cfg(test)]
mod tests;
