//! A relay between processes and an engine, which delays what passes, or holds it back as a partition does.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// A relay to one engine.
pub(crate) struct Relay {
    port: u16,
    mode: watch::Sender<Mode>,
}

/// What becomes of bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    Pass,
    /// They pass later.
    Delay(Duration),
    /// They wait until the mode changes. No one is told, and no connection ends.
    Hold,
}

// === impl Relay ===

impl Relay {
    /// To the only host of this URL.
    pub(crate) async fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let engine = format!("127.0.0.1:{}", port_of(url));
        let (mode, modes) = watch::channel(Mode::Pass);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (engine, modes) = (engine.clone(), modes.clone());
                tokio::spawn(async move {
                    let Ok(engine) = TcpStream::connect(engine).await else { return };
                    let ((from_client, to_client), (from_engine, to_engine)) =
                        (client.into_split(), engine.into_split());
                    let both = [(from_client, to_engine), (from_engine, to_client)];
                    let [up, down] = both.map(|(from, to)| pass(from, to, modes.clone()));
                    // When one side ends, the other ends, too.
                    tokio::select! { _ = up => {}, _ = down => {} }
                });
            }
        });
        Self { port, mode }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// The URL of the engine, through this relay.
    pub(crate) fn url(&self, url: &str) -> String {
        url.replace(&format!(":{}", port_of(url)), &format!(":{}", self.port))
    }
}

// === helpers ===

/// Hands on what is read. A delayed piece does not delay what is read after it.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>) -> io::Result<()> {
    let (read, mut queue) = mpsc::unbounded_channel();
    let reading = async {
        loop {
            let mut bytes = BytesMut::with_capacity(64 * 1024);
            let n = from.read_buf(&mut bytes).await?;
            if read.send((Instant::now(), bytes)).is_err() || n == 0 {
                return Ok(());
            }
        }
    };
    let writing = async {
        while let Some((at, bytes)) = queue.recv().await {
            // The relay lives as long as the test.
            let Ok(mode) = modes.wait_for(|mode| *mode != Mode::Hold).await.map(|mode| *mode) else { return Ok(()) };
            if let Mode::Delay(by) = mode {
                sleep_until(at + by).await;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(drop)
}

fn port_of(url: &str) -> &str {
    let (_, behind) = url.rsplit_once(':').unwrap();
    behind.split('/').next().unwrap()
}
