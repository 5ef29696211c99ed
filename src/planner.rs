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
    recall,
};

pub use crate::draft::{Offload, Situation};

/// All settings that decide on edits: tables of `proxy.toml`, each under its own name.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parts {
    /// The language of the texts that are written.
    pub language: Language,
    /// Which edits run.
    pub policy: Settings,
    /// How what was taken out is got back.
    pub recall: recall::Settings,
    /// The edit that gives every tool call its result.
    pub patch_tool_calls: patch_tool_calls::Settings,
}

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
    /// The edits that `parts.policy` lists. One that is listed again is the same one, and runs once.
    pub fn new(parts: &Parts) -> Self {
        let mut names: Vec<EditName> = Vec::new();
        for &name in &parts.policy.edits {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let edit = |name| -> Box<dyn Edit> {
            match name {
                EditName::PatchToolCalls => Box::new(PatchToolCalls::new(&parts.patch_tool_calls, parts.language)),
            }
        };
        Self { edits: names.into_iter().map(edit).collect() }
    }

    /// The names of the edits that run, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.edits.iter().map(|edit| edit.name())
    }

    /// A body shorter than this many bytes is never tokenised, so it may be planned where nothing may take long.
    pub fn counts_from(&self) -> usize {
        usize::MAX
    }

    /// What the edits make of one request. An error says that the request was not understood and is to go on as it
    /// came.
    pub fn plan(&self, dialect: &dyn Dialect, body: &Bytes, _situation: &Situation<'_>) -> Result<Plan, ParseError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dialect, edit::patch_tool_calls};

    fn plan(settings: &Settings, body: &'static [u8]) -> Result<Plan, ParseError> {
        let policy = Policy::new(settings, Language::En, &patch_tool_calls::Settings::default());
        policy.plan(dialect::for_path("/v1/chat/completions").unwrap(), &Bytes::from_static(body))
    }

    const DANGLING: &[u8] = br#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}"#;

    #[test]
    fn an_edit_that_is_not_listed_is_off() {
        let none = plan(&Settings { edits: vec![] }, DANGLING).unwrap();
        assert!(none.is_empty());
        assert_eq!((none.report.messages_before, none.report.messages_after), (1, 1));
        assert_eq!(plan(&Settings::default(), DANGLING).unwrap().report.messages_after, 2);
    }

    #[test]
    fn an_edit_that_is_listed_twice_runs_once() {
        let twice = Settings { edits: vec![EditName::PatchToolCalls; 2] };
        assert_eq!(plan(&twice, DANGLING), plan(&Settings::default(), DANGLING));
    }

    #[test]
    fn a_body_that_is_not_valid_is_not_changed() {
        for fault in [r"\x", "\\u12", "\u{1}", "\n"] {
            let body = format!(r#"{{"x":"{fault}","messages":[{{"role":"assistant","tool_calls":[{{"id":"1"}}]}}]}}"#);
            let error = plan(&Settings::default(), body.leak().as_bytes()).unwrap_err();
            assert_eq!(error.kind, dialect::ParseErrorKind::NotJson);
        }
    }
}
