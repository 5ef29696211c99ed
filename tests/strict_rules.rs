//! Rules of strict upstreams, written without abridge's reading of conversations: each has the words of the refusal,
//! its source, and a conversation that breaks the rule.

use serde_json::{Value, json};

use anthropic::ANTHROPIC;
use bedrock::BEDROCK;
use chat::{DASHSCOPE, GEMINI, MISTRAL, MISTRAL_TEMPLATE, QWEN};
use openai::{OPENAI, OPENAI_RESPONSES};

mod anthropic;
mod bedrock;
mod chat;
mod openai;

/// A rule of a vendor.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// Where the rule or the refusal is public.
    pub(crate) source: &'static str,
    /// Messages or items that break this rule and no other of the vendor.
    pub(crate) fixture: &'static str,
    /// The server's answer to a body that breaks the rule.
    pub(crate) fault: fn(&[Value]) -> Option<String>,
}

/// An upstream with these rules.
pub(crate) struct Vendor {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) rules: &'static [Rule],
    /// The JSON of a refusal with this message.
    refusal: fn(&str) -> Value,
}

impl Vendor {
    /// The key of the array that the rules are about.
    pub(crate) fn elements(&self) -> &'static str {
        if self.path == RESPONSES { "input" } else { "messages" }
    }

    /// The first rule that a body breaks, and the refusal of the server.
    pub(crate) fn refuses(&self, body: &Value) -> Option<(&'static str, String)> {
        let elements = body[self.elements()].as_array()?;
        if !body["previous_response_id"].is_null() || !body["conversation"].is_null() {
            return None; // the rest is on the server
        }
        self.rules.iter().find_map(|rule| Some((rule.name, (self.refusal)(&(rule.fault)(elements)?).to_string())))
    }

    /// A request with these elements.
    pub(crate) fn request(&self, elements: &Value) -> Value {
        let mut body = json!({"model": "m", self.elements(): elements});
        if self.path == MESSAGES {
            body["max_tokens"] = json!(99);
        }
        body
    }
}

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// Those whose servers are known. Each of their refusals has the envelope of a public report.
pub(crate) const VENDORS: &[Vendor] = &[
    Vendor {
        name: "anthropic",
        path: MESSAGES,
        rules: ANTHROPIC,
        refusal: |text| json!({"type": "error", "error": {"type": "invalid_request_error", "message": text}}),
    },
    Vendor { name: "openai", path: CHAT, rules: OPENAI, refusal: openai },
    Vendor { name: "openai-responses", path: RESPONSES, rules: OPENAI_RESPONSES, refusal: openai },
    Vendor {
        name: "mistral",
        path: CHAT,
        rules: MISTRAL,
        refusal: |text| json!({"object": "error", "message": text, "type": "invalid_request_message_order", "param": null, "code": "3230"}),
    },
    Vendor {
        name: "gemini",
        path: CHAT,
        rules: GEMINI,
        refusal: |text| json!([{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}]),
    },
    Vendor {
        name: "dashscope",
        path: CHAT,
        rules: DASHSCOPE,
        refusal: |text| {
            let message = format!("<400> InternalError.Algo.InvalidParameter: {text}");
            json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": "invalid_parameter_error"}})
        },
    },
    Vendor {
        name: "bedrock",
        path: CHAT,
        rules: BEDROCK,
        refusal: |text| {
            let message = format!("litellm.BadRequestError: BedrockException - {}", json!({"message": text}));
            json!({"error": {"message": message, "type": null, "param": null, "code": "400"}})
        },
    },
    Vendor { name: "qwen-template", path: CHAT, rules: QWEN, refusal: template },
    Vendor { name: "mistral-template", path: CHAT, rules: MISTRAL_TEMPLATE, refusal: template },
];

fn openai(text: &str) -> Value {
    json!({"error": {"message": text, "type": "invalid_request_error", "param": null, "code": null}})
}

/// The words of llama.cpp for an exception that a template raises.
fn template(text: &str) -> Value {
    json!({"error": {"code": 400, "message": format!("Error: Jinja Exception: {text}"), "type": "invalid_request_error"}})
}

// === reading ===

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Each entry of a content, with the places of both.
fn entries(messages: &[Value]) -> impl Iterator<Item = (usize, usize, &Value)> {
    messages
        .iter()
        .enumerate()
        .flat_map(|(n, message)| list(message, "content").iter().enumerate().map(move |(m, entry)| (n, m, entry)))
}

/// Each call of Chat, with the places of its message and of itself.
fn calls(messages: &[Value]) -> impl Iterator<Item = (usize, usize, &Value)> {
    let of_model = messages.iter().enumerate().filter(|(_, message)| text(message, "role") == "assistant");
    of_model.flat_map(|(n, message)| list(message, "tool_calls").iter().enumerate().map(move |(m, call)| (n, m, call)))
}

fn is_blank(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.trim().is_empty())
}

/// Whether there is anything that could be sent. A list that is empty, or has results alone, has no valid form.
fn is_hopeless(messages: &[Value]) -> bool {
    let is_result = |message: &Value| {
        text(message, "role") == "tool"
            || list(message, "content").iter().any(|entry| text(entry, "type") == "tool_result")
                && list(message, "content").iter().all(|entry| text(entry, "type") == "tool_result")
    };
    messages.iter().all(is_result) || messages.iter().any(|message| !message["role"].is_string())
}
