//! Runs the demo: plays the turns, reads the originals back, and prints the totals.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use http::Uri;

use super::agent::{Agent, NextStep, Outcome, Rejection, ToolResult};
use super::client::Client;
use super::format::Entry;
use super::output::{DemoOutput, SideTotals};
use super::proxy::AbridgeProcess;
use super::script::{SCRIPT, ScriptAction};
use super::upstream::{self, Upstream};
use super::{DemoError, RECALL_URL};
use crate::units::grouped;

/// The parts of the demo, except the agent.
#[derive(Debug)]
pub(super) struct DemoRunner<'s, W> {
    client: Client,
    upstream: Upstream,
    abridge: AbridgeProcess,
    output: &'s mut DemoOutput<W>,
    keep: Option<&'s Path>,
    direct: SideTotals,
    abridged: SideTotals,
    explained: ExplainedTopics,
}

/// The result of reading originals back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecallCheck {
    /// The number of originals that the last request names.
    n_named: usize,
    /// The number of originals that were read back, equal byte for byte.
    n_equal: usize,
}

/// The topics that were explained already.
#[derive(Debug, Default)]
struct ExplainedTopics(Vec<Topic>);

/// A topic that is explained once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Topic {
    Refusal,
    Overflow,
    Patch,
    Truncate,
    Clear,
}

// === impl DemoRunner ===

impl<'s, W: Write> DemoRunner<'s, W> {
    /// A runner before the first turn.
    pub(super) fn new(
        client: Client,
        upstream: Upstream,
        abridge: AbridgeProcess,
        output: &'s mut DemoOutput<W>,
        keep: Option<&'s Path>,
    ) -> Self {
        let (direct, abridged) = (SideTotals::default(), SideTotals::default());
        Self { client, upstream, abridge, output, keep, direct, abridged, explained: ExplainedTopics::default() }
    }

    /// Plays all turns, each with the same bytes to both sides. Returns whether abridge brought an answer to each.
    pub(super) async fn play(&mut self, agent: &mut Agent) -> Result<bool, DemoError> {
        let format = self.upstream.format();
        let url = |base: &str| format!("{base}{}", format.path()).parse::<Uri>();
        let (upstream, abridge) = (url(&self.upstream.url())?, url(self.abridge.url())?);
        for turn in 1..=SCRIPT.len() {
            let (request, new_content) = (agent.request(), agent.new_content());
            let tokens = self.upstream.count(&request);
            self.output.write_turn(turn, &new_content.title, new_content.bytes)?;
            let direct = Outcome::of(&self.client.post(upstream.clone(), request.clone()).await?, format)?;
            self.direct.add(&direct, tokens);
            self.output.write_direct(&direct)?;
            let abridged = Outcome::of(&self.client.post(abridge.clone(), request.clone()).await?, format)?;
            self.write_requests(turn, &request)?;
            self.abridged.add(&abridged, tokens);
            self.output.write_abridged(&abridged, tokens).await?;
            self.explain(&direct, &abridged).await?;
            let Outcome::Ok(said) = abridged else { return Ok(false) };
            match agent.take(said)? {
                NextStep::Finished => return Ok(turn == SCRIPT.len()),
                NextStep::ToolRun => {}
                NextStep::Fetch { call_id, url } => self.fetch(agent, call_id, &url).await?,
            }
        }
        Ok(false)
    }

    /// Writes the request of a turn as the agent sent it and as the upstream received it.
    fn write_requests(&self, turn: usize, request: &[u8]) -> io::Result<()> {
        let Some(folder) = self.keep else { return Ok(()) };
        fs::create_dir_all(folder)?;
        fs::write(folder.join(format!("{turn:02}-agent.json")), request)?;
        fs::write(folder.join(format!("{turn:02}-upstream.json")), &*self.upstream.last_request())
    }

    /// The original at a URL. The demo can only reach its own abridge.
    async fn read_original(&self, url: &str) -> Result<Option<Bytes>, DemoError> {
        let Some(path) = url.strip_prefix(RECALL_URL).filter(|path| path.starts_with('/')) else { return Ok(None) };
        let url = format!("{}{path}", self.abridge.url());
        Ok(Some(self.client.get(url.parse()?).await?.body))
    }

    /// Reads an original for the model.
    async fn fetch(&mut self, agent: &mut Agent, call_id: String, url: &str) -> Result<(), DemoError> {
        let text = match self.read_original(url).await? {
            Some(body) => String::from_utf8_lossy(&body).into_owned(),
            None => "curl: (7) Failed to connect\n".to_owned(),
        };
        let n_lines = text.lines().count();
        self.output.write_note(&format!("The model needs the log, finds it cleared, and asks abridge for the {n_lines} lines of it that say tzdata.")).await?;
        agent.add_result(call_id, ScriptAction::LookBack.title(), text);
        Ok(())
    }

    /// Explains each topic the first time that it appears in the table.
    async fn explain(&mut self, direct: &Outcome, abridged: &Outcome) -> Result<(), DemoError> {
        let Self { output, explained, .. } = self;
        if let Outcome::Rejected(refused) = direct {
            if explained.is_first(Topic::Refusal) {
                output.write_note(&quoted(refused)).await?;
                output.write_note("Without abridge the agent stops here, for this stays in its history. The demo sends the next turns all the same.").await?;
            }
            if refused.is_overflow() && explained.is_first(Topic::Overflow) {
                output.write_note(&quoted(refused)).await?;
            }
        }
        let Outcome::Ok(said) = abridged else { return Ok(()) };
        if said.changes("patch") > 0 && explained.is_first(Topic::Patch) {
            output.write_note("abridge has put a result there that says that the call was interrupted.").await?;
        }
        if said.changes("truncate") > 0 && explained.is_first(Topic::Truncate) {
            output.write_note("abridge has cut the middle out of the log, and stored the whole.").await?;
        }
        let n = said.changes("clear");
        if n > 0 && explained.is_first(Topic::Clear) {
            let what = if n == 1 { "an old result".to_owned() } else { format!("{n} old results") };
            output
                .write_note(&format!(
                    "abridge has stored {what}; a line in the place of each says how to read it again."
                ))
                .await?;
        }
        Ok(())
    }

    /// Reads back every original that the last request names, and compares it.
    pub(super) async fn check_recall(&mut self, agent: &Agent) -> Result<RecallCheck, DemoError> {
        let last = self.upstream.last_request();
        let mut recalled = RecallCheck::default();
        let mut longest: Option<(&ToolResult, String, Bytes)> = None;
        for entry in self.upstream.format().read_request(&last)? {
            let Entry::Result { call_id, text } = entry else { continue };
            // An unedited result may contain such a URL, too.
            let Some(original) = agent.result_of(&call_id).filter(|original| original.text != text) else { continue };
            let Some(url) = upstream::recall_url(&text) else { continue };
            recalled.n_named += 1;
            let Some(body) = self.read_original(url).await? else { continue };
            recalled.n_equal += usize::from(body == original.text);
            if longest.as_ref().is_none_or(|(other, ..)| other.text.len() < original.text.len()) {
                longest = Some((original, url.to_owned(), body));
            }
        }
        if let Some((original, url, body)) = longest {
            self.output.write_line("")?;
            self.output.write_title("one original, read back")?;
            self.output.write_line(&format!("  GET {url}"))?;
            self.output.write_line(&format!("  the agent has  {}", length_and_hash(original.text.as_bytes())))?;
            let verdict = if body == original.text { "equal, byte by byte" } else { "NOT EQUAL" };
            self.output.write_line(&format!("  abridge gives  {}   {verdict}", length_and_hash(&body)))?;
        }
        Ok(recalled)
    }

    /// Stops abridge and prints the totals.
    pub(super) async fn finish(self, recalled: RecallCheck, began: Instant) -> Result<(), DemoError> {
        let Self { upstream, abridge, output, direct, abridged, .. } = self;
        let stats = abridge.stop().await?;
        output.write_line("")?;
        output.write_totals(&direct, &abridged)?;
        output.write_figure("taken out and stored, bytes", "", &grouped(stats.bytes))?;
        output.write_figure("placeholders in the last request", "", &grouped(recalled.n_named))?;
        output.write_figure("their originals read back, equal", "", &grouped(recalled.n_equal))?;
        output.write_line("")?;
        let seconds = began.elapsed().as_secs_f64();
        output.write_line(&format!(
            "That took {seconds:.1} s, and no process and no file of it is left. Now your own agent:"
        ))?;
        output.write_line("")?;
        for command in upstream.format().commands() {
            output.write_line(&format!("  {command}"))?;
        }
        Ok(())
    }
}

/// The length of a text, and the beginning of its hash.
fn length_and_hash(text: &[u8]) -> String {
    let hash = blake3::hash(text).to_hex();
    format!("{:>7} bytes, blake3 {}…", grouped(text.len()), hash.get(..16).unwrap_or_default())
}

/// The end of an error message, from its second sentence.
fn quoted(refused: &Rejection) -> String {
    let (_, last) = refused.message.split_once(". ").unwrap_or(("", &refused.message));
    format!("direct: \"… {last}\"")
}

// === impl RecallCheck ===

impl RecallCheck {
    /// Whether there was an original, and all were equal.
    pub(super) fn is_whole(self) -> bool {
        self.n_named > 0 && self.n_equal == self.n_named
    }
}

// === impl ExplainedTopics ===

impl ExplainedTopics {
    /// Whether this topic was not explained before; marks it as explained.
    fn is_first(&mut self, topic: Topic) -> bool {
        let first = !self.0.contains(&topic);
        if first {
            self.0.push(topic);
        }
        first
    }
}
