//! Which of the messages that a summary stands for stay beside it, and the view of the conversation that results.
//!
//! A result may come after a summary was made that stands for its call. Its round is then reopened: the message that calls, and
//! the results of that message among those summarised, are sent as they came, so that the late result has its call.

use std::{cell::OnceCell, collections::BTreeSet, ops::Range};

use super::{Conversation, Message, Pairing, Role};

/// Messages that one message stands for, but for those of reopened rounds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fold {
    /// The messages as they came, those of reopened rounds among them.
    pub messages: Range<usize>,
    /// The stretches that are not sent, in order.
    hidden: Vec<Range<usize>>,
    /// The one of them that the summary takes the place of.
    place: Range<usize>,
    /// Which of the messages have an index in the view, in order: those of reopened rounds, and the first of `place`.
    standing: Vec<usize>,
}

impl Fold {
    /// The fold of some messages of a conversation. None if there is nothing left for a summary to stand for.
    pub fn of(conversation: &Conversation<'_>, pairing: &Pairing, messages: Range<usize>) -> Option<Self> {
        let reopened = reopened(conversation, pairing, &messages);
        let (mut hidden, mut from) = (Vec::new(), messages.start);
        for end in reopened.iter().copied().chain([messages.end]) {
            if from < end {
                hidden.push(from..end);
            }
            from = end + 1;
        }
        // In the view, nothing may part a result without an id from the call directly before it.
        let parts_no_run = |stretch: &&Range<usize>| {
            let messages = conversation.messages.get(Range::clone(stretch)).unwrap_or_default();
            messages.iter().any(|message| message.role != Role::Tool)
        };
        let place = hidden.iter().find(parts_no_run)?.clone();
        let mut standing: Vec<_> = reopened.into_iter().chain([place.start]).collect();
        standing.sort_unstable();
        Some(Self { messages, hidden, place, standing })
    }

    /// The messages that the summary takes the place of.
    pub fn place(&self) -> Range<usize> {
        self.place.clone()
    }

    /// The stretches that are not sent, in order.
    pub fn hidden(&self) -> impl Iterator<Item = Range<usize>> {
        self.hidden.iter().cloned()
    }

    /// The messages of the view that stand for the folded ones: the summary, and the reopened rounds.
    pub fn in_place(&self) -> Range<usize> {
        self.messages.start..self.messages.start + self.standing.len()
    }

    /// The index of the summary in the view.
    pub fn summary(&self) -> usize {
        self.in_view(self.place.start)
    }

    /// The index in the view of a message; that of the summary for one that is not sent.
    pub fn in_view(&self, message: usize) -> usize {
        let Range { start, end } = self.messages;
        if message < start {
            return message;
        }
        if message >= end {
            return message - end + self.in_place().end;
        }
        let at = self.standing.binary_search(&message).or_else(|_| self.standing.binary_search(&self.place.start));
        start + at.unwrap_or_default()
    }

    /// The index that a message of the view has in the conversation; the first of those that it takes the place of for the
    /// summary.
    pub fn as_it_came(&self, message: usize) -> usize {
        let Range { start, end } = self.in_place();
        match message.checked_sub(start).and_then(|at| self.standing.get(at)) {
            Some(message) => *message,
            None if message < start => message,
            None => message - end + self.messages.end,
        }
    }
}

/// The messages of the rounds that a result behind the folded ones belongs to.
fn reopened(conversation: &Conversation<'_>, pairing: &Pairing, messages: &Range<usize>) -> BTreeSet<usize> {
    let from = |message| pairing.results.partition_point(|result| result.message < message);
    let results = |range: Range<usize>| pairing.results.get(range).unwrap_or_default().iter();
    let caller = |call: Option<usize>| Some(conversation.blocks.get(pairing.calls.get(call?)?.block)?.message);
    let behind = from(messages.end);
    let late = results(behind..pairing.results.len()).filter_map(|result| caller(result.answers));
    let callers: BTreeSet<_> = late.filter(|caller| messages.contains(caller)).collect();
    if callers.is_empty() {
        return callers;
    }
    let in_time = results(from(messages.start)..behind)
        .filter(|result| caller(result.answers).is_some_and(|caller| callers.contains(&caller)))
        .map(|result| result.message);
    in_time.chain(callers.iter().copied()).collect()
}

impl Conversation<'_> {
    /// The same with one message of the user in place of folded ones, which says nothing yet.
    #[must_use]
    pub fn folded(&self, fold: &Fold) -> Self {
        let Range { start, end } = fold.messages;
        let mut view = Self {
            model: self.model.clone(),
            tools: self.tools,
            format: self.format,
            messages: Vec::new(),
            blocks: Vec::new(),
        };
        for index in (0..start).chain(fold.standing.iter().copied()).chain(end..self.messages.len()) {
            let Some(message) = self.messages.get(index) else { continue };
            let (at, first) = (view.messages.len(), view.blocks.len());
            if index == fold.place.start {
                let span = self.span_of(fold.place());
                let known = OnceCell::new();
                view.messages.push(Message { span, role: Role::User, content: None, blocks: first..first, known });
                continue;
            }
            let blocks = self.blocks_of(message).iter().cloned();
            view.blocks.extend(blocks.map(|block| super::Block { message: at, ..block }));
            view.messages.push(Message { blocks: first..view.blocks.len(), ..message.clone() });
        }
        view
    }
}
