//! What OpenAI refuses in Chat Completions and Responses.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Rule, calls, is_hopeless, list, text};

pub(super) const PAIRED_CALL: Rule = Rule {
    name: "calls-have-results",
    source: "https://github.com/agno-agi/agno/issues/3105",
    fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null,"tool_calls":[{"id":"abcdefgh1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":"On."}]"#,
    fault: |messages| {
        unpaired(messages)?.0.map(|id| format!("An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {id}"))
    },
};

pub(super) const PAIRED_RESULT: Rule = Rule {
    name: "results-have-calls",
    source: "https://github.com/miurla/morphic/issues/136",
    fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"Yes."},{"role":"tool","tool_call_id":"abcdefgh1","content":"x"},{"role":"user","content":"On."}]"#,
    fault: |messages| {
        unpaired(messages)?.1.map(|_| "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.".to_owned())
    },
};

pub(super) const ARGUMENTS_ARE_JSON: Rule = Rule {
    name: "arguments-are-json",
    source: "https://github.com/HKUDS/nanobot/issues/1487",
    fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null,"tool_calls":[{"id":"abcdefgh1","type":"function","function":{"name":"f","arguments":"{\"a\": "}}]},{"role":"tool","tool_call_id":"abcdefgh1","content":"x"}]"#,
    fault: |messages| {
        let is_broken = |call: &Value| {
            let arguments = &call["function"]["arguments"];
            arguments
                .as_str()
                .is_some_and(|text| !serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object()))
        };
        calls(messages)
            .any(|(_, _, call)| is_broken(call))
            .then(|| "The \"function.arguments\" parameter of the code model must be in JSON format.".to_owned())
    },
};

pub(super) const OPENAI: &[Rule] = &[
    PAIRED_CALL,
    PAIRED_RESULT,
    Rule {
        name: "calls-are-not-empty",
        source: "https://github.com/agno-agi/agno/issues/5116",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"Yes.","tool_calls":[]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let n = messages.iter().position(|message| message["tool_calls"] == json!([]))?;
            Some(format!(
                "Invalid 'messages[{n}].tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead."
            ))
        },
    },
    Rule {
        name: "arguments-are-a-string",
        source: "https://github.com/openai/openai-python/issues/2061",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{"a":1}}}]},{"role":"tool","tool_call_id":"c1","content":"x"}]"#,
        fault: |messages| {
            let (n, m, _) = calls(messages).find(|(_, _, call)| call["function"]["arguments"].is_object())?;
            Some(format!(
                "Invalid type for 'messages[{n}].tool_calls[{m}].function.arguments': expected a string, but got an object instead."
            ))
        },
    },
    Rule {
        name: "ids-are-unique",
        source: "https://github.com/continuedev/continue/issues/12620",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"x"},{"role":"tool","tool_call_id":"c1","content":"y"}]"#,
        fault: |messages| {
            let mut met = BTreeMap::new();
            let (n, m, call) = calls(messages).find(|(n, m, call)| {
                !text(call, "id").is_empty() && met.insert((*n, text(call, "id")), *m).is_some()
            })?;
            let id = text(call, "id");
            (!is_hopeless(messages)).then(|| format!("Invalid parameter: Duplicate value for 'tool_call_id' of '{id}', in messages[{n}] and messages[{}].", n + m))
        },
    },
    Rule {
        name: "ids-have-forty-characters",
        source: "https://github.com/openclaw/openclaw/pull/875",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0123456789012345678901234567890123456789","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call_0123456789012345678901234567890123456789","content":"x"}]"#,
        fault: |messages| {
            let (n, m, call) = calls(messages).find(|(_, _, call)| text(call, "id").chars().count() > 40)?;
            let length = text(call, "id").chars().count();
            Some(format!(
                "Invalid 'messages[{n}].tool_calls[{m}].id': string too long. Expected a string with maximum length 40, but got a string with length {length} instead."
            ))
        },
    },
    Rule {
        name: "content-is-not-null",
        source: "https://github.com/docker/docker-agent/issues/63",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let says_nothing = |message: &Value| {
                let says = ["refusal", "audio", "function_call"].iter().any(|key| !message[*key].is_null());
                matches!(text(message, "role"), "assistant" | "user" | "system" | "tool")
                    && message["content"].is_null()
                    && list(message, "tool_calls").is_empty()
                    && !says
            };
            messages
                .iter()
                .any(says_nothing)
                .then(|| "Invalid value for 'content': expected a string, got null.".to_owned())
        },
    },
];

/// A call without a result, or a result without a call, directly after the message that calls. Ids are compared where all have
/// one. None where no form would be valid.
pub(super) fn unpaired(messages: &[Value]) -> Option<(Option<&str>, Option<&str>)> {
    let all_ids = calls(messages).all(|(_, _, call)| !text(call, "id").is_empty())
        && messages.iter().all(|message| text(message, "role") != "tool" || !text(message, "tool_call_id").is_empty());
    if is_hopeless(messages) || !all_ids {
        return None;
    }
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        if text(message, "role") == "tool" {
            match open.iter().position(|id| *id == text(message, "tool_call_id")) {
                Some(at) => drop(open.remove(at)),
                None => return Some((None, Some(text(message, "tool_call_id")))),
            }
            continue;
        }
        if let Some(id) = open.first() {
            return Some((Some(id), None));
        }
        if text(message, "role") == "assistant" {
            open = list(message, "tool_calls").iter().map(|call| text(call, "id")).collect();
        }
    }
    Some((open.first().copied(), None))
}

// === OpenAI, Responses ===

pub(super) const OPENAI_RESPONSES: &[Rule] = &[
    Rule {
        name: "calls-have-outputs",
        source: "https://github.com/jlcodes99/cockpit-tools/issues/1234",
        fixture: r#"[{"role":"user","content":"Go."},{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},{"role":"user","content":"On."}]"#,
        fault: |items| {
            let (called, answered) = functions(items)?;
            called.difference(&answered).next().map(|id| format!("No tool output found for function call {id}."))
        },
    },
    Rule {
        name: "outputs-have-calls",
        source: "https://github.com/agentscope-ai/AgentTeams/issues/299",
        fixture: r#"[{"role":"user","content":"Go."},{"type":"function_call_output","call_id":"c1","output":"x"},{"role":"user","content":"On."}]"#,
        fault: |items| {
            let (called, answered) = functions(items)?;
            answered
                .difference(&called)
                .next()
                .map(|id| format!("No tool call found for function call output with call_id {id}."))
        },
    },
    Rule {
        name: "items-are-unique",
        source: "https://github.com/OpenRouterTeam/ai-sdk-provider/issues/254",
        fixture: r#"[{"role":"user","content":"Go."},{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAAx"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"Yes."}]},{"role":"user","content":"On."},{"type":"reasoning","id":"rs_2","summary":[],"encrypted_content":"gAAAy"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"Yes."}]},{"role":"user","content":"On."}]"#,
        fault: |items| {
            let mut met = BTreeSet::new();
            let item = items.iter().find(|item| {
                !text(item, "id").is_empty() && text(item, "type") != "item_reference" && !met.insert(text(item, "id"))
            })?;
            Some(format!(
                "Duplicate item found with id {}. Remove duplicate items from your input and try again.",
                text(item, "id")
            ))
        },
    },
    Rule {
        name: "items-have-their-reasoning",
        source: "https://github.com/continuedev/continue/issues/10018",
        fixture: r#"[{"role":"user","content":"Go."},{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"x"}]"#,
        fault: |items| {
            if items.iter().any(|item| {
                matches!(
                    text(item, "type"),
                    "item_reference" | "compaction" | "compaction_summary" | "context_compaction"
                )
            }) {
                return None;
            }
            let mut thinks = false;
            let item = items.iter().find(|item| {
                match text(item, "type") {
                    "reasoning" => thinks = true,
                    "message" | "" if text(item, "role") != "assistant" => thinks = false,
                    kind if kind.ends_with("_call_output") => thinks = false,
                    _ => {}
                }
                !thinks && text(item, "type") == "function_call" && text(item, "id").starts_with("fc_")
            })?;
            Some(format!(
                "Item '{}' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.",
                text(item, "id")
            ))
        },
    },
    Rule {
        name: "arguments-are-a-string",
        source: "https://platform.openai.com/docs/api-reference/responses/create",
        fixture: r#"[{"role":"user","content":"Go."},{"type":"function_call","call_id":"c1","name":"f","arguments":{"a":1}},{"type":"function_call_output","call_id":"c1","output":"x"}]"#,
        fault: |items| {
            let n =
                items.iter().position(|item| text(item, "type") == "function_call" && item["arguments"].is_object())?;
            Some(format!("Invalid type for 'input[{n}].arguments': expected a string, but got an object instead."))
        },
    },
    Rule {
        name: "ids-have-sixty-four-characters",
        source: "https://github.com/orchidfiles/ungate/issues/26",
        fixture: r#"[{"role":"user","content":"Go."},{"type":"function_call","call_id":"call_0123456789012345678901234567890123456789012345678901234567890123456789","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"call_0123456789012345678901234567890123456789012345678901234567890123456789","output":"x"}]"#,
        fault: |items| {
            let n = items.iter().position(|item| text(item, "call_id").chars().count() > 64)?;
            let length = text(&items[n], "call_id").chars().count();
            Some(format!(
                "Invalid 'input[{n}].call_id': string too long. Expected a string with maximum length 64, but got a string with length {length} instead."
            ))
        },
    },
];

/// The ids of function calls and of their outputs. None where a part of the conversation may be on the server.
fn functions(items: &[Value]) -> Option<(BTreeSet<&str>, BTreeSet<&str>)> {
    let elsewhere = |item: &Value| {
        matches!(text(item, "type"), "item_reference" | "compaction")
            || item.get("type").is_none() && item.get("role").is_none()
    };
    let of = |kind: &str| -> BTreeSet<&str> {
        items
            .iter()
            .filter(|item| text(item, "type") == kind)
            .map(|item| text(item, "call_id"))
            .filter(|id| !id.is_empty())
            .collect()
    };
    let outputs_alone = items.iter().all(|item| text(item, "type").ends_with("_output"));
    // Other calls of a client may have outputs of this kind.
    let others =
        items.iter().any(|item| matches!(text(item, "type"), "local_shell_call" | "tool_search_call" | "program"));
    (!outputs_alone && !others && !items.iter().any(elsewhere))
        .then(|| (of("function_call"), of("function_call_output")))
}
