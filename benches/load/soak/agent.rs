//! Agents: sessions that grow and are begun anew, with results to truncate and to clear and messages to summarise. Some
//! disconnect in the middle of a request or of an answer, and some recall originals.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use memchr::memmem;
use tokio::time::sleep;

use super::connection::{AsyncConnection, get, post};
use super::{Counters, Progress};
use crate::load::conversation::{SYSTEM, TAIL, call, log, quoted, result};
use crate::load::stats::Random;

/// The number of requests in a session, and the pause between them in milliseconds.
const STEPS: usize = 25;
const PAUSE: (usize, usize) = (200, 800);
/// The approximate size of a result, in bytes.
const RESULT: (usize, usize) = (1_000, 24_000);
const HANDLE: &[u8] = b"/abridge/recall/";
const HANDLE_LENGTH: usize = 26;

/// The messages and results of one session.
struct Session {
    messages: Vec<String>,
    results: Vec<String>,
}

/// How a request ends.
enum Ending {
    Answered,
    /// The client disconnects in the middle of its body.
    HalfSent,
    /// The client disconnects in the middle of a streamed answer.
    HalfRead,
}

pub(super) async fn run(progress: &Progress, address: SocketAddr, n: u64, repeats: bool) -> Result<()> {
    let mut random = Random::new(n + 1_000_000);
    let mut connection = AsyncConnection::open(address).await?;
    // The agents begin at different steps.
    let begins_at = random.below(STEPS);
    for number in 0.. {
        let mut said = Random::new(n << 32 | if repeats { 0 } else { number });
        let mut session = Session::new(&mut said)?;
        for step in 0..STEPS {
            session.grow(step, &mut said)?;
            if number == 0 && step < begins_at {
                continue;
            }
            let pause = PAUSE.0 + random.below(PAUSE.1 - PAUSE.0);
            if !progress.is_filling(n) {
                sleep(Duration::from_millis(pause.try_into()?)).await;
            }
            if progress.is_over() {
                return Ok(());
            }
            match session.send(&mut connection, &mut random).await? {
                Ending::Answered => {}
                Ending::HalfSent | Ending::HalfRead => {
                    Counters::add(&progress.counters.left);
                    connection = AsyncConnection::open(address).await?;
                }
            }
            Counters::add(&progress.counters.requests);
            if random.below(4) == 0 && session.recall(&mut connection, &mut random).await? {
                Counters::add(&progress.counters.recalls);
            }
        }
    }
    Ok(())
}

impl Session {
    fn new(said: &mut Random) -> Result<Self> {
        let system = format!(r#"{{"role":"system","content":{}}}"#, quoted(SYSTEM)?);
        let wish = quoted(&format!("The build of part {:x} is broken. Repair it.", said.next()))?;
        Ok(Self { messages: vec![system, format!(r#"{{"role":"user","content":{wish}}}"#)], results: Vec::new() })
    }

    /// Adds a call and its result.
    fn grow(&mut self, step: usize, said: &mut Random) -> Result<()> {
        let id = format!("call_{:016x}", said.next());
        let size = RESULT.0 + said.below(RESULT.1 - RESULT.0);
        let text = format!("{id}\n{}", log(said, size));
        for message in [call(step, &id)?, result(&id, &text)?] {
            self.messages.push(message.trim_start_matches(',').to_owned());
        }
        self.results.push(text);
        Ok(())
    }

    fn body(&self) -> Vec<u8> {
        format!(r#"{{"messages":[{}{TAIL}"#, self.messages.join(",")).into_bytes()
    }

    async fn send(&self, connection: &mut AsyncConnection, random: &mut Random) -> Result<Ending> {
        let body = self.body();
        match random.below(12) {
            0 => {
                let request = post("", &body);
                let (half, _) = request.split_at(request.len() / 2);
                connection.send(half).await?;
                Ok(Ending::HalfSent)
            }
            1 => {
                connection.send(&post("?events=20&every=50000", &body)).await?;
                connection.receive().await?;
                Ok(Ending::HalfRead)
            }
            _ => {
                connection.exchange(&post("", &body)).await?;
                Ok(Ending::Answered)
            }
        }
    }

    /// Recalls one original that the upstream names. Returns whether it named any.
    async fn recall(&self, connection: &mut AsyncConnection, random: &mut Random) -> Result<bool> {
        let answer = connection.exchange(&post(&format!("?handle={}", random.below(1000)), &self.body())).await?;
        let Some(at) = memmem::find(&answer, HANDLE) else { return Ok(false) };
        let path = answer.get(at..at + HANDLE.len() + HANDLE_LENGTH).context("half a handle")?;
        let text = connection.exchange(&get(std::str::from_utf8(path)?)).await?;
        let is_result = || self.results.iter().any(|result| result.as_bytes() == text);
        // A transcript has one message per line, without the instructions.
        let mut lines = self.messages.iter().skip(1).map(|message| format!("{message}\n"));
        let mut is_transcript = || {
            text.split_inclusive(|byte| *byte == b'\n')
                .all(|line| lines.next().is_some_and(|message| message.as_bytes() == line))
        };
        ensure!(
            !text.is_empty() && (is_result() || is_transcript()),
            "neither a result nor a transcript of this session: {}",
            String::from_utf8_lossy(&text)
        );
        Ok(true)
    }
}
