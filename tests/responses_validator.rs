//! The rules that strict upstreams hold the items of OpenAI Responses to, written down without a look at abridge's own
//! reading of them.
#![expect(clippy::disallowed_types, reason = "recorded traffic is looked at here, and nothing of it is sent on")]

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

fn text<'a>(item: &'a Value, key: &str) -> &'a str {
    item.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns what a call wants in answer, and whether it must have one from the client.
fn wants(item: &Value) -> Option<(&'static [&'static str], bool)> {
    const FUNCTION: &[&str] = &["function_call_output"];
    match text(item, "type") {
        "function_call" => Some((FUNCTION, true)),
        "local_shell_call" => Some((&["function_call_output", "local_shell_call_output"], true)),
        "custom_tool_call" => Some((&["custom_tool_call_output"], true)),
        "shell_call" => Some((&["shell_call_output"], text(&item["environment"], "type") != "container_reference")),
        "apply_patch_call" => Some((&["apply_patch_call_output"], true)),
        "computer_call" => Some((&["computer_call_output"], true)),
        "tool_search_call" if item["call_id"].is_string() => {
            Some((&["tool_search_output", "function_call_output"], text(item, "execution") == "client"))
        }
        _ => None,
    }
}

fn is_result(item: &Value) -> bool {
    let kind = text(item, "type");
    kind.ends_with("_call_output") || (kind == "tool_search_output" && item["call_id"].is_string())
}

/// Returns what a model or a server has made.
fn is_of_model(item: &Value) -> bool {
    let kind = text(item, "type");
    kind == "reasoning" || kind.ends_with("_call") || text(item, "role") == "assistant"
}

fn call_id(item: &Value) -> &str {
    match text(item, "call_id") {
        "" if text(item, "type") == "local_shell_call_output" => text(item, "id"),
        id => id,
    }
}

/// Checks that each call has one result of its kind, directly after the run of items that calls, that no result is
/// without its call, and that no id is there twice. Everything that is on the server may be the other half of anything.
pub(crate) fn check(body: &Value) -> Result<(), String> {
    let Some(items) = body["input"].as_array() else { return Ok(()) };
    let refers = items.iter().any(|item| {
        text(item, "type") == "item_reference" || (item.get("type").is_none() && item.get("role").is_none())
    });
    let elsewhere = !body["previous_response_id"].is_null() || !body["conversation"].is_null() || refers;
    let mut open: HashMap<&str, (&[&str], bool, usize)> = HashMap::new();
    let (mut ids, mut batch) = (BTreeSet::new(), 0);
    let mut behind_model = false;
    for item in items {
        let id = text(item, "id");
        if !id.is_empty() && !ids.insert(id) {
            return Err(format!("{id} stands there twice"));
        }
        if is_result(item) {
            match open.remove(call_id(item)) {
                Some((kinds, _, n)) if kinds.contains(&text(item, "type")) && n == batch => {}
                None if elsewhere => {}
                _ => return Err(format!("no call for {item}")),
            }
            behind_model = false;
            continue;
        }
        if is_of_model(item) && !behind_model {
            batch += 1;
        }
        behind_model = is_of_model(item);
        if let Some((kinds, must)) = wants(item)
            && open.insert(call_id(item), (kinds, must, batch)).is_some()
        {
            return Err(format!("another call of the same id: {item}"));
        }
    }
    match open.iter().find(|(_, (_, must, _))| *must) {
        Some((id, _)) => Err(format!("no result for {id}")),
        None => Ok(()),
    }
}

/// Every reasoning that went out is followed by what followed it when it came, and what it was bound to went out with it.
pub(crate) fn reasoning_is_followed(came: &[Value], went: &[Value]) -> Result<(), String> {
    let mut rest = came.iter().enumerate();
    let follower = |at: usize| came.get(at + 1).filter(|item| is_of_model(item));
    let mut bound: Vec<&Value> = Vec::new();
    for (n, item) in went.iter().enumerate().filter(|(_, item)| text(item, "type") == "reasoning") {
        let (at, _) = rest.find(|(_, one)| *one == item).ok_or_else(|| format!("no such reasoning came: {item}"))?;
        let name = |item: Option<&Value>| item.map(|item| (text(item, "type").to_owned(), call_id(item).to_owned()));
        if follower(at).is_some() && name(follower(at)) != name(went.get(n + 1)) {
            return Err(format!("the reasoning {n} has lost its follower: {:?}", went.get(n + 1)));
        }
        bound.extend(follower(at));
    }
    for (at, item) in came.iter().enumerate().filter(|(_, item)| text(item, "type") == "reasoning") {
        let Some(follower) = follower(at).filter(|follower| !text(follower, "call_id").is_empty()) else { continue };
        let stands = |item: &Value| {
            went.iter().any(|one| text(one, "type") == text(item, "type") && call_id(one) == call_id(item))
        };
        if stands(follower) && !went.contains(item) {
            return Err(format!("{} has lost its reasoning", call_id(follower)));
        }
    }
    Ok(())
}
