//! The request that asks for a summary, made of the client's own.

use bytes::Bytes;

use super::ChatCompletions;
use crate::dialect::object::{ObjectWriter, SummaryRequest, limit_within, offers, sends};
use crate::raw::Fields;
use crate::summary::{Prompt, PromptMode};

/// The beginnings of the names of models that refuse `max_tokens`.
const ONLY_COMPLETION_TOKENS: [&str; 4] = ["o1", "o3", "o4", "gpt-5"];

impl SummaryRequest for ChatCompletions {
    const LIST: &'static str = "messages";
    const SHAPING: &'static str = include_str!("summary/shaping.txt");
    const ROUTING: &'static [&'static str] =
        &["user", "safety_identifier", "service_tier", "store", "metadata", "provider", "models", "route"];
    const THINKING: &'static [&'static str] = &["reasoning_effort", "chat_template_kwargs"];
    const ASKS_FOR_USAGE: bool = true;

    fn first(&self, prompt: &Prompt<'_>) -> Option<Bytes> {
        let mut line = ObjectWriter::default();
        line.text("role", "system");
        line.text("content", prompt.system);
        Some(line.end())
    }

    /// Tools of a cached request stay, as they precede the messages, but none may be called. A plain one has the client's limit.
    fn end(&self, request: &mut ObjectWriter, fields: &Fields<'_>, prompt: &Prompt<'_>) {
        let &Prompt { max_tokens, model, .. } = prompt;
        let (key, most) = match prompt.input {
            PromptMode::Cached => {
                for (offer, choice) in [("tools", "tool_choice"), ("functions", "function_call")] {
                    if offers(fields, offer) {
                        request.text(choice, "none");
                    }
                }
                (limit(Some(fields), model), max_tokens.saturating_add(thinking(fields)))
            }
            PromptMode::Fresh => (limit(Some(fields).filter(|_| model.is_none()), model), max_tokens),
            PromptMode::Plain => {
                let key = limit(Some(fields), None);
                if model.is_some() || !sends(fields, key) {
                    return;
                }
                (key, limit_within(fields, key, max_tokens))
            }
        };
        request.json(key, &most.to_string());
    }
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
    let is_set = |key| fields.is_some_and(|fields| sends(fields, key));
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

#[cfg(test)]
mod tests;
