//! Sessions of pi: `~/.pi/agent/sessions/**/*.jsonl`, a tree of entries of which each names its parent.
//!
//! A message whose parent has answers after it steps back to that parent. A `compaction` puts its summary, and the messages
//! from `firstKeptEntryId` on, in place of all before it; the messages that are kept are not among those of the new segment.

use std::borrow::Cow;
use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::builder::{Step, id_of};
use super::messages::{Block, Conversation, text};
use super::{IsElsewhere, Session, lines};
use crate::simulate::TranscriptError;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    r#type: &'a str,
    id: Option<&'a str>,
    parent_id: Option<&'a str>,
    timestamp: Option<&'a str>,
    summary: Option<String>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    role: &'a str,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    model: Option<&'a str>,
    usage: Option<lines::Tokens>,
    /// The call that it answers.
    #[serde(rename = "toolCallId")]
    call_id: Option<Cow<'a, str>>,
    #[serde(default)]
    is_error: bool,
    output: Option<String>,
}

#[derive(Deserialize)]
struct Part<'a> {
    r#type: &'a str,
    text: Option<Cow<'a, str>>,
    id: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

pub(super) fn read(file: impl BufRead, is_elsewhere: IsElsewhere<'_>) -> Result<Session, TranscriptError> {
    let mut conversation = Conversation::new(None, is_elsewhere);
    let skipped = lines::each_line(lines::MAX_LINE, file, |line| {
        serde_json::from_slice(line).is_ok_and(|line| take_line(&mut conversation, &line))
    })?;
    Ok(Session { transcripts: conversation.finish()?, skipped })
}

/// Takes a line. False if it is not understood.
fn take_line(conversation: &mut Conversation<'_>, line: &Line<'_>) -> bool {
    let at = line.timestamp.and_then(lines::seconds);
    if let Some(parent) = line.parent_id {
        conversation.step_back(parent);
    }
    let summary = || Block::Text(line.summary.as_deref().unwrap_or_default().into());
    match (line.r#type, &line.message) {
        ("message", Some(message)) => take_message(conversation, message, line.id, at),
        ("custom_message", _) => {
            conversation.came(at);
            conversation.input(&Block::Text(text(line.content).into()));
        }
        ("compaction", _) => {
            conversation.restart();
            conversation.input(&summary());
        }
        ("branch_summary", _) => conversation.input(&summary()),
        ("session" | "model_change" | "thinking_level_change" | "custom" | "label" | "session_info", _) => {}
        _ => return false,
    }
    if let Some(id) = line.id {
        conversation.name_end(id);
    }
    true
}

fn take_message(conversation: &mut Conversation<'_>, message: &Message<'_>, id: Option<&str>, at: Option<i64>) {
    if message.role == "assistant" {
        let usage = message.usage.as_ref().map(|usage| usage.usage(false));
        // Entries have short names, which other sessions may have too.
        let id = id.zip(at).map_or(0, |(id, at)| id_of(&format!("{id} {at}")));
        conversation.open(Step { usage, model: message.model.map(Into::into), at, id, ..Step::default() });
        let parts = message.content.and_then(|content| serde_json::from_str::<Vec<Part<'_>>>(content.get()).ok());
        for part in parts.unwrap_or_default() {
            match (part.r#type, &part.id, &part.name, part.arguments) {
                ("toolCall", Some(id), Some(name), Some(input)) => {
                    conversation.answer(&Block::Call { id, name, input });
                }
                _ => conversation.answer(&Block::Text(part.text.unwrap_or_default())),
            }
        }
        return;
    }
    conversation.came(at);
    let content = Cow::Owned(text(message.content));
    if message.role == "toolResult" {
        let id = message.call_id.as_deref().unwrap_or_default();
        conversation.input(&Block::Result { id, content, is_error: message.is_error });
    } else {
        conversation.input(&Block::Text(content));
        conversation.input(&Block::Text(message.output.as_deref().unwrap_or_default().into()));
    }
}
