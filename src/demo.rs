//! What `abridge demo` plays: a recorded session, which it writes in each wire format, and an upstream with a small window.
#![expect(clippy::disallowed_types, reason = "it writes bodies of its own")]

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::simulate::{Transcript, TranscriptError};
use crate::upstream::routes::DialectName;

mod upstream;

pub use upstream::{Refusal, Upstream, WINDOW_TOKENS, serve};

/// The session, which is the same for everybody.
const SESSION: &str = include_str!("../assets/demo.toml");

/// The longest answer that the session asks for, in tokens; Messages requires a number.
const MAX_TOKENS: usize = 512;

/// A session of an agent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// The model that it asks.
    pub model: String,
    instructions: String,
    tools: Vec<Tool>,
    /// Its turns. Each is what one request adds to the request before it.
    pub turns: Vec<Turn>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    name: String,
    description: String,
    parameters: Value,
}

/// A tool call of the model with its result, or words of the user.
#[derive(Debug, Deserialize)]
pub struct Turn {
    /// Its title in the table.
    pub title: String,
    #[serde(flatten)]
    call: Option<Call>,
    /// The result of the call.
    pub result: Option<String>,
    /// The words of the user.
    user: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Call {
    says: String,
    tool: String,
    arguments: Map<String, Value>,
}

// === impl Session ===

impl Session {
    /// Reads the session.
    pub fn read() -> Result<Self, toml::de::Error> {
        toml::from_str(SESSION)
    }

    /// The session in a wire format.
    pub fn transcript(&self, dialect: DialectName) -> Result<Transcript, TranscriptError> {
        Transcript::new(self.body(dialect).to_string().into(), None)
    }

    /// The turn whose call has this id.
    pub fn turn_of(&self, call_id: &str) -> Option<&Turn> {
        self.turns.get(call_id.strip_prefix("call_")?.parse::<usize>().ok()?)
    }

    fn body(&self, dialect: DialectName) -> Value {
        let Self { model, instructions, .. } = self;
        let turns = self.turns.iter().enumerate().flat_map(|(n, turn)| turn.elements(&format!("call_{n}"), dialect));
        let tools: Vec<_> = self.tools.iter().map(|tool| tool.definition(dialect)).collect();
        let is_chat = dialect == DialectName::ChatCompletions;
        let system = is_chat.then(|| json!({"role": "system", "content": instructions}));
        let messages: Vec<_> = system.into_iter().chain(turns).collect();
        match dialect {
            DialectName::ChatCompletions => json!({"model": model, "tools": tools, "messages": messages}),
            DialectName::Responses => {
                json!({"model": model, "store": false, "instructions": instructions, "tools": tools, "input": messages})
            }
            DialectName::Messages => {
                json!({"model": model, "max_tokens": MAX_TOKENS, "system": instructions, "tools": tools, "messages": messages})
            }
            DialectName::Gemini => {
                json!({"systemInstruction": {"parts": [{"text": instructions}]}, "tools": tools, "contents": messages})
            }
        }
    }
}

impl Tool {
    fn definition(&self, dialect: DialectName) -> Value {
        let Self { name, description, parameters } = self;
        let function = json!({"name": name, "description": description, "parameters": parameters});
        match (dialect, function) {
            (DialectName::Responses, Value::Object(mut function)) => {
                function.extend([("type".to_owned(), "function".into()), ("strict".to_owned(), false.into())]);
                function.into()
            }
            (DialectName::Messages, _) => json!({"name": name, "description": description, "input_schema": parameters}),
            (DialectName::Gemini, function) => json!({"functionDeclarations": [function]}),
            (_, function) => json!({"type": "function", "function": function}),
        }
    }
}

// === impl Turn ===

impl Turn {
    /// The length of its new text, in bytes.
    pub fn n_bytes(&self) -> usize {
        self.result.iter().chain(&self.user).map(String::len).sum()
    }

    /// The path below abridge that its call reads an original from, if it does.
    pub fn recalled_path(&self) -> Option<&str> {
        let command = self.call.as_ref()?.arguments.get("command")?.as_str()?;
        command.find("/abridge/recall/").and_then(|at| command.get(at..)?.split('\'').next())
    }

    /// Its messages or items.
    fn elements(&self, id: &str, dialect: DialectName) -> Vec<Value> {
        let Self { call, result, user, .. } = self;
        let mut elements = Vec::new();
        if let Some(Call { says, tool, arguments }) = call {
            let written = Value::from(arguments.clone()).to_string();
            match dialect {
                DialectName::ChatCompletions => {
                    let call = json!({"id": id, "type": "function", "function": {"name": tool, "arguments": written}});
                    elements.push(json!({"role": "assistant", "content": says, "tool_calls": [call]}));
                }
                DialectName::Responses => elements.extend([
                    json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": says}]}),
                    json!({"type": "function_call", "call_id": id, "name": tool, "arguments": written}),
                ]),
                DialectName::Messages => {
                    let call = json!({"type": "tool_use", "id": id, "name": tool, "input": arguments});
                    elements.push(json!({"role": "assistant", "content": [{"type": "text", "text": says}, call]}));
                }
                DialectName::Gemini => {
                    elements.push(json!({"role": "model", "parts": [{"text": says}, {"functionCall": {"id": id, "name": tool, "args": arguments}}]}));
                }
            }
        }
        elements.extend(result.as_ref().map(|text| match dialect {
            DialectName::ChatCompletions => json!({"role": "tool", "tool_call_id": id, "content": text}),
            DialectName::Responses => json!({"type": "function_call_output", "call_id": id, "output": text}),
            DialectName::Messages => {
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]})
            }
            DialectName::Gemini => {
                json!({"role": "user", "parts": [{"functionResponse": {"id": id, "name": call.as_ref().map(|call| &call.tool), "response": {"output": text}}}]})
            }
        }));
        elements.extend(user.as_ref().map(|text| match dialect {
            DialectName::ChatCompletions => json!({"role": "user", "content": text}),
            DialectName::Responses => {
                json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
            }
            DialectName::Messages => json!({"role": "user", "content": [{"type": "text", "text": text}]}),
            DialectName::Gemini => json!({"role": "user", "parts": [{"text": text}]}),
        }));
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_has_one_request_a_turn_in_every_dialect() {
        let session = Session::read().unwrap();
        for dialect in DialectName::ALL {
            let transcript = session.transcript(dialect).unwrap();
            assert_eq!(transcript.requests().count(), session.turns.len(), "{dialect:?}");
        }
        assert!(session.turns.iter().any(|turn| turn.recalled_path().is_some()));
    }
}
