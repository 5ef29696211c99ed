//! Which handler an edit asks.

use std::collections::BTreeMap;

use crate::handler::{AskMode, HandlerRef, Settings};

/// The handlers that an edit may ask: its own, and those that tables of `[tools]` name.
#[derive(Clone, Debug, Default)]
pub(super) struct Handlers {
    of_edit: Option<HandlerRef>,
    by_name: BTreeMap<String, HandlerRef>,
}

impl Handlers {
    /// The handlers of the settings, for an edit that names one of them, or none.
    pub(super) fn new(settings: &Settings, of_edit: Option<&str>) -> Self {
        let of = |(name, handler): (&String, &crate::handler::Handler)| {
            let is_ahead = handler.mode == AskMode::Background;
            (name.clone(), HandlerRef { name: name.as_str().into(), on_error: handler.on_error, is_ahead })
        };
        let by_name: BTreeMap<_, _> = settings.iter().map(of).collect();
        Self { of_edit: of_edit.and_then(|name| by_name.get(name)).cloned(), by_name }
    }

    /// The same for an edit that asks this one.
    #[must_use]
    pub(super) fn asking(self, handler: Option<HandlerRef>) -> Self {
        Self { of_edit: handler.or(self.of_edit), ..self }
    }

    /// The handler for a tool whose table names this one; an empty name is none.
    pub(super) fn of_tool(&self, named: impl FnOnce() -> Option<String>) -> Option<&HandlerRef> {
        if self.of_edit.is_none() && self.by_name.is_empty() {
            return None;
        }
        match named() {
            Some(name) => self.by_name.get(&name),
            None => self.of_edit.as_ref(),
        }
    }

    /// The handler of the edit.
    pub(super) fn of_edit(&self) -> Option<&HandlerRef> {
        self.of_edit.as_ref()
    }
}
