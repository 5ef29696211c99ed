//! The agent of the demo: its history, its tools, and what it makes of an answer.

use std::fmt;

use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::client::Answer;
use super::session::{self, Act, INSTRUCTIONS, MODEL, SESSION, TASK, TOOLS};
use super::texts;

/// The agent.
#[derive(Debug)]
pub(super) struct Agent {
    history: Vec<String>,
    originals: Vec<Original>,
    news: News,
}

/// A result, as the agent has it.
#[derive(Debug)]
pub(super) struct Original {
    /// The call that it answers.
    pub(super) call_id: String,
    /// The whole text.
    pub(super) text: String,
}

/// What a turn adds to the history.
#[derive(Debug)]
pub(super) struct News {
    /// What it is.
    pub(super) title: String,
    /// How long its text is.
    pub(super) bytes: usize,
}

/// What became of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The model answered.
    Ok(Said),
    /// The upstream refused.
    Refused(Refused),
}

/// An answer of the model.
#[derive(Debug)]
pub(super) struct Said {
    /// What the upstream counted.
    pub(super) prompt_tokens: usize,
    /// What abridge says that it edited; empty where it has not.
    pub(super) edits: String,
    message: String,
    call: Option<Call>,
}

/// A refusal.
#[derive(Debug)]
pub(super) struct Refused {
    /// Its status.
    pub(super) status: StatusCode,
    /// Its code, if it has one.
    pub(super) code: Option<String>,
    /// Its sentences.
    pub(super) message: String,
}

/// What the model wants done.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Wish {
    /// Nothing more.
    Nothing,
    /// A tool was run, and its result is in the history.
    Done,
    /// A text is to be read back from this URL.
    Fetch {
        /// The call that asks for it.
        call_id: String,
        /// Where it is.
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
    /// One that has been told what to do, and has done nothing yet.
    pub(super) fn new() -> Self {
        let news = News { title: "user asks".to_owned(), bytes: TASK.len() };
        let mut agent = Self { history: Vec::new(), originals: Vec::new(), news };
        agent.add("system", None, INSTRUCTIONS);
        agent.add("user", None, TASK);
        agent
    }

    /// The request that it sends next.
    pub(super) fn request(&self) -> Bytes {
        let messages = self.history.join(",");
        format!(r#"{{"model":"{MODEL}","tools":{TOOLS},"messages":[{messages}]}}"#).into()
    }

    /// What is new in that.
    pub(super) fn news(&self) -> &News {
        &self.news
    }

    /// The result of a call, as a tool gave it.
    pub(super) fn original(&self, call_id: &str) -> Option<&Original> {
        self.originals.iter().find(|original| original.call_id == call_id)
    }

    /// Takes an answer into the history, and does what it asks for.
    pub(super) fn take(&mut self, said: Said) -> Result<Wish, serde_json::Error> {
        self.history.push(said.message);
        let Some(call) = said.call else { return Ok(Wish::Nothing) };
        let act = session::step_of(&call.id).and_then(|step| SESSION.get(step)).map_or(Act::Done, |step| step.act);
        if let Act::Stopped(_, words) = act {
            self.news = News { title: act.title(), bytes: words.len() };
            self.add("user", None, words);
            return Ok(Wish::Done);
        }
        if let Some(result) = act.result() {
            self.result(call.id, act.title(), result);
            return Ok(Wish::Done);
        }
        let Command { command } = serde_json::from_str(&call.function.arguments)?;
        let Some(url) = command.strip_prefix("curl -s '").and_then(|rest| rest.strip_suffix('\'')) else {
            let log = texts::log();
            let found = log.split_inclusive('\n').filter(|line| line.contains(texts::CAUSE)).collect();
            self.result(call.id, format!("$ {command}"), found);
            return Ok(Wish::Done);
        };
        Ok(Wish::Fetch { call_id: call.id, url: url.to_owned() })
    }

    /// Takes a result into the history.
    pub(super) fn result(&mut self, call_id: String, title: String, text: String) {
        self.add("tool", Some(&call_id), &text);
        self.news = News { title, bytes: text.len() };
        self.originals.push(Original { call_id, text });
    }

    fn add(&mut self, role: &str, tool_call_id: Option<&str>, content: &str) {
        // Texts are texts: there is nothing in them that cannot be written.
        self.history.push(serde_json::to_string(&Message { role, tool_call_id, content }).unwrap_or_default());
    }
}

// === impl Outcome ===

impl Outcome {
    /// Reads an answer.
    pub(super) fn of(answer: &Answer) -> Result<Self, serde_json::Error> {
        if answer.status != StatusCode::OK {
            let Failure { error: Reason { message, code } } = serde_json::from_slice(&answer.body)?;
            return Ok(Self::Refused(Refused { status: answer.status, code, message }));
        }
        let completion: Completion = serde_json::from_slice(&answer.body)?;
        let prompt_tokens = completion.usage.prompt_tokens;
        let message =
            completion.choices.into_iter().next().map_or_else(String::new, |choice| choice.message.get().to_owned());
        let call = serde_json::from_str::<Calls>(&message)?.tool_calls.into_iter().next();
        let edits = answer.headers.get("x-abridge-edits").and_then(|edits| edits.to_str().ok()).unwrap_or_default();
        Ok(Self::Ok(Said { prompt_tokens, edits: edits.to_owned(), message, call }))
    }
}

// === impl Said ===

impl Said {
    /// How many changes an edit has made.
    pub(super) fn changes(&self, edit: &str) -> usize {
        let counts = self.edits.split(';').filter_map(|each| each.split_once('='));
        counts.filter(|(label, _)| *label == edit).find_map(|(_, n)| n.parse().ok()).unwrap_or_default()
    }
}

// === impl Refused ===

impl fmt::Display for Refused {
    /// The status and the code; OpenAI has none for a call without a result, and there it is the sentence that counts.
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
