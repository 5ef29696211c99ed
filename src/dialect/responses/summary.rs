//! The request that asks for a summary of items, made of the client's own.
//!
//! A request in the form [`PromptMode::Fresh`], or to another model, has no reasoning and no ids of items: the one may be
//! encrypted for the client's model, and the other name what only that model's server has.
//!
//! Nothing of it is stored, and it is streamed: the backend behind `ChatGPT` takes nothing else.

use std::borrow::Cow;
use std::collections::HashSet;

use super::Responses;
use crate::dialect::object::{ObjectWriter, Shown, SummaryRequest, limit_within, offers, sends};
use crate::raw::{Fields, elements};
use crate::summary::{Prompt, PromptMode};

impl SummaryRequest for Responses {
    const LIST: &'static str = "input";
    const SHAPING: &'static str = include_str!("summary/shaping.txt");
    const ROUTING: &'static [&'static str] =
        &["user", "safety_identifier", "service_tier", "metadata", "client_metadata", "provider", "models"];
    const THINKING: &'static [&'static str] = &["reasoning"];

    /// A trigger of a compaction must stay the last item, and asks for another summary.
    fn accepts(&self, fields: &Fields<'_>) -> Option<()> {
        let items = elements(fields.get("input")?)?;
        let last = items.last().and_then(|item| Fields::of(item));
        let is_trigger = last.is_some_and(|last| last.string("type").as_deref() == Some("compaction_trigger"));
        (!is_trigger).then_some(())
    }

    fn begin(&self, request: &mut ObjectWriter, fields: &Fields<'_>, prompt: &Prompt<'_>) {
        if prompt.input == PromptMode::Fresh || prompt.model.is_none() && sends(fields, "instructions") {
            request.text("instructions", prompt.system);
        }
    }

    /// Of a stranger's request, an item without what only the server knows that made it; none of reasoning, of tools, and of what
    /// a program calls for and gets. What another agent says becomes a message of the user.
    fn message<'p>(&self, json: &'p [u8], prompt: &Prompt<'_>, by_program: &mut HashSet<String>) -> Shown<'p> {
        let is_own = prompt.input == PromptMode::Cached && prompt.model.is_none();
        let fields = str::from_utf8(json).ok().filter(|_| !is_own).and_then(Fields::of);
        let Some(fields) = fields else { return Some(json.into()) };
        let kind = fields.string("type");
        let is = |kinds: &[&str]| kind.as_deref().is_some_and(|kind| kinds.contains(&kind));
        if is(&["reasoning", "additional_tools"]) {
            return None;
        }
        let id = fields.string("call_id").unwrap_or_default();
        let caller = fields.object("caller").and_then(|caller| caller.string("type").map(Cow::into_owned));
        if caller.as_deref().is_some_and(|caller| caller != "direct") {
            by_program.insert(id.into_owned());
            return None;
        }
        if by_program.contains(&*id) && kind.as_deref().is_some_and(|kind| kind.ends_with("_output")) {
            return None;
        }
        if is(&["agent_message"]) {
            return Some(agent_message(&fields));
        }
        let has_own_id = is(&["message"]) || kind.is_none() || fields.get("call_id").is_some_and(|id| id != "null");
        if !has_own_id || fields.get("id").is_none() {
            return Some(json.into());
        }
        let mut item = ObjectWriter::default();
        item.members(fields.iter().filter(|(key, _)| *key != "id"));
        Some(Vec::from(item.end()).into())
    }

    /// The length is limited only where the client limits it too: not every backend knows the key. Tools of a cached request stay,
    /// as they precede the items, but none may be called.
    fn end(&self, request: &mut ObjectWriter, fields: &Fields<'_>, prompt: &Prompt<'_>) {
        let is_plain = prompt.input == PromptMode::Plain;
        let sends = |key: &str| (!is_plain || prompt.model.is_none()) && sends(fields, key);
        if prompt.input == PromptMode::Cached && offers(fields, "tools") {
            request.text("tool_choice", "none");
        }
        if sends("max_output_tokens") {
            let own = || limit_within(fields, "max_output_tokens", prompt.max_tokens);
            let limit = if is_plain { own() } else { prompt.max_tokens };
            request.json("max_output_tokens", &limit.to_string());
        }
        if !is_plain || sends("store") {
            request.json("store", "false");
        }
    }
}

/// What another agent says, as a message of the user: a model that does not know such items reads it too.
fn agent_message(fields: &Fields<'_>) -> Cow<'static, [u8]> {
    let name = |key| fields.string(key).map_or_else(|| "agent".to_owned(), Cow::into_owned);
    let parts = fields.get("content").and_then(elements).unwrap_or_default();
    let text = |part: &&str| Fields::of(part)?.string("text").map(Cow::into_owned);
    let mut texts: Vec<_> = parts.iter().filter_map(text).collect();
    texts.extend(fields.string("content").map(Cow::into_owned));
    let said = if texts.is_empty() { "(encrypted)".to_owned() } else { texts.join("\n") };
    let mut item = ObjectWriter::default();
    item.text("type", "message");
    item.text("role", "user");
    item.text("content", &format!("[{} -> {}] {said}", name("author"), name("recipient")));
    Vec::from(item.end()).into()
}

#[cfg(test)]
mod tests;
