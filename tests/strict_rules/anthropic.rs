//! What Anthropic refuses: <https://platform.claude.com/docs/en/api/messages>, and reports.

use std::collections::BTreeSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{Rule, entries, is_blank, is_hopeless, list, text};

/// Its rules.
pub(super) const ANTHROPIC: &[Rule] = &[
    Rule {
        name: "calls-have-results",
        source: "https://github.com/anthropics/claude-code/issues/5060",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let batches = batches(messages)?;
            let (n, id) =
                batches.iter().find_map(|(n, called, answered)| Some((n, called.difference(answered).next()?)))?;
            Some(format!(
                "messages.{n}: `tool_use` ids were found without `tool_result` blocks immediately after: {id}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            ))
        },
    },
    Rule {
        name: "results-have-calls",
        source: "https://github.com/anthropics/claude-code/issues/13460",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"Yes."},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"},{"type":"text","text":"On."}]}]"#,
        fault: |messages| {
            let batches = batches(messages)?;
            let (n, id) =
                batches.iter().find_map(|(n, called, answered)| Some((n + 1, answered.difference(called).next()?)))?;
            Some(format!(
                "messages.{n}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            ))
        },
    },
    Rule {
        name: "no-mark-on-nothing",
        source: "https://github.com/anthropics/claude-code/issues/55302",
        fixture: r#"[{"role":"user","content":[{"type":"text","text":"Go."},{"type":"text","text":"","cache_control":{"type":"ephemeral"}}]}]"#,
        fault: |messages| {
            let (n, m, _) = entries(messages).find(|(_, _, entry)| {
                text(entry, "type") == "text" && entry["text"] == "" && entry["cache_control"].is_object()
            })?;
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
            all.any(|entry| text(entry, "type") == "text" && entry["text"] == "")
                .then(|| "messages: text content blocks must be non-empty".to_owned())
        },
    },
    Rule {
        name: "texts-are-not-blank",
        source: "https://github.com/anthropics/claude-code/issues/23440",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"text","text":"\n\n"}]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let blank =
                entries(messages).any(|(_, _, entry)| text(entry, "type") == "text" && is_blank(&entry["text"]));
            blank.then(|| "messages: text content blocks must contain non-whitespace text".to_owned())
        },
    },
    Rule {
        name: "messages-are-filled",
        source: "https://github.com/anthropics/claude-code/issues/21317",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let last = messages.len();
            let nothing = |message: &Value| {
                is_blank(&message["content"]) || message["content"] == json!([]) || message["content"].is_null()
            };
            let n = (0..last)
                .find(|&n| nothing(&messages[n]) && (n + 1 < last || text(&messages[n], "role") != "assistant"))?;
            (!is_hopeless(messages)).then(|| format!("messages.{n}: all messages must have non-empty content except for the optional final assistant message"))
        },
    },
    Rule {
        name: "ids-are-unique",
        source: "https://github.com/anthropics/claude-code/issues/20573",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"}]},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"y"}]}]"#,
        fault: |messages| {
            let mut met = BTreeSet::new();
            let (n, m, _) = entries(messages).find(|(_, _, entry)| {
                text(entry, "type") == "tool_use" && !text(entry, "id").is_empty() && !met.insert(text(entry, "id"))
            })?;
            (!is_hopeless(messages)).then(|| format!("messages.{n}.content.{m}: `tool_use` ids must be unique"))
        },
    },
    Rule {
        name: "ids-are-plain",
        source: "https://github.com/RooCodeInc/Roo-Code/pull/10649",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"functions.Bash:0","name":"Bash","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"functions.Bash:0","content":"x"}]}]"#,
        fault: |messages| {
            let is_plain = |id: &str| id.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
            let (n, m, _) = entries(messages)
                .find(|(_, _, entry)| text(entry, "type") == "tool_use" && !is_plain(text(entry, "id")))?;
            Some(format!("messages.{n}.content.{m}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"))
        },
    },
    Rule {
        name: "inputs-are-objects",
        source: "https://github.com/anthropics/claude-code/issues/6697",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":"{\"n\": 1}"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"}]}]"#,
        fault: |messages| {
            let (n, m, _) = entries(messages).find(|(_, _, entry)| {
                text(entry, "type") == "tool_use" && !entry["input"].is_object() && !entry["input"].is_null()
            })?;
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
            Some(format!(
                "messages.{n}.content.{m}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note that blocks are processed in the following order: `tools`, `system`, `messages`."
            ))
        },
    },
    Rule {
        name: "errors-are-texts",
        source: "https://github.com/vellum-ai/vellum-assistant/issues/18387",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]}]}]"#,
        fault: |messages| {
            let (n, m, _) = entries(messages).find(|(_, _, entry)| {
                entry["is_error"] == true && list(entry, "content").iter().any(|part| text(part, "type") == "image")
            })?;
            Some(format!("messages.{n}.content.{m}.tool_result: all content must be type 'text' if 'is_error' is true"))
        },
    },
    Rule {
        name: "images-have-8000-pixels",
        source: "https://github.com/anthropics/claude-code/issues/4778",
        fixture: r#"[{"role":"user","content":[{"type":"text","text":"Look."},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgoAAAANSUhEUgAAH0EAAABAAAAA"}}]}]"#,
        fault: |messages| {
            // The width and height of a PNG.
            let side = |data: &str| {
                let bytes = STANDARD.decode(data.get(..32)?).ok().filter(|bytes| bytes.starts_with(b"\x89PNG"))?;
                let of = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
                Some(of(16)?.max(of(20)?))
            };
            let is_too_large =
                |part: &Value| part["source"]["data"].as_str().and_then(side).is_some_and(|side| side > 8000);
            let (n, m, _) = entries(messages)
                .find(|(_, _, entry)| is_too_large(entry) || list(entry, "content").iter().any(is_too_large))?;
            Some(format!(
                "messages.{n}.content.{m}.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels"
            ))
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
                kind.ends_with("_tool_result")
                    && text(entry, "tool_use_id").starts_with("srvtoolu_")
                    && !called.contains(text(entry, "tool_use_id"))
            })?;
            let (kind, id) = (text(entry, "type"), text(entry, "tool_use_id"));
            Some(format!(
                "messages.{n}.content.{m}: unexpected `tool_use_id` found in `{kind}` blocks: {id}. Each `{kind}` block must have a corresponding `server_tool_use` block before it."
            ))
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
    let is_compaction =
        |message: &Value| list(message, "content").iter().any(|entry| text(entry, "type") == "compaction");
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
