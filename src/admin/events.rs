//! `GET /abridge/events`: what happens, as server-sent events, from the moment of the request until the client goes or abridge
//! stops.
//!
//! Each event has its `id`, its type as `event`, and all of it as JSON in `data`. A comment line comes when nothing else has come
//! for a while. A listener that reads too slowly loses the oldest, and is told how many in an event `events.lost`.
//!
//! | who asks | hears |
//! |---|---|
//! | with a credential | the events of requests that show the same one |
//! | with the token of operators | all events |
//! | without, from this machine, where no token is set | all events |
//! | without, from elsewhere | nothing: 401 |
//!
//! From this machine is what comes over a Unix socket, or from a loopback address to `localhost` or a loopback address by name;
//! and in both cases without the header fields of a proxy: behind one, every client comes from this machine.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, ReusableBoxFuture};

use super::text;
use crate::events::{Audience, Delivery, EncodedEvent, Events, LOST, Subscription, lost_event};

/// Where they are.
pub const PATH: &str = "/abridge/events";

/// Events on their way to a listener.
#[derive(Debug)]
pub struct Stream(ReusableBoxFuture<'static, Option<(Bytes, Channel)>>);

/// Where the next event comes from.
#[derive(Debug)]
struct Channel {
    listener: Subscription,
    heartbeat: Duration,
    stop: CancellationToken,
}

/// An answer: a text, or events.
pub type Answer = Either<Full<Bytes>, Stream>;

/// How long who finds no place should wait, in seconds.
const RETRY_SECONDS: u32 = 5;

/// What an answer depends on besides the request.
#[derive(Debug)]
pub struct State<'a> {
    /// What can be listened to.
    pub events: &'a Events,
    /// When abridge stops.
    pub stop: &'a CancellationToken,
    /// Whose events may be heard, if any.
    pub audience: Option<Audience>,
}

/// The answer to a request for events.
pub fn answer<B>(request: &Request<B>, state: &State<'_>) -> Response<Answer> {
    let say = |status, sentence: &'static str| text(status, sentence).map(Either::Left);
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = say(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let Some(audience) = state.audience else {
        let why = "show the credential of the requests whose events you want; all events are only for who shows the token of admin.token_env, or asks from the machine of abridge itself where none is set\n";
        return say(StatusCode::UNAUTHORIZED, why);
    };
    if state.stop.is_cancelled() {
        return say(StatusCode::SERVICE_UNAVAILABLE, "abridge is stopping\n");
    }
    let Some(listener) = state.events.subscribe(audience) else {
        let mut response = say(StatusCode::SERVICE_UNAVAILABLE, "events.listeners is reached\n");
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        return response;
    };
    let channel = Channel { listener, heartbeat: state.events.heartbeat(), stop: state.stop.clone() };
    let mut response = Response::new(if request.method() == Method::HEAD {
        Either::Left(Full::default())
    } else {
        Either::Right(Stream::new(channel))
    });
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx holds answers back otherwise.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

// === impl Channel ===

impl Channel {
    /// The next event, or a comment if none comes; nothing once abridge stops and all that waited was taken.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let delivery = if self.listener.is_empty() {
            tokio::select! {
                delivery = timeout(self.heartbeat, self.listener.next()) => delivery,
                () = self.stop.cancelled() => return None,
            }
        } else {
            Ok(self.listener.next().await)
        };
        let lines = match delivery {
            Err(_) => Bytes::from_static(b": still here\n\n"),
            Ok(delivery) => lines(&delivery?),
        };
        Some((lines, self))
    }
}

fn lines(delivery: &Delivery) -> Bytes {
    let mut lines = Vec::new();
    let json = match delivery {
        Delivery::Event(told) => {
            let EncodedEvent { id, kind, json } = &**told;
            lines.extend_from_slice(format!("id: {id}\nevent: {kind}\ndata: ").as_bytes());
            json.clone()
        }
        Delivery::Lost(n) => {
            lines.extend_from_slice(format!("event: {LOST}\ndata: ").as_bytes());
            lost_event(*n)
        }
    };
    // JSON has its line ends escaped.
    lines.extend_from_slice(&json);
    lines.extend_from_slice(b"\n\n");
    lines.into()
}

impl Stream {
    fn new(channel: Channel) -> Self {
        // A first line at once, so that the listener knows that it listens.
        let begun = Some((Bytes::from_static(b": listening\n\n"), channel));
        Self(ReusableBoxFuture::new(std::future::ready(begun)))
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let Some((lines, channel)) = ready!(this.0.poll(cx)) else {
            this.0.set(async { None });
            return Poll::Ready(None);
        };
        this.0.set(channel.next());
        Poll::Ready(Some(Ok(Frame::data(lines))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::events::{Edits, Event, EventKind, Settings};

    #[tokio::test]
    async fn a_listener_that_does_not_read_loses_the_oldest() {
        let events = Events::new(&Settings { queue: 4, ..Settings::default() });
        let listener = events.subscribe(Audience::All).unwrap();
        let stop = CancellationToken::new();
        let mut stream = Stream::new(Channel { listener, heartbeat: Duration::from_mins(1), stop: stop.clone() });
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
        assert!(stream.frame().await.is_none(), "it stays at its end");
    }
}
