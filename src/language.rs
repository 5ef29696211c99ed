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
    /// The name of a tool, or the words for a tool without a name.
    pub fn tool_name(self, name: &str) -> &str {
        if name.is_empty() { self.choose("a tool without a name", "未命名的工具") } else { name }
    }

    /// The one of two texts that is in this language.
    pub fn choose<T>(self, en: T, zh: T) -> T {
        match self {
            Self::En => en,
            Self::Zh => zh,
        }
    }
}
