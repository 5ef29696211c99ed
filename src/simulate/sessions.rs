//! Sessions as agents keep them on disk: finds them, and reads them as transcripts whose requests have their recorded usage.
//!
//! A file is only read. Each line is read as a stream and has a limit; a line that no reader knows is counted and skipped.
//! The files have neither tool definitions nor the agent's instructions. `Transcript::padded` adds a text of as many tokens
//! as the first recorded request had more than its messages, so that policies see the sizes that the upstream saw.
//!
//! | agent | files | source of the format |
//! |---|---|---|
//! | Claude Code | `claude_code` | the files themselves, versions 1.0 to 2.1 |
//! | Codex | `codex` | `codex-rs/protocol/src/protocol.rs` of openai/codex |
//! | pi | `pi` | `packages/coding-agent/docs/session.md` of badlogic/pi-mono |
//! | Gemini CLI | `gemini` | `packages/core/src/services/chatRecordingTypes.ts` of google-gemini/gemini-cli |
//! | Cline | `cline` | `src/core/storage/disk.ts` of cline/cline |
//!
//! Goose and newer versions of opencode keep their sessions in `SQLite`, and are not read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::{Transcript, TranscriptError};

pub use self::builder::{AnswerChars, Step, estimated_output};

mod builder;
mod claude_code;
mod cline;
mod codex;
mod gemini;
mod lines;
mod messages;
mod pi;
pub(super) mod usage;

/// The agents whose sessions are read.
#[derive(Clone, Copy, Debug, strum::Display, strum::IntoStaticStr, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(into = "&'static str")]
pub enum Agent {
    /// Claude Code.
    #[strum(serialize = "Claude Code")]
    ClaudeCode,
    /// Codex.
    Codex,
    /// pi.
    #[strum(serialize = "pi")]
    Pi,
    /// Gemini CLI.
    #[strum(serialize = "Gemini CLI")]
    Gemini,
    /// Cline.
    Cline,
}

/// A transcript, or one file of an agent, read.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// The conversation and those of its sub-agents, in segments of which the model has seen one at a time: an agent's own
    /// compaction and a step back begin another one.
    pub(super) transcripts: Vec<Transcript>,
    /// The number of lines that were not understood or too long.
    pub(super) skipped: usize,
}

/// Whether a request, by the hash of its name, is counted in another file.
pub(super) type IsElsewhere<'a> = &'a dyn Fn(u64) -> bool;

/// The name of Cline's file in the folder of a task.
pub(super) const CLINE_FILE: &str = "api_conversation_history.json";

/// How much of a file tells what it is: lines, bytes of each, and bytes of a document.
const SNIFFED_LINES: usize = 100;
const SNIFFED_LINE: u64 = 64 << 10;
const SNIFFED_DOCUMENT: u64 = 1 << 10;

// === impl Agent ===

impl Agent {
    /// The agent that has written a file; `None` if it is not a session that is known.
    pub(super) fn of_file(path: &Path) -> Option<Self> {
        if path.file_name()? == CLINE_FILE {
            return Some(Self::Cline);
        }
        let mut file = BufReader::new(File::open(path).ok()?);
        let mut line = Vec::new();
        if path.extension()? != "jsonl" {
            io::Read::take(&mut file, SNIFFED_DOCUMENT).read_to_end(&mut line).ok()?;
            let is_gemini = path.file_name()?.as_encoded_bytes().starts_with(b"session-")
                && memmem::find(&line, b"\"projectHash\"").is_some();
            return is_gemini.then_some(Self::Gemini);
        }
        for _ in 0..SNIFFED_LINES {
            line.clear();
            io::Read::take(&mut file, SNIFFED_LINE).read_until(b'\n', &mut line).ok()?;
            if line.last() != Some(&b'\n') {
                file.skip_until(b'\n').ok()?;
            }
            if let Some(agent) = serde_json::from_slice::<Head<'_>>(&line).ok().and_then(|head| head.agent()) {
                return Some(agent);
            }
        }
        None
    }
}

/// What tells the formats apart.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    r#type: Option<&'a str>,
    session_id: Option<&'a str>,
    project_hash: Option<&'a str>,
    uuid: Option<&'a str>,
}

impl Head<'_> {
    fn agent(&self) -> Option<Agent> {
        match (self.r#type, self.session_id, self.project_hash, self.uuid) {
            (Some("session_meta"), ..) => Some(Agent::Codex),
            (Some("session"), ..) => Some(Agent::Pi),
            (_, Some(_), Some(_), _) => Some(Agent::Gemini),
            (Some("user" | "assistant" | "system"), Some(_), _, Some(_)) => Some(Agent::ClaudeCode),
            _ => None,
        }
    }
}

// === impl Session ===

impl Session {
    /// Reads a file of an agent. A request that `is_elsewhere` has no step: it is history.
    pub(super) fn read(path: &Path, agent: Agent, is_elsewhere: IsElsewhere<'_>) -> Result<Self, TranscriptError> {
        let file = BufReader::new(File::open(path)?);
        let session = match agent {
            Agent::ClaudeCode => claude_code::read(file, is_elsewhere),
            Agent::Codex => codex::read(file, is_elsewhere),
            Agent::Pi => pi::read(file, is_elsewhere),
            Agent::Gemini => gemini::read(file, is_elsewhere),
            Agent::Cline => cline::read(file, is_elsewhere),
        }?;
        if session.transcripts.is_empty() { Err(TranscriptError::Empty) } else { Ok(session) }
    }
}

/// Where the agents of a user keep their sessions. `variable` are the environment's.
pub fn places(home: Option<&Path>, variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let home = |below: &str| home.map(|home| home.join(below));
    let or_home = |name: &str, below: &str| variable(name).or_else(|| home(below));
    let below = |root: Option<PathBuf>, folder: &str| root.map(|root| root.join(folder));
    let codex = or_home("CODEX_HOME", ".codex");
    let mut places = vec![
        below(or_home("CLAUDE_CONFIG_DIR", ".claude"), "projects"),
        below(codex.clone(), "sessions"),
        below(codex, "archived_sessions"),
        below(or_home("PI_CODING_AGENT_DIR", ".pi/agent"), "sessions"),
        home(".gemini/tmp"),
        home(".cline/data/tasks"),
    ];
    let editors = [".config", "Library/Application Support", "AppData/Roaming"];
    places.extend(editors.map(|data| home(&format!("{data}/Code/User/globalStorage/saoudrizwan.claude-dev/tasks"))));
    places.into_iter().flatten().filter(|place| place.is_dir()).collect()
}

#[cfg(test)]
mod tests;
