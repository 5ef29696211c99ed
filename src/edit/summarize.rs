//! `summarize`: puts a summary in place of what a conversation began with when it has grown large.
//!
//! # What it does
//! When the `trigger` holds, all messages between the instructions at the beginning and a cut are summarised by a model, and
//! one user message stands for them: a lead-in, the summary, the user's own messages as far as there is room, results of a
//! skill tool if that is asked for, the way to the whole transcript, and how to go on. What is behind the cut stays.
//!
//! # When it acts
//! When the size that the edits before have left reaches the `trigger`. A summary that was made once is remembered by the
//! messages that it stands for, and used for every conversation that begins with them, without a call. When the trigger
//! holds again, the next one is made from that summary and what has come since.
//!
//! # What the model sees
//! That the session goes on from an earlier one, what was summarised, and how to read the transcript.
//!
//! # What it never touches
//! Instructions at the beginning; what `keep` spares at the end; results that the model has not read yet; the inside of a
//! round. Without a summary the request goes on as the other edits have left it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    keep::Keep,
    trigger::{Condition, Trigger},
};
use crate::units::{Fraction, Period};

pub mod answer;
pub mod frame;
pub mod instruction;
pub mod request;

/// `[summarize]` of `proxy.toml`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// When a summary is made.
    pub trigger: Trigger,
    /// What is not summarised, counted from the newest backwards.
    pub keep: Keep,
    /// Whether the request that crosses the trigger waits for the summary.
    pub mode: Mode,
    /// What the model that summarises is given.
    pub input: Input,
    /// What it is told to do. Default: by language.
    pub instruction: Option<String>,
    /// A file that says it instead.
    pub instruction_file: Option<PathBuf>,
    /// The first sentence of the message that stands for what was summarised. Default: by language.
    pub lead_in: Option<String>,
    /// The last one, which says how to go on. Default: by language.
    pub continuation: Option<String>,
    /// The most tokens that a summary may have. Default: 8192, or a quarter of the model's window if that is less.
    pub max_tokens: Option<usize>,
    /// The user's own messages, which a summary keeps as they were.
    pub preserve_user_messages: PreserveUserMessages,
    /// Results of a tool that loads skills, which a summary keeps. Not set: none.
    pub preserve_skills: Option<PreserveSkills>,
    /// Whether what is summarised is stored, one message a line.
    pub transcript: bool,
    /// How long all attempts together may take.
    pub timeout: Period,
    /// How long a conversation goes without a summary, before one is tried again that could not be made.
    pub cooldown: Period,
    /// How failed attempts are repeated.
    pub retry: Retry,
    /// Who summarises. Default: the model that the request asks, with the client's own key.
    pub model: Option<Endpoint>,
    /// Who is asked after that, in this order.
    pub failover: Vec<Endpoint>,
}

/// Whether the request that crosses the trigger waits for the summary.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It waits.
    #[default]
    Blocking,
    /// It seldom has to: the summary is made while the conversation goes on, from four fifths of the trigger.
    Background,
}

/// What the model that summarises is given.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    /// The request as it would have been sent, and the instruction behind it: the provider's prompt cache has most of it.
    #[default]
    Cached,
    /// An instruction of our own, the messages, and no tools.
    Fresh,
}

/// `[summarize.preserve_user_messages]`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreserveUserMessages {
    /// Whether they are kept.
    pub enabled: bool,
    /// The most tokens of them. Default: a third of the trigger's.
    pub max_tokens: Option<usize>,
}

/// `[summarize.preserve_skills]`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PreserveSkills {
    /// The tool that loads skills; its argument `skill` names one.
    pub tool: String,
    /// The most skills that are kept.
    pub max_skills: usize,
    /// The most tokens of one.
    pub max_tokens_per_skill: usize,
    /// The most tokens of all of them.
    pub budget: usize,
}

/// `[summarize.retry]`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// How often an attempt is repeated with one model.
    pub max_retries: usize,
}

/// A model that summarises.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Where it is, path and all: `https://api.openai.com/v1`.
    pub base_url: String,
    /// Its name.
    pub model: String,
    /// The environment variable that holds the key for it. Not set: none is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let tokens = Condition { tokens: Some(160_000), ..Condition::default() };
        let window = Condition { fraction: Fraction::new(0.8), ..Condition::default() };
        Self {
            trigger: Trigger(vec![tokens, window]),
            keep: Keep::Rounds(1),
            mode: Mode::Blocking,
            input: Input::Cached,
            instruction: None,
            instruction_file: None,
            lead_in: None,
            continuation: None,
            max_tokens: None,
            preserve_user_messages: PreserveUserMessages::default(),
            preserve_skills: None,
            transcript: true,
            timeout: Period::secs(60),
            cooldown: Period::secs(60),
            retry: Retry::default(),
            model: None,
            failover: Vec::new(),
        }
    }
}

impl Default for PreserveUserMessages {
    fn default() -> Self {
        Self { enabled: true, max_tokens: None }
    }
}

impl Default for PreserveSkills {
    fn default() -> Self {
        Self { tool: "skill".to_owned(), max_skills: 5, max_tokens_per_skill: 5000, budget: 25_000 }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_retries: 3 }
    }
}
