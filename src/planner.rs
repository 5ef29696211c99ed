//! The policy: which edits run, in which order; and the plan that they make of one request.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    dialect::{Dialect, ParseError},
    draft::Draft,
    edit::{
        Edit, Language,
        patch_tool_calls::{self, PatchToolCalls},
    },
    plan::Plan,
};

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

/// The edits that run on each request, in order.
#[derive(Debug)]
pub struct Policy {
    edits: Vec<Box<dyn Edit>>,
}

impl Policy {
    /// The edits that `settings` lists. One that is listed again is the same one, and runs once.
    pub fn new(settings: &Settings, language: Language, patch: &patch_tool_calls::Settings) -> Self {
        let mut names: Vec<EditName> = Vec::new();
        for &name in &settings.edits {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let edit = |name| -> Box<dyn Edit> {
            match name {
                EditName::PatchToolCalls => Box::new(PatchToolCalls::new(patch, language)),
            }
        };
        Self { edits: names.into_iter().map(edit).collect() }
    }

    /// What the edits make of one request. An error says that the request was not understood and is to go on as it came.
    pub fn plan(&self, dialect: &dyn Dialect, body: &Bytes) -> Result<Plan, ParseError> {
        let conversation = dialect.parse(body)?;
        let mut draft = Draft::new(dialect, body, &conversation);
        for edit in &self.edits {
            edit.apply(&mut draft);
        }
        let plan = draft.finish();
        if !plan.is_empty() {
            dialect.verify(body)?;
        }
        Ok(plan)
    }
}
