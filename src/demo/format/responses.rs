//! The session in OpenAI Responses.

use serde::Deserialize;
use serde_json::Error;

use super::{Answer, Call, Entry, Format, Refusal, joined, openai_error, quoted, tools};
use crate::demo::script::{INSTRUCTIONS, MODEL};

/// OpenAI Responses, without history on the server.
#[derive(Debug)]
pub(in crate::demo) struct Responses;

#[derive(Deserialize)]
struct Request {
    input: Vec<Item>,
}

#[derive(Deserialize)]
struct Response {
    output: Vec<Item>,
    usage: Usage,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item {
    Message { role: String, content: Vec<Part> },
    FunctionCall { call_id: String, name: String, arguments: String },
    FunctionCallOutput { call_id: String, output: String },
}

#[derive(Deserialize)]
struct Part {
    text: String,
}

#[derive(Deserialize)]
struct Usage {
    input_tokens: usize,
    output_tokens: usize,
}

impl Format for Responses {
    fn path(&self) -> &'static str {
        "/v1/responses"
    }

    fn request(&self, session: &[Entry]) -> String {
        let tools = tools(|tool| {
            let (name, description, parameters) = (tool.name, tool.description, tool.parameters);
            format!(
                r#"{{"type":"function","name":"{name}","description":"{description}","parameters":{parameters},"strict":false}}"#
            )
        });
        let (instructions, items) = (quoted(INSTRUCTIONS), items(session));
        format!(
            r#"{{"model":"{MODEL}","store":false,"instructions":{instructions},"tools":[{tools}],"input":[{items}]}}"#
        )
    }

    fn read_request(&self, body: &[u8]) -> Result<Vec<Entry>, Error> {
        let request: Request = serde_json::from_slice(body)?;
        Ok(request.input.into_iter().map(Item::entry).collect())
    }

    fn answer(&self, answer: &Answer) -> String {
        let items = items(&answer.entries);
        let (input, output) = answer.tokens;
        let total = input + output;
        format!(
            r#"{{"id":"resp_demo","object":"response","created_at":0,"status":"completed","model":"{MODEL}","output":[{items}],"usage":{{"input_tokens":{input},"output_tokens":{output},"total_tokens":{total}}}}}"#
        )
    }

    fn read_answer(&self, body: &[u8]) -> Result<Answer, Error> {
        let Response { output, usage } = serde_json::from_slice(body)?;
        let entries = output.into_iter().map(Item::entry).collect();
        Ok(Answer { entries, tokens: (usage.input_tokens, usage.output_tokens) })
    }

    fn refusal(&self, refusal: &Refusal) -> String {
        let (code, message) = match refusal {
            Refusal::Overflow { .. } => (
                Some("context_length_exceeded"),
                "Your input exceeds the context window of this model. Please adjust your input and try again."
                    .to_owned(),
            ),
            Refusal::Dangling(ids) => (None, format!("No tool output found for function call {}.", ids.join(", "))),
            Refusal::Orphan(id) => (None, format!("No tool call found for function call output with call_id {id}.")),
            Refusal::Other(message) => (None, message.clone()),
        };
        openai_error("input", code, &message)
    }
}

/// The items with these entries.
fn items(entries: &[Entry]) -> String {
    joined(entries.iter().map(|entry| match entry {
        Entry::User(text) => {
            format!(r#"{{"type":"message","role":"user","content":[{{"type":"input_text","text":{}}}]}}"#, quoted(text))
        }
        Entry::Said(text) => format!(
            r#"{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":{}}}]}}"#,
            quoted(text)
        ),
        Entry::Call(Call { id, name, arguments }) => {
            let arguments = quoted(arguments);
            format!(r#"{{"type":"function_call","call_id":"{id}","name":"{name}","arguments":{arguments}}}"#)
        }
        Entry::Result { call_id, text } => {
            format!(r#"{{"type":"function_call_output","call_id":"{call_id}","output":{}}}"#, quoted(text))
        }
    }))
}

impl Item {
    fn entry(self) -> Entry {
        match self {
            Self::Message { role, content } => {
                let text = content.into_iter().map(|part| part.text).collect();
                if role == "assistant" { Entry::Said(text) } else { Entry::User(text) }
            }
            Self::FunctionCall { call_id: id, name, arguments } => Entry::Call(Call { id, name, arguments }),
            Self::FunctionCallOutput { call_id, output: text } => Entry::Result { call_id, text },
        }
    }
}
