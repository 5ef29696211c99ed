//! One transcript through one policy.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::figures::Request;
use super::summarist::{Summaries, Summarist};
use super::{Contender, Figures, Prices, ReadError, Stage, Transcript, dialect};
use crate::plan::{Action, Need};
use crate::span::{Span, joined, splice};
use crate::tokens::{Gauge, REQUEST_OVERHEAD};

/// What went upstream.
#[derive(Debug)]
pub struct Sent {
    body: Bytes,
    tools: Option<Span>,
    tools_tokens: usize,
    /// Those of the form that the answer is to have.
    format_tokens: usize,
    messages: Vec<(Span, usize)>,
}

/// What one request has in common with the one before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Common {
    /// The tokens of the prefix.
    pub tokens: usize,
    /// Whether all messages of the one before are at the beginning of this one, byte for byte.
    pub whole: bool,
}

/// Plays it.
pub fn play(
    transcript: &Transcript,
    contender: &Contender,
    stage: &Stage,
    prices: Prices,
    summarist: Summarist<'_>,
) -> Result<Figures, ReadError> {
    let dialect = dialect()?;
    let mut summaries = Summaries::default();
    let gauge = contender.meter.for_model(transcript.model());
    let mut figures = Figures::default();
    let (mut cleared, mut truncated, mut offloaded) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    let mut before: Option<Sent> = None;
    for body in transcript.requests() {
        // What the proxy does not understand goes on as it came, so it does here.
        let planned = loop {
            let mut planned = contender.policy.plan(dialect, &body, &stage.situation(&contender.meter, &summaries));
            let needs = planned.as_mut().ok().and_then(|plan| plan.needs.take());
            let Some(Need::Make(effect)) = needs else { break planned };
            let waits = effect.waits;
            let (call, made) = summaries.make(*effect, summarist, contender, &gauge, before.as_ref())?;
            figures.add_call(call, made);
            if !waits {
                break planned; // it is there for the next request
            }
        };
        let body = match planned {
            Ok(plan) => {
                for change in &plan.report.changes {
                    match change.action {
                        Action::Clear { message } => drop(cleared.insert(message)),
                        Action::Truncate { message } => drop(truncated.insert(message)),
                        _ => {}
                    }
                }
                offloaded.extend(plan.offloads.iter().map(|effect| (effect.key, effect.payload.len())));
                joined(splice(&body, &plan.splices))
            }
            Err(_) => body,
        };
        let sent = Sent::new(body, &gauge, before.as_ref())?;
        let common = before.as_ref().map_or(Common { tokens: 0, whole: true }, |before| sent.common(before));
        figures.add(Request {
            tokens: sent.tokens(),
            shared: common.tokens,
            window: gauge.window(),
            moved: !common.whole,
        });
        before = Some(sent);
    }
    figures.results_cleared = cleared.len();
    figures.results_truncated = truncated.len();
    figures.bytes_offloaded = offloaded.values().sum();
    figures.settle(prices);
    Ok(figures)
}

// === impl Sent ===

impl Sent {
    /// Counts a body. What stands at the same place of the one before is counted already.
    pub fn new(body: Bytes, gauge: &Gauge, before: Option<&Self>) -> Result<Self, ReadError> {
        let dialect = dialect()?;
        let conversation = dialect.parse(&body)?;
        let tools = conversation.tools;
        let tools_tokens = tools.map_or(0, |tools| dialect.tools_tokens(gauge, tools.of(&body)));
        let format = conversation.format;
        let format_tokens = format.map_or(0, |format| dialect.format_tokens(gauge, format.of(&body)));
        let messages = conversation.messages.iter().enumerate().map(|(n, message)| {
            let bytes = message.span.of(&body);
            let known = before.and_then(|before| before.message(n)).filter(|(known, _)| *known == bytes);
            (
                message.span,
                known.map_or_else(
                    || dialect.known_element_tokens(gauge, message.prints(&body).message, || bytes),
                    |(_, tokens)| tokens,
                ),
            )
        });
        let messages: Vec<_> = messages.collect();
        Ok(Self { body, tools, tools_tokens, format_tokens, messages })
    }

    /// The tokens of all of it.
    pub fn tokens(&self) -> usize {
        REQUEST_OVERHEAD
            + self.tools_tokens
            + self.format_tokens
            + self.messages.iter().map(|(_, tokens)| tokens).sum::<usize>()
    }

    /// The tokens of each message.
    pub fn message_tokens(&self) -> impl Iterator<Item = usize> {
        self.messages.iter().map(|(_, tokens)| *tokens)
    }

    /// The prefix that it shares with the one before.
    pub fn common(&self, before: &Self) -> Common {
        let n_equal =
            (0..self.messages.len().min(before.messages.len())).take_while(|&n| self.raw(n) == before.raw(n)).count();
        let whole = n_equal == before.messages.len();
        if self.tools.map(|tools| tools.of(&self.body)) != before.tools.map(|tools| tools.of(&before.body)) {
            return Common { tokens: 0, whole };
        }
        let equal: usize = self.messages.iter().take(n_equal).map(|(_, tokens)| tokens).sum();
        let partial = self.message(n_equal).zip(before.message(n_equal)).map_or(0, |((now, tokens), (then, _))| {
            let n_bytes = now.iter().zip(then).take_while(|(a, b)| a == b).count();
            tokens * n_bytes / now.len().max(1)
        });
        Common { tokens: self.tools_tokens + equal + partial, whole }
    }

    /// The bytes of one message.
    pub fn raw(&self, n: usize) -> Option<&[u8]> {
        self.message(n).map(|(bytes, _)| bytes)
    }

    fn message(&self, n: usize) -> Option<(&[u8], usize)> {
        self.messages.get(n).map(|(span, tokens)| (span.of(&self.body), *tokens))
    }
}
