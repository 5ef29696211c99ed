//! Which calls show that the model misses what was cleared.
//!
//! A call does so that repeats one whose result is cleared, or whose arguments name what was stored of such a result. Both
//! are seen in the messages, so that each later request finds the same calls. With the second of them `keep` doubles.
#![expect(clippy::disallowed_types, reason = "arguments are compared by value, and nothing of them is written")]

use std::{borrow::Cow, collections::HashSet};

use serde_json::Value;

use super::Clearing;
use crate::{
    conversation::BlockIndex,
    draft::{Draft, ProposedEdit, Row},
    payload::{Fingerprint, PayloadKey, handles_in},
    plan::Regrets,
};

/// A call whose JSON is longer than this is not compared with others: it writes something, and reads nothing.
const MAX_CALL_BYTES: usize = 4096;

/// With so many calls of a conversation `keep` doubles.
const DOUBLES_AT: usize = 2;

/// The calls of cleared results as the conversation grows.
#[derive(Debug, Default)]
pub(super) struct RegretWatch {
    /// The tools and arguments of calls whose results are cleared.
    cleared: HashSet<Fingerprint>,
    /// What is stored of these.
    handles: HashSet<PayloadKey>,
    /// The calls that have been looked at.
    seen: HashSet<BlockIndex>,
    /// What was found.
    pub(super) found: Regrets,
}

impl RegretWatch {
    /// A result was cleared.
    pub(super) fn cleared(&mut self, draft: &Draft<'_>, row: &Row, clearing: &Clearing) {
        let call = row.call.and_then(|call| Some(identity(draft, call, &arguments(draft, call)?)));
        self.cleared.extend(call);
        self.handles.extend(clearing.proposed_edits().flat_map(ProposedEdit::stored));
    }

    /// A result came, or what stands for one. Returns whether `keep` doubles with its call. `is_new` says that no earlier
    /// request had it.
    pub(super) fn came(&mut self, draft: &Draft<'_>, row: &Row, is_new: bool) -> bool {
        let Some(call) = row.call.filter(|call| self.seen.insert(*call)) else { return false };
        if self.cleared.is_empty() && self.handles.is_empty() {
            return false;
        }
        let Some(arguments) = arguments(draft, call) else { return false };
        let is_recall = self.names_payload(&arguments);
        if !is_recall && !self.cleared.contains(&identity(draft, call, &arguments)) {
            return false;
        }
        let Regrets { repeated, recalled, in_all, keep_doubled } = &mut self.found;
        *if is_recall { recalled } else { repeated } += usize::from(is_new);
        *in_all += 1;
        let doubles = *in_all == DOUBLES_AT;
        *keep_doubled |= doubles;
        doubles
    }

    fn names_payload(&self, arguments: &str) -> bool {
        handles_in(arguments).any(|handle| self.handles.contains(&handle))
    }
}

/// What a call has been written with; none if it is too long.
fn arguments<'a>(draft: &Draft<'a>, call: BlockIndex) -> Option<Cow<'a, str>> {
    draft.conversation().block(call).filter(|block| block.span.len() <= MAX_CALL_BYTES)?;
    draft.arguments(call)
}

/// The tool and the arguments by value: the order of keys and the spelling count for nothing.
fn identity(draft: &Draft<'_>, call: BlockIndex, arguments: &str) -> Fingerprint {
    let value =
        serde_json::from_str::<Value>(arguments).map_or_else(|_| arguments.to_owned(), |value| value.to_string());
    Fingerprint::of(draft.conversation().tool_name(call).as_bytes()).then(Fingerprint::of(value.as_bytes()))
}
