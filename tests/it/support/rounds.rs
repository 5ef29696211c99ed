//! Answers of models in each wire format, as upstreams write them round by round and as clients read them.
#![expect(clippy::disallowed_types, reason = "what upstreams and clients say, made and read here")]
#![expect(clippy::string_slice, reason = "ASCII")]

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::offloads::long_text;

/// The tool that abridge adds.
pub(crate) const TOOL: &str = "abridge_recall";

/// One wire format, as a client and an upstream of it write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Api {
    Chat,
    Messages,
    Responses,
}

/// A client's reading of an answer: the words, the calls, and the tokens of request and answer.
pub(crate) type Read = (Vec<String>, Vec<String>, [u64; 2]);

/// An action of the model in one round.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Think(&'static str),
    Say(&'static str),
    /// Calls a tool with these arguments.
    Call(&'static str, &'static str, Value),
}

impl Api {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }

    /// The key of the array of messages or items.
    pub(crate) fn elements(self) -> &'static str {
        if self == Self::Responses { "input" } else { "messages" }
    }

    /// A conversation with three results, the first of which is cleared.
    pub(crate) fn request(self, stream: bool) -> String {
        let results = [long_text(1), "two".to_owned(), "three".to_owned()];
        let mut elements = vec![json!({"role": "user", "content": "go"})];
        for (n, text) in results.iter().enumerate() {
            let id = format!("c{n}");
            elements.extend(match self {
                Self::Chat => [
                    json!({"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": {"name": "query", "arguments": "{}"}}]}),
                    json!({"role": "tool", "tool_call_id": id, "content": text}),
                ],
                Self::Messages => [
                    json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "query", "input": {}}]}),
                    json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]}),
                ],
                Self::Responses => [
                    json!({"type": "function_call", "call_id": id, "name": "query", "arguments": "{}"}),
                    json!({"type": "function_call_output", "call_id": id, "output": text}),
                ],
            });
        }
        let schema = json!({"type": "object", "properties": {}});
        let tool = match self {
            Self::Chat => json!({"type": "function", "function": {"name": "query", "parameters": schema}}),
            Self::Messages => json!({"name": "query", "input_schema": schema}),
            Self::Responses => json!({"type": "function", "name": "query", "parameters": schema}),
        };
        let mut request = json!({"model": "gpt-4o", "max_tokens": 100, "tools": [tool], "stream": stream});
        request[self.elements()] = elements.into();
        request.to_string()
    }

    /// A turn of the model as a client sends it back, with this result for each call.
    pub(crate) fn turn(self, acts: &[Act], result: &str) -> Vec<Value> {
        let ids = acts.iter().filter_map(|act| if let Act::Call(id, ..) = act { Some(*id) } else { None });
        match self {
            Self::Chat => {
                let message = whole(self, 1, acts)["choices"][0]["message"].take();
                let result = |id| json!({"role": "tool", "tool_call_id": id, "content": result});
                std::iter::once(message).chain(ids.map(result)).collect()
            }
            Self::Messages => {
                let results: Vec<_> =
                    ids.map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": result})).collect();
                let message = json!({"role": "assistant", "content": message_blocks(1, acts)});
                vec![message, json!({"role": "user", "content": results})]
            }
            Self::Responses => {
                let result = |id| json!({"type": "function_call_output", "call_id": id, "output": result});
                response_items(1, acts).into_iter().chain(ids.map(result)).collect()
            }
        }
    }

    /// The ids of the calls of a request and of its results, in order.
    pub(crate) fn calls_and_results(self, request: &Value) -> (Vec<String>, Vec<String>) {
        let elements = request[self.elements()].as_array().unwrap();
        let of = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let entries: Vec<Value> = match self {
            Self::Chat => elements
                .iter()
                .flat_map(|of_chat| [of(&of_chat["tool_calls"]), vec![of_chat.clone()]].concat())
                .collect(),
            Self::Messages => elements.iter().flat_map(|message| of(&message["content"])).collect(),
            Self::Responses => elements.clone(),
        };
        let ids = |is: fn(&Value) -> bool, key: &str| {
            entries.iter().filter(|entry| is(entry)).map(|entry| entry[key].as_str().unwrap().to_owned()).collect()
        };
        match self {
            Self::Chat => {
                (ids(|entry| entry["type"] == "function", "id"), ids(|entry| entry["role"] == "tool", "tool_call_id"))
            }
            Self::Messages => (
                ids(|entry| entry["type"] == "tool_use", "id"),
                ids(|entry| entry["type"] == "tool_result", "tool_use_id"),
            ),
            Self::Responses => (
                ids(|entry| entry["type"] == "function_call", "call_id"),
                ids(|entry| entry["type"] == "function_call_output", "call_id"),
            ),
        }
    }

    /// Returns what an upstream answers in round `n`.
    pub(crate) fn answer(self, n: u64, acts: &[Act], stream: bool) -> String {
        let events = match self {
            Self::Chat => chat_events(n, acts),
            Self::Messages => message_events(n, acts),
            Self::Responses => response_events(n, acts),
        };
        if !stream {
            return whole(self, n, acts).to_string();
        }
        let mut text = String::new();
        for event in events {
            if let Some(name) = event["type"].as_str() {
                writeln!(text, "event: {name}").unwrap();
            }
            write!(text, "data: {event}\n\n").unwrap();
        }
        if self == Self::Chat { text + "data: [DONE]\n\n" } else { text }
    }

    /// Reads an answer, and refuses what is not one valid answer.
    pub(crate) fn read(self, body: &[u8], stream: bool) -> Read {
        let body = std::str::from_utf8(body).unwrap();
        assert!(!body.contains(TOOL), "{body}");
        if !stream {
            return read_whole(self, &serde_json::from_str(body).unwrap());
        }
        let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = data.filter_map(|data| serde_json::from_str(data).ok()).collect();
        match self {
            Self::Chat => {
                assert!(body.ends_with("data: [DONE]\n\n") && body.matches("[DONE]").count() == 1, "{body}");
                read_chat(&events)
            }
            Self::Messages => read_messages(&events),
            Self::Responses => read_responses(&events),
        }
    }
}

fn usage(api: Api, n: u64) -> Value {
    match api {
        Api::Chat => {
            json!({"prompt_tokens": 100 * n, "completion_tokens": n, "total_tokens": 101 * n, "prompt_tokens_details": {"cached_tokens": 10 * n}})
        }
        Api::Messages | Api::Responses => json!({"input_tokens": 100 * n, "output_tokens": n}),
    }
}

fn chat_events(n: u64, acts: &[Act]) -> Vec<Value> {
    let chunk = |delta: Value, reason: Value| json!({"id": format!("r{n}"), "object": "chat.completion.chunk", "created": n, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": null});
    let mut events = vec![chunk(json!({"role": "assistant", "content": ""}), Value::Null)];
    let mut n_calls = 0;
    for act in acts {
        match act {
            Act::Think(_) => {}
            Act::Say(text) => {
                let (first, rest) = text.split_at(2);
                events.extend([first, rest].map(|text| chunk(json!({"content": text}), Value::Null)));
            }
            Act::Call(id, name, arguments) => {
                let call = json!({"index": n_calls, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
                events.push(chunk(json!({"tool_calls": [call]}), Value::Null));
                let arguments = arguments.to_string();
                for part in [&arguments[..1], &arguments[1..]] {
                    let piece = json!({"index": n_calls, "function": {"arguments": part}});
                    events.push(chunk(json!({"tool_calls": [piece]}), Value::Null));
                }
                n_calls += 1;
            }
        }
    }
    events.push(chunk(json!({}), if n_calls > 0 { "tool_calls" } else { "stop" }.into()));
    events.push(json!({"id": format!("r{n}"), "object": "chat.completion.chunk", "created": n, "model": "m", "choices": [], "usage": usage(Api::Chat, n)}));
    events
}

fn message_blocks(n: u64, acts: &[Act]) -> Vec<Value> {
    let block = |act: &Act| match act {
        Act::Think(text) => json!({"type": "thinking", "thinking": text, "signature": format!("sig{n}")}),
        Act::Say(text) => json!({"type": "text", "text": text}),
        Act::Call(id, name, arguments) => json!({"type": "tool_use", "id": id, "name": name, "input": arguments}),
    };
    acts.iter().map(block).collect()
}

fn stop_reason(acts: &[Act]) -> &'static str {
    if acts.iter().any(|act| matches!(act, Act::Call(..))) { "tool_use" } else { "end_turn" }
}

fn message_events(n: u64, acts: &[Act]) -> Vec<Value> {
    let message = json!({"id": format!("m{n}"), "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 100 * n, "output_tokens": 1}});
    let mut events = vec![json!({"type": "message_start", "message": message})];
    for (at, block) in message_blocks(n, acts).into_iter().enumerate() {
        let mut empty = block.clone();
        let deltas = match block["type"].as_str().unwrap() {
            "text" => {
                empty["text"] = "".into();
                vec![json!({"type": "text_delta", "text": block["text"]})]
            }
            "thinking" => {
                (empty["thinking"], empty["signature"]) = ("".into(), "".into());
                vec![
                    json!({"type": "thinking_delta", "thinking": block["thinking"]}),
                    json!({"type": "signature_delta", "signature": block["signature"]}),
                ]
            }
            _ => {
                empty["input"] = json!({});
                let input = block["input"].to_string();
                vec![
                    json!({"type": "input_json_delta", "partial_json": ""}),
                    json!({"type": "input_json_delta", "partial_json": input[..1]}),
                    json!({"type": "input_json_delta", "partial_json": input[1..]}),
                ]
            }
        };
        events.push(json!({"type": "content_block_start", "index": at, "content_block": empty}));
        events.extend(
            deltas.into_iter().map(|delta| json!({"type": "content_block_delta", "index": at, "delta": delta})),
        );
        events.push(json!({"type": "content_block_stop", "index": at}));
    }
    let delta = json!({"stop_reason": stop_reason(acts), "stop_sequence": null});
    events.push(json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": n}}));
    events.push(json!({"type": "message_stop"}));
    events
}

fn response_items(n: u64, acts: &[Act]) -> Vec<Value> {
    let item = |act: &Act| match act {
        Act::Think(text) => {
            json!({"type": "reasoning", "id": format!("rs{n}"), "summary": [], "encrypted_content": text})
        }
        Act::Say(text) => {
            json!({"type": "message", "id": format!("msg{n}"), "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]})
        }
        Act::Call(id, name, arguments) => {
            json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name, "arguments": arguments.to_string()})
        }
    };
    acts.iter().map(item).collect()
}

fn response(n: u64, output: &[Value]) -> Value {
    json!({"id": format!("resp{n}"), "object": "response", "status": "completed", "store": false, "output": output, "usage": usage(Api::Responses, n)})
}

fn response_events(n: u64, acts: &[Act]) -> Vec<Value> {
    let begun =
        json!({"id": format!("resp{n}"), "object": "response", "status": "in_progress", "store": false, "output": []});
    let mut events = vec![
        json!({"type": "response.created", "response": begun}),
        json!({"type": "response.in_progress", "response": begun}),
    ];
    let items = response_items(n, acts);
    for (at, item) in items.iter().enumerate() {
        events.push(json!({"type": "response.output_item.added", "output_index": at, "item": item}));
        if item["type"] == "message" {
            let text = &item["content"][0]["text"];
            events.push(json!({"type": "response.output_text.delta", "output_index": at, "item_id": item["id"], "content_index": 0, "delta": text}));
        }
        if item["type"] == "function_call" {
            events.push(json!({"type": "response.function_call_arguments.delta", "output_index": at, "item_id": item["id"], "delta": item["arguments"]}));
        }
        events.push(json!({"type": "response.output_item.done", "output_index": at, "item": item}));
    }
    events.push(json!({"type": "response.completed", "response": response(n, &items)}));
    for (n, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = n.into();
    }
    events
}

fn whole(api: Api, n: u64, acts: &[Act]) -> Value {
    match api {
        Api::Chat => {
            let said: String = acts.iter().map(|act| if let Act::Say(text) = act { text } else { "" }).collect();
            let calls: Vec<_> = acts
                .iter()
                .filter_map(|act| match act {
                    Act::Call(id, name, arguments) => Some(
                        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.to_string()}}),
                    ),
                    _ => None,
                })
                .collect();
            let content = if said.is_empty() { Value::Null } else { said.into() };
            let mut message = json!({"role": "assistant", "content": content});
            let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            json!({"id": format!("r{n}"), "object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage(api, n)})
        }
        Api::Messages => {
            json!({"id": format!("m{n}"), "type": "message", "role": "assistant", "content": message_blocks(n, acts), "stop_reason": stop_reason(acts), "usage": usage(api, n)})
        }
        Api::Responses => response(n, &response_items(n, acts)),
    }
}

fn read_chat(events: &[Value]) -> Read {
    let (mut text, mut roles, mut reasons) = (String::new(), 0, Vec::new());
    let mut calls: Vec<String> = Vec::new();
    assert!(events.iter().all(|event| event["id"] == events[0]["id"] && event["created"] == events[0]["created"]));
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        let delta = &choice["delta"];
        roles += usize::from(delta.get("role").is_some());
        text += delta["content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            assert!(at <= calls.len(), "the numbers of calls have no gap: {events:?}");
            if at == calls.len() {
                calls.push(call["id"].as_str().unwrap().to_owned() + ":");
            }
            calls[at] += call["function"]["arguments"].as_str().unwrap();
        }
        reasons.extend(choice["finish_reason"].as_str());
    }
    assert_eq!((roles, reasons), (1, vec![if calls.is_empty() { "stop" } else { "tool_calls" }]));
    let usage = &events.last().unwrap()["usage"];
    let tokens = ["prompt_tokens", "completion_tokens"].map(|name| usage[name].as_u64().unwrap());
    assert_eq!(usage["total_tokens"], tokens[0] + tokens[1]);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], tokens[0] / 10);
    (text.split("\n\n").filter(|text| !text.is_empty()).map(str::to_owned).collect(), calls, tokens)
}

fn read_messages(events: &[Value]) -> Read {
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert!(kinds.iter().filter(|kind| **kind == "message_start").count() == 1 && kinds[0] == "message_start");
    assert_eq!(kinds[kinds.len() - 2..], ["message_delta", "message_stop"]);
    let mut blocks: Vec<Value> = Vec::new();
    for event in events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(event["index"], blocks.len(), "the numbers of blocks have no gap: {events:?}");
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert_eq!(event["index"], blocks.len() - 1);
                let (block, delta) = (blocks.last_mut().unwrap(), &event["delta"]);
                for key in ["text", "thinking", "signature", "partial_json"] {
                    if let Some(more) = delta[key].as_str() {
                        block[key] = (block[key].as_str().unwrap_or_default().to_owned() + more).into();
                    }
                }
            }
            _ => {}
        }
    }
    for block in &mut blocks {
        if let Some(input) = block["partial_json"].as_str() {
            block["input"] = serde_json::from_str(input).unwrap();
        }
    }
    let delta = &events[events.len() - 2];
    let usage = &delta["usage"];
    let mut message = json!({"content": blocks, "stop_reason": delta["delta"]["stop_reason"], "usage": usage});
    if usage["input_tokens"].is_null() {
        message["usage"]["input_tokens"] = events[0]["message"]["usage"]["input_tokens"].clone();
    }
    read_whole(Api::Messages, &message)
}

fn read_responses(events: &[Value]) -> Read {
    for (n, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], n, "{events:?}");
    }
    let items: Vec<_> = events.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    for (n, item) in items.iter().enumerate() {
        assert_eq!(item["output_index"], n, "{events:?}");
    }
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["id"]), (&json!("response.completed"), &events[0]["response"]["id"]));
    let items: Vec<_> = items.iter().map(|event| event["item"].clone()).collect();
    assert_eq!(last["response"]["output"], Value::from(items));
    assert_eq!(events.iter().filter(|event| event["type"] == "response.created").count(), 1);
    read_whole(Api::Responses, &last["response"])
}

fn read_whole(api: Api, answer: &Value) -> Read {
    let usage = &answer["usage"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (said, calls): (Vec<String>, Vec<String>) = match api {
        Api::Chat => {
            let message = &answer["choices"][0]["message"];
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            let calls: Vec<_> =
                calls.map(|call| text(&call["id"]) + ":" + &text(&call["function"]["arguments"])).collect();
            let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
            assert_eq!(answer["choices"][0]["finish_reason"], reason);
            let said = text(&message["content"]);
            (said.split("\n\n").filter(|text| !text.is_empty()).map(str::to_owned).collect(), calls)
        }
        Api::Messages => {
            let of = |kind: &'static str| {
                answer["content"].as_array().unwrap().iter().filter(move |block| block["type"] == kind)
            };
            let calls: Vec<_> =
                of("tool_use").map(|call| text(&call["id"]) + ":" + &call["input"].to_string()).collect();
            assert_eq!(answer["stop_reason"], if calls.is_empty() { "end_turn" } else { "tool_use" });
            assert!(of("thinking").all(|block| block["signature"] == "sig1"), "thinking of a later round: {answer}");
            (of("text").map(|block| text(&block["text"])).collect(), calls)
        }
        Api::Responses => {
            let of = |kind: &'static str| {
                answer["output"].as_array().unwrap().iter().filter(move |item| item["type"] == kind)
            };
            let calls =
                of("function_call").map(|call| text(&call["call_id"]) + ":" + &text(&call["arguments"])).collect();
            (of("message").map(|item| text(&item["content"][0]["text"])).collect(), calls)
        }
    };
    let [input, output] =
        if api == Api::Chat { ["prompt_tokens", "completion_tokens"] } else { ["input_tokens", "output_tokens"] };
    (said, calls, [input, output].map(|name| usage[name].as_u64().unwrap()))
}
