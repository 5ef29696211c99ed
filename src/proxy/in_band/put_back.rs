//! Puts recalls back that the model has made beside calls of the client. The client has its own calls alone; its next
//! requests get the recall after them, so that the model reads what it has asked for, and the beginning of the conversation
//! stays as the upstream knows it.
//!
//! Calls that control clearing are put back, too, where the client was not called: the edits find them in the messages.

use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;

use crate::conversation::{BlockKind, Conversation, Role};
use crate::dialect::{Dialect, strings};
use crate::engine::kept_recalls::{KeptRecall, KeptRecalls, TurnPlace};
use crate::payload::{Caller, Chain, ChainKey, Fingerprint, Keys};
use crate::proxy::{Proxy, ReadRequest, RequestHead};
use crate::span::{Span, Splice, joined, splice};
use crate::string_index::IndexedBody;
use crate::tasks::run_blocking;

/// The name under which the recalls of an answer are kept.
#[derive(Clone, Debug)]
pub(in crate::proxy) struct RequestPlace {
    dialect: &'static dyn Dialect,
    // The request's conversation, as the client has it.
    text: IndexedBody,
    caller: Caller,
    kept: Arc<KeptRecalls>,
}

/// A turn of the model.
struct Turn {
    key: ChainKey,
    // The client's calls; none where the server has the turn.
    calls: Vec<Span>,
    results: Option<ResultsPlace>,
    // The last element, or the id of the response that the server has.
    element: Span,
}

/// Where the results of more calls go.
#[derive(Clone, Debug)]
enum ResultsPlace {
    /// After the turn, and after the results of each call, as far as results follow in the order of the calls.
    Behind(Vec<usize>),
    /// Before this entry.
    Before(usize),
}

/// The scope of the keys, which separates them from the keys of summaries.
const SCOPE: &[u8] = b"recalls";

impl Proxy {
    /// Puts recalls back into a body that could be decoded. Returns what the recalls of its answer are kept under.
    pub(in crate::proxy) async fn put_back(&self, read: &mut ReadRequest<'_>) -> Option<RequestPlace> {
        let RequestHead { dialect, caller, .. } = read.head;
        let text = read.text.clone()?;
        let place = RequestPlace { dialect, text, caller, kept: Arc::clone(&self.engine.kept_recalls) };
        if !place.kept.has_none(caller) {
            Box::pin(self.put_recalls_back(&place, read)).await;
        }
        Some(place)
    }

    /// Does so for a caller who may have recalls.
    async fn put_recalls_back(&self, place: &RequestPlace, read: &mut ReadRequest<'_>) {
        let RequestPlace { dialect, caller, .. } = *place;
        let chain = || self.engine.keys.chain(caller, SCOPE);
        if !place.kept.may_have(caller, || mark(chain())).await {
            return;
        }
        let mut splices = Vec::new();
        for turn in place.turns(chain()).await.map(|(turns, _)| turns).unwrap_or_default() {
            if let Some(recalls) = place.kept.get(turn.key).await {
                splices.extend(turn.splices(dialect, &place.text, &recalls));
            }
        }
        let n_more: usize = splices.iter().map(|splice| splice.with.len()).sum();
        let lease = self.limits.budget.lease(place.text.len() + n_more).filter(|_| !splices.is_empty());
        if let Some(lease) = lease {
            read.bytes = lease.hold(joined(splice(&place.text, &splices)));
            read.head.parts.headers.remove(CONTENT_ENCODING);
            read.text = Some(IndexedBody::from(read.bytes.clone()).at(place.text.strings().path().clone()));
        }
    }
}

impl RequestPlace {
    /// Keeps the recalls of an answer in which the client has got these calls and this text.
    pub(super) async fn keep(self, keys: &Keys, calls: &[String], said: &str, recalls: &[KeptRecall]) {
        let beginning = keys.chain(self.caller, SCOPE);
        let Some((_, chain)) = self.turns(beginning.clone()).await else { return };
        let place = TurnPlace { turn: key(chain, calls, said), caller: (self.caller, mark(beginning)) };
        self.kept.keep(place, recalls).await;
    }

    /// Keeps that a response of which the client has this id is continued from its last round, with these results. The id of
    /// that round takes the place of the call.
    pub(super) async fn keep_response(&self, keys: &Keys, id: &str, last: &str, results: &[Bytes]) {
        let beginning = keys.chain(self.caller, SCOPE);
        let result = String::from_utf8_lossy(&results.join(&b","[..])).into_owned();
        let turn = response(beginning.clone(), id);
        let place = TurnPlace { turn, caller: (self.caller, mark(beginning)) };
        self.kept.keep(place, &[KeptRecall { n_before: 0, call: last.to_owned(), result }]).await;
    }

    /// The turns of the request, and the name of all of it, which begins as all names of the caller's conversations do.
    async fn turns(&self, chain: Chain) -> Option<(Vec<Turn>, Chain)> {
        let (dialect, body) = (self.dialect, self.text.clone());
        // On another thread, as it may be long and an error in a reader must not end the request.
        run_blocking(move || turns(dialect, &body, chain)).await.ok().flatten()
    }
}

/// The name of a caller's mark.
fn mark(beginning: Chain) -> ChainKey {
    named(beginning, b"calls")
}

/// The name of a turn with these calls, or without any and with this text, behind what the chain names. Clients may write white
/// space in another way.
fn key<T: AsRef<str>>(before: Chain, ids: &[T], said: &str) -> ChainKey {
    if ids.is_empty() {
        return named(before, said.split_whitespace().fold("said\0".to_owned(), |all, word| all + word).as_bytes());
    }
    let calls = ids.iter().fold(b"calls".to_vec(), |all, id| [&*all, b"\0", id.as_ref().as_bytes()].concat());
    named(before, &calls)
}

/// The name of a response that a request may continue.
fn response(beginning: Chain, id: &str) -> ChainKey {
    named(beginning, ["response\0", id].concat().as_bytes())
}

fn named(mut before: Chain, name: &[u8]) -> ChainKey {
    before.push(Fingerprint::of(name), || vec![name])
}

/// The turns of a body, and the name of it all.
fn turns(dialect: &dyn Dialect, body: &IndexedBody, mut chain: Chain) -> Option<(Vec<Turn>, Chain)> {
    let conversation = dialect.parse_indexed(body, body.strings()).ok()?;
    if conversation.traits.history_elsewhere {
        let element = dialect.continued(body)?;
        let key = response(chain.clone(), &strings::text(body, element)?);
        let results = Some(ResultsPlace::Before(conversation.elements.first()?.span.start));
        return Some((vec![Turn { key, calls: Vec::new(), results, element }], chain));
    }
    let (mut turns, mut turn, mut before) = (Vec::new(), None, chain.clone());
    let (mut ids, mut calls, mut said) = (Vec::new(), Vec::new(), String::new());
    // Where reasoning begins that leads to the next call.
    let mut reasoning = None;
    for (n, element) in conversation.elements.iter().enumerate() {
        let units = conversation.unit_range(&element.units);
        let of = units.first().filter(|unit| unit.role == Role::Assistant).map(|unit| unit.turn);
        if of != turn {
            (turn, before) = (of, chain.clone());
            ids.clear();
            calls.clear();
            said.clear();
        }
        let mut calls_here = false;
        for block in units.iter().filter(|_| of.is_some()).flat_map(|unit| conversation.blocks_of(unit)) {
            if let BlockKind::ToolCall { id, .. } = &block.kind {
                ids.push(id.text.clone());
                let start = reasoning.filter(|_| block.span == element.span).unwrap_or(block.span.start);
                calls.push(Span { start, ..block.span });
                calls_here = true;
            }
        }
        let leads = units.iter().all(|unit| unit.flags.thinks && !unit.flags.speaks && unit.blocks.is_empty());
        reasoning = leads.then(|| reasoning.unwrap_or(element.span.start));
        let next = conversation.elements.get(n + 1).map(|next| conversation.unit_range(&next.units));
        let mut goes_on = next.into_iter().flatten().filter(|unit| Some(unit.turn) == of);
        let contents = units.iter().filter(|_| of.is_some()).filter_map(|unit| unit.content);
        let texts = contents.flat_map(|content| dialect.texts(body, content));
        said.extend(texts.filter_map(|text| strings::text(body, text)));
        let calls_last = calls_here && goes_on.clone().all(|unit| unit.blocks.is_empty());
        let results = if calls_last { results_place(dialect, body, &conversation, n, &ids) } else { None };
        let is_over = ids.is_empty() && !said.is_empty() && goes_on.next().is_none();
        if results.is_some() || is_over {
            let key = key(before.clone(), &ids, &said);
            turns.push(Turn { key, calls: calls.clone(), results, element: element.span });
        }
        chain.push(conversation.element_fingerprint(element, body), || dialect.canonical(element.span.of(body)));
    }
    Some((turns, chain))
}

/// Where the results of more calls go, after the element with the last call of a turn with these calls.
fn results_place<T: AsRef<str>>(
    dialect: &dyn Dialect,
    body: &[u8],
    conversation: &Conversation<'_>,
    n: usize,
    ids: &[T],
) -> Option<ResultsPlace> {
    let element = conversation.elements.get(n)?;
    let unit_of = |n: usize| conversation.unit_range(&conversation.elements.get(n)?.units).first();
    if dialect.entries(body, element.span).is_some() {
        let unit = unit_of(n + 1).filter(|unit| unit.role == Role::Tool)?;
        if !conversation.is_element(unit) {
            return Some(ResultsPlace::Before(unit.span.start));
        }
    }
    let mut ends = vec![element.span.end];
    for unit in (n + 1..).map_while(unit_of) {
        let kind = conversation.blocks_of(unit).first().map(|block| &block.kind);
        let Some(BlockKind::ToolResult { call_id, .. }) = kind else { break };
        // The next call, or an earlier one that has several results.
        let Some(nth) = ids.iter().take(ends.len()).rposition(|id| id.as_ref() == call_id.text) else { break };
        ends.truncate(nth + 1);
        ends.push(unit.span.end);
    }
    Some(ResultsPlace::Behind(ends))
}

impl Turn {
    /// Puts each call between those of the client where the model has made it, and the results in the order of the calls, or
    /// before the client's.
    fn splices(&self, dialect: &dyn Dialect, body: &[u8], recalls: &[KeptRecall]) -> Vec<Splice> {
        let at = |at, with: String| Splice { span: Span::empty(at), with: with.into() };
        let Some(place) = &self.results else {
            let all = |of: fn(&KeptRecall) -> &str| recalls.iter().map(of).collect::<Vec<_>>().join(",");
            let exchange = dialect.own_exchange(self.element.of(body), &all(|of| &of.call), &all(|of| &of.result));
            let ([inside, after], end) = (exchange, self.element.end);
            return vec![at(end - 1, inside), at(end, after)];
        };
        if let ([], ResultsPlace::Before(place), [of]) = (&*self.calls, place, recalls) {
            // An input that is a text has no items.
            let has_place = !of.result.is_empty() && body.get(*place) == Some(&b'{');
            let with = if has_place { of.result.clone() + "," } else { String::new() };
            let mut splices = vec![Splice { span: self.element, with: strings::render(&of.call) }, at(*place, with)];
            splices.sort_by_key(|splice| splice.span.start);
            return splices;
        }
        let end = self.calls.last().map_or(0, |last| last.end);
        let mut splices: Vec<Splice> = Vec::new();
        let mut last = String::new();
        for KeptRecall { n_before, call, .. } in recalls {
            match self.calls.get(*n_before) {
                Some(next) => splices.push(at(next.start, [call, ","].concat())),
                None => last += &[",", call].concat(),
            }
        }
        splices.push(at(end, last));
        let (places, is_before) = match place {
            ResultsPlace::Behind(places) => (&**places, false),
            ResultsPlace::Before(place) => (slice::from_ref(place), true),
        };
        for (n, place) in places.iter().enumerate() {
            let here = recalls.iter().filter(|of| of.n_before.min(places.len() - 1) == n).map(|of| &*of.result);
            let results = here.map(|result| if is_before { [result, ","] } else { [",", result] }.concat());
            splices.push(at(*place, results.collect()));
        }
        splices
    }
}
