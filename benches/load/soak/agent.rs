//! Agents: sessions that grow till they are begun anew, with results to truncate and to clear and messages to summarise. Some
//! leave in the midst of a request or of an answer, and some read again what was taken out.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use memchr::memmem;
use tokio::time::sleep;

use super::line::{Line, get, post};
use super::{Stage, Tally};
use crate::load::conversation::{SYSTEM, TAIL, call, log, quoted, result};
use crate::load::stats::Random;

/// The requests of a session, and the pause between two of them in milliseconds.
const STEPS: usize = 25;
const PAUSE: (usize, usize) = (200, 800);
/// The size of a result, about.
const RESULT: (usize, usize) = (1_000, 24_000);
const HANDLE: &[u8] = b"/abridge/recall/";
const HANDLE_LENGTH: usize = 26;

/// What one session has said.
struct Session {
    messages: Vec<String>,
    results: Vec<String>,
}

/// How a request ends.
enum Ending {
    Answered,
    /// In the midst of its body.
    HalfSent,
    /// In the midst of a streamed answer.
    HalfRead,
}

pub(super) async fn run(stage: &Stage, address: SocketAddr, n: u64, repeats: bool) -> Result<()> {
    let mut random = Random::new(n + 1_000_000);
    let mut line = Line::open(address).await?;
    // They are not all at the same step.
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
            if !stage.hurries(n) {
                sleep(Duration::from_millis(pause.try_into()?)).await;
            }
            if stage.is_over() {
                return Ok(());
            }
            match session.send(&mut line, &mut random).await? {
                Ending::Answered => {}
                Ending::HalfSent | Ending::HalfRead => {
                    Tally::add(&stage.tally.left);
                    line = Line::open(address).await?;
                }
            }
            Tally::add(&stage.tally.requests);
            if random.below(4) == 0 && session.recall(&mut line, &mut random).await? {
                Tally::add(&stage.tally.recalls);
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

    /// A call and its result.
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

    async fn send(&self, line: &mut Line, random: &mut Random) -> Result<Ending> {
        let body = self.body();
        match random.below(12) {
            0 => {
                let request = post("", &body);
                let (half, _) = request.split_at(request.len() / 2);
                line.send(half).await?;
                Ok(Ending::HalfSent)
            }
            1 => {
                line.send(&post("?events=20&every=50000", &body)).await?;
                line.receive().await?;
                Ok(Ending::HalfRead)
            }
            _ => {
                line.exchange(&post("", &body)).await?;
                Ok(Ending::Answered)
            }
        }
    }

    /// Has the upstream name something that was taken out, and reads it.
    async fn recall(&self, line: &mut Line, random: &mut Random) -> Result<bool> {
        let answer = line.exchange(&post(&format!("?handle={}", random.below(1000)), &self.body())).await?;
        let Some(at) = memmem::find(&answer, HANDLE) else { return Ok(false) };
        let path = answer.get(at..at + HANDLE.len() + HANDLE_LENGTH).context("half a handle")?;
        let text = line.exchange(&get(std::str::from_utf8(path)?)).await?;
        let is_result = || self.results.iter().any(|result| result.as_bytes() == text);
        // One message a line, from behind the instructions.
        let mut lines = self.messages.iter().skip(1).map(|message| format!("{message}\n"));
        let mut is_transcript = || {
            text.split_inclusive(|byte| *byte == b'\n')
                .all(|line| lines.next().is_some_and(|message| message.as_bytes() == line))
        };
        ensure!(
            !text.is_empty() && (is_result() || is_transcript()),
            "nobody has said this: {}",
            String::from_utf8_lossy(&text)
        );
        Ok(true)
    }
}
