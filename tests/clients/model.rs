//! A scripted model for coding agents, in OpenAI Responses and Anthropic Messages.
//!
//! It has the agent list things with its shell, read one cleared listing back, and say that it is done. A request in which a
//! call has no result, or a result no call, is refused, as strict APIs do.
#![expect(clippy::disallowed_types, reason = "an upstream that shares no code with what it judges")]

use std::collections::HashSet;
use std::iter;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::hosts::{FRAMES, frame};
use crate::it::support::{Wire, upstream};

/// How the paths of Messages end at Anthropic and Foundry, Vertex AI, and Bedrock.
const MESSAGES: [&str; 4] = ["/v1/messages", ":streamRawPredict", "/invoke", FRAMED];
const FRAMED: &str = "/invoke-with-response-stream";

/// The last words of the model.
pub(crate) const DONE: &str = "All of it is done.";

/// The user's words when a session goes on.
pub(crate) const GO_ON: &str = "Go on with what was interrupted.";

const LINES: usize = 500;

/// The tools that it calls: shells, and what the examples have instead.
const SHELLS: [&str; 4] = ["exec_command", "Bash", "bash", READER];

/// The tool of the examples.
pub(crate) const READER: &str = "read_file";

/// The instructions to the model of one session, and the requests that it has seen.
pub(crate) struct Model {
    /// How many listings it asks for.
    listings: usize,
    /// The query that it adds to the URL of a placeholder.
    query: String,
    /// A URL that it then has the shell wait for; without one it has a cleared listing read.
    held_url: Option<String>,
    seen: Mutex<Vec<Seen>>,
    refusals: Mutex<Vec<String>>,
    /// Whether the shell waits for `held_url`.
    pub(crate) held: watch::Sender<bool>,
    /// Whether the shell has waited long enough.
    pub(crate) released: watch::Sender<bool>,
}

/// One request of an agent that can call its shell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The length of the body.
    pub(crate) bytes: usize,
    /// Calls, by id, with their arguments as they are written in JSON.
    pub(crate) calls: Vec<(String, String)>,
    /// The texts of the results, with the ids of their calls.
    pub(crate) results: Vec<(String, String)>,
    /// For each thinking or reasoning, how many results precede it.
    pub(crate) thinking: Vec<usize>,
    /// Whether it has [`GO_ON`].
    resumed: bool,
    pub(crate) shell: Option<String>,
    /// The model that is asked.
    pub(crate) model: String,
    /// Whether the answer is to come in events.
    stream: bool,
    /// Whether they are to come in frames of AWS.
    is_framed: bool,
}

/// An answer of the model.
pub(crate) enum Step<'a> {
    /// Calls of the shell with this name, or of the tool that reads payloads, one for each line.
    Call { shell: &'a str, commands: String },
    /// A text, which ends the turn.
    Say(&'a str),
}

/// Which API is spoken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Api {
    Responses,
    Messages,
}

/// The command that writes a listing of some 20 KB.
fn list(number: usize) -> String {
    format!("seq -f 'listing {number}, line %03g: what a tool writes' 1 {LINES}")
}

/// What that command writes, without the end of its last line.
pub(crate) fn listing(number: usize) -> String {
    let line = |line| format!("listing {number}, line {line:03}: what a tool writes");
    (1..=LINES).map(line).collect::<Vec<_>>().join("\n")
}

/// The URL in the placeholder of a cleared result, or the tool and the handle.
pub(crate) fn recall_target(text: &str) -> Option<(Option<&str>, &str)> {
    let (_, behind) = text.strip_prefix("[Cleared: ")?.split_once("Read it with ")?;
    if let Some(url) = behind.strip_prefix("GET ") {
        return Some((None, url.split_once(' ')?.0));
    }
    let (tool, behind) = behind.split_once(" (handle=")?;
    Some((Some(tool), behind.split_once(';')?.0))
}

// === impl Model ===

impl Model {
    pub(crate) fn new(listings: usize, query: String, held_url: Option<String>) -> Self {
        Self {
            listings,
            query,
            held_url,
            seen: Mutex::default(),
            refusals: Mutex::default(),
            held: watch::Sender::default(),
            released: watch::Sender::default(),
        }
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why requests were refused.
    pub(crate) fn refusals(&self) -> Vec<String> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Answers the requests of one connection.
    pub(crate) async fn converse(&self, mut wire: Wire) {
        while let Some(head) = wire.next_head().await {
            let mut body = wire.body(&head).await.bytes;
            if head.is("content-encoding", "zstd") {
                body = zstd::decode_all(&*body).unwrap().into();
            }
            let path = head.target().split('?').next().unwrap_or_default();
            match (head.start.split(' ').next().unwrap_or_default(), path) {
                ("POST", "/v1/responses") => self.answer(&mut wire, Api::Responses, &body, false).await,
                ("POST", path) if MESSAGES.iter().any(|end| path.ends_with(end)) => {
                    self.answer(&mut wire, Api::Messages, &body, path.ends_with(FRAMED)).await;
                }
                ("POST", path)
                    if path.ends_with("/messages/count_tokens") || path.ends_with("/count-tokens:rawPredict") =>
                {
                    json_body(&mut wire, &json!({ "input_tokens": 1 })).await;
                }
                ("GET", "/v1/models") => json_body(&mut wire, &json!({ "object": "list", "data": [] })).await,
                ("GET", "/held") => {
                    self.held.send_replace(true);
                    self.released.subscribe().wait_for(|released| *released).await.ok();
                    return;
                }
                ("HEAD", _) => wire.send(upstream::head("200 OK", &["content-length: 0"])).await,
                _ => wire.send(upstream::whole("404 Not Found", &["content-type: application/json"], "{}")).await,
            }
        }
    }

    async fn answer(&self, wire: &mut Wire, api: Api, body: &[u8], is_framed: bool) {
        let seen = match Seen::read(api, body) {
            Ok(seen) => Seen { is_framed, ..seen },
            Err(wrong) => {
                let error = json!({ "type": "error", "error": { "type": "invalid_request_error", "message": wrong } });
                let fields = ["content-type: application/json"];
                wire.send(upstream::whole("400 Bad Request", &fields, error.to_string())).await;
                self.refusals.lock().unwrap_or_else(PoisonError::into_inner).push(wrong);
                return;
            }
        };
        let step = self.step(&seen);
        say(wire, api, &step, &seen).await;
        // Without a shell it is a side task of the agent, such as a title.
        if seen.shell.is_some() {
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        }
    }

    fn step<'a>(&self, seen: &'a Seen) -> Step<'a> {
        let Some(shell) = seen.shell.as_deref() else { return Step::Say("A title") };
        let n_results = seen.results.len();
        let commands = match &self.held_url {
            _ if seen.resumed || n_results > self.listings => return Step::Say(DONE),
            _ if n_results < self.listings => list(n_results + 1),
            Some(held) => format!("echo before\ncurl -s {held}"),
            None => match seen.results.iter().find_map(|(_, text)| recall_target(text)) {
                Some((None, url)) => format!("curl -s '{url}{}'", self.query),
                Some((Some(tool), handle)) => return Step::Call { shell: tool, commands: handle.to_owned() },
                None => return Step::Say("Nothing was cleared."),
            },
        };
        Step::Call { shell, commands }
    }
}

// === impl Seen ===

impl Seen {
    /// Reads a request, and says what a strict API would refuse.
    pub(crate) fn read(api: Api, body: &[u8]) -> Result<Self, String> {
        let request: Value = serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?;
        let (model, stream) = (text(&request["model"]), request["stream"] == true);
        let mut seen = Self { bytes: body.len(), model, stream, ..Self::default() };
        let tools = request["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str());
        let tools: Vec<_> = tools.collect();
        seen.shell = SHELLS.into_iter().find(|name| tools.contains(name)).map(str::to_owned);
        match api {
            Api::Responses => seen.items(&request["input"])?,
            Api::Messages => seen.messages(&request["messages"])?,
        }
        Ok(seen)
    }

    fn items(&mut self, input: &Value) -> Result<(), String> {
        let mut open = HashSet::new();
        for item in input.as_array().into_iter().flatten() {
            match item["type"].as_str().unwrap_or("message") {
                "function_call" => self.call(&mut open, text(&item["call_id"]), text(&item["arguments"])),
                "function_call_output" => self.result(&mut open, text(&item["call_id"]), text(&item["output"]))?,
                "reasoning" => self.thinking.push(self.results.len()),
                "message" if item["role"] == "user" => self.resumed |= text(&item["content"]).contains(GO_ON),
                _ => {}
            }
        }
        unanswered(&open)
    }

    fn messages(&mut self, messages: &Value) -> Result<(), String> {
        let mut open = HashSet::new();
        for message in messages.as_array().into_iter().flatten() {
            let of_model = message["role"] == "assistant";
            for block in message["content"].as_array().into_iter().flatten() {
                match block["type"].as_str().unwrap_or_default() {
                    "tool_use" if of_model => {
                        self.call(&mut open, text(&block["id"]), block["input"].to_string());
                    }
                    "thinking" => self.thinking.push(self.results.len()),
                    // The results of a turn are in the message after it.
                    _ if of_model && !open.is_empty() => unanswered(&open)?,
                    "tool_result" => self.result(&mut open, text(&block["tool_use_id"]), text(&block["content"]))?,
                    _ => {}
                }
            }
            self.resumed |= !of_model && text(&message["content"]).contains(GO_ON);
        }
        unanswered(&open)
    }

    fn call(&mut self, open: &mut HashSet<String>, id: String, arguments: String) {
        open.insert(id.clone());
        self.calls.push((id, arguments));
    }

    fn result(&mut self, open: &mut HashSet<String>, id: String, text: String) -> Result<(), String> {
        if !open.remove(&id) {
            return Err(format!("a result without a call: {id}"));
        }
        self.results.push((id, text));
        Ok(())
    }
}

fn unanswered(open: &HashSet<String>) -> Result<(), String> {
    if open.is_empty() { Ok(()) } else { Err(format!("calls without a result: {open:?}")) }
}

/// A text, or the texts of an array of parts.
fn text(content: &Value) -> String {
    let of_part = |part: &Value| part["text"].as_str().unwrap_or_default().to_owned();
    let of_parts = || content.as_array().into_iter().flatten().map(of_part).collect();
    content.as_str().map_or_else(of_parts, str::to_owned)
}

// === answers ===

/// Answers a request in the form that it asks for.
pub(crate) async fn say(wire: &mut Wire, api: Api, step: &Step<'_>, seen: &Seen) {
    let (whole, events) = match api {
        Api::Responses => response(step, &seen.model),
        Api::Messages => message(step, &seen.model),
    };
    if !seen.stream && !seen.is_framed {
        return json_body(wire, &whole).await;
    }
    let kind = if seen.is_framed { FRAMES } else { "content-type: text/event-stream" };
    let fields = [kind, "x-request-id: req_1", "transfer-encoding: chunked"];
    wire.send(upstream::head("200 OK", &fields)).await;
    for event in events {
        wire.send_chunk(if seen.is_framed {
            frame(&event.to_string())
        } else {
            format!("event: {}\ndata: {event}\n\n", text(&event["type"])).into_bytes()
        })
        .await;
    }
    wire.send("0\r\n\r\n").await;
}

async fn json_body(wire: &mut Wire, body: &Value) {
    let fields = ["content-type: application/json", "x-request-id: req_1"];
    wire.send(upstream::whole("200 OK", &fields, body.to_string())).await;
}

/// The arguments of a call of a shell, which takes its command as `key`, or of the tool of the examples.
fn arguments(tool: &str, key: &str, command: &str) -> Value {
    match (tool, key) {
        (READER, _) => json!({ "path": command }),
        (tool, _) if tool.ends_with("recall") => json!({ "handle": command, "offset": 0, "limit": 60_000 }),
        (_, "cmd") => json!({ "cmd": command }),
        _ => json!({ "command": command, "description": "Look" }),
    }
}

fn unique(kind: &str) -> String {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    format!("{kind}_{:06}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// An answer of the Responses API, and its events.
fn response(step: &Step<'_>, model: &str) -> (Value, Vec<Value>) {
    let said = |text: &str| json!({ "type": "output_text", "text": text, "annotations": [] });
    let output = match step {
        Step::Call { shell, commands } => {
            let reasoning = json!({ "type": "reasoning", "id": unique("rs"), "summary": [],
                "encrypted_content": "Z0FB".repeat(100) });
            let (namespace, name) = shell.split_once('.').map_or((None, *shell), |(space, name)| (Some(space), name));
            let call = |command| {
                let mut call = json!({ "type": "function_call", "id": unique("fc"), "call_id": unique("call"),
                    "name": name, "arguments": arguments(shell, "cmd", command).to_string(), "status": "completed" });
                if let Some(namespace) = namespace {
                    call["namespace"] = json!(namespace);
                }
                call
            };
            iter::once(reasoning).chain(commands.lines().map(call)).collect()
        }
        Step::Say(text) => vec![json!({ "type": "message", "id": unique("msg"), "role": "assistant",
            "status": "completed", "content": [said(text)] })],
    };
    let mut whole = json!({ "id": unique("resp"), "object": "response", "created_at": 1, "status": "in_progress",
        "model": model, "output": [], "parallel_tool_calls": true, "tool_choice": "auto", "tools": [] });
    let mut events = vec![json!({ "type": "response.created", "response": whole })];
    for (index, item) in output.iter().enumerate() {
        let mut opened = item.clone();
        if item["type"] == "message" {
            opened["content"] = json!([]);
        }
        events.push(json!({ "type": "response.output_item.added", "output_index": index, "item": opened }));
        if let Step::Say(text) = step {
            let of = |mut event: Value| {
                event["item_id"] = item["id"].clone();
                event["output_index"] = json!(index);
                event["content_index"] = json!(0);
                event
            };
            events.push(of(json!({ "type": "response.content_part.added", "part": said("") })));
            for piece in text.split_inclusive(' ') {
                events.push(of(json!({ "type": "response.output_text.delta", "delta": piece, "logprobs": [] })));
            }
            events.push(of(json!({ "type": "response.output_text.done", "text": text, "logprobs": [] })));
            events.push(of(json!({ "type": "response.content_part.done", "part": said(text) })));
        }
        events.push(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
    }
    whole["status"] = json!("completed");
    whole["output"] = json!(output);
    whole["usage"] = json!({ "input_tokens": 3, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": 2,
        "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 5 });
    events.push(json!({ "type": "response.completed", "response": whole }));
    for (number, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = json!(number);
    }
    (whole, events)
}

/// An answer of the Messages API, and its events.
fn message(step: &Step<'_>, model: &str) -> (Value, Vec<Value>) {
    let (content, stop_reason) = match step {
        Step::Call { shell, commands } => {
            let thinking = json!({ "type": "thinking", "thinking": "What is there?", "signature": "RXJj".repeat(80) });
            let call = |command| {
                json!({ "type": "tool_use", "id": unique("toolu"), "name": shell,
                    "input": arguments(shell, "command", command) })
            };
            (iter::once(thinking).chain(commands.lines().map(call)).collect(), "tool_use")
        }
        Step::Say(text) => (vec![json!({ "type": "text", "text": text })], "end_turn"),
    };
    let usage = json!({ "input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens": 2 });
    let mut whole = json!({ "id": unique("msg"), "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage });
    let mut events = vec![json!({ "type": "message_start", "message": whole })];
    for (index, block) in content.iter().enumerate() {
        let mut opened = block.clone();
        let deltas = match text(&block["type"]).as_str() {
            "tool_use" => {
                opened["input"] = json!({});
                vec![json!({ "type": "input_json_delta", "partial_json": block["input"].to_string() })]
            }
            "thinking" => {
                opened["thinking"] = json!("");
                opened["signature"] = json!("");
                vec![
                    json!({ "type": "thinking_delta", "thinking": block["thinking"] }),
                    json!({ "type": "signature_delta", "signature": block["signature"] }),
                ]
            }
            _ => {
                opened["text"] = json!("");
                let pieces = text(&block["text"]);
                pieces.split_inclusive(' ').map(|piece| json!({ "type": "text_delta", "text": piece })).collect()
            }
        };
        events.push(json!({ "type": "content_block_start", "index": index, "content_block": opened }));
        for delta in deltas {
            events.push(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
        }
        events.push(json!({ "type": "content_block_stop", "index": index }));
    }
    events.push(json!({ "type": "message_delta", "delta": { "stop_reason": stop_reason, "stop_sequence": null },
        "usage": { "output_tokens": 2 } }));
    events.push(json!({ "type": "message_stop" }));
    whole["content"] = json!(content);
    whole["stop_reason"] = json!(stop_reason);
    (whole, events)
}
