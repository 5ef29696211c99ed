//! Slow streams: each is read to its end or abandoned in the middle; then the next one is opened.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::sleep;

use super::connection::{AsyncConnection, post};
use super::{Counters, Progress};
use crate::load::client::EventReader;
use crate::load::stats::Random;

/// The interval of events in milliseconds, and the number of events in a stream.
const EVERY: (usize, usize) = (300, 900);
const EVENTS: (usize, usize) = (4, 40);
/// One in so many streams is abandoned.
const LEAVE_ONE_IN: usize = 4;

const BODY: &[u8] =
    br#"{"model":"gpt-5.2","stream":true,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"Tell me of the sea."}]}"#;

pub(super) async fn run(progress: &Progress, address: SocketAddr, n: u64) -> Result<()> {
    let mut random = Random::new(n);
    // The streams begin at different times, so that their events do not coincide.
    sleep(Duration::from_millis(n * 5)).await;
    while !progress.is_over() {
        one(progress, address, &mut random).await?;
        Counters::add(&progress.counters.streams);
    }
    Ok(())
}

async fn one(progress: &Progress, address: SocketAddr, random: &mut Random) -> Result<()> {
    let events = EVENTS.0 + random.below(EVENTS.1 - EVENTS.0);
    let every = (EVERY.0 + random.below(EVERY.1 - EVERY.0)) * 1000;
    let leaves_at = if random.below(LEAVE_ONE_IN) == 0 { random.below(events) } else { usize::MAX };
    let mut connection = AsyncConnection::open(address).await?;
    connection.send(&post(&format!("?events={events}&every={every}"), BODY)).await?;
    let mut reader = EventReader::default();
    let mut seen = 0;
    loop {
        if seen >= leaves_at {
            Counters::add(&progress.counters.left);
            return Ok(());
        }
        let over = reader.feed(&connection.receive().await?, |_sent| seen += 1)?;
        if over {
            ensure!(seen == events, "{seen} events of {events}");
            return Ok(());
        }
        if progress.is_over() {
            return Ok(());
        }
    }
}
