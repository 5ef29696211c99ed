//! Puts the messages of a session together, segment by segment.

use std::sync::Arc;

use smart_default::SmartDefault;

use super::IsElsewhere;
use crate::dialect::Usage;
use crate::simulate::{Transcript, TranscriptError};

/// One request of a session.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// The number of messages that it has.
    pub messages: usize,
    /// The tokens as billed, if they were recorded.
    pub usage: Option<Usage>,
    /// The model.
    pub model: Option<Arc<str>>,
    /// When it was sent, in seconds since 1970.
    pub at: Option<i64>,
    /// The hash of its name; 0 if it has none.
    pub id: u64,
}

/// The keys of the instructions and of the messages in the wire formats that sessions are written in.
pub(super) const MESSAGES: [&str; 2] = ["system", "messages"];
pub(super) const RESPONSES: [&str; 2] = ["instructions", "input"];

/// A session of which more and more is read.
#[derive(SmartDefault)]
pub(super) struct Builder<'a> {
    keys: [&'static str; 2],
    /// The host that the agent's requests go to, if it is always the same.
    host: Option<&'static str>,
    #[default(&|_| false)]
    is_elsewhere: IsElsewhere<'a>,
    /// The model of the requests from here on.
    pub(super) model: Option<Arc<str>>,
    pub(super) window: Option<usize>,
    /// The messages, with commas between.
    elements: Vec<u8>,
    pub(super) ends: Vec<usize>,
    /// The requests of this segment.
    pub(super) steps: Vec<Step>,
    done: Vec<Transcript>,
    #[default(MAX_SEGMENT)]
    max_bytes: usize,
    is_too_long: bool,
}

/// The most bytes of messages in one segment. The largest context windows take a twentieth of that.
const MAX_SEGMENT: usize = 128 << 20;

/// The two context windows of models of Anthropic, in tokens.
const USUAL_WINDOW: u64 = 200_000;
const LARGER_WINDOW: usize = 1_000_000;

/// The texts of an answer, in characters.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerChars {
    /// Of what the model says.
    pub text: usize,
    /// Of the arguments of its calls.
    pub arguments: usize,
    /// Of the signatures of its reasoning.
    pub signatures: usize,
}

/// The tokens of an answer of which only the first count was recorded, as older versions of Claude Code do: fitted to 13,373
/// answers whose last count was recorded.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
pub fn estimated_output(chars: AnswerChars) -> u64 {
    let AnswerChars { text, arguments, signatures } = chars;
    (15.0 + 0.28 * text as f64 + 0.309 * arguments as f64 + 0.185 * signatures as f64).round() as u64
}

impl AnswerChars {
    /// The tokens of an answer of a sub-agent, of which only the first count was recorded.
    pub fn of_agent(self) -> u64 {
        15 + (self.text + self.arguments) as u64 * 3 / 10
    }
}

impl<'a> Builder<'a> {
    pub(super) fn new(keys: [&'static str; 2], host: Option<&'static str>, is_elsewhere: IsElsewhere<'a>) -> Self {
        Self { keys, host, is_elsewhere, ..Self::default() }
    }

    /// The next message.
    pub(super) fn push(&mut self, element: &[u8]) {
        self.is_too_long |= self.elements.len() + 1 + element.len() > self.max_bytes;
        if self.is_too_long {
            return;
        }
        if !self.elements.is_empty() {
            self.elements.push(b',');
        }
        self.elements.extend_from_slice(element);
        self.ends.push(self.elements.len());
    }

    /// A request with all messages so far. It is history if it is counted elsewhere.
    pub(super) fn request(&mut self, step: Step) {
        let is_elsewhere = step.id != 0 && (self.is_elsewhere)(step.id);
        if !is_elsewhere && !self.ends.is_empty() {
            let model = step.model.or_else(|| self.model.clone());
            self.steps.push(Step { messages: self.ends.len(), model, ..step });
        }
    }

    /// The bill of the last request; if it is counted elsewhere, the request is history.
    pub(super) fn bill(&mut self, id: u64, usage: Usage) {
        if id != 0 && (self.is_elsewhere)(id) {
            self.steps.pop();
        } else if let Some(step) = self.steps.last_mut() {
            (step.id, step.usage) = (id, Some(usage));
        }
    }

    /// Ends a segment. The next one begins with the first messages of this one.
    pub(super) fn cut(&mut self, keep: usize) {
        if let Some(transcript) = self.segment() {
            self.done.push(transcript);
        }
        self.steps.clear();
        self.ends.truncate(keep);
        self.elements.truncate(self.ends.last().copied().unwrap_or_default());
    }

    pub(super) fn finish(mut self) -> Result<Vec<Transcript>, TranscriptError> {
        self.cut(0);
        if self.is_too_long { Err(TranscriptError::TooLong(self.max_bytes as u64)) } else { Ok(self.done) }
    }

    fn segment(&self) -> Option<Transcript> {
        let first = self.steps.first()?;
        let model = first.model.as_deref().unwrap_or_default();
        let name = serde_json::to_string(model).unwrap_or_default();
        let [beside, array] = self.keys;
        let before_padding = format!(r#"{{"model":{name},"{beside}":"#);
        let padding_at = before_padding.len();
        let head = format!(r#"{before_padding}"","{array}":["#);
        let largest = self.steps.iter().filter_map(|step| step.usage).map(|usage| usage.input).max();
        // A model of Anthropic whose requests have been larger than the usual window has the larger one.
        let window = self.window.or(largest.filter(|largest| *largest > USUAL_WINDOW).map(|_| LARGER_WINDOW));
        Some(Transcript {
            body: [head.as_bytes(), &self.elements, b"]}"].concat().into(),
            model: Some(model.to_owned()).filter(|model| !model.is_empty()),
            message_ends: self.ends.iter().map(|end| end + head.len()).collect(),
            request_lengths: self.steps.iter().map(|step| step.messages).collect(),
            windows: window.map(|window| (model.to_owned(), window)).into_iter().collect(),
            upstream: self.host.map(str::to_owned),
            steps: self.steps.clone(),
            padding_at,
        })
    }
}

/// The hash of the name of a request.
pub(super) fn id_of(name: &str) -> u64 {
    blake3::hash(name.as_bytes()).as_bytes().first_chunk().copied().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_at_most_as_many_bytes_of_messages_as_the_limit() {
        let built = |more: &[u8]| {
            let mut builder = Builder::new(MESSAGES, None, &|_| false);
            builder.max_bytes = 10;
            builder.push(b"{ }");
            builder.push(more);
            builder.request(Step::default());
            builder.finish().map(|transcripts| transcripts.len())
        };
        assert_eq!(built(b"{    }").unwrap(), 1);
        assert!(matches!(built(b"{     }"), Err(TranscriptError::TooLong(10))));
    }
}
