//! A streamed answer that is joined from several rounds while it is relayed.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::BodyExt;

use super::{Format, InBandRecalls};
use crate::body::encoding::{ContentEncoding, StreamDecoder};
use crate::body::peek::PeekableBody;
use crate::dialect::Joiner;
use crate::relay::event_splitter::{EventSplitter, data};

/// The rounds of one answer.
pub(super) struct JoinedStream {
    recalls: InBandRecalls,
    joiner: Box<dyn Joiner>,
    // The round that is read.
    body: PeekableBody,
    // Its decoder, if it is compressed.
    decoder: Option<Box<StreamDecoder>>,
    splitter: EventSplitter,
    // How many bytes were read of all rounds.
    n_bytes: usize,
    ready: VecDeque<Frame<Bytes>>,
    state: State,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Events are read.
    Joining,
    /// Everything is relayed unread.
    Passing,
    /// Nothing follows what is ready.
    Over,
}

type Next = Result<Frame<Bytes>, hyper::Error>;

impl JoinedStream {
    /// The joined answer of which `body` is the first round.
    pub(super) fn body(
        recalls: InBandRecalls,
        joiner: Box<dyn Joiner>,
        body: PeekableBody,
        encoding: ContentEncoding,
    ) -> PeekableBody {
        let (splitter, ready) = (EventSplitter::default(), VecDeque::new());
        let decoder = encoding.decoder(None);
        let stream = Self { recalls, joiner, body, decoder, splitter, n_bytes: 0, ready, state: State::Joining };
        PeekableBody::made(Box::pin(stream::unfold(stream, Self::next)))
    }

    async fn next(mut self) -> Option<(Next, Self)> {
        loop {
            // The end of the answer waits until the calls that control clearing are kept: the client's next request needs them.
            let n_held = usize::from(self.state == State::Joining && !self.recalls.controls.is_empty());
            if self.ready.len() > n_held
                && let Some(frame) = self.ready.pop_front()
            {
                return Some((Ok(frame), self));
            }
            if self.state == State::Over {
                return None;
            }
            match self.body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => self.read_encoded(&chunk),
                    Err(trailers) => self.ready.push_back(trailers),
                },
                Some(Err(error)) => {
                    self.state = State::Over;
                    return Some((Err(error), self));
                }
                None => self.end_round().await,
            }
        }
    }

    /// Reads a chunk as it came.
    fn read_encoded(&mut self, chunk: &Bytes) {
        let Some(mut decoder) = self.decoder.take() else { return self.read(chunk) };
        if decoder.decode(chunk, |plain| self.read(&plain)) {
            self.decoder = Some(decoder);
        } else {
            let end = self.fail();
            self.ready.push_back(Frame::data(end));
        }
    }

    fn read(&mut self, chunk: &Bytes) {
        match self.state {
            State::Joining => {}
            State::Passing => return self.ready.push_back(Frame::data(chunk.clone())),
            State::Over => return,
        }
        self.n_bytes += chunk.len();
        self.splitter.push(chunk);
        let mut out = Vec::new();
        while let Some(event) = self.splitter.next_event() {
            self.read_event(&event, &mut out);
        }
        if self.n_bytes > self.recalls.settings.max_bytes.as_usize() || !self.recalls.hold(chunk.len()) {
            if self.joiner.is_changed() {
                out.push(self.fail());
            } else {
                out.extend([self.joiner.rest(), self.splitter.rest()]);
                self.state = State::Passing;
            }
        }
        self.ready.extend(out.into_iter().filter(|bytes| !bytes.is_empty()).map(Frame::data));
    }

    fn read_event(&mut self, event: &Bytes, out: &mut Vec<Bytes>) {
        out.push(self.joiner.event(event, &data(event)));
    }

    /// The upstream has ended a round: the answer has ended, or abridge is called.
    async fn end_round(&mut self) {
        if self.state == State::Passing {
            self.state = State::Over;
            return;
        }
        let (rest, mut out) = (self.splitter.rest(), Vec::new());
        if !rest.is_empty() {
            self.read_event(&rest, &mut out);
        }
        let calls = self.joiner.calls();
        if !calls.is_alone {
            self.recalls.keep(&mut *self.joiner, &calls).await;
            out.push(self.joiner.rest());
            self.state = State::Over;
        } else if let Ok(next) = self.recalls.ask(&mut *self.joiner, &calls, Format::Events).await {
            self.decoder = ContentEncoding::from_headers(next.headers()).decoder(None);
            self.body = next.into_body();
        } else {
            self.recalls.keep(&mut *self.joiner, &calls).await;
            out.push(self.fail());
        }
        self.ready.extend(out.into_iter().filter(|bytes| !bytes.is_empty()).map(Frame::data));
    }

    /// Ends the answer without another round: with what the client has, or by an error.
    fn fail(&mut self) -> Bytes {
        self.state = State::Over;
        let error = || [b"event: error\ndata: ", &*self.recalls.error(), b"\n\n"].concat().into();
        self.joiner.close().unwrap_or_else(error)
    }
}
