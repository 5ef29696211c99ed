//! Conversations in Anthropic Messages, put together from blocks: an answer may go on after the first of its results.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::IsElsewhere;
use super::builder::{Builder, MESSAGES, Step, id_of};
use crate::simulate::{Transcript, TranscriptError};

/// A conversation whose last answer may go on.
#[derive(Default)]
pub(super) struct Conversation<'a> {
    builder: Builder<'a>,
    /// The blocks of the last answer.
    answer: Vec<u8>,
    /// The blocks of the user after it.
    after: Vec<u8>,
    /// The name of the last answer.
    answer_id: u64,
    /// The number of messages at the request for each answer, and after the answer.
    opened: Vec<usize>,
    answered: Vec<usize>,
    /// The places that have a name.
    named: HashMap<u64, Place>,
    /// When the newest message of the user came.
    pub(super) at: Option<i64>,
}

/// A place in a conversation.
#[derive(Clone, Copy)]
struct Place {
    /// The number of answers up to it.
    n_answers: usize,
    /// Whether it is after something that the user has said to the last one.
    is_after_input: bool,
}

/// A block of another format.
pub(super) enum Block<'a> {
    Text(Cow<'a, str>),
    Call {
        id: &'a str,
        name: &'a str,
        input: &'a RawValue,
    },
    Result {
        id: &'a str,
        content: Cow<'a, str>,
        is_error: bool,
    },
    /// A block of Messages, or several with commas between.
    Raw(&'a str),
}

impl<'a> Block<'a> {
    /// A content of Messages: a text, or an array of blocks.
    pub(super) fn of_content(content: &'a str) -> Self {
        let text = serde_json::from_str::<String>(content);
        text.map_or_else(|_| Block::Raw(inside(content)), |text| Block::Text(text.into()))
    }
}

impl<'a> Conversation<'a> {
    pub(super) fn new(host: Option<&'static str>, is_elsewhere: IsElsewhere<'a>) -> Self {
        Self { builder: Builder::new(MESSAGES, host, is_elsewhere), ..Self::default() }
    }

    /// Whether the last answer has this name.
    pub(super) fn is_open(&self, id: u64) -> bool {
        id != 0 && id == self.answer_id
    }

    /// The request of the last answer, unless it is counted elsewhere.
    pub(super) fn request(&mut self, id: u64) -> Option<&mut Step> {
        self.builder.steps.last_mut().filter(|step| step.id == id)
    }

    /// A message of the user came.
    pub(super) fn came(&mut self, at: Option<i64>) {
        self.at = at.or(self.at);
    }

    /// The next answer begins. Its request was sent when the newest message of the user came, if that is known.
    pub(super) fn open(&mut self, step: Step) {
        self.flush();
        self.answer_id = step.id;
        self.opened.push(self.builder.ends.len());
        self.builder.request(Step { at: self.at.or(step.at), ..step });
    }

    /// A block of the answer.
    pub(super) fn answer(&mut self, block: &Block<'_>) {
        add(&mut self.answer, block);
    }

    /// A block of the user.
    pub(super) fn input(&mut self, block: &Block<'_>) {
        add(&mut self.after, block);
    }

    /// Names the place at the end.
    pub(super) fn name_end(&mut self, name: &str) {
        let place = Place { n_answers: self.opened.len(), is_after_input: !self.after.is_empty() };
        self.named.insert(id_of(name), place);
    }

    /// Whether a place has this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.named.contains_key(&id_of(name))
    }

    /// Steps back to the place of this name, if there is one with answers after it.
    pub(super) fn step_back(&mut self, name: &str) {
        let Some(Place { n_answers, is_after_input }) = self.named.get(&id_of(name)).copied() else { return };
        if n_answers >= self.opened.len() {
            return;
        }
        self.flush();
        let ends =
            if is_after_input { self.opened.get(n_answers) } else { self.answered.get(n_answers.wrapping_sub(1)) };
        let keep = ends.copied().unwrap_or_default();
        self.opened.truncate(n_answers);
        self.answered.truncate(n_answers);
        self.builder.cut(keep);
    }

    /// Begins anew, with nothing.
    pub(super) fn restart(&mut self) {
        self.flush();
        self.opened.clear();
        self.answered.clear();
        self.named.clear();
        self.builder.cut(0);
    }

    pub(super) fn finish(mut self) -> Result<Vec<Transcript>, TranscriptError> {
        self.flush();
        self.builder.finish()
    }

    fn flush(&mut self) {
        for (role, blocks) in [("assistant", &mut self.answer), ("user", &mut self.after)] {
            if !blocks.is_empty() {
                let head = format!(r#"{{"role":"{role}","content":["#);
                self.builder.push(&[head.as_bytes(), blocks, b"]}"].concat());
                blocks.clear();
            }
            if self.answered.len() < self.opened.len() {
                self.answered.push(self.builder.ends.len());
            }
        }
        self.answer_id = 0;
    }
}

fn add(blocks: &mut Vec<u8>, block: &Block<'_>) {
    let json = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let text = match block {
        Block::Raw("") => return,
        Block::Text(text) if text.is_empty() => return,
        Block::Text(text) => Cow::Owned(format!(r#"{{"type":"text","text":{}}}"#, json(text))),
        Block::Call { id, name, input } => Cow::Owned(format!(
            r#"{{"type":"tool_use","id":{},"name":{},"input":{}}}"#,
            json(id),
            json(name),
            input.get()
        )),
        Block::Result { id, content, is_error } => Cow::Owned(format!(
            r#"{{"type":"tool_result","tool_use_id":{},"content":{},"is_error":{is_error}}}"#,
            json(id),
            json(content)
        )),
        Block::Raw(raw) => Cow::Borrowed(*raw),
    };
    if !blocks.is_empty() {
        blocks.push(b',');
    }
    blocks.extend_from_slice(text.as_bytes());
}

/// A content that is a text, or the texts of its parts.
pub(super) fn text(content: Option<&RawValue>) -> String {
    #[derive(Deserialize)]
    struct Part {
        text: Option<String>,
    }
    let content = content.map_or("", RawValue::get);
    serde_json::from_str(content).unwrap_or_else(|_| {
        let parts: Vec<Part> = serde_json::from_str(content).unwrap_or_default();
        parts.into_iter().filter_map(|part| part.text).collect::<Vec<_>>().join("\n")
    })
}

/// Returns what is in the brackets of an array.
pub(super) fn inside(array: &str) -> &str {
    array.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or_default().trim()
}
