//! Sessions of Claude Code: `~/.claude/projects/**/*.jsonl`, one line for each block of an answer and each message.
//!
//! The lines of one answer have the same `message.id`, and results may stand between them; the answer counts once. A line with
//! `isSidechain` belongs to a sub-agent: one with an `agentId`, or with the root that its `parentUuid` leads to. At a
//! `compact_boundary`, and at a message with `isCompactSummary`, the conversation begins anew. A message of the user whose
//! parent has answers after it steps back to that parent. The window is 1,000,000 tokens where a request was larger than
//! 200,000. Older versions recorded the count of output tokens at the beginning of the answer (`stop_reason` is null on all its
//! lines), and it is estimated then: [`estimated_output`].

use std::collections::HashMap;
use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::builder::{AnswerChars, Step, estimated_output, id_of};
use super::lines::each_line;
use super::messages::{Block, Conversation, inside};
use super::{IsElsewhere, Session, time};
use crate::dialect::Usage;
use crate::simulate::TranscriptError;

const HOST: &str = "api.anthropic.com";

/// The model of answers that no model has given.
const SYNTHETIC: &str = "<synthetic>";

/// Lines without a part in the conversation.
const BESIDE: [&str; 13] = [
    "summary",
    "system",
    "progress",
    "attachment",
    "file-history-snapshot",
    "queue-operation",
    "last-prompt",
    "custom-title",
    "ai-title",
    "agent-name",
    "tag",
    "mode",
    "pr-link",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    r#type: &'a str,
    subtype: Option<&'a str>,
    uuid: Option<&'a str>,
    parent_uuid: Option<&'a str>,
    agent_id: Option<&'a str>,
    #[serde(default)]
    is_sidechain: bool,
    #[serde(default)]
    is_compact_summary: bool,
    #[serde(default)]
    is_api_error_message: bool,
    timestamp: Option<&'a str>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    id: Option<&'a str>,
    model: Option<&'a str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    stop_reason: Option<&'a str>,
    usage: Option<RecordedUsage>,
}

/// `usage` of Messages. A field may be null.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct RecordedUsage {
    input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_creation: Option<ByLifetime>,
    output_tokens: Option<u64>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct ByLifetime {
    ephemeral_1h_input_tokens: Option<u64>,
}

/// A block of which only lengths are asked for.
#[derive(Deserialize)]
struct Lengths<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    signature: Option<&'a RawValue>,
}

/// The conversation with the user, or with a sub-agent.
struct Chain<'a> {
    conversation: Conversation<'a>,
    /// When the newest message of the user came.
    at: Option<i64>,
    chars: AnswerChars,
    is_final: bool,
}

struct Reader<'a> {
    is_elsewhere: IsElsewhere<'a>,
    /// The first one is the conversation with the user.
    chains: Vec<Chain<'a>>,
    agents: HashMap<u64, usize>,
}

pub(super) fn read(file: impl BufRead, is_elsewhere: IsElsewhere<'_>) -> Result<Session, TranscriptError> {
    let mut reader = Reader { is_elsewhere, chains: Vec::new(), agents: HashMap::new() };
    reader.chains.push(reader.new_chain());
    let skipped = each_line(file, |line| {
        let Ok(line) = serde_json::from_slice::<Line<'_>>(line) else { return false };
        reader.line(&line)
    })?;
    let mut transcripts = Vec::new();
    for chain in reader.chains {
        transcripts.extend(chain.conversation.finish()?);
    }
    Ok(Session { transcripts, skipped })
}

impl<'a> Reader<'a> {
    fn new_chain(&self) -> Chain<'a> {
        let conversation = Conversation::new(Some(HOST), self.is_elsewhere);
        Chain { conversation, at: None, chars: AnswerChars::default(), is_final: false }
    }

    /// Takes a line. False if it is not understood.
    fn line(&mut self, line: &Line<'_>) -> bool {
        let n = self.chain_of(line);
        let Some(chain) = self.chains.get_mut(n) else { return false };
        let is_known = match (line.r#type, &line.message) {
            ("assistant", Some(message)) => {
                if !line.is_api_error_message && message.model != Some(SYNTHETIC) {
                    chain.answer(message, line.timestamp, n > 0);
                }
                true
            }
            ("user", Some(message)) => {
                let is_prompt = message.content.is_some_and(|content| !content.get().contains(r#""tool_result""#));
                if line.is_compact_summary {
                    chain.conversation.restart();
                } else if let Some(parent) = line.parent_uuid.filter(|_| is_prompt) {
                    chain.conversation.step_back(parent);
                }
                chain.input(message, line.timestamp);
                true
            }
            ("system", _) if line.subtype == Some("compact_boundary") => {
                chain.conversation.restart();
                true
            }
            (kind, _) => BESIDE.contains(&kind),
        };
        if let Some(uuid) = line.uuid {
            chain.conversation.name_end(uuid);
        }
        is_known
    }

    /// The chain that a line belongs to.
    fn chain_of(&mut self, line: &Line<'_>) -> usize {
        if !line.is_sidechain {
            return 0;
        }
        let agent = line.agent_id.map(id_of);
        let is_of_parent = |chain: &Chain<'_>| line.parent_uuid.is_some_and(|parent| chain.conversation.has(parent));
        let known = match agent {
            Some(agent) => self.agents.get(&agent).copied(),
            None => self.chains.iter().position(is_of_parent).filter(|chain| *chain > 0),
        };
        known.unwrap_or_else(|| {
            self.chains.push(self.new_chain());
            let n = self.chains.len() - 1;
            if let Some(agent) = agent {
                self.agents.insert(agent, n);
            }
            n
        })
    }
}

impl Chain<'_> {
    fn input(&mut self, message: &Message<'_>, timestamp: Option<&str>) {
        self.at = timestamp.and_then(time::seconds).or(self.at);
        let Some(content) = message.content.map(RawValue::get) else { return };
        match serde_json::from_str::<String>(content) {
            Ok(text) => self.conversation.input(&Block::Text(&text)),
            Err(_) => self.conversation.input(&Block::Raw(inside(content))),
        }
    }

    fn answer(&mut self, message: &Message<'_>, timestamp: Option<&str>, is_agent: bool) {
        let id = message.id.map_or(0, id_of);
        if !self.conversation.is_open(id) {
            let at = self.at.or_else(|| timestamp.and_then(time::seconds));
            self.conversation.open(Step { model: message.model.map(Into::into), at, id, ..Step::default() });
            (self.chars, self.is_final) = (AnswerChars::default(), false);
        }
        self.is_final |= message.stop_reason.is_some();
        let content = message.content.map_or("", RawValue::get);
        self.chars.add(content);
        if let Some(step) = self.conversation.request(id) {
            let usage = message.usage.map(Usage::from);
            let output = usage.or(step.usage).map_or(0, |usage| usage.output);
            let output = match (self.is_final, is_agent) {
                (true, _) => output,
                (false, false) => output.max(estimated_output(self.chars)),
                (false, true) => output.max(self.chars.of_agent()),
            };
            step.usage = usage.or(step.usage).map(|usage| Usage { output, ..usage });
        }
        self.conversation.answer(&Block::Raw(inside(content)));
    }
}

impl AnswerChars {
    fn add(&mut self, content: &str) {
        let blocks: Vec<Lengths<'_>> = serde_json::from_str(content).unwrap_or_default();
        let chars = |raw: Option<&RawValue>| raw.map_or(0, |raw| raw.get().chars().count().saturating_sub(2));
        for block in blocks {
            match block.r#type {
                "text" => self.text += chars(block.text),
                "tool_use" => self.arguments += chars(block.input) + 2,
                _ => self.signatures += chars(block.signature),
            }
        }
    }
}

impl From<RecordedUsage> for Usage {
    fn from(usage: RecordedUsage) -> Self {
        let cached = usage.cache_read_input_tokens.unwrap_or_default();
        let written = usage.cache_creation_input_tokens.unwrap_or_default();
        let hour = usage.cache_creation.and_then(|by| by.ephemeral_1h_input_tokens).unwrap_or_default();
        Self {
            input: usage.input_tokens.unwrap_or_default().saturating_add(cached).saturating_add(written),
            cached,
            output: usage.output_tokens.unwrap_or_default(),
            written,
            written_hour: hour.min(written),
        }
    }
}
