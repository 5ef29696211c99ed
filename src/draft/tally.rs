//! How large a conversation was at each place of its timeline.
//!
//! Sums run along. A message that loses calls is not counted anew each time: what is counted of it is each call by itself,
//! which comes to the same, as the tokens of a message are a sum.

use std::collections::HashMap;

use super::{Draft, Event, Row};

/// The size at the present place.
#[derive(Debug)]
pub struct Tally<'t, 'd> {
    draft: &'t Draft<'d>,
    /// Whether tokens are counted.
    counts: bool,
    tokens: usize,
    n_messages: usize,
    /// How many messages have come, those that are not there any more among them.
    n_came: usize,
    rows: Vec<Standing>,
    callers: HashMap<usize, Left>,
}

/// A message that has come.
#[derive(Clone, Copy, Debug)]
struct Standing {
    row: Row,
    tokens: usize,
    /// How many fewer it and its call have now.
    freed: usize,
    is_here: bool,
}

/// The calls that have left a message.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    n_calls: usize,
    tokens: usize,
}

impl<'t, 'd> Tally<'t, 'd> {
    /// Before anything has come. Where tokens are not counted, they are 0.
    pub fn new(draft: &'t Draft<'d>, counts: bool) -> Self {
        let tokens = if counts { draft.base_tokens() } else { 0 };
        Self { draft, counts, tokens, n_messages: 0, n_came: 0, rows: Vec::new(), callers: HashMap::new() }
    }

    /// The tokens of the request.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The length of the message array.
    pub fn n_messages(&self) -> usize {
        self.n_messages
    }

    /// How many messages have come till now.
    pub fn n_came(&self) -> usize {
        self.n_came
    }

    /// The message of a number.
    pub fn row(&self, number: usize) -> Option<&Row> {
        self.rows.get(number).map(|standing| &standing.row)
    }

    /// The tokens that a message had when it came.
    pub fn tokens_of(&self, number: usize) -> usize {
        self.rows.get(number).map_or(0, |standing| standing.tokens)
    }

    /// Whether a message is there.
    pub fn is_here(&self, number: usize) -> bool {
        self.rows.get(number).is_some_and(|standing| standing.is_here)
    }

    /// Goes on to behind an event.
    pub fn follow(&mut self, event: Event) {
        match event {
            Event::Came(row) => self.came(row),
            Event::Superseded(number) => {
                let had_left = !self.is_here(number);
                let row = self.goes(number);
                if let Some(call) = row.and_then(|row| row.call).filter(|_| had_left) {
                    self.call_is_back(call);
                }
            }
            Event::Left(number) => {
                if let Some(call) = self.goes(number).and_then(|row| row.call) {
                    self.call_leaves(call);
                }
            }
            Event::Called(_) => {}
        }
    }

    /// Takes it that a result and its call have so many tokens fewer from here on.
    pub fn shrink(&mut self, number: usize, tokens: usize) {
        if let Some(standing) = self.rows.get_mut(number) {
            standing.freed += tokens;
            self.tokens = self.tokens.saturating_sub(tokens);
        }
    }

    fn came(&mut self, row: Row) {
        let tokens = if self.counts { self.draft.tokens_with_all_calls(&row) } else { 0 };
        self.tokens += tokens;
        self.n_messages += usize::from(row.is_there());
        self.n_came += usize::from(row.is_there());
        self.rows.push(Standing { row, tokens, freed: 0, is_here: true });
    }

    /// A message is not there any more.
    fn goes(&mut self, number: usize) -> Option<Row> {
        let standing = self.rows.get_mut(number)?;
        if std::mem::take(&mut standing.is_here) {
            self.tokens = (self.tokens + standing.freed).saturating_sub(standing.tokens);
            self.n_messages -= usize::from(standing.row.is_there());
        }
        Some(standing.row)
    }

    fn call_leaves(&mut self, call: usize) {
        let tokens = self.call_tokens(call);
        self.tokens = self.tokens.saturating_sub(tokens);
        let Some(caller) = self.caller(call) else { return };
        let left = self.callers.entry(caller).or_default();
        *left = Left { n_calls: left.n_calls + 1, tokens: left.tokens + tokens };
        if let Some(rest) = self.rest(caller) {
            self.tokens = self.tokens.saturating_sub(rest);
            self.n_messages = self.n_messages.saturating_sub(1);
        }
    }

    fn call_is_back(&mut self, call: usize) {
        let Some(caller) = self.caller(call) else { return };
        if let Some(rest) = self.rest(caller) {
            self.tokens += rest;
            self.n_messages += 1;
        }
        let tokens = self.call_tokens(call);
        self.tokens += tokens;
        let left = self.callers.entry(caller).or_default();
        *left = Left { n_calls: left.n_calls.saturating_sub(1), tokens: left.tokens.saturating_sub(tokens) };
    }

    /// What a message that called has beside its calls, if that leaves with the last of them.
    fn rest(&self, caller: usize) -> Option<usize> {
        let left = self.callers.get(&caller)?;
        let message = self.draft.conversation().messages.get(caller)?;
        if left.n_calls < message.blocks.len() || self.draft.says_something(caller) {
            return None;
        }
        let all = if self.counts { self.draft.tokens_as_they_came(caller..caller + 1) } else { 0 };
        Some(all.saturating_sub(left.tokens))
    }

    fn caller(&self, call: usize) -> Option<usize> {
        self.draft.conversation().blocks.get(call).map(|block| block.message)
    }

    fn call_tokens(&self, call: usize) -> usize {
        if self.counts { self.draft.call_tokens(call, &[]) } else { 0 }
    }
}
