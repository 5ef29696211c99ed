//! The tools that abridge adds to requests, and the requests of the model in calls of [`CONTROL`].

use serde::Deserialize;

/// A tool that abridge adds to requests, as the model reads it.
#[derive(Clone, Copy, Debug)]
pub struct OwnTool {
    /// Its name.
    pub name: &'static str,
    /// Its description.
    pub description: &'static str,
    /// The JSON schema of its arguments.
    pub parameters: &'static str,
    /// The same for a tool that is marked `strict`: each member is required, and may be null.
    pub strict_parameters: &'static str,
}

/// Reads a text that was taken out.
pub const RECALL: OwnTool = OwnTool {
    name: "abridge_recall",
    description: "Reads a text that was taken out of the conversation, by the handle that the notice in its place names. Without a selection it returns the first 20000 bytes. Select a part with one of: lines, grep, offset and limit.",
    parameters: r#"{"type":"object","properties":{"handle":{"type":"string","description":"The handle: 26 digits and letters."},"lines":{"type":"string","description":"The lines A-B, A- or A, from 1, B included."},"grep":{"type":"string","description":"Each line with this text, with its number."},"offset":{"type":"integer","minimum":0,"description":"The first byte."},"limit":{"type":"integer","minimum":1,"description":"How many bytes."}},"required":["handle"]}"#,
    strict_parameters: r#"{"type":"object","properties":{"handle":{"type":"string","description":"The handle: 26 digits and letters."},"lines":{"type":["string","null"],"description":"The lines A-B, A- or A, from 1, B included."},"grep":{"type":["string","null"],"description":"Each line with this text, with its number."},"offset":{"type":["integer","null"],"description":"The first byte."},"limit":{"type":["integer","null"],"description":"How many bytes."}},"required":["handle","lines","grep","offset","limit"],"additionalProperties":false}"#,
};

/// Controls clearing.
pub const CONTROL: OwnTool = OwnTool {
    name: "abridge_control_context",
    description: "Controls which results of tools stay in this conversation. Old results are cleared when it has grown large. `pin` keeps a result that you will need again. `compact` clears old results now: call it when a part of the task is done and its results are not needed any more.",
    parameters: CONTROL_PARAMETERS,
    strict_parameters: CONTROL_PARAMETERS,
};

const CONTROL_PARAMETERS: &str = r#"{"type":"object","properties":{"action":{"type":"string","enum":["pin","compact"]},"result":{"type":["string","null"],"description":"For pin: words from the arguments of the call, such as a path. The newest such result is pinned; without it, the last result."}},"required":["action","result"],"additionalProperties":false}"#;

/// The name of [`CONTROL`] at the MCP server.
pub const CONTROL_TOOL: &str = "control_context";

/// The request in a call of [`CONTROL`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(tag = "action", rename_all = "lowercase")]
pub enum Control {
    /// A result is not cleared from here on.
    Pin {
        /// The words that name it; without any, it is the last one.
        result: Option<String>,
    },
    /// Old results are cleared, whether the trigger holds or not.
    Compact,
}

impl Control {
    /// Reads the arguments of a call.
    pub fn parse(arguments: &str) -> Option<Self> {
        serde_json::from_str(arguments).ok()
    }

    /// The answer to a call with these arguments. It does not depend on the messages: those of the next request show what is
    /// pinned or cleared.
    pub fn answer(arguments: &str) -> Result<&'static str, &'static str> {
        match Self::parse(arguments) {
            Some(Self::Pin { .. }) => Ok(
                "The newest result that fits is pinned from now on. Pinned results may take a quarter of the size at which clearing begins; beyond that the oldest pins end.",
            ),
            Some(Self::Compact) => {
                Ok("Old results are cleared with your next turn. The newest and the pinned ones stay.")
            }
            None => Err("action must be pin or compact"),
        }
    }
}

/// Whether abridge adds a tool of this name.
pub fn is_added(name: &str) -> bool {
    [RECALL, CONTROL].iter().any(|tool| tool.name == name)
}

/// Whether a tool controls clearing: the one that is added, or that of the MCP server. In Responses, the call of a tool in a
/// namespace has the last part of its name alone.
pub fn is_control_tool(name: &str) -> bool {
    name == CONTROL_TOOL || super::is_server_tool(name, CONTROL_TOOL)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn a_call_is_known_by_its_name_and_read_by_its_arguments() {
        for name in ["mcp__abridge__control_context", "abridge_control_context", "control_context", CONTROL.name] {
            assert!(is_control_tool(name), "{name}");
        }
        for name in ["mcp__other__control_context", "abridge_recall", "control"] {
            assert!(!is_control_tool(name), "{name}");
        }
        let pin = |result: Option<&str>| Some(Control::Pin { result: result.map(str::to_owned) });
        for (arguments, expected) in [
            (r#"{"action":"pin","result":"a.rs"}"#, pin(Some("a.rs"))),
            (r#"{"action":"pin","result":null}"#, pin(None)),
            (r#"{"result":null,"action":"compact"}"#, Some(Control::Compact)),
            (r#"{"action":"unpin"}"#, None),
            ("compact", None),
        ] {
            assert_eq!(Control::parse(arguments), expected, "{arguments}");
            assert_eq!(Control::answer(arguments).is_ok(), expected.is_some());
        }
    }

    #[derive(Deserialize)]
    struct Schema {
        properties: BTreeMap<String, Box<RawValue>>,
        required: Vec<String>,
    }

    #[test]
    fn the_schemas_of_both_tools_are_json_and_the_strict_one_requires_each_member() {
        for tool in [RECALL, CONTROL] {
            let [usual, strict]: [Schema; 2] =
                [tool.parameters, tool.strict_parameters].map(|text| serde_json::from_str(text).unwrap());
            assert!(usual.properties.keys().eq(strict.properties.keys()), "{}", tool.name);
            let mut required = strict.required;
            required.sort();
            assert!(strict.properties.keys().eq(&required), "{}", tool.name);
        }
    }
}
