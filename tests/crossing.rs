//! An exchange sent through the real binary, with both of its other sides played here: what the upstream gets is compared
//! with what it is to get, and what it answers arrives piece by piece, whatever the pieces are.

use bytes::Bytes;

use crate::it::support::upstream::{self, Exchange};
use crate::it::support::wire::{Head, framed};
use crate::it::support::{Scene, post};

/// The bytes that are sent, and those that are to come out on the other side.
#[derive(Clone, Debug)]
pub(crate) struct Crossing {
    pub(crate) target: String,
    pub(crate) request: Bytes,
    pub(crate) forwarded: Bytes,
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) response: Bytes,
}

/// How the answer is put on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Framing {
    /// In chunks, each of which is to arrive before the next one exists.
    Chunks,
    /// With its length in the head, in pieces, each of which is to arrive before the next one exists.
    Length,
    /// In chunks whose framing, too, is torn anywhere; no one waits for anyone.
    Torn,
}

impl Framing {
    pub(crate) const ALL: [Self; 3] = [Self::Chunks, Self::Length, Self::Torn];
}

/// Where to cut, always the same for one seed.
#[derive(Debug)]
struct Cuts(u64);

impl Crossing {
    /// Sends the exchange over the client's connection. The upstream's is closed after it, so that the next one opens its own.
    pub(crate) async fn run(&self, scene: &mut Scene, framing: Framing, seed: u64) -> Result<(), String> {
        let request = post(&self.target, &["content-type: application/json"], &self.request);
        let Scene { client, upstream, .. } = scene;
        let (mut call, ()) = tokio::join!(upstream.request(), client.send(&request));
        same("the request", &self.forwarded, &call.bytes().await)?;

        let mut cuts = Cuts(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        call.send(self.head(framing)).await;
        let (head, received) = match framing {
            Framing::Chunks | Framing::Length => self.in_step(scene, &mut call, &mut cuts).await?,
            Framing::Torn => self.torn(scene, &mut call, &mut cuts).await,
        };
        same("the response", &self.response, &received)?;
        if (head.status(), head.get("content-type")) != (self.status, Some(self.content_type.as_str())) {
            return Err(format!("another head than the upstream's: {head:?}"));
        }
        let edited = head.get("x-abridge-edits").is_some();
        if edited == (self.request == self.forwarded) {
            return Err(format!("edited or not, the head says the contrary: {head:?}"));
        }
        Ok(())
    }

    fn head(&self, framing: Framing) -> Vec<u8> {
        let length = match framing {
            Framing::Length => format!("content-length: {}", self.response.len()),
            Framing::Chunks | Framing::Torn => "transfer-encoding: chunked".to_owned(),
        };
        let kind = format!("content-type: {}", self.content_type);
        upstream::head(&format!("{} Recorded", self.status), &[&kind, &length, "connection: close"])
    }

    /// Sends a piece when the one before has arrived.
    async fn in_step(
        &self,
        scene: &mut Scene,
        call: &mut Exchange,
        cuts: &mut Cuts,
    ) -> Result<(Head, Vec<u8>), String> {
        let client = &mut scene.client;
        let head = client.head().await;
        let chunked = head.is("transfer-encoding", "chunked");
        let (mut received, mut sent) = (Vec::new(), 0);
        for piece in cuts.pieces(&self.response) {
            sent += piece.len();
            if !chunked {
                call.send(piece).await;
                received.extend_from_slice(&client.exactly(piece.len()).await);
                continue;
            }
            call.send_chunk(piece).await;
            while received.len() < sent {
                let chunk = client.chunk().await.ok_or("the answer ended too early")?;
                received.extend_from_slice(&chunk);
            }
        }
        if chunked {
            call.end_stream().await;
            if let Some(more) = client.chunk().await {
                return Err(format!("more than was sent: {more:?}"));
            }
            client.trailers().await;
        }
        Ok((head, received))
    }

    async fn torn(&self, scene: &mut Scene, call: &mut Exchange, cuts: &mut Cuts) -> (Head, Vec<u8>) {
        let mut wire: Vec<u8> = cuts.pieces(&self.response).into_iter().flat_map(framed).collect();
        wire.extend_from_slice(b"0\r\n\r\n");
        let sending = async {
            for piece in cuts.pieces(&wire) {
                call.send(piece).await;
                tokio::task::yield_now().await;
            }
        };
        let (reply, ()) = tokio::join!(scene.client.reply(), sending);
        (reply.head, reply.body.to_vec())
    }
}

impl Cuts {
    /// The bytes in pieces: many of a few bytes, some of thousands.
    fn pieces<'a>(&mut self, mut bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let longest = [3, 200, 200, 8000][self.below(4)];
            let (piece, rest) = bytes.split_at(bytes.len().min(1 + self.below(longest)));
            pieces.push(piece);
            bytes = rest;
        }
        pieces
    }

    /// A number below `n`, by xorshift.
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or_default() % n
    }
}

fn same(what: &str, expected: &[u8], found: &[u8]) -> Result<(), String> {
    let difference = abridge_proxy::replay::Difference::between(expected, found);
    difference.map_or(Ok(()), |difference| Err(format!("{what} came out otherwise: {difference}")))
}

/// Runs what waits.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}
