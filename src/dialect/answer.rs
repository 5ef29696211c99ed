//! The answer of an upstream, put together from its events by the dialect that it is written in.

use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::in_band::{ALL_ROUNDS, FIRST_ROUND};
use super::json::{each_element, element_fields, fields_at};
use crate::raw::{self, Fields};
use crate::span::Span;
pub use crate::tokens::Usage;

/// An answer, as far as it has been read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// The text of the first choice, gathered only where it is wanted: see [`Answer::with_text`].
    pub text: Option<String>,
    /// Whether the model calls a tool. Read only where the text is.
    pub calls_tool: bool,
    /// Why the model stopped, in the words of the dialect. Later reports replace earlier ones.
    pub stop_reason: Option<String>,
    /// The tokens that were billed.
    pub usage: Option<Usage>,
    /// If abridge has joined several rounds: the tokens as if there had been one, of the first request and of the last answer.
    pub as_one_round: Option<Usage>,
    /// Whether the upstream reports an error in place of an answer.
    pub is_error: bool,
    /// Whether the upstream has said that nothing follows.
    pub is_complete: bool,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerEnd {
    /// Completely.
    #[default]
    Complete,
    /// The upstream broke off or paused too long.
    #[serde(alias = "upstream_cut")]
    Cut,
    /// The client disconnected.
    ClientGone,
    /// The upstream gave no answer.
    Unanswered,
}

/// Why a model stopped, as far as that decides whether its answer can be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stop {
    /// It was done, or the reason is none of the following.
    Done,
    /// It calls a tool.
    ToolCall,
    /// The limit on the length of the answer was reached.
    Length,
    /// The provider's content filter stopped it.
    ContentFilter,
    /// The provider failed.
    Error,
}

/// The JSON is not a part of an answer in this dialect.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not an answer in this dialect")]
pub struct InvalidAnswer;

impl Answer {
    /// An empty answer that gathers the model's text.
    pub fn with_text() -> Self {
        Self { text: Some(String::new()), ..Self::default() }
    }
}

/// How answers are read.
pub trait AnswerFormat {
    /// Whether the data of an event may report usage or why the model stopped. The observer of answers that pass by parses
    /// no other events.
    fn reports(&self, data: &[u8]) -> bool;

    /// Adds the data of one event, or of an answer that is not streamed, to what is known of an answer.
    fn read_answer(&self, data: &[u8], answer: &mut Answer) -> Result<(), InvalidAnswer>;

    /// Returns what a stop reason, a state of a response, or the reason why it is incomplete means. The words of the APIs do not
    /// contradict each other, and gateways pass on those of another API.
    fn stop(&self, reason: &str) -> Stop {
        match reason {
            "tool_calls" | "function_call" | "tool_use" => Stop::ToolCall,
            "length"
            | "max_tokens"
            | "max_output_tokens"
            | "incomplete"
            | "model_context_window_exceeded"
            | "MAX_TOKENS" => Stop::Length,
            "content_filter" | "refusal" | "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII"
            | "IMAGE_SAFETY" => Stop::ContentFilter,
            "error"
            | "failed"
            | "cancelled"
            | "queued"
            | "in_progress"
            | "pause_turn"
            | "compaction"
            | "OTHER"
            | "LANGUAGE"
            | "MALFORMED_FUNCTION_CALL"
            | "UNEXPECTED_TOOL_CALL" => Stop::Error,
            _ => Stop::Done,
        }
    }
}

/// The members of an event or an answer, or of an object in one. Those that are read have to be of their type; `null` is none.
pub(super) struct Members<'a>(Fields<'a>);

impl<'a> Members<'a> {
    pub(super) fn of(json: &'a [u8]) -> Result<Self, InvalidAnswer> {
        raw::utf8(json).ok_or(InvalidAnswer).and_then(Self::of_object)
    }

    pub(super) fn of_object(json: &'a str) -> Result<Self, InvalidAnswer> {
        element_fields(json).map(Self).ok_or(InvalidAnswer)
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).filter(|value| *value != "null")
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<String>, InvalidAnswer> {
        self.get(key).map(|json| Ok(raw::unescaped(json).ok_or(InvalidAnswer)?.into_owned())).transpose()
    }

    /// A number, which some gateways write as `3.0`.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, InvalidAnswer> {
        let whole = self.get(key).map(|json| json.strip_suffix(".0").unwrap_or(json));
        whole.map(|json| json.parse().map_err(|_| InvalidAnswer)).transpose()
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, InvalidAnswer> {
        self.get(key).map(Self::of_object).transpose()
    }

    /// The objects in an array.
    pub(super) fn objects(&self, key: &str) -> Result<Vec<Self>, InvalidAnswer> {
        let (Some(json), mut all) = (self.get(key), Vec::new()) else { return Ok(Vec::new()) };
        let read = each_element(json.as_bytes(), Span { start: 0, end: json.len() }, |cursor| {
            all.push(Self(fields_at(cursor, json)?));
            Ok(())
        });
        match read {
            Ok(()) => Ok(all),
            Err(_) => raw::elements(json).ok_or(InvalidAnswer)?.into_iter().map(Self::of_object).collect(),
        }
    }

    /// Enters this usage into an answer, as `bill` reads the tokens of one. It may lack numbers of the usage before.
    pub(super) fn enter_usage(
        &self,
        answer: &mut Answer,
        bill: impl Fn(&Self, Usage) -> Result<Usage, InvalidAnswer>,
    ) -> Result<(), InvalidAnswer> {
        let before = answer.usage.unwrap_or_default();
        if let Some(first) = self.object(FIRST_ROUND)? {
            let output = bill(self, Usage::default())?.output;
            answer.as_one_round = Some(Usage { output, ..bill(&first, Usage::default())? });
        }
        answer.usage = Some(bill(self.object(ALL_ROUNDS)?.as_ref().unwrap_or(self), before)?);
        Ok(())
    }

    /// The tokens in a usage of OpenAI's APIs. The keys name the tokens of the prompt, their details, and the tokens of the answer.
    pub(super) fn billed(&self, [input, details, output]: [&str; 3]) -> Result<Usage, InvalidAnswer> {
        let number = |key| self.number(key).map(Option::unwrap_or_default);
        let (mut input, mut output, inside) = (number(input)?, number(output)?, self.object(details).ok().flatten());
        let most = |keys: [&str; 3]| {
            let all = [Some(self), inside.as_ref()].into_iter().flatten();
            all.flat_map(|of| keys.map(|key| of.number(key).ok().flatten().unwrap_or_default()))
                .max()
                .unwrap_or_default()
        };
        let (cached, written) = (most(CACHED), most(WRITTEN));
        // xAI and Google leave reasoning out of the answer (vercel/ai#12425), and Portkey the cache out of the prompt
        // (Portkey-AI/gateway#1754), but none of it out of the sum.
        let rest = number("total_tokens").unwrap_or_default().saturating_sub(input.saturating_add(output));
        let lacking = if rest == cached.saturating_add(written) { &mut input } else { &mut output };
        *lacking = lacking.saturating_add(rest);
        // Some gateways count what was served as written, too.
        let written = written.min(input.saturating_sub(cached));
        Ok(Usage { input, cached, written, written_hour: 0, output })
    }
}

/// The names of tokens that the prompt cache served: OpenAI's, which Kimi has beside the details (earendil-works/pi#8075),
/// `DeepSeek`'s, and those of gateways to Anthropic.
const CACHED: [&str; 3] = ["cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"];

/// The names of tokens that were written to it: OpenAI's, Qwen's (`BerriAI/litellm#40090`), `LiteLLM`'s.
const WRITTEN: [&str; 3] = ["cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens"];

/// Whether the key occurs with a value that begins with this byte.
pub fn has_value(json: &[u8], key: &[u8], first: u8) -> bool {
    memmem::find_iter(json, key).any(|at| {
        let behind = json.get(at + key.len()..).unwrap_or_default().trim_ascii_start();
        let value = behind.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
        value.first() == Some(&first)
    })
}
