//! Any conversation becomes a valid one, nothing else is touched, and once is enough.
//!
//! The input is a conversation: see [`Given`].

use abridge_proxy::edit::patch_tool_calls::{self, Orphans};
use abridge_proxy::engine::{EditedBody, edit_body};
use abridge_proxy::planner::{PlanSettings, Settings};
use bytes::Bytes;

use super::accounted::{accounted, elements};
use super::conversation::Given;
use super::{PLACEHOLDER, dialect, is_ours, is_readable, planner, validator};

/// Patches a conversation, with orphans left out and kept.
pub fn run(input: &[u8]) {
    let body = Given::read(input).body();
    for orphans in [Orphans::Drop, Orphans::Keep] {
        let edited = edit(orphans, &body);
        let Some(report) = &edited.report else {
            assert!(is_same(&body, &edited), "not understood, and changed");
            continue;
        };
        assert_eq!(report.changes.is_empty(), is_same(&body, &edited));
        let output = Bytes::from(edited.body.concat());
        assert_eq!(report.bytes_after, output.len());
        let again = edit(orphans, &output);
        assert!(is_same(&output, &again), "{:?}", again.report);
        if !report.changes.is_empty() {
            let known = accounted(&elements(&body), &elements(&output), report, is_ours);
            assert_eq!(known, Ok(()), "{report}");
        }
        if orphans == Orphans::Drop && is_readable(&body) {
            let check = |body: &[u8]| validator::check(body).and_then(|()| validator::check_order(body));
            assert_eq!(check(&output), Ok(()));
            assert_eq!(check(&body).is_ok(), report.changes.is_empty());
        }
    }
}

fn edit(orphans: Orphans, body: &Bytes) -> EditedBody {
    let patch_tool_calls =
        patch_tool_calls::Settings { template: Some(PLACEHOLDER.to_owned()), orphans, handler: None };
    let policy = Settings { edits: Settings::default().edits.into_iter().take(1).collect(), ..Settings::default() };
    edit_body(&planner(PlanSettings { patch_tool_calls, policy, ..PlanSettings::default() }), dialect(), body.clone())
}

/// Whether the body goes on as it came, without having been copied.
fn is_same(body: &Bytes, edited: &EditedBody) -> bool {
    matches!(edited.body.as_slice(), [only] if only.as_ptr_range() == body.as_ptr_range())
}
