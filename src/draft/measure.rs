//! How large the messages are as the edits so far have left them: always a bound in bytes, and tokens when somebody asks.
//!
//! Counting is what costs, so nothing here counts before it is asked to, and what is counted is counted once.

use super::{Draft, Placed, Row};
use crate::{
    conversation::Message,
    tokens::{Gauge, REQUEST_OVERHEAD},
};

/// The tokens of the request as it came.
#[derive(Debug)]
pub(super) struct Counts {
    /// What is there beside the messages: the tool definitions, and the form of the answer.
    pub(super) base: usize,
    /// Of each message.
    pub(super) messages: Vec<usize>,
}

impl Draft<'_> {
    /// No fewer bytes than the body has now, and so no fewer tokens.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// What counts tokens for the model of this request.
    pub fn gauge(&self) -> &Gauge {
        self.gauge.get_or_init(|| self.situation.meter.for_model(self.source.conversation.model.as_deref()))
    }

    /// Notes that a part of the model's window was asked for, and that the window is not known.
    pub fn miss_window(&mut self) {
        self.unknown_window = true;
    }

    /// The tokens that a request has beside its messages.
    pub fn base_tokens(&self) -> usize {
        self.counts().base
    }

    /// The tokens of one message as the edits so far have left it.
    pub fn tokens_of(&self, row: &Row) -> usize {
        match (row.message, row.added.and_then(|n| self.added.get(n)).map(|added| &added.what)) {
            (Some(message), _) => self.message_tokens(message),
            (None, Some(Placed::New { bytes, .. })) => self.gauge().message(bytes),
            (None, _) => 0,
        }
    }

    /// The tokens of one message as the edits so far have left it, wherever it stands.
    pub(super) fn message_tokens(&self, message: usize) -> usize {
        let known = self.tokens_now.borrow().get(&message).copied();
        if let Some(tokens) = known {
            return tokens;
        }
        match self.rewritten(message) {
            Some(bytes) => {
                let tokens = self.gauge().message(&bytes);
                self.tokens_now.borrow_mut().insert(message, tokens);
                tokens
            }
            None => self.counts().messages.get(message).copied().unwrap_or_default(),
        }
    }

    /// The tokens of the request as it came.
    pub(super) fn counts(&self) -> &Counts {
        self.counts.get_or_init(|| {
            let (body, conversation, gauge) = (self.source.body, self.source.conversation, self.gauge());
            let tools = conversation.tools.map_or(0, |tools| gauge.tools(tools.of(body)));
            let format = conversation.response_format.map_or(0, |format| gauge.response_format(format.of(body)));
            let summarised = self.applied().map(|applied| (applied.messages.start, applied.summary.tokens_replaced));
            let tokens = |(index, message): (usize, &Message)| match summarised {
                Some((summary, tokens)) if summary == index => tokens,
                _ => gauge.message(message.span.of(body)),
            };
            let messages = conversation.messages.iter().enumerate().map(tokens).collect();
            Counts { base: REQUEST_OVERHEAD + tools + format, messages }
        })
    }
}
