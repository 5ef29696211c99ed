//! The agent of the demo: its history, its tools, and its reaction to each answer.

use std::fmt;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;

use super::client::Response;
use super::format::{Answer, Call, Entry, Format};
use super::script::{self, SCRIPT, ScriptAction, TASK};
use super::tool_outputs;

/// The agent.
#[derive(Debug)]
pub(super) struct Agent {
    format: &'static dyn Format,
    history: Vec<Entry>,
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
    entries: Vec<Entry>,
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

/// How the message begins if the prompt is too long, in Messages.
const TOO_LONG: &str = "prompt is too long";

/// What messages say of a call without a result, in each format.
const UNANSWERED: [&str; 3] =
    ["did not have response messages", "No tool output found for function call", "without `tool_result` blocks"];

// === impl Agent ===

impl Agent {
    /// A new agent with its task.
    pub(super) fn new(format: &'static dyn Format) -> Self {
        let new_content = NewContent { title: "user asks".to_owned(), bytes: TASK.len() };
        Self { format, history: vec![Entry::User(TASK.to_owned())], results: Vec::new(), new_content }
    }

    /// The body of the next request.
    pub(super) fn request(&self) -> Bytes {
        self.format.request(&self.history).into()
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
        self.history.extend_from_slice(&answer.entries);
        let Some(call) = answer.into_call() else { return Ok(NextStep::Finished) };
        let action = script::step_of_call(&call.id)
            .and_then(|step| SCRIPT.get(step))
            .map_or(ScriptAction::Done, |step| step.action);
        if let ScriptAction::Stopped(_, words) = action {
            self.new_content = NewContent { title: action.title(), bytes: words.len() };
            self.history.push(Entry::User(words.to_owned()));
            return Ok(NextStep::ToolRun);
        }
        if let Some(result) = action.output() {
            self.add_result(call.id, action.title(), result);
            return Ok(NextStep::ToolRun);
        }
        let Command { command } = serde_json::from_str(&call.arguments)?;
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
        self.history.push(Entry::Result { call_id: call_id.clone(), text: text.clone() });
        self.new_content = NewContent { title, bytes: text.len() };
        self.results.push(ToolResult { call_id, text });
    }
}

// === impl Outcome ===

impl Outcome {
    /// Parses an answer in this format.
    pub(super) fn of(answer: &Response, format: &dyn Format) -> Result<Self, serde_json::Error> {
        if answer.status != StatusCode::OK {
            let Failure { error: Reason { message, code } } = serde_json::from_slice(&answer.body)?;
            return Ok(Self::Rejected(Rejection { status: answer.status, code, message }));
        }
        let Answer { entries, tokens: (prompt_tokens, _) } = format.read_answer(&answer.body)?;
        let edits = answer.headers.get("x-abridge-edits").and_then(|edits| edits.to_str().ok()).unwrap_or_default();
        Ok(Self::Ok(ModelAnswer { prompt_tokens, edits: edits.to_owned(), entries }))
    }
}

// === impl ModelAnswer ===

impl ModelAnswer {
    fn into_call(self) -> Option<Call> {
        self.entries.into_iter().find_map(|entry| if let Entry::Call(call) = entry { Some(call) } else { None })
    }

    /// The number of changes that an edit made.
    pub(super) fn changes(&self, edit: &str) -> usize {
        let counts = self.edits.split(';').filter_map(|each| each.split_once('='));
        counts.filter(|(label, _)| *label == edit).find_map(|(_, n)| n.parse().ok()).unwrap_or_default()
    }
}

// === impl Rejection ===

impl Rejection {
    /// Whether the request is longer than the window.
    pub(super) fn is_overflow(&self) -> bool {
        self.code.is_some() || self.message.starts_with(TOO_LONG)
    }
}

impl fmt::Display for Rejection {
    /// The status and the code. Errors without a code are recognised by their messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.as_u16();
        match &self.code {
            Some(code) => write!(f, "{status} {code}"),
            None if self.is_overflow() => write!(f, "{status} {TOO_LONG}"),
            None if UNANSWERED.iter().any(|words| self.message.contains(words)) => {
                write!(f, "{status} tool call unanswered")
            }
            None => write!(f, "{status}"),
        }
    }
}
