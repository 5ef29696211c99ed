//! Measures what abridge adds to a request under load: pairs of one request straight to the upstream and one through
//! abridge, in alternating order, so that other work of the machine affects both alike.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::Progress;
use super::connection::post;
use crate::load::client::Connection;
use crate::load::conversation::{Calls, sample};
use crate::load::machine::micros;

const BODY_BYTES: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(10);

/// The times of one pair, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) at: Duration,
    pub(super) direct: f64,
    pub(super) through: f64,
}

pub(super) fn run(progress: &Progress, upstream: SocketAddr, abridge: SocketAddr) -> Result<Vec<Pair>> {
    let request = post("", &sample(BODY_BYTES, Calls::Answered)?.body);
    let mut connections = [Connection::open(upstream)?, Connection::open(abridge)?];
    let (start, mut pairs) = (Instant::now(), Vec::new());
    while !progress.is_over() {
        thread::sleep(PAUSE);
        let [direct, through] = &mut connections;
        let at = start.elapsed();
        let pair = if pairs.len() % 2 == 0 {
            let direct = time(direct, &request)?;
            Pair { at, direct, through: time(through, &request)? }
        } else {
            let through = time(through, &request)?;
            Pair { at, direct: time(direct, &request)?, through }
        };
        pairs.push(pair);
    }
    Ok(pairs)
}

fn time(connection: &mut Connection, request: &[u8]) -> Result<f64> {
    let start = Instant::now();
    connection.exchange(request).context("the probe")?;
    Ok(micros(start.elapsed()))
}
