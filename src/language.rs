//! The language of the texts that abridge writes into a conversation.

use serde::{Deserialize, Serialize};

/// A language that all texts of ours are there in.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// English.
    #[default]
    En,
    /// Chinese.
    Zh,
}

impl Language {
    /// Returns what replaces the name of a tool without one.
    pub fn unnamed_tool(self) -> &'static str {
        match self {
            Self::En => "a tool without a name",
            Self::Zh => "未命名的工具",
        }
    }
}
