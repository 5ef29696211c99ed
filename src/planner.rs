//! The policy: which edits run, in which order; and the plan that they make of one request.

use serde::{Deserialize, Serialize};

/// `[policy]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The edits that run, in this order. One that is not listed is off.
    pub edits: Vec<EditName>,
}

/// The edits there are, by the names that `edits = [...]` takes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EditName {
    /// See [`crate::edit::patch_tool_calls`].
    PatchToolCalls,
}

impl Default for Settings {
    fn default() -> Self {
        Self { edits: vec![EditName::PatchToolCalls] }
    }
}
