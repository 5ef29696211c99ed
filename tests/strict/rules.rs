//! Rules of strict upstreams, written down without a look at abridge's own reading of conversations: what each vendor refuses,
//! in the words in which its server says so, a source, and a conversation that breaks the rule.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

/// A rule of a vendor.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// Where the rule or the refusal is public.
    pub(crate) source: &'static str,
    /// Messages or items that break this rule and no other of the vendor.
    pub(crate) fixture: &'static str,
    /// What the server says of a body that breaks the rule.
    pub(crate) fault: fn(&[Value]) -> Option<String>,
}

/// An upstream with rules of its own.
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

// === Anthropic ===

/// The vendor's documentation is at <https://platform.claude.com/docs/en/api/messages>.
const ANTHROPIC: &[Rule] = &[
    Rule {
        name: "calls-have-results",
        source: "https://github.com/anthropics/claude-code/issues/5060",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let batches = batches(messages)?;
            let (n, id) = batches.iter().find_map(|(n, called, answered)| Some((n, called.difference(answered).next()?)))?;
            Some(format!("messages.{n}: `tool_use` ids were found without `tool_result` blocks immediately after: {id}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."))
        },
    },
    Rule {
        name: "results-have-calls",
        source: "https://github.com/anthropics/claude-code/issues/13460",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"Yes."},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"},{"type":"text","text":"On."}]}]"#,
        fault: |messages| {
            let batches = batches(messages)?;
            let (n, id) = batches.iter().find_map(|(n, called, answered)| Some((n + 1, answered.difference(called).next()?)))?;
            Some(format!("messages.{n}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."))
        },
    },
    Rule {
        name: "no-mark-on-nothing",
        source: "https://github.com/anthropics/claude-code/issues/55302",
        fixture: r#"[{"role":"user","content":[{"type":"text","text":"Go."},{"type":"text","text":"","cache_control":{"type":"ephemeral"}}]}]"#,
        fault: |messages| {
            let (n, m, _) = entries(messages).find(|(_, _, entry)| text(entry, "type") == "text" && entry["text"] == "" && entry["cache_control"].is_object())?;
            Some(format!("messages.{n}.content.{m}.text: cache_control cannot be set for empty text blocks"))
        },
    },
    Rule {
        name: "texts-are-filled",
        source: "https://github.com/anthropics/claude-code/issues/59812",
        fixture: r#"[{"role":"user","content":[{"type":"text","text":"Go."},{"type":"text","text":""}]}]"#,
        fault: |messages| {
            let in_results = entries(messages).flat_map(|(_, _, entry)| list(entry, "content"));
            let mut all = entries(messages).map(|(_, _, entry)| entry).chain(in_results);
            all.any(|entry| text(entry, "type") == "text" && entry["text"] == "").then(|| "messages: text content blocks must be non-empty".to_owned())
        },
    },
    Rule {
        name: "texts-are-not-blank",
        source: "https://github.com/anthropics/claude-code/issues/23440",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"text","text":"\n\n"}]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let blank = entries(messages).any(|(_, _, entry)| text(entry, "type") == "text" && is_blank(&entry["text"]));
            blank.then(|| "messages: text content blocks must contain non-whitespace text".to_owned())
        },
    },
    Rule {
        name: "messages-are-filled",
        source: "https://github.com/anthropics/claude-code/issues/21317",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let last = messages.len();
            let nothing = |message: &Value| is_blank(&message["content"]) || message["content"] == json!([]) || message["content"].is_null();
            let n = (0..last).find(|&n| nothing(&messages[n]) && (n + 1 < last || text(&messages[n], "role") != "assistant"))?;
            (!is_hopeless(messages)).then(|| format!("messages.{n}: all messages must have non-empty content except for the optional final assistant message"))
        },
    },
    Rule {
        name: "ids-are-unique",
        source: "https://github.com/anthropics/claude-code/issues/20573",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"}]},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"y"}]}]"#,
        fault: |messages| {
            let mut met = BTreeSet::new();
            let (n, m, _) = entries(messages).find(|(_, _, entry)| text(entry, "type") == "tool_use" && !text(entry, "id").is_empty() && !met.insert(text(entry, "id")))?;
            (!is_hopeless(messages)).then(|| format!("messages.{n}.content.{m}: `tool_use` ids must be unique"))
        },
    },
    Rule {
        name: "ids-are-plain",
        source: "https://github.com/RooCodeInc/Roo-Code/pull/10649",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"functions.Bash:0","name":"Bash","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"functions.Bash:0","content":"x"}]}]"#,
        fault: |messages| {
            let is_plain = |id: &str| id.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
            let (n, m, _) = entries(messages).find(|(_, _, entry)| text(entry, "type") == "tool_use" && !is_plain(text(entry, "id")))?;
            Some(format!("messages.{n}.content.{m}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"))
        },
    },
    Rule {
        name: "inputs-are-objects",
        source: "https://github.com/anthropics/claude-code/issues/6697",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":"{\"n\": 1}"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"}]}]"#,
        fault: |messages| {
            let (n, m, _) = entries(messages).find(|(_, _, entry)| text(entry, "type") == "tool_use" && !entry["input"].is_object() && !entry["input"].is_null())?;
            Some(format!("messages.{n}.content.{m}.tool_use.input: Input should be a valid dictionary"))
        },
    },
    Rule {
        name: "four-marks",
        source: "https://github.com/griffinmartin/opencode-claude-auth/issues/121",
        fixture: r#"[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b","cache_control":{"type":"ephemeral"}},{"type":"text","text":"c","cache_control":{"type":"ephemeral"}},{"type":"text","text":"d","cache_control":{"type":"ephemeral"}},{"type":"text","text":"e","cache_control":{"type":"ephemeral"}}]}]"#,
        fault: |messages| {
            let n = entries(messages).filter(|(_, _, entry)| entry["cache_control"].is_object()).count();
            (n > 4).then(|| format!("A maximum of 4 blocks with cache_control may be provided. Found {n}."))
        },
    },
    Rule {
        name: "long-marks-first",
        source: "https://github.com/cnighswonger/claude-code-cache-fix/issues/44",
        fixture: r#"[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]"#,
        fault: |messages| {
            let mut is_short = false;
            let marked = entries(messages).filter(|(_, _, entry)| entry["cache_control"].is_object());
            let (n, m, _) = marked.into_iter().find(|(_, _, entry)| {
                let is_long = entry["cache_control"]["ttl"] == "1h";
                is_short |= !is_long;
                is_short && is_long
            })?;
            Some(format!("messages.{n}.content.{m}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note that blocks are processed in the following order: `tools`, `system`, `messages`."))
        },
    },
    Rule {
        name: "errors-are-texts",
        source: "https://github.com/vellum-ai/vellum-assistant/issues/18387",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]}]}]"#,
        fault: |messages| {
            let (n, m, _) = entries(messages).find(|(_, _, entry)| entry["is_error"] == true && list(entry, "content").iter().any(|part| text(part, "type") == "image"))?;
            Some(format!("messages.{n}.content.{m}.tool_result: all content must be type 'text' if 'is_error' is true"))
        },
    },
    Rule {
        name: "server-results-have-calls",
        source: "https://github.com/anthropics/claude-code/issues/80439",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]},{"type":"text","text":"Yes."}]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let mut called = BTreeSet::new();
            let (n, m, entry) = entries(messages).find(|(_, _, entry)| {
                if text(entry, "type") == "server_tool_use" {
                    called.insert(text(entry, "id"));
                }
                let kind = text(entry, "type");
                kind.ends_with("_tool_result") && text(entry, "tool_use_id").starts_with("srvtoolu_") && !called.contains(text(entry, "tool_use_id"))
            })?;
            let (kind, id) = (text(entry, "type"), text(entry, "tool_use_id"));
            Some(format!("messages.{n}.content.{m}: unexpected `tool_use_id` found in `{kind}` blocks: {id}. Each `{kind}` block must have a corresponding `server_tool_use` block before it."))
        },
    },
    Rule {
        name: "no-system-in-the-middle",
        source: "https://github.com/anthropics/claude-code/issues/63544",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"system","content":"Be brief."},{"role":"assistant","content":"Yes."},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let is_system = |message: &Value| text(message, "role") == "system";
            messages.iter().skip(1).any(is_system).then(|| "messages: Unexpected role \"system\". The Messages API accepts a top-level `system` parameter, not \"system\" as an input message role.".to_owned())
        },
    },
];

/// The ids of each turn of the model, and of the results directly after it, with the place of its last message. None where no
/// form would be valid.
#[expect(clippy::type_complexity, reason = "read in two rules above")]
fn batches(messages: &[Value]) -> Option<Vec<(usize, BTreeSet<&str>, BTreeSet<&str>)>> {
    if is_hopeless(messages) || messages.iter().any(|message| text(message, "role") == "system") {
        return None;
    }
    let is_compaction = |message: &Value| list(message, "content").iter().any(|entry| text(entry, "type") == "compaction");
    let from = messages.iter().rposition(is_compaction).unwrap_or_default();
    let mut all = vec![(0, BTreeSet::new(), BTreeSet::new())];
    let mut before = "user";
    for (n, message) in messages.iter().enumerate().skip(from) {
        let role = text(message, "role");
        if role == "assistant" && before != "assistant" {
            all.push((n, BTreeSet::new(), BTreeSet::new()));
        }
        let last = all.last_mut()?;
        for entry in list(message, "content") {
            match text(entry, "type") {
                "tool_use" => drop(last.1.insert(text(entry, "id"))),
                "tool_result" => drop(last.2.insert(text(entry, "tool_use_id"))),
                _ => {}
            }
        }
        if role == "assistant" {
            last.0 = n;
        }
        before = role;
    }
    Some(all)
}

// === OpenAI, Chat Completions ===

const PAIRED_CALL: Rule = Rule {
    name: "calls-have-results",
    source: "https://github.com/agno-agi/agno/issues/3105",
    fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null,"tool_calls":[{"id":"abcdefgh1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":"On."}]"#,
    fault: |messages| {
        unpaired(messages)?.0.map(|id| format!("An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {id}"))
    },
};

const PAIRED_RESULT: Rule = Rule {
    name: "results-have-calls",
    source: "https://github.com/miurla/morphic/issues/136",
    fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"Yes."},{"role":"tool","tool_call_id":"abcdefgh1","content":"x"},{"role":"user","content":"On."}]"#,
    fault: |messages| {
        unpaired(messages)?.1.map(|_| "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.".to_owned())
    },
};

const ARGUMENTS_ARE_JSON: Rule = Rule {
    name: "arguments-are-json",
    source: "https://github.com/HKUDS/nanobot/issues/1487",
    fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null,"tool_calls":[{"id":"abcdefgh1","type":"function","function":{"name":"f","arguments":"{\"a\": "}}]},{"role":"tool","tool_call_id":"abcdefgh1","content":"x"}]"#,
    fault: |messages| {
        let is_broken = |call: &Value| {
            let arguments = &call["function"]["arguments"];
            arguments.as_str().is_some_and(|text| !serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object()))
        };
        calls(messages).any(|(_, _, call)| is_broken(call)).then(|| "The \"function.arguments\" parameter of the code model must be in JSON format.".to_owned())
    },
};

const OPENAI: &[Rule] = &[
    PAIRED_CALL,
    PAIRED_RESULT,
    Rule {
        name: "calls-are-not-empty",
        source: "https://github.com/agno-agi/agno/issues/5116",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"Yes.","tool_calls":[]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let n = messages.iter().position(|message| message["tool_calls"] == json!([]))?;
            Some(format!("Invalid 'messages[{n}].tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead."))
        },
    },
    Rule {
        name: "arguments-are-a-string",
        source: "https://github.com/openai/openai-python/issues/2061",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{"a":1}}}]},{"role":"tool","tool_call_id":"c1","content":"x"}]"#,
        fault: |messages| {
            let (n, m, _) = calls(messages).find(|(_, _, call)| call["function"]["arguments"].is_object())?;
            Some(format!("Invalid type for 'messages[{n}].tool_calls[{m}].function.arguments': expected a string, but got an object instead."))
        },
    },
    Rule {
        name: "ids-are-unique",
        source: "https://github.com/continuedev/continue/issues/12620",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"x"},{"role":"tool","tool_call_id":"c1","content":"y"}]"#,
        fault: |messages| {
            let mut met = BTreeMap::new();
            let (n, m, call) = calls(messages).find(|(n, m, call)| !text(call, "id").is_empty() && met.insert((*n, text(call, "id")), *m).is_some())?;
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
            Some(format!("Invalid 'messages[{n}].tool_calls[{m}].id': string too long. Expected a string with maximum length 40, but got a string with length {length} instead."))
        },
    },
    Rule {
        name: "content-is-not-null",
        source: "https://github.com/docker/docker-agent/issues/63",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":null},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let says_nothing = |message: &Value| {
                let says = ["refusal", "audio", "function_call"].iter().any(|key| !message[*key].is_null());
                matches!(text(message, "role"), "assistant" | "user" | "system" | "tool") && message["content"].is_null() && list(message, "tool_calls").is_empty() && !says
            };
            messages.iter().any(says_nothing).then(|| "Invalid value for 'content': expected a string, got null.".to_owned())
        },
    },
];

/// A call without a result, or a result without a call, directly after the message that calls. Ids are compared where all have
/// one. None where no form would be valid.
fn unpaired(messages: &[Value]) -> Option<(Option<&str>, Option<&str>)> {
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

const OPENAI_RESPONSES: &[Rule] = &[
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
            answered.difference(&called).next().map(|id| format!("No tool call found for function call output with call_id {id}."))
        },
    },
    Rule {
        name: "items-are-unique",
        source: "https://github.com/OpenRouterTeam/ai-sdk-provider/issues/254",
        fixture: r#"[{"role":"user","content":"Go."},{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAAx"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"Yes."}]},{"role":"user","content":"On."},{"type":"reasoning","id":"rs_2","summary":[],"encrypted_content":"gAAAy"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"Yes."}]},{"role":"user","content":"On."}]"#,
        fault: |items| {
            let mut met = BTreeSet::new();
            let item = items.iter().find(|item| !text(item, "id").is_empty() && text(item, "type") != "item_reference" && !met.insert(text(item, "id")))?;
            Some(format!("Duplicate item found with id {}. Remove duplicate items from your input and try again.", text(item, "id")))
        },
    },
    Rule {
        name: "items-have-their-reasoning",
        source: "https://github.com/continuedev/continue/issues/10018",
        fixture: r#"[{"role":"user","content":"Go."},{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"x"}]"#,
        fault: |items| {
            if items.iter().any(|item| matches!(text(item, "type"), "item_reference" | "compaction" | "compaction_summary" | "context_compaction")) {
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
            Some(format!("Item '{}' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.", text(item, "id")))
        },
    },
    Rule {
        name: "arguments-are-a-string",
        source: "https://platform.openai.com/docs/api-reference/responses/create",
        fixture: r#"[{"role":"user","content":"Go."},{"type":"function_call","call_id":"c1","name":"f","arguments":{"a":1}},{"type":"function_call_output","call_id":"c1","output":"x"}]"#,
        fault: |items| {
            let n = items.iter().position(|item| text(item, "type") == "function_call" && item["arguments"].is_object())?;
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
            Some(format!("Invalid 'input[{n}].call_id': string too long. Expected a string with maximum length 64, but got a string with length {length} instead."))
        },
    },
];

/// The ids of function calls and of their outputs. None where a part of the conversation may be on the server.
fn functions(items: &[Value]) -> Option<(BTreeSet<&str>, BTreeSet<&str>)> {
    let elsewhere = |item: &Value| matches!(text(item, "type"), "item_reference" | "compaction") || item.get("type").is_none() && item.get("role").is_none();
    let of = |kind: &str| -> BTreeSet<&str> {
        items.iter().filter(|item| text(item, "type") == kind).map(|item| text(item, "call_id")).filter(|id| !id.is_empty()).collect()
    };
    let outputs_alone = items.iter().all(|item| text(item, "type").ends_with("_output"));
    // Other calls of a client may have outputs of this kind.
    let others = items.iter().any(|item| matches!(text(item, "type"), "local_shell_call" | "tool_search_call" | "program"));
    (!outputs_alone && !others && !items.iter().any(elsewhere)).then(|| (of("function_call"), of("function_call_output")))
}

// === Mistral ===

/// The rules of <https://github.com/mistralai/mistral-common>, `protocol/instruct/validator.py`, and of the API before it.
const MISTRAL: &[Rule] = &[
    Rule {
        name: "roles-in-order",
        source: "https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"abcdefgh1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"abcdefgh1","content":"x"},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let may_follow = |before: &str, role: &str| match before {
                "system" => role != "tool",
                "user" => role != "tool",
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
            let (_, _, call) = calls(messages).find(|(_, _, call)| !text(call, "id").is_empty() && !is_nine(text(call, "id")))?;
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
                text(message, "role") == "assistant" && (content.is_null() || *content == "" || *content == json!([])) && list(message, "tool_calls").is_empty()
            };
            messages.iter().any(says_nothing).then(|| "Assistant message must have either content or tool_calls, but not none.".to_owned())
        },
    },
];

// === Gemini ===

const GEMINI: &[Rule] = &[
    Rule {
        name: "results-have-names",
        source: "https://github.com/pydantic/pydantic-ai/issues/1879",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","name":"","tool_call_id":"c1","content":"x"}]"#,
        fault: |messages| {
            // A result of no call that is known has no name to take.
            let named: HashMap<_, _> = calls(messages).map(|(_, _, call)| (text(call, "id"), text(&call["function"], "name"))).collect();
            let could = |message: &Value| named.get(text(message, "tool_call_id")).is_some_and(|name| !name.is_empty());
            let n = messages.iter().position(|message| text(message, "role") == "tool" && text(message, "name").is_empty() && could(message))?;
            Some(format!("* GenerateContentRequest.contents[{n}].parts[0].function_response.name: Name cannot be empty.\n"))
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

const DASHSCOPE: &[Rule] = &[PAIRED_CALL, ARGUMENTS_ARE_JSON];

/// What the templates of Qwen 3.5 and later raise.
const QWEN: &[Rule] = &[
    Rule {
        name: "system-first",
        source: "https://huggingface.co/Qwen/Qwen3.5-35B-A3B/blob/main/chat_template.jinja",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"system","content":"Be brief."},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let is_late = messages.iter().skip(1).any(|message| text(message, "role") == "system");
            is_late.then(|| "System message must be at the beginning.".to_owned())
        },
    },
];

/// What the templates of Mistral's models raise.
const MISTRAL_TEMPLATE: &[Rule] = &[
    Rule {
        name: "roles-alternate",
        source: "https://github.com/sterlp/eclipse-peon-ai/issues/75",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"abcdefgh1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"abcdefgh1","content":"x"},{"role":"user","content":"On."},{"role":"user","content":"And on."}]"#,
        fault: |messages| {
            let counts = |message: &&Value| text(message, "role") == "user" || text(message, "role") == "assistant" && list(message, "tool_calls").is_empty();
            let known = messages.iter().all(|message| matches!(text(message, "role"), "system" | "user" | "assistant" | "tool"));
            let wrong = messages.iter().filter(counts).enumerate().any(|(n, message)| (text(message, "role") == "user") != (n % 2 == 0));
            (wrong && known && !is_hopeless(messages)).then(|| "After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results.".to_owned())
        },
    },
];
