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
