//! Finds calls that are answered in another form than a result.

use std::collections::HashSet;

use super::Draft;
use crate::conversation::{BlockKind, CallIndex, Pairing, Role, UnitIndex};
use crate::dialect::{AnsweredInWords, OpenCalls};

impl Draft<'_> {
    /// Marks calls as not answerable if messages directly after their batch answer them in another form. The upstream of such
    /// a client accepts that form, and a placeholder beside it would be false.
    pub(super) fn note_answers_in_words(&self, pairing: &mut Pairing) {
        if pairing.calls.iter().all(|call| call.answered || !call.answerable) {
            return;
        }
        let mut first = 0;
        while let Some(call) = pairing.calls.get(first) {
            let run_end = pairing.run_end_of(call);
            let rest = pairing.calls.get(first..).unwrap_or_default();
            let n_calls = rest.iter().take_while(|call| pairing.run_end_of(call) == run_end).count().max(1);
            let is_open = |n: &usize| pairing.calls.get(*n).is_some_and(|call| !call.answered && call.answerable);
            let open: Vec<_> = (first..first + n_calls).filter(is_open).collect();
            if let (Some(run_end), false) = (run_end, open.is_empty()) {
                for call in self.answered_in_words(pairing, &open, run_end.next()) {
                    if let Some(call) = pairing.calls.get_mut(call) {
                        call.answerable = false;
                    }
                }
            }
            first += n_calls;
        }
    }

    /// Which of the open calls of a batch the messages from `next` on answer.
    fn answered_in_words(&self, pairing: &Pairing, open: &[usize], next: UnitIndex) -> Vec<usize> {
        let units = self.conversation.unit_range(&(next..self.conversation.next_unit()));
        let mut messages = units.iter().take_while(|unit| matches!(unit.role, Role::User | Role::Other)).peekable();
        if messages.peek().is_none() {
            return Vec::new();
        }
        let call = |n: &usize| match &self.conversation.block(pairing.call(CallIndex::new(*n))?.block)?.kind {
            BlockKind::ToolCall { id, name, .. } => Some((&*id.text, name.as_deref().unwrap_or_default())),
            BlockKind::ToolResult { .. } => None,
        };
        let mut calls = OpenCalls::new(open.iter().map(|n| call(n).unwrap_or_default()));
        let mut answered = Vec::new();
        for message in messages {
            match self.dialect.answered_in_words(self.body, message.span, &calls) {
                Some(AnsweredInWords::Calls(named)) => answered.extend(named.iter().filter_map(|n| open.get(*n))),
                Some(AnsweredInWords::Tool(name)) => answered.extend(calls.take(&name).and_then(|n| open.get(n))),
                Some(AnsweredInWords::All) => answered.extend(open),
                None => {}
            }
        }
        // Calls of one id in one turn cannot be told apart.
        let id = |n: &usize| call(n).map(|(id, _)| id).filter(|id| !id.is_empty());
        let ids: HashSet<&str> = answered.iter().filter_map(id).collect();
        answered.extend(open.iter().filter(|n| id(n).is_some_and(|id| ids.contains(id))));
        answered
    }
}
