//! A recorded session, and the requests that it consists of.

use std::fs;
use std::io;
use std::path::Path;

use bytes::Bytes;

use crate::conversation::{Element, Role};
use crate::dialect::{self, ParseError};
use crate::upstream::routes::Routes;

/// The longest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// A whole conversation, in the bytes of its file.
#[derive(Clone, Debug)]
pub struct Transcript {
    body: Bytes,
    model: Option<String>,
    /// The end offset of each message.
    message_ends: Vec<usize>,
    /// The number of messages in each request.
    request_lengths: Vec<usize>,
}

/// Why a transcript cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum TranscriptError {
    /// The file cannot be read.
    #[error("cannot be read")]
    File(#[source] io::Error),
    /// The file is too long.
    #[error("longer than {MAX_FILE_BYTES} bytes")]
    TooLong,
    /// The file is not a request body, or has no messages.
    #[error("not a transcript")]
    NotUnderstood(#[from] ParseError),
    /// There are no messages.
    #[error("no messages")]
    Empty,
}

impl Transcript {
    /// Reads a file, or the request of a recording. `model` is the model if the file names none.
    pub fn read(path: &Path, model: Option<&str>) -> Result<Self, TranscriptError> {
        let file = if path.is_dir() { path.join("request.json") } else { path.to_owned() };
        if fs::metadata(&file)?.len() > MAX_FILE_BYTES {
            return Err(TranscriptError::TooLong);
        }
        Self::new(fs::read(&file)?.into(), model)
    }

    /// A transcript from its bytes.
    pub fn new(body: Bytes, model: Option<&str>) -> Result<Self, TranscriptError> {
        let conversation = dialect::of_body(&body).parse(&body)?;
        if let Some(model) = model.filter(|_| conversation.model.is_none()) {
            return Self::new(with_model(&body, model), None);
        }
        if conversation.elements.is_empty() {
            return Err(TranscriptError::Empty);
        }
        let n_messages = conversation.elements.len();
        let opens_answer = |element: &&(usize, &Element)| {
            let first = element.1.units.start;
            let role = conversation.units.get(first).map(|unit| unit.role);
            role == Some(Role::Assistant) && conversation.turn_of(first).start == first
        };
        let answers = conversation.elements.iter().enumerate().skip(1).filter(|element| opens_answer(&element));
        let request_lengths = answers.map(|(n, _)| n).chain([n_messages]).collect();
        let message_ends = conversation.elements.iter().map(|element| element.span.end).collect();
        let model = conversation.model.as_deref().map(str::to_owned);
        Ok(Self { body, model, message_ends, request_lengths })
    }

    /// The model that the requests name.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// What belongs to the upstream that its requests go to.
    pub fn choose<'r, T>(&self, routes: &'r Routes<T>) -> &'r T {
        routes.find_without_headers(None, dialect::of_body(&self.body), &self.body)
    }

    /// The number of messages.
    pub fn n_messages(&self) -> usize {
        self.message_ends.len()
    }

    /// The bodies of the requests, in order: each has the messages before an answer of the model, and the last one has
    /// all. The bytes around the messages are those of the file.
    pub fn requests(&self) -> impl Iterator<Item = Bytes> {
        let tail = self.message_ends.last().and_then(|&end| self.body.get(end..)).unwrap_or_default();
        self.request_lengths.iter().filter_map(move |&n| {
            let head = self.body.get(..*self.message_ends.get(n.checked_sub(1)?)?)?;
            Some(if n == self.message_ends.len() { self.body.clone() } else { [head, tail].concat().into() })
        })
    }
}

/// The body with a model as its first key. If the result is not a valid request, the next reader reports that.
fn with_model(body: &Bytes, model: &str) -> Bytes {
    let open = memchr::memchr(b'{', body).map_or(0, |at| at + 1);
    let (before, behind) = body.split_at(open);
    let name = serde_json::to_string(model).unwrap_or_default();
    [before, format!(r#""model":{name},"#).as_bytes(), behind].concat().into()
}
