//! Sessions of Gemini CLI: `~/.gemini/tmp/*/chats/session-*`, a JSON document in older versions and lines in newer ones.
//!
//! An answer has its calls with their results. A line with the id of an earlier one takes its place; `$rewindTo` removes
//! all from an id on. So the file is read as a whole.

use std::borrow::Cow;
use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::builder::{Step, id_of};
use super::messages::{Block, Conversation, text};
use super::{IsElsewhere, Session, lines};
use crate::simulate::TranscriptError;

const HOST: &str = "generativelanguage.googleapis.com";

#[derive(Deserialize)]
struct Document {
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Rewind {
    #[serde(rename = "$rewindTo")]
    to: String,
}

#[derive(Deserialize)]
struct Message {
    id: String,
    timestamp: Option<String>,
    r#type: String,
    content: Option<Box<RawValue>>,
    #[serde(default, rename = "toolCalls")]
    calls: Vec<Call>,
    tokens: Option<lines::Tokens>,
    model: Option<String>,
}

#[derive(Deserialize)]
struct Call {
    id: String,
    name: String,
    args: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    status: Option<String>,
}

pub(super) fn read(file: impl BufRead, is_elsewhere: IsElsewhere<'_>) -> Result<Session, TranscriptError> {
    let bytes = lines::document(lines::MAX_DOCUMENT, file)?;
    let (messages, skipped) = match serde_json::from_slice::<Document>(&bytes) {
        Ok(document) => (document.messages, 0),
        Err(_) => of_lines(&bytes)?,
    };
    let mut conversation = Conversation::new(Some(HOST), is_elsewhere);
    for message in &messages {
        let at = message.timestamp.as_deref().and_then(lines::seconds);
        let text = Block::Text(text(message.content.as_deref()).into());
        match message.r#type.as_str() {
            "user" => conversation.input(&text),
            "gemini" => answer(&mut conversation, message, &text, at),
            _ => continue,
        }
        conversation.at = at;
    }
    Ok(Session { transcripts: conversation.finish()?, skipped })
}

fn of_lines(bytes: &[u8]) -> Result<(Vec<Message>, usize), TranscriptError> {
    let mut messages: Vec<Message> = Vec::new();
    let skipped = lines::each_line(lines::MAX_LINE, bytes, |line| {
        if let Ok(message) = serde_json::from_slice::<Message>(line) {
            match messages.iter_mut().rev().find(|known| known.id == message.id) {
                Some(known) => *known = message,
                None => messages.push(message),
            }
        } else if let Ok(Rewind { to }) = serde_json::from_slice(line) {
            let keep = messages.iter().position(|message| message.id == to).unwrap_or_default();
            messages.truncate(keep);
        } else {
            return line.starts_with(b"{\"$set\"") || line.windows(13).any(|bytes| bytes == b"\"projectHash\"");
        }
        true
    })?;
    Ok((messages, skipped))
}

fn answer(conversation: &mut Conversation<'_>, message: &Message, text: &Block<'_>, at: Option<i64>) {
    let usage = message.tokens.as_ref().map(|tokens| tokens.usage(true));
    let model = message.model.as_deref().map(Into::into);
    conversation.open(Step { usage, model, at, id: id_of(&message.id), ..Step::default() });
    conversation.answer(text);
    for Call { id, name, args, .. } in &message.calls {
        if let Some(input) = args.as_deref() {
            conversation.answer(&Block::Call { id, name, input });
        }
    }
    for Call { id, args, result, status, .. } in &message.calls {
        if args.is_some() {
            let content = result.as_deref().map_or("", RawValue::get);
            let is_error = status.as_deref() == Some("error");
            conversation.input(&Block::Result { id, content: Cow::Borrowed(content), is_error });
        }
    }
}
