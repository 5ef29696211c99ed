//! The request that asks for a summary of items, made of the client's own.
//!
//! In the shape [`PromptMode::Cached`] items go into it as they are, to the byte, so that the provider finds the beginning in its
//! prompt cache. A request of the shape [`PromptMode::Fresh`], or to another model, has no reasoning and no ids of items: the
//! one may be encrypted for the client's model, and the other name what only that model's server has. [`PromptMode::Plain`] is
//! one message of the user.
//!
//! Nothing of it is stored, and it is streamed: the backend behind `ChatGPT` takes nothing else.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::LazyLock;

use bytes::Bytes;

use super::Responses;
use crate::dialect::Dialect;
use crate::dialect::object::{ObjectWriter, fields, is_streamed, limit_within};
use crate::raw::{Fields, elements};
use crate::summary::{InputElement, Prompt, PromptMode, SummaryInput};

/// Keys of a client's request that shape its answer: some are written anew, the others would spoil a summary.
static SHAPING: LazyLock<HashSet<&str>> = LazyLock::new(|| include_str!("summary/shaping.txt").lines().collect());

/// Keys of a client's request that say who asks, what may be done with it, and where it goes. They stay in every request to
/// the client's own model, and in a fresh one so does `reasoning`.
const ROUTING: [&str; 7] =
    ["user", "safety_identifier", "service_tier", "metadata", "client_metadata", "provider", "models"];

/// The request in the shape that is asked for. None if it cannot be made of what the client sent.
pub(super) fn request(source: &SummaryInput, prompt: &Prompt<'_>) -> Option<Bytes> {
    let fields = fields(&source.body)?;
    let items = elements(fields.get("input")?)?;
    let last = items.last().and_then(|item| Fields::of(item));
    if last.is_some_and(|last| last.string("type").as_deref() == Some("compaction_trigger")) {
        return None; // it must stay the last one, and asks for another summary
    }
    match prompt.input {
        PromptMode::Cached => cached(source, &fields, prompt),
        PromptMode::Fresh => fresh(source, &fields, prompt),
        PromptMode::Plain => Some(plain(&fields, prompt)),
    }
}

/// The client's request with the items of `source`, then the instruction. Tools stay, as they precede the items, but
/// none may be called.
fn cached(source: &SummaryInput, fields: &Fields<'_>, prompt: &Prompt<'_>) -> Option<Bytes> {
    source.split()?;
    let mut request = ObjectWriter::of_client(fields, &SHAPING, prompt.model, |request, key, _| {
        let is_list = key == "input";
        if is_list {
            add_items(request, &source.messages, prompt, prompt.model.is_some());
        }
        Some(is_list)
    })?;
    if fields.get("tools").and_then(elements).is_some_and(|tools| !tools.is_empty()) {
        request.json("tool_choice", r#""none""#);
    }
    Some(end(request, fields, prompt))
}

/// A request of our own: instructions, what is summarised without the client's, the instruction, no tools. It has few of
/// the client's keys, and none but its items if it asks another model than the client does.
fn fresh(source: &SummaryInput, fields: &Fields<'_>, prompt: &Prompt<'_>) -> Option<Bytes> {
    let (_, region) = source.split()?;
    let mut request = ObjectWriter::of_model(fields, prompt.model);
    request.text("instructions", prompt.system);
    add_items(&mut request, region, prompt, true);
    request.keep(fields, &[&ROUTING[..], &["reasoning"]].concat(), prompt.model);
    Some(end(request, fields, prompt))
}

/// A request with one message of the user, for servers that refuse the others, and otherwise with keys that the client sends.
fn plain(fields: &Fields<'_>, prompt: &Prompt<'_>) -> Bytes {
    let mut request = ObjectWriter::of_model(fields, prompt.model);
    let sends = |key: &str| prompt.model.is_none() && fields.get(key).is_some_and(|value| value != "null");
    if sends("instructions") {
        request.text("instructions", prompt.system);
    }
    add_items(&mut request, &[], prompt, true);
    request.keep(fields, &ROUTING, prompt.model);
    if sends("max_output_tokens") {
        let limit = limit_within(fields, "max_output_tokens", prompt.max_tokens);
        request.json("max_output_tokens", &limit.to_string());
    }
    if sends("store") {
        request.json("store", "false");
    }
    if is_streamed(fields, prompt.model) {
        request.json("stream", "true");
    }
    request.end()
}

/// An item without what only the server knows that made it; none of reasoning, of tools, and of what a program calls for and
/// gets, whose calls are noted in `by_program`. What another agent says becomes a message of the user.
fn anonymous<'a>(json: &'a [u8], by_program: &mut HashSet<String>) -> Option<Cow<'a, [u8]>> {
    let Some(fields) = str::from_utf8(json).ok().and_then(Fields::of) else { return Some(json.into()) };
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
    fields.iter().filter(|(key, _)| *key != "id").for_each(|(key, value)| item.json(key, value));
    Some(Vec::from(item.end()).into())
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

/// Adds items, and after them the instruction.
fn add_items(request: &mut ObjectWriter, pieces: &[InputElement], prompt: &Prompt<'_>, strangers: bool) {
    let mut by_program = HashSet::new();
    let of = |json| if strangers { anonymous(json, &mut by_program) } else { Some(Cow::Borrowed(json)) };
    request.list("input", None, pieces, of, &Responses.render_user_message(prompt.instruction));
}

/// The length is limited only where the client limits it too: not every backend knows the key.
fn end(mut request: ObjectWriter, fields: &Fields<'_>, prompt: &Prompt<'_>) -> Bytes {
    if fields.get("max_output_tokens").is_some_and(|limit| limit != "null") {
        request.json("max_output_tokens", &prompt.max_tokens.to_string());
    }
    request.json("store", "false");
    request.json("stream", "true");
    request.end()
}

#[cfg(test)]
mod tests;
