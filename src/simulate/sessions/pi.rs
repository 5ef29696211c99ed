//! Sessions of pi: `~/.pi/agent/sessions/**/*.jsonl`, a tree of entries of which each names its parent.
//!
//! A message whose parent has answers after it steps back to that parent. A `compaction` puts its summary, and the messages
//! from `firstKeptEntryId` on, in place of all before it; the messages that are kept are not among those of the new segment.

use std::borrow::Cow;
use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::builder::{Step, id_of};
use super::lines::each_line;
use super::messages::{Block, Conversation, text};
use super::{IsElsewhere, Session, time};
use crate::dialect::Usage;
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
    usage: Option<RecordedUsage>,
    /// The call that it answers.
    #[serde(rename = "toolCallId")]
    call_id: Option<Cow<'a, str>>,
    #[serde(default)]
    is_error: bool,
    output: Option<String>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RecordedUsage {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
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

struct Reader<'a> {
    conversation: Conversation<'a>,
    at: Option<i64>,
}

pub(super) fn read(file: impl BufRead, is_elsewhere: IsElsewhere<'_>) -> Result<Session, TranscriptError> {
    let mut reader = Reader { conversation: Conversation::new(None, is_elsewhere), at: None };
    let skipped = each_line(file, |line| {
        let Ok(line) = serde_json::from_slice::<Line<'_>>(line) else { return false };
        reader.line(&line)
    })?;
    Ok(Session { transcripts: reader.conversation.finish()?, skipped })
}

impl Reader<'_> {
    /// Takes a line. False if it is not understood.
    fn line(&mut self, line: &Line<'_>) -> bool {
        let at = line.timestamp.and_then(time::seconds);
        if let Some(parent) = line.parent_id {
            self.conversation.step_back(parent);
        }
        match (line.r#type, &line.message) {
            ("message", Some(message)) => self.message(message, line.id, at),
            ("custom_message", _) => self.input(line.content, at),
            ("compaction", _) => {
                self.conversation.restart();
                self.conversation.input(&Block::Text(line.summary.as_deref().unwrap_or_default()));
            }
            ("branch_summary", _) => self.conversation.input(&Block::Text(line.summary.as_deref().unwrap_or_default())),
            ("session" | "model_change" | "thinking_level_change" | "custom" | "label" | "session_info", _) => {}
            _ => return false,
        }
        if let Some(id) = line.id {
            self.conversation.name_end(id);
        }
        true
    }

    fn message(&mut self, message: &Message<'_>, id: Option<&str>, at: Option<i64>) {
        match message.role {
            "assistant" => {
                let usage = message.usage.map(Usage::from);
                // Entries have short names, which other sessions may have too.
                let id = id.zip(at).map_or(0, |(id, at)| id_of(&format!("{id} {at}")));
                let model = message.model.map(Into::into);
                self.conversation.open(Step { usage, model, at: self.at.or(at), id, ..Step::default() });
                for part in parts(message.content) {
                    match (part.r#type, &part.id, &part.name, part.arguments) {
                        ("toolCall", Some(id), Some(name), Some(input)) => {
                            self.conversation.answer(&Block::Call { id, name, input });
                        }
                        _ => self.conversation.answer(&Block::Text(part.text.as_deref().unwrap_or_default())),
                    }
                }
            }
            "toolResult" => {
                self.at = at.or(self.at);
                let content = Cow::Owned(text(message.content));
                let id = message.call_id.as_deref().unwrap_or_default();
                self.conversation.input(&Block::Result { id, content, is_error: message.is_error });
            }
            _ => {
                self.input(message.content, at);
                self.conversation.input(&Block::Text(message.output.as_deref().unwrap_or_default()));
            }
        }
    }

    fn input(&mut self, content: Option<&RawValue>, at: Option<i64>) {
        self.at = at.or(self.at);
        self.conversation.input(&Block::Text(&text(content)));
    }
}

fn parts(content: Option<&RawValue>) -> Vec<Part<'_>> {
    content.and_then(|content| serde_json::from_str(content.get()).ok()).unwrap_or_default()
}

impl From<RecordedUsage> for Usage {
    fn from(usage: RecordedUsage) -> Self {
        let RecordedUsage { input, output, cache_read: cached, cache_write: written } = usage;
        Self { input: input.saturating_add(cached).saturating_add(written), cached, output, written, written_hour: 0 }
    }
}
