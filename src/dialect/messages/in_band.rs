//! Answers in which the model calls the tool that abridge has added: messages, and the events of a streamed one.
//!
//! The client gets the blocks of all rounds as those of one message. The thinking of later rounds is not among them: it was
//! signed after a call that the client does not have, and would return without that.
#![expect(clippy::disallowed_types, reason = "answers of a model that calls abridge, of which another answer is made")]

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::dialect::in_band::{
    Joiner, Object, OwnCall, Passage, RoundCalls, add, append, held, hidden_before, is_own, number, object, objects,
    tell_all, text, write, write_event,
};

/// Joins messages.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Default)]
pub(super) struct MessagesJoiner {
    /// Whether this is not the first round, and whether answers are not streamed.
    is_later: bool,
    is_whole: bool,
    /// The blocks of this round, and those of them that the client does not get.
    blocks: BTreeMap<u64, Object>,
    hidden: BTreeSet<u64>,
    /// Whether abridge is called, and whether the client is, or the round has failed.
    calls_own: bool,
    calls_others: bool,
    /// How many blocks of earlier rounds the client has; the blocks themselves, if they are not at the client yet.
    n_before: u64,
    before: Vec<Object>,
    /// What tells the end of a round in which abridge is called, or all of an answer that is not streamed.
    end: Vec<Object>,
    /// The tokens that were billed for the rounds before, and for this one.
    billed: Object,
    usage: Object,
}

impl Joiner for MessagesJoiner {
    fn event(&mut self, _: &Bytes, data: &[u8]) -> Passage {
        let Some(mut event) = object(data) else { return Passage::Unchanged };
        let at = number(&event, "index").unwrap_or_default();
        let is_of_block = event.contains_key("index");
        match text(&event, "type") {
            "message_start" => {
                let usage = event.get("message").and_then(|message| message.get("usage")?.as_object());
                self.usage = usage.cloned().unwrap_or_default();
                return if self.is_later { Passage::nothing() } else { Passage::Unchanged };
            }
            "content_block_start" => {
                if let Some(Value::Object(block)) = event.get("content_block") {
                    self.begin(at, block.clone());
                }
            }
            "content_block_delta" => {
                if let (Some(block), Some(Value::Object(delta))) = (self.blocks.get_mut(&at), event.get("delta")) {
                    extend(block, delta);
                }
            }
            "message_delta" => self.note_usage(&event),
            "error" => self.calls_others = true,
            _ => {}
        }
        if !self.is_changed() {
            return Passage::Unchanged;
        }
        if is_of_block {
            if self.hidden.contains(&at) {
                return Passage::nothing();
            }
            event.insert("index".to_owned(), (self.n_before + at - hidden_before(&self.hidden, at)).into());
        }
        if text(&event, "type") == "message_delta" {
            event.insert("usage".to_owned(), self.all_usage().into());
        }
        if self.calls_own && matches!(text(&event, "type"), "message_delta" | "message_stop") {
            self.end.push(event);
            return Passage::nothing();
        }
        let mut events = Vec::new();
        write_event(&mut events, &event);
        Passage::Replaced(events.into())
    }

    fn whole(&mut self, answer: &[u8]) -> bool {
        self.is_whole = true;
        let Some(mut answer) = object(answer) else { return false };
        self.note_usage(&answer);
        for (at, block) in objects(&mut answer, "content").into_iter().enumerate() {
            self.begin(at as u64, block);
        }
        if !self.is_changed() {
            return false;
        }
        let blocks = self.before.iter().cloned().chain(self.shown());
        answer.insert("content".to_owned(), blocks.map(Value::Object).collect());
        answer.insert("usage".to_owned(), self.all_usage().into());
        self.end = vec![answer];
        true
    }

    fn calls(&self) -> Option<RoundCalls> {
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for call in self.blocks.values().filter(|block| text(block, "type") == "tool_use") {
            if is_own_call(call) {
                let json = write(&finished(call.clone())).into();
                own.push(OwnCall { arguments: arguments(call), json, n_before: others.len() });
            } else {
                others.push(text(call, "id").to_owned());
            }
        }
        let is_over = !self.end.is_empty() && self.calls_own;
        is_over.then_some(RoundCalls { own, others, is_alone: !self.calls_others })
    }

    fn results(&self, texts: &[String]) -> Vec<Bytes> {
        let results = self.own_calls().zip(texts).map(|(call, result)| {
            json!({"type": "tool_result", "tool_use_id": text(call, "id"), "content": result}).to_string().into()
        });
        results.collect()
    }

    fn exchange(&self, texts: &[String]) -> Vec<Bytes> {
        let blocks = self.blocks.values().cloned().map(finished).filter(|block| !is_empty_text(block));
        let said = json!({"role": "assistant", "content": blocks.map(Value::Object).collect::<Vec<_>>()});
        let results = self.results(texts).join(&b","[..]);
        let read = [br#"{"role":"user","content":["#, &*results, b"]}"].concat();
        vec![said.to_string().into(), read.into()]
    }

    fn next_round(&mut self) {
        self.n_before += self.blocks.len() as u64 - self.hidden.len() as u64;
        self.before = self.before.iter().cloned().chain(self.shown()).collect();
        add(&mut self.billed, &std::mem::take(&mut self.usage));
        self.is_later = true;
        self.calls_own = false;
        self.blocks.clear();
        self.hidden.clear();
        self.end.clear();
    }

    fn rest(&mut self) -> Bytes {
        held(&std::mem::take(&mut self.end), self.is_whole).into()
    }

    fn close(&mut self) -> Option<Bytes> {
        for end in &mut self.end {
            let at = if self.is_whole { Some(end) } else { end.get_mut("delta").and_then(Value::as_object_mut) };
            at.map(|at| at.insert("stop_reason".to_owned(), "end_turn".into()));
        }
        let says = self.n_before > 0 || self.shown().next().is_some();
        (says && !self.calls_others).then(|| self.rest())
    }

    fn is_changed(&self) -> bool {
        self.is_later || self.calls_own
    }
}

impl MessagesJoiner {
    fn own_calls(&self) -> impl Iterator<Item = &Object> {
        self.blocks.values().filter(|block| is_own_call(block))
    }

    /// Adds a block, which begins or is whole.
    fn begin(&mut self, at: u64, block: Object) {
        let kind = text(&block, "type");
        if is_own_call(&block) {
            self.calls_own = true;
            self.hidden.insert(at);
        } else if kind == "tool_use" {
            self.calls_others = true;
        } else if self.is_later && matches!(kind, "thinking" | "redacted_thinking") {
            self.hidden.insert(at);
        }
        self.blocks.insert(at, block);
    }

    /// The blocks of this round that the client gets.
    fn shown(&self) -> impl Iterator<Item = Object> + '_ {
        let shown = self.blocks.iter().filter(|(at, _)| !self.hidden.contains(at));
        shown.map(|(_, block)| block.clone())
    }

    fn note_usage(&mut self, of: &Object) {
        if let Some(Value::Object(usage)) = of.get("usage") {
            self.usage.extend(usage.iter().filter(|(_, n)| !n.is_null()).map(|(key, n)| (key.clone(), n.clone())));
        }
    }

    /// What all rounds are billed.
    fn all_usage(&self) -> Object {
        let mut usage = self.usage.clone();
        tell_all(&mut usage, &self.billed);
        usage
    }
}

fn is_own_call(block: &Object) -> bool {
    text(block, "type") == "tool_use" && is_own(text(block, "name"))
}

fn is_empty_text(block: &Object) -> bool {
    text(block, "type") == "text" && text(block, "text").is_empty()
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
