//! What every edit is: a name, a label and one synchronous pass over the draft.

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use crate::draft::Draft;

pub mod patch_tool_calls;

/// One kind of rewrite, with its settings. It cannot fail, waits for nothing, and always does the same to the same
/// conversation.
pub trait Edit: Debug + Send + Sync {
    /// The name that `edits = [...]` takes.
    fn name(&self) -> &'static str;

    /// The short name, for reports.
    fn label(&self) -> &'static str;

    /// Writes its decisions on the draft.
    fn apply(&self, draft: &mut Draft<'_>);
}

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
