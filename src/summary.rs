//! Summaries that stand for what a conversation began with: what they are made from, what they become, and what is
//! remembered of them.

use std::{fmt::Debug, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::payload::{ChainKey, PayloadKey};

/// What stands for the messages between the instructions at the beginning and a cut.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Summary {
    /// What the message says that stands there: the summary and all around it.
    pub text: String,
    /// How many tokens the messages had that it stands for, as the client sent them.
    pub tokens_replaced: usize,
    /// The name of those messages in the store, if they are there.
    pub transcript: Option<PayloadKey>,
}

/// What is remembered of summaries that were made, or were to be made.
pub trait Memory: Debug + Send + Sync {
    /// What is remembered of a beginning. It asks no file and waits for nothing.
    fn recall(&self, beginning: ChainKey) -> Recollection;

    /// Whether nothing is remembered at all.
    fn is_empty(&self) -> bool;
}

/// What is remembered of one beginning of a conversation.
#[derive(Clone, Debug)]
pub enum Recollection {
    /// Nothing.
    Nothing,
    /// A summary of it.
    Summary(Arc<Summary>),
    /// There is a summary of it in the store.
    Stored,
    /// A summary of it is being made.
    UnderWay,
    /// A summary of it could not be made, and is not to be asked for for some time.
    NotNow,
}

/// Nothing is remembered.
#[derive(Clone, Copy, Debug)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn recall(&self, _: ChainKey) -> Recollection {
        Recollection::Nothing
    }

    fn is_empty(&self) -> bool {
        true
    }
}

/// What a summary is made from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// The request as the client sent it: what it asks for beside its messages.
    pub body: Bytes,
    /// The instructions at the beginning, and then what is summarised, as the edits have left it.
    pub messages: Vec<Piece>,
    /// How many of them are instructions at the beginning.
    pub n_leading: usize,
    /// The tokens beside the messages.
    pub base_tokens: usize,
}

/// One message of a [`Source`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Piece {
    /// Its JSON.
    pub json: Bytes,
    /// Its tokens.
    pub tokens: usize,
    /// Whether the sequence may be parted before it.
    pub opens: bool,
}

/// What stands around a summary in its message.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Frame {
    /// What comes before it.
    pub lead_in: String,
    /// What takes the place of its section of user messages, tags and all, or comes behind it.
    pub user_messages: Option<String>,
    /// What comes behind that: preserved skills, the way to the transcript, how to go on.
    pub behind: String,
}

/// What a summary has around its section of user messages.
pub const USER_MESSAGES: (&str, &str) = ("<all_user_messages>", "</all_user_messages>");

// === impl Frame ===

impl Frame {
    /// What the message says that stands for what was summarised.
    pub fn around(&self, summary: &str) -> String {
        let summary = match &self.user_messages {
            None => summary.trim().to_owned(),
            Some(messages) => match user_messages(summary) {
                None => format!("{}\n\n{messages}", summary.trim()),
                Some(Section { before, behind }) => format!("{before}{messages}{behind}").trim().to_owned(),
            },
        };
        let parts = [self.lead_in.as_str(), &summary, &self.behind];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
    }
}

/// What stands around the section of user messages in a summary.
struct Section<'a> {
    before: &'a str,
    behind: &'a str,
}

/// Finds the section: the last pair of tags. A summary may also speak of these tags, or a user may have; so tags count
/// before others where they begin or end their line.
fn user_messages(summary: &str) -> Option<Section<'_>> {
    let (open, close) = USER_MESSAGES;
    let begins_line = |at: usize| {
        let line = summary.get(..at).and_then(|before| before.rsplit('\n').next());
        line.is_some_and(|line| line.trim().is_empty())
    };
    let ends_line = |at: usize| {
        let line = summary.get(at..).and_then(|behind| behind.split('\n').next());
        line.is_some_and(|line| line.trim().is_empty())
    };
    let last_close = summary.rfind(close)?;
    let openings = || summary.match_indices(open).map(|(at, _)| at).filter(|at| *at < last_close);
    let start = openings().filter(|at| begins_line(*at)).last().or_else(|| openings().last())?;
    let closings = || summary.match_indices(close).map(|(at, _)| at + close.len()).filter(|end| *end > start);
    let end = closings().find(|end| ends_line(*end)).or_else(|| closings().next())?;
    Some(Section { before: summary.get(..start)?, behind: summary.get(end..)? })
}
