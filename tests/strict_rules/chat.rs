//! What other servers of Chat Completions refuse, and chat templates.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::openai::{ARGUMENTS_ARE_JSON, PAIRED_CALL, unpaired};
use super::{Rule, calls, is_hopeless, list, text};

// === Mistral ===

/// The rules of <https://github.com/mistralai/mistral-common>, `protocol/instruct/validator.py`, and of the API before it.
pub(super) const MISTRAL: &[Rule] = &[
    Rule {
        name: "roles-in-order",
        source: "https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"abcdefgh1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"abcdefgh1","content":"x"},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let may_follow = |before: &str, role: &str| match before {
                "system" | "user" => role != "tool",
                "assistant" => role != "system",
                "tool" => matches!(role, "assistant" | "tool"),
                _ => true,
            };
            let roles = messages.iter().map(|message| text(message, "role")).collect::<Vec<_>>();
            let pair = roles.windows(2).find(|pair| !may_follow(pair[0], pair[1]))?;
            let known = roles.iter().all(|role| matches!(*role, "system" | "user" | "assistant" | "tool"));
            (known && !is_hopeless(messages)).then(|| format!("Unexpected role '{}' after role '{}'", pair[1], pair[0]))
        },
    },
    Rule {
        name: "as-many-results-as-calls",
        source: "https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"abcdefgh1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"abcdefgh2","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"abcdefgh1","content":"x"}]"#,
        fault: |messages| {
            let (called, answered) = unpaired(messages)?;
            called.or(answered).map(|_| "Not the same number of function calls and responses".to_owned())
        },
    },
    Rule {
        name: "ids-have-nine-characters",
        source: "https://github.com/editor-code-assistant/eca/issues/233",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"call_KQ2m","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call_KQ2m","content":"x"}]"#,
        fault: |messages| {
            let is_nine = |id: &str| id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric());
            let (_, _, call) =
                calls(messages).find(|(_, _, call)| !text(call, "id").is_empty() && !is_nine(text(call, "id")))?;
            Some(format!("Tool call id was {} but must be a-z, A-Z, 0-9, with a length of 9.", text(call, "id")))
        },
    },
    Rule {
        name: "assistants-say-or-call",
        source: "https://github.com/OpenHands/OpenHands/issues/8685",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":""},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let says_nothing = |message: &Value| {
                let content = &message["content"];
                text(message, "role") == "assistant"
                    && (content.is_null() || *content == "" || *content == json!([]))
                    && list(message, "tool_calls").is_empty()
            };
            messages
                .iter()
                .any(says_nothing)
                .then(|| "Assistant message must have either content or tool_calls, but not none.".to_owned())
        },
    },
];

// === Gemini ===

pub(super) const GEMINI: &[Rule] = &[
    Rule {
        name: "results-have-names",
        source: "https://github.com/pydantic/pydantic-ai/issues/1879",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","name":"","tool_call_id":"c1","content":"x"}]"#,
        fault: |messages| {
            // A result of no call that is known has no name to take.
            let named: HashMap<_, _> =
                calls(messages).map(|(_, _, call)| (text(call, "id"), text(&call["function"], "name"))).collect();
            let could = |message: &Value| named.get(text(message, "tool_call_id")).is_some_and(|name| !name.is_empty());
            let n = messages.iter().position(|message| {
                text(message, "role") == "tool" && text(message, "name").is_empty() && could(message)
            })?;
            Some(format!(
                "* GenerateContentRequest.contents[{n}].parts[0].function_response.name: Name cannot be empty.\n"
            ))
        },
    },
    Rule {
        name: "as-many-responses-as-calls",
        source: "https://github.com/google-gemini/gemini-cli/issues/16415",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let (called, answered) = unpaired(messages)?;
            called.or(answered).map(|_| "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.".to_owned())
        },
    },
];

// === DashScope, and templates of local servers ===

pub(super) const DASHSCOPE: &[Rule] = &[PAIRED_CALL, ARGUMENTS_ARE_JSON];

/// The error of templates of Qwen 3.5 and later.
pub(super) const QWEN: &[Rule] = &[Rule {
    name: "system-first",
    source: "https://huggingface.co/Qwen/Qwen3.5-35B-A3B/blob/main/chat_template.jinja",
    fixture: r#"[{"role":"user","content":"Go."},{"role":"system","content":"Be brief."},{"role":"user","content":"On."}]"#,
    fault: |messages| {
        let is_late = messages.iter().skip(1).any(|message| text(message, "role") == "system");
        is_late.then(|| "System message must be at the beginning.".to_owned())
    },
}];

/// The error of templates of Mistral's models.
pub(super) const MISTRAL_TEMPLATE: &[Rule] = &[Rule {
    name: "roles-alternate",
    source: "https://github.com/sterlp/eclipse-peon-ai/issues/75",
    fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"abcdefgh1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"abcdefgh1","content":"x"},{"role":"user","content":"On."},{"role":"user","content":"And on."}]"#,
    fault: |messages| {
        let counts = |message: &&Value| {
            text(message, "role") == "user"
                || text(message, "role") == "assistant" && list(message, "tool_calls").is_empty()
        };
        let known =
            messages.iter().all(|message| matches!(text(message, "role"), "system" | "user" | "assistant" | "tool"));
        let wrong = messages
            .iter()
            .filter(counts)
            .enumerate()
            .any(|(n, message)| (text(message, "role") == "user") != (n % 2 == 0));
        // Nothing is put before the first message.
        let may_begin = messages.first().is_some_and(|first| matches!(text(first, "role"), "system" | "user"));
        (wrong && known && may_begin && !is_hopeless(messages)).then(|| "After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results.".to_owned())
    },
}];
