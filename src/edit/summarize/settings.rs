//! `[summarize]` of `proxy.toml`.

use memchr::memmem;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::PromptMode;
use crate::edit::trigger::{Condition, Keep, Moment, Trigger};
use crate::units::Period;

/// `[summarize]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// When a summary is made, after the other edits have run: conditions as in `clear_tool_results.trigger`.
    #[default(Trigger(vec![Condition::fraction(0.8), Condition { without_window: true, ..Condition::tokens(160_000) }]))]
    pub trigger: Trigger,
    /// Where a summary is made. With `"turn"`, the beginning of a user's turn needs four fifths of the trigger.
    pub when: Moment,
    /// The part that is not summarised, of what the model has read, counted from the newest backwards: exactly one of `results`,
    /// `rounds`, `tokens`, `fraction`. The newest user message stays with everything after it if that is no more than
    /// this. What the model has not read always stays, and does not count.
    #[default(Keep::Rounds(1))]
    pub keep: Keep,
    /// Whether the request that reaches the trigger waits for the summary.
    pub mode: Mode,
    /// The input of the model that summarises.
    pub input: PromptMode,
    /// The instruction of the model that summarises.
    ///
    /// Not set: a text in `language`.
    ///
    /// Example: `"Summarise this conversation."`
    pub instruction: Option<String>,
    /// The handler of `[handlers]` that rewrites what the model that summarises is given, the messages as JSON lines.
    ///
    /// Not set: it is given the messages.
    ///
    /// Example: `"redact"`
    pub input_handler: Option<String>,
    /// The handler of `[handlers]` that rewrites a summary before it is kept.
    ///
    /// Not set: the summary is kept as the model has written it.
    ///
    /// Example: `"redact"`
    pub finalize_handler: Option<String>,
    /// The most tokens of a summary. Allowed: 1 or more.
    ///
    /// Not set: 8192, or a quarter of the model's context window if that is less.
    ///
    /// Example: `8192`
    pub max_tokens: Option<usize>,
    /// The user's own messages, which stay word for word, the newest first. The first one that does not fit keeps its
    /// two ends.
    pub preserve_user_messages: PreserveUserMessages,
    /// Results of a tool that loads skills, which stay word for word. Without this table none do.
    pub preserve_skills: Option<PreserveSkills>,
    /// Stores what is summarised, one message per line, for the model to read. With `true`, no summary is made without
    /// a store.
    #[default(true)]
    pub transcript: bool,
    /// How long a request waits for a summary; then it goes on without it. A waiting client receives nothing meanwhile, so this
    /// must be shorter than the client's own time-out. No attempt begins later, and none outlasts an upstream that is silent for
    /// so long; an answer that keeps coming is read to its end for later requests, for 15 times as long at most. Allowed: 1ms to
    /// 365d.
    #[default(Period::secs(60))]
    pub timeout: Period,
    /// How long no summary is tried for the same messages after one could not be made. Allowed: 0ms to 365d.
    #[default(Period::secs(60))]
    pub cooldown: Period,
    /// How failed calls are repeated.
    pub retry: Retry,
    /// The model that summarises. Without this table it is the model of the request, at the upstream, with the key of
    /// the request. A model that is named here is sent no header field of the client but `anthropic-version`.
    pub model: Option<Endpoint>,
    /// Models that are asked when that has failed, in this order; any number of tables.
    pub failover: Vec<Endpoint>,
}

/// Whether the request that crosses the trigger waits for the summary.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The request waits, for `timeout` at most.
    #[default]
    Blocking,
    /// The summary is made from four fifths of the trigger on, while the conversation continues. A request waits only
    /// if it reaches the trigger before the summary is there.
    Background,
}

/// `[summarize.preserve_user_messages]`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct PreserveUserMessages {
    /// Whether they are kept.
    #[default(true)]
    pub enabled: bool,
    /// The most tokens of all of them together.
    ///
    /// Not set: a third of the tokens of `summarize.trigger`.
    ///
    /// Example: `53333`
    pub max_tokens: Option<usize>,
}

/// `[summarize.preserve_skills]`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct PreserveSkills {
    /// The tool. Its argument `skill` names the skill.
    #[default("skill".to_owned())]
    pub tool: String,
    /// The most skills that are kept, the newest first.
    #[default(5)]
    pub max_skills: usize,
    /// The most tokens of one skill.
    #[default(5000)]
    pub max_tokens_per_skill: usize,
    /// The most tokens of all skills together.
    #[default(25_000)]
    pub budget: usize,
}

/// `[summarize.retry]`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// How often a call is repeated with one model, where that may help: after 1 s, 2 s, 4 s, each time up to half as
    /// long again, or after what `retry-after` says, up to 30 s. Allowed: 0 to 100.
    #[default(3)]
    pub max_retries: usize,
    /// The errors after which it may help: HTTP statuses, and texts that the body of the error contains. A request that the
    /// upstream finds too long, or whose form it refuses, is sent in another form instead.
    ///
    /// Not set: 408, 409, 429, and all from 500 on.
    ///
    /// Example: `[429, 500, "overloaded_error"]`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<Vec<ErrorPattern>>,
}

/// A kind of error.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(untagged, expecting = "an HTTP status or a text")]
pub enum ErrorPattern {
    /// Answers with this status.
    Status(u16),
    /// Answers whose body contains this text.
    Text(String),
}

/// A model that summarises.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Where the model is served.
    ///
    /// Example: `"https://api.openai.com/v1"`
    pub base_url: String,
    /// The name of the model.
    ///
    /// Example: `"gpt-4o-mini"`
    pub model: String,
    /// The name of the environment variable with the key for it. It is sent as `authorization: Bearer KEY`, or as
    /// `x-api-key` for a conversation in Anthropic Messages, which is summarised in that dialect.
    ///
    /// Not set: no key is sent.
    ///
    /// Example: `"SUMMARY_API_KEY"`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
}

impl Retry {
    /// Whether the same request may be accepted after this error.
    pub fn repeats(&self, status: u16, body: &[u8]) -> bool {
        let Some(on) = &self.on else { return matches!(status, 408 | 409 | 429 | 500..) };
        on.iter().any(|pattern| match pattern {
            ErrorPattern::Status(listed) => *listed == status,
            ErrorPattern::Text(text) => memmem::find(body, text.as_bytes()).is_some(),
        })
    }
}
