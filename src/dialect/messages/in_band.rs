//! Answers in which the model calls the tool that abridge has added: messages, and the events of a streamed one.
//!
//! The client gets the blocks of all rounds as those of one message. The thinking of later rounds is not among them: it was
//! signed after a call that the client does not have, and would return without that.
#![expect(clippy::disallowed_types, reason = "answers of a model that calls abridge, of which another answer is made")]

use bytes::Bytes;
use serde_json::{Value, json};

use crate::dialect::in_band::{
    Joiner, Object, OwnCall, Parts, RoundCalls, append, held, is_own_call, number, object, objects, text, write,
};

/// Joins messages.
#[derive(Debug, Default)]
pub(super) struct MessagesJoiner {
    /// The blocks.
    blocks: Parts,
}

impl Joiner for MessagesJoiner {
    fn event(&mut self, whole: &Bytes, data: &[u8]) -> Bytes {
        let Some(mut event) = object(data) else { return whole.clone() };
        let at = number(&event, "index").unwrap_or_default();
        let is_of_block = event.contains_key("index");
        match text(&event, "type") {
            "message_start" => {
                let usage = event.get("message").and_then(|message| message.get("usage")?.as_object());
                self.blocks.billed.now = usage.cloned().unwrap_or_default();
                return if self.blocks.is_later { Bytes::new() } else { whole.clone() };
            }
            "content_block_start" => {
                if let Some(Value::Object(block)) = event.get("content_block") {
                    self.begin(at, block.clone());
                }
            }
            "content_block_delta" => {
                if let (Some(block), Some(Value::Object(delta))) = (self.blocks.now.get_mut(&at), event.get("delta")) {
                    extend(block, delta);
                }
            }
            "message_delta" => self.blocks.billed.note(&event),
            "error" => self.blocks.calls_others = true,
            _ => {}
        }
        if !self.is_changed() {
            return whole.clone();
        }
        if is_of_block {
            if self.blocks.hidden.contains(&at) {
                return Bytes::new();
            }
            event.insert("index".to_owned(), self.blocks.place(at).into());
        }
        if text(&event, "type") == "message_delta" {
            self.tell_usage(&mut event);
        }
        if self.blocks.calls_own && matches!(text(&event, "type"), "message_delta" | "message_stop") {
            self.blocks.end.push(event);
            return Bytes::new();
        }
        held(&[event], false).into()
    }

    fn whole(&mut self, answer: &[u8]) -> bool {
        self.blocks.is_whole = true;
        let Some(mut answer) = object(answer) else { return false };
        self.blocks.billed.note(&answer);
        for (at, block) in objects(&mut answer, "content").into_iter().enumerate() {
            self.begin(at as u64, block);
        }
        if !self.is_changed() {
            return false;
        }
        answer.insert("content".to_owned(), self.blocks.shown().collect());
        self.tell_usage(&mut answer);
        self.blocks.end = vec![answer];
        true
    }

    fn calls(&self) -> RoundCalls {
        let mut calls = RoundCalls::default();
        for block in self.blocks.now.values() {
            if is_own_call(block) {
                let (name, json) = (text(block, "name").to_owned(), write(&finished(block.clone())).into());
                calls.own.push(OwnCall { name, arguments: arguments(block), json, n_before: calls.others.len() });
            } else if text(block, "type") == "tool_use" {
                calls.others.push(text(block, "id").to_owned());
            } else if text(block, "type") == "text" {
                calls.said += text(block, "text");
            }
        }
        self.blocks.settled(calls)
    }

    fn results(&self, texts: &[String]) -> Vec<Bytes> {
        self.blocks.results(
            texts,
            |call, result| json!({"type": "tool_result", "tool_use_id": text(call, "id"), "content": result}),
        )
    }

    fn exchange(&self, texts: &[String]) -> Vec<Bytes> {
        let is_empty_text = |block: &Object| text(block, "type") == "text" && text(block, "text").is_empty();
        let blocks = self.blocks.now.values().cloned().map(finished).filter(|block| !is_empty_text(block));
        let said = json!({"role": "assistant", "content": blocks.map(Value::Object).collect::<Vec<_>>()});
        let results = self.results(texts).join(&b","[..]);
        let read = [br#"{"role":"user","content":["#, &*results, b"]}"].concat();
        vec![said.to_string().into(), read.into()]
    }

    fn next_round(&mut self) {
        self.blocks.next_round();
    }

    fn rest(&mut self) -> Bytes {
        held(&std::mem::take(&mut self.blocks.end), self.blocks.is_whole).into()
    }

    fn close(&mut self) -> Option<Bytes> {
        for end in &mut self.blocks.end {
            let at = if self.blocks.is_whole { Some(end) } else { end.get_mut("delta").and_then(Value::as_object_mut) };
            at.map(|at| at.insert("stop_reason".to_owned(), "end_turn".into()));
        }
        (self.blocks.shown().next().is_some() && !self.blocks.calls_others).then(|| self.rest())
    }

    fn is_changed(&self) -> bool {
        self.blocks.is_changed()
    }
}

impl MessagesJoiner {
    /// Adds a block, which begins or is whole.
    fn begin(&mut self, at: u64, block: Object) {
        let kind = text(&block, "type");
        if is_own_call(&block) {
            self.blocks.calls_own = true;
            self.blocks.hidden.insert(at);
        } else if kind == "tool_use" {
            self.blocks.calls_others = true;
        } else if self.blocks.is_later && matches!(kind, "thinking" | "redacted_thinking") {
            self.blocks.hidden.insert(at);
        }
        self.blocks.now.insert(at, block);
    }

    /// Writes the usage, as far as it is known, with what all rounds are billed.
    fn tell_usage(&self, of: &mut Object) {
        of.insert("usage".to_owned(), self.blocks.billed.now.clone().into());
        self.blocks.billed.tell(of);
    }
}

/// The member that holds the arguments of a call while they come in pieces.
const PIECES: &str = "partial_json";

fn arguments(call: &Object) -> String {
    match text(call, PIECES) {
        "" => call.get("input").map(Value::to_string).unwrap_or_default(),
        pieces => pieces.to_owned(),
    }
}

/// Adds a piece to a block.
fn extend(block: &mut Object, delta: &Object) {
    for (key, more) in delta.iter().filter(|(key, _)| *key != "type") {
        match (key.as_str(), more) {
            ("citation", citation) => match block.get_mut("citations") {
                Some(Value::Array(citations)) => citations.push(citation.clone()),
                _ => drop(block.insert("citations".to_owned(), json!([citation]))),
            },
            (key, Value::String(more)) => append(block, key, more),
            (key, more) => drop(block.insert(key.to_owned(), more.clone())),
        }
    }
}

/// A block as a request has it.
fn finished(mut block: Object) -> Object {
    if let Some(Value::String(pieces)) = block.remove(PIECES) {
        block.insert("input".to_owned(), serde_json::from_str(&pieces).unwrap_or_else(|_| json!({})));
    }
    block
}
