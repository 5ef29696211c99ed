//! What every edit is: a name, a label and one synchronous pass over the draft.

use serde::{Deserialize, Serialize};

pub mod patch_tool_calls;

/// The language of the texts that abridge writes into a conversation.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// English.
    #[default]
    En,
    /// Chinese.
    Zh,
}
