//! The agent of the demo: its history, its tools, and its reaction to each answer.

use std::fmt;

use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::client::Answer;
use super::script::{self, INSTRUCTIONS, MODEL, SCRIPT, ScriptAction, TASK, TOOLS};
use super::tool_outputs;

/// The agent.
#[derive(Debug)]
pub(super) struct Agent {
    history: Vec<String>,
    results: Vec<ToolResult>,
    new_content: NewContent,
}

/// A tool result in the agent's history.
#[derive(Debug)]
pub(super) struct ToolResult {
    /// The call of the result.
    pub(super) call_id: String,
    /// The whole text.
    pub(super) text: String,
}

/// The content that the last turn added to the history.
#[derive(Debug)]
pub(super) struct NewContent {
    /// Its title in the table.
    pub(super) title: String,
    /// The length of its text, in bytes.
    pub(super) bytes: usize,
}

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The model answered.
    Ok(ModelAnswer),
    /// The upstream rejected the request.
    Rejected(Rejection),
}

/// An answer of the model.
#[derive(Debug)]
pub(super) struct ModelAnswer {
    /// The prompt tokens that the upstream counted.
    pub(super) prompt_tokens: usize,
    /// The edits that abridge reports; empty for an unedited request.
    pub(super) edits: String,
    message: String,
    call: Option<Call>,
}

/// An error response.
#[derive(Debug)]
pub(super) struct Rejection {
    /// The HTTP status.
    pub(super) status: StatusCode,
    /// The error code, if there is one.
    pub(super) code: Option<String>,
    /// The error message.
    pub(super) message: String,
}

/// What follows an answer of the model.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum NextStep {
    /// The session is over.
    Finished,
    /// A tool was run, or the user spoke; the history has the new message.
    ToolRun,
    /// An original is to be read from abridge.
    Fetch {
        /// The call that asks for it.
        call_id: String,
        /// The URL of the original.
        url: String,
    },
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    content: &'a str,
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    usage: Usage,
}

#[derive(Deserialize)]
struct Choice {
    message: Box<RawValue>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
}

#[derive(Deserialize)]
struct Calls {
    #[serde(default)]
    tool_calls: Vec<Call>,
}

#[derive(Debug, Deserialize)]
struct Call {
    id: String,
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    arguments: String,
}

#[derive(Deserialize)]
struct Command {
    command: String,
}

#[derive(Deserialize)]
struct Failure {
    error: Reason,
}

#[derive(Deserialize)]
struct Reason {
    message: String,
    code: Option<String>,
}

// === impl Agent ===

impl Agent {
    /// A new agent with its instructions and its task.
    pub(super) fn new() -> Self {
        let new_content = NewContent { title: "user asks".to_owned(), bytes: TASK.len() };
        let mut agent = Self { history: Vec::new(), results: Vec::new(), new_content };
        agent.add_message("system", None, INSTRUCTIONS);
        agent.add_message("user", None, TASK);
        agent
    }

    /// The body of the next request.
    pub(super) fn request(&self) -> Bytes {
        let messages = self.history.join(",");
        format!(r#"{{"model":"{MODEL}","tools":{TOOLS},"messages":[{messages}]}}"#).into()
    }

    /// The content that the last turn added.
    pub(super) fn new_content(&self) -> &NewContent {
        &self.new_content
    }

    /// The result of a call, as the tool returned it.
    pub(super) fn result_of(&self, call_id: &str) -> Option<&ToolResult> {
        self.results.iter().find(|result| result.call_id == call_id)
    }

    /// Adds an answer to the history and runs its tool call.
    pub(super) fn take(&mut self, answer: ModelAnswer) -> Result<NextStep, serde_json::Error> {
        self.history.push(answer.message);
        let Some(call) = answer.call else { return Ok(NextStep::Finished) };
        let action = script::step_of_call(&call.id)
            .and_then(|step| SCRIPT.get(step))
            .map_or(ScriptAction::Done, |step| step.action);
        if let ScriptAction::Stopped(_, words) = action {
            self.new_content = NewContent { title: action.title(), bytes: words.len() };
            self.add_message("user", None, words);
            return Ok(NextStep::ToolRun);
        }
        if let Some(result) = action.output() {
            self.add_result(call.id, action.title(), result);
            return Ok(NextStep::ToolRun);
        }
        let Command { command } = serde_json::from_str(&call.function.arguments)?;
        let Some(url) = command.strip_prefix("curl -s '").and_then(|rest| rest.strip_suffix('\'')) else {
            let log = tool_outputs::log();
            let found = log.split_inclusive('\n').filter(|line| line.contains(tool_outputs::CAUSE)).collect();
            self.add_result(call.id, format!("$ {command}"), found);
            return Ok(NextStep::ToolRun);
        };
        Ok(NextStep::Fetch { call_id: call.id, url: url.to_owned() })
    }

    /// Adds a tool result to the history.
    pub(super) fn add_result(&mut self, call_id: String, title: String, text: String) {
        self.add_message("tool", Some(&call_id), &text);
        self.new_content = NewContent { title, bytes: text.len() };
        self.results.push(ToolResult { call_id, text });
    }

    fn add_message(&mut self, role: &str, tool_call_id: Option<&str>, content: &str) {
        // Serialising strings never fails.
        self.history.push(serde_json::to_string(&Message { role, tool_call_id, content }).unwrap_or_default());
    }
}

// === impl Outcome ===

impl Outcome {
    /// Parses an answer.
    pub(super) fn of(answer: &Answer) -> Result<Self, serde_json::Error> {
        if answer.status != StatusCode::OK {
            let Failure { error: Reason { message, code } } = serde_json::from_slice(&answer.body)?;
            return Ok(Self::Rejected(Rejection { status: answer.status, code, message }));
        }
        let completion: Completion = serde_json::from_slice(&answer.body)?;
        let prompt_tokens = completion.usage.prompt_tokens;
        let message =
            completion.choices.into_iter().next().map_or_else(String::new, |choice| choice.message.get().to_owned());
        let call = serde_json::from_str::<Calls>(&message)?.tool_calls.into_iter().next();
        let edits = answer.headers.get("x-abridge-edits").and_then(|edits| edits.to_str().ok()).unwrap_or_default();
        Ok(Self::Ok(ModelAnswer { prompt_tokens, edits: edits.to_owned(), message, call }))
    }
}

// === impl ModelAnswer ===

impl ModelAnswer {
    /// The number of changes that an edit made.
    pub(super) fn changes(&self, edit: &str) -> usize {
        let counts = self.edits.split(';').filter_map(|each| each.split_once('='));
        counts.filter(|(label, _)| *label == edit).find_map(|(_, n)| n.parse().ok()).unwrap_or_default()
    }
}

// === impl Rejection ===

impl fmt::Display for Rejection {
    /// The status and the code. OpenAI has no code for a call without a result, so that error is recognised by its
    /// message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.as_u16();
        match &self.code {
            Some(code) => write!(f, "{status} {code}"),
            None if self.message.contains("did not have response messages") => {
                write!(f, "{status} tool call unanswered")
            }
            None => write!(f, "{status}"),
        }
    }
}
