//! Edits: each is one synchronous pass over the draft.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

pub use crate::language::Language;

use self::{own_texts::OwnTexts, tools::Tools};
use crate::{draft::Draft, recall};

pub mod clear_tool_results;
pub mod deduplicate_tool_results;
mod file_use;
pub mod filter_tool_calls;
pub mod own_texts;
pub mod patch_tool_calls;
pub mod request_prompt_cache;
pub mod summarize;
pub mod tools;
pub mod trigger;
pub mod truncate_tool_results;

/// The settings that several edits follow, besides their own.
#[derive(Clone, Debug)]
pub struct SharedSettings {
    /// The settings of single tools.
    pub tools: Tools,
    /// The texts that edits write, which other edits leave alone.
    pub own_texts: OwnTexts,
    /// How what was taken out is got back.
    pub recall: recall::Settings,
    /// The language of the texts that are written.
    pub language: Language,
    /// The names of the handlers that edits may ask.
    pub handlers: BTreeSet<Arc<str>>,
}

impl SharedSettings {
    /// The handler for a tool: the one that the table of the tool names, where an empty name is none, or else that of the edit.
    fn handler(&self, of_edit: Option<&str>, of_tool: impl FnOnce() -> Option<String>) -> Option<&Arc<str>> {
        if self.handlers.is_empty() {
            return None;
        }
        self.handlers.get(of_tool().as_deref().or(of_edit)?)
    }
}

/// One kind of rewrite, with its settings. It cannot fail, waits for nothing, and always does the same to the same
/// conversation.
pub trait Edit: Debug + Send + Sync {
    /// The edit counts no tokens of a body with fewer bytes than this. `window` is the model's context window in tokens, if it
    /// is known.
    fn counts_from(&self, _window: Option<usize>) -> usize {
        usize::MAX
    }

    /// Writes its decisions on the draft.
    fn apply(&self, draft: &mut Draft<'_>);
}

#[cfg(test)]
mod tests;
