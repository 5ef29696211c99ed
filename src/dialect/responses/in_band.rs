//! Answers in which the model calls the tool that abridge has added: responses, and the events of a streamed one.
//!
//! The client gets the items of all rounds as those of one response. Reasoning that leads to such a call is kept from it, and
//! put back with the call: a server refuses reasoning that is sent back without the item after it. So the events of reasoning
//! are held back until the next item begins.
#![expect(clippy::disallowed_types, reason = "answers of a model that calls abridge, of which another answer is made")]

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::dialect::in_band::{
    Joiner, MAX_HELD, Object, OwnCall, Parts, RoundCalls, is_own_call, number, object, objects, text, write,
    write_event,
};

/// Joins responses.
#[derive(Debug, Default)]
pub(super) struct ResponsesJoiner {
    /// The items.
    items: Parts,
    /// Whether the server keeps no items.
    keeps_nothing: bool,
    /// The reasoning after which no other item has begun, and its events.
    reasoning: BTreeSet<u64>,
    held: Vec<(Bytes, Object)>,
    n_held: usize,
    /// The id that the client has been told at the beginning of a stream, and that of this round.
    id: Option<Value>,
    last_id: Option<Value>,
    /// The number of the next event.
    next_event: u64,
}

impl Joiner for ResponsesJoiner {
    fn event(&mut self, event: &Bytes, data: &[u8]) -> Bytes {
        let Some(of) = object(data) else { return event.clone() };
        let kind = text(&of, "type").to_owned();
        let at = number(&of, "output_index").unwrap_or_default();
        let mut out = Vec::new();
        match kind.as_str() {
            "response.created" | "response.in_progress" | "response.queued" => {
                let response = of.get("response");
                self.keeps_nothing = response.is_some_and(|response| response.get("store") == Some(&json!(false)));
                self.last_id = response.and_then(|response| response.get("id").cloned());
                if self.items.is_later {
                    return Bytes::new();
                }
                self.id = self.last_id.clone();
            }
            "response.output_item.added" | "response.output_item.done" => match of.get("item") {
                Some(Value::Object(item)) if kind.ends_with("added") => self.begin(at, item.clone(), &mut out),
                Some(Value::Object(item)) => drop(self.items.now.insert(at, item.clone())),
                _ => {}
            },
            "response.completed" | "response.incomplete" | "response.failed" => return self.finish(event, of, out),
            _ => {}
        }
        if self.items.hidden.contains(&at) && of.contains_key("output_index") {
            return out.into();
        }
        if !self.reasoning.is_empty() {
            self.n_held += event.len();
            self.held.push((event.clone(), of));
            if self.n_held > MAX_HELD {
                self.release(&mut out);
            }
            return out.into();
        }
        if out.is_empty() && !self.items.is_changed() {
            self.next_event = number(&of, "sequence_number").map_or(self.next_event, |n| n + 1);
            return event.clone();
        }
        self.pass(event, of, &mut out);
        out.into()
    }

    fn whole(&mut self, answer: &[u8]) -> bool {
        self.items.is_whole = true;
        let Some(mut answer) = object(answer) else { return false };
        self.keeps_nothing = answer.get("store") == Some(&json!(false));
        self.last_id = answer.get("id").cloned();
        self.items.calls_others = text(&answer, "status") == "failed";
        for (at, item) in objects(&mut answer, "output").into_iter().enumerate() {
            self.begin(at as u64, item, &mut Vec::new());
        }
        self.items.billed.note(&answer);
        if self.is_alone() {
            self.hide_reasoning();
        }
        if self.items.is_changed() {
            self.join(&mut answer);
            self.items.end = vec![answer];
        }
        self.items.is_changed()
    }

    fn calls(&self) -> RoundCalls {
        let (mut calls, mut hidden) = (RoundCalls::default(), Vec::new());
        let ids = [self.id.as_ref().or(self.last_id.as_ref()), self.last_id.as_ref()];
        calls.ids = Some(ids.map(|id| id.and_then(Value::as_str).unwrap_or_default().to_owned()));
        calls.ids.take_if(|[_, last]| self.keeps_nothing || last.is_empty());
        for (at, item) in &self.items.now {
            if self.items.hidden.contains(at) {
                hidden.extend(sent_back(item.clone(), self.keeps_nothing).map(|item| write(&item)));
            }
            if is_own_call(item) {
                let [name, arguments] = ["name", "arguments"].map(|key| text(item, key).to_owned());
                let json = std::mem::take(&mut hidden).join(&b","[..]).into();
                calls.own.push(OwnCall { name, arguments, json, n_before: calls.others.len() });
            } else if is_client_call(item) {
                calls.others.push(text(item, "call_id").to_owned());
            } else if text(item, "type") == "message" {
                let parts = item.get("content").and_then(Value::as_array).into_iter().flatten();
                calls.said.extend(parts.filter_map(|part| part.get("text")?.as_str()));
            }
        }
        self.items.settled(calls)
    }

    fn results(&self, texts: &[String]) -> Vec<Bytes> {
        self.items.results(
            texts,
            |call, result| json!({"type": "function_call_output", "call_id": text(call, "call_id"), "output": result}),
        )
    }

    fn exchange(&self, texts: &[String]) -> Vec<Bytes> {
        let said = self.items.now.values().filter_map(|item| sent_back(item.clone(), self.keeps_nothing));
        said.map(|item| write(&item).into()).chain(self.results(texts)).collect()
    }

    fn next_round(&mut self) {
        self.items.next_round();
    }

    fn rest(&mut self) -> Bytes {
        let mut out = Vec::new();
        self.release(&mut out);
        for end in std::mem::take(&mut self.items.end) {
            if self.items.is_whole {
                return write(&end).into();
            }
            self.number_and_write(end, &mut out);
        }
        out.into()
    }

    fn close(&mut self) -> Option<Bytes> {
        let says = self.items.shown().next().is_some();
        (says && !self.items.end.is_empty() && !self.items.calls_others).then(|| self.rest())
    }

    fn is_changed(&self) -> bool {
        self.items.is_changed()
    }
}

impl ResponsesJoiner {
    /// Whether the client has nothing to do in this round.
    fn is_alone(&self) -> bool {
        self.items.calls_own && !self.items.calls_others
    }

    /// Adds an item, which begins or is whole. With an item of the client's, what is held goes on.
    fn begin(&mut self, at: u64, item: Object, out: &mut Vec<u8>) {
        let kind = text(&item, "type");
        if is_own_call(&item) {
            self.items.calls_own = true;
            self.items.hidden.insert(at);
            self.hide_reasoning();
        } else if kind == "reasoning" {
            self.reasoning.insert(at);
        } else {
            self.items.calls_others |= is_client_call(&item);
            self.release(out);
        }
        self.items.now.insert(at, item);
    }

    /// Lets the events of reasoning go on.
    fn release(&mut self, out: &mut Vec<u8>) {
        self.reasoning.clear();
        self.n_held = 0;
        for (event, of) in std::mem::take(&mut self.held) {
            self.pass(&event, of, out);
        }
    }

    /// Keeps reasoning from the client after which nothing of the client's own has come.
    fn hide_reasoning(&mut self) {
        self.items.hidden.extend(std::mem::take(&mut self.reasoning));
        self.held.clear();
        self.n_held = 0;
    }

    /// Writes an event as the client gets it.
    fn pass(&mut self, event: &Bytes, mut of: Object, out: &mut Vec<u8>) {
        if !self.items.is_changed() {
            self.next_event = number(&of, "sequence_number").map_or(self.next_event, |n| n + 1);
            return out.extend_from_slice(event);
        }
        if let Some(at) = number(&of, "output_index") {
            of.insert("output_index".to_owned(), self.items.place(at).into());
        }
        self.number_and_write(of, out);
    }

    fn number_and_write(&mut self, mut of: Object, out: &mut Vec<u8>) {
        if of.contains_key("sequence_number") {
            of.insert("sequence_number".to_owned(), self.next_event.into());
            self.next_event += 1;
        }
        write_event(out, &of);
    }

    /// Handles the event that ends a round.
    fn finish(&mut self, event: &Bytes, mut of: Object, mut out: Vec<u8>) -> Bytes {
        self.items.calls_others |= text(&of, "type") == "response.failed";
        if let Some(Value::Object(response)) = of.get("response") {
            self.items.billed.note(response);
        }
        if self.is_alone() {
            self.hide_reasoning();
        } else {
            self.release(&mut out);
        }
        if self.items.is_changed()
            && let Some(Value::Object(response)) = of.get_mut("response")
        {
            self.join(response);
            response.extend(self.id.clone().map(|id| ("id".to_owned(), id)));
        }
        // The end waits until it is kept what the response is continued with.
        if self.items.is_changed() {
            self.items.end = vec![of];
        } else {
            self.pass(event, of, &mut out);
        }
        out.into()
    }

    /// Makes a response that of all rounds.
    fn join(&self, response: &mut Object) {
        response.insert("output".to_owned(), self.items.shown().collect());
        self.items.billed.tell(response);
    }
}

/// Calls that the server answers itself.
const SERVER_CALLS: [&str; 5] =
    ["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"];

fn is_client_call(item: &Object) -> bool {
    let kind = text(item, "type");
    kind.ends_with("_call") && !SERVER_CALLS.contains(&kind)
}

/// An item as a request has it. A server that keeps no items does not know their ids, and reads reasoning only as it was
/// encrypted for the client.
fn sent_back(mut item: Object, keeps_nothing: bool) -> Option<Object> {
    if keeps_nothing {
        if text(&item, "type") == "reasoning" && text(&item, "encrypted_content").is_empty() {
            return None;
        }
        item.remove("id");
    }
    Some(item)
}
