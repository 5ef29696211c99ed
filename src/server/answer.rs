//! The answer to one request of a connection, which is in flight until it has ended, and over HTTP/2 the time that its client
//! may take.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::{Request, Response, Version};
use hyper_util::rt::TokioExecutor;
use tokio::time::sleep;

use crate::admin::access::ConnectionInfo;
use crate::body::in_flight::InFlight;
use crate::body::{Pace, PacedBody};
use crate::proxy::{Proxy, ResponseBody};

pin_project_lite::pin_project! {
    /// The body of an answer.
    #[derive(Debug)]
    pub(super) struct Answer {
        #[pin]
        body: ResponseBody,
        in_flight: InFlight,
    }
}

/// Runs the streams of HTTP/2. One whose client takes nothing of its answer for that long is reset: it may do so on a connection
/// whose other streams go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamExecutor {
    pub(super) write_timeout: Duration,
}

/// The last step of a stream since it was polled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Done {
    /// Nothing: it waits for its client.
    Nothing,
    /// It has waited for abridge or for the upstream.
    Waited,
    /// It has sent a part of its answer.
    Sent,
}

thread_local! {
    /// Of the stream that this thread polls.
    static DONE: Cell<Done> = const { Cell::new(Done::Nothing) };
}

/// Answers a request. The future is boxed, because hyper reserves the size of this future, 5 KB, for the life of the connection.
pub(super) fn answer(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
    info: ConnectionInfo,
    in_flight: InFlight,
    pace: Pace,
) -> Pin<Box<impl Future<Output = Result<Response<Answer>, Infallible>>>> {
    Box::pin(async move {
        let is_http2 = request.version() == Version::HTTP_2;
        let request = request.map(|body| PacedBody::new(body, pace).of(in_flight.clone()));
        let mut handling = pin!(proxy.handle(request, info));
        let response = poll_fn(|cx| {
            DONE.set(Done::Waited);
            handling.as_mut().poll(cx)
        });
        let mut response = response.await;
        // HTTP/2 has no such field, and sends GOAWAY.
        if is_http2 && response.headers_mut().remove(CONNECTION).is_some() {
            in_flight.close_connection();
        }
        Ok(response.map(|body| Answer { body, in_flight }))
    })
}

impl Body for Answer {
    type Data = Bytes;
    type Error = <ResponseBody as Body>::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.project().body.poll_frame(cx);
        DONE.set(if next.is_ready() { Done::Sent } else { Done::Waited });
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let within = self.write_timeout;
        TokioExecutor::new().execute(async move {
            let (mut stream, mut timer) = (pin!(stream), None);
            poll_fn(|cx| {
                DONE.set(Done::Nothing);
                if stream.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                let done = DONE.get();
                if done != Done::Nothing {
                    timer = None;
                }
                if done == Done::Waited {
                    return Poll::Pending;
                }
                timer.get_or_insert_with(|| Box::pin(sleep(within))).as_mut().poll(cx)
            })
            .await;
        });
    }
}
