//! The strict rule: each call answered exactly once, directly behind, and nothing else is a result.

use serde::Deserialize;

#[derive(Deserialize)]
struct Request {
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    role: Option<String>,
    tool_calls: Option<Vec<Call>>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct Call {
    id: Option<String>,
}

pub(crate) fn validate(body: &[u8]) -> Result<(), String> {
    let Request { messages } = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    let mut open: Vec<String> = Vec::new();
    for (n, m) in messages.iter().enumerate() {
        if m.role.as_deref() == Some("tool") {
            let id = m.tool_call_id.clone().unwrap_or_default();
            let Some(found) = open.iter().position(|open| *open == id) else { return Err(format!("orphan at {n}")) };
            open.remove(found);
            continue;
        }
        if !open.is_empty() {
            return Err(format!("unanswered before {n}"));
        }
        if m.role.as_deref() == Some("assistant") {
            open = m.tool_calls.iter().flatten().map(|c| c.id.clone().unwrap_or_default()).collect();
        }
    }
    if open.is_empty() { Ok(()) } else { Err("unanswered at the end".into()) }
}
