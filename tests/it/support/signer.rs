//! An upstream of Anthropic Messages that signs thinking over all that it was made after, and refuses what was signed
//! over something else.
#![expect(clippy::disallowed_types, reason = "a judge that shares no code with what it judges")]

use std::collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher};
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::summarizer::INSTRUCTION;
use super::upstream::{Upstream, whole};
use super::wire::{Head, Wire};

/// The requests it has received, and their faults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) n_requests: usize,
    /// Requests with thinking that was signed over something else.
    pub(crate) wrong: Vec<String>,
    /// Requests whose sequence of messages is not valid.
    pub(crate) invalid: Vec<String>,
    /// The last request of each session.
    pub(crate) last: BTreeMap<String, Value>,
}

pub(crate) struct Signer {
    url: String,
    seen: Arc<Mutex<Seen>>,
    serving: tokio::task::JoinHandle<()>,
}

/// A request is refused as too long from so many bytes on, if the client says so in this field.
pub(crate) const WINDOW: &str = "x-window";
/// Gives no answer but an error of the server.
const FAILS: &str = "x-fails";
pub(crate) const SESSION: &str = "x-session";

impl Signer {
    pub(crate) async fn start() -> Self {
        let mut upstream = Upstream::start().await;
        let url = upstream.url();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let known = Arc::clone(&seen);
        let serving = tokio::spawn(async move {
            while let Some(wire) = upstream.accept().await {
                tokio::spawn(serve(wire, Arc::clone(&known)));
            }
        });
        Self { url, seen, serving }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    /// The last request of a session.
    pub(crate) fn last(&self, session: &str) -> Value {
        self.seen.lock().unwrap().last.get(session).cloned().unwrap_or_default()
    }
}

impl Drop for Signer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Signs the thinking of a request that does not go through abridge.
pub(crate) fn sign(request: &Value) -> String {
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    signature(request, &messages)
}

/// The places of thinking that was signed over something else.
fn mismatches(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for (n, message) in messages.iter().enumerate().filter(|(_, message)| message["role"] == "assistant") {
        let expected = signature(request, &messages[..n]);
        let thinking = message["content"].as_array().into_iter().flatten().filter(|block| block["type"] == "thinking");
        found.extend(thinking.filter(|block| block["signature"] != expected).map(|_| format!("messages.{n}")));
    }
    found
}

fn signature(request: &Value, messages: &[Value]) -> String {
    let mut hasher = DefaultHasher::new();
    let read: Vec<_> = messages.iter().map(unmarked).collect();
    (unmarked(&request["system"]).to_string(), unmarked(&request["tools"]).to_string()).hash(&mut hasher);
    Value::from(read).to_string().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn unmarked(value: &Value) -> Value {
    match value {
        Value::Array(entries) => entries.iter().map(unmarked).collect(),
        Value::Object(members) => members
            .iter()
            .filter(|(key, _)| *key != "cache_control")
            .map(|(key, value)| (key.clone(), unmarked(value)))
            .collect(),
        other => other.clone(),
    }
}

/// The turns of a request, each with its role and its blocks: the API combines consecutive messages of one role.
fn turns(request: &Value) -> Vec<(&str, Vec<Value>)> {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in request["messages"].as_array().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or_default();
        let blocks = message["content"].as_array().cloned().unwrap_or_else(|| vec![message["content"].clone()]);
        match turns.last_mut() {
            Some((last, said)) if *last == role => said.extend(blocks),
            _ => turns.push((role, blocks)),
        }
    }
    turns
}

/// Whether each call has its results at the beginning of the turn after it, and no result is without a call. A system message
/// follows the user.
pub(crate) fn fault(request: &Value) -> Option<String> {
    let mut open: BTreeSet<String> = BTreeSet::new();
    let mut before = "";
    for (n, (role, blocks)) in turns(request).into_iter().enumerate() {
        let ids = |kind: &str, key: &str| -> BTreeSet<String> {
            let of = blocks.iter().filter(|block| block["type"] == kind);
            of.map(|block| block[key].as_str().unwrap_or_default().to_owned()).collect()
        };
        let results = ids("tool_result", "tool_use_id");
        let is_sorted = blocks.is_sorted_by_key(|block| block["type"] != "tool_result");
        if results != open || !is_sorted {
            return Some(format!("turn {n}: {results:?} for {open:?}"));
        }
        if role == "system" && before != "user" {
            return Some(format!("turn {n}: a system message after {before:?}"));
        }
        open = if role == "assistant" { ids("tool_use", "id") } else { BTreeSet::new() };
        before = role;
    }
    (!open.is_empty()).then(|| format!("at the end {open:?}"))
}

async fn serve(mut wire: Wire, seen: Arc<Mutex<Seen>>) {
    while let Some(head) = wire.next_head().await {
        let body = wire.body(&head).await.bytes;
        let (status, answer) = answer(&head, &body, &seen);
        if wire.try_send(whole(status, &["content-type: application/json"], answer.to_string())).await.is_err() {
            return;
        }
    }
}

fn answer(head: &Head, body: &[u8], seen: &Mutex<Seen>) -> (&'static str, Value) {
    let refused = |message: &str| {
        let error = json!({"type": "invalid_request_error", "message": message});
        ("400 Bad Request", json!({"type": "error", "error": error}))
    };
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = |content: Value| {
        json!({"id": "m", "type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn",
               "usage": {"input_tokens": body.len() / 4, "output_tokens": 1}})
    };
    if memchr::memmem::find(body, INSTRUCTION.as_bytes()).is_some() {
        let text = "The user asked for much, and much of it was done. What is left is small.";
        return ("200 OK", message(json!([{"type": "text", "text": text}])));
    }
    let session = head.get(SESSION).unwrap_or_default().to_owned();
    let window = head.get(WINDOW).and_then(|window| window.parse::<usize>().ok()).unwrap_or(usize::MAX);
    let mut seen = seen.lock().unwrap();
    seen.n_requests += 1;
    if body.len() > window {
        let (tokens, most) = (body.len() / 4, window / 4);
        return refused(&format!("prompt is too long: {tokens} tokens > {most} maximum"));
    }
    if let Some(fault) = fault(&request) {
        seen.invalid.push(format!("{session}: {fault}"));
        return refused(&format!("tool_use ids were found without tool_result blocks: {fault}"));
    }
    // Of other models, thinking is not bound.
    let is_bound = request["model"] == "claude-opus-5-5";
    let wrong = if is_bound { mismatches(&request) } else { Vec::new() };
    if !wrong.is_empty() {
        seen.wrong.push(format!("{session}: {wrong:?}"));
        return refused(&format!("{}.content.0: Invalid `signature` in `thinking` block", wrong[0]));
    }
    let signature = sign(&request);
    seen.last.insert(session, request);
    if head.get(FAILS).is_some() {
        return (
            "529 Overloaded",
            json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        );
    }
    ("200 OK", message(json!([{"type": "thinking", "thinking": "", "signature": signature}])))
}
