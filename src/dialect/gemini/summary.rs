//! The request in Gemini's API that asks for a summary, made of the client's own.
//!
//! Contents go into it as they are, to the byte, in two shapes: [`PromptMode::Cached`] is the request that the client would have
//! made; [`PromptMode::Fresh`] has abridge's system line, no tools, and no thoughts. The instruction begins a turn, so that no
//! signature of the turns before it is asked for. [`PromptMode::Plain`] is one content of the user. The model and whether the
//! answer is a stream are in the path.

use std::borrow::Cow;

use bytes::Bytes;

use super::Gemini;
use crate::dialect::Dialect;
use crate::dialect::object::{ObjectWriter, fields, limit_within};
use crate::raw::{Fields, elements};
use crate::summary::{InputElement, Prompt, PromptMode, SummaryInput};

/// Keys of a client's request that say what is let through and who asks. They stay in every request to the client's own model.
const ROUTING: [&str; 4] = ["safetySettings", "safety_settings", "labels", "serviceTier"];

/// Keys of the settings of an answer that stay; the others shape it.
const SAMPLING: [&str; 7] = ["temperature", "topP", "top_p", "topK", "top_k", "thinkingConfig", "thinking_config"];

/// The tokens that a model without a limit may think before it writes a summary.
const THINKING: usize = 4096;

const NO_CALLS: &str = r#"{"functionCallingConfig":{"mode":"NONE"}}"#;

/// The request in the shape that is asked for. None if it cannot be made of what the client sent.
pub(super) fn request(source: &SummaryInput, prompt: &Prompt<'_>) -> Option<Bytes> {
    let fields = fields(&source.body)?;
    match prompt.input {
        PromptMode::Cached => cached(source, &fields, prompt),
        PromptMode::Fresh => fresh(source, &fields, prompt),
        PromptMode::Plain => Some(plain(&fields, prompt)),
    }
}

/// The settings of the client's answer.
fn config<'a>(fields: &Fields<'a>) -> Option<Fields<'a>> {
    fields.object("generationConfig").or_else(|| fields.object("generation_config"))
}

fn cached(source: &SummaryInput, fields: &Fields<'_>, prompt: &Prompt<'_>) -> Option<Bytes> {
    source.split()?;
    let mut request = ObjectWriter::default();
    for (key, value) in fields.iter() {
        match key {
            "contents" => contents(&mut request, &source.messages, prompt, |json| Some(json.into())),
            "generationConfig" | "generation_config" | "toolConfig" | "tool_config" => {}
            _ => request.json(key, value),
        }
    }
    if fields.get("tools").and_then(elements).is_some_and(|tools| !tools.is_empty()) {
        request.json("toolConfig", NO_CALLS);
    }
    let client = config(fields);
    Some(end(request, client.as_ref(), prompt.max_tokens.saturating_add(thinking(client.as_ref()))))
}

/// A request of our own: a system line, what is summarised without the client's instructions, the instruction, no tools.
/// It has few of the client's keys, and none but its contents if it asks another model than the client does.
fn fresh(source: &SummaryInput, fields: &Fields<'_>, prompt: &Prompt<'_>) -> Option<Bytes> {
    let (_, region) = source.split()?;
    let mut request = ObjectWriter::default();
    request.key("systemInstruction");
    request.raw(&[b"{\"parts\":[", &*Gemini.render_user_entry(prompt.system), b"]}"].concat());
    contents(&mut request, region, prompt, |json| match unthinking(json) {
        Some(json) => (!json.is_empty()).then_some(json.into()),
        None => Some(json.into()),
    });
    request.keep(fields, &ROUTING, prompt.model);
    let client = config(fields).filter(|_| prompt.model.is_none());
    Some(end(request, client.as_ref(), prompt.max_tokens.saturating_add(thinking(client.as_ref()))))
}

/// A request with one content of the user, for servers that refuse the others.
fn plain(fields: &Fields<'_>, prompt: &Prompt<'_>) -> Bytes {
    let mut request = ObjectWriter::default();
    contents(&mut request, &[], prompt, |json| Some(json.into()));
    request.keep(fields, &ROUTING, prompt.model);
    if let Some(config) =
        config(fields).filter(|config| prompt.model.is_none() && config.get("maxOutputTokens").is_some())
    {
        let limit = limit_within(&config, "maxOutputTokens", prompt.max_tokens);
        request.json("generationConfig", &format!(r#"{{"maxOutputTokens":{limit}}}"#));
    }
    request.end()
}

/// The tokens that the answer may have for thinking, which its limit includes.
fn thinking(config: Option<&Fields<'_>>) -> usize {
    let thinking =
        config.and_then(|config| config.object("thinkingConfig").or_else(|| config.object("thinking_config")));
    let budget = thinking.and_then(|thinking| thinking.get("thinkingBudget")?.parse().ok());
    budget.unwrap_or(THINKING)
}

/// A content without its thoughts and signatures; empty if it has nothing else, and none if it has no parts.
fn unthinking(json: &[u8]) -> Option<Vec<u8>> {
    let content = Fields::of(str::from_utf8(json).ok()?)?;
    let mut rest = Vec::new();
    for part in elements(content.get("parts")?)? {
        let members = Fields::of(part)?;
        if members.get("thought") == Some("true") {
            continue;
        }
        let mut unsigned = ObjectWriter::default();
        for (key, value) in members.iter().filter(|(key, _)| !matches!(*key, "thoughtSignature" | "thought_signature"))
        {
            unsigned.json(key, value);
        }
        if !unsigned.is_empty() {
            rest.push(unsigned.end());
        }
    }
    if rest.is_empty() {
        return Some(Vec::new());
    }
    let mut written = ObjectWriter::default();
    for (key, value) in content.iter() {
        match key {
            "parts" => {
                written.key(key);
                written.raw(&[b"[", &*rest.join(&b','), b"]"].concat());
            }
            _ => written.json(key, value),
        }
    }
    Some(written.end().into())
}

/// Adds the contents, and the instruction after them.
fn contents<'p>(
    request: &mut ObjectWriter,
    pieces: &'p [InputElement],
    prompt: &Prompt<'_>,
    of: impl FnMut(&'p [u8]) -> Option<Cow<'p, [u8]>>,
) {
    request.list("contents", None, pieces, of, &Gemini.render_user_message(prompt.instruction));
}

/// Adds the settings of the answer.
fn end(mut request: ObjectWriter, client: Option<&Fields<'_>>, max_tokens: usize) -> Bytes {
    let mut settings = ObjectWriter::default();
    for (key, value) in client.into_iter().flat_map(Fields::iter).filter(|(key, _)| SAMPLING.contains(key)) {
        settings.json(key, value);
    }
    settings.json("maxOutputTokens", &max_tokens.to_string());
    request.key("generationConfig");
    request.raw(&settings.end());
    request.end()
}
