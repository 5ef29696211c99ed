//! What the engine does where the world does not help.

use super::*;
use crate::{
    dialect,
    edit::{Language, patch_tool_calls},
    planner,
};

fn edit(body: &'static str) -> (Bytes, Edited) {
    let policy = Policy::new(&planner::Settings::default(), Language::En, &patch_tool_calls::Settings::default());
    let body = Bytes::from(body.to_owned());
    let edited = edit_body(&policy, dialect::for_path("/v1/chat/completions").unwrap(), body.clone());
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
