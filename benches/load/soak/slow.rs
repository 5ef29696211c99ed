//! Slow streams: each is read to its end or left in the midst of it, and then the next one is opened.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::sleep;

use super::line::{Line, post};
use super::{Stage, Tally};
use crate::load::client::EventReader;
use crate::load::stats::Random;

/// The pause between two events, in milliseconds, and how many of them a stream has.
const EVERY: (usize, usize) = (300, 900);
const EVENTS: (usize, usize) = (4, 40);
/// Of so many streams one is left.
const LEAVES: usize = 4;

const BODY: &[u8] =
    br#"{"model":"gpt-5.2","stream":true,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"Tell me of the sea."}]}"#;

pub(super) async fn run(stage: &Stage, address: SocketAddr, n: u64) -> Result<()> {
    let mut random = Random::new(n);
    // They do not all begin at once, nor have their events together.
    sleep(Duration::from_millis(n * 5)).await;
    while !stage.is_over() {
        one(stage, address, &mut random).await?;
        Tally::add(&stage.tally.streams);
    }
    Ok(())
}

async fn one(stage: &Stage, address: SocketAddr, random: &mut Random) -> Result<()> {
    let events = EVENTS.0 + random.below(EVENTS.1 - EVENTS.0);
    let every = (EVERY.0 + random.below(EVERY.1 - EVERY.0)) * 1000;
    let leaves_at = if random.below(LEAVES) == 0 { random.below(events) } else { usize::MAX };
    let mut line = Line::open(address).await?;
    line.send(&post(&format!("?events={events}&every={every}"), BODY)).await?;
    let mut reader = EventReader::default();
    let mut seen = 0;
    loop {
        if seen >= leaves_at {
            Tally::add(&stage.tally.left);
            return Ok(());
        }
        let over = reader.feed(&line.receive().await?, |_sent| seen += 1)?;
        if over {
            ensure!(seen == events, "{seen} events of {events}");
            return Ok(());
        }
        if stage.is_over() {
            return Ok(());
        }
    }
}
