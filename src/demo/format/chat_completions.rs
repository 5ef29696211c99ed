//! The session in Chat Completions.

use serde::Deserialize;
use serde_json::Error;

use super::{Answer, Call, Entry, Format, Refusal, joined, openai_error, quoted, tools};
use crate::demo::script::{INSTRUCTIONS, MODEL};

/// Chat Completions.
#[derive(Debug)]
pub(in crate::demo) struct ChatCompletions;

#[derive(Deserialize)]
struct Request {
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Completion {
    choices: [Choice; 1],
    usage: Usage,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<ToolCall>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct ToolCall {
    id: String,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
}

impl Format for ChatCompletions {
    fn path(&self) -> &'static str {
        "/v1/chat/completions"
    }

    fn request(&self, session: &[Entry]) -> String {
        let tools = tools(|tool| {
            let (name, description, parameters) = (tool.name, tool.description, tool.parameters);
            format!(
                r#"{{"type":"function","function":{{"name":"{name}","description":"{description}","parameters":{parameters}}}}}"#
            )
        });
        let (instructions, messages) = (quoted(INSTRUCTIONS), messages(session));
        format!(
            r#"{{"model":"{MODEL}","tools":[{tools}],"messages":[{{"role":"system","content":{instructions}}},{messages}]}}"#
        )
    }

    fn read_request(&self, body: &[u8]) -> Result<Vec<Entry>, Error> {
        let request: Request = serde_json::from_slice(body)?;
        Ok(request.messages.into_iter().flat_map(Message::entries).collect())
    }

    fn answer(&self, answer: &Answer) -> String {
        let message = messages(&answer.entries);
        let stop = if matches!(answer.entries.last(), Some(Entry::Call(_))) { "tool_calls" } else { "stop" };
        let (prompt, completion) = answer.tokens;
        let total = prompt + completion;
        format!(
            r#"{{"id":"chatcmpl-demo","object":"chat.completion","created":0,"model":"{MODEL}","choices":[{{"index":0,"message":{message},"finish_reason":"{stop}"}}],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total}}}}}"#
        )
    }

    fn read_answer(&self, body: &[u8]) -> Result<Answer, Error> {
        let Completion { choices: [choice], usage } = serde_json::from_slice(body)?;
        Ok(Answer { entries: choice.message.entries(), tokens: (usage.prompt_tokens, usage.completion_tokens) })
    }

    fn refusal(&self, refusal: &Refusal) -> String {
        let (code, message) = match refusal {
            Refusal::Overflow { tokens, window } => (
                Some("context_length_exceeded"),
                format!(
                    "This model's maximum context length is {window} tokens. However, your messages resulted in \
                     {tokens} tokens. Please reduce the length of the messages."
                ),
            ),
            Refusal::Dangling(ids) => (
                None,
                format!(
                    "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
                     'tool_call_id'. The following tool_call_ids did not have response messages: {}",
                    ids.join(", ")
                ),
            ),
            Refusal::Orphan(_) => {
                let message = "messages with role 'tool' must be a response to a preceding message with 'tool_calls'.";
                (None, message.to_owned())
            }
            Refusal::Other(message) => (None, message.clone()),
        };
        openai_error("messages", code, &message)
    }
}

/// The messages with these entries. A call is in the message of the text before it.
fn messages(entries: &[Entry]) -> String {
    joined(entries.chunk_by(|one, other| matches!((one, other), (Entry::Said(_), Entry::Call(_)))).map(message))
}

fn message(entries: &[Entry]) -> String {
    match entries {
        [Entry::User(text)] => format!(r#"{{"role":"user","content":{}}}"#, quoted(text)),
        [Entry::Result { call_id, text }] => {
            format!(r#"{{"role":"tool","tool_call_id":"{call_id}","content":{}}}"#, quoted(text))
        }
        [Entry::Said(text)] => format!(r#"{{"role":"assistant","content":{}}}"#, quoted(text)),
        [said @ .., Entry::Call(Call { id, name, arguments })] => {
            let text = if let [Entry::Said(text)] = said { quoted(text) } else { "null".to_owned() };
            let arguments = quoted(arguments);
            format!(
                r#"{{"role":"assistant","content":{text},"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"{name}","arguments":{arguments}}}}}]}}"#
            )
        }
        _ => String::new(),
    }
}

impl Message {
    fn entries(self) -> Vec<Entry> {
        let text = self.content.unwrap_or_default();
        if let Some(call_id) = self.tool_call_id {
            return vec![Entry::Result { call_id, text }];
        }
        if self.role != "assistant" {
            return vec![Entry::User(text)];
        }
        let calls = self
            .tool_calls
            .into_iter()
            .map(|ToolCall { id, function: Function { name, arguments } }| Entry::Call(Call { id, name, arguments }));
        std::iter::once(Entry::Said(text)).chain(calls).collect()
    }
}
