//! Where each message of an edited request comes from. The tests over recorded traffic ask, and so do the fuzz targets.

use abridge_proxy::plan::{Action, Report};
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Messages<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

/// The elements of the message array as they are written.
pub(crate) fn elements(body: &[u8]) -> Vec<&str> {
    let request: Messages<'_> = serde_json::from_slice(body).expect("a body that was understood");
    request.messages.into_iter().map(RawValue::get).collect()
}

/// Every message that went out stood in the request, in this order and in these bytes, or is one the report tells of;
/// `is_ours` knows those that abridge has written.
pub(crate) fn accounted(
    came: &[&str],
    went: &[&str],
    report: &Report,
    is_ours: fn(&str) -> bool,
) -> Result<(), String> {
    let (mut left, mut moved, mut inserted) = (vec![false; came.len()], Vec::new(), 0_usize);
    let mut rewritten = vec![false; came.len()];
    for change in &report.changes {
        match change.action {
            // The text of a message whose calls were filtered out is joined with that of a later message.
            Action::Move { message, behind } if change.edit == "filter" => {
                left[message] = true;
                rewritten[behind] = true;
            }
            Action::Move { message, .. } => {
                left[message] = true;
                moved.push(message);
            }
            Action::Insert { .. } | Action::InsertText { .. } => inserted += 1,
            Action::Drop { message }
            | Action::DropCall { message }
            | Action::Strip { message }
            | Action::Truncate { message }
            | Action::Deduplicate { message }
            | Action::Clear { message }
            | Action::ClearInput { message }
            | Action::Mend { message } => rewritten[message] = true,
            Action::Summarize { from, to } => left[from..to].fill(true),
        }
    }
    report.layout.gone.iter().for_each(|&message| left[message] = true);
    let mut staying = (0..came.len()).filter(|&n| !left[n]).peekable();
    for &message in went {
        if staying.next_if(|&n| !rewritten[n] && came[n] == message).is_some() {
            continue;
        }
        match moved.iter().position(|&n| !rewritten[n] && came[n] == message) {
            Some(found) => drop(moved.swap_remove(found)),
            None if inserted > 0 && is_ours(message) => inserted -= 1,
            None if staying.next_if(|&n| rewritten[n]).is_some() => {}
            None => match moved.iter().position(|&n| rewritten[n]) {
                Some(found) => drop(moved.swap_remove(found)),
                None => return Err(format!("nobody knows of {message:.200}")),
            },
        }
    }
    if staying.next().is_some() || !moved.is_empty() || inserted != 0 {
        return Err("a message is missing".to_owned());
    }
    Ok(())
}
