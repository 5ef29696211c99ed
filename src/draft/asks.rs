//! The questions of edits to handlers: known answers are used, and the other questions are noted for the engine.

use std::sync::Arc;

use super::{Draft, PrefixKeys, ResultText};
use crate::conversation::BlockIndex;
use crate::handler::{Answer, HandlerAsk, LeftOut, MAX_END, MAX_TEXT, Subject, UsedAnswer};
use crate::payload::{OffloadedPayload, Payload};
use crate::span::Span;

/// The questions of one plan.
#[derive(Debug, Default)]
pub(super) struct Asks {
    pub(super) list: Vec<HandlerAsk>,
    n_bytes: usize,
    pub(super) used: Vec<UsedAnswer>,
    n_used_bytes: usize,
}

/// A question of an edit about a text.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// The name of the edit.
    pub edit: &'static str,
    /// The handler.
    pub handler: &'q Arc<str>,
    /// How many bytes the answer may have.
    pub most_bytes: usize,
}

/// How many questions a plan has at most. The next plan of the request has those that are left.
const MAX_ASKS: usize = 1024;

/// How many bytes of text they have at most.
const MAX_BYTES: usize = 8 << 20;

/// Sets the names of conversations that handlers are told apart from others.
const SCOPE: &[u8] = b"handlers";

/// The version of the questions. Answers to those of another version are not used.
const VERSION: &str = "1";

impl ResultText<'_, '_> {
    /// Returns what a handler has the edit do with the text.
    pub fn answer(&self, question: Question<'_>) -> Answer {
        let (name, Span { start, end }) = (self.source.name, self.source.source);
        let payload = || Payload::of_value(self.draft.body.slice(start..end), name.stored_len, name.media);
        let text = || match self.text() {
            text if text.len() <= MAX_TEXT => (text.to_owned(), None),
            text => {
                let (head, rest) = text.split_at(text.floor_char_boundary(MAX_END));
                let (_, tail) = rest.split_at(rest.ceil_char_boundary(rest.len() - MAX_END));
                let whole = OffloadedPayload { key: name.key, payload: payload(), likely_stored: false };
                ([head, tail].concat(), Some(LeftOut { at: head.len(), whole }))
            }
        };
        self.draft.answer(question, self.call, name.key.as_bytes(), text, || Subject::Payload(payload()))
    }
}

impl Draft<'_> {
    /// The instruction of a handler for a text of the call that is a block. The text is known by `name`, which is that of
    /// `subject`.
    pub fn answer(
        &self,
        question: Question<'_>,
        call: Option<BlockIndex>,
        name: &[u8],
        text: impl FnOnce() -> (String, Option<LeftOut>),
        subject: impl FnOnce() -> Subject,
    ) -> Answer {
        let Question { edit, handler, most_bytes } = question;
        let tool = self.tool_of(call);
        let arguments = call.and_then(|call| self.request().arguments(call)).unwrap_or_default();
        let parts = [VERSION, handler, edit, tool, &arguments];
        let key: Vec<_> = parts.iter().map(|part| part.as_bytes()).chain([name]).collect();
        let key = self.context.keys.answer(self.context.caller, &key);
        let asks = &mut *self.known.asks.borrow_mut();
        if let Some(answer) = self.context.answers.answer(key) {
            let usable = answer.within(most_bytes);
            asks.n_used_bytes += arguments.len();
            if asks.n_used_bytes < MAX_BYTES {
                asks.used.push(UsedAnswer { parts: parts.map(str::to_owned).to_vec(), subject: subject(), answer });
            }
            return usable;
        }
        let is_full = asks.list.len() >= MAX_ASKS || asks.n_bytes >= MAX_BYTES;
        if self.context.answers.can_ask() && !is_full && asks.list.iter().all(|asked| asked.key != key) {
            let ((text, left_out), tool) = (text(), tool.to_owned());
            let arguments = arguments.get(..arguments.floor_char_boundary(MAX_END)).unwrap_or_default().to_owned();
            let conversation = PrefixKeys::root_of(self.whole(), &self.context, SCOPE);
            asks.n_bytes += text.len() + arguments.len();
            let handler = handler.clone();
            asks.list.push(HandlerAsk {
                key,
                handler,
                edit,
                conversation,
                tool,
                arguments,
                text,
                left_out,
                most_bytes,
            });
        }
        Answer::Default
    }
}
