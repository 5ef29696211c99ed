//! Which results are cleared, found out by walking the conversation as it grew.
//!
//! Sums run along, and each result is looked at once when it comes and once when it goes, however many passes there are:
//! what has come to be old enough is weighed when a pass comes to it, and then waits, if it has to, with its weight known.

use std::collections::VecDeque;

use super::{ClearToolResults, Clearing, Frontier};
use crate::{
    conversation::Role,
    draft::{Draft, Row},
    edit::{keep::Keep, trigger::Limits},
};

/// The walk.
#[derive(Debug)]
pub(super) struct Replay<'r, 'd> {
    edit: &'r ClearToolResults,
    draft: &'r Draft<'d>,
    rows: &'r [Row],
    limits: &'r Limits,
    /// How many tokens a pass must free.
    at_least: usize,
    /// Whether tokens are counted.
    count: bool,
    /// The tokens before the present place, as the passes so far have left them.
    size: usize,
    /// The last message of the model before the present place.
    read: Option<usize>,
    newest: Newest,
    /// Results that may be cleared one day: those that `keep` spares for a time, and those of each table that has a
    /// `keep_last`.
    queues: Vec<Queue>,
    /// What may be cleared now and was not, because it frees too little.
    ready: Vec<(usize, Clearing)>,
    /// How many tokens that would free.
    ready_frees: usize,
    cleared: Vec<(usize, Clearing)>,
    too_little: bool,
}

/// Results in the order in which they are cleared.
#[derive(Debug, Default)]
struct Queue {
    /// The table of the tool that these results are of; none for all others.
    table: Option<usize>,
    keep_last: usize,
    /// The rows of those that have not been cleared, each with how many results of the queue came before it.
    waiting: VecDeque<(usize, usize)>,
    n_results: usize,
}

/// What `keep` spares at the present place.
#[derive(Debug)]
struct Newest {
    keep: Keep,
    /// The rows that count: results, or messages with calls.
    rows: VecDeque<(usize, usize)>,
    /// Their tokens, if those count.
    tokens: usize,
}

impl<'r, 'd> Replay<'r, 'd> {
    pub(super) fn new(
        edit: &'r ClearToolResults,
        draft: &'r Draft<'d>,
        rows: &'r [Row],
        limits: &'r Limits,
        keep: Keep,
    ) -> Self {
        let at_least = edit.clear_at_least(limits);
        let count = limits.ask_for_tokens() || matches!(keep, Keep::Tokens(_)) || at_least > 0;
        Self {
            edit,
            draft,
            rows,
            limits,
            at_least,
            count,
            size: if count { draft.base_tokens() } else { 0 },
            read: None,
            newest: Newest { keep, rows: VecDeque::new(), tokens: 0 },
            queues: vec![Queue::default()],
            ready: Vec::new(),
            ready_frees: 0,
            cleared: Vec::new(),
            too_little: false,
        }
    }

    /// The rows that are cleared, and whether the last pass was not made because it would have freed too little.
    pub(super) fn run(mut self) -> (Vec<(usize, Clearing)>, bool) {
        let sticky = self.edit.settings.frontier == Frontier::Sticky;
        for (n, row) in self.rows.iter().enumerate() {
            if row.role == Role::Assistant {
                if sticky {
                    self.model_call(n);
                }
                self.read = row.message;
            }
            let tokens = if self.count { self.draft.tokens_of(row) } else { 0 };
            self.size += tokens;
            self.newest.comes(n, row, tokens, self.draft);
            if row.role == Role::Tool {
                self.result_comes(n, row);
            }
        }
        self.model_call(self.rows.len());
        (self.cleared, self.too_little)
    }

    /// A result takes its place in its queue, if it may ever be cleared.
    fn result_comes(&mut self, n: usize, row: &Row) {
        let tool = row.call.map_or("", |call| self.draft.conversation().tool_name(call));
        let own = self.edit.tools.find(tool, |settings| settings.keep_last);
        let table = own.map(|(table, _)| table);
        let known = self.queues.iter().position(|queue| queue.table == table);
        let at = known.unwrap_or_else(|| {
            let keep_last = own.map_or(0, |(_, keep_last)| keep_last);
            self.queues.push(Queue { table, keep_last, ..Queue::default() });
            self.queues.len() - 1
        });
        let Some(queue) = self.queues.get_mut(at) else { return };
        if row.message.is_some() && self.edit.clears(tool) {
            queue.waiting.push_back((n, queue.n_results));
        }
        queue.n_results += 1;
    }

    /// Here a model was called, with the first `n` rows.
    fn model_call(&mut self, n: usize) {
        self.too_little = false;
        if !self.limits.hold(self.size, n) {
            return;
        }
        let spared_from = self.newest.from();
        for at in 0..self.queues.len() {
            while let Some(row) = self.next_old_enough(at, spared_from) {
                let clearing = self.rows.get(row).and_then(|row| self.edit.clearing(self.draft, row, self.count));
                if let Some(clearing) = clearing {
                    self.ready_frees += clearing.freed;
                    self.ready.push((row, clearing));
                }
            }
        }
        if self.ready_frees >= self.at_least {
            self.size = self.size.saturating_sub(std::mem::take(&mut self.ready_frees));
            self.cleared.append(&mut self.ready);
        } else {
            self.too_little = !self.ready.is_empty();
        }
    }

    /// Takes the next row out of a queue that has been read and that nothing spares.
    fn next_old_enough(&mut self, at: usize, spared_from: usize) -> Option<usize> {
        let read = self.read?;
        let rows = self.rows;
        let queue = self.queues.get_mut(at)?;
        let &(row, n_before) = queue.waiting.front()?;
        let spared = match queue.table {
            Some(_) => n_before + queue.keep_last >= queue.n_results,
            None => row >= spared_from,
        };
        let has_been_read = rows.get(row).and_then(|row| row.message).is_some_and(|message| message < read);
        if spared || !has_been_read {
            return None;
        }
        queue.waiting.pop_front();
        Some(row)
    }
}

impl Newest {
    /// A row comes.
    fn comes(&mut self, n: usize, row: &Row, tokens: usize, draft: &Draft<'_>) {
        let most = match self.keep {
            Keep::Rounds(most) => {
                if row.role != Role::Assistant || !draft.has_calls(row) {
                    return;
                }
                most
            }
            _ if row.role != Role::Tool => return,
            Keep::Results(most) => most,
            Keep::Tokens(_) | Keep::Fraction(_) => usize::MAX,
        };
        self.rows.push_back((n, tokens));
        self.tokens += tokens;
        let most_tokens = if let Keep::Tokens(most) = self.keep { most } else { usize::MAX };
        while self.rows.len() > most || self.tokens > most_tokens {
            let Some((_, tokens)) = self.rows.pop_front() else { return };
            self.tokens -= tokens;
        }
    }

    /// The first row that is spared.
    fn from(&self) -> usize {
        self.rows.front().map_or(usize::MAX, |(row, _)| *row)
    }
}
