//! What Bedrock's Converse API refuses of conversations that `LiteLLM` has translated: its words are in the envelope of `LiteLLM`'s proxy.

use serde_json::Value;

use super::openai::unpaired;
use super::{Rule, calls, entries, is_blank, text};

/// The rules of Converse. `LiteLLM` itself joins messages of one role and drops messages that are empty as a whole.
pub(super) const BEDROCK: &[Rule] = &[
    Rule {
        name: "calls-have-results",
        source: "https://github.com/agno-agi/agno/issues/6698",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":"On."}]"#,
        fault: |messages| {
            let (called, _) = unpaired(messages)?;
            called.map(|id| format!("Expected toolResult blocks at messages.2.content for the following Ids: {id}"))
        },
    },
    Rule {
        name: "results-have-calls",
        source: "https://github.com/strands-agents/harness-sdk/issues/1435",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"tool","tool_call_id":"c1","content":"x"}]"#,
        fault: |messages| {
            let (_, answered) = unpaired(messages)?;
            answered.map(|_| {
                "The number of toolResult blocks at messages.0.content exceeds the number of toolUse blocks of previous turn.".to_owned()
            })
        },
    },
    Rule {
        name: "texts-are-not-blank",
        source: "https://github.com/OpenHands/OpenHands/issues/5339",
        fixture: r#"[{"role":"user","content":[{"type":"text","text":"Go."},{"type":"text","text":" "}]}]"#,
        fault: |messages| {
            let (n, m, _) = entries(messages).find(|(n, _, entry)| {
                text(&messages[*n], "role") != "tool" && text(entry, "type") == "text" && is_blank(&entry["text"])
            })?;
            Some(format!(
                "The text field in the ContentBlock object at messages.{n}.content.{m} is blank. Add text to the text field, and try again."
            ))
        },
    },
    Rule {
        name: "ids-have-few-characters",
        source: "https://github.com/earendil-works/pi/pull/781",
        fixture: r#"[{"role":"user","content":"Go."},{"role":"assistant","content":"","tool_calls":[{"id":"c1|fc_1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1|fc_1","content":"x"}]"#,
        fault: |messages| {
            let may_be = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
            let is_odd = |call: &Value| text(call, "id").contains(|c| !may_be(c));
            let (n, m, _) = calls(messages).find(|(_, _, call)| is_odd(call))?;
            Some(format!(
                "1 validation error detected: Value at 'messages.{n}.member.content.{m}.member.toolUse.toolUseId' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_.:-]+"
            ))
        },
    },
];
