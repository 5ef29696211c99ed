//! Which result answers which call. One walk over the conversation; each call and each result is looked at a fixed
//! number of times, however often ids repeat.

use std::collections::HashMap;

use super::{Block, BlockKind, Conversation, Message, Role};

/// Who answers whom.
#[derive(Debug, Default)]
pub struct Pairing {
    /// All calls, in order.
    pub calls: Vec<Call>,
    /// All results, in order.
    pub results: Vec<Answer>,
    batches: Vec<Batch>,
}

/// A call.
#[derive(Debug)]
pub struct Call {
    /// Its index among the blocks of the conversation.
    pub block: usize,
    /// Whether a result answers it.
    pub answered: bool,
    /// The index of its batch.
    batch: usize,
    /// Whether it has an id.
    named: bool,
    /// The next call of the same id, in the order in which results answer them.
    next: Option<usize>,
}

/// A result.
#[derive(Debug)]
pub struct Answer {
    /// The index of the message.
    pub message: usize,
    /// The index of the call it answers; none makes it an orphan.
    pub answers: Option<usize>,
    /// Whether it names the call it answers.
    named: bool,
}

/// The calls of one assistant message and its run: the results that stand directly behind it.
#[derive(Debug)]
struct Batch {
    first_call: usize,
    first_result: usize,
    /// The last message of the run; the assistant message itself, if the run is empty.
    run_end: usize,
}

impl Pairing {
    /// Pairs the calls and results of a conversation.
    pub fn of(conversation: &Conversation<'_>) -> Self {
        let mut walk = Walk::default();
        for (index, message) in conversation.messages.iter().enumerate() {
            walk.message(index, message, conversation.blocks_of(message));
        }
        walk.end_run();
        walk.pairing
    }

    /// The answer that a message is, if it is a result.
    pub fn result(&self, message: usize) -> Option<&Answer> {
        let at = self.results.binary_search_by_key(&message, |result| result.message).ok()?;
        self.results.get(at)
    }

    /// The call that a message answers, as its index among the blocks of the conversation.
    pub fn answered_block(&self, message: usize) -> Option<usize> {
        self.calls.get(self.result(message)?.answers?).map(|call| call.block)
    }

    /// Whether a result answers the call that is this block.
    pub fn is_answered(&self, block: usize) -> bool {
        let at = self.calls.binary_search_by_key(&block, |call| call.block);
        at.is_ok_and(|at| self.calls.get(at).is_some_and(|call| call.answered))
    }

    /// The last message of the run behind the batch that `call` is in.
    pub fn run_end(&self, call: usize) -> Option<usize> {
        self.run_end_of(self.calls.get(call)?)
    }

    /// The last message of the run behind the batch that `call` is in.
    pub fn run_end_of(&self, call: &Call) -> Option<usize> {
        self.batches.get(call.batch).map(|batch| batch.run_end)
    }
}

#[derive(Default)]
struct Walk<'a> {
    pairing: Pairing,
    /// For each id, the call that the next result of that id answers: the first one of the latest batch.
    open: HashMap<&'a str, Option<usize>>,
    /// Whether the last batch still gathers its run.
    in_run: bool,
}

impl<'a> Walk<'a> {
    fn message(&mut self, index: usize, message: &Message, blocks: &'a [Block<'a>]) {
        match (message.role, blocks) {
            (Role::Tool, [Block { kind: BlockKind::ToolResult { call_id }, .. }]) => self.result(index, &call_id.text),
            (Role::Assistant, [_, ..]) => {
                self.end_run();
                self.batch(index, message, blocks);
            }
            _ => self.end_run(),
        }
    }

    fn batch(&mut self, index: usize, message: &Message, blocks: &'a [Block<'a>]) {
        let Pairing { calls, results, batches } = &mut self.pairing;
        let (batch, first_call) = (batches.len(), calls.len());
        batches.push(Batch { first_call, first_result: results.len(), run_end: index });
        // The last call first, so that of calls with one id the first one comes to lie in front of the others, and all
        // of this batch in front of those of earlier batches.
        for (n, block) in blocks.iter().enumerate().rev() {
            let BlockKind::ToolCall { id, .. } = &block.kind else { continue };
            let named = !id.text.is_empty();
            let next = if named { self.open.insert(&id.text, Some(first_call + n)).flatten() } else { None };
            calls.push(Call { block: message.blocks.start + n, answered: false, batch, named, next });
        }
        if let Some(new) = calls.get_mut(first_call..) {
            new.reverse();
        }
        self.in_run = true;
    }

    fn result(&mut self, index: usize, id: &str) {
        let answers = self.open.get_mut(id).and_then(|open| next_unanswered(&mut self.pairing.calls, open));
        self.pairing.results.push(Answer { message: index, answers, named: !id.is_empty() });
        if self.in_run
            && let Some(batch) = self.pairing.batches.last_mut()
        {
            batch.run_end = index;
        }
    }

    /// Pairs by position what the last batch and its run have left, if one side has no id.
    fn end_run(&mut self) {
        if !std::mem::take(&mut self.in_run) {
            return;
        }
        let Pairing { calls, results, batches } = &mut self.pairing;
        let Some(batch) = batches.last() else { return };
        let (Some(calls), Some(results)) = (calls.get_mut(batch.first_call..), results.get_mut(batch.first_result..))
        else {
            return;
        };
        for (call_named, result_named) in [(false, false), (true, false), (false, true)] {
            let mut calls = calls.iter_mut().enumerate().filter(|(_, call)| !call.answered && call.named == call_named);
            for result in results.iter_mut().filter(|result| result.answers.is_none() && result.named == result_named) {
                let Some((n, call)) = calls.next() else { break };
                call.answered = true;
                result.answers = Some(batch.first_call + n);
            }
        }
    }
}

/// Answers the first unanswered call of the list that begins at `open`, and shortens the list to what is behind it.
fn next_unanswered(calls: &mut [Call], open: &mut Option<usize>) -> Option<usize> {
    while let Some(index) = *open {
        let call = calls.get_mut(index)?;
        *open = call.next;
        if !std::mem::replace(&mut call.answered, true) {
            return Some(index);
        }
    }
    None
}
