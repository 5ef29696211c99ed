//! Sessions without their texts: the usage of each request and the length of each entry of the history, one line a session.
//!
//! A text of the same length takes the place of each entry, with the lines of an earlier one where the record says that they are
//! repeated. So sizes, caches and costs are those of the session; whether a model would have missed a text cannot be known.
//! Sessions of all agents are played in the form of Messages.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use memchr::memmem;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::to_raw_value;

use super::builder::{AnswerChars, Step, estimated_output};
use super::messages::{Block, Conversation};
use super::{Agent, Session, lines};
use crate::dialect::Usage;
use crate::simulate::TranscriptError;

/// The place of a session in its file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::simulate) struct Place {
    pub(in crate::simulate) at: u64,
    pub(in crate::simulate) n_bytes: u64,
    pub(in crate::simulate) agent: Agent,
}

#[derive(Deserialize)]
struct Line<'a> {
    client: &'a str,
    month: &'a str,
    models: Vec<String>,
    requests: Vec<Request<'a>>,
    entries: Vec<Entry<'a>>,
    sidechains: Option<Vec<Vec<Request<'a>>>>,
}

/// The names are in the order of the array's numbers.
#[derive(Deserialize)]
struct Request<'a> {
    seconds: f64,
    uncached: u64,
    cached: u64,
    written_short: u64,
    written_hour: u64,
    output: u64,
    _is_turn: u8,
    #[serde(borrow)]
    _chain: &'a str,
    is_compacted: u8,
    model: usize,
    is_elsewhere: u8,
    is_final: u8,
    n_entries: usize,
    _answered: f64,
    /// Of a sub-agent, the characters of its answer.
    #[serde(default)]
    chars: usize,
}

/// Its type, characters, tool or characters of the signature, the entries whose lines it has with the characters that a
/// pointer saves, and its file and part.
#[derive(Deserialize)]
struct Entry<'a>(
    &'a str,
    usize,
    &'a str,
    #[serde(default)] Vec<(usize, usize)>,
    #[serde(default)] Option<(usize, usize)>,
);

/// A session of which more and more is put together.
struct Reader<'a> {
    line: &'a Line<'a>,
    conversation: Conversation<'a>,
    /// The text of each entry so far.
    texts: Vec<String>,
    /// Of each entry, the lines that others have repeated.
    repeated: Vec<usize>,
    /// The calls without results, by their entries.
    open: VecDeque<usize>,
}

/// The characters of a pointer.
const POINTER: usize = 80;

/// The name of a request that is counted elsewhere.
const ELSEWHERE: u64 = 1;

/// The sessions of a file, with names; `None` if it is not such a file.
pub(in crate::simulate) fn places(path: &Path) -> Option<Vec<(String, Place)>> {
    let mut file = BufReader::new(File::open(path).ok()?);
    let (mut places, mut at) = (Vec::new(), 0);
    let mut head = Vec::new();
    loop {
        head.clear();
        file.by_ref().take(super::SNIFFED_DOCUMENT).read_until(b'\n', &mut head).ok()?;
        if head.is_empty() {
            return Some(places).filter(|places| !places.is_empty());
        }
        let rest = if head.ends_with(b"\n") { 0 } else { file.skip_until(b'\n').ok()? };
        let n_bytes = (head.len() + rest) as u64;
        head.retain(|byte| !byte.is_ascii_whitespace());
        memmem::find(&head, br#""requests":[["#)?;
        let id = str::from_utf8(head.strip_prefix(br#"{"id":""#)?.get(..16)?).ok()?;
        let is_codex = memmem::find(&head, br#""client":"codex""#).is_some();
        let agent = if is_codex { Agent::Codex } else { Agent::ClaudeCode };
        places.push((id.to_owned(), Place { at, n_bytes, agent }));
        at += n_bytes;
    }
}

/// Reads the session at a place of a file.
pub(in crate::simulate) fn read(path: &Path, place: Place) -> Result<Session, TranscriptError> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(place.at))?;
    let line = lines::document(lines::MAX_DOCUMENT, BufReader::new(file.take(place.n_bytes)))?;
    let line: Line<'_> = serde_json::from_slice(&line).map_err(io::Error::from)?;
    // The texts are generated with the lengths that the line gives.
    let n_chars = line.entries.iter().fold(0, |sum: u64, entry| {
        let signature = entry.2.parse().unwrap_or(0);
        sum.saturating_add(entry.1 as u64).saturating_add(if entry.0 == "k" { signature } else { 0 })
    });
    if n_chars > lines::MAX_DOCUMENT {
        return Err(TranscriptError::TooLong(lines::MAX_DOCUMENT));
    }
    let is_elsewhere = |id| id == ELSEWHERE;
    let new = || Conversation::new((line.client != "codex").then_some("api.anthropic.com"), &is_elsewhere);
    let mut reader = Reader {
        line: &line,
        conversation: new(),
        texts: Vec::new(),
        repeated: vec![0; line.entries.len()],
        open: VecDeque::new(),
    };
    reader.read();
    let mut transcripts = reader.conversation.finish()?;
    for sidechain in line.sidechains.iter().flatten() {
        let mut conversation = new();
        conversation.input(&Block::Text("A task.".into()));
        for request in sidechain {
            let chars = AnswerChars { text: request.chars, ..AnswerChars::default() };
            conversation.open(line.step(request, chars.of_agent()));
        }
        transcripts.extend(conversation.finish()?);
    }
    Ok(Session { transcripts, skipped: 0 })
}

impl Line<'_> {
    /// A request, with the least tokens that its answer has.
    fn step(&self, request: &Request<'_>, output: u64) -> Step {
        let written = request.written_short.saturating_add(request.written_hour);
        let usage = Usage {
            input: request.uncached.saturating_add(request.cached).saturating_add(written),
            cached: request.cached,
            written,
            written_hour: request.written_hour,
            output: request.output.max(output),
        };
        #[expect(clippy::cast_possible_truncation, reason = "whole seconds")]
        let at = lines::seconds(&format!("{}-01T00:00:00Z", self.month))
            .map(|month| month.saturating_add(request.seconds as i64));
        let id = if request.is_elsewhere == 1 { ELSEWHERE } else { 0 };
        let model = self.models.get(request.model).map(|model| model.as_str().into());
        Step { usage: Some(usage), model, at, id, ..Step::default() }
    }
}

impl Reader<'_> {
    fn read(&mut self) {
        let line = self.line;
        let n_entries = line.entries.len();
        let ends = line.requests.iter().skip(1).map(|request| request.n_entries.min(n_entries)).chain([n_entries]);
        let mut from = line.requests.first().map_or(0, |request| request.n_entries.min(n_entries));
        // Of a session that goes on from another one, the answers are in the history.
        self.add(0, from);
        for (request, end) in line.requests.iter().zip(ends) {
            let answer = line.entries.get(from..end).unwrap_or_default();
            let chars = |kind: &str, of: fn(&Entry<'_>) -> usize| {
                answer.iter().filter(|entry| entry.0 == kind).map(of).sum::<usize>()
            };
            let chars = AnswerChars {
                text: chars("t", |entry| entry.1),
                arguments: chars("a", |entry| entry.1),
                signatures: chars("k", |entry| entry.2.parse().unwrap_or_default()),
            };
            let least = if request.is_final == 1 { 0 } else { estimated_output(chars) };
            if request.is_compacted == 1 && !self.has_summary(request.n_entries) {
                self.restart("A summary.");
            }
            self.conversation.open(line.step(request, least));
            self.add(from, end);
            from = from.max(end);
        }
    }

    /// Begins anew with a summary. Earlier calls get no results any more.
    fn restart(&mut self, summary: &str) {
        self.open.clear();
        self.conversation.restart();
        self.conversation.input(&Block::Text(summary.into()));
    }

    /// Whether a summary of the history is one of the last entries before a request.
    fn has_summary(&self, n_entries: usize) -> bool {
        let before = self.line.entries.get(..n_entries).unwrap_or_default();
        before.iter().rev().take_while(|entry| !["k", "t", "a"].contains(&entry.0)).any(|entry| entry.0 == "s")
    }

    /// Adds some entries: first those that the model said, then those that came after its answer.
    fn add(&mut self, from: usize, to: usize) {
        let entries = (from..to).zip(self.line.entries.get(from..to).unwrap_or_default());
        for (n, Entry(kind, _, detail, ..)) in entries.clone() {
            self.write_text(n);
            let text = self.texts.get(n).map_or("", String::as_str);
            match *kind {
                "t" => self.conversation.answer(&Block::Text(text.into())),
                "k" => {
                    let signature = "A".repeat(detail.parse().unwrap_or_default());
                    let block = json!({"type": "thinking", "thinking": text, "signature": signature});
                    self.conversation.answer(&Block::Raw(&block.to_string()));
                }
                "a" => {
                    self.open.push_back(n);
                    let path = self.file_of_call(n, detail);
                    let (name, input) = match *detail {
                        "read" => ("Read", json!({"file_path": path.0, "offset": path.1})),
                        "edit" => ("Edit", json!({"file_path": path.0, "old_string": "A line.", "new_string": text})),
                        "shell" => ("Bash", json!({"command": text})),
                        "search" => ("Grep", json!({"pattern": text})),
                        "task" => ("Task", json!({"prompt": text})),
                        _ => ("Other", json!({"text": text})),
                    };
                    if let Ok(input) = to_raw_value(&input) {
                        self.conversation.answer(&Block::Call { id: &format!("call_{n}"), name, input: &input });
                    }
                }
                _ => {}
            }
        }
        for (n, Entry(kind, _, tool, ..)) in entries {
            let text = self.texts.get(n).map_or("", String::as_str);
            match *kind {
                "r" => {
                    let is_of_tool = |call: &usize| self.line.entries.get(*call).is_some_and(|a| a.2 == *tool);
                    let same = self.open.iter().position(is_of_tool);
                    if let Some(call) = self.open.remove(same.unwrap_or_default()) {
                        let id = format!("call_{call}");
                        self.conversation.input(&Block::Result { id: &id, content: text.into(), is_error: false });
                    }
                }
                "s" => {
                    let text = text.to_owned();
                    self.restart(&text);
                }
                "u" | "i" => self.conversation.input(&Block::Text(text.into())),
                _ => {}
            }
        }
    }

    /// The file of a call, which its result names, and the part that is read.
    fn file_of_call(&self, call: usize, tool: &str) -> (String, usize) {
        let place = |kind: &str, from: usize, to: usize| {
            let entries = self.line.entries.get(from..to).unwrap_or_default();
            entries.iter().filter(|entry| entry.0 == kind && entry.2 == tool).count()
        };
        // Results of the same tool are in the order of its calls.
        let nth = place("a", 0, call) - place("r", 0, call).min(place("a", 0, call));
        let later = self.line.entries.iter().skip(call).filter(|entry| entry.0 == "r" && entry.2 == tool);
        let path = later.clone().nth(nth).and_then(|entry| entry.4);
        let (file, part) = path.unwrap_or((usize::MAX - call, 0));
        (format!("/work/file_{file}"), part * 1000)
    }

    /// Puts the text of an entry together: lines that it repeats, and its own up to its length.
    fn write_text(&mut self, n: usize) {
        if n < self.texts.len() {
            return;
        }
        let Some(Entry(kind, chars, _, repeats, _)) = self.line.entries.get(n) else { return };
        let mut own = (0_u64..).map(|i| own_line((n as u64) << 24 | i));
        let mut text = String::new();
        for (source, saved) in repeats {
            text.extend(own.next());
            let Some((from, lines)) = self.repeated.get_mut(*source).zip(self.texts.get(*source)) else { continue };
            let end = text.len() + saved + POINTER;
            for line in lines.split_inclusive('\n').skip(*from) {
                if text.len() >= end {
                    break;
                }
                text.push_str(line);
                *from += usize::from(line.ends_with('\n'));
            }
        }
        let wanted = if *kind == "k" { 0 } else { *chars };
        while text.len() < wanted {
            text.extend(own.next());
        }
        if repeats.is_empty() {
            text.truncate(wanted);
        }
        self.texts.push(text);
    }
}

/// A line that no other entry has: as many tokens a byte as code has.
fn own_line(seed: u64) -> String {
    const WORDS: [&str; 16] = [
        "let", "value", "return", "Some(", "error", "config", "path)", "=", "self.", "match", "if", "name:", "result",
        "{", "String,", "&[",
    ];
    let mut bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut line = format!("{seed:x}");
    for _ in 0..8 {
        line.push(' ');
        line.extend(WORDS.get((bits >> 60) as usize).copied());
        bits = bits.rotate_left(4);
    }
    line.push('\n');
    line
}
