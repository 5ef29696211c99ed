//! One recorded session, and the requests that it was made of.

use std::fs;
use std::io;
use std::path::Path;

use bytes::Bytes;

use super::dialect;
use crate::conversation::Role;
use crate::dialect::ParseError;

/// The longest file that is read.
const MAX_FILE: u64 = 1 << 30;

/// A conversation whole, in the bytes of its file.
#[derive(Clone, Debug)]
pub struct Transcript {
    body: Bytes,
    model: Option<String>,
    /// Where each message ends.
    ends: Vec<usize>,
    /// How many messages each request has.
    cuts: Vec<usize>,
}

/// Why something cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot be read")]
    File(#[source] io::Error),
    /// It is longer than any session may be.
    #[error("longer than {MAX_FILE} bytes")]
    TooLong,
    /// It is no body of a request, or has no `messages`.
    #[error("no transcript")]
    NotUnderstood(#[from] ParseError),
    /// Its `messages` are empty.
    #[error("no messages")]
    Empty,
    /// There is no dialect to read it.
    #[error("no dialect for {}", super::ROUTE)]
    NoDialect,
}

impl Transcript {
    /// Reads a file, or the request of a recording; `model` is asked where the file names none.
    pub fn read(path: &Path, model: Option<&str>) -> Result<Self, ReadError> {
        let file = if path.is_dir() { path.join("request.json") } else { path.to_owned() };
        if fs::metadata(&file)?.len() > MAX_FILE {
            return Err(ReadError::TooLong);
        }
        Self::new(fs::read(&file)?.into(), model)
    }

    /// A transcript from its bytes.
    pub fn new(body: Bytes, model: Option<&str>) -> Result<Self, ReadError> {
        let conversation = dialect()?.parse(&body)?;
        if let Some(model) = model.filter(|_| conversation.model.is_none()) {
            return Self::new(with_model(&body, model), None);
        }
        if conversation.messages.is_empty() {
            return Err(ReadError::Empty);
        }
        let n_messages = conversation.messages.len();
        let answers = conversation.messages.iter().enumerate().skip(1);
        let answers = answers.filter(|(_, message)| message.role == Role::Assistant).map(|(n, _)| n);
        let cuts = answers.chain([n_messages]).collect();
        let ends = conversation.messages.iter().map(|message| message.span.end).collect();
        let model = conversation.model.as_deref().map(str::to_owned);
        Ok(Self { body, model, ends, cuts })
    }

    /// The model that is asked.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// How many messages there are.
    pub fn n_messages(&self) -> usize {
        self.ends.len()
    }

    /// The bodies of the requests, in order: each has the messages that stand before an answer of the model, and the last
    /// has all. Around the messages they are as the file is.
    pub fn requests(&self) -> impl Iterator<Item = Bytes> {
        let tail = self.ends.last().and_then(|&end| self.body.get(end..)).unwrap_or_default();
        self.cuts.iter().filter_map(move |&n| {
            let head = self.body.get(..*self.ends.get(n.checked_sub(1)?)?)?;
            Some(if n == self.ends.len() { self.body.clone() } else { [head, tail].concat().into() })
        })
    }
}

/// The body with a model as its first key. If that makes it no request, whoever reads it next says so.
fn with_model(body: &Bytes, model: &str) -> Bytes {
    let open = memchr::memchr(b'{', body).map_or(0, |at| at + 1);
    let (before, behind) = body.split_at(open);
    let name = serde_json::to_string(model).unwrap_or_default();
    [before, format!(r#""model":{name},"#).as_bytes(), behind].concat().into()
}
