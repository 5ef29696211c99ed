//! Answers in which the model calls the tool that abridge has added: chat completions and their chunks.
#![expect(clippy::disallowed_types, reason = "answers of a model that calls abridge, of which another answer is made")]

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::dialect::in_band::{
    Billed, Joiner, MAX_HELD, Object, OwnCall, RoundCalls, append, held, id, number, object, objects, text, write,
    write_event,
};
use crate::recall::own_tools::{CONTROL, RECALL, is_added};

/// The members of a message that have reasoning in entries, which come in pieces: each goes back to the model as one, and is
/// numbered on for the client.
const REASONING: [&str; 2] = ["reasoning_details", "thinking_blocks"];

/// The separator of the texts of two rounds, which are one text for the client.
const BETWEEN: &str = "\n\n";

/// Joins chat completions.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Default)]
pub(super) struct ChatJoiner {
    /// What all chunks of a completion have: that of the first round.
    common: Object,
    /// How many rounds were before, and whether answers are not streamed.
    n_rounds: usize,
    is_whole: bool,
    /// Whether the stream has said that nothing follows.
    is_done: bool,
    /// The choice of this round: with several the tool is not added.
    choice: Choice,
    /// Whether the round has other calls, or has failed.
    has_others: bool,
    has_failed: bool,
    /// The texts of the rounds before, if they are not at the client yet.
    texts: Vec<String>,
    /// Whether the client has text that the next text is to be set apart from, and any text at all.
    is_apart: bool,
    has_text: bool,
    /// How many entries of each array of reasoning the client has of the rounds before.
    n_details: [u64; REASONING.len()],
    /// The chunks that wait for the rest of the name of a call, and their events.
    held: Vec<(Bytes, Object)>,
    n_held: usize,
    /// What tells the end of a round in which abridge is called, or all of an answer that is not streamed.
    end: Vec<Object>,
    billed: Billed,
}

/// One choice of a round.
#[derive(Debug, Default)]
struct Choice {
    /// The message without its calls, and those.
    message: Object,
    calls: BTreeMap<u64, Object>,
    /// The calls that the upstream's indices mean: some servers number several calls with 0.
    places: BTreeMap<u64, u64>,
    /// Whether it has ended, so that no name goes on.
    is_over: bool,
}

impl Joiner for ChatJoiner {
    fn event(&mut self, event: &Bytes, data: &[u8]) -> Bytes {
        if data == b"[DONE]" {
            self.is_done = true;
            let held = self.release();
            let waits = self.calls_own() && !self.has_failed;
            return if waits { held } else { [held, event.clone()].concat().into() };
        }
        let Some(mut chunk) = object(data) else { return event.clone() };
        let choices = objects(&mut chunk, "choices").into_iter().map(|choice| Value::Object(self.read(choice)));
        let choices = choices.collect();
        chunk.insert("choices".to_owned(), choices);
        let has_failed = has_error(&chunk);
        self.n_held += event.len();
        self.held.push((event.clone(), chunk));
        let waits = !has_failed && self.n_held <= MAX_HELD && self.choice.has_open_name();
        if waits { Bytes::new() } else { self.release() }
    }

    fn whole(&mut self, answer: &[u8]) -> bool {
        self.is_whole = true;
        let Some(mut answer) = object(answer) else { return false };
        self.billed.note(&answer);
        let message = choices_of(&mut answer).next().and_then(|choice| choice.get_mut("message"));
        let Some(Value::Object(message)) = message else { return false };
        self.choice.calls = (0..).zip(objects(message, "tool_calls")).collect();
        self.choice.message.clone_from(message);
        if !self.is_changed() {
            return false;
        }
        let kept: Vec<_> = self.choice.others().map(|(_, call)| Value::Object(call.clone())).collect();
        self.has_others |= !kept.is_empty();
        if !kept.is_empty() {
            message.insert("tool_calls".to_owned(), kept.into());
        }
        self.texts.extend(Some(text(message, "content").to_owned()).filter(|said| !said.is_empty()));
        self.has_text = !self.texts.is_empty();
        if self.has_text {
            message.insert("content".to_owned(), self.texts.join(BETWEEN).into());
        }
        self.billed.tell(&mut answer);
        self.end = vec![answer];
        true
    }

    fn calls(&self) -> RoundCalls {
        let choice = &self.choice;
        let call = |(at, call): (u64, Object)| OwnCall {
            name: function(&call, "name").to_owned(),
            arguments: function(&call, "arguments").to_owned(),
            json: write(&call).into(),
            n_before: choice.others().filter(|(other, _)| *other < at).count(),
        };
        let own: Vec<_> = choice.own_calls(self.n_rounds).filter(|_| !self.end.is_empty()).map(call).collect();
        RoundCalls {
            is_alone: !own.is_empty() && !self.has_others,
            own,
            others: choice.others().map(|(_, call)| id(call, "id")).collect(),
            said: text(&choice.message, "content").to_owned(),
            ids: None,
        }
    }

    fn results(&self, texts: &[String]) -> Vec<Bytes> {
        let results = self.own_calls().zip(texts).map(|(call, result)| {
            json!({"role": "tool", "tool_call_id": call.get("id"), "content": result}).to_string().into()
        });
        results.collect()
    }

    fn exchange(&self, texts: &[String]) -> Vec<Bytes> {
        let mut message = self.choice.message.clone();
        message.insert("role".to_owned(), "assistant".into());
        message.entry("content").or_insert(Value::Null);
        message.insert("tool_calls".to_owned(), self.own_calls().map(Value::Object).collect());
        std::iter::once(write(&message).into()).chain(self.results(texts)).collect()
    }

    fn next_round(&mut self) {
        self.billed.next_round();
        self.is_apart = self.has_text;
        for (n, key) in self.n_details.iter_mut().zip(REASONING) {
            *n += self.choice.message.get(key).and_then(Value::as_array).map_or(0, Vec::len) as u64;
        }
        self.n_rounds += 1;
        self.choice = Choice::default();
        self.end.clear();
    }

    fn rest(&mut self) -> Bytes {
        let mut rest = Vec::from(self.release());
        let end = std::mem::take(&mut self.end);
        rest.extend(held(&end, self.is_whole));
        if self.is_done && !end.is_empty() {
            rest.extend_from_slice(b"data: [DONE]\n\n");
        }
        rest.into()
    }

    fn close(&mut self) -> Option<Bytes> {
        let first = self.end.iter_mut().filter_map(|chunk| choices_of(chunk).next());
        for choice in first.filter(|choice| is_end(choice)) {
            choice.insert("finish_reason".to_owned(), "stop".into());
        }
        (self.has_text && !self.has_others).then(|| self.rest())
    }

    fn is_changed(&self) -> bool {
        self.n_rounds > 0 || self.calls_own()
    }
}

impl Choice {
    /// The calls of abridge as a request has them, with their places: each has an id.
    fn own_calls(&self, n_rounds: usize) -> impl Iterator<Item = (u64, Object)> {
        self.calls.iter().filter(|(_, call)| is_own(call)).map(move |(at, call)| {
            let mut call = call.clone();
            if id(&call, "id").is_empty() {
                call.insert("id".to_owned(), format!("{}_{n_rounds}_{at}", RECALL.name).into());
            }
            call.entry("type").or_insert_with(|| "function".into());
            (*at, call)
        })
    }

    fn others(&self) -> impl Iterator<Item = (u64, &Object)> {
        self.calls.iter().filter(|(_, call)| !is_own(call)).map(|(at, call)| (*at, call))
    }

    fn calls_own(&self) -> bool {
        self.calls.values().any(is_own)
    }

    /// Adds a piece of a call. Returns the place of the call in the message.
    fn add(&mut self, piece: &Object) -> u64 {
        let at = self.place(piece);
        let call = self.calls.entry(at).or_default();
        for (key, value) in piece.iter().filter(|(_, value)| !value.is_null() && **value != "") {
            match (key.as_str(), call.get_mut(key), value) {
                ("index", ..) => {}
                ("function", Some(Value::Object(of)), Value::Object(more)) => {
                    append(of, "arguments", text(more, "arguments"));
                    if text(more, "name") != text(of, "name") {
                        append(of, "name", text(more, "name"));
                    }
                }
                _ => drop(call.insert(key.clone(), value.clone())),
            }
        }
        at
    }

    /// The place of a call among those of the message. Some servers number them all with 0, or not at all.
    fn place(&mut self, piece: &Object) -> u64 {
        let last = self.calls.keys().next_back().copied();
        let index = number(piece, "index");
        let meant = index.map_or(last, |index| self.places.get(&index).copied());
        if let Some(at) = meant.filter(|at| self.calls.get(at).is_some_and(|call| !is_another(call, piece))) {
            return at;
        }
        let free = index.filter(|index| !self.calls.contains_key(index));
        let at = free.unwrap_or_else(|| last.map_or(0, |last| last + 1));
        self.places.insert(index.unwrap_or(at), at);
        at
    }

    /// Whether the name of a call may go on to be that of a tool of abridge.
    fn has_open_name(&self) -> bool {
        let may_become = |name: &str| [RECALL, CONTROL].iter().any(|tool| tool.name.starts_with(name));
        let is_open = |call: &Object| !call.contains_key("custom") && may_become(function(call, "name"));
        !self.is_over && self.others().any(|(_, call)| is_open(call))
    }
}

/// A member of what a call says of its function.
fn function<'a>(call: &'a Object, key: &str) -> &'a str {
    call.get("function").and_then(Value::as_object).map(|function| text(function, key)).unwrap_or_default()
}

/// Whether a call is of a tool that abridge has added.
fn is_own(call: &Object) -> bool {
    is_added(function(call, "name"))
}

/// Whether a piece begins another call than this one, which has the same index. If ids are missing, a name begins another
/// call once the arguments of this one are complete.
fn is_another(call: &Object, piece: &Object) -> bool {
    let [old, new] = [call, piece].map(|of| id(of, "id"));
    if !old.is_empty() && !new.is_empty() {
        return old != new;
    }
    let [old, new] = [call, piece].map(|of| function(of, "name"));
    let is_whole = || serde_json::from_str::<IgnoredAny>(function(call, "arguments")).is_ok();
    !old.is_empty() && !new.is_empty() && (is_added(old) && old != new || is_whole())
}

impl ChatJoiner {
    fn own_calls(&self) -> impl Iterator<Item = Object> {
        self.choice.own_calls(self.n_rounds).map(|(_, call)| call)
    }

    /// Whether abridge is called in this round.
    fn calls_own(&self) -> bool {
        self.choice.calls_own()
    }

    /// Adds what a choice of a chunk says to the message. Each piece of a call gets the place of its call as `index`.
    fn read(&mut self, mut choice: Object) -> Object {
        let of = &mut self.choice;
        of.is_over |= is_end(&choice);
        let Some(Value::Object(delta)) = choice.get_mut("delta") else { return choice };
        let pieces = objects(delta, "tool_calls");
        merge(&mut of.message, delta);
        let place = |piece: Object| {
            let at = of.add(&piece);
            Value::from(with(piece, "index", at.into()))
        };
        if !pieces.is_empty() {
            delta.insert("tool_calls".to_owned(), pieces.into_iter().map(place).collect());
        }
        choice
    }

    /// Lets the chunks go on that were held back.
    fn release(&mut self) -> Bytes {
        self.n_held = 0;
        let chunks = std::mem::take(&mut self.held).into_iter();
        let mut passed: Vec<Bytes> = chunks.map(|(event, chunk)| self.pass(event, chunk)).collect();
        if passed.len() == 1 { passed.remove(0) } else { passed.concat().into() }
    }

    /// A chunk as the client gets it.
    fn pass(&mut self, event: Bytes, mut chunk: Object) -> Bytes {
        choices_of(&mut chunk).for_each(|choice| self.choice(choice));
        self.billed.note(&chunk);
        if has_error(&chunk) {
            (self.has_others, self.has_failed) = (true, true);
            self.end.clear();
        }
        if self.is_changed() {
            return self.finish_chunk(chunk);
        }
        self.keep_common(&chunk);
        event
    }

    /// Leaves of a choice what the client gets.
    fn choice(&mut self, choice: &mut Object) {
        let is_later = self.n_rounds > 0;
        let of = &self.choice;
        let Some(Value::Object(delta)) = choice.get_mut("delta") else { return };
        let place = |piece: Object| {
            let at = number(&piece, "index").filter(|at| !of.calls.get(at).is_some_and(is_own))?;
            let n_own = of.calls.range(..at).filter(|(_, call)| is_own(call)).count();
            Some(Value::from(with(piece, "index", (at - n_own as u64).into())))
        };
        let kept: Vec<_> = objects(delta, "tool_calls").into_iter().filter_map(place).collect();
        self.has_others |= !kept.is_empty();
        if !kept.is_empty() {
            delta.insert("tool_calls".to_owned(), kept.into());
        }
        if is_later {
            delta.remove("role");
            for (key, before) in REASONING.into_iter().zip(self.n_details) {
                number_on(delta, key, before);
            }
        }
        if let Some(Value::String(said)) = delta.get_mut("content").filter(|said| **said != "") {
            if std::mem::take(&mut self.is_apart) {
                said.insert_str(0, BETWEEN);
            }
            self.has_text = true;
        }
    }

    fn keep_common(&mut self, chunk: &Object) {
        if self.common.is_empty() {
            let common =
                ["id", "created"].into_iter().filter_map(|key| Some((key.to_owned(), chunk.get(key)?.clone())));
            self.common = common.collect();
        }
    }

    /// A chunk as the client gets it. What tells the end of a round is held back.
    fn finish_chunk(&mut self, mut chunk: Object) -> Bytes {
        self.keep_common(&chunk);
        chunk.extend(self.common.clone());
        self.billed.tell(&mut chunk);
        let says = choices_of(&mut chunk).any(|choice| says_something(choice));
        let ends = choices_of(&mut chunk).next().is_none()
            || choices_of(&mut chunk).any(|choice| is_end(choice))
            || chunk.get("usage").is_some_and(Value::is_object);
        let mut events = Vec::new();
        if !ends || self.has_failed || !self.calls_own() {
            if says || ends {
                write_event(&mut events, &chunk);
            }
            return events.into();
        }
        if says {
            let mut said = with(chunk.clone(), "usage", Value::Null);
            choices_of(&mut said).for_each(|choice| drop(choice.insert("finish_reason".to_owned(), Value::Null)));
            write_event(&mut events, &said);
        }
        choices_of(&mut chunk).for_each(|choice| drop(choice.insert("delta".to_owned(), json!({}))));
        self.end.push(chunk);
        events.into()
    }
}

fn with(mut object: Object, key: &str, value: Value) -> Object {
    object.insert(key.to_owned(), value);
    object
}

/// The choices of a chunk or an answer.
fn choices_of(of: &mut Object) -> impl Iterator<Item = &mut Object> {
    let choices = of.get_mut("choices").and_then(Value::as_array_mut).into_iter().flatten();
    choices.filter_map(Value::as_object_mut)
}

fn has_error(chunk: &Object) -> bool {
    chunk.get("error").is_some_and(|error| !error.is_null())
}

/// Whether a choice tells why the model has stopped.
fn is_end(choice: &Object) -> bool {
    choice.get("finish_reason").is_some_and(|reason| !reason.is_null())
}

/// Whether a choice adds something to the message.
fn says_something(choice: &Object) -> bool {
    choice.get("delta").and_then(Value::as_object).is_some_and(|delta| !delta.is_empty())
}

/// Adds what a chunk says to a message: texts go after one another, and so do the entries of arrays.
fn merge(message: &mut Object, delta: &Object) {
    for (key, more) in delta {
        match (message.get_mut(key), more) {
            (_, Value::Null) => {}
            (Some(Value::String(text)), Value::String(more)) if key != "role" => text.push_str(more),
            (Some(Value::Array(entries)), Value::Array(more)) => {
                let mut more = more.iter();
                if REASONING.contains(&key.as_str()) {
                    more.by_ref().for_each(|piece| add_reasoning(entries, piece));
                }
                entries.extend(more.cloned());
            }
            _ => drop(message.insert(key.clone(), more.clone())),
        }
    }
}

/// Adds a piece to the entry of the same number; without numbers, to the last one, up to its signature.
fn add_reasoning(entries: &mut Vec<Value>, piece: &Value) {
    let is_same = |entry: &Value| match (entry.get("index"), piece.get("index")) {
        (None | Some(Value::Null), None | Some(Value::Null)) => {
            entry.get("type") == piece.get("type")
                && entry.get("signature").is_none_or(|signed| signed.as_str() < Some("\0"))
        }
        (old, new) => old == new,
    };
    match (entries.iter_mut().rfind(|entry| is_same(entry)), piece) {
        (Some(Value::Object(entry)), Value::Object(piece)) => {
            for (key, value) in piece.iter().filter(|(_, value)| !value.is_null()) {
                match value {
                    Value::String(more)
                        if matches!(key.as_str(), "text" | "summary" | "data" | "thinking" | "signature") =>
                    {
                        append(entry, key, more);
                    }
                    _ => drop(entry.insert(key.clone(), value.clone())),
                }
            }
        }
        _ => entries.push(piece.clone()),
    }
}

/// Lets the numbers of entries go on behind those of the rounds before.
fn number_on(delta: &mut Object, key: &str, n_before: u64) {
    let entries = delta.get_mut(key).and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(index) = number(entry, "index") {
            entry.insert("index".to_owned(), (n_before + index).into());
        }
    }
}

#[cfg(test)]
mod tests;
