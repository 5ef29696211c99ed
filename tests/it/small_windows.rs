//! Sessions at small context windows, of agents with a shell and without: every turn is answered, nothing that goes upstream
//! exceeds the window, and what was taken out is read back to the byte by the agent's own means.
#![expect(clippy::disallowed_types, reason = "what upstreams and clients say, made and read here")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::pin::pin;

use serde_json::{Value, json};
use tiktoken_rs::o200k_base_singleton;

use crate::support::rounds::{Act, Api, TOOL};
use crate::support::summarizer::INSTRUCTION;
use crate::support::{Scene, post, request};

/// The answer that each request asks for, at most.
const MAX_TOKENS: usize = 256;

/// The calls of a session, and after how many the user speaks.
const N_CALLS: usize = 12;
const TURN: usize = 5;

/// A session, as the client and the upstream have it.
struct Session {
    api: Api,
    window: usize,
    scene: Scene,
    elements: Vec<Value>,
    tool: &'static str,
    /// The next answer of the model; at the end, that it is done.
    plays: VecDeque<Vec<Act>>,
    /// The bodies that went upstream.
    sent: Vec<String>,
    /// The requests above the window, in tokens.
    beyond: Vec<usize>,
}

/// A result of this length that no other has a line of.
fn output(seed: usize, length: usize) -> String {
    let mut text = String::new();
    for line in 0.. {
        if text.len() >= length {
            break;
        }
        writeln!(text, "{seed}.{line}: {:x} what this line of the output has to say", (seed * 7919 + line) * 104_729)
            .unwrap();
    }
    text
}

/// The tokens of all texts in a body, and four for each element.
fn tokens(api: Api, body: &Value) -> usize {
    fn of(value: &Value) -> usize {
        match value {
            Value::String(text) => o200k_base_singleton().encode_ordinary(text).len(),
            Value::Array(values) => values.iter().map(of).sum(),
            Value::Object(fields) => fields.iter().filter(|(key, _)| *key != "model").map(|(_, value)| of(value)).sum(),
            _ => 0,
        }
    }
    of(body) + 4 * body[api.elements()].as_array().map_or(0, Vec::len)
}

impl Session {
    async fn new(api: Api, window: usize, has_shell: bool) -> Self {
        let scene = Scene::with(&format!(
            "tokens.ask_upstream = false\nsummarize.instruction = \"{INSTRUCTION}\"\n[[models]]\nmatch = \"tiny\"\ncontext_window = {window}"
        ))
        .await;
        let elements = vec![json!({"role": "user", "content": "Find the fault in the build."})];
        let tool = if has_shell { "bash" } else { "query" };
        Self { api, window, scene, elements, tool, plays: VecDeque::new(), sent: Vec::new(), beyond: Vec::new() }
    }

    /// Sends the history; the answer of the last round.
    async fn ask(&mut self) -> Value {
        let schema = json!({"type": "object", "properties": {"command": {"type": "string"}}});
        let tool = match self.api {
            Api::Chat => json!({"type": "function", "function": {"name": self.tool, "parameters": schema}}),
            Api::Messages => json!({"name": self.tool, "input_schema": schema}),
            Api::Responses => json!({"type": "function", "name": self.tool, "parameters": schema}),
        };
        let limit = if self.api == Api::Responses { "max_output_tokens" } else { "max_tokens" };
        let mut body = json!({"model": "tiny", limit: MAX_TOKENS, "tools": [tool]});
        body[self.api.elements()] = self.elements.clone().into();
        let Scene { abridge, upstream, client } = &mut self.scene;
        *client = abridge.connect().await;
        client.send(post(self.api.path(), &["content-type: application/json"], body.to_string())).await;
        let mut reply = pin!(client.reply());
        loop {
            tokio::select! {
                reply = &mut reply => {
                    assert_eq!(reply.head.status(), 200, "{:?}", reply.body);
                    return serde_json::from_slice(&reply.body).unwrap();
                }
                mut call = upstream.request() => {
                    let sent = String::from_utf8(call.bytes().await.to_vec()).unwrap();
                    let json: Value = serde_json::from_str(&sent).unwrap();
                    let n = tokens(self.api, &json);
                    if n + MAX_TOKENS > self.window {
                        self.beyond.push(n);
                    }
                    let done = vec![Act::Say("That is what I have found so far.")];
                    let acts = if sent.contains(INSTRUCTION) {
                        vec![Act::Say("<summary>The build was looked at, and its outputs were read one after the other.</summary>")]
                    } else {
                        self.plays.pop_front().unwrap_or(done)
                    };
                    self.sent.push(sent);
                    let stream = json["stream"] == true;
                    let kind = if stream { "content-type: text/event-stream" } else { "content-type: application/json" };
                    call.answer("200 OK", &[kind, "connection: close"], self.api.answer(1, &acts, stream)).await;
                }
            }
        }
    }

    /// The model calls the tool of the client, which answers with this text.
    async fn round(&mut self, n: usize, text: &str) {
        let id: &'static str = format!("call{n:05}").leak();
        let acts = vec![
            Act::Say("I look at the next one."),
            Act::Call(id, self.tool, json!({"command": format!("look {n}")})),
        ];
        self.plays.push_back(acts.clone());
        self.ask().await;
        self.elements.extend(self.api.turn(&acts, text));
    }

    /// The model answers, and the user goes on.
    async fn turn(&mut self) {
        self.ask().await;
        let acts = [Act::Say("That is what I have found so far.")];
        self.elements.extend(self.api.turn(&acts, "").into_iter().filter(|turn| turn["content"] != json!([])));
        self.elements.push(json!({"role": "user", "content": "And now the next part, please."}));
    }

    /// The handles that the model has seen, each with the way that is named with it.
    fn handles(&self) -> BTreeMap<String, bool> {
        let mut handles = BTreeMap::new();
        for (by_tool, begin) in [(false, "/abridge/recall/".to_owned()), (true, format!("{TOOL} (handle="))] {
            for sent in &self.sent {
                let found =
                    sent.match_indices(&begin).filter_map(|(at, _)| sent.get(at + begin.len()..at + begin.len() + 26));
                handles.extend(found.map(|handle| (handle.to_owned(), by_tool)));
            }
        }
        handles
    }

    /// The model calls the tool that abridge adds; its result.
    async fn call(&mut self, arguments: Value) -> String {
        self.plays = VecDeque::from([vec![Act::Call("own1", TOOL, arguments)]]);
        self.ask().await;
        let last: Value = serde_json::from_str(self.sent.last().unwrap()).unwrap();
        result_of(self.api, &last, "own1")
    }

    /// Reads a text as the agent does: with its shell, or by calls of the tool that abridge adds.
    async fn read(&mut self, handle: &str, by_tool: bool) -> String {
        // So many bytes at once.
        let limit = self.window;
        let mut text = String::new();
        loop {
            let is_last;
            let page = if by_tool {
                let page = self.call(json!({"handle": handle, "offset": text.len(), "limit": limit})).await;
                let (read, place) = page.rsplit_once("\n[bytes ").unwrap_or((&page, "0-0 of 0"));
                let (end, size) = place.trim_end_matches(']').rsplit_once(" of ").unwrap();
                is_last = end.ends_with(&format!("-{size}"));
                read.to_owned()
            } else {
                let target = format!("/abridge/recall/{handle}?offset={}&limit={limit}", text.len());
                self.scene.client = self.scene.abridge.connect().await;
                self.scene.client.send(request("GET", &target, &[])).await;
                let reply = self.scene.client.reply().await;
                assert_eq!(reply.head.status(), 200);
                is_last = reply.body.len() < limit;
                String::from_utf8(reply.body.to_vec()).unwrap()
            };
            text.push_str(&page);
            if is_last {
                return text;
            }
        }
    }
}

/// The text of the result of a call.
fn result_of(api: Api, body: &Value, id: &str) -> String {
    let elements = body[api.elements()].as_array().unwrap();
    let inner = elements.iter().flat_map(|element| element["content"].as_array().into_iter().flatten());
    let is_of = |entry: &&Value| ["tool_call_id", "tool_use_id", "call_id"].iter().any(|key| entry[*key] == id);
    let result = elements.iter().chain(inner).rfind(is_of).unwrap();
    let content = if api == Api::Responses { &result["output"] } else { &result["content"] };
    content.as_str().or(content[0]["text"].as_str()).unwrap().to_owned()
}

/// Plays a session, and says what was wrong with it.
async fn play(api: Api, window: usize, has_shell: bool) -> Vec<String> {
    let mut session = Session::new(api, window, has_shell).await;
    let outputs: Vec<_> = (0..N_CALLS).map(|n| output(n, [300, window, window * 6, 900, window * 2][n % 5])).collect();
    for (n, text) in outputs.iter().enumerate() {
        session.round(n, text).await;
        if n % TURN == TURN - 1 {
            session.turn().await;
        }
    }
    session.ask().await;
    let last = session.sent.last().unwrap().clone();
    let mut wrong = Vec::new();
    let mut read = BTreeSet::new();
    for (handle, by_tool) in session.handles() {
        if by_tool == has_shell {
            wrong.push(format!("{handle} is not named for this agent"));
        }
        read.insert(session.read(&handle, by_tool).await);
        if by_tool {
            session.call(json!({"handle": handle})).await;
        }
    }
    for (n, text) in outputs.iter().enumerate() {
        let json = serde_json::to_string(text).unwrap();
        if !last.contains(json.trim_matches('"'))
            && !read.iter().any(|read| read.contains(text.as_str()) || read.contains(json.trim_matches('"')))
        {
            wrong.push(format!("output {n} of {} bytes is lost", text.len()));
        }
    }
    if !session.beyond.is_empty() {
        let (n, beyond) = (session.sent.len(), &session.beyond);
        wrong.push(format!("{} of {n} requests are beyond the window: {beyond:?}", beyond.len()));
    }
    wrong
}

#[tokio::test]
async fn sessions_at_small_windows_are_answered_fit_and_lose_nothing() {
    let mut wrong = Vec::new();
    for api in [Api::Chat, Api::Messages, Api::Responses] {
        for window in [4096, 8192, 16_384, 32_768] {
            for has_shell in [true, false] {
                let found = play(api, window, has_shell).await;
                wrong.extend(found.into_iter().map(|what| format!("{api:?}, {window}, shell {has_shell}: {what}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
