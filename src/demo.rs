//! What `abridge demo` plays: a recorded session, which it writes in each wire format, and an upstream with a small window.
#![expect(clippy::disallowed_types, reason = "it writes bodies of its own")]

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::simulate::{Transcript, TranscriptError};
use crate::template::fill;
use crate::upstream::routes::DialectName;

mod upstream;

pub use upstream::{Refusal, Upstream, WINDOW_TOKENS, serve};

/// The session, which is the same for everybody.
const SESSION: &str = include_str!("../assets/demo.toml");

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
    /// The wire formats, by the names of their dialects.
    formats: BTreeMap<String, Format>,
}

/// The templates of a wire format.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Format {
    body: String,
    tool: String,
    call: String,
    result: String,
    user: String,
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
        let Self { model, instructions, tools, turns, formats } = self;
        let format = formats.get(dialect.name()).ok_or(TranscriptError::Empty)?;
        let tools: Vec<_> = tools.iter().map(|tool| tool.definition(format)).collect();
        let turns: Vec<_> =
            turns.iter().enumerate().flat_map(|(n, turn)| turn.elements(&format!("call_{n}"), format)).collect();
        let (model, instructions) = (json(model), json(instructions));
        let (tools, turns) = (tools.join(","), turns.join(","));
        let values: [(&str, &dyn Display); 4] =
            [("model", &model), ("instructions", &instructions), ("tools", &tools), ("turns", &turns)];
        Transcript::new(fill(&format.body, &values).into(), None)
    }

    /// The turn whose call has this id.
    pub fn turn_of(&self, call_id: &str) -> Option<&Turn> {
        self.turns.get(call_id.strip_prefix("call_")?.parse::<usize>().ok()?)
    }
}

impl Tool {
    fn definition(&self, format: &Format) -> String {
        let Self { name, description, parameters } = self;
        let [name, description, parameters] = [json(name), json(description), json(parameters)];
        fill(&format.tool, &[("name", &name), ("description", &description), ("parameters", &parameters)])
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
    fn elements(&self, id: &str, format: &Format) -> Vec<String> {
        let Self { call, result, user, .. } = self;
        let call = call.as_ref();
        let arguments = json(&call.map(|call| &call.arguments));
        let values: [(&str, &dyn Display); 7] = [
            ("id", &json(id)),
            ("says", &json(&call.map(|call| &call.says))),
            ("tool", &json(&call.map(|call| &call.tool))),
            ("written", &json(&arguments)),
            ("arguments", &arguments),
            ("result", &json(result)),
            ("user", &json(user)),
        ];
        let templates =
            [call.map(|_| &format.call), result.as_ref().map(|_| &format.result), user.as_ref().map(|_| &format.user)];
        templates.into_iter().flatten().map(|template| fill(template, &values)).collect()
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    // Texts, and what was read from TOML, have a JSON form.
    serde_json::to_string(value).unwrap_or_default()
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
