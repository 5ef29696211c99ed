//! Sessions of Cline: `api_conversation_history.json` in the folder of a task, an array of Messages.
//!
//! Newer versions add the model and the tokens of an answer to it. What was written to the cache is not among them, so it is
//! billed as other input here, which is a fifth less than Anthropic asks for it.

use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::builder::Step;
use super::messages::{Block, Conversation, inside};
use super::{IsElsewhere, Session, lines};
use crate::dialect::Usage;
use crate::simulate::TranscriptError;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    role: &'a str,
    #[serde(borrow)]
    content: &'a RawValue,
    ts: Option<i64>,
    #[serde(borrow)]
    model_info: Option<ModelInfo<'a>>,
    metrics: Option<Metrics>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ModelInfo<'a> {
    model_id: &'a str,
}

#[derive(Deserialize)]
struct Metrics {
    tokens: Option<Tokens>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Tokens {
    prompt: u64,
    completion: u64,
    cached: u64,
}

pub(super) fn read(file: impl BufRead, is_elsewhere: IsElsewhere<'_>) -> Result<Session, TranscriptError> {
    let bytes = lines::document(file)?;
    let messages: Vec<&RawValue> = serde_json::from_slice(&bytes).map_err(|_| TranscriptError::Empty)?;
    let (mut conversation, mut at, mut skipped) = (Conversation::new(None, is_elsewhere), None, 0);
    for message in messages {
        let Ok(message) = serde_json::from_str::<Message<'_>>(message.get()) else {
            skipped += 1;
            continue;
        };
        let sent_at = message.ts.map(|millis| millis / 1000);
        let whole: Option<String> = serde_json::from_str(message.content.get()).ok();
        let block = whole.as_deref().map_or_else(|| Block::Raw(inside(message.content.get())), Block::Text);
        if message.role == "assistant" {
            let usage = message.metrics.and_then(|metrics| metrics.tokens).map(Usage::from);
            let model = message.model_info.map(|info| info.model_id.into());
            conversation.open(Step { usage, model, at: at.or(sent_at), ..Step::default() });
            conversation.answer(&block);
        } else {
            at = sent_at.or(at);
            conversation.input(&block);
        }
    }
    Ok(Session { transcripts: conversation.finish()?, skipped })
}

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
        let Tokens { prompt: input, completion: output, cached } = tokens;
        Self { input, cached: cached.min(input), output, ..Self::default() }
    }
}
