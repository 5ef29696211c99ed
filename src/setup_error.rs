//! Why something that the settings name cannot be used: a file with certificates, a proxy, a key, a handler.

use std::error::Error;

/// What cannot be used, in words, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct SetupError {
    what: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl SetupError {
    /// An error without a further cause.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), source: None }
    }

    /// An error with its cause.
    pub fn because(what: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Self { what: what.into(), source: Some(Box::new(source)) }
    }
}
