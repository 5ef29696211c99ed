//! A recorded session, and the requests that it consists of.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use bytes::Bytes;
use memchr::memmem;

use super::sessions::Step;
use crate::conversation::{Conversation, ElementIndex, Role, Unit, UnitIndex};
use crate::dialect::{self, Dialect, ParseError, Usage, strings};
use crate::recording::Meta;

/// The longest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// What [`Transcript::padded`] replaces.
const EMPTY: &str = r#""""#;

/// How a message of the user begins that an agent has put in place of everything before it. Claude Code's.
const COMPACTION_OPENING: &str = "This session is being continued from a previous conversation";

/// A whole conversation, in the bytes of its file, or a segment of one.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// All of it.
    pub(super) body: Bytes,
    pub(super) model: Option<String>,
    /// The end offset of each message.
    pub(super) message_ends: Vec<usize>,
    /// The number of messages in each request.
    pub(super) request_lengths: Vec<usize>,
    /// Of a recording, the context windows that the upstream had announced, by model; of a session, those of its models.
    pub(super) windows: BTreeMap<String, usize>,
    /// The host that its requests went to, if it is known.
    pub(super) upstream: Option<String>,
    /// Of a session, its requests; empty for any other transcript.
    pub(super) steps: Vec<Step>,
    /// Of a session, where [`Self::padded`] adds a text.
    pub(super) padding_at: usize,
}

/// Messages that the file does not have.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Insertion {
    /// The number of messages of the file before them.
    pub(super) at: usize,
    /// Their JSON, with commas between.
    pub(super) elements: Bytes,
}

/// How many messages an insertion is.
pub(super) const N_INSERTED: usize = 2;

/// Why a transcript cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum TranscriptError {
    /// The file cannot be read.
    #[error("cannot be read")]
    File(#[from] io::Error),
    /// The file is too long.
    #[error("longer than {0} bytes")]
    TooLong(u64),
    /// The file is not a request body, or has no messages.
    #[error("not a transcript")]
    NotUnderstood(#[from] ParseError),
    /// No messages.
    #[error("no messages")]
    Empty,
}

impl Transcript {
    /// Reads a file, or the request of a recording. `model` is the model if the file names none.
    pub fn read(path: &Path, model: Option<&str>) -> Result<Self, TranscriptError> {
        let file = if path.is_dir() { path.join("request.json") } else { path.to_owned() };
        if fs::metadata(&file)?.len() > MAX_FILE_BYTES {
            return Err(TranscriptError::TooLong(MAX_FILE_BYTES));
        }
        let meta = path.is_dir().then(|| fs::read(path.join("meta.json")).ok()).flatten();
        // A recording is played without a `meta.json` that can be read, too.
        let meta = meta.and_then(|meta| serde_json::from_slice::<Meta>(&meta).ok());
        let inputs = meta.and_then(|meta| meta.inputs).unwrap_or_default();
        Ok(Self { upstream: inputs.upstream, windows: inputs.windows, ..Self::new(fs::read(&file)?.into(), model)? })
    }

    /// The same with instructions of so many words, which replace those and the tools that the file does not have. In
    /// Messages they have a mark for the prompt cache, with the lifetime that was billed.
    pub(super) fn padded(&self, n_words: usize) -> Self {
        if n_words == 0 {
            return self.clone();
        }
        let (head, tail) = self.body.split_at(self.padding_at.min(self.body.len()));
        let mut padding = format!("\"{}\"", "word ".repeat(n_words));
        if head.ends_with(br#""system":"#) {
            let ttl = if self.has_hour_marks() { r#","ttl":"1h""# } else { "" };
            let mark = format!(r#""cache_control":{{"type":"ephemeral"{ttl}}}"#);
            padding = format!(r#"[{{"type":"text","text":{padding},{mark}}}]"#);
        }
        let message_ends = self.message_ends.iter().map(|end| end - EMPTY.len() + padding.len()).collect();
        let tail = tail.get(EMPTY.len()..).unwrap_or_default();
        Self { body: [head, padding.as_bytes(), tail].concat().into(), message_ends, ..self.clone() }
    }

    /// The same as if every entry of the prompt cache lived for five minutes: after a longer pause no more is found than the
    /// conversation always finds.
    pub(super) fn with_five_minute_caches(mut self) -> Self {
        const LIFETIME: i64 = 310;
        let always = self.steps.iter().filter_map(|step| Some(step.usage?.cached)).min().unwrap_or_default();
        let (has_hour_marks, mut before) = (self.has_hour_marks(), None);
        for step in self.steps.iter_mut().filter(|_| has_hour_marks) {
            let pause = step.at.zip(before).map_or(0, |(now, before)| now - before);
            before = step.at.or(before);
            let Some(usage) = &mut step.usage else { continue };
            usage.written_hour = 0;
            if pause > LIFETIME {
                usage.written += usage.cached.saturating_sub(always);
                usage.cached = usage.cached.min(always);
            }
        }
        self
    }

    /// Whether requests of a session have asked for a prompt cache of an hour.
    pub(super) fn has_hour_marks(&self) -> bool {
        self.steps.iter().any(|step| step.usage.is_some_and(|usage| usage.written_hour > 0))
    }

    /// Of a session in Messages, the pause between a request whose answer calls tools and the next one, which has a result.
    pub(super) fn pause_for_tools(&self, request: usize) -> Option<Duration> {
        let (step, next) = (self.steps.get(request)?, self.steps.get(request + 1)?);
        let between = self.body.get(self.end_of(step.messages)..self.end_of(next.messages))?;
        memmem::find(between, br#""tool_result""#)?;
        u64::try_from(next.at? - step.at?).ok().map(Duration::from_secs)
    }

    /// Whether the upstream's prompt cache had expired at a request of a session: it came at least five minutes after the
    /// one before, and less than half of that was found in the cache.
    pub(super) fn was_cold(&self, request: usize) -> bool {
        const SHORTEST_LIFETIME: i64 = 300;
        let before = request.checked_sub(1).and_then(|n| self.steps.get(n));
        let Some((before, now)) = before.zip(self.steps.get(request)) else { return false };
        let pause = now.at.zip(before.at).map_or(0, |(now, before)| now - before);
        let found_less = |(now, before): (Usage, Usage)| now.cached * 2 < before.input;
        pause >= SHORTEST_LIFETIME && now.usage.zip(before.usage).is_some_and(found_less)
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
        let answers = (1..n_messages).filter(|&n| opens_answer(&conversation, n));
        let request_lengths = answers.chain([n_messages]).collect();
        let message_ends = conversation.elements.iter().map(|element| element.span.end).collect();
        let model = conversation.model.as_deref().map(str::to_owned);
        Ok(Self { body, model, message_ends, request_lengths, ..Self::default() })
    }

    /// The parts of which the model has seen one at a time: a part begins where the agent has put a summary in place of
    /// all before it. Each has the instructions at the beginning.
    pub fn segments(&self) -> Result<Vec<Self>, TranscriptError> {
        if !self.steps.is_empty() {
            return Ok(vec![self.clone()]);
        }
        let dialect = dialect::of_body(&self.body);
        let conversation = dialect.parse(&self.body)?;
        let leading = conversation.elements_of(UnitIndex::default()..conversation.first_editable()).end.get();
        let is_cut = |&n: &usize| {
            let is_in_first = self.request_lengths.first().is_some_and(|&first| n < first);
            n > leading && is_compaction(dialect, &self.body, &conversation, n) && !is_in_first
        };
        let cuts: Vec<usize> = (0..self.message_ends.len()).filter(is_cut).collect();
        if cuts.is_empty() {
            return Ok(vec![self.clone()]);
        }
        let starts = [leading].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([self.message_ends.len()]);
        let start_of = |n: usize| conversation.elements.get(n).map_or(self.body.len(), |element| element.span.start);
        let slice = |from: usize, to: usize| self.body.get(from..to).unwrap_or_default();
        let segments = starts.zip(ends).map(|(start, end)| {
            // The instructions, and some of the messages.
            let messages = slice(start_of(start), self.end_of(end));
            let body = [slice(0, start_of(leading)), messages, self.tail()].concat().into();
            let (windows, upstream) = (self.windows.clone(), self.upstream.clone());
            Ok(Self { windows, upstream, ..Self::new(body, None)? })
        });
        segments.collect()
    }

    /// The model that the requests name.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// The number of messages.
    pub fn n_messages(&self) -> usize {
        self.message_ends.len()
    }

    /// The number of requests whose answer is recorded.
    pub(super) fn n_answers(&self) -> usize {
        self.request_lengths.iter().filter(|&&n| n < self.message_ends.len()).count()
    }

    /// The bodies of the requests, in order: each has the messages before an answer of the model, and the last one has
    /// all. The bytes around the messages are those of the file.
    pub fn requests(&self) -> impl Iterator<Item = Bytes> {
        self.request_lengths.iter().map(|&n| self.request(n, &[]))
    }

    /// The body of the request with the first `n` messages, and with what is inserted, in order, among these.
    pub(super) fn request(&self, n: usize, inserted: &[Insertion]) -> Bytes {
        if n == self.message_ends.len() && inserted.is_empty() {
            return self.body.clone();
        }
        let mut pieces: Vec<&[u8]> = Vec::new();
        let mut from = 0;
        for Insertion { at, elements } in inserted {
            pieces.extend([self.body.get(from..self.end_of(*at)).unwrap_or_default(), b",", elements]);
            from = self.end_of(*at);
        }
        pieces.extend([self.body.get(from..self.end_of(n)).unwrap_or_default(), self.tail()]);
        pieces.concat().into()
    }

    /// The end of the first `n` messages.
    fn end_of(&self, n: usize) -> usize {
        n.checked_sub(1).and_then(|n| self.message_ends.get(n)).copied().unwrap_or_default()
    }

    fn tail(&self) -> &[u8] {
        self.message_ends.last().and_then(|&end| self.body.get(end..)).unwrap_or_default()
    }
}

/// Whether an element is the first of an answer of the model.
fn opens_answer(conversation: &Conversation<'_>, element: usize) -> bool {
    let first = conversation.first_unit(ElementIndex::new(element));
    let role = conversation.unit(first).map(|unit| unit.role);
    role == Some(Role::Assistant) && conversation.turn_of(first).start == first
}

/// Whether an element is a message of the user that replaces everything before it.
fn is_compaction(dialect: &dyn Dialect, body: &[u8], conversation: &Conversation<'_>, element: usize) -> bool {
    let unit = conversation.unit(conversation.first_unit(ElementIndex::new(element)));
    let content = unit.filter(|unit| unit.role == Role::User).and_then(|unit: &Unit| unit.content);
    let first = content.and_then(|content| dialect.texts(body, content).into_iter().next());
    let text = first.and_then(|text| strings::text(body, text));
    text.is_some_and(|text| text.trim_start().starts_with(COMPACTION_OPENING))
}

/// The body with a model as its first key. If the result is not a valid request, the next reader reports that.
fn with_model(body: &Bytes, model: &str) -> Bytes {
    let open = memchr::memchr(b'{', body).map_or(0, |at| at + 1);
    let (before, behind) = body.split_at(open);
    let name = serde_json::to_string(model).unwrap_or_default();
    [before, format!(r#""model":{name},"#).as_bytes(), behind].concat().into()
}
