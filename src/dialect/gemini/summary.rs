//! The request in Gemini's API that asks for a summary, made of the client's own.
//!
//! A request in the form [`PromptMode::Fresh`] has no thoughts. The instruction begins a turn, so that no signature of the turns
//! before it is asked for. The model and whether the answer is a stream are in the path.

use std::collections::HashSet;

use super::Gemini;
use crate::dialect::Dialect;
use crate::dialect::object::{ObjectWriter, Shown, SummaryRequest, limit_within, offers};
use crate::raw::{Fields, elements};
use crate::summary::{Prompt, PromptMode};

/// Keys of the settings of an answer that stay; the others shape it.
const SAMPLING: [&str; 7] = ["temperature", "topP", "top_p", "topK", "top_k", "thinkingConfig", "thinking_config"];

/// The tokens that a model without a limit may think before it writes a summary.
const THINKING: usize = 4096;

impl SummaryRequest for Gemini {
    const LIST: &'static str = "contents";
    const SHAPING: &'static str = "generationConfig\ngeneration_config\ntoolConfig\ntool_config";
    const ROUTING: &'static [&'static str] = &["safetySettings", "safety_settings", "labels", "serviceTier"];
    const NAMES_MODEL: bool = false;

    fn begin(&self, request: &mut ObjectWriter, _: &Fields<'_>, prompt: &Prompt<'_>) {
        if prompt.input == PromptMode::Fresh {
            request.key("systemInstruction");
            request.raw(&[b"{\"parts\":[", &*self.render_user_entry(prompt.system), b"]}"].concat());
        }
    }

    fn message<'p>(&self, json: &'p [u8], prompt: &Prompt<'_>, _: &mut HashSet<String>) -> Shown<'p> {
        let fresh = Some(json).filter(|_| prompt.input == PromptMode::Fresh);
        match fresh.and_then(unthinking) {
            Some(rest) => (!rest.is_empty()).then(|| rest.into()),
            None => Some(json.into()),
        }
    }

    /// Tools of a cached request stay, but none may be called. Of the client's settings of the answer, few stay.
    fn end(&self, request: &mut ObjectWriter, fields: &Fields<'_>, prompt: &Prompt<'_>) {
        let is_own = prompt.input == PromptMode::Cached || prompt.model.is_none();
        let config = fields.object("generationConfig").or_else(|| fields.object("generation_config"));
        let config = config.filter(|_| is_own);
        let mut settings = ObjectWriter::default();
        let limit = if prompt.input == PromptMode::Plain {
            let Some(config) = config.filter(|config| config.get("maxOutputTokens").is_some()) else { return };
            limit_within(&config, "maxOutputTokens", prompt.max_tokens)
        } else {
            let sampling = config.iter().flat_map(Fields::iter).filter(|(key, _)| SAMPLING.contains(key));
            settings.members(sampling);
            prompt.max_tokens.saturating_add(thinking(config.as_ref()))
        };
        if prompt.input == PromptMode::Cached && offers(fields, "tools") {
            request.json("toolConfig", r#"{"functionCallingConfig":{"mode":"NONE"}}"#);
        }
        settings.json("maxOutputTokens", &limit.to_string());
        request.key("generationConfig");
        request.raw(&settings.end());
    }
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
        unsigned.members(members.iter().filter(|(key, _)| !matches!(*key, "thoughtSignature" | "thought_signature")));
        if !unsigned.is_empty() {
            rest.push(String::from_utf8(unsigned.end().into()).ok()?);
        }
    }
    if rest.is_empty() {
        return Some(Vec::new());
    }
    Some(ObjectWriter::replaced(&content, "parts", &format!("[{}]", rest.join(","))).into())
}
