//! Which calls show that the model misses what was cleared.
//!
//! A call does so that repeats one whose result is cleared, or whose arguments name what was stored of such a result. Both
//! are seen in the messages, so that each later request finds the same calls. With the second of them `keep` doubles.
#![expect(clippy::disallowed_types, reason = "arguments are compared by value, and nothing of them is written")]

use std::{collections::HashSet, sync::Arc};

use quick_cache::sync::Cache;
use serde_json::Value;
use smart_default::SmartDefault;

use super::Clearing;
use crate::conversation::BlockIndex;
use crate::draft::{Draft, ProposedEdit, Row};
use crate::payload::{Fingerprint, PayloadKey, handles_in};
use crate::plan::Regrets;

/// A call whose JSON is longer than this is not compared with others: it writes something, and reads nothing.
const MAX_CALL_BYTES: usize = 4096;

/// With so many calls of a conversation `keep` doubles.
const DOUBLES_AT: usize = 2;

/// How many calls are remembered, in about half a megabyte.
const MAX_KNOWN: usize = 4 << 10;

/// The content that calls ask for, by their JSON: a call that comes again is not read again.
#[derive(Debug, SmartDefault)]
pub(super) struct CallCache(#[default(Cache::new(MAX_KNOWN))] Cache<Fingerprint, Arc<KnownCall>>);

/// The content that a call asks for.
struct KnownCall {
    /// The tool and the arguments by value: the order of keys and the spelling count for nothing.
    identity: Fingerprint,
    /// The handles in its arguments.
    handles: Box<[PayloadKey]>,
}

/// The calls of cleared results as the conversation grows.
#[derive(Default)]
pub(super) struct RegretWatch {
    /// The tools and arguments of calls whose results are cleared.
    cleared: HashSet<Fingerprint>,
    /// The handles of the stored ones.
    handles: HashSet<PayloadKey>,
    /// The calls that have been looked at.
    seen: HashSet<BlockIndex>,
    /// The findings.
    pub(super) found: Regrets,
}

impl CallCache {
    /// Returns what a call asks for; none if it is too long.
    fn known(&self, draft: &Draft<'_>, call: BlockIndex) -> Option<Arc<KnownCall>> {
        let written = draft.request().call(call)?.of(draft.body);
        if written.len() > MAX_CALL_BYTES {
            return None;
        }
        let read = || {
            let arguments = draft.request().arguments(call).ok_or(())?;
            let by_value = serde_json::from_str::<Value>(&arguments).map(|value| value.to_string());
            let tool = Fingerprint::of(draft.conversation.tool_name(call).as_bytes());
            let identity = tool.then(Fingerprint::of(by_value.as_deref().unwrap_or(&arguments).as_bytes()));
            Ok::<_, ()>(Arc::new(KnownCall { identity, handles: handles_in(&arguments).collect() }))
        };
        self.0.get_or_insert_with(&Fingerprint::of(written), read).ok()
    }
}

impl RegretWatch {
    /// A result was cleared.
    pub(super) fn cleared(&mut self, calls: &CallCache, draft: &Draft<'_>, row: &Row, clearing: &Clearing) {
        let call = row.call.and_then(|call| calls.known(draft, call));
        self.cleared.extend(call.map(|call| call.identity));
        self.handles.extend(clearing.proposed_edits().flat_map(ProposedEdit::stored));
    }

    /// A result came, or what replaces one. Returns whether `keep` doubles with its call. `is_new` says that no earlier
    /// request had it.
    pub(super) fn came(&mut self, calls: &CallCache, draft: &Draft<'_>, row: &Row, is_new: bool) -> bool {
        let call = row.call.filter(|call| self.seen.insert(*call));
        let call = call.filter(|_| !self.cleared.is_empty() || !self.handles.is_empty());
        let Some(call) = call.and_then(|call| calls.known(draft, call)) else { return false };
        let is_recall = call.handles.iter().any(|handle| self.handles.contains(handle));
        if !is_recall && !self.cleared.contains(&call.identity) {
            return false;
        }
        let Regrets { repeated, recalled, in_all, keep_doubled } = &mut self.found;
        *if is_recall { recalled } else { repeated } += usize::from(is_new);
        *in_all += 1;
        let doubles = *in_all == DOUBLES_AT;
        *keep_doubled |= doubles;
        doubles
    }
}
