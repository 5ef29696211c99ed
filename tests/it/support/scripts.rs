//! Generated conversations that belong to no wire format, and what each format makes of them.
#![expect(clippy::disallowed_types, reason = "messages are made here")]

use bytes::Bytes;
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};

/// An item of a conversation, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    User(String),
    /// Reasoning, which its maker has signed.
    Thought(String),
    Said(String),
    Call {
        id: String,
        name: &'static str,
    },
    Result {
        id: String,
        text: String,
    },
}

/// When the result of a call comes.
#[derive(Clone, Copy, Debug)]
enum Fate {
    InTime,
    Never,
    /// So many steps later.
    Late(usize),
}

/// One step.
#[derive(Clone, Debug)]
enum Step {
    User,
    Model { thinks: bool, says: bool, calls: Vec<(Fate, usize)> },
}

/// A conversation, and where the model was called.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) items: Vec<Item>,
    pub(crate) calls: Vec<usize>,
}

/// Conversations whose results are all there in time.
pub(crate) fn whole(n: std::ops::Range<usize>) -> impl Strategy<Value = Script> {
    script(n, Just(Fate::InTime).boxed())
}

/// Conversations some of whose results are missing, or late.
pub(crate) fn with_gaps(n: std::ops::Range<usize>) -> impl Strategy<Value = Script> {
    let fate = prop_oneof![6 => Just(Fate::InTime), 1 => Just(Fate::Never), 1 => (1..4_usize).prop_map(Fate::Late)];
    script(n, fate.boxed())
}

fn script(n: std::ops::Range<usize>, fate: BoxedStrategy<Fate>) -> impl Strategy<Value = Script> {
    let calls = prop::collection::vec((fate, 0..400_usize), 0..4);
    let model = (any::<bool>(), any::<bool>(), calls);
    let step = prop_oneof![
        1 => Just(Step::User),
        3 => model.prop_map(|(thinks, says, calls)| Step::Model { thinks, says: says || calls.is_empty(), calls }),
    ];
    prop::collection::vec(step, n).prop_map(|steps| played(&steps))
}

fn played(steps: &[Step]) -> Script {
    let mut script = Script { items: vec![Item::User("Do it.".to_owned())], calls: Vec::new() };
    let mut late: Vec<(usize, Item)> = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        if let Step::Model { thinks, says, calls } = step {
            if script.items.last().is_some_and(is_of_model) {
                script.items.push(Item::User(format!("Go on with {n}.")));
            }
            script.calls.push(script.items.len());
            script.items.extend(thinks.then(|| Item::Thought(format!("thought{n} ").repeat(20))));
            script.items.extend(says.then(|| Item::Said(format!("I do {n}."))));
            let mut results = Vec::new();
            for (at, (fate, times)) in calls.iter().enumerate() {
                let (id, name) = (format!("call_{n}_{at}"), ["bash", "read", "grep"][at % 3]);
                let result = Item::Result { id: id.clone(), text: format!("<{id}>{}", "line of it\n".repeat(*times)) };
                script.items.push(Item::Call { id, name });
                match fate {
                    Fate::InTime => results.push(result),
                    Fate::Late(steps) => late.push((n + steps, result)),
                    Fate::Never => {}
                }
            }
            script.items.append(&mut results);
        }
        script.items.extend(late.extract_if(.., |(due, _)| *due <= n).map(|(_, result)| result));
        if matches!(step, Step::User) {
            script.items.push(Item::User(format!("And {n}?")));
        }
    }
    if script.items.last().is_some_and(is_of_model) {
        script.items.push(Item::User("Thanks.".to_owned()));
    }
    script.calls.push(script.items.len());
    script
}

/// The wire formats, by the paths that their requests are sent to.
pub(crate) const PATHS: [&str; 4] =
    ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/m:generateContent"];

pub(crate) fn any_path() -> impl Strategy<Value = &'static str> {
    select(PATHS.to_vec())
}

/// The body of a request to `model` that has these items.
pub(crate) fn body(path: &str, model: &str, items: &[Item]) -> Bytes {
    let body = match path {
        "/v1/chat/completions" => json!({"model": model, "messages": chat(items)}),
        "/v1/responses" => json!({"model": model, "store": false, "input": responses(items)}),
        "/v1/messages" => json!({"model": model, "max_tokens": 100, "messages": messages(items)}),
        _ => json!({"contents": contents(items)}),
    };
    body.to_string().into()
}

fn is_of_model(item: &Item) -> bool {
    matches!(item, Item::Thought(_) | Item::Said(_) | Item::Call { .. })
}

fn chat(items: &[Item]) -> Vec<Value> {
    let mut messages: Vec<Value> = Vec::new();
    let mut before = false;
    for item in items {
        let of_model = is_of_model(item);
        if of_model && !before {
            messages.push(json!({"role": "assistant", "content": null}));
        }
        before = of_model;
        let last = messages.last_mut();
        match (item, last) {
            (Item::Thought(text), Some(last)) => last["reasoning_content"] = json!(text),
            (Item::Said(text), Some(last)) => last["content"] = json!(text),
            (Item::Call { id, name }, Some(last)) => {
                let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{\"a\":1}"}});
                match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                }
            }
            (Item::Result { id, text }, _) => {
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
            }
            (Item::User(text), _) => messages.push(json!({"role": "user", "content": text})),
            _ => unreachable!("the model has a message"),
        }
    }
    messages
}

fn responses(items: &[Item]) -> Vec<Value> {
    let item = |item: &Item| match item {
        Item::User(text) => json!({"role": "user", "content": text}),
        Item::Thought(text) => json!({"type": "reasoning", "summary": [], "encrypted_content": text}),
        Item::Said(text) => {
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
        }
        Item::Call { id, name } => {
            json!({"type": "function_call", "call_id": id, "name": name, "arguments": "{\"a\":1}"})
        }
        Item::Result { id, text } => json!({"type": "function_call_output", "call_id": id, "output": text}),
    };
    items.iter().map(item).collect()
}

/// Results and what the user says are blocks of one message.
fn messages(items: &[Item]) -> Vec<Value> {
    let runs = items.chunk_by(|one, other| is_of_model(one) == is_of_model(other));
    let block = |item: &Item| match item {
        Item::User(text) | Item::Said(text) => json!({"type": "text", "text": text}),
        Item::Thought(text) => json!({"type": "thinking", "thinking": "", "signature": text}),
        Item::Call { id, name } => json!({"type": "tool_use", "id": id, "name": name, "input": {"a": 1}}),
        Item::Result { id, text } => json!({"type": "tool_result", "tool_use_id": id, "content": text}),
    };
    let message = |run: &[Item]| {
        let role = if is_of_model(&run[0]) { "assistant" } else { "user" };
        json!({"role": role, "content": run.iter().map(block).collect::<Vec<_>>()})
    };
    runs.map(message).collect()
}

/// Results and what the user says are parts of one content. A result has the name of its function.
fn contents(items: &[Item]) -> Vec<Value> {
    let runs = items.chunk_by(|one, other| is_of_model(one) == is_of_model(other));
    let names: std::collections::HashMap<&str, &str> = items
        .iter()
        .filter_map(|item| if let Item::Call { id, name } = item { Some((&**id, *name)) } else { None })
        .collect();
    let part = |item: &Item| match item {
        Item::User(text) | Item::Said(text) => json!({"text": text}),
        Item::Thought(text) => json!({"text": "", "thoughtSignature": text}),
        Item::Call { id, name } => json!({"functionCall": {"id": id, "name": name, "args": {"a": 1}}}),
        Item::Result { id, text } => {
            json!({"functionResponse": {"id": id, "name": names.get(&**id), "response": {"output": text}}})
        }
    };
    let content = |run: &[Item]| {
        let role = if is_of_model(&run[0]) { "model" } else { "user" };
        json!({"role": role, "parts": run.iter().map(part).collect::<Vec<_>>()})
    };
    runs.map(content).collect()
}
