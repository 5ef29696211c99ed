//! State that is held for some instructions, never across an await.

use std::sync::PoisonError;

pub(crate) mod budget;

/// A value that one thread uses at a time.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "its guard does not leave `with`, which does not wait")]
pub(crate) struct Held<T>(std::sync::Mutex<T>);

impl<T> Held<T> {
    /// Holds this value.
    pub(crate) fn new(value: T) -> Self {
        Self(value.into())
    }

    /// Uses the value.
    pub(crate) fn with<R>(&self, with: impl FnOnce(&mut T) -> R) -> R {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
