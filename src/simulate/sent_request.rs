//! A request as sent upstream: its tokens, and the prefix that it shares with the request before.

use bytes::Bytes;

use super::TranscriptError;
use super::bill::Counted;
use crate::dialect::{self, Dialect};
use crate::span::Span;
use crate::tokens::{Countable, Gauge, REQUEST_OVERHEAD};

/// A request as sent upstream.
#[derive(Clone, Debug)]
pub struct SentRequest {
    body: Bytes,
    pub(super) dialect: &'static dyn Dialect,
    /// The tools, the instructions outside the array, and the form of the answer, each with its tokens.
    outside: [(Option<Span>, usize); 3],
    messages: Vec<(Span, usize)>,
}

/// The prefix that a request shares with the request before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharedPrefix {
    /// The tokens of the prefix.
    pub tokens: usize,
    /// Whether this request begins with all messages of the one before, byte for byte.
    pub whole: bool,
}

// === impl SentRequest ===

impl SentRequest {
    /// Counts a body. Messages that are equal at the same index in `before` are not counted again.
    pub fn new(body: Bytes, gauge: &Gauge, before: Option<&Self>) -> Result<Self, TranscriptError> {
        Self::of(dialect::of_body(&body), body, gauge, before)
    }

    /// Counts a body whose dialect is known.
    pub(super) fn of(
        dialect: &'static dyn Dialect,
        body: Bytes,
        gauge: &Gauge,
        before: Option<&Self>,
    ) -> Result<Self, TranscriptError> {
        let conversation = dialect.parse(&body)?;
        let outside = [
            (Countable::Tools, conversation.tools),
            (Countable::Instructions, conversation.instructions),
            (Countable::Format, conversation.format),
        ];
        let tokens = |kind, span: Span| dialect.tokens(gauge, kind, span.of(&body));
        let outside = outside.map(|(kind, span)| (span, span.map_or(0, |span| tokens(kind, span))));
        let messages = conversation.elements.iter().enumerate().map(|(n, element)| {
            let bytes = element.span.of(&body);
            let known = before.and_then(|before| before.message(n)).filter(|(known, _)| *known == bytes);
            let print = || conversation.element_fingerprint(element, &body);
            let count = || dialect.known_tokens(gauge, Countable::Element, print(), || bytes);
            (element.span, known.map_or_else(count, |(_, tokens)| tokens))
        });
        let messages: Vec<_> = messages.collect();
        Ok(Self { body, dialect, outside, messages })
    }

    /// The request with the first `n` messages, which this body has.
    pub(super) fn beginning(&self, n: usize, body: Bytes) -> Self {
        Self { body, messages: self.messages.iter().take(n).copied().collect(), ..self.clone() }
    }

    /// All of it.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The tokens of the whole request.
    pub fn tokens(&self) -> usize {
        REQUEST_OVERHEAD
            + self.outside.iter().map(|(_, tokens)| tokens).sum::<usize>()
            + self.messages.iter().map(|(_, tokens)| tokens).sum::<usize>()
    }

    /// The tokens of each message.
    #[cfg(any(test, feature = "testing"))]
    pub fn message_tokens(&self) -> impl Iterator<Item = usize> {
        self.messages.iter().map(|(_, tokens)| *tokens)
    }

    /// The prefix that it shares with `before`.
    pub fn shared_prefix(&self, before: &Self) -> SharedPrefix {
        let n_equal = (0..self.messages.len().min(before.messages.len()))
            .take_while(|&n| self.message_bytes(n) == before.message_bytes(n))
            .count();
        let whole = n_equal == before.messages.len();
        let is_equal = |mine: Option<Span>, theirs: Option<Span>| {
            mine.map(|span| span.of(&self.body)) == theirs.map(|span| span.of(&before.body))
        };
        let [(tools, tools_tokens), (instructions, instructions_tokens), _] = self.outside;
        let [(tools_before, _), (instructions_before, _), _] = before.outside;
        if !is_equal(tools, tools_before) {
            return SharedPrefix { tokens: 0, whole };
        }
        if !is_equal(instructions, instructions_before) {
            return SharedPrefix { tokens: tools_tokens, whole };
        }
        let equal: usize = self.messages.iter().take(n_equal).map(|(_, tokens)| tokens).sum();
        let partial = self.message(n_equal).zip(before.message(n_equal)).map_or(0, |((now, tokens), (then, _))| {
            let n_bytes = now.iter().zip(then).take_while(|(a, b)| a == b).count();
            tokens * n_bytes / now.len().max(1)
        });
        SharedPrefix { tokens: tools_tokens + instructions_tokens + equal + partial, whole }
    }

    /// Its tokens, and those that it shares with `before`.
    pub(super) fn counted(&self, before: Option<&Self>) -> Counted {
        Counted { tokens: self.tokens(), shared: before.map(|before| self.shared_prefix(before).tokens) }
    }

    /// The requests with the first so many messages, in order, as they are counted.
    pub(super) fn beginnings(&self, lengths: &[usize]) -> Vec<Counted> {
        let mut ends = vec![0];
        for (_, tokens) in &self.messages {
            ends.push(ends.last().copied().unwrap_or_default() + tokens);
        }
        let of = |n: usize| ends.get(n).or(ends.last()).copied().unwrap_or_default();
        let [(_, tools), (_, instructions), (_, format)] = self.outside;
        let prefix = tools + instructions;
        let beside = REQUEST_OVERHEAD + prefix + format;
        let before = [None].into_iter().chain(lengths.iter().copied().map(Some));
        let counted = before.zip(lengths).map(|(before, &n)| Counted {
            tokens: beside + of(n),
            shared: before.map(|before| prefix + of(before.min(n))),
        });
        counted.collect()
    }

    /// The bytes of each message.
    pub(super) fn elements(&self) -> impl Iterator<Item = &[u8]> {
        self.messages.iter().map(|(span, _)| span.of(&self.body))
    }

    /// The bytes of one message.
    pub fn message_bytes(&self, n: usize) -> Option<&[u8]> {
        self.message(n).map(|(bytes, _)| bytes)
    }

    fn message(&self, n: usize) -> Option<(&[u8], usize)> {
        self.messages.get(n).map(|(span, tokens)| (span.of(&self.body), *tokens))
    }
}
