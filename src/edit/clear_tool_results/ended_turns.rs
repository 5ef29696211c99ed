//! The reasoning that leaves with a pass: that of the turns that have ended by then.

use std::{collections::VecDeque, iter, mem};

use crate::conversation::{Role, UnitIndex};
use crate::draft::{Draft, RowIndex};

/// The turns of a conversation as it grows, and their reasoning.
#[derive(Debug, Default)]
pub(super) struct EndedTurns {
    /// The reasoning that has not left, in order.
    waiting: VecDeque<Reasoning>,
    /// Its tokens.
    tokens: usize,
    /// Those of the turns that have ended.
    ended: usize,
    /// The beginning of the running turn: the first message of the user after one of the model. A message of the user beside
    /// tool results begins no turn.
    running: UnitIndex,
    last_speaker: Option<Role>,
    /// The unit before which all reasoning has left.
    pub(super) left: UnitIndex,
}

/// The reasoning of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reasoning {
    pub(super) number: RowIndex,
    unit: UnitIndex,
    pub(super) tokens: usize,
}

impl EndedTurns {
    /// A message came.
    pub(super) fn came(&mut self, draft: &Draft<'_>, number: RowIndex, unit: UnitIndex) {
        let Some(speaker) = draft.conversation.unit(unit).and_then(|unit| draft.speaker(unit)) else { return };
        if speaker == Role::User && self.last_speaker == Some(Role::Assistant) {
            (self.running, self.ended) = (unit, self.tokens);
        }
        self.last_speaker = Some(speaker);
        let tokens = if speaker == Role::Assistant { draft.reasoning_tokens(unit) } else { None };
        self.tokens += tokens.unwrap_or_default();
        self.waiting.extend(tokens.map(|tokens| Reasoning { number, unit, tokens }));
    }

    /// The first message with reasoning of a turn that has ended, and the tokens of all such reasoning.
    pub(super) fn ended(&self) -> Option<(RowIndex, usize)> {
        let first = self.waiting.front().filter(|reasoning| reasoning.unit < self.running)?;
        Some((first.number, self.ended))
    }

    /// Takes out the reasoning of the turns that have ended.
    pub(super) fn leave(&mut self) -> Vec<Reasoning> {
        self.left = self.running;
        self.tokens -= mem::take(&mut self.ended);
        iter::from_fn(|| self.waiting.pop_front_if(|reasoning| reasoning.unit < self.left)).collect()
    }
}
