//! Sessions of Codex: `~/.codex/sessions/**/rollout-*.jsonl`, one line for each item of the conversation.
//!
//! A `response_item` is an item of OpenAI Responses as it was sent or received. A `token_count` has the usage of the response
//! that has just ended; one that repeats the total of the one before announces limits only. A `token_count` without an answer
//! before it is the bill of a compaction. A `compacted` line puts `replacement_history` in place of all items.

use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::builder::{Builder, RESPONSES, Step, id_of};
use super::lines::{self, Tokens};
use super::{IsElsewhere, Session};
use crate::simulate::TranscriptError;

const HOST: &str = "api.openai.com";

#[derive(Deserialize)]
struct Line<'a> {
    r#type: &'a str,
    timestamp: Option<&'a str>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

#[derive(Deserialize)]
struct Context<'a> {
    model: Option<&'a str>,
}

#[derive(Deserialize)]
struct Item<'a> {
    r#type: Option<&'a str>,
    role: Option<&'a str>,
}

#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    info: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Info {
    total_token_usage: Option<Tokens>,
    last_token_usage: Option<Tokens>,
    model_context_window: Option<usize>,
}

#[derive(Deserialize)]
struct Compacted<'a> {
    message: Option<String>,
    #[serde(borrow)]
    replacement_history: Option<Vec<&'a RawValue>>,
}

/// The class of an item.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Input,
    Answer,
    /// It is not sent to the model.
    Beside,
}

struct Reader<'a> {
    builder: Builder<'a>,
    /// When the newest item of the client came.
    at: Option<i64>,
    /// Whether the last item belongs to an answer that has not ended.
    is_answering: bool,
    /// Whether the last request waits for its usage.
    waits: bool,
    total: u64,
}

pub(super) fn read(file: impl BufRead, is_elsewhere: IsElsewhere<'_>) -> Result<Session, TranscriptError> {
    let builder = Builder::new(RESPONSES, Some(HOST), is_elsewhere);
    let mut reader = Reader { builder, at: None, is_answering: false, waits: false, total: 0 };
    let skipped = lines::each_line(lines::MAX_LINE, file, |line| {
        let line = serde_json::from_slice::<Line<'_>>(line).ok();
        line.and_then(|line| reader.line(&line)).is_some()
    })?;
    Ok(Session { transcripts: reader.builder.finish()?, skipped })
}

impl Reader<'_> {
    /// Takes a line. `None` if it is not understood.
    fn line(&mut self, line: &Line<'_>) -> Option<()> {
        let payload = line.payload.get();
        let at = line.timestamp.and_then(lines::seconds);
        match line.r#type {
            "turn_context" => {
                let context: Context<'_> = serde_json::from_str(payload).ok()?;
                self.builder.model = context.model.map(Into::into).or(self.builder.model.take());
            }
            "response_item" => self.item(payload, at)?,
            "event_msg" => {
                let event: Event<'_> = serde_json::from_str(payload).ok()?;
                let info = event.info.filter(|_| event.r#type == "token_count");
                if let Some(info) = info.map_or(Ok(None), |info| serde_json::from_str(info.get())).ok()? {
                    self.tokens(&info, line.timestamp);
                }
            }
            "compacted" => self.compacted(&serde_json::from_str(payload).ok()?),
            "session_meta" | "world_state" | "inter_agent_communication" => {}
            _ => return None,
        }
        Some(())
    }

    fn item(&mut self, item: &str, at: Option<i64>) -> Option<()> {
        match kind(&serde_json::from_str(item).ok()?) {
            Kind::Beside => return Some(()),
            Kind::Input => (self.is_answering, self.at) = (false, at.or(self.at)),
            Kind::Answer if !self.is_answering => {
                self.builder.request(Step { at: self.at.or(at), ..Step::default() });
                (self.is_answering, self.waits) = (true, true);
            }
            Kind::Answer => {}
        }
        self.builder.push(item.as_bytes());
        Some(())
    }

    fn tokens(&mut self, info: &Info, timestamp: Option<&str>) {
        let Some(last) = &info.last_token_usage else { return };
        if let Some(window) = info.model_context_window {
            self.builder.window = Some(window).filter(|window| *window > 0);
        }
        let total = info.total_token_usage.as_ref().map_or(0, |usage| usage.count(&["total_tokens"]));
        if total != 0 && std::mem::replace(&mut self.total, total) == total {
            return;
        }
        let id = timestamp.map_or(0, |timestamp| id_of(&format!("{timestamp} {total}")));
        if !self.waits {
            self.builder.request(Step { at: timestamp.and_then(lines::seconds), ..Step::default() });
        }
        self.builder.bill(id, last.usage(true));
        (self.is_answering, self.waits) = (false, false);
    }

    fn compacted(&mut self, compacted: &Compacted<'_>) {
        self.builder.cut(0);
        (self.is_answering, self.waits) = (false, false);
        match (&compacted.replacement_history, &compacted.message) {
            (Some(items), _) => items.iter().for_each(|item| self.builder.push(item.get().as_bytes())),
            (None, Some(summary)) => {
                let text = serde_json::to_string(summary).unwrap_or_default();
                let content = format!(r#"[{{"type":"input_text","text":{text}}}]"#);
                self.builder.push(format!(r#"{{"type":"message","role":"user","content":{content}}}"#).as_bytes());
            }
            (None, None) => {}
        }
    }
}

fn kind(item: &Item<'_>) -> Kind {
    match (item.r#type.unwrap_or("message"), item.role) {
        ("message", Some("assistant")) => Kind::Answer,
        ("message", _) => Kind::Input,
        ("ghost_snapshot" | "compaction_trigger" | "other", _) => Kind::Beside,
        (kind, _) if kind.ends_with("_output") || kind.starts_with("compaction") => Kind::Input,
        _ => Kind::Answer,
    }
}
