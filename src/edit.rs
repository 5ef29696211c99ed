//! What every edit is: one synchronous pass over the draft.

use std::fmt::Debug;

pub use crate::language::Language;

use self::{own_texts::OwnTexts, tools::Tools};
use crate::{draft::Draft, handler, recall};

pub mod clear_tool_results;
pub mod deduplicate_tool_results;
mod file_use;
pub mod filter_tool_calls;
mod handlers;
pub mod keep;
mod names;
pub mod own_texts;
pub mod patch_tool_calls;
pub mod request_prompt_cache;
pub mod summarize;
mod template;
pub mod tools;
pub mod trigger;
pub mod truncate_tool_results;

/// What edits follow from besides their own settings.
#[derive(Clone, Copy, Debug)]
pub struct Common<'a> {
    /// The settings of single tools.
    pub tools: &'a Tools,
    /// The texts that other edits leave alone.
    pub own_texts: &'a OwnTexts,
    /// How what was taken out is got back.
    pub recall: &'a recall::Settings,
    /// The language of the texts that are written.
    pub language: Language,
    /// The programs that edits ask.
    pub handlers: &'a handler::Settings,
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
