//! Which handler an edit asks.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::handler::Settings;

/// The handlers that an edit may ask: its own, and those that tables of `[tools]` name.
#[derive(Clone, Debug, Default)]
pub(super) struct Handlers {
    of_edit: Option<Arc<str>>,
    names: BTreeSet<Arc<str>>,
}

impl Handlers {
    /// The handlers of the settings, for an edit that names one of them, or none.
    pub(super) fn new(settings: &Settings, of_edit: Option<&str>) -> Self {
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

    /// The handler of the edit.
    pub(super) fn of_edit(&self) -> Option<&Arc<str>> {
        self.of_edit.as_ref()
    }
}
