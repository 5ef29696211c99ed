//! The session in Anthropic Messages.

use serde::Deserialize;
use serde_json::Error;
use serde_json::value::RawValue;

use super::{Answer, Call, Entry, Format, Refusal, joined, quoted, tools};
use crate::demo::script::{INSTRUCTIONS, MODEL};

/// Anthropic Messages.
#[derive(Debug)]
pub(in crate::demo) struct Messages;

/// The longest answer, in tokens.
const MAX_TOKENS: usize = 512;

#[derive(Deserialize)]
struct Request {
    messages: Vec<Message>,
}

/// A message of a request, or an answer.
#[derive(Deserialize)]
struct Message {
    role: String,
    content: Vec<Block>,
    #[serde(default)]
    usage: Usage,
}

/// A block of any type. (An enum tagged by the type could not hold a raw value.)
#[derive(Deserialize)]
struct Block {
    #[serde(default)]
    text: String,
    #[serde(default)]
    id: String,
    name: Option<String>,
    input: Option<Box<RawValue>>,
    tool_use_id: Option<String>,
    #[serde(default)]
    content: String,
}

#[derive(Default, Deserialize)]
struct Usage {
    input_tokens: usize,
    output_tokens: usize,
}

impl Format for Messages {
    fn path(&self) -> &'static str {
        "/v1/messages"
    }

    fn request(&self, session: &[Entry]) -> String {
        let tools = tools(|tool| {
            let (name, description, parameters) = (tool.name, tool.description, tool.parameters);
            format!(r#"{{"name":"{name}","description":"{description}","input_schema":{parameters}}}"#)
        });
        let turns = session.chunk_by(|one, other| is_of_model(one) == is_of_model(other));
        let messages = joined(turns.map(|turn| {
            let role = if turn.first().is_some_and(is_of_model) { "assistant" } else { "user" };
            format!(r#"{{"role":"{role}","content":[{}]}}"#, blocks(turn))
        }));
        let instructions = quoted(INSTRUCTIONS);
        format!(
            r#"{{"model":"{MODEL}","max_tokens":{MAX_TOKENS},"system":{instructions},"tools":[{tools}],"messages":[{messages}]}}"#
        )
    }

    fn read_request(&self, body: &[u8]) -> Result<Vec<Entry>, Error> {
        let request: Request = serde_json::from_slice(body)?;
        Ok(request.messages.into_iter().flat_map(Message::entries).collect())
    }

    fn answer(&self, answer: &Answer) -> String {
        let blocks = blocks(&answer.entries);
        let stop = if matches!(answer.entries.last(), Some(Entry::Call(_))) { "tool_use" } else { "end_turn" };
        let (input, output) = answer.tokens;
        format!(
            r#"{{"id":"msg_demo","type":"message","role":"assistant","model":"{MODEL}","content":[{blocks}],"stop_reason":"{stop}","stop_sequence":null,"usage":{{"input_tokens":{input},"output_tokens":{output}}}}}"#
        )
    }

    fn read_answer(&self, body: &[u8]) -> Result<Answer, Error> {
        let message: Message = serde_json::from_slice(body)?;
        let tokens = (message.usage.input_tokens, message.usage.output_tokens);
        Ok(Answer { entries: message.entries().collect(), tokens })
    }

    fn refusal(&self, refusal: &Refusal) -> String {
        let message = match refusal {
            Refusal::Overflow { tokens, window } => format!("prompt is too long: {tokens} tokens > {window} maximum"),
            Refusal::Dangling(ids) => format!(
                "`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block \
                 must have a corresponding `tool_result` block in the next message.",
                ids.join(", ")
            ),
            Refusal::Orphan(id) => format!(
                "unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a \
                 corresponding `tool_use` block in the previous message."
            ),
            Refusal::Other(message) => message.clone(),
        };
        let message = quoted(&message);
        format!(r#"{{"type":"error","error":{{"type":"invalid_request_error","message":{message}}}}}"#)
    }

    fn commands(&self) -> [&'static str; 3] {
        [
            "abridge run -- claude                                     # for one command; or",
            "abridge --upstream anthropic=https://api.anthropic.com    # for all, and",
            "export ANTHROPIC_BASE_URL=http://127.0.0.1:8787     # in the agent's shell",
        ]
    }
}

fn is_of_model(entry: &Entry) -> bool {
    matches!(entry, Entry::Said(_) | Entry::Call(_))
}

/// The blocks with these entries.
fn blocks(entries: &[Entry]) -> String {
    joined(entries.iter().map(|entry| match entry {
        Entry::User(text) | Entry::Said(text) => format!(r#"{{"type":"text","text":{}}}"#, quoted(text)),
        Entry::Call(Call { id, name, arguments }) => {
            format!(r#"{{"type":"tool_use","id":"{id}","name":"{name}","input":{arguments}}}"#)
        }
        Entry::Result { call_id, text } => {
            format!(r#"{{"type":"tool_result","tool_use_id":"{call_id}","content":{}}}"#, quoted(text))
        }
    }))
}

impl Message {
    fn entries(self) -> impl Iterator<Item = Entry> {
        let is_of_model = self.role == "assistant";
        self.content.into_iter().map(move |block| match block {
            Block { tool_use_id: Some(call_id), content: text, .. } => Entry::Result { call_id, text },
            Block { name: Some(name), input: Some(input), id, .. } => {
                Entry::Call(Call { id, name, arguments: input.get().to_owned() })
            }
            Block { text, .. } if is_of_model => Entry::Said(text),
            Block { text, .. } => Entry::User(text),
        })
    }
}
