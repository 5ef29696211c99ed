//! `patch_tool_calls`: makes every tool call have exactly one result, directly behind it.

use serde::{Deserialize, Serialize};

/// `[patch_tool_calls]` of `proxy.toml`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The text that stands for a missing result; `{tool_name}` and `{tool_call_id}` are filled in. Default: by language.
    pub template: Option<String>,
    /// What becomes of a result that answers no call, or one that is answered already.
    pub orphans: Orphans,
}

/// What becomes of a result without a call.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Orphans {
    /// It leaves the conversation: strict upstreams answer 400 to it.
    #[default]
    Drop,
    /// It stays where it is.
    Keep,
}
