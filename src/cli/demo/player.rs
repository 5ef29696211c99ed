//! Plays the demo's session: each request goes to the upstream and to abridge, and what was taken out is read back.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use serde::Deserialize;

use super::RECALL_URL;
use crate::cli::client::{Response, RunningProxy};
use crate::cli::{Exit, refuse};
use crate::config::Config;
use crate::conversation::BlockKind;
use crate::demo::{Refusal, Session, Upstream};
use crate::dialect::{self, strings};
use crate::simulate::sent_request::SentRequest;
use crate::template::{fill, section};
use crate::units::grouped;
use crate::upstream::routes::DialectName;

/// The parts of the demo.
#[derive(Debug)]
pub(super) struct Player {
    pub(super) session: Session,
    pub(super) upstream: Upstream,
    pub(super) dialect: DialectName,
    /// The folder that requests are written into, if any.
    pub(super) keep: Option<PathBuf>,
    pub(super) colour: bool,
}

/// The totals of one column.
#[derive(Debug, Default)]
struct Side {
    n_ok: usize,
    tokens: usize,
    largest: usize,
    /// The tokens of the prefixes that requests share with the request before, which a prompt cache can serve.
    shared: usize,
    /// The number of requests that do not begin with the request before.
    changed: usize,
    before: Option<SentRequest>,
}

/// An original that the last request names.
#[derive(Debug)]
struct Original {
    path: String,
    /// What the agent has, and what abridge gives.
    known: String,
    given: Bytes,
}

/// An answer with an error.
#[derive(Deserialize)]
struct Failure {
    error: Refusal,
}

/// The key of the agent, in all dialects.
const KEY: &str = "Bearer demo";

/// The introduction, the commands that run an agent with abridge, and abridge by itself in front of the real upstream, and notes on
/// edits by their labels.
const TEXTS: &str = include_str!("texts.txt");

impl Player {
    /// Plays all turns with abridge at `url`, reads the originals back, and prints the totals. The exit code says whether each
    /// turn was answered through abridge, and each original was read back.
    pub(super) fn play(self, url: &str) -> anyhow::Result<Exit> {
        let began = Instant::now();
        self.print(Style::Strong, "abridge demo: an agent looks for the fault in a build that fails")?;
        self.print(Style::Plain, text("introduction"))?;
        self.print(Style::Strong, HEADS)?;
        let to_abridge = server(url)?;
        let sides = self.play_turns(&to_abridge)?;
        let originals = self.read_back(&to_abridge)?;
        self.print_totals(&sides, &originals)?;
        let [_, abridged] = sides;
        if abridged.n_ok < self.session.turns.len() || !originals.iter().all(Original::is_equal) {
            let failed = "the demo failed: abridge did not do what it demonstrates; please report this";
            return Ok(refuse(&anyhow!(failed)));
        }
        let seconds = began.elapsed().as_secs_f64();
        let left = "and no process and no file of it is left. Now your own agent:";
        self.print(Style::Plain, &format!("\nThat took {seconds:.1} s, {left}"))?;
        let commands = if self.dialect == DialectName::Messages { "anthropic" } else { "openai" };
        self.print(Style::Plain, text(commands))?;
        Ok(Exit::Ok)
    }

    /// Sends the request of each turn to both sides.
    fn play_turns(&self, to_abridge: &RunningProxy) -> anyhow::Result<[Side; 2]> {
        let to_upstream = server(&self.upstream.url)?;
        let transcript = self.session.transcript(self.dialect)?;
        let mut sides = [Side::default(), Side::default()];
        let mut explained = BTreeSet::new();
        for (n, (turn, body)) in (1..).zip(self.session.turns.iter().zip(transcript.requests())) {
            let mut is_recalled = true;
            if let (Some(path), Some(result)) = (turn.recalled_path(), &turn.result) {
                let n_lines = result.lines().count();
                self.note(&format!("The model needs the log, finds it cleared, and asks abridge for the {n_lines} lines of it that say tzdata."))?;
                is_recalled = to_abridge.get(path)?.body == result.as_bytes();
            }
            let model = Some(&*self.session.model);
            let direct = to_upstream.ask("", model, KEY, &body)?;
            let abridged = to_abridge.ask("", model, KEY, &body)?;
            let sent = self.upstream.last_request();
            if let Some(folder) = &self.keep {
                fs::create_dir_all(folder)?;
                fs::write(folder.join(format!("{n:02}-agent.json")), &body)?;
                fs::write(folder.join(format!("{n:02}-upstream.json")), &sent)?;
            }
            let is_edited = sent != body;
            let [direct_side, abridged_side] = &mut sides;
            let before = direct_side.add(body, &self.upstream)?;
            let after = abridged_side.add(sent, &self.upstream)?;
            let counts = if is_edited { format!(" → {:>5}", grouped(after)) } else { String::new() };
            let cells = [cell(&direct, &grouped(before), ""), cell(&abridged, &grouped(before), &counts)];
            self.row((n, &turn.title, turn.n_bytes()), cells)?;
            let direct = refusal(&direct);
            direct_side.n_ok += usize::from(direct.is_none());
            abridged_side.n_ok += usize::from(refusal(&abridged).is_none() && is_recalled);
            for (topic, text) in notes(direct, abridged.header("x-abridge-edits").unwrap_or_default()) {
                if explained.insert(topic) {
                    self.note(&text)?;
                }
            }
        }
        Ok(sides)
    }

    /// Reads back every original that the last request names, and compares it with what the agent has.
    fn read_back(&self, abridge: &RunningProxy) -> anyhow::Result<Vec<Original>> {
        let mut originals = Vec::new();
        let last = self.upstream.last_request();
        let dialect = dialect::of_body(&last);
        let conversation = dialect.parse(&last)?;
        for unit in &conversation.units {
            let [block] = conversation.blocks_of(unit) else { continue };
            let BlockKind::ToolResult { call_id, .. } = &block.kind else { continue };
            let texts = unit.content.map(|content| dialect.texts(&last, content)).unwrap_or_default();
            let text: String = texts.into_iter().filter_map(|text| strings::text(&last, text)).collect();
            let original = self.session.turn_of(&call_id.text).and_then(|turn| turn.result.as_ref());
            // A result that was not edited may contain such a URL, too.
            let Some(original) = original.filter(|original| **original != text) else { continue };
            let Some(path) = recalled_path(&text) else { continue };
            let given = abridge.get(path)?.body;
            originals.push(Original { path: path.to_owned(), known: original.clone(), given });
        }
        Ok(originals)
    }

    fn print_totals(&self, sides: &[Side; 2], originals: &[Original]) -> anyhow::Result<()> {
        let n_turns = self.session.turns.len();
        // Of equal ones, the first.
        if let Some(longest) = originals.iter().rev().max_by_key(|original| original.known.len()) {
            let Original { path, known, given } = longest;
            self.print(Style::Plain, "")?;
            self.print(Style::Strong, "one original, read back")?;
            self.print(Style::Plain, &format!("  GET {RECALL_URL}{path}"))?;
            self.print(Style::Plain, &format!("  the agent has  {}", length_and_hash(known.as_bytes())))?;
            let verdict = if longest.is_equal() { "equal, byte by byte" } else { "NOT EQUAL" };
            self.print(Style::Plain, &format!("  abridge gives  {}   {verdict}", length_and_hash(given)))?;
        }
        self.print(Style::Plain, "")?;
        self.print(Style::Strong, &format!("{:<34}{:>18}{:>18}", "sum", "direct", "abridge"))?;
        let [direct, abridge] = sides;
        let both = |name, of: &dyn Fn(&Side) -> String| figure(name, &of(direct), &of(abridge));
        both("turns answered", &|side| format!("{} of {n_turns}", side.n_ok))?;
        both("largest request, tokens", &|side| grouped(side.largest))?;
        both("sent upstream in all, tokens", &|side| grouped(side.tokens))?;
        both("unchanged prefix, tokens", &|side| grouped(side.shared))?;
        both("requests that change the prefix", &|side| grouped(side.changed))?;
        let distinct: BTreeSet<_> = originals.iter().map(|original| (&original.path, original.given.len())).collect();
        let stored: usize = distinct.iter().map(|(_, length)| length).sum();
        let n_equal = originals.iter().filter(|original| original.is_equal()).count();
        figure("taken out and stored, bytes", "", &grouped(stored))?;
        figure("placeholders in the last request", "", &grouped(originals.len()))?;
        figure("their originals read back, equal", "", &grouped(n_equal))?;
        Ok(())
    }
}

impl Original {
    fn is_equal(&self) -> bool {
        self.given == self.known
    }
}

impl Side {
    /// Counts a request, and returns its tokens.
    fn add(&mut self, body: Bytes, upstream: &Upstream) -> anyhow::Result<usize> {
        let sent = SentRequest::new(body, &upstream.gauge, self.before.as_ref())?;
        let tokens = sent.tokens();
        if let Some(before) = &self.before {
            let prefix = sent.shared_prefix(before);
            self.shared += prefix.tokens;
            self.changed += usize::from(!prefix.whole);
        }
        self.tokens += tokens;
        self.largest = self.largest.max(tokens);
        self.before = Some(sent);
        Ok(tokens)
    }
}

fn server(url: &str) -> anyhow::Result<RunningProxy> {
    RunningProxy::of(Some(url), None, &Config::default()).context("the demo's own servers do not answer")
}

/// Returns what an answer refuses; `None` if it is none.
fn refusal(answer: &Response) -> Option<Refusal> {
    let failure = || serde_json::from_slice(&answer.body).map(|failure: Failure| failure.error).unwrap_or_default();
    (answer.status != 200).then(failure)
}

/// The outcome of a request, as a cell of the table.
fn cell(answer: &Response, before: &str, after: &str) -> (Style, String) {
    match refusal(answer) {
        None => (Style::Good, format!("ok {before:>6}{after}")),
        Some(Refusal { code, .. }) => (Style::Bad, format!("{} {code}", answer.status)),
    }
}

/// What explains a row, each by its topic.
fn notes(direct: Option<Refusal>, edits: &str) -> Vec<(String, String)> {
    let mut notes = Vec::new();
    if let Some(Refusal { code, message }) = direct {
        notes.push((code, format!("direct: \"{message}\"")));
        notes.push(("stop".to_owned(), text("stop").to_owned()));
    }
    for (edit, n) in edits.split(';').filter_map(|each| each.split_once('=')) {
        let note = fill(text(edit), &[("n", &n)]);
        if !note.is_empty() {
            notes.push((edit.to_owned(), note));
        }
    }
    notes
}

/// A text without its last line end.
fn text(name: &str) -> &'static str {
    let text = section(TEXTS, name);
    text.strip_suffix('\n').unwrap_or(text)
}

/// The path in the recall URL of a notice or a placeholder.
fn recalled_path(text: &str) -> Option<&str> {
    let (_, path) = text.split_once("GET ")?.1.split_once(RECALL_URL)?;
    path.split_whitespace().next()
}

/// The length of a text, and the beginning of its hash.
fn length_and_hash(text: &[u8]) -> String {
    let hash = blake3::hash(text).to_hex();
    format!("{:>7} bytes, blake3 {}…", grouped(text.len()), hash.get(..16).unwrap_or_default())
}

// === output: 80 columns, plain or in colour ===

/// The style of a piece of text, as terminals number it.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Style {
    Plain = 0,
    Strong = 1,
    Aside = 2,
    Bad = 31,
    Good = 32,
}

/// The heads of the columns.
const HEADS: &str = "turn  what is new          bytes  direct (tokens)              abridge (tokens)";

/// The widths of the columns, in characters.
const TITLE_COLUMNS: usize = 19;
const DIRECT_COLUMNS: usize = 27;

/// The longest line, in characters.
const LINE_COLUMNS: usize = 80;

impl Player {
    /// Prints lines in a style.
    fn print(&self, style: Style, text: &str) -> io::Result<()> {
        let text = self.styled(style, text);
        writeln!(io::stdout(), "{text}")
    }

    /// Prints a row: the turn, and the two outcomes.
    fn row(&self, (n, title, bytes): (usize, &str, usize), [direct, abridge]: [(Style, String); 2]) -> io::Result<()> {
        let direct = self.styled(direct.0, &format!("{:<DIRECT_COLUMNS$}", direct.1));
        let abridge = self.styled(abridge.0, &abridge.1);
        let bytes = grouped(bytes);
        writeln!(io::stdout(), "{n:>4}  {title:<TITLE_COLUMNS$.TITLE_COLUMNS$} {bytes:>6}  {direct}  {abridge}")
    }

    /// Prints a note about the row before.
    fn note(&self, text: &str) -> io::Result<()> {
        let mut sign = '↳';
        for line in wrapped(text, LINE_COLUMNS - 8) {
            self.print(Style::Aside, &format!("      {sign} {line}"))?;
            sign = ' ';
        }
        Ok(())
    }

    /// The text in a style, if colour is on.
    fn styled(&self, style: Style, text: &str) -> String {
        match style as u8 {
            code @ 1.. if self.colour => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// Prints a figure for each column.
fn figure(name: &str, direct: &str, abridge: &str) -> io::Result<()> {
    writeln!(io::stdout(), "  {name:<34}{direct:>16}{abridge:>18}")
}

/// The lines of a text, broken between words.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= most) {
            Some(line) => line.extend([" ", word]),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
