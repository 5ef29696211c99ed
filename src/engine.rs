//! From a request body to the body that goes upstream. It never fails: what is not understood goes on as it came.

use bytes::Bytes;

use crate::{
    dialect::{Dialect, ParseError},
    plan::Report,
    planner::Policy,
    span::splice,
};

/// A body after the edits.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Edited {
    /// The body in pieces. Where nothing changed, it is the one piece that came.
    pub body: Vec<Bytes>,
    /// What was done; none if the request was not understood.
    pub report: Option<Report>,
    /// Why the request was not understood.
    pub skipped: Option<ParseError>,
}

// === impl Edited ===

impl Edited {
    /// A body that was not looked at.
    pub fn untouched(body: Bytes) -> Self {
        Self { body: vec![body], report: None, skipped: None }
    }

    /// Whether the body is another one now.
    pub fn changed(&self) -> bool {
        self.report.as_ref().is_some_and(|report| !report.changes.is_empty())
    }
}

/// Edits a body by `policy`.
pub fn edit_body(policy: &Policy, dialect: &dyn Dialect, body: Bytes) -> Edited {
    match policy.plan(dialect, &body) {
        Ok(plan) => Edited { body: splice(&body, &plan.splices), report: Some(plan.report), skipped: None },
        Err(error) => Edited { body: vec![body], report: None, skipped: Some(error) },
    }
}
