//! From a request body to the body that goes upstream. It never fails: what is not understood goes on as it came.

use bytes::Bytes;

use crate::{
    dialect::{Dialect, ParseError},
    plan::Report,
    planner::{Policy, Situation},
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
pub fn edit_body(policy: &Policy, dialect: &dyn Dialect, body: Bytes, situation: &Situation<'_>) -> Edited {
    match policy.plan(dialect, &body, situation) {
        Ok(plan) => Edited { body: splice(&body, &plan.splices), report: Some(plan.report), skipped: None },
        Err(error) => Edited { body: vec![body], report: None, skipped: Some(error) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dialect, planner, replay::Scene};

    fn edit(body: &'static str) -> (Bytes, Edited) {
        let policy = Policy::new(&planner::Parts::default());
        let body = Bytes::from(body.to_owned());
        let edited = edit_body(
            &policy,
            dialect::for_path("/v1/chat/completions").unwrap(),
            body.clone(),
            &Scene::default().situation(),
        );
        (body, edited)
    }

    fn check_same_allocation(body: &Bytes, edited: &Edited) {
        assert_eq!(edited.body.len(), 1);
        assert_eq!(edited.body[0].as_ptr_range(), body.as_ptr_range());
    }

    #[test]
    fn what_is_not_understood_goes_on_as_it_came() {
        for body in ["", "no json", r#"{"messages":7}"#, r#"{"messages":["hi"]}"#] {
            let (body, edited) = edit(body);
            check_same_allocation(&body, &edited);
            assert!(edited.report.is_none() && edited.skipped.is_some());
        }
    }

    #[test]
    fn what_needs_no_edit_goes_on_as_it_came() {
        let (body, edited) = edit(r#"{"model":"m","messages":[{"role":"user"}]}"#);
        check_same_allocation(&body, &edited);
        assert_eq!(edited.report.unwrap().model.as_deref(), Some("m"));
        assert_eq!(edited.skipped, None);
    }

    #[test]
    fn an_edited_body_is_made_of_pieces_of_the_one_that_came() {
        let (body, edited) = edit(r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}"#);
        assert_eq!(edited.body[0].as_ptr(), body.as_ptr());
        let output = edited.body.concat();
        assert_eq!(edited.report.unwrap().bytes_after, output.len());
        assert!(output.ends_with(b"finished.\"}]}"));
    }
}
