//! Recall in band: where the plan has added the tool `abridge_recall` or `abridge_control_context`, its calls are answered here.
//! The model is asked again with what it reads, and the client gets one answer that is joined from all rounds.
//!
//! Only an answer in which the model calls the tool is changed. When the client goes away, the body is dropped, and with it
//! the round that is under way.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body::Body;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use self::stream::JoinedStream;
use super::send::send_request;
use super::{Proxy, ProxyError, RequestHead, UpstreamAnswer, headers};
use crate::admin::Requester;
use crate::admin::mcp::Session;
use crate::body::encoding::{ContentCoding, ContentEncoding, is_of_type};
use crate::body::peek::PeekableBody;
use crate::body::{Budget, Lease, RequestBody};
use crate::dialect::{Dialect, Joiner, OwnCall, RoundCalls};
use crate::engine::EditedBody;
use crate::engine::kept_recalls::KeptRecall;
use crate::plan::Report;
use crate::planner::Planner;
use crate::recall::ToolSettings;
use crate::recall::own_tools::{CONTROL, Control};
use crate::span::joined;
use crate::upstream::Upstream;

mod put_back;
mod stream;

pub(super) use put_back::RequestPlace;

/// Answers the calls of one request's model.
#[derive(Debug)]
pub(super) struct InBandRecalls {
    dialect: &'static dyn Dialect,
    settings: ToolSettings,
    session: Session,
    upstream: Upstream,
    target: Uri,
    // The request as it was sent.
    parts: Parts,
    body: Vec<Bytes>,
    budget: Budget,
    // The memory of the answers that were read.
    held: Lease,
    // The elements of the rounds so far.
    elements: Vec<Bytes>,
    // What recalls beside calls of the client, and calls that control clearing, are kept under.
    place: Option<RequestPlace>,
    // The calls that control clearing, and the text that the client got, of the rounds so far.
    controls: Vec<KeptRecall>,
    said: String,
    n_rounds: usize,
    began: Option<Instant>,
    // How many bytes may be read until the window of the model is full; none if the window is unknown.
    room: Option<usize>,
}

/// Why the rounds end.
enum AskError {
    /// The upstream has refused it.
    Refused(UpstreamAnswer),
    /// It was not asked, or did not answer.
    Failed,
}

/// The most calls of one round that are answered.
const MAX_CALLS: usize = 16;

/// The longest that an upstream which is busy may ask to wait before a round is sent again.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The fewest bytes of a text that are read.
const LEAST_READ: usize = 256;

/// The bytes of a call and its result besides arguments and text.
const CALL_BYTES: usize = 200;

/// The bytes of a token of dense text.
const TOKEN_BYTES: usize = 2;

/// The part of the window that is left for the answer.
const ANSWER_PART: usize = 8;

const NO_MORE: &str = "There is no more to read in this answer (recall.tool in abridge's settings); go on without.";
const NOT_READ: &str = "The text could not be read; go on without.";

impl Proxy {
    /// What answers the model's calls, if the body offers the tool. The upstream is asked not to compress its answer then,
    /// so that it can be read.
    pub(super) fn recalls_in_band(
        &self,
        head: &mut RequestHead<'_>,
        planner: &Planner,
        place: Option<RequestPlace>,
        edited: &EditedBody,
    ) -> Option<Box<InBandRecalls>> {
        if !edited.adds_tool() {
            return None;
        }
        let RequestHead { dialect, parts, destination, target, .. } = head;
        parts.headers.remove(ACCEPT_ENCODING);
        let credential = headers::credential(&parts.headers).unwrap_or_default();
        let session = self.session(Requester::caller(&self.engine.keys, credential));
        Some(Box::new(InBandRecalls {
            dialect: *dialect,
            settings: planner.settings.recall.tool,
            room: room(planner, edited.report.as_ref()?),
            session,
            upstream: destination.upstream.clone(),
            target: target.clone(),
            parts: parts.clone(),
            body: edited.body.clone(),
            budget: self.limits.budget.clone(),
            held: Lease::default(),
            elements: Vec::new(),
            place,
            controls: Vec::new(),
            said: String::new(),
            n_rounds: 0,
            began: None,
        }))
    }
}

impl InBandRecalls {
    /// The answer for the client: as it came, or joined from this one and those to what the model is asked next.
    pub(super) async fn join(self, answer: UpstreamAnswer) -> UpstreamAnswer {
        match (self.format(&answer), self.dialect.facts().joiner.map(|joiner| joiner())) {
            (Some(Format::Events), Some(joiner)) => {
                let (mut head, body) = answer.into_parts();
                let encoding = ContentEncoding::from_headers(&head.headers);
                head.headers.remove(CONTENT_ENCODING);
                head.headers.remove(CONTENT_LENGTH);
                Response::from_parts(head, JoinedStream::body(self, joiner, body, encoding))
            }
            (Some(Format::Json), Some(joiner)) => self.join_whole(joiner, answer).await,
            _ => answer,
        }
    }

    async fn join_whole(mut self, mut joiner: Box<dyn Joiner>, mut answer: UpstreamAnswer) -> UpstreamAnswer {
        let (most, idle) = (self.settings.max_bytes.as_usize(), self.upstream.idle);
        loop {
            // It is read in frames, and copied.
            let length =
                answer.body().size_hint().upper().map_or(most, |length| usize::try_from(length).unwrap_or(most));
            if !self.hold(2 * length.min(most)) {
                return answer;
            }
            let Some(mut body) = answer.body_mut().peek(most, idle).await else { return answer };
            if let ContentEncoding::Supported(encoding) = ContentEncoding::from_headers(answer.headers()) {
                let Ok(decoded) = encoding.decode(&body, most, &self.budget) else { return answer };
                body = decoded;
            }
            if !joiner.whole(&body) {
                return answer;
            }
            let calls = joiner.calls();
            if !calls.is_alone {
                self.keep(&mut *joiner, &calls).await;
                return with_body(answer, joiner.rest());
            }
            answer = match (self.ask(&mut *joiner, &calls, Format::Json).await, joiner.close()) {
                (Ok(next), _) => next,
                (Err(_), Some(body)) => {
                    self.keep(&mut *joiner, &calls).await;
                    return with_body(answer, body);
                }
                (Err(AskError::Refused(refusal)), None) => return refusal,
                (Err(AskError::Failed), None) => {
                    let error = self.error();
                    return ProxyError::RecallFailed.to_response(self.dialect).map(|_| PeekableBody::whole(error));
                }
            };
        }
    }

    /// Answers the calls of a round and sends the next one.
    async fn ask(
        &mut self,
        joiner: &mut dyn Joiner,
        calls: &RoundCalls,
        format: Format,
    ) -> Result<UpstreamAnswer, AskError> {
        if self.n_rounds > self.settings.rounds {
            return Err(AskError::Failed); // the model has been told that there is no more
        }
        let results = self.results(&calls.own).await;
        let controls = kept(calls, joiner.results(&results)).filter(|(call, _)| call.name == CONTROL.name);
        self.controls.extend(controls.map(|(_, kept)| kept));
        self.n_rounds += 1;
        let mut answer = self.send(joiner.exchange(&results)).await;
        if let Some(wait) = answer.as_ref().ok().and_then(|(busy, _)| self.wait(busy)) {
            sleep(wait).await;
            answer = self.send(joiner.exchange(&results)).await;
        }
        let is_there = |answer: &Response<_>| self.format(answer) == Some(format);
        if !matches!(&answer, Ok((next, _)) if is_there(next) || next.status() == StatusCode::TOO_MANY_REQUESTS) {
            // The text may be too long for the model.
            let nothing = vec![NOT_READ.to_owned(); results.len()];
            answer = self.send(joiner.exchange(&nothing)).await;
        }
        let (answer, elements) = answer?;
        if self.format(&answer) != Some(format) {
            tracing::debug!(status = answer.status().as_u16(), "the upstream refused the round after a recall");
            return Err(AskError::Refused(answer));
        }
        self.elements = elements;
        self.said += &calls.said;
        joiner.next_round();
        tracing::debug!(round = self.n_rounds, calls = results.len(), "answered a recall in band");
        Ok(answer)
    }

    /// How long an upstream that is busy asks to wait, if there is so much time.
    fn wait<B>(&self, answer: &Response<B>) -> Option<Duration> {
        const OVERLOADED: u16 = 529; // Anthropic's
        let is_busy = matches!(answer.status().as_u16(), 429 | 503 | OVERLOADED);
        let after = answer.headers().get(RETRY_AFTER).filter(|_| is_busy)?.to_str().ok()?.parse().ok()?;
        let left = self.settings.timeout.0.saturating_sub(self.began?.elapsed()).min(MAX_WAIT);
        Some(Duration::from_secs(after)).filter(|wait| *wait <= left)
    }

    /// Keeps the recalls of a last round that calls the client, too, and the calls of all rounds that control clearing, so that
    /// they are put back into the next request; and what a request is to have that continues the response on the server.
    async fn keep(&mut self, joiner: &mut dyn Joiner, calls: &RoundCalls) {
        let results = joiner.results(&self.results(&calls.own).await);
        let Some(place) = self.place.take() else { return };
        if let Some([id, last]) = calls.ids.as_ref().filter(|[id, last]| id != last || !results.is_empty()) {
            place.keep_response(&self.session.keys, id, last, &results).await;
        }
        let mut recalls = std::mem::take(&mut self.controls);
        recalls.extend(kept(calls, results).filter(|_| !calls.others.is_empty()).map(|(_, kept)| kept));
        if recalls.is_empty() {
            return;
        }
        self.said += &calls.said;
        place.keep(&self.session.keys, &calls.others, &self.said, &recalls).await;
    }

    /// Returns what the model reads.
    async fn results(&mut self, calls: &[OwnCall]) -> Vec<String> {
        let began = *self.began.get_or_insert_with(Instant::now);
        let is_over = self.n_rounds >= self.settings.rounds || began.elapsed() >= self.settings.timeout.0;
        let mut results = Vec::with_capacity(calls.len());
        for (n, call) in calls.iter().enumerate() {
            let room = self.room.unwrap_or(usize::MAX);
            results.push(if call.name == CONTROL.name {
                let said = Control::answer(&call.arguments).unwrap_or_else(|why| why);
                if is_over { [said, NO_MORE].join(" ") } else { said.to_owned() }
            } else if is_over || n >= MAX_CALLS || room < LEAST_READ {
                NO_MORE.to_owned()
            } else {
                self.session.recall_text(&call.arguments, room).await
            });
            let n_bytes = CALL_BYTES + call.arguments.len() + results.last().map_or(0, String::len);
            self.room = self.room.map(|room| room.saturating_sub(n_bytes));
        }
        results
    }

    /// Sends the request with more elements behind those that it has; returns them with the answer.
    async fn send(&mut self, more: Vec<Bytes>) -> Result<(UpstreamAnswer, Vec<Bytes>), AskError> {
        let elements = [self.elements.clone(), more].concat();
        let [before, behind] = self.parted().ok_or(AskError::Failed)?;
        let mut pieces = vec![before];
        for element in &elements {
            pieces.extend([Bytes::from_static(b","), element.clone()]);
        }
        pieces.push(behind);
        let mut parts = self.parts.clone();
        headers::set_length(&mut parts.headers, pieces.iter().map(Bytes::len).sum());
        let request = Request::from_parts(parts, RequestBody::buffered(&pieces));
        let answer = send_request(&self.upstream, Box::new(request), self.target.clone(), None).await;
        answer.map(|answer| (answer, elements)).map_err(|_| AskError::Failed)
    }

    /// The body as it was sent, up to the end of its last element, and after that.
    fn parted(&mut self) -> Option<[Bytes; 2]> {
        if self.body.len() > 1 {
            let lease = self.budget.lease(self.body.iter().map(Bytes::len).sum())?;
            self.body = vec![lease.hold(joined(std::mem::take(&mut self.body)))];
        }
        let body = self.body.first()?;
        let end = self.dialect.parse(body).ok()?.elements.last()?.span.end;
        Some([body.slice(..end), body.slice(end..)])
    }

    /// Leases the bytes that are read of an answer, until the last round has ended; `false` if the budget does not have them.
    fn hold(&mut self, n_bytes: usize) -> bool {
        self.budget.extend(&mut self.held, n_bytes)
    }

    fn error(&self) -> Bytes {
        ProxyError::RecallFailed.body(self.dialect)
    }

    /// The format of an answer that can be read. Without a type, it is what the request has asked for. An upstream may
    /// compress events, or all of an answer, although the request does not allow it.
    fn format<B>(&self, answer: &Response<B>) -> Option<Format> {
        let headers = answer.headers();
        let format = match headers.contains_key(CONTENT_TYPE) {
            _ if !answer.status().is_success() => return None,
            false if self.streams() => Format::Events,
            false => Format::Json,
            true if is_of_type(headers, "text/event-stream") => Format::Events,
            true if is_of_type(headers, "application/json") => Format::Json,
            true => return None,
        };
        let is_readable = match ContentEncoding::from_headers(headers) {
            ContentEncoding::Identity | ContentEncoding::Supported(ContentCoding::Gzip) => true,
            ContentEncoding::Supported(_) => format == Format::Json,
            ContentEncoding::Unsupported => false,
        };
        is_readable.then_some(format)
    }

    /// Whether the request asks for events.
    fn streams(&self) -> bool {
        #[derive(Deserialize)]
        struct Asked {
            stream: Option<bool>,
        }
        let body: Vec<u8> = self.body.concat();
        serde_json::from_slice(&body).is_ok_and(|asked: Asked| asked.stream == Some(true))
    }
}

/// The format of an answer that can be joined.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Format {
    Events,
    Json,
}

/// How many bytes a request has room for.
fn room(planner: &Planner, report: &Report) -> Option<usize> {
    let window = planner.meter.for_model(report.model.as_deref()).window?;
    let sent = report.tokens_after.unwrap_or(report.bytes_after / TOKEN_BYTES);
    Some(window.saturating_sub(sent + window / ANSWER_PART) * TOKEN_BYTES)
}

/// The calls of a round with their results, as they are put back.
fn kept(calls: &RoundCalls, results: Vec<Bytes>) -> impl Iterator<Item = (&OwnCall, KeptRecall)> {
    let text = |json: &[u8]| String::from_utf8_lossy(json).into_owned();
    calls.own.iter().zip(results).map(move |(call, result)| {
        (call, KeptRecall { n_before: call.n_before, call: text(&call.json), result: text(&result) })
    })
}

fn with_body(answer: UpstreamAnswer, body: Bytes) -> UpstreamAnswer {
    let (mut head, _) = answer.into_parts();
    head.headers.remove(CONTENT_ENCODING);
    head.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    Response::from_parts(head, PeekableBody::whole(body))
}
