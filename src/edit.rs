//! What every edit is: one synchronous pass over the draft.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

pub use crate::language::Language;

use self::{own_texts::OwnTexts, tools::Tools};
use crate::{draft::Draft, handler, recall};

pub mod clear_tool_results;
pub mod deduplicate_tool_results;
mod file_use;
pub mod filter_tool_calls;
mod names;
pub mod own_texts;
pub mod patch_tool_calls;
pub mod request_prompt_cache;
pub mod summarize;
pub mod tools;
pub mod trigger;
pub mod truncate_tool_results;

/// The settings that several edits follow, besides their own.
#[derive(Clone, Copy, Debug)]
pub struct SharedSettings<'a> {
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

/// The handlers that an edit may ask: its own, and those that tables of `[tools]` name.
#[derive(Clone, Debug, Default)]
pub(super) struct Handlers {
    /// The handler of the edit.
    pub(super) of_edit: Option<Arc<str>>,
    names: BTreeSet<Arc<str>>,
}

impl Handlers {
    /// The handlers of the settings, for an edit that names one of them, or none.
    pub(super) fn new(settings: &handler::Settings, of_edit: Option<&str>) -> Self {
        let names: BTreeSet<Arc<str>> = settings.keys().map(|name| name.as_str().into()).collect();
        Self { of_edit: of_edit.and_then(|name| names.get(name)).cloned(), names }
    }

    /// The handler for a tool whose table names this one; an empty name is none.
    pub(super) fn of_tool(&self, named: impl FnOnce() -> Option<String>) -> Option<&Arc<str>> {
        if self.of_edit.is_none() && self.names.is_empty() {
            return None;
        }
        match named() {
            Some(name) => self.names.get(name.as_str()),
            None => self.of_edit.as_ref(),
        }
    }
}
