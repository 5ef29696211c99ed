//! The demo's turns, the way back, and the sum.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use http::Uri;

use super::DemoError;
use super::agent::{Agent, Original, Outcome, Refused, Wish};
use super::client::Client;
use super::proxy::Abridge;
use super::session::{Act, SESSION};
use super::table::{Screen, Sum};
use super::upstream::{self, Upstream};
use crate::units::grouped;

/// Everything that takes part but the agent.
#[derive(Debug)]
pub(super) struct Stage<'s, W> {
    client: Client,
    upstream: Upstream,
    abridge: Abridge,
    screen: &'s mut Screen<W>,
    keep: Option<&'s Path>,
    direct: Sum,
    abridged: Sum,
    explained: Explained,
}

/// What came of reading back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recalled {
    /// How many originals the last request names.
    n_named: usize,
    /// How many of them came back as they were, to the byte.
    n_equal: usize,
}

/// What has been explained already.
#[derive(Debug, Default)]
struct Explained(Vec<Topic>);

/// What is explained once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Topic {
    Refusal,
    Overflow,
    Patch,
    Truncate,
    Clear,
}

// === impl Stage ===

impl<'s, W: Write> Stage<'s, W> {
    /// Before the first turn.
    pub(super) fn new(
        client: Client,
        upstream: Upstream,
        abridge: Abridge,
        screen: &'s mut Screen<W>,
        keep: Option<&'s Path>,
    ) -> Self {
        let (direct, abridged) = (Sum::default(), Sum::default());
        Self { client, upstream, abridge, screen, keep, direct, abridged, explained: Explained::default() }
    }

    /// Each turn: the same bytes to both. True if abridge brought an answer to each.
    pub(super) async fn play(&mut self, agent: &mut Agent) -> Result<bool, DemoError> {
        let (upstream, abridge) = (chat(&self.upstream.url())?, chat(self.abridge.url())?);
        for turn in 1..=SESSION.len() {
            let (request, news) = (agent.request(), agent.news());
            let tokens = self.upstream.count(&request);
            self.screen.turn(turn, &news.title, news.bytes)?;
            let direct = Outcome::of(&self.client.post(upstream.clone(), request.clone()).await?)?;
            self.direct.add(&direct, tokens);
            self.screen.direct(&direct)?;
            let abridged = Outcome::of(&self.client.post(abridge.clone(), request.clone()).await?)?;
            self.keep(turn, &request)?;
            self.abridged.add(&abridged, tokens);
            self.screen.abridged(&abridged, tokens).await?;
            self.explain(&direct, &abridged).await?;
            let Outcome::Ok(said) = abridged else { return Ok(false) };
            match agent.take(said)? {
                Wish::Nothing => return Ok(turn == SESSION.len()),
                Wish::Done => {}
                Wish::Fetch { call_id, url } => self.fetch(agent, call_id, &url).await?,
            }
        }
        Ok(false)
    }

    /// Writes the request of a turn, as the agent sent it and as the model was given it.
    fn keep(&self, turn: usize, request: &[u8]) -> io::Result<()> {
        let Some(folder) = self.keep else { return Ok(()) };
        fs::create_dir_all(folder)?;
        fs::write(folder.join(format!("{turn:02}-agent.json")), request)?;
        fs::write(folder.join(format!("{turn:02}-upstream.json")), &*self.upstream.last())
    }

    /// The model wants to read again what was taken out. The tools of the demo reach nobody but the demo's abridge.
    async fn fetch(&mut self, agent: &mut Agent, call_id: String, url: &str) -> Result<(), DemoError> {
        let text = if url.starts_with(&format!("{}/", self.abridge.url())) {
            let answer = self.client.get(url.parse()?).await?;
            String::from_utf8_lossy(&answer.body).into_owned()
        } else {
            "curl: (7) Failed to connect\n".to_owned()
        };
        let n_lines = text.lines().count();
        self.screen.note(&format!("The model needs the log, finds it cleared, and asks abridge for the {n_lines} lines of it that say tzdata.")).await?;
        agent.result(call_id, Act::LookBack.title(), text);
        Ok(())
    }

    /// Says once what each new thing in the table is.
    async fn explain(&mut self, direct: &Outcome, abridged: &Outcome) -> Result<(), DemoError> {
        let Self { screen, explained, .. } = self;
        if let Outcome::Refused(refused) = direct {
            if explained.first(Topic::Refusal) {
                screen.note(&quoted(refused)).await?;
                screen.note("Without abridge the agent stops here, for this stays in its history. The demo sends the next turns all the same.").await?;
            }
            if refused.code.is_some() && explained.first(Topic::Overflow) {
                screen.note(&quoted(refused)).await?;
            }
        }
        let Outcome::Ok(said) = abridged else { return Ok(()) };
        if said.changes("patch") > 0 && explained.first(Topic::Patch) {
            screen.note("abridge has put a result there that says that the call was interrupted.").await?;
        }
        if said.changes("truncate") > 0 && explained.first(Topic::Truncate) {
            screen.note("abridge has cut the middle out of the log, and stored the whole.").await?;
        }
        let n = said.changes("clear");
        if n > 0 && explained.first(Topic::Clear) {
            let what = if n == 1 { "an old result".to_owned() } else { format!("{n} old results") };
            screen
                .note(&format!("abridge has stored {what}; a line in the place of each says how to read it again."))
                .await?;
        }
        Ok(())
    }

    /// Reads back every original that the last request names, and compares.
    pub(super) async fn recall(&mut self, agent: &Agent) -> Result<Recalled, DemoError> {
        let last = self.upstream.last();
        let mut recalled = Recalled::default();
        let mut longest: Option<(&Original, String, Bytes)> = None;
        for message in upstream::messages(&last) {
            let original = message.answers().and_then(|call_id| agent.original(call_id));
            // A result that is as the agent has it may speak of such URLs, too.
            let Some(original) = original.filter(|original| original.text != message.text()) else { continue };
            let Some(url) = message.way_back() else { continue };
            let body = self.client.get(url.parse()?).await?.body;
            recalled.n_named += 1;
            recalled.n_equal += usize::from(body == original.text);
            if longest.as_ref().is_none_or(|(other, ..)| other.text.len() < original.text.len()) {
                longest = Some((original, url.to_owned(), body));
            }
        }
        if let Some((original, url, body)) = longest {
            self.screen.line("")?;
            self.screen.title("one original, read back")?;
            self.screen.line(&format!("  GET {url}"))?;
            self.screen.line(&format!("  the agent has  {}", measured(original.text.as_bytes())))?;
            let verdict = if body == original.text { "equal, byte by byte" } else { "NOT EQUAL" };
            self.screen.line(&format!("  abridge gives  {}   {verdict}", measured(&body)))?;
        }
        Ok(recalled)
    }

    /// Ends abridge, and says what it all comes to.
    pub(super) async fn settle(self, recalled: Recalled, began: Instant) -> Result<(), DemoError> {
        let Self { abridge, screen, direct, abridged, .. } = self;
        let stats = abridge.stop().await?;
        screen.line("")?;
        screen.sum(&direct, &abridged)?;
        screen.figure("taken out and stored, bytes", "", &grouped(stats.bytes))?;
        screen.figure("placeholders in the last request", "", &grouped(recalled.n_named))?;
        screen.figure("their originals read back, equal", "", &grouped(recalled.n_equal))?;
        screen.line("")?;
        let seconds = began.elapsed().as_secs_f64();
        screen.line(&format!(
            "That took {seconds:.1} s, and no process and no file of it is left. Now your own agent:"
        ))?;
        screen.line("")?;
        screen.line("  abridge --upstream https://api.openai.com/v1")?;
        screen.line("  export OPENAI_BASE_URL=http://127.0.0.1:8787/v1     # in the agent's shell")?;
        Ok(())
    }
}

/// The length of a text, and the beginning of its hash.
fn measured(text: &[u8]) -> String {
    let hash = blake3::hash(text).to_hex();
    format!("{:>7} bytes, blake3 {}…", grouped(text.len()), hash.get(..16).unwrap_or_default())
}

fn chat(base: &str) -> Result<Uri, DemoError> {
    Ok(format!("{base}/v1/chat/completions").parse()?)
}

/// What the upstream said, from where it becomes particular.
fn quoted(refused: &Refused) -> String {
    let (_, last) = refused.message.split_once(". ").unwrap_or(("", &refused.message));
    format!("direct: \"… {last}\"")
}

// === impl Recalled ===

impl Recalled {
    /// Whether there was something, and all of it came back.
    pub(super) fn is_whole(self) -> bool {
        self.n_named > 0 && self.n_equal == self.n_named
    }
}

// === impl Explained ===

impl Explained {
    /// Whether this was not explained before.
    fn first(&mut self, topic: Topic) -> bool {
        let first = !self.0.contains(&topic);
        if first {
            self.0.push(topic);
        }
        first
    }
}
