//! What edits ask of handlers: answers that are known are used, and questions without one are noted for the engine.

use std::sync::Arc;

use super::{Draft, PrefixKeys, ResultText};
use crate::conversation::BlockIndex;
use crate::handler::{AskedText, Decision, HandlerAsk, MAX_END, Subject, UsedAnswer};
use crate::payload::{ChainKey, Payload};

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
const MAX_ASKS: usize = 256;

/// How many bytes of text they have at most.
const MAX_BYTES: usize = 8 << 20;

/// Sets the names of conversations that handlers are told apart from others.
const SCOPE: &[u8] = b"handlers";

/// The version of the questions. Answers to those of another version are not used.
const VERSION: &str = "1";

impl Asks {
    /// Whether a question is not there yet, and there is room for it.
    fn takes(&self, key: ChainKey) -> bool {
        self.list.len() < MAX_ASKS && self.n_bytes < MAX_BYTES && self.list.iter().all(|asked| asked.key != key)
    }

    /// Notes an answer that was used, if there is room for it.
    fn uses(&mut self, n_bytes: usize, used: impl FnOnce() -> UsedAnswer) {
        self.n_used_bytes += n_bytes;
        if self.n_used_bytes < MAX_BYTES {
            self.used.push(used());
        }
    }

    fn add(&mut self, ask: HandlerAsk) {
        self.n_bytes += ask.text.weight() + ask.arguments.len();
        self.list.push(ask);
    }
}

impl ResultText<'_, '_> {
    /// Returns what a handler has the edit do with the text.
    pub fn decision(&self, question: Question<'_>) -> Decision {
        let (name, source) = (self.source.name, self.source);
        let raw = || self.draft.body.slice(source.source.start..source.source.end);
        let payload = || Payload::of_value(raw(), name.stored_len, name.media);
        let text = || AskedText::of(self.text(), name.key, payload);
        self.draft.decision(question, self.call, name.key.as_bytes(), text, || Subject::Payload(payload()))
    }
}

impl Draft<'_> {
    /// The instruction of a handler for a text of the call that is a block. The text is known by `name`, which is that of
    /// `subject`.
    pub fn decision(
        &self,
        question: Question<'_>,
        call: Option<BlockIndex>,
        name: &[u8],
        text: impl FnOnce() -> AskedText,
        subject: impl FnOnce() -> Subject,
    ) -> Decision {
        let Question { edit, handler, most_bytes } = question;
        let tool = self.tool_of(call);
        let arguments = call.and_then(|call| self.arguments(call)).unwrap_or_default();
        let parts = [VERSION, handler, edit, tool, &arguments];
        let key: Vec<_> = parts.iter().map(|part| part.as_bytes()).chain([name]).collect();
        let key = self.context.keys.answer(self.context.caller, &key);
        if let Some(answer) = self.context.answers.answer(key) {
            let decision = answer.decision(most_bytes);
            let used = || UsedAnswer { parts: parts.map(str::to_owned).to_vec(), subject: subject(), answer };
            self.asks.borrow_mut().uses(arguments.len(), used);
            return decision;
        }
        if self.context.answers.can_ask() && self.asks.borrow().takes(key) {
            let arguments = arguments.get(..arguments.floor_char_boundary(MAX_END)).unwrap_or_default().to_owned();
            self.asks.borrow_mut().add(HandlerAsk {
                key,
                handler: handler.clone(),
                edit,
                conversation: PrefixKeys::root_of(self.whole(), &self.context, SCOPE),
                tool: tool.to_owned(),
                arguments,
                text: text(),
                most_bytes,
            });
        }
        Decision::Default
    }
}
