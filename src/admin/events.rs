//! `GET /abridge/events`: events as server-sent events, from the request until the client disconnects or abridge stops.
//!
//! Each event has its `id`, its type in `event`, and the whole event as JSON in `data`. A comment line is sent after a pause of
//! the heartbeat. A listener that reads too slowly loses the oldest events, and gets their number in an event `events.lost`.
//!
//! | request | receives |
//! |---|---|
//! | with a credential | the events of requests with the same one |
//! | with the operators' token | all events |
//! | without | 401 |

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Either, Full, StreamBody};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{only_get, text, with};
use crate::events::{Audience, Delivery, EncodedEvent, Events, LOST, Subscription, lost_event};

/// The path of the event stream.
pub const PATH: &str = "/abridge/events";

/// The body of an event stream.
pub type EventStream = UnsyncBoxBody<Bytes, Infallible>;

/// The body of an answer: a text, or an event stream.
pub type EventsBody = Either<Full<Bytes>, EventStream>;

/// The `retry-after` if there are too many listeners, in seconds.
const RETRY_SECONDS: &str = "5";

/// Answers a request for those events that `audience` may see, if any, until `stop` is cancelled.
pub fn answer<B>(
    request: &Request<B>,
    events: &Events,
    stop: &CancellationToken,
    audience: Option<Audience>,
) -> Response<EventsBody> {
    let refuse = |status, sentence: &'static str| text(status, sentence).map(Either::Left);
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return only_get().map(Either::Left);
    }
    let Some(audience) = audience else {
        let why = "send the credential of the requests whose events you want; all events need the operators' token\n";
        return refuse(StatusCode::UNAUTHORIZED, why);
    };
    if stop.is_cancelled() {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "abridge is stopping\n");
    }
    let Some(listener) = events.subscribe(audience) else {
        let refused = refuse(StatusCode::SERVICE_UNAVAILABLE, "events.listeners is reached\n");
        return with(refused, RETRY_AFTER, RETRY_SECONDS);
    };
    let mut response = Response::new(if request.method() == Method::HEAD {
        Either::Left(Full::default())
    } else {
        Either::Right(stream_of(listener, events.heartbeat(), stop.clone()))
    });
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx holds answers back otherwise.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The events, with a comment after each pause of the heartbeat, until abridge stops and the queue is empty.
fn stream_of(listener: Subscription, heartbeat: Duration, stop: CancellationToken) -> EventStream {
    // A first line at once confirms the subscription.
    let first = stream::once(async { Bytes::from_static(b": listening\n\n") });
    let lines = stream::unfold((listener, stop), move |(mut listener, stop)| async move {
        let lines = match timeout(heartbeat, listener.next_until(&stop)).await {
            Err(_) => Bytes::from_static(b": still here\n\n"),
            Ok(delivery) => lines(&delivery?),
        };
        Some((lines, (listener, stop)))
    });
    let lines = first.chain(lines).fuse();
    StreamBody::new(lines.map(|lines| Ok(Frame::data(lines)))).boxed_unsync()
}

fn lines(delivery: &Delivery) -> Bytes {
    let (head, json) = match delivery {
        Delivery::Event(told) => {
            let EncodedEvent { id, kind, json } = &**told;
            (format!("id: {id}\nevent: {kind}"), json.clone())
        }
        Delivery::Lost(n) => (format!("event: {LOST}"), lost_event(*n)),
    };
    // JSON escapes line ends.
    [head.as_bytes(), b"\ndata: ", &json, b"\n\n"].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Edits, Event, EventKind, Settings};

    #[tokio::test]
    async fn a_listener_that_does_not_read_loses_the_oldest() {
        let events = Events::new(&Settings { queue: 4, ..Settings::default() });
        let listener = events.subscribe(Audience::All).unwrap();
        let stop = CancellationToken::new();
        let mut stream = stream_of(listener, Duration::from_mins(1), stop.clone());
        for n in 0..1000 {
            let kind = EventKind::EditBefore(Edits { left_out: n, ..Edits::default() });
            events.publish(Event { request_id: None, caller: None, kind });
        }
        stop.cancel();
        let mut texts = Vec::new();
        while let Some(frame) = stream.frame().await {
            texts.push(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap());
        }
        assert_eq!(texts.len(), 6, "{texts:?}");
        assert_eq!(
            texts[..2],
            [": listening\n\n", "event: events.lost\ndata: {\"type\":\"events.lost\",\"lost\":996}\n\n"]
        );
        for (n, text) in (996..1000).zip(&texts[2..]) {
            assert!(text.contains(&format!("\"left_out\":{n},")) && text.starts_with("id: evt_"), "{text}");
        }
        assert!(stream.frame().await.is_none(), "the stream stays ended");
    }
}
