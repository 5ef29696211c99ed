//! Sessions of Claude Code: `~/.claude/projects/**/*.jsonl`, one line for each block of an answer and each message.
//!
//! The lines of one answer have the same `message.id`, and results may stand between them; the answer counts once. A line with
//! `isSidechain` belongs to a sub-agent: one with an `agentId`, or with the root that its `parentUuid` leads to. At a
//! `compact_boundary`, and at a message with `isCompactSummary`, the conversation begins anew. A message of the user whose
//! parent has answers after it steps back to that parent. The window is 1,000,000 tokens where a request was larger than
//! 200,000. Older versions recorded the count of output tokens at the beginning of the answer (`stop_reason` is null on all its
//! lines), and it is estimated then: [`estimated_output`].

use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::builder::{AnswerChars, Step, estimated_output, id_of};
use super::messages::{Block, Conversation, inside};
use super::{IsElsewhere, Session, lines};
use crate::dialect::Usage;
use crate::simulate::TranscriptError;

const HOST: &str = "api.anthropic.com";

/// The model of answers that no model has given.
const SYNTHETIC: &str = "<synthetic>";

/// Lines without a part in the conversation.
const BESIDE: &str = "summary system progress attachment file-history-snapshot queue-operation last-prompt custom-title \
                      ai-title agent-name tag mode pr-link";

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
    usage: Option<lines::Tokens>,
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
    /// The hash of the name of the agent, if it has one.
    agent: Option<u64>,
    chars: AnswerChars,
    is_final: bool,
}

struct Reader<'a> {
    is_elsewhere: IsElsewhere<'a>,
    /// The first one is the conversation with the user.
    chains: Vec<Chain<'a>>,
}

pub(super) fn read(file: impl BufRead, is_elsewhere: IsElsewhere<'_>) -> Result<Session, TranscriptError> {
    let mut reader = Reader { is_elsewhere, chains: Vec::new() };
    reader.chains.push(reader.new_chain());
    let skipped = lines::each_line(lines::MAX_LINE, file, |line| {
        serde_json::from_slice(line).is_ok_and(|line| reader.line(&line))
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
        Chain { conversation, agent: None, chars: AnswerChars::default(), is_final: false }
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
            (kind, _) => BESIDE.split(' ').any(|beside| beside == kind),
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
        let is_it = |chain: &Chain<'_>| match agent {
            Some(_) => chain.agent == agent,
            None => line.parent_uuid.is_some_and(|parent| chain.conversation.has(parent)),
        };
        let known = self.chains.iter().skip(1).position(is_it).map(|n| n + 1);
        known.unwrap_or_else(|| {
            self.chains.push(Chain { agent, ..self.new_chain() });
            self.chains.len() - 1
        })
    }
}

impl Chain<'_> {
    fn input(&mut self, message: &Message<'_>, timestamp: Option<&str>) {
        self.conversation.came(timestamp.and_then(lines::seconds));
        self.conversation.input(&Block::of_content(message.content.map_or("", RawValue::get)));
    }

    fn answer(&mut self, message: &Message<'_>, timestamp: Option<&str>, is_agent: bool) {
        let id = message.id.map_or(0, id_of);
        if !self.conversation.is_open(id) {
            let at = timestamp.and_then(lines::seconds);
            self.conversation.open(Step { model: message.model.map(Into::into), at, id, ..Step::default() });
            (self.chars, self.is_final) = (AnswerChars::default(), false);
        }
        self.is_final |= message.stop_reason.is_some();
        let content = message.content.map_or("", RawValue::get);
        self.chars.add(content);
        if let Some(step) = self.conversation.request(id) {
            let usage = message.usage.as_ref().map(|usage| usage.usage(false));
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
