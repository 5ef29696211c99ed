//! Puts recalls back that the model has made beside calls of the client. The client has its own calls alone; its next
//! requests get the recall behind them, so that the model reads what it has asked for, and the beginning of the conversation
//! stays as the upstream knows it.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use crate::conversation::{BlockKind, Conversation, Element, Role};
use crate::dialect::{Dialect, RoundCalls};
use crate::engine::kept_recalls::{KeptRecalls, TurnRecalls};
use crate::payload::{Chain, ChainKey, Fingerprint};
use crate::proxy::Proxy;
use crate::span::{Span, Splice, joined, splice};
use crate::string_index::IndexedBody;
use crate::tasks::run_blocking;

/// What the recalls of an answer are kept under.
#[derive(Clone, Debug)]
pub(in crate::proxy) struct RequestPlace {
    // Names the request's conversation, as the client has it.
    chain: Chain,
    kept: Arc<KeptRecalls>,
}

/// A turn of the model in which it calls tools of the client.
#[derive(Debug)]
struct Turn {
    key: ChainKey,
    // Where more calls go.
    calls_at: usize,
    results: ResultsPlace,
}

/// Where the results of more calls go.
#[derive(Clone, Copy, Debug)]
enum ResultsPlace {
    /// Directly behind the calls.
    BehindCalls,
    /// Behind this element.
    Behind(usize),
    /// Before this entry.
    Before(usize),
}

/// The scope of these keys, which separates them from the keys of summaries.
const SCOPE: &[u8] = b"recalls";

impl Proxy {
    /// Puts recalls back into a body that could be decoded. Returns it, and what the recalls of its answer are kept under.
    pub(in crate::proxy) async fn put_back(
        &self,
        dialect: &'static dyn Dialect,
        headers: &mut HeaderMap,
        bytes: &mut Bytes,
        decoded: Option<IndexedBody>,
    ) -> (Option<IndexedBody>, Option<RequestPlace>) {
        let Some(text) = decoded.clone() else { return (decoded, None) };
        let chain = self.engine.chain(self.caller(headers), SCOPE);
        let body = text.clone();
        // On another thread, as it may be long and an error in a reader must not end the request.
        let read = run_blocking(move || turns(dialect, &body, chain)).await;
        let Some((turns, chain)) = read.ok().flatten() else { return (decoded, None) };
        let kept = self.engine.kept_recalls();
        let mut splices = Vec::new();
        for turn in turns {
            if let Some(recalls) = kept.get(turn.key).await {
                splices.extend(turn.splices(&recalls));
            }
        }
        let place = Some(RequestPlace { chain, kept: Arc::clone(kept) });
        let n_more: usize = splices.iter().map(|splice| splice.with.len()).sum();
        let lease = self.limits.budget.lease(text.len() + n_more).filter(|_| !splices.is_empty());
        let Some(lease) = lease else { return (decoded, place) };
        let text = lease.hold(joined(splice(&text, &splices)));
        bytes.clone_from(&text);
        headers.remove(CONTENT_ENCODING);
        (Some(text.into()), place)
    }
}

impl RequestPlace {
    /// Keeps the recalls of a round that the client has calls of, too.
    pub(super) async fn keep(self, calls: &RoundCalls, results: &[Bytes]) {
        let text = |json: &[u8]| String::from_utf8_lossy(json).into_owned();
        let recalls = calls.own.iter().zip(results).map(|(call, result)| (text(&call.json), text(result))).collect();
        self.kept.keep(key(self.chain, &calls.others), &TurnRecalls { recalls }).await;
    }
}

/// The name of a turn with these calls behind what the chain names.
fn key<T: AsRef<str>>(mut before: Chain, ids: &[T]) -> ChainKey {
    let ids = ids.iter().fold(b"calls".to_vec(), |all, id| [&*all, b"\0", id.as_ref().as_bytes()].concat());
    before.push(Fingerprint::of(&ids), || vec![&*ids])
}

/// The turns of a body in which the client is called, and the name of it all.
fn turns(dialect: &dyn Dialect, body: &IndexedBody, mut chain: Chain) -> Option<(Vec<Turn>, Chain)> {
    let conversation = dialect
        .parse_indexed(body, body.strings())
        .ok()
        .filter(|conversation| !conversation.traits.history_elsewhere)?;
    let (mut turns, mut turn, mut before, mut ids) = (Vec::new(), None, chain.clone(), Vec::new());
    for (n, element) in conversation.elements.iter().enumerate() {
        let units = conversation.unit_range(&element.units);
        let of = units.first().filter(|unit| unit.role == Role::Assistant).map(|unit| unit.turn);
        if of != turn {
            (turn, before) = (of, chain.clone());
            ids.clear();
        }
        let mut last = None;
        for block in units.iter().filter(|_| of.is_some()).flat_map(|unit| conversation.blocks_of(unit)) {
            if let BlockKind::ToolCall { id, .. } = &block.kind {
                ids.push(id.text.clone());
                last = Some(block.span);
            }
        }
        let next = conversation.elements.get(n + 1);
        if let Some(call) = last.filter(|_| !continues(&conversation, next, of)) {
            let key = key(before.clone(), &ids);
            turns.extend(places(dialect, body, &conversation, (element, call), next).map(|(calls_at, results)| Turn {
                key,
                calls_at,
                results,
            }));
        }
        chain.push(conversation.element_fingerprint(element, body), || dialect.canonical(element.span.of(body)));
    }
    Some((turns, chain))
}

/// Whether the next element has calls of the same turn.
fn continues(conversation: &Conversation<'_>, next: Option<&Element>, turn: Option<usize>) -> bool {
    let units = next.map(|next| conversation.unit_range(&next.units)).unwrap_or_default();
    units.iter().any(|unit| Some(unit.turn) == turn && !conversation.blocks_of(unit).is_empty())
}

/// Where more calls and their results go, behind the last call of a turn.
fn places(
    dialect: &dyn Dialect,
    body: &[u8],
    conversation: &Conversation<'_>,
    (element, call): (&Element, Span),
    next: Option<&Element>,
) -> Option<(usize, ResultsPlace)> {
    let Some(entries) = dialect.entries(body, element.span) else { return Some((call.end, ResultsPlace::BehindCalls)) };
    let unit = conversation.unit_range(&next?.units).first().filter(|unit| unit.role == Role::Tool)?;
    let results = if conversation.is_element(unit) {
        ResultsPlace::Behind(element.span.end)
    } else {
        ResultsPlace::Before(unit.span.start)
    };
    Some((entries.spans.last()?.end, results))
}

impl Turn {
    fn splices(&self, recalls: &TurnRecalls) -> Vec<Splice> {
        let at = |at, with: String| Splice { span: Span::empty(at), with: with.into() };
        let (mut calls, mut behind, mut before) = (String::new(), String::new(), String::new());
        for (call, result) in &recalls.recalls {
            calls += &[",", call].concat();
            behind += &[",", result].concat();
            before += &[result, ","].concat();
        }
        match self.results {
            ResultsPlace::BehindCalls => vec![at(self.calls_at, calls + &behind)],
            ResultsPlace::Behind(element) => vec![at(self.calls_at, calls), at(element, behind)],
            ResultsPlace::Before(entry) => vec![at(self.calls_at, calls), at(entry, before)],
        }
    }
}
