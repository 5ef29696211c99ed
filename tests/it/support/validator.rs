//! The rules that strict upstreams hold a message array to, written down without a look at abridge's own reading of
//! them.
#![expect(clippy::disallowed_types, reason = "a judge that shares no code with what it judges")]

use serde_json::Value;

/// Checks that the body is JSON and that each call has exactly one result, directly after the message that calls.
///
/// Ids are compared where both sides have one. Strict upstreams refuse a request in which one is missing whatever
/// stands around it, so such a call or result may represent any.
///
/// Nothing makes a body valid that has results and nothing else, except an empty array, which they refuse too.
pub(crate) fn check(body: &[u8]) -> Result<(), String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?;
    let messages = body.get("messages").and_then(Value::as_array).ok_or("no messages")?;
    if messages.iter().all(|message| text(message, "role") == "tool") {
        return Ok(());
    }
    let mut rest = messages.as_slice();
    while let Some((message, behind)) = rest.split_first() {
        rest = behind;
        if text(message, "role") == "tool" {
            return Err(format!("a result without a call: {message}"));
        }
        let calls = message.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
        let Some(calls) = calls.filter(|_| text(message, "role") == "assistant") else { continue };
        let n = behind.iter().take_while(|message| text(message, "role") == "tool").count();
        let (results, behind) = behind.split_at(n);
        rest = behind;
        check_batch(calls, results).map_err(|wrong| format!("{wrong} behind {message}"))?;
    }
    Ok(())
}

/// Checks that the results of each batch are in the order of its calls, where all of both have ids. No upstream refuses another
/// order, and templates that pair by position swap the texts.
pub(crate) fn check_order(body: &[u8]) -> Result<(), String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?;
    let mut rest = body.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    while let Some((message, behind)) = rest.split_first() {
        rest = behind;
        let calls = message.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let id = |object: &Value, key: &str| match object.get(key) {
            Some(Value::Number(number)) => number.to_string(),
            _ => text(object, key).to_owned(),
        };
        let calls: Vec<_> = calls.iter().map(|call| id(call, "id")).collect();
        let results = behind.iter().take_while(|message| text(message, "role") == "tool");
        let results: Vec<_> = results.map(|result| id(result, "tool_call_id")).collect();
        if !calls.is_empty() && calls != results && calls.iter().chain(&results).all(|id| !id.is_empty()) {
            return Err(format!("{results:?} behind {calls:?}"));
        }
    }
    Ok(())
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn check_batch(calls: &[Value], results: &[Value]) -> Result<(), String> {
    if calls.len() != results.len() {
        return Err(format!("{} calls, {} results", calls.len(), results.len()));
    }
    let ids = |entries: &[Value], key: &str| -> Vec<String> {
        entries.iter().map(|entry| text(entry, key)).filter(|id| !id.is_empty()).map(str::to_owned).collect()
    };
    let mut called = ids(calls, "id");
    let mut unasked = Vec::new();
    for id in ids(results, "tool_call_id") {
        match called.iter().position(|called| *called == id) {
            Some(at) => drop(called.remove(at)),
            None => unasked.push(id),
        }
    }
    let unnamed_calls = calls.len() - ids(calls, "id").len();
    let unnamed_results = results.len() - ids(results, "tool_call_id").len();
    if called.len() > unnamed_results {
        return Err(format!("no result for {called:?}"));
    }
    if unasked.len() > unnamed_calls {
        return Err(format!("no call for {unasked:?}"));
    }
    Ok(())
}

#[test]
fn accepts_valid_and_refuses_invalid_sequences() {
    let judge = |messages: &str| check(format!(r#"{{"messages":[{messages}]}}"#).as_bytes());
    let call = r#"{"role":"assistant","tool_calls":[{"id":"a"},{"id":"b"}]}"#;
    let result = |id: &str| format!(r#"{{"role":"tool","tool_call_id":"{id}"}}"#);
    let (a, b, user) = (result("a"), result("b"), r#"{"role":"user"}"#);
    assert_eq!(judge(""), Ok(()));
    assert_eq!(judge(&format!("{user},{call},{b},{a},{user}")), Ok(()));
    let order = |messages: String| check_order(format!(r#"{{"messages":[{messages}]}}"#).as_bytes());
    assert_eq!(order(format!("{user},{call},{a},{b},{user}")), Ok(()));
    assert!(order(format!("{call},{b},{a}")).is_err());
    assert_eq!(judge(&format!("{call},{a},{}", result(""))), Ok(()));
    for wrong in [
        format!("{call},{a}"),
        format!("{call},{a},{user},{b}"),
        format!("{call},{a},{b},{b}"),
        format!("{call},{a},{a}"),
        format!("{call},{a},{}", result("c")),
        format!("{user},{a}"),
    ] {
        assert!(judge(&wrong).is_err(), "{wrong}");
    }
    assert!(check(b"{").is_err());
}
