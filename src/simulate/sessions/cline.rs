//! Sessions of Cline: `api_conversation_history.json` in the folder of a task, an array of Messages.
//!
//! Newer versions add the model and the tokens of an answer to it. What was written to the cache is not among them, so it is
//! billed as other input here, which is a fifth less than Anthropic asks for it.

use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::builder::Step;
use super::lines::{self, Tokens};
use super::messages::{Block, Conversation};
use super::{IsElsewhere, Session};
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

pub(super) fn read(file: impl BufRead, is_elsewhere: IsElsewhere<'_>) -> Result<Session, TranscriptError> {
    let bytes = lines::document(lines::MAX_DOCUMENT, file)?;
    let messages: Vec<&RawValue> = serde_json::from_slice(&bytes).map_err(|_| TranscriptError::Empty)?;
    let (mut conversation, mut skipped) = (Conversation::new(None, is_elsewhere), 0);
    for message in messages {
        let Ok(message) = serde_json::from_str::<Message<'_>>(message.get()) else {
            skipped += 1;
            continue;
        };
        let at = message.ts.map(|millis| millis / 1000);
        let block = Block::of_content(message.content.get());
        if message.role == "assistant" {
            let usage = message.metrics.and_then(|metrics| Some(metrics.tokens?.usage(true)));
            let model = message.model_info.map(|info| info.model_id.into());
            conversation.open(Step { usage, model, at, ..Step::default() });
            conversation.answer(&block);
        } else {
            conversation.came(at);
            conversation.input(&block);
        }
    }
    Ok(Session { transcripts: conversation.finish()?, skipped })
}
