//! The rules by which Anthropic's API refuses a request, for the tests over traffic in its dialect.
#![expect(clippy::disallowed_types, reason = "recorded traffic is looked at here, and nothing of it is sent on")]

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

/// A turn: consecutive messages of one role, as one list of blocks.
struct Turn<'a> {
    role: &'a str,
    blocks: Vec<&'a Value>,
}

/// Why the API would refuse this request, if it would.
pub(crate) fn check(request: &Value) -> Result<(), String> {
    let messages = request["messages"].as_array().ok_or("no messages")?;
    let is_compaction = |block: &Value| block["type"] == "compaction" && !block["content"].is_null();
    let from = messages.iter().rposition(|message| entries(message).iter().any(is_compaction));
    let messages = messages.get(from.unwrap_or_default()..).unwrap_or_default();
    // Nothing makes a request valid that has results and nothing else, except no messages at all, which no API takes.
    let is_result = |block: &Value| block["type"] == "tool_result";
    if messages.iter().all(|message| !entries(message).is_empty() && entries(message).iter().all(is_result)) {
        return Ok(());
    }
    for (n, message) in messages.iter().enumerate() {
        says_something(message, n + 1 == messages.len()).map_err(|error| format!("messages.{n}: {error}"))?;
    }
    let turns = turns(messages);
    let n_turns = turns.len();
    for (n, turn) in turns.iter().enumerate() {
        let before = n.checked_sub(1).and_then(|n| turns.get(n));
        let of_turn = |error: String| format!("turn {n} of {n_turns}: {error}");
        match turn.role {
            "assistant" => {
                // A later turn may have an id again: a recorded request with some was answered.
                let mut ids = BTreeSet::new();
                if let Some(id) = calls(turn).into_iter().find(|id| !ids.insert(*id)) {
                    return Err(of_turn(format!("the id {id} is not unique")));
                }
                if !calls(turn).is_empty() && turns.get(n + 1).is_none_or(|next| next.role != "user") {
                    return Err(of_turn("calls without results".to_owned()));
                }
            }
            "user" => answers(turn, before).map_err(of_turn)?,
            "system" => system(before, turns.get(n + 1)).map_err(of_turn)?,
            _ => {}
        }
    }
    Ok(())
}

/// Each block of a request with its role, by value and without marks for the prompt cache.
pub(crate) fn blocks(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().into_iter().flatten();
    let block = |message: &Value, block: &Value| {
        let mut block = block.clone();
        if let Some(block) = block.as_object_mut() {
            block.remove("cache_control");
        }
        format!("{} {block}", message["role"])
    };
    let of_message = |message: &Value| match message["content"].as_str() {
        Some(text) => vec![block(message, &serde_json::json!({ "type": "text", "text": text }))],
        None => entries(message).iter().map(|entry| block(message, entry)).collect(),
    };
    messages.flat_map(of_message).collect()
}

/// The texts of the results, and the data of their images and documents, by the id of the call.
pub(crate) fn texts_of_results(request: &Value) -> HashMap<&str, Vec<&str>> {
    let mut texts: HashMap<&str, Vec<&str>> = HashMap::new();
    let blocks = request["messages"].as_array().into_iter().flatten().flat_map(entries);
    for result in blocks.filter(|block| block["type"] == "tool_result") {
        let of_blocks = result["content"].as_array().into_iter().flatten();
        let of_blocks = of_blocks.filter_map(|block| block["text"].as_str().or(block["source"]["data"].as_str()));
        let all = texts.entry(result["tool_use_id"].as_str().unwrap_or_default()).or_default();
        all.extend(result["content"].as_str().into_iter().chain(of_blocks));
    }
    texts
}

fn entries(message: &Value) -> &[Value] {
    message["content"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn says_something(message: &Value, is_last: bool) -> Result<(), String> {
    let is_blank = |text: &Value| text.as_str().is_some_and(|text| text.trim().is_empty());
    if entries(message).iter().any(|block| block["type"] == "text" && is_blank(&block["text"])) {
        return Err("text content blocks must be non-empty".to_owned());
    }
    let in_results = entries(message).iter().filter(|block| block["type"] == "tool_result").flat_map(entries);
    if in_results.into_iter().any(|block| block["type"] == "text" && is_blank(&block["text"])) {
        return Err("an empty text in a result".to_owned());
    }
    let content = &message["content"];
    let is_empty = is_blank(content) || content.as_array().is_some_and(Vec::is_empty) || content.is_null();
    if is_empty && !(is_last && message["role"] == "assistant") {
        return Err("all messages must have non-empty content".to_owned());
    }
    Ok(())
}

fn turns(messages: &[Value]) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for message in messages {
        let role = message["role"].as_str().unwrap_or_default();
        let blocks = match message["content"].as_array() {
            Some(blocks) => blocks.iter().collect(),
            None => vec![&message["content"]],
        };
        match turns.last_mut().filter(|turn| turn.role == role) {
            Some(turn) => turn.blocks.extend(blocks),
            None => turns.push(Turn { role, blocks }),
        }
    }
    turns
}

fn calls<'a>(turn: &Turn<'a>) -> Vec<&'a str> {
    let calls = turn.blocks.iter().filter(|block| block["type"] == "tool_use");
    calls.map(|call| call["id"].as_str().unwrap_or_default()).collect()
}

/// The results come first, and are one for each call of the turn before.
fn answers(turn: &Turn<'_>, before: Option<&Turn<'_>>) -> Result<(), String> {
    let is_result = |block: &&&Value| block["type"] == "tool_result";
    let n_first = turn.blocks.iter().take_while(is_result).count();
    if turn.blocks.iter().skip(n_first).any(|block| is_result(&block)) {
        return Err("a result behind something else".to_owned());
    }
    let id = |block: &&Value| block["tool_use_id"].as_str().unwrap_or_default().to_owned();
    let mut results: Vec<_> = turn.blocks.iter().take(n_first).map(id).collect();
    let calls = before.filter(|before| before.role == "assistant").map(calls).unwrap_or_default();
    let mut calls: Vec<_> = calls.into_iter().map(str::to_owned).collect();
    results.sort();
    calls.sort();
    if results == calls { Ok(()) } else { Err(format!("the calls {calls:?} have the results {results:?}")) }
}

/// A system message follows the user, or behind what the server did, and before the model, or last.
fn system(before: Option<&Turn<'_>>, behind: Option<&Turn<'_>>) -> Result<(), String> {
    let ends_with_server = |turn: &Turn<'_>| {
        let last = turn.blocks.last().and_then(|block| block["type"].as_str());
        last.is_some_and(|kind| kind.ends_with("_tool_result"))
    };
    if before.is_none_or(|before| before.role != "user" && !ends_with_server(before)) {
        return Err("a system message that does not follow the user".to_owned());
    }
    if behind.is_some_and(|behind| behind.role != "assistant") {
        return Err("a system message before something else than the model".to_owned());
    }
    Ok(())
}
